"""Temporary folders that the next run removes if their owner was killed.

The owner holds a lock on a file inside. The kernel drops the lock however the owner ends, also if the owner ran in another container or
before a reboot, where a process id would be somebody else's. Age decides nothing, and a folder without that file stays.
"""
import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from typing import IO, Iterable, Iterator, List, Optional

MARK = ".owner"
PREFIXES = ("nr-", "nccl-runbook-")


@contextlib.contextmanager
def own_folder(prefix: str, parent: Optional[str] = None, note: str = "") -> Iterator[str]:
    """A private folder for this block. ``note``: what ``sweep`` gives to whoever removes it in our place."""
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        with _marked(folder, note):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _marked(folder: str, note: str) -> contextlib.AbstractContextManager:
    """The mark, which has its name only once it is locked; none if the disk is full, or the file system has no locks."""
    name = os.path.join(folder, MARK)
    with contextlib.suppress(OSError):
        file: IO[str] = open(f"{name}.new", "w", encoding="utf-8", errors="surrogateescape")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(note)
        file.flush()
        os.rename(f"{name}.new", name)
        return file
    return contextlib.nullcontext()


def sweep(parents: Iterable[str], prefixes: Iterable[str] = PREFIXES) -> List[str]:
    """Remove the folders of this user whose owner was killed; their notes."""
    return [note for parent in parents for prefix in prefixes
            for mark in glob.glob(os.path.join(glob.escape(parent), f"{prefix}*", MARK)) for note in _swept(mark) if note]


def _swept(mark: str) -> List[str]:
    folder = os.path.dirname(mark)
    with contextlib.suppress(OSError):  # BlockingIOError: its owner lives
        if os.lstat(folder).st_uid == os.geteuid():
            with open(mark, "r+", encoding="utf-8", errors="surrogateescape") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                note = file.read()
                shutil.rmtree(folder, ignore_errors=True)
                return [note]
    return []
