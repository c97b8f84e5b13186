"""The phases of the user's own weight syncs, from the NCCL_GUARD lines that pause_trace()
of nccl_guards.py prints."""

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import clipped
from nccl_runbook.logs.file import opened
from nccl_runbook.sync.facts import OwnSync, OwnSyncTime

PREFIX = "NCCL_GUARD "
MOST_LINES = 100_000  # lines of guards that are kept; a job that syncs each second for a day prints fewer
LINE_BYTES = 8192  # nccl_guards.py prints none longer than 4,096
FILE_BYTES = 2 << 30


def collect_trace(path: str) -> OwnSync | Gap:
    """Every pause_trace line of a log file; a Gap with the reason if there is none."""
    opening = opened(path)
    if isinstance(opening, Gap):
        return Gap("failed", opening.detail)
    with opening as file:
        if os.fstat(file.fileno()).st_size > FILE_BYTES:
            return Gap("unsupported", f"{path} has more than {FILE_BYTES >> 30} GiB")
        syncs = read(_beginnings(file), path)
    return (
        OwnSync(syncs)
        if syncs
        else Gap(
            "absent",
            f"{path} contains no line of pause_trace(): wrap your sync in pause_trace() of nccl_guards.py",
        )
    )


def _beginnings(file: BinaryIO) -> Iterator[bytes]:
    """Of each line what a guard can have printed: one line may be as long as the file."""
    for line in iter(lambda: file.readline(LINE_BYTES), b""):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)


def read(lines: Iterable[bytes], name: str = "") -> list[OwnSyncTime]:
    """The syncs that the pause_trace lines report, the first MOST_LINES. ``name``: the file, for the
    source."""
    times = (
        _time(text, f"{name}:{number}")
        for number, line in enumerate(lines, 1)
        if (text := line[:LINE_BYTES].partition(PREFIX.encode())[2])
    )
    return list(itertools.islice(filter(None, times), MOST_LINES))


def _time(text: bytes, source: str) -> OwnSyncTime | None:
    try:
        event: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(event, dict)
        or event.get("guard") != "pause_trace"
        or not isinstance(event.get("data"), dict)
    ):
        return None
    phases = {
        clipped(str(phase), 40): float(seconds)
        for phase, seconds in event["data"].items()
        if type(seconds) in (int, float) and 0 <= seconds < 1e6 and math.isfinite(seconds)
    }
    return (
        OwnSyncTime(event["rank"] if type(event.get("rank")) is int else -1, phases, source)
        if phases
        else None
    )
