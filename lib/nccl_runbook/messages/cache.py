"""A private folder for what takes long to compute and is dangerous to take from somebody else.

What it holds is handed to native code. So nothing is read unless the folder and the file belong to this user,
nobody else has access to them, and the content has the checksum that was stored with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

KEPT = 8  # files of some MB: of other expressions, versions, and processors that share a home folder
PREFIX = "matcher-"
_CHECKSUM_BYTES = hashlib.sha256().digest_size


def folder() -> Path:
    """Where the files lie; it need not exist. RuntimeError if there is no home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "nccl-runbook"


def read(name: str) -> bytes | None:
    """The content; None if it is missing, damaged, or not only ours."""
    try:
        with _opened_folder() as at:
            file = os.open(PREFIX + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
            with open(file, "rb") as opened:
                if not _is_private(os.fstat(file)):
                    return None
                checksum, content = opened.read(_CHECKSUM_BYTES), opened.read()
    except (OSError, RuntimeError):
        return None
    return content if hashlib.sha256(content).digest() == checksum else None


def write(name: str, content: bytes) -> bool:
    """Keep the content, as a whole or not at all, and drop old files. False if it cannot be kept."""
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened_folder() as at:
            _replace(at, PREFIX + name, hashlib.sha256(content).digest() + content)
            _prune(at)
    except (OSError, RuntimeError):
        return False
    return True


@contextlib.contextmanager
def _opened_folder() -> Iterator[int]:
    """The folder's descriptor. OSError if it is missing, a link, or not only ours."""
    at = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _is_private(os.fstat(at)):
            raise PermissionError("others have access")
        yield at
    finally:
        os.close(at)


def _is_private(state: os.stat_result) -> bool:
    kind = stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)
    return kind and state.st_uid == os.geteuid() and not state.st_mode & 0o077


def _replace(at: int, name: str, content: bytes) -> None:
    """Write beside the file, then rename: a reader sees the old content or the new one, never a part."""
    beside = f"{name}.{secrets.token_hex(8)}"
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=at)
    try:
        with open(file, "wb") as opened:
            opened.write(content)
        os.replace(beside, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=at)
        raise


def _prune(at: int) -> None:
    """Drop all but the newest files; also those that a killed writer left."""
    written = {}
    for name in (name for name in os.listdir(at) if name.startswith(PREFIX)):
        with contextlib.suppress(FileNotFoundError):  # another process renamed or dropped it
            written[name] = os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime_ns
    for name in sorted(written, key=written.__getitem__)[:-KEPT]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
