"""Whether this process was asked to go. A signal is an affair of the whole process: whoever waits here asks ``why``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

received = 0


def _handle(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def end() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end this process by the clean-up on the way, with 128 + their number."""
    _handle(_go)


def _go(number: int, _frame: Any) -> None:
    _handle(signal.SIG_IGN)  # an impatient second one ends no clean-up
    with contextlib.suppress(OSError):  # nobody reads there any more; no print: one may be at work right now
        os.write(2, f"interrupted ({signal.Signals(number).name}): there is no answer yet\n".encode())
    sys.exit(128 + number)


def remember() -> None:
    """From now on the first of them is remembered, so that what was measured so far can be told."""
    _handle(_take)


def _take(number: int, _frame: Any) -> None:
    global received
    received = received or number


def why() -> str:
    """Why what runs is to end, "" as long as it is not."""
    return f"interrupted ({signal.Signals(received).name})" if received else ""
