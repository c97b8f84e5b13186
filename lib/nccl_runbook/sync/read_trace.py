"""The phases of the user's own weight syncs, from the NCCL_GUARD lines that pause_trace() of nccl_guards.py prints."""
from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.logs.file import opened
from nccl_runbook.sync.facts import OwnSync, OwnSyncTime

PREFIX = "NCCL_GUARD "
MOST_LINES = 100_000     # lines of guards that are kept; a job that syncs each second for a day prints fewer
LINE_BYTES = 8192        # nccl_guards.py prints none longer than 4,096
FILE_BYTES = 2 << 30


def collect(path: str) -> OwnSync | Gap:
    """Every pause_trace line of a log file; a Gap that says why there is none."""
    opening = opened(path)
    if isinstance(opening, Gap):
        return Gap("failed", opening.detail)
    with opening as file:
        if os.fstat(file.fileno()).st_size > FILE_BYTES:
            return Gap("unsupported", f"{path} has more than {FILE_BYTES >> 30} GiB")
        syncs = read(file, path)
    return OwnSync(syncs) if syncs else Gap("absent", f"{path} holds no line of pause_trace(): wrap your sync in it (nccl_guards.py)")


def read(lines: Iterable[bytes], name: str = "") -> list[OwnSyncTime]:
    told = ((number, line[:LINE_BYTES].partition(PREFIX.encode())[2]) for number, line in enumerate(lines, 1))
    found = (one for number, text in told if text for one in [_one(text, f"{name}:{number}")] if one)
    return list(itertools.islice(found, MOST_LINES))


def _one(text: bytes, source: str) -> OwnSyncTime | None:
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("guard") != "pause_trace" or not isinstance(told.get("data"), dict):
        return None
    phases = {str(p)[:40]: float(s) for p, s in told["data"].items() if type(s) in (int, float) and 0 <= s < 1e6 and math.isfinite(s)}
    rank = told.get("rank")
    return OwnSyncTime(rank if type(rank) is int else -1, phases, source) if phases else None
