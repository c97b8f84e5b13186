"""The local engine: worlds of ranks under the interpreter that is judged."""

import contextlib
import dataclasses
import itertools
import math
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import World, WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.gpu_lists import device_arguments
from nccl_runbook.launch.running import Running
from nccl_runbook.launch.shell_line import shell_line
from nccl_runbook.launch.stop import never
from nccl_runbook.launch.warm_link import START_S, WarmLink, environment, source_of

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
        "nccl_runbook/ranks/check.py",
        *(f"nccl_runbook/ranks/sync_{n}.py" for n in ("bytes", "clock", "disk", "shapes", "tensors", "ways")),
        *(f"nccl_runbook/ranks/reshard/sync_{n}.py" for n in ("pieces", "reshard")),
        "nccl_runbook/ranks/delta/sync_delta.py",
        "fast_disk.py",
    )
}
POLL_S = 0.2  # how soon a stop is seen
AHEAD = 2  # worlds whose ranks are made ready while another runs
KILL_ALLOWANCE_S = 12.0  # stacks, SIGTERM, and five seconds of SIGKILL
ABOVE_STOPPED = "T (the process above it)"
END_S = 2.0  # after the budget: until ranks that hang have shown where, and are gone
# NCCL's log goes to the rank's own output at INFO: nothing else proves that a toggle acted. The user's
# file and subsystem filter would hide it, so they are left out.
LOGGED: Dict[str, Optional[str]] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None, "NCCL_DEBUG_SUBSYS": None}


