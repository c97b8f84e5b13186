"""One step as JSON: parameters, facts, findings. Written atomically, redacted, validated on the way back.

A file holds one record, or an array of several, as nccl-look.pyz writes it.
"""

import atexit
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, dataclass_transform

from nccl_runbook.core.facts import Unusable, to_json, utc_now
from nccl_runbook.core.findings import Finding, step_status, worst_first
from nccl_runbook.core.redact import Redactor, escaped

# A hang of 2,048 ranks takes 5 MiB, 180,000 values and 18,000 objects, and 0.15 s and 37 MiB to read. One
# that somebody made may be endless, and refusing an object without fields takes up to 6 kB (pydantic 2.14).
RECORD_BYTES, MOST_VALUES = 8 << 20, 400_000
TEXT_BYTES = 1 << 20  # one text in it: a stack or the end of a log


class RecordError(Unusable):
    """A file that is not a record of ours; the message names the file and the problem in one sentence."""


Shape = TypeVar("Shape")


@dataclass_transform(kw_only_default=True)
def strict(shape: type[Shape]) -> type[Shape]:
    """A dataclass that is written and read back: unknown fields and NaN are refused on reading."""
    # pydantic asks for it
    shape.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]
    return dataclasses.dataclass(kw_only=True)(shape)


@strict
class Judged:
    """The software that was judged; paths as the ranks saw them. ``own``: whether it is the runbook's own
    torch."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    nccl_path: str = ""
    gpus: list[str] = dataclasses.field(default_factory=list)
    host: str = ""
    own: bool = False


@strict
class Command:
    """A shell line that repeats by hand what the runbook did."""

    label: str
    line: str


@strict
class Record:
    """One step. ``status`` stays "running" until the step wrote its own result; ``wall_s``: seconds."""

    # 1 has messages of logs under expressions instead of ids; both are read
    schema: Literal["nccl-runbook/record/2", "nccl-runbook/record/1"] = "nccl-runbook/record/2"
    step: str
    status: Literal["ok", "note", "warn", "broken", "unknown", "skipped", "running"] = "running"
    reason: str = ""
    started: str
    ended: str | None = None
    wall_s: float = 0.0
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    judged: Judged = dataclasses.field(default_factory=Judged)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    findings: list[Finding] = dataclasses.field(default_factory=list)
    not_looked_at: list[str] = dataclasses.field(default_factory=list)
    commands: list[Command] = dataclasses.field(default_factory=list)
    tried_by_hand: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    tables: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@functools.cache
def _reader(wanted: Any) -> Any:
    """pydantic is loaded only to read: it takes 0.2 s."""
    from pydantic import TypeAdapter

    return TypeAdapter(wanted)


def read(wanted: Any, data: Any, place: str = "") -> Any:
    """``data`` (bytes of a JSON document, or parsed values) as an object of type ``wanted``: the inverse of
    ``to_json``.

    RecordError with the reason and the place, which begins with ``place``, if it does not fit.
    """
    from pydantic import ValidationError

    try:
        return (
            _reader(wanted).validate_json(data)
            if isinstance(data, bytes)
            else _reader(wanted).validate_python(data)
        )
    except ValidationError as error:
        first = (
            error.errors(include_url=False, include_context=False, include_input=False)[0]
            if error.error_count() < 1000  # each takes 500 bytes
            else {"loc": (), "msg": f"{error.error_count()} values have a wrong type"}
        )
        raise RecordError(
            f"{place}{'.'.join(map(str, first['loc'])) or 'the file'}: "
            + str(first["msg"]).replace("Input should be", "must be").replace("Field required", "is missing")
        ) from error


def json_text(value: Any, redactor: Redactor) -> str:
    """The value as indented JSON with secrets masked, as it is written to a file."""
    return escaped(json.dumps(redactor.json(to_json(value)), indent=1, ensure_ascii=False)) + "\n"


def of_tables(tables: Iterable[object]) -> list[dict[str, Any]]:
    """Tables as a record keeps them: a cell without a tone becomes its text alone. A large job has many."""
    return [
        {**table, "rows": [list(map(_text_if_bare, row)) for row in table["rows"]]}
        for table in to_json(list(tables))
    ]


def _text_if_bare(cell: dict[str, Any]) -> Any:
    return cell["text"] if cell == {**cell, "tone": "", "heat": None} else cell


def new_folder(path: Path, parents: bool = True, exist_ok: bool = False) -> None:
    """Make a folder of this user's own. If no file was made in it before this process ends, it is removed,
    and so are folders above it that were made for it. OSError if it cannot be made."""
    made = [*itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents))]
    atexit.register(_remove_empty, made)
    path.mkdir(mode=0o700, parents=parents, exist_ok=exist_ok)


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):  # a folder that holds something ends it
        inner = sorted((path for folder in folders[:1] for path in folder.rglob("*")), reverse=True)
        if all(path.is_dir() and not path.is_symlink() for path in inner):
            for folder in (*inner, *folders):
                folder.rmdir()


def write_texts(texts: Mapping[Path, str], mode: int = 0o600) -> None:
    """Replace these files of one folder, each atomically, after all are on the disk: a full disk leaves
    every old file in place. ``mode`` is limited by the umask. OSError if writing fails."""
    umask = os.umask(0o077)
    os.umask(umask)
    made: dict[Path, str] = {}
    with contextlib.ExitStack() as left_over:
        for path, text in texts.items():
            new_folder(path.parent, exist_ok=True)
            handle, made[path] = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            left_over.callback(Path(made[path]).unlink, missing_ok=True)
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode & ~umask)
        for path, temporary in made.items():
            os.replace(temporary, path)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace one file atomically: a reader sees the old text or the new one. OSError if writing fails."""
    write_texts({path: text}, mode)


