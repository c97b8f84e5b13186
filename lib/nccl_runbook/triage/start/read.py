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
from nccl_runbook.core.redact import Redactor
from nccl_runbook.logs.file import named
from nccl_runbook.logs.sources import LogLines
from nccl_runbook.logs.sources import read as read_ends
from nccl_runbook.messages.matcher import Matcher
from nccl_runbook.triage.start.facts import LogRead, Message, Start
from nccl_runbook.triage.start.symptoms import matching, symptoms

LIMIT_S = 5.0  # a log made to be slow must not hold up the reader
TEXT_CHARACTERS = 300


def collect(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path, read and looked through; "" for what was not brought. No GPU is touched.

    ``log``: one path, or several separated by a colon.
    """
    given = [(0, line) for line in symptom.strip().splitlines()[:1000]]
    read = _read(named(log))
    rows = read.lines if isinstance(read, LogLines) else []
    messages, seen = _look(given + rows)
    if isinstance(read, LogLines):
        short = "" if seen == len(given) + len(rows) else f"looking stopped after {LIMIT_S:.0f} s and {seen} lines"
        told = LogRead(read.size_bytes, max(0, seen - len(given)), "; ".join(filter(None, (read.left_out, short))))
    else:
        told = read
    return Redactor(os.environ).json(Start(symptom.strip(), log.strip(), told, messages, devices(), driver()))


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


def _read(paths: list[str]) -> LogLines | Gap | None:
    """The lines of all of them, one after the other; the first Gap where none can be read, None without a path."""
    folders = [path for path in paths if os.path.isdir(os.path.expanduser(path))]  # of a thousand ranks, say, and 07 reads it anyway
    if folders == paths and paths:
        return Gap("not-run", f"{paths[0]} is a folder: 07-logs reads it")
    read = read_ends([path for path in paths if path not in folders])
    if not folders or isinstance(read, Gap):
        return read if paths else None
    left_out = "; ".join(filter(None, [*(f"{path} is a folder: 07-logs reads it" for path in folders), read.left_out]))
    return dataclasses.replace(read, left_out=left_out)


def _look(rows: list[tuple[int, str]]) -> tuple[list[Message], int]:
    """Every message once, where it came first and how often; how many rows were looked at before the time was up."""
    found: dict[tuple[str, str], Message] = {}
    until, worth = time.monotonic() + LIMIT_S, _matcher().may_match([line.encode("utf-8", "replace") for _, line in rows])
    for index, (number, line) in enumerate(rows):
        if index % 256 == 0 and time.monotonic() > until:
            return list(found.values()), index
        for kind, name in _names(line) if number == 0 or index in worth else ():  # 0: the reader's own words
            first = found.get((kind, name))
            new = Message(kind, name, number, _around(line), 1)
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


def _around(line: str) -> str:
    text = line.strip()
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 3] + "..."

