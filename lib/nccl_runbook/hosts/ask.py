"""Agents on the hosts of a job: start one on each, ask it, renew its lease, and notice within
seconds that it is gone."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.hosts.facts import HostFacts
from nccl_runbook.hosts.read import flat
from nccl_runbook.launch.warm_link import EngineError, WarmLink, source_of

AGENT = "nccl_runbook/hosts/on_node/agent.py"
LEASE_EVERY_S, SILENT_S = 1.0, 4.0  # a host that answers no lease for SILENT_S counts as cut off
SLURM_S = 10.0  # scontrol and squeue
START_S, AT_ONCE = 45.0, 64  # of an agent, which imports no torch; sruns that start at the same time
NODE_S, RANK_FILE_S = 20.0, 60.0


def hosts_of_job(job: str, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """Job id and host names; ``job`` may be empty inside an allocation. Unusable if there is none."""
    listed = env.get("SLURM_JOB_NODELIST", "") if job in ("", env.get("SLURM_JOB_ID")) else ""
    job = job or env.get("SLURM_JOB_ID", "")
    if not job:
        raise Unusable(
            "this shell is in no Slurm job. Name a job (--job ID), hosts (HOST...) or records "
            "(--record FILE...), or use --ray"
        )
    listed = listed or output("squeue", "--noheader", "--jobs", job, "--format=%N").strip()
    hosts = output("scontrol", "show", "hostnames", listed).split() if listed else []
    if not hosts:
        raise Unusable(f"job {job} has no hosts, because the job has not started or has ended")
    return job, hosts


def output(*command: str, within_s: float = SLURM_S) -> str:
    """Standard output of a command that lists hosts. Unusable if it does not start, fails or exceeds
    ``within_s``."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise Unusable(f"{command[0]} does not start on this host: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Unusable(f"{command[0]} did not answer within {within_s:.0f} s") from None
    if done.returncode:
        raise Unusable((done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1])
    return done.stdout


def srun(job: str, python: Sequence[str]) -> Callable[[str], list[str]]:
    """A function: host -> argv prefix that runs Python there as a step of the allocation."""
    return lambda host: [
        *("srun", "--overlap", f"--jobid={job}", "-N1", "-n1", "-w", host, "--cpu-bind=none"),
        *python,
    ]


