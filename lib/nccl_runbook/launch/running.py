"""A world that runs: what its ranks have reported so far."""

import contextlib
import dataclasses
import json
import math
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple, Union

from nccl_runbook.core.facts import TIMED_OPS, Gap
from nccl_runbook.core.facts_world import RankResult, World, WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.secret_lines import masked_below
from nccl_runbook.launch.warm_link import LINE_CHARACTERS

_VIA = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[\w+\] )?via ([A-Z][\w-]*(?:/[\w-]+)*)"
)
_DEVICE = re.compile(r"/\d+\b")  # which card: NET/IB/0/GDRDMA counts as NET/IB/GDRDMA
TAKEN = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.+?)\.?$", re.M)
LAST_LINES = 40
STATE = "world.json"  # beside the logs of a world: how it stands, for the form of 00-start
FEW_LINES = 6  # of a rank that exited with 0: the whole log is in its file


@dataclasses.dataclass(eq=False)
class Tally:
    """What NCCL's own log says of one world, counted while it streams by: the proof that a toggle acted.

    Wording read in NCCL 2.28.9 and 2.30.7 (transport/*.cc, misc/param.cc): ``Channel 00/0 : 0[0] -> 1[1]
    via P2P/CUMEM``, ``... via SHM/direct/direct``, ``... [send] via NET/Socket/0``, ``NCCL_P2P_DISABLE set
    by environment to 1``; with TUNING among the subsystems ``AllReduce: 4194304 Bytes -> Algo RING proto
    SIMPLE channel{Lo..Hi}={0..23}`` (seen, 2.28.9).
    """

    choices: Counter = dataclasses.field(default_factory=Counter)
    _via: Counter = dataclasses.field(default_factory=Counter)
    _taken: Set[str] = dataclasses.field(default_factory=set)
    _info: bool = False

    def add(self, lines: Iterable[str]) -> None:
        """Count the transports, algorithms, protocols and settings that these NCCL INFO lines name."""
        for line in (line for line in lines if "NCCL INFO" in line):
            self._info = True
            self._via.update(_DEVICE.sub("", via) for via in _VIA.findall(line)[:1])
            self.choices.update(
                f"{what} {word}"
                for choice in re.findall(r"NCCL INFO \w+: \d+ Bytes -> Algo (\w+) proto (\w+)", line)[:1]
                for what, word in zip(("algo", "proto"), choice)
            )
            self._taken.update("=".join(taken) for taken in TAKEN.findall(line))

    def summary(self) -> Union[Tuple[Dict[str, int], List[str]], Tuple[Gap, Gap]]:
        """Connections by transport over all ranks, and ``NAME=value`` of every variable that NCCL took from
        the environment; two Gaps if NCCL logged nothing at INFO."""
        silent = Gap("absent", "NCCL logged nothing at NCCL_DEBUG=INFO")
        return (dict(self._via), sorted(self._taken)) if self._info else (silent, silent)


