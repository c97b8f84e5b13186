"""A signal that asks this process to go: it ends at once, or what was measured so far is reported first."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import os
import shutil
import signal
import sys
import tempfile
from typing import Any, Iterable, Iterator, List, Optional

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _handle(handler: Any) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def end() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end this process with 128 + their number, after its clean-up."""
    _handle(_go)


def _go(number: int, _frame: Any) -> None:
    _handle(signal.SIG_IGN)  # an impatient second one ends no clean-up
    with contextlib.suppress(OSError):  # the reader has gone; no print: one may be under way right now
        os.write(2, f"interrupted ({signal.Signals(number).name}) before there was an answer\n".encode())
    sys.exit(128 + number)


@dataclasses.dataclass(eq=False)
class Stop:
    """Keeps the number of the first SIGINT, SIGTERM or SIGHUP after ``remember`` in ``received`` (0: none).

    Calling it returns why running work has to end, or "" while no signal came. As a context manager it
    remembers signals within the block and then restores the former handlers.
    """

    received: int = 0

    def remember(self) -> Stop:
        """Install the handlers of SIGNALS and keep the former ones; returns itself."""
        self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    __enter__ = remember

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: Any) -> None:
        self.received = self.received or number

    def __call__(self) -> str:
        return f"interrupted ({signal.Signals(self.received).name})" if self.received else ""


never = Stop()  # if no command remembers signals
MARK = ".owner"
PREFIXES = ("nr-", "nccl-runbook-")


@contextlib.contextmanager
def own_folder(prefix: str, parent: Optional[str] = None, note: str = "") -> Iterator[str]:
    """A private folder for this block, removed at its end. ``note``: the text that ``sweep`` returns if it
    has to remove the folder."""
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    with contextlib.ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # no mark if the disk is full, or the file system has no locks
            # without a buffer, which a full disk would refuse again when the file is closed
            mark = at_end.enter_context(open(os.path.join(folder, f"{MARK}.new"), "wb", buffering=0))
            fcntl.flock(mark, fcntl.LOCK_EX)
            mark.write(note.encode("utf-8", "surrogateescape"))
            os.rename(mark.name, os.path.join(folder, MARK))
        yield folder


def sweep(parents: Iterable[str], prefixes: Iterable[str] = PREFIXES) -> List[str]:
    """Remove this user's folders whose owner was killed, and return their notes."""
    return [
        note
        for parent in parents
        for prefix in prefixes
        for mark in glob.glob(os.path.join(glob.escape(parent), f"{prefix}*", MARK))
        for note in _swept(mark)
        if note
    ]


def _swept(mark: str) -> Iterator[str]:
    folder = os.path.dirname(mark)
    with contextlib.suppress(OSError):  # BlockingIOError: its owner lives
        if os.lstat(folder).st_uid == os.geteuid():
            with open(mark, "r+", encoding="utf-8", errors="surrogateescape") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                note = file.read()
                shutil.rmtree(folder, ignore_errors=True)
                yield note
