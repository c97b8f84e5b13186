"""One `nccl-runbook run` or `ab` as a process of its own: its lines as they come, its answer, and
a stop that ends all of it.

No notebook and no widget is needed for it. The process holds a pipe from its starter: if that
dies, the run ends by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.core.records import Record, RecordError, load, read
from nccl_runbook.report.verdict_document import AT_WORK, VerdictDocument
from nccl_runbook.report.verdict_sentence import START_STEP

LINES_KEPT = 200
LINE_CHARACTERS = 400
RUN = ("run", "--json", "--stop-with-stdin")


@dataclasses.dataclass(eq=False)
class RunProcess:
    """A run at work or over. A thread calls ``on_change(run)`` at most twice a second, and once at the end.
    ``lines``: what it printed; ``done``, ``total``: steps; ``document``: the verdict, once known;
    ``exit_code``: None while at work; ``compared``: the answer of `ab`; ``about``: what was given at its
    start; ``line``: the command that equals it; ``parts``: the run of which it repeats a part, those repeated
    since, and itself."""

    arguments: Sequence[str]
    outputs: Path
    on_change: Callable[[RunProcess], None]
    command: Sequence[str] = RUN
    lines: tuple[str, ...] = ()  # replaced for each line, so that every reader has a complete one
    done: int = 0
    total: int = 0
    document: VerdictDocument | None = None
    compared: dict[str, Any] | None = None
    about: object = None
    line: str = ""
    exit_code: int | None = None
    cancelled_at: float | None = None
    ended_at: float | None = None
    started_at: float = dataclasses.field(default_factory=time.monotonic)
    _said: Any = dataclasses.field(default_factory=tempfile.TemporaryFile)

    def __post_init__(self) -> None:
        self.parts = [self]
        self._before = os.path.realpath(self.outputs / "latest")
        # a session of its own: a kernel that is restarted takes its group with it, and the page
        # could not say "interrupted"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nccl_runbook", *self.command, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=self.command == RUN,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, name="nccl-runbook run", daemon=True).start()

    @property
    def at_work(self) -> bool:
        """Whether the process has not ended."""
        return self.ended_at is None

    @property
    def wall_s(self) -> float:
        """Seconds since the start, or until the end."""
        return (self.ended_at or time.monotonic()) - self.started_at

    @property
    def folder(self) -> Path | None:
        """Folder of the run; None before it has one."""
        if self.document:
            return self.outputs / self.document.run.id
        latest = Path(os.path.realpath(self.outputs / "latest"))
        return latest if str(latest) != self._before and latest.exists() else None

    @property
    def page(self) -> Path | None:
        """index.html of the run; None before its verdict, or if it was cancelled before a step ended."""
        path = self.folder / "index.html" if self.document and (self.tested or not self.interrupted) else None
        return path if path and path.exists() else None

    @property
    def records(self) -> list[Record]:
        """Records of its steps; empty before its verdict."""
        return [
            load(self.folder / s.record)
            for s in (self.document.steps if self.document else [])
            if s.record and s.notebook != START_STEP
        ]

    @property
    def now(self) -> str:
        """The step at work; empty before the first."""
        path = self.folder / "verdict.json" if self.folder else None
        steps = json.loads(path.read_bytes())["steps"] if path and path.exists() else []
        return next((s["notebook"] for s in steps if s["reason"] == AT_WORK), "")

    @property
    def tested(self) -> str:
        """The steps that ended, or what was compared; empty if nothing was."""
        if self.compared is not None:
            return self.command[2]
        if self.document is None:
            return ""
        left_out = {START_STEP, *self.document.run.not_run}
        return ", ".join(
            s.notebook
            for s in self.document.steps
            if s.record and s.status != "skipped" and s.notebook not in left_out
        )

    @property
    def interrupted(self) -> bool:
        """Whether the run was cancelled, or ended by SIGINT or SIGTERM."""
        return self.cancelled_at is not None or (
            self.exit_code is not None and self.exit_code in (-signal.SIGTERM, 130, 143)
        )

    def cancel(self) -> None:
        """Send SIGTERM; SIGKILL if that does not help."""
        if self.process.poll() is None:
            self.cancelled_at = self.cancelled_at or time.monotonic()
            self.process.send_signal(signal.SIGTERM)

    def _read(self) -> None:
        """Keep the lines that the run prints, and count its steps (runs in a thread)."""
        for line in self.process.stderr:
            if match := re.match(r"\[(\d+)/(\d+)\] (\S+)", line):
                self.done, self.total = int(match[1]), int(match[2])
            self.lines = (*self.lines[1 - LINES_KEPT :], line.rstrip("\n")[:LINE_CHARACTERS])

    def _watch(self) -> None:
        """Report twice a second until the process ends, then read its answer (runs in a thread)."""
        while self.exit_code is None:
            self.on_change(self)
            # a run that does not heed SIGTERM; its kernel and ranks end with it
            if self.cancelled_at and time.monotonic() - self.cancelled_at > 10.0:
                self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.exit_code = self.process.wait(0.5)
        self._reader.join(2)  # another process that still holds the pipe is not waited for
        self.process.stdin.close()
        self._said.seek(0)
        answer = self._said.read()
        with contextlib.suppress(RecordError):  # it ended without one
            self.document = read(VerdictDocument, answer)
        if self.command != RUN and answer:
            self.compared = json.loads(answer)
        self.ended_at = time.monotonic()
        self.on_change(self)
