"""What NCCL's own log says of one world, counted while it streams by: the proof that a toggle acted.

Wording read in NCCL 2.28.9 and 2.30.7 (transport/*.cc, misc/param.cc): ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``,
``... via SHM/direct/direct``, ``... [send] via NET/Socket/0``, ``NCCL_P2P_DISABLE set by environment to 1``; with TUNING among the
subsystems ``AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}`` (seen, 2.28.9).
"""

import re
from collections import Counter
from typing import Dict, Iterable, List, Optional, Set, Union

from nccl_runbook.core.facts import Gap

# NCCL's log goes to the rank's own output at INFO: without it nothing proves that a toggle acted. The user's file and subsystem filter
# would hide it, so they are left out.
LOGGED: Dict[str, Optional[str]] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None, "NCCL_DEBUG_SUBSYS": None}
_VIA = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[\w+\] )?via ([A-Z][\w-]*(?:/[\w-]+)*)")
_DEVICE = re.compile(r"/\d+\b")  # which card: NET/IB/0/GDRDMA counts as NET/IB/GDRDMA
_CHOICE = re.compile(r"NCCL INFO \w+: \d+ Bytes -> Algo (\w+) proto (\w+)")
_TAKEN = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.+?)\.?$")


class Tally:
    def __init__(self) -> None:
        self._via: Counter = Counter()
        self._taken: Set[str] = set()
        self.choices: Counter = Counter()
        self._info = False

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            if "NCCL INFO" not in line:
                continue
            self._info = True
            self._via.update(_DEVICE.sub("", via) for via in _VIA.findall(line)[:1])
            self.choices.update(f"{what} {word}" for choice in _CHOICE.findall(line)[:1] for what, word in zip(("algo", "proto"), choice))
            self._taken.update("=".join(taken) for taken in _TAKEN.findall(line))

    def transports(self) -> Union[Dict[str, int], Gap]:
        """Connections by transport over all ranks; a Gap where NCCL logged nothing at INFO."""
        return dict(self._via) if self._info else Gap("absent", "NCCL logged nothing at NCCL_DEBUG=INFO")

    def taken(self) -> Union[List[str], Gap]:
        """``NAME=value`` of every variable that NCCL says it took from the environment."""
        return sorted(self._taken) if self._info else Gap("absent", "NCCL logged nothing at NCCL_DEBUG=INFO")