@dataclasses.dataclass(eq=False)
class Running:
    """One world between its request and its last report. A rank has the outcome "late" until its end is
    reported. ``deadline_s``: that of the request, or what was left of the budget."""

    number: int
    request: WorldRequest
    folder: Optional[Path]
    redactor: Redactor
    deadline_s: float = math.inf
    marks: Dict[str, set] = dataclasses.field(default_factory=lambda: {"ready": set(), "finished": set()})
    tally: Tally = dataclasses.field(default_factory=Tally)
    started: str = ""
    wall_s: float = 0.0
    clock: float = dataclasses.field(default_factory=time.monotonic)
    ready: threading.Event = dataclasses.field(default_factory=threading.Event)
    idle: threading.Event = dataclasses.field(default_factory=threading.Event)
    done: threading.Event = dataclasses.field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.ranks = [RankResult(rank, "late") for rank in range(self.request.world_size)]
        self.rests = [""] * self.request.world_size  # the last line of each rank, while it is incomplete
        self.leave("")

    def note(self, rank: int, what: str) -> None:
        """A rank became "ready" to start, or "finished" its last collective; once all have, the world is
        ``ready`` or ``idle``."""
        self.marks[what].add(rank)
        if len(self.marks["ready"] | self.marks["finished"]) == len(self.ranks):
            self.ready.set()
        if len(self.marks["finished"]) == len(self.ranks):
            self.idle.set()

    def mark(self, outcome: str, instead: str, **more: str) -> None:
        """Replace the outcome ``outcome`` of every rank that has it."""
        self.ranks = [
            dataclasses.replace(r, outcome=instead, **more) if r.outcome == outcome else r for r in self.ranks
        ]

    def lose(self, outcome: str, state: str = "") -> None:
        """No more reports will come: ranks without an end get ``outcome``, and every waiter is released."""
        self.mark("late", outcome, state=state)
        self.wall_s = round(time.monotonic() - self.clock, 4)
        self.leave()
        for event in (self.ready, self.idle, self.done):
            event.set()

    def take(self, report: Dict[str, Any]) -> None:
        """Store one report of the warm process about this world."""
        if "how" in report:
            self.started = report["how"] + (f" ({report['why']})" if report["why"] else "")
        elif "done" in report:
            self.wall_s = report["wall_s"]
            self.leave()
            self.done.set()
        else:
            self._take_rank(self.ranks[report["rank"]], report)

    def _take_rank(self, rank: RankResult, report: Dict[str, Any]) -> None:
        if "log" in report:
            self._take_log(rank, report["log"])
        elif "said" in report:
            event = self.redactor.json(json.loads(report["said"]))
            rank.events.append(event)
            if event.get("event") == "ready" or event.get("what") == "destroy":
                self.note(rank.rank, "ready" if event["event"] == "ready" else "finished")
        elif "ended" in report:
            self._take_log(rank, "\n" if self.rests[rank.rank] else "")
            self.ranks[rank.rank] = dataclasses.replace(
                rank,
                outcome=report["ended"],
                code=report["code"],
                pid=report["pid"],
                state=report["state"],
                stack=self.redactor.text(report["stack"]),
                dropped_bytes=report["dropped"],
            )
            self.note(rank.rank, "finished")

    def _take_log(self, rank: RankResult, text: str) -> None:
        """Keep whole lines: in the rank's file, the last ones in memory, NCCL's in the tally."""
        *lines, rest = (self.rests[rank.rank] + text).split("\n")
        if len(rest) > LINE_CHARACTERS:
            lines, rest = [*lines, rest], ""
        self.rests[rank.rank] = rest
        masked = masked_below([*rank.last_lines, *lines], self.redactor.hidden)[len(rank.last_lines) :]
        clean = [self.redactor.text(line)[:LINE_CHARACTERS] for line in masked]
        self.tally.add(clean)
        rank.last_lines[:] = [*rank.last_lines, *(line for line in clean if line.strip())][-LAST_LINES:]
        if clean and self.folder:
            self._write(self.folder / f"rank{rank.rank}.log", rank, clean)

    def _write(self, path: Path, rank: RankResult, lines: List[str]) -> None:
        """Append to the rank's file. A full disk costs the file, not the world: its result and
        last lines are in memory."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            notice = f"[runbook: the log file could not be written: {error.strerror or error}]"
            rank.last_lines[:] = [*(line for line in rank.last_lines if line != notice), notice][-LAST_LINES:]

    def leave(self, ended: Optional[str] = None) -> None:
        """Write how the world stands beside the logs of its ranks. ``ended``: empty while it runs; None: as
        its ranks ended."""
        if self.folder:
            none = Gap("not-run")
            world = World(
                request=self.request,
                ranks=self.ranks,
                wall_s=self.wall_s,
                started=self.started,
                shell_line="",
                nccl_path=none,
                transports=none,
                set_by_environment=none,
            )
            state = {
                "name": self.request.name,
                "gpus": self.request.devices,
                "ended": world.ended if ended is None else ended,
                "gb_per_s": {op: world.busbw_gb_per_s(op) for op in TIMED_OPS},
            }
            with contextlib.suppress(OSError):  # a full disk costs the picture, not the world
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / f"new-{STATE}").write_text(json.dumps(state), encoding="utf-8")
                os.replace(self.folder / f"new-{STATE}", self.folder / STATE)

    def result(self, rank: RankResult, root: Optional[Path]) -> RankResult:
        """The rank as it stands now; its log file is named relative to ``root`` if given."""
        path = self.folder / f"rank{rank.rank}.log" if self.folder else None
        return dataclasses.replace(
            rank,
            log=str(path.relative_to(root) if root else path) if path and path.exists() else "",
            events=list(rank.events),
            last_lines=rank.last_lines[-LAST_LINES if rank.code else -FEW_LINES :],
        )
