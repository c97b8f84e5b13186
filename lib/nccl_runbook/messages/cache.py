"""A private folder of the user for results that take long to compute. Files that other users could have
written are not read."""

import contextlib
import os
import stat
from pathlib import Path

from nccl_runbook.core.records import write_text

PREFIX = "catalogue-"


def folder() -> Path:
    """Folder of the cached files; it need not exist. RuntimeError without a home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    place = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    if not place.is_absolute():
        raise RuntimeError(f"HOME is not an absolute path: {place.parent}")
    return place / "nccl-runbook"


def read(name: str) -> bytes | None:
    """Content of the cached file; None if it is missing, a link, or accessible to others."""
    with (
        contextlib.suppress(OSError, RuntimeError),
        open(os.open(folder() / (PREFIX + name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file,
    ):
        state = os.fstat(file.fileno())
        if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077:
            return file.read()
    return None


def write(name: str, content: str) -> None:
    """Replace the cached content atomically; does nothing if that fails."""
    with contextlib.suppress(OSError, RuntimeError):
        write_text(kept := folder() / (PREFIX + name), content)
        for old in {*folder().glob(f"*{PREFIX}*")} - {kept}:
            old.unlink(missing_ok=True)
