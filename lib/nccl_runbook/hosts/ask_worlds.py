"""Ranks over several hosts: the warm process of launch/ below each agent, one store on the first host,
deadlines held on each host."""

import dataclasses
import itertools
import json
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult
from nccl_runbook.hosts.ask import Agent, Agents
from nccl_runbook.hosts.facts import HostWorld
from nccl_runbook.launch.warm_link import LOADER, WarmLink, source_of

WARM_S = 60.0  # until torch is imported on every host
GRACE_S = 10.0  # after the deadline: stacks, SIGTERM, SIGKILL and the report of it
POLL_S = 0.05
LAST_LINES = 20
SIZES = "4,1048576"
REHEARSAL_RANKS = 2  # a host, on the CPU
MOST_RANKS = 8  # a host


@dataclasses.dataclass(eq=False)
class Worlds:
    """Runs worlds over the hosts whose agents answer. ``gpus``: host -> number of GPUs for CUDA, 0 for the
    CPU; ``redact``: what each text of a rank goes through."""

    agents: Agents
    gpus: dict[str, int]
    redact: Callable[[Any], Any] = lambda value: value
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def warm(self) -> dict[str, Gap]:
        """Start a warm process on each host at the same time; host -> why it has none."""
        source = source_of(*WarmLink.source).decode()
        cold = [a for a in self.agents.here if not a.is_warm]
        for agent in cold:
            agent.link.send(do="warm", start=LOADER, source=source)
        until, failed = time.monotonic() + self.agents.left(WARM_S), {}
        for agent in cold:
            report = _next(agent, until - time.monotonic())
            agent.is_warm = bool(report.get("ready"))
            if not agent.is_warm:
                failed[agent.host] = Gap(
                    "failed", report.get("lost") or report.get("error") or "torch was not imported in time"
                )
        return failed

    def backend(self, hosts: Sequence[str]) -> str:
        """ "nccl" if every host has GPUs, else "gloo": ranks on GPUs and on CPUs share no backend."""
        return "nccl" if all(self.gpus.get(h) for h in hosts) else "gloo"

    def run(self, name: str, hosts: Sequence[str], deadline_s: float, fault: str = "") -> HostWorld:
        """One world with one rank a GPU (two on a CPU), numbered host by host; the first host holds the
        store."""
        backend = self.backend(hosts)
        counts = {h: min(self.gpus[h], MOST_RANKS) if backend == "nccl" else REHEARSAL_RANKS for h in hosts}
        where = [h for h in hosts for _ in range(counts[h])]
        world, began = next(self._numbers), time.monotonic()
        if self.agents.left(deadline_s) < deadline_s:
            why = f"this test needs {deadline_s:.0f} s, but less of the time budget is left"
            return HostWorld(name, list(hosts), [], 0.0, backend, not_run=why)
        ranks = {n: RankResult(n, "late") for n in range(len(where))}
        meeting = self._free_port(hosts[0])
        lost = {h: self.agents.agents[h].why_gone for h in hosts if self.agents.agents[h].why_gone}
        if isinstance(meeting, Gap) and not lost:
            return HostWorld(name, list(hosts), [], 0.0, backend, not_run=str(meeting))
        if lost:
            return self._ended(name, where, ranks, began, backend, lost)
        first = 0
        for host in hosts:
            self._start(
                world, host, first, counts[host], len(where), (hosts[0], meeting), deadline_s, backend, fault
            )
            first += counts[host]
        self._collect(world, hosts, where, ranks, lost, time.monotonic() + deadline_s + GRACE_S)
        return self._ended(name, where, ranks, began, backend, lost)

    def _free_port(self, host: str) -> int | Gap:
        """A free port on that host: a listener had it a moment ago."""
        reply = self.agents.ask({host: dict(do="listen", ports=[0], token="")}, 5.0)[host]
        self.agents.ask({host: dict(do="hush")}, 5.0)
        return reply if isinstance(reply, Gap) else reply["ports"]["0"]

    def _start(
        self,
        world: int,
        host: str,
        first: int,
        count: int,
        size: int,
        meeting: tuple[str, int],
        deadline_s: float,
        backend: str,
        fault: str,
    ) -> None:
        shared = {
            "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(count), "NCCL_RUNBOOK_STORE_FILE": None,
            "MASTER_ADDR": meeting[0], "MASTER_PORT": str(meeting[1]),
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None,
        }  # fmt: skip
        own = [{"env": {"RANK": str(first + n), "LOCAL_RANK": str(n)}, "fresh": False} for n in range(count)]
        args = [
            "--ops",
            "all_reduce,send_recv",
            "--sizes",
            SIZES,
            "--repeats",
            "1",
            "--backend",
            backend,
            "--timeout",
            str(int(deadline_s) + 30),
            "--leave",
        ]
        self.agents.agents[host].link.send(
            do="world", world=world, entry="check.py", held=False, env=shared, ranks=own,
            deadline_s=deadline_s, args=[*args, *(["--fault", fault] if fault else [])],
            sources={"check.py": source_of("nccl_runbook/ranks/check.py").decode()},
        )  # fmt: skip

    def _collect(
        self,
        world: int,
        hosts: Sequence[str],
        where: Sequence[str],
        ranks: dict[int, RankResult],
        lost: dict[str, str],
        until: float,
    ) -> None:
        """Until every host has said that its ranks have ended. One lost host ends the wait for all: the
        others could only wait for it."""
        open_hosts = {h: where.index(h) for h in hosts}
        while open_hosts and time.monotonic() < until:
            for host, first in list(open_hosts.items()):
                report = _next(self.agents.agents[host], POLL_S / len(hosts))
                if "lost" in report or "gone" in report:
                    lost[host] = str(
                        report.get("lost", "the process that started the test ranks on this host was killed")
                    )
                    self.agents.agents[host].is_warm = False
                    del open_hosts[host]
                    for other in open_hosts:
                        self.agents.agents[other].link.send(do="cancel")
                    until = min(until, time.monotonic() + 3.0)
                elif report.get("world") == world and "done" in report:
                    del open_hosts[host]
                elif report.get("world") == world and "rank" in report:
                    number = first + report["rank"]
                    ranks[number] = self._updated(ranks[number], report)

    def _updated(self, rank: RankResult, report: dict[str, Any]) -> RankResult:
        if "said" in report:
            rank.events.append(self.redact(json.loads(report["said"])))
        elif "log" in report:
            rank.last_lines[:] = [*rank.last_lines, *map(self.redact, report["log"].splitlines())][
                -LAST_LINES:
            ]
        elif "ended" in report:
            return dataclasses.replace(
                rank,
                outcome=report["ended"],
                code=report["code"],
                pid=report["pid"],
                state=report["state"],
                stack=self.redact(report["stack"]),
            )
        return rank

    @staticmethod
    def _ended(
        name: str,
        where: list[str],
        ranks: dict[int, RankResult],
        began: float,
        backend: str,
        lost: dict[str, str],
    ) -> HostWorld:
        ended = [
            dataclasses.replace(r, outcome="lost") if where[n] in lost and r.outcome == "late" else r
            for n, r in ranks.items()
        ]
        return HostWorld(name, where, ended, round(time.monotonic() - began, 3), backend, lost)


