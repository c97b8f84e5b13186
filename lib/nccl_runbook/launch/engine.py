"""The local engine: worlds of ranks under the interpreter that is judged."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult, World, WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.gpu_lists import device_arguments
from nccl_runbook.launch.running import Running
from nccl_runbook.launch.shell_line import shell_line
from nccl_runbook.launch.stop import never
from nccl_runbook.launch.warm_link import START_S, EngineError, WarmLink, environment, source_of

__all__ = ["Engine", "EngineError"]

# these act when a communicator is made (FI_ and UCX_: when NCCL's net plugin is loaded for it), so a fork may
# differ in them; all others (TORCH_DISTRIBUTED_DEBUG, OMP_NUM_THREADS, preloads) act when torch is imported
# and need a warm process of their own (torch 2.11 and 2.13)
_FORK_MAY_DIFFER = re.compile(
    r"(NCCL_(?!RUNBOOK)|TORCH_NCCL_|TORCH_FR_|GLOO_|TP_|FI_|UCX_)\w+|CUDA_VISIBLE_DEVICES|MASTER_(ADDR|PORT)|"
    r"RANK|WORLD_SIZE|LOCAL_RANK"
)
# what a rank file imports
_BESIDE = {
    "weight_sync.py": (
        *(f"nccl_runbook/ranks/{n}.py" for n in ("check", "sync_bytes", "sync_shapes", "sync_ways")),
        "fast_disk.py",
    )
}
LAST_LINES = 40
FEW_LINES = 6  # of a rank that exited with 0: the whole log is in its file
LINE_CHARACTERS = 4000
PREPARE_S = 60.0  # until the ranks of a world have their CUDA contexts; after that its own deadline counts
POLL_S = 0.2  # how soon a stop is seen
AHEAD = 2  # worlds whose ranks are made ready while another runs
KILL_ALLOWANCE_S = 12.0  # stacks, SIGTERM, and five seconds of SIGKILL
ABOVE_STOPPED = "T (the process above it)"
END_S = 2.0  # after the budget: until ranks that hang have shown where, and are gone
# NCCL's log goes to the rank's own output at INFO: without it nothing proves that a toggle acted. The user's
# file and subsystem filter would hide it, so they are left out.
LOGGED: Dict[str, Optional[str]] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None, "NCCL_DEBUG_SUBSYS": None}


class Engine(contextlib.AbstractContextManager):
    """Runs worlds under ``prefix`` (an argv prefix of a Python with torch), each with
    a deadline, each in fresh processes.

    ``log_dir`` gets one folder a world with one file a rank (None: no file is kept); results name them
    relative to ``root`` if given. ``run`` and ``run_all`` block; ``cancel`` from another thread ends what
    runs, and so does ``stopped`` once it says why. ``until``: the end of the budget, by time.monotonic();
    nothing waits longer. Raises EngineError if the interpreter cannot import torch.
    """

    def __init__(
        self,
        prefix: List[str],
        log_dir: Optional[Path],
        redactor: Redactor,
        root: Optional[Path] = None,
        stopped: Callable[[], str] = never,
        until: float = math.inf,
    ) -> None:
        self.prefix, self.log_dir, self.redactor, self.root = list(prefix), log_dir, redactor, root
        self.stopped, self.until = stopped, until
        self.history: List[World] = []
        self._links: Dict[Tuple, WarmLink] = {}
        self._running: Dict[int, Running] = {}
        self._numbers, self._cancels = itertools.count(), 0
        self._software: Optional[Dict[str, Any]] = None

    def run(self, request: WorldRequest) -> World:
        return self.run_all([request])[0]

    def run_all(self, requests: List[WorldRequest], keep: bool = True) -> List[World]:
        """Run these worlds at the same time; returns when the last has ended.
        ``keep``: list them in ``history``."""
        running = [self._start(request) for request in requests]
        try:
            for world in running:
                self._wait(world, world.done, world.request.deadline_s + KILL_ALLOWANCE_S)
        except BaseException:  # an interrupted cell, say: nothing of it stays on the GPUs
            self.cancel()
            raise
        finally:
            worlds = [self._world(w) for w in running]
        if keep:
            self.history.extend(worlds)
        return worlds

    def _left(self, seconds: float, after_s: float = 0.0) -> float:
        """So many seconds, or what the budget leaves of them and ``after_s``."""
        return max(0.0, min(seconds, self.until + after_s - time.monotonic()))

    def _wait(self, running: Running, event: threading.Event, seconds: float) -> None:
        until = time.monotonic() + self._left(seconds, END_S)
        while not event.wait(POLL_S) and time.monotonic() < until:
            if self.stopped():
                self.cancel()
        link = self._links.get(self._key(running.request.env))
        if not event.is_set() and link and link.stopped:
            self._lose(running, "late", ABOVE_STOPPED)

    def run_in_turn(
        self, requests: List[WorldRequest], enough: Callable[[], bool] = lambda: False
    ) -> List[World]:
        """Run these worlds one after the other, until ``enough`` says so or ``cancel`` is called; only what
        no result can feel overlaps.

        While one runs, the ranks of the next ones are forked, make their CUDA contexts and wait; and nobody
        waits for processes to exit whose last collective is over. Beside a world that is ``timed`` nothing
        is set up, and nothing is still being taken down.
        """
        waiting, held, begun, cancels = list(requests), [], [], self._cancels

        def prepare() -> None:
            if enough() or self._cancels > cancels:
                waiting.clear()
            while waiting and len(held) < AHEAD and not any(w.request.timed for w in held):
                held.append(self._start(waiting.pop(0), held=True))

        prepare()
        while held:
            world = held.pop(0)
            self._wait(world, world.ready, self._left(PREPARE_S))
            for earlier in begun if world.request.timed else []:
                self._wait(earlier, earlier.done, KILL_ALLOWANCE_S)
            if not world.done.is_set():
                world.deadline_s = self._left(world.request.deadline_s)
                self._link(world.request.env).send(
                    do="go" if self._cancels == cancels else "cancel",
                    world=world.number,
                    deadline_s=world.deadline_s,
                )
            if not world.request.timed:
                prepare()
            self._wait(world, world.idle, world.request.deadline_s + KILL_ALLOWANCE_S)
            begun.append(world)
            prepare()
        for world in begun:
            self._wait(world, world.done, KILL_ALLOWANCE_S)
        worlds = [self._world(w) for w in begun]
        self.history.extend(worlds)
        return worlds

    def software(self) -> Dict[str, Any]:
        """What the warm process and ranks/view.py, run once, say of torch, CUDA, NCCL and the
        devices that CUDA shows a rank."""
        if self._software is None:
            rank = self.run_all([WorldRequest("software", "view.py", [None], deadline_s=60)], keep=False)[
                0
            ].ranks[0]
            self._software = {
                **(rank.first("cuda") or {"error": rank.why_silent().detail}),
                **self._link({}).hello,
            }
        return self._software

    def judged(self) -> Dict[str, Any]:
        """The software of the ranks and where they run, as a record names them."""
        said = self.software()
        nccl, names = said.get("nccl", ""), [gpu["name"] for gpu in said.get("gpus", [])]
        return {
            "torch": said["torch"],
            "cuda": said.get("cuda", ""),
            "nccl": nccl if isinstance(nccl, str) else "",
            "nccl_path": said["libnccl"],
            "gpus": names,
            "host": said["host"],
        }

    def cuda_count(self) -> Union[int, Gap]:
        """Number of devices CUDA shows a rank; a Gap with CUDA's own words where it cannot say."""
        said = self.software()
        cpu_build = "gpus" in said and not (said["cuda"] or said["hip"])
        return (
            Gap("failed", said["error"].splitlines()[0])
            if said["error"] and not cpu_build
            else len(said["gpus"])
        )

    def cancel(self) -> None:
        """Kill every rank that runs or waits now; nothing that ``run_in_turn`` has
        still to start is started."""
        self._cancels += 1
        for link in list(self._links.values()):
            link.send(do="cancel")

    def close(self, *_: Any) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    __exit__ = close

    def _link(self, delta: Mapping[str, Optional[str]]) -> WarmLink:
        """The warm process for this environment, started if there is none."""
        own = self._key(delta)
        link = self._links.get(own)
        if link is None or link.ended.is_set():
            link = self._links[own] = WarmLink(
                self.prefix,
                environment(dict(own)),
                lambda report: self._on_report(own, report),
                self._left(START_S),
            )
        return link

    def _start(self, request: WorldRequest, held: bool = False) -> Running:
        number, link = next(self._numbers), self._link(request.env)
        name = f"{number:03d}-{re.sub(r'[^A-Za-z0-9]+', '-', request.name).strip('-')}"
        running = self._running[number] = Running(
            number, request, self.log_dir / name if self.log_dir else None
        )
        running.deadline_s = self._left(request.deadline_s)
        if link.stopped:
            self._lose(running, "late", ABOVE_STOPPED)
            return running
        visible, arguments = device_arguments(
            request.devices, {**os.environ, **request.env}.get("CUDA_VISIBLE_DEVICES")
        )
        sources = {
            Path(path).name: source_of(path).decode()
            for path in (f"nccl_runbook/ranks/{request.entry}", *_BESIDE.get(request.entry, ()))
        }
        link.send(
            do="world",
            world=number,
            entry=request.entry,
            sources=sources,
            held=held,
            args=[*request.args, *arguments],
            env={**request.env, **visible},
            ranks=[self._own(request, r) for r in range(request.world_size)],
            deadline_s=running.deadline_s,
            stall_s=request.stall_s,
        )
        if link.ended.is_set():
            self._lose(running, "lost")
        return running

    def _own(self, request: WorldRequest, rank: int) -> Dict[str, Any]:
        """One rank's own environment. What acts when torch is imported (a preload) needs a fresh interpreter,
        not a fork; behind a container's prefix nobody here knows what is set already."""
        delta = request.of_ranks.get(rank, {})
        return {
            "env": delta,
            "fresh": any(
                len(self.prefix) > 1 or {**os.environ, **request.env}.get(k) != v for k, v in self._key(delta)
            ),
        }

    def _lose(self, running: Running, outcome: str, state: str = "") -> None:
        running.ranks = [
            dataclasses.replace(r, outcome=outcome, state=state) if r.outcome == "late" else r
            for r in running.ranks
        ]
        running.wall_s = round(time.monotonic() - running.clock, 4)
        for event in (running.ready, running.idle, running.done):
            event.set()

    def _on_report(self, own: Tuple, report: Dict[str, Any]) -> None:
        """Called by the reader thread of one warm process."""
        if "gone" in report:
            for running in list(self._running.values()):
                if not running.done.is_set() and self._key(running.request.env) == own:
                    self._lose(running, "lost")
            return
        running = self._running.get(report.get("world"))
        if running is None:  # it was late, and nobody waits for it any more
            return
        if "how" in report:
            running.started = report["how"] + (f" ({report['why']})" if report["why"] else "")
        elif "done" in report:
            running.wall_s = report["wall_s"]
            running.done.set()
        else:
            self._on_rank(running, running.ranks[report["rank"]], report)

    @staticmethod
    def _key(delta: Mapping[str, Optional[str]]) -> Tuple:
        return tuple(sorted((k, v) for k, v in delta.items() if not _FORK_MAY_DIFFER.fullmatch(k)))

    def _on_rank(self, running: Running, rank: RankResult, report: Dict[str, Any]) -> None:
        if "log" in report:
            self._on_log(running, rank, report["log"])
        elif "said" in report:
            event = self.redactor.json(json.loads(report["said"]))
            rank.events.append(event)
            if event.get("event") == "ready" or event.get("what") == "destroy":
                running.note(rank.rank, "ready" if event["event"] == "ready" else "finished")
        elif "ended" in report:
            self._on_log(running, rank, "\n" if running.rests[rank.rank] else "")
            running.ranks[rank.rank] = dataclasses.replace(
                rank,
                outcome=report["ended"],
                code=report["code"],
                pid=report["pid"],
                state=report["state"],
                stack=self.redactor.text(report["stack"]),
                dropped_bytes=report["dropped"],
            )
            running.note(rank.rank, "finished")

    def _on_log(self, running: Running, rank: RankResult, text: str) -> None:
        """Keep whole lines: into the rank's file, the last ones in memory, what NCCL says into the tally."""
        *lines, rest = (running.rests[rank.rank] + text).split("\n")
        if len(rest) > LINE_CHARACTERS:
            lines, rest = [*lines, rest], ""
        running.rests[rank.rank] = rest
        clean = [self.redactor.text(line)[:LINE_CHARACTERS] for line in lines]
        running.tally.add(clean)
        rank.last_lines[:] = [*rank.last_lines, *(line for line in clean if line.strip())][-LAST_LINES:]
        path = running.log(rank.rank)
        if clean and path:
            self._keep(path, rank, clean)

    def _keep(self, path: Path, rank: RankResult, lines: List[str]) -> None:
        """Into the rank's file. A full disk costs the file, not the world: its result and
        last lines are in memory."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            told = f"[runbook: the log file could not be written: {error.strerror or error}]"
            rank.last_lines[:] = [*(line for line in rank.last_lines if line != told), told][-LAST_LINES:]

    def _world(self, running: Running) -> World:
        """What became of a world; what is reported of it from now on is not heard."""
        self._running.pop(running.number, None)
        request = running.request
        link = self._links.get(self._key(request.env))
        is_cut = running.deadline_s < request.deadline_s - 1 and running.wall_s >= running.deadline_s
        if is_cut and not any(
            r.state.startswith("T") for r in running.ranks
        ):  # by the budget: a slow world would look hung
            running.ranks = [
                dataclasses.replace(r, outcome="late") if r.outcome == "timed-out" else r
                for r in running.ranks
            ]
        transports, taken = running.tally.seen()
        return World(
            request=request,
            ranks=[self._result(r, running.log(r.rank)) for r in running.ranks],
            wall_s=running.wall_s or round(time.monotonic() - running.clock, 4),
            started=running.started,
            shell_line=shell_line(self.prefix, request),
            transports=transports,
            set_by_environment=taken,
            algorithms=dict(running.tally.choices),
            nccl_path=(link.hello.get("libnccl") if link else "")
            or Gap("absent", "no libnccl is mapped in the interpreter (a CPU build, or NCCL is linked in)"),
        )

    def _result(self, rank: RankResult, path: Optional[Path]) -> RankResult:
        log = str(path.relative_to(self.root) if self.root else path) if path and path.exists() else ""
        return dataclasses.replace(
            rank,
            log=log,
            events=list(rank.events),
            last_lines=rank.last_lines[-LAST_LINES if rank.code else -FEW_LINES :],
        )
