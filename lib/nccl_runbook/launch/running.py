"""A world that runs: what its ranks have reported so far."""

import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Set, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult, WorldRequest

_VIA = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[\w+\] )?via ([A-Z][\w-]*(?:/[\w-]+)*)"
)


_DEVICE = re.compile(r"/\d+\b")  # which card: NET/IB/0/GDRDMA counts as NET/IB/GDRDMA


_CHOICE = re.compile(r"NCCL INFO \w+: \d+ Bytes -> Algo (\w+) proto (\w+)")


_TAKEN = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.+?)\.?$")


class Tally:
    """What NCCL's own log says of one world, counted while it streams by: the proof that a toggle acted.

    Wording read in NCCL 2.28.9 and 2.30.7 (transport/*.cc, misc/param.cc): ``Channel 00/0 : 0[0] -> 1[1]
    via P2P/CUMEM``, ``... via SHM/direct/direct``, ``... [send] via NET/Socket/0``, ``NCCL_P2P_DISABLE set
    by environment to 1``; with TUNING among the subsystems ``AllReduce: 4194304 Bytes -> Algo RING proto
    SIMPLE channel{Lo..Hi}={0..23}`` (seen, 2.28.9).
    """

    def __init__(self) -> None:
        self._via: Counter = Counter()
        self._taken: Set[str] = set()
        self.choices: Counter = Counter()
        self._info = False

    def add(self, lines: Iterable[str]) -> None:
        for line in (line for line in lines if "NCCL INFO" in line):
            self._info = True
            self._via.update(_DEVICE.sub("", via) for via in _VIA.findall(line)[:1])
            self.choices.update(
                f"{what} {word}"
                for choice in _CHOICE.findall(line)[:1]
                for what, word in zip(("algo", "proto"), choice)
            )
            self._taken.update("=".join(taken) for taken in _TAKEN.findall(line))

    def seen(self) -> Union[Tuple[Dict[str, int], List[str]], Tuple[Gap, Gap]]:
        """Connections by transport over all ranks, and ``NAME=value`` of every variable that NCCL says
        it took from the environment."""
        silent = Gap("absent", "NCCL logged nothing at NCCL_DEBUG=INFO")
        return (dict(self._via), sorted(self._taken)) if self._info else (silent, silent)


class Running:
    """One world between its request and its last report. The outcome of a rank is "late"
    until its end is reported."""

    def __init__(self, number: int, request: WorldRequest, folder: Optional[Path]) -> None:
        self.number, self.request, self.folder = number, request, folder
        self.ranks = [RankResult(rank, "late") for rank in range(request.world_size)]
        self.rests = [""] * request.world_size  # the last line of each rank, as long as it is not whole
        self.marks: Dict[str, set] = {"ready": set(), "finished": set()}
        self.tally = Tally()
        self.started, self.wall_s, self.deadline_s = "", 0.0, request.deadline_s
        self.clock = time.monotonic()
        self.ready, self.idle, self.done = threading.Event(), threading.Event(), threading.Event()

    def note(self, rank: int, what: str) -> None:
        """``rank`` is "ready" to start, or has "finished" its last collective: the world is ``ready``
        or ``idle`` when every rank is."""
        self.marks[what].add(rank)
        if len(self.marks["ready"] | self.marks["finished"]) == len(self.ranks):
            self.ready.set()
        if len(self.marks["finished"]) == len(self.ranks):
            self.idle.set()

    def log(self, rank: int) -> Optional[Path]:
        """The path of the log of one rank, if any is kept."""
        return self.folder / f"rank{rank}.log" if self.folder else None