def _next(agent: Agent, within_s: float) -> dict[str, Any]:
    """The next report of the warm process; {} if none comes in time."""
    try:
        return agent.reports.get(timeout=max(0.0, within_s))
    except queue.Empty:
        return {}


def ladder(worlds: Worlds, deadline_s: float, fault: str = "") -> list[HostWorld] | Gap:
    """Each host alone, then all that passed together; if that fails, each in a pair with its neighbour. A
    Gap if no world can be run."""
    cold = worlds.warm()
    hosts = [a.host for a in worlds.agents.here if a.is_warm]
    if not hosts:
        return next(iter(cold.values()), Gap("not-run", "no host answers"))
    done = [
        HostWorld(f"{h} alone", [h], [], 0.0, worlds.backend([h]), not_run=str(why))
        for h, why in cold.items()
    ]
    done += [worlds.run(f"{h} alone", [h], deadline_s, fault) for h in hosts]
    good = [w.hosts[0] for w in done if w.passed]
    if len(good) > 1:
        done.append(worlds.run("all hosts", good, deadline_s, fault))
        if not done[-1].passed and len(good) > 2:
            alive = [h for h in good if h not in done[-1].lost]
            for pair in zip(alive[::2], alive[1::2], strict=False):
                done.append(worlds.run(f"pair {' '.join(pair)}", pair, deadline_s, fault))
    return done
