"""Who may be on the GPUs of this machine at the same time: tests beside one another, or one alone."""
from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(lock: Path, alone: bool) -> Iterator[None]:
    """Waits until this test may begin: ``alone`` once no other is there, else as soon as none is alone. Any process of this machine."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
