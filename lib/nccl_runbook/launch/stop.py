"""Whether this process was asked to go. A signal is an affair of the whole process: whoever waits here asks ``why``."""

from __future__ import annotations

import signal
from typing import Any

received = 0


def remember() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP are remembered, the first of them, so that what was measured so far can be told."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _take)


def _take(number: int, _frame: Any) -> None:
    global received
    received = received or number


def why() -> str:
    """Why what runs is to end, "" as long as it is not."""
    return f"interrupted ({signal.Signals(received).name})" if received else ""
