"""What the user brought, looked through line by line for messages that the tables know."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from nccl_runbook.causes.causes import causes, recognise
from nccl_runbook.core.facts import Gap
from nccl_runbook.logs import file as log_file
from nccl_runbook.logs.facts import FileRead
from nccl_runbook.messages.matcher import Matcher
from nccl_runbook.triage.start.facts import Message, Start
from nccl_runbook.triage.start.symptoms import matching, symptoms

LIMIT_S = 5.0  # a log made to be slow must not hold up the reader
TEXT_CHARACTERS = 300


def collect(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path, read and looked through; "" for what was not brought. No GPU is touched.

    ``log``: one path, or several separated by a colon.
    """
    given = [(0, line) for line in symptom.strip().splitlines()[:1000]]
    read = _read(log_file.named(log))
    rows = read.lines if isinstance(read, log_file.LogLines) else []
    messages, seen = _look(given + rows)
    if isinstance(read, log_file.LogLines):
        short = "" if seen == len(given) + len(rows) else f"looking stopped after {LIMIT_S:.0f} s and {seen} lines"
        told = FileRead(log.strip(), read.size_bytes, max(0, seen - len(given)), "; ".join(filter(None, (read.left_out, short))))
    else:
        told = read
    return Start(symptom.strip(), log.strip(), told, messages, devices(), driver())


def devices(folder: Path = Path("/dev")) -> list[str]:
    """Device files of NVIDIA GPUs: they can be listed without opening a GPU."""
    return sorted(str(path) for path in folder.glob("nvidia[0-9]*"))


def driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | Gap:
    """The version of the loaded kernel module; the line reads "NVRM version: NVIDIA UNIX ... Kernel Module ... 580.159.04 ..."."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return Gap("absent", f"{path}: {error.strerror}")
    return found[1] if found else Gap("failed", f"{path} has no version that is known here")


def _read(paths: list[str]) -> log_file.LogLines | Gap | None:
    """The lines of all of them, one after the other; the first Gap where none can be read, None without a path."""
    folders = {path for path in paths if os.path.isdir(os.path.expanduser(path))}  # of a thousand ranks, say, and 07 reads it anyway
    told = [Gap("not-run", f"{path} is a folder: 07-logs reads it") if path in folders else log_file.read(path) for path in paths]
    whole = [t for t in told if isinstance(t, log_file.LogLines)]
    if len(told) < 2 or not whole:
        return told[0] if told else None
    left_out = "; ".join(filter(None, (t.detail if isinstance(t, Gap) else t.left_out for t in told)))
    return log_file.LogLines(sum(t.size_bytes for t in whole), [row for t in whole for row in t.lines], left_out)


def _look(rows: list[tuple[int, str]]) -> tuple[list[Message], int]:
    """Every message once, where it came first and how often; how many rows were looked at before the time was up."""
    found: dict[tuple[str, str], Message] = {}
    until, worth = time.monotonic() + LIMIT_S, _matcher().may_match([line.encode("utf-8", "replace") for _, line in rows])
    for index, (number, line) in enumerate(rows):
        if index % 256 == 0 and time.monotonic() > until:
            return list(found.values()), index
        for kind, name in _names(line) if number == 0 or index in worth else ():  # 0: the reader's own words
            first = found.get((kind, name))
            new = Message(kind, name, number, line.strip()[:TEXT_CHARACTERS], 1)
            found[kind, name] = dataclasses.replace(first, times=first.times + 1) if first else new
    return list(found.values()), len(rows)


@functools.cache
def _matcher() -> Matcher:
    return Matcher({s: s for row in (*causes().values(), *symptoms().values()) for s in row.signatures})


def _names(line: str) -> Iterator[tuple[str, str]]:
    if known := recognise([line]):
        yield "cause", known[0].id
    for symptom in matching(line):
        yield "symptom", symptom.id