def of_findings(
    step: str,
    findings: Iterable[Finding],
    tables: Iterable[object] = (),
    judged: Judged | None = None,
    not_seen: Iterable[str] = (),
) -> Record:
    """The record, secrets masked, of a step that was judged without a run."""
    ordered = worst_first(findings)
    status, reason = step_status(ordered)
    return cast(
        Record,
        Redactor(os.environ).json(
            Record(
                step=step,
                status=status.value,
                reason=reason,
                started=utc_now(),
                findings=ordered,
                tables=of_tables(tables),
                judged=judged or Judged(),
                not_looked_at=list(not_seen),
            )
        ),
    )


def save(record: Record, path: Path, redactor: Redactor) -> None:
    """Write the record with secrets masked; OSError if that fails."""
    write_text(path, json_text(record, redactor))


def load(path: Path, step: str = "") -> Record:
    """The first record of a file, or its record of ``step``; RecordError says what is wrong with the file."""
    records = load_all(path)
    fit = [r for r in records if step in ("", r.step)]
    if not fit:
        raise RecordError(
            f"{path} is a record of {' and '.join(r.step for r in records) or 'nothing'}, "
            f"not of {step or 'a step'}"
        )
    return fit[0]


def load_all(path: Path) -> list[Record]:
    """All records of a file, secrets masked: one, or the array that nccl-look.pyz writes. RecordError as in
    ``load``."""
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode) or kind.st_size > RECORD_BYTES:
            raise RecordError(f"not a regular file of at most {RECORD_BYTES >> 20} MiB")
        # without O_NONBLOCK, a file of the kernel may wait for its next line
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            data = file.read() or b""
        values = data.count(b",") + 10 * data.count(b"{")
        if values > MOST_VALUES or max(map(len, data.split(b'"'))) > TEXT_BYTES:
            raise RecordError(
                f"the file holds more than {MOST_VALUES} values (an object counts as ten), or a text "
                f"of more than {TEXT_BYTES >> 20} MiB"
            )
        held = read(list[Record], data) if data.lstrip().startswith(b"[") else [read(Record, data)]
        return cast(list[Record], Redactor(os.environ).json(held))
    except OSError as error:
        raise RecordError(f"cannot read the record {path}: {error.strerror}") from error
    except RecordError as error:
        raise RecordError(f"{path} is not a record of this runbook ({error})") from error
