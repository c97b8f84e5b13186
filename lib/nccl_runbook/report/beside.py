"""A page or a record that a command writes on several nodes at once: none replaces another's."""

import itertools
import os
from pathlib import Path

_as_found: dict[Path, int] = {}


def remember(path: Path) -> None:
    """Know the file as it is now: before a command begins, and after it wrote the file."""
    _as_found[path] = _written_ns(path)


def free(path: Path) -> Path:
    """The file to write: ``path``, or NAME-HOST beside it if another process has written ``path`` since it
    was remembered."""
    if path not in _as_found or _as_found[path] == _written_ns(path):
        return path
    endings = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    others = (path.with_stem(f"{path.stem}-{os.uname().nodename}{ending}") for ending in endings)
    return next(other for other in others if not other.exists())


def _written_ns(path: Path) -> int:
    """When the file was last written, 0 if there is none."""
    return path.stat().st_mtime_ns if path.is_file() else 0