@dataclasses.dataclass(eq=False)
class Agent:
    """The agent on one host. ``reports``: messages of its warm process; ``why_gone``: empty while it
    answers. EngineError if it does not start within ``start_s`` seconds."""

    host: str
    prefix: Sequence[str]
    start_s: float
    why_gone: str = ""
    is_warm: bool = False
    link: WarmLink | None = None
    reports: queue.Queue[dict[str, Any]] = dataclasses.field(default_factory=queue.Queue)
    _answers: dict[int, queue.Queue[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    _numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.link = WarmLink(list(self.prefix), dict(os.environ), self._take, self.start_s, (AGENT,))
        # only when it is up: ssh or Ray may take longer than SILENT_S for that
        self.heard = time.monotonic()

    def _take(self, report: dict[str, Any]) -> None:
        self.heard = time.monotonic()
        if "gone" in report:
            errors = [*self.link.errors] if self.link else []
            self.lose(f"the agent ended: {errors[-1] if errors else 'its connection closed'}")
        elif "warm" in report:
            self.reports.put(report["warm"])
        elif report.get("id") in self._answers:
            self._answers[report["id"]].put(report)

    def lose(self, why: str) -> None:
        """Mark the host as lost and release everyone who waits for it."""
        self.why_gone = self.why_gone or why
        self.reports.put({"lost": self.why_gone})
        for waiting in list(self._answers.values()):
            waiting.put({"lost": self.why_gone})

    def begin(self, do: str, **request: Any) -> int:
        """Send a request and return its number for ``answer``."""
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        if self.why_gone:
            self._answers[number].put({"lost": self.why_gone})
        else:
            self.link.send(do=do, id=number, **request)
        return number

    def answer(self, number: int, within_s: float) -> dict[str, Any] | Gap:
        """The answer to request ``number``, or a Gap if the agent is gone or ``within_s`` seconds passed."""
        try:
            line = self._answers[number].get(timeout=max(0.0, within_s))
            return Gap("failed", line["lost"]) if "lost" in line else line
        except queue.Empty:
            return Gap("timed-out", f"{self.host} did not answer within {within_s:.0f} s")
        finally:
            del self._answers[number]

    def renew(self) -> None:
        """Extend the lease; mark the host as lost after SILENT_S seconds without a sign of life."""
        if self.why_gone:
            return
        if time.monotonic() - self.heard > SILENT_S:
            self.lose(f"no answer for {SILENT_S:.0f} s, so the host is cut off or its agent is stopped")
        else:
            self.link.send(do="lease", id=0)


class Agents(contextlib.AbstractContextManager):
    """The agents of all hosts. ``missing``: host -> why it has none; ``until``: end of the budget, by
    time.monotonic()."""

    def __init__(
        self, hosts: Sequence[str], carrier: Callable[[str], list[str]], until: float = math.inf
    ) -> None:
        self.hosts, self.until, self._closed = list(hosts), until, threading.Event()
        self.agents: dict[str, Agent] = {}
        threading.Thread(target=self._renew, name="leases", daemon=True).start()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            made = dict(zip(hosts, pool.map(lambda host: self._started(host, carrier), hosts), strict=True))
        self.missing = {host: gap for host, gap in made.items() if isinstance(gap, Gap)}

    def _started(self, host: str, carrier: Callable[[str], list[str]]) -> Agent | Gap:
        try:
            agent = Agent(host, carrier(host), min(START_S, self.left(START_S)))
        except EngineError as error:
            return Gap("failed", str(error).partition(" cannot run ranks: ")[2] or str(error))
        self.agents[host] = agent
        return agent

    def left(self, seconds: float) -> float:
        """``seconds``, or the rest of the budget if that is less."""
        return max(0.0, min(seconds, self.until - time.monotonic()))

    @property
    def here(self) -> list[Agent]:
        """Agents that still answer, in the order of the hosts."""
        return [self.agents[h] for h in self.hosts if h in self.agents and not self.agents[h].why_gone]

    def ask(
        self, requests: Mapping[str, Mapping[str, Any]], within_s: float
    ) -> dict[str, dict[str, Any] | Gap]:
        """Host -> answer or Gap: one request a host, at the same time, within ``within_s`` seconds for
        all."""
        begun = {h: self.agents[h].begin(**request) for h, request in requests.items()}
        until = time.monotonic() + self.left(within_s)
        return {h: self.agents[h].answer(number, until - time.monotonic()) for h, number in begun.items()}

    def _renew(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(LEASE_EVERY_S):
            late, before = time.monotonic() - before > SILENT_S, time.monotonic()
            for agent in list(self.agents.values()):
                agent.heard = before if late else agent.heard  # this process stood still, not the host
                agent.renew()

    def close(self, *_: Any) -> None:
        """End every agent; its ranks die with it."""
        self._closed.set()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda agent: agent.link.close(), self.agents.values()))

    __exit__ = close


def facts(
    agents: Agents, environment: str, of_environment: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, HostFacts | Gap]:
    """What each host shows, without a rendezvous. ``environment``: the request for ranks/environment.py;
    ``of_environment`` turns its answer into facts. A host without an agent is a Gap with the error that its
    start printed."""
    order, node_file = agents.hosts, source_of("nccl_runbook/hosts/on_node/node.py").decode()
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    asked = {
        a.host: dict(
            do="run", source=node_file, args=[a.host, order[0], following[a.host]], deadline_s=NODE_S
        )
        for a in agents.here
    }
    rank_file = source_of("nccl_runbook/ranks/environment.py").decode()
    also = {
        a.host: dict(do="run", source=rank_file, args=[environment], deadline_s=agents.left(RANK_FILE_S))
        for a in agents.here
    }
    begun = {h: agents.agents[h].begin(**request) for h, request in also.items()}
    nodes = {host: _json(reply) for host, reply in agents.ask(asked, NODE_S + 2).items()}
    by_host: dict[str, dict[str, Any]] = {host: {"network": node} for host, node in nodes.items()}
    until = time.monotonic() + agents.left(RANK_FILE_S)
    for host, number in begun.items():
        reply = _json(agents.agents[host].answer(number, until - time.monotonic()))
        by_host[host].update(of_environment(reply) if isinstance(reply, dict) else {"environment": reply})
    answers = {h: HostFacts(h, "agent", dict(flat(by_host[h]))) for h in by_host}
    # a lost agent is among the gaps
    known = {**answers, **{h: node for h, node in nodes.items() if isinstance(node, Gap)}, **agents.missing}
    return {
        h: known[h] if h in known else Gap("failed", agents.agents[h].why_gone or "no answer") for h in order
    }


def _json(answer: dict[str, Any] | Gap) -> dict[str, Any] | Gap:
    """The JSON object that our file printed last, or a Gap with the reason."""
    if isinstance(answer, Gap):
        return answer
    if answer["late"]:
        return Gap("timed-out", "the process that reads this host did not end in time")
    for line in reversed(answer["output"].splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return Gap("failed", (answer["errors"].strip().splitlines() or ["no answer"])[-1][:300])
