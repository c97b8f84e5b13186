"""One step as JSON: parameters, facts, findings. Written atomically, redacted, validated on the way back.

A file holds one record, or an array of several, as nccl-look.pyz writes it.
"""
from __future__ import annotations

import datetime as dt
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import Redactor

SCHEMA = "nccl-runbook/record/2"  # 1 has messages of logs under expressions instead of ids; both are read
RECORD_BYTES = 64 << 20  # a record takes kilobytes; a file that somebody handed over may be endless
Status = Literal["ok", "note", "warn", "broken", "unknown", "skipped", "running"]


class RecordError(ValueError):
    """A file that is not a record of ours; the message names the file and what is wrong, in one sentence."""


class Strict(BaseModel):
    """Refuses what it does not know."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Judged(Strict):
    """Whose software was judged. ``own``: the runbook's own torch, not the user's. Paths as the ranks saw them."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    nccl_path: str = ""
    gpus: list[str] = []
    host: str = ""
    own: bool = False


class Command(Strict):
    """A line that repeats by hand what the runbook did."""

    label: str
    line: str


class Record(Strict):
    """One step. ``status`` is "running" until the step wrote its own result: only that counts as done."""

    schema_: Annotated[Literal["nccl-runbook/record/2", "nccl-runbook/record/1"], Field(alias="schema")] = SCHEMA
    step: str
    status: Status = "running"
    reason: str = ""
    started: str
    ended: str | None = None
    wall_s: float = 0.0
    parameters: dict[str, JsonValue] = {}
    judged: Judged = Judged()
    facts: dict[str, JsonValue] = {}
    findings: list[Finding] = []
    not_looked_at: list[str] = []
    commands: list[Command] = []
    tried_by_hand: list[dict[str, JsonValue]] = []
    tables: list[dict[str, JsonValue]] = []


_SEVERAL = TypeAdapter(list[Record])


def utc_now() -> str:
    """Now, as records write it: 2026-11-20T14:30:53Z."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_texts(texts: Mapping[Path, str]) -> None:
    """Replace these files of one folder, each as a whole, none before all of them are on the disk: one that is full leaves the old ones
    as they belong together. Mode 0600."""
    made: list[str] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            made.append(temporary)
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in zip(texts, made):
            os.replace(temporary, path)
    except BaseException:
        for temporary in made:
            Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """The same for one file: a reader sees the old one or the new one, never a part."""
    write_texts({path: text})


def save(record: Record, path: Path, redactor: Redactor) -> None:
    """Write the record without secrets."""
    write_text(path, json.dumps(redactor.json(record.model_dump(mode="json", by_alias=True)), indent=1, ensure_ascii=False) + "\n")


def load(path: Path, step: str = "") -> Record:
    """Read a record, of ``step`` where it is named; RecordError says in one sentence what is wrong with the file."""
    found = load_all(path)
    fit = [r for r in found if step in ("", r.step)]
    if not fit:
        raise RecordError(f"{path} is a record of {' and '.join(r.step for r in found) or 'nothing'}, not of {step or 'a step'}")
    return fit[0]


def load_all(path: Path) -> list[Record]:
    """The records of a file: one, or the array of several that nccl-look.pyz writes; RecordError as in ``load``."""
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode) or kind.st_size > RECORD_BYTES:
            raise RecordError(f"{path} is not a record of this runbook (not a regular file of at most {RECORD_BYTES >> 20} MiB)")
        data = path.read_bytes()
        return _SEVERAL.validate_json(data) if data.lstrip().startswith(b"[") else [Record.model_validate_json(data)]
    except OSError as error:
        raise RecordError(f"cannot read the record {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise RecordError(f"{path} is not a record of this runbook ({where}: {first['msg']})") from error
