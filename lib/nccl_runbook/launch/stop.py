"""A signal that asks this process to go: it ends at once, or what was measured so far is reported first."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _handle(handler: Any) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def end() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end this process by the clean-up on the way, with 128 + their number."""
    _handle(_go)


def _go(number: int, _frame: Any) -> None:
    _handle(signal.SIG_IGN)  # an impatient second one ends no clean-up
    with contextlib.suppress(OSError):  # nobody reads there any more; no print: one may be at work right now
        os.write(2, f"interrupted ({signal.Signals(number).name}): there is no answer yet\n".encode())
    sys.exit(128 + number)


class Stop:
    """From ``remember`` on it keeps the number of the first SIGINT, SIGTERM or SIGHUP in ``received``, 0 for none.

    Called, it says why what runs is to end, "" as long as nobody asked. Whoever waits is given it. As a context
    manager it remembers within the block, and puts the handlers of before back.
    """

    def __init__(self) -> None:
        self.received = 0

    def remember(self) -> Stop:
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
