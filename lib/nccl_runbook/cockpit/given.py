"""What somebody types into the form: files, folders, text, and processes that are looked at."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from nccl_runbook.case.gathered import Gathered
from nccl_runbook.case.given import Material, is_path, sort
from nccl_runbook.case.read import gather
from nccl_runbook.cockpit.looks import PID, Looks
from nccl_runbook.core.records import write_text
from nccl_runbook.core.redact import Redactor

MOST_SHOWN = 3  # files that cannot be read
MOST_NAMES = 100  # more lines than that are a log


def items(given: str, root: Path, pasted: Path) -> list[str]:
    """Each path, absolute; a line that is no path, unchanged; several such lines (a log) as one file.
    ``root``: base of relative paths; ``pasted``: where lines of a log are written."""
    lines = [line for line in given.splitlines() if line.strip()]
    named = {line: _named(line.strip(), root) for line in lines} if len(lines) <= MOST_NAMES else {}
    paths = [path for line in lines for path in named.get(line, [])]
    rest = [line for line in lines if not named.get(line)]
    if len(rest) < 2 or not any(" " in line.strip() for line in rest):
        return [*paths, *map(str.strip, rest)]
    write_text(pasted, Redactor(os.environ).text("\n".join([*rest, ""])))
    return [*paths, str(pasted)]


def _named(line: str, root: Path) -> list[str]:
    """The paths that a line names, blanks between them as in a shell, or its process; none if the line is a
    text."""
    if PID.fullmatch(line):
        return [line]
    try:
        words = [line] if os.path.lexists(root / os.path.expanduser(line)) else shlex.split(line)
        paths = [root / os.path.expanduser(word) for word in words]
        there = [os.path.lexists(path) for path in paths]
    except (ValueError, OSError):  # a quote that does not close, a zero byte
        return []
    names = all(here or is_path(word) for here, word in zip(there, words, strict=True))
    return [str(path) for path in paths] if names and (any(there) or len(words) > 1) else []


def read(words: Sequence[str], gpus: int, looks: Looks) -> tuple[Material, Gathered]:
    """What was given, sorted and judged. ``gpus``: of a node, 0 if unknown. ValueError for a missing path, an
    unreadable file, or a process that does not run."""
    if not words:
        return Material(), Gathered([])
    material = sort(words)
    for path in material.logs:
        if not os.path.lexists(os.path.expanduser(path)):
            raise ValueError(f"there is no file {path}")
    gathered = gather(material, None, gpus, looks.at)
    files = gathered.logs.logs.files if gathered.logs else []
    if files and not gathered.dumps and all(file.problem for file in files):
        raise ValueError("; ".join(f"{file.name} {file.problem}" for file in files[:MOST_SHOWN]))
    return material, gathered