@dataclasses.dataclass(eq=False)
class Engine(contextlib.AbstractContextManager):
    """Runs worlds under ``prefix`` (an argv prefix of a Python with torch), each in fresh processes with a
    deadline.

    ``log_dir`` gets a folder a world with a file a rank (None: no logs are kept); results name them relative
    to ``root``. ``run`` and ``run_all`` block; ``cancel`` from another thread, or a reason from ``stopped``,
    ends them early. ``until``: end of the budget, by time.monotonic(). EngineError if the interpreter cannot
    import torch.
    """

    prefix: List[str]
    log_dir: Optional[Path]
    redactor: Redactor
    root: Optional[Path] = None
    stopped: Callable[[], str] = never
    until: float = math.inf
    history: List[World] = dataclasses.field(default_factory=list)
    _links: Dict[Tuple, WarmLink] = dataclasses.field(default_factory=dict)
    _running: Dict[int, Running] = dataclasses.field(default_factory=dict)
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    _cancels: int = 0
    _software: Optional[Dict[str, Any]] = None

    def run(self, request: WorldRequest) -> World:
        """The World of one request: how each rank ended, its events and log. Raises what run_all raises."""
        return self.run_all([request])[0]

    def run_all(self, requests: List[WorldRequest], keep: bool = True) -> List[World]:
        """Run these worlds at the same time and return them in this order, once the last has ended.
        ``keep``: list them in ``history``. An interruption ends every rank and is raised again; EngineError
        as for Engine."""
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
        """``seconds``, or the rest of the budget plus ``after_s`` if that is less."""
        return max(0.0, min(seconds, self.until + after_s - time.monotonic()))

    def _wait(self, running: Running, event: threading.Event, seconds: float) -> None:
        until = time.monotonic() + self._left(seconds, END_S)
        while not event.wait(POLL_S) and time.monotonic() < until:
            if self.stopped():
                self.cancel()
        link = self._links.get(self._key(running.request.env))
        if not event.is_set() and link and link.stopped:
            running.lose("late", ABOVE_STOPPED)

    def run_in_turn(
        self, requests: List[WorldRequest], enough: Callable[[], bool] = lambda: False
    ) -> List[World]:
        """Run these worlds one after the other and return those that ran. ``enough`` and ``cancel`` end it.

        While a world runs, the ranks of the next ones start, make their CUDA contexts and wait; the exit of
        earlier ranks is not waited for. Beside a world that is ``timed`` nothing is set up or taken down.
        """
        waiting = list(requests)
        held: List[Running] = []
        begun: List[Running] = []
        cancels = self._cancels

        def prepare() -> None:
            if enough() or self._cancels > cancels:
                waiting.clear()
            while waiting and len(held) < AHEAD and not any(w.request.timed for w in held):
                held.append(self._start(waiting.pop(0), held=True))

        prepare()
        while held:
            world = held.pop(0)
            # until the ranks of a world have their CUDA contexts; after that its own deadline counts
            self._wait(world, world.ready, self._left(60.0))
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
        """Versions of torch, CUDA and NCCL and the devices CUDA shows a rank, from the warm process and
        ranks/view.py (run once). Key "error" holds what failed."""
        if self._software is None:
            asked = WorldRequest("software", "view.py", [None], deadline_s=60)
            rank = self.run_all([asked], keep=False)[0].ranks[0]
            self._software = {
                **(rank.first("cuda") or {"error": rank.why_silent().detail}),
                **self._link({}).hello,
            }
        return self._software

    def judged(self) -> Dict[str, Any]:
        """The software of the ranks and their host, as a record names them."""
        stack = self.software()
        nccl = stack.get("nccl", "")
        return {
            "torch": stack["torch"],
            "cuda": stack.get("cuda", ""),
            "nccl": nccl if isinstance(nccl, str) else "",
            "nccl_path": stack["libnccl"],
            "gpus": [gpu["name"] for gpu in stack.get("gpus", [])],
            "host": stack["host"],
        }

    def cuda_count(self) -> Union[int, Gap]:
        """Number of devices that CUDA shows a rank (0 for a CPU build of torch); a Gap with CUDA's own
        error."""
        stack = self.software()
        cpu_build = "gpus" in stack and not (stack["cuda"] or stack["hip"])
        return (
            Gap("failed", stack["error"].splitlines()[0])
            if stack["error"] and not cpu_build
            else len(stack["gpus"])
        )

    def cancel(self) -> None:
        """Kill every rank that runs or waits; ``run_in_turn`` starts no more worlds."""
        self._cancels += 1
        for link in list(self._links.values()):
            link.send(do="cancel")

    def close(self, *_: Any) -> None:
        """End the warm processes; ranks that still run are killed."""
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
        name = re.sub(r"[^A-Za-z0-9]+", "-", request.name).strip("-")
        running = self._running[number] = Running(
            number,
            request,
            self.log_dir / f"{number:03d}-{name}" if self.log_dir else None,
            self.redactor,
            self._left(request.deadline_s),
        )
        if link.stopped:
            running.lose("late", ABOVE_STOPPED)
            return running
        visible, arguments = device_arguments(
            request.devices, {**os.environ, **request.env}.get("CUDA_VISIBLE_DEVICES")
        )
        link.send(
            do="world",
            world=number,
            entry=request.entry,
            sources={
                Path(path).name: source_of(path).decode()
                for path in (f"nccl_runbook/ranks/{request.entry}", *_BESIDE.get(request.entry, ()))
            },
            held=held,
            args=[*request.args, *arguments],
            env={**request.env, **visible},
            ranks=[self._own(request, r) for r in range(request.world_size)],
            deadline_s=running.deadline_s,
            stall_s=request.stall_s,
        )
        if link.ended.is_set():
            running.lose("lost")
        return running

    def _own(self, request: WorldRequest, rank: int) -> Dict[str, Any]:
        """One rank's own environment. Variables that act at torch's import (a preload) need a fresh
        interpreter; behind a container's prefix it is unknown what is set already."""
        delta = request.of_ranks.get(rank, {})
        inherited = {**os.environ, **request.env}
        return {
            "env": delta,
            "fresh": any(len(self.prefix) > 1 or inherited.get(k) != v for k, v in self._key(delta)),
        }

    def _on_report(self, own: Tuple, report: Dict[str, Any]) -> None:
        """Called by the reader thread of one warm process."""
        if "gone" in report:
            for running in list(self._running.values()):
                if not running.done.is_set() and self._key(running.request.env) == own:
                    running.lose("lost")
        elif running := self._running.get(report.get("world")):  # else nobody waits for it any more
            running.take(report)

    @staticmethod
    def _key(delta: Mapping[str, Optional[str]]) -> Tuple:
        return tuple(sorted((k, v) for k, v in delta.items() if not _FORK_MAY_DIFFER.fullmatch(k)))

    def _world(self, running: Running) -> World:
        """The result of a world; later reports about it are ignored."""
        self._running.pop(running.number, None)
        request = running.request
        link = self._links.get(self._key(request.env))
        is_cut = running.deadline_s < request.deadline_s - 1 and running.wall_s >= running.deadline_s
        if is_cut and not any(r.state.startswith("T") for r in running.ranks):
            running.mark("timed-out", "late")  # by the budget: a slow world would look hung
            running.leave()
        transports, taken = running.tally.summary()
        return World(
            request=request,
            ranks=[running.result(rank, self.root) for rank in running.ranks],
            wall_s=running.wall_s or round(time.monotonic() - running.clock, 4),
            started=running.started,
            shell_line=shell_line(self.prefix, request),
            transports=transports,
            set_by_environment=taken,
            algorithms=dict(running.tally.choices),
            nccl_path=(link.hello.get("libnccl") if link else "")
            or Gap(
                "absent", "the interpreter has loaded no libnccl (torch is a CPU build, or NCCL is linked in)"
            ),
        )
