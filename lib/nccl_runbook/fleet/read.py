"""The records below a folder, night by night, and the history of a fleet."""

import contextlib
import dataclasses
import datetime
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args, get_type_hints

from nccl_runbook.core.facts import Gap, grouped
from nccl_runbook.core.records import Record, RecordError, read as read_as
from nccl_runbook.fleet.facts import LINE_SCHEMA, MISSING, ORDER, History, Line, Night
from nccl_runbook.hosts import read as reader
from nccl_runbook.launch.running import STATE

HEAD_BYTES = 1 << 16  # schema and start stand at the top of a record
NOT_RECORDS = ("verdict.json", "99-verdict.json", STATE)  # of a run, beside its records
_RECORD_STARTED = re.compile(rb'(?<!\\)"started":\s*"([\d:TZ+.-]{10,40})"')
_SCHEMA = re.compile(rb'(?<!\\)"schema":\s*"nccl-runbook/record/(\d+)"')


def records_by_night(folder: Path) -> dict[str, list[Path]]:
    """Night -> record files below the folder, earliest night first. A file without a readable start belongs
    to the newest night. OSError if the folder cannot be read."""
    next(folder.iterdir(), None)
    by_night = grouped((night_of(_head(path)), path) for path in sorted(_files(folder)))
    undated = by_night.pop("", [])
    nights = sorted(by_night) or ([""] if undated else [])
    return {night: [*by_night.get(night, []), *(undated if night == nights[-1] else [])] for night in nights}


def _files(folder: Path) -> Iterator[Path]:
    """Records below the folder, also behind links, and what may hide a record: a folder that cannot be read,
    a link that leads nowhere."""
    errors: list[OSError] = []
    walked = set[str]()
    for above, folders, files in os.walk(folder, onerror=errors.append, followlinks=True):
        if os.path.realpath(above) in walked:  # a link to it
            folders.clear()
            continue
        walked.add(os.path.realpath(above))
        for path in (Path(above, file) for file in files):
            is_record = path.suffix == ".json" and path.name not in NOT_RECORDS
            if (is_record and os.path.isfile(path)) or not os.path.exists(path):
                yield path
    yield from (Path(error.filename) for error in errors)


def _head(path: Path) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as file:  # reported when the record is read
        return file.read(HEAD_BYTES)
    return b""


def night_of(head: bytes) -> str:
    """Date of the evening of the night in which a record began: nights last from noon to noon, local time.
    Empty if no start is shown."""
    shown = _RECORD_STARTED.search(head)
    try:
        began = datetime.datetime.fromisoformat(shown[1].decode()) if shown else None
        return (began.astimezone() - datetime.timedelta(hours=12)).date().isoformat() if began else ""
    except (ValueError, OverflowError):
        return ""


def read(name: str, paths: list[Path], judged: Callable[[Record], tuple[str, str]]) -> Night:
    """The records of one night. ``judged`` gives status and reason of a record."""
    hosts = reader.read(paths, judged)
    unread = {path: _why_unread(Path(path), gap) for path, gap in hosts.unread.items()}
    return Night(name, dataclasses.replace(hosts, unread=unread))


def _why_unread(path: Path, gap: Gap) -> Gap:
    """Why a file cannot be read: a record of another version of the runbook has a reason of its own."""
    if os.path.isdir(path):
        return Gap("failed", f"{path} is a folder that cannot be read")
    readable = [name.rpartition("/")[2] for name in get_args(get_type_hints(Record)["schema"])]
    shown = _SCHEMA.search(_head(path))
    version = shown[1].decode() if shown else readable[0]
    if version in readable:
        return gap
    text = f"{path} has schema {version} of a record, this version reads {' and '.join(sorted(readable))}"
    return Gap(
        "unsupported", f"{text}. Use the version of nccl-runbook that wrote the file, or a later version"
    )


def history(path: Path) -> History:
    """The history in a file; empty if there is no file yet. OSError if it cannot be read."""
    return history_of(_text(path, 32 << 20) if path.exists() else "")  # of 1,000 nodes, half a year


def _text(path: Path, most_bytes: int) -> str:
    """The text of a file. OSError if it cannot be read, or is larger."""
    if path.stat().st_size > most_bytes:
        raise OSError(
            errno.EFBIG,
            f"the file is larger than {most_bytes >> 20} MiB. Remove what is no longer needed",
            str(path),
        )
    return path.read_text(encoding="utf-8", errors="replace")


def history_of(text: str) -> History:
    """The history in a text. Of two lines of one node and night the later one counts."""
    whole = History({}, [], text)
    for number, raw in enumerate(re.finditer(r"(?m)^.*$", text), 1):
        if line := _line(raw[0]):
            whole.lines.setdefault(line.night, {})[line.node] = line
        elif raw[0].strip():
            whole.unread.append(number)
    return whole


def _line(raw: str) -> Line | None:
    try:
        values = json.loads(raw)
        if values.pop("schema") != LINE_SCHEMA or values.get("status", "") not in ("", MISSING, *ORDER):
            return None
        datetime.date.fromisoformat(values["night"])
        # nights and nodes are the same again and again
        return read_as(Line, {k: sys.intern(v) if isinstance(v, str) else v for k, v in values.items()})
    except (ValueError, RecordError, LookupError, AttributeError, TypeError, RecursionError):
        return None


def text_of(known: History, lines: list[Line]) -> str:
    """The history as text with these lines added; those that it has already are left out."""
    new = [line for line in lines if known.lines.get(line.night, {}).get(line.node) != line]
    end = "\n" if known.text and not known.text.endswith("\n") else ""
    return known.text + end + "".join(f"{row}\n" for row in map(_json, new))


def _json(line: Line) -> str:
    return json.dumps(
        {
            "schema": LINE_SCHEMA,
            **{name: value for name, value in dataclasses.asdict(line).items() if value},
        },
        ensure_ascii=False,
    )


def names(path: Path) -> list[str]:
    """Node names of a file: one or more a line, separated by blanks or commas; # begins a comment. OSError
    if it cannot be read, or is too large."""
    return list(
        dict.fromkeys(
            word
            for line in _text(path, 1 << 20).splitlines()
            for word in re.findall(r"[^\s,]+", line.partition("#")[0])
        )
    )
