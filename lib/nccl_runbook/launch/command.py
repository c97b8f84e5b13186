"""The user's own command, run once with a deadline: its figures are read out of what it prints, and nothing of it outlives this."""
from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, Mapping, Pattern

from nccl_runbook.core.world import Sample
from nccl_runbook.launch import stop

_SUPERVISED = Path(__file__).with_name("supervised.py")
_FIGURES = Path(__file__).with_name("figures.py")
MATCH_S = 5.0
LINE_CHARACTERS = 4000
LAST_LINES = 20
_NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?")
END_S = 8.0  # supervised.py: SIGTERM, its grace, SIGKILL
KILLED_S = 1.0
STOP_S = 0.2  # how soon a stop is seen


@contextlib.contextmanager
def supervised(argv: List[str], env: Mapping[str, str], out: Any, **more: Any) -> Iterator[subprocess.Popen]:
    """The command, printing to ``out``. At the end every process that came of it is ended, and none else: closed input is the
    supervisor's sign, and our own death closes it, too. Raises ValueError where it cannot be started: no such program, or too long."""
    if not shutil.which(argv[0], path=env.get("PATH", os.defpath)):
        why = "it may not be executed" if os.path.isfile(argv[0]) and not os.access(argv[0], os.X_OK) else "there is no such program"
        raise ValueError(f"cannot start {argv[0][:80]}: {why}")
    try:
        child = subprocess.Popen([sys.executable, "-S", "-E", str(_SUPERVISED), *argv], env=dict(env), stdin=subprocess.PIPE, stdout=out,
                                 stderr=subprocess.STDOUT, start_new_session=True, **more)
    except OSError as error:
        raise ValueError(f"cannot start {argv[0][:80]}: {error.strerror}") from error
    try:
        yield child
    finally:
        child.stdin.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel for good (state D): nothing a process can do ends it
                child.wait(KILLED_S)


class _Reader(threading.Thread):
    """Passes a command's output on to figures.py while it is printed; keeps its last lines."""

    def __init__(self, stream, sink) -> None:
        super().__init__(daemon=True)
        self.stream, self.sink = stream, sink
        self.lines: List[str] = []

    def run(self) -> None:
        for line in iter(lambda: self.stream.readline(LINE_CHARACTERS), ""):
            self.lines = [*self.lines[1 - LAST_LINES:], line.rstrip()]
            with contextlib.suppress(BrokenPipeError):  # it was ended; the command's output is read on, so that it does not wait
                self.sink.write((line.rstrip("\n") + "\n").encode("utf-8", "replace"))


def _figures(found: IO[str]) -> Dict[str, List[float]]:
    """Name -> every number that was caught."""
    figures: Dict[str, List[float]] = {}
    found.seek(0)
    for row in found:
        for name, text in json.loads(row).items() if row.endswith("\n") else ():
            if text and _NUMBER.fullmatch(text) and math.isfinite(number := float(text.replace(",", ""))):
                figures.setdefault(name, []).append(number)
    return figures


def wait(child: subprocess.Popen, seconds: float) -> int:
    """The exit code; TimeoutExpired once so many seconds have gone, or a signal came."""
    until = time.monotonic() + seconds
    while True:
        try:
            return child.wait(max(0.0, min(STOP_S, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            if stop.why() or time.monotonic() >= until:
                raise


def run(arm: str, argv: List[str], env: Mapping[str, str], figure: Pattern, deadline_s: float) -> Sample:
    """``env``: the whole environment; ``figure``: one group, or named ones, that catch numbers. Without any in the pattern the figure is
    the seconds of the whole run."""
    began = time.monotonic()
    match = [sys.executable, "-S", "-E", str(_FIGURES), figure.pattern]
    with tempfile.TemporaryFile("w+") as found, subprocess.Popen(
            match, stdin=subprocess.PIPE, stdout=found, stderr=subprocess.DEVNULL, bufsize=0) as matcher:
        with supervised(argv, env, subprocess.PIPE, text=True, errors="replace") as child:
            reader = _Reader(child.stdout, matcher.stdin)
            reader.start()
            try:
                code = wait(child, deadline_s)
                ended = "passed" if code == 0 else f"exit code {code}"
            except subprocess.TimeoutExpired:
                ended = stop.why() or f"not done after {deadline_s:.0f} s"
            wall_s = time.monotonic() - began
        reader.join(1.0)
        try:
            if not reader.is_alive():
                matcher.stdin.close()
                matcher.wait(MATCH_S)
        except subprocess.TimeoutExpired:
            ended = f"--figure was still searching {MATCH_S:.0f} s after the end"
        finally:
            matcher.kill()
            reader.join(1.0)
            if not reader.is_alive():  # else what the command left behind still holds the other end
                child.stdout.close()
        figures = _figures(found) if figure.groups else {"seconds": [wall_s]}
    return Sample(arm, figures, ended if figures or ended != "passed" else "no figure found", round(wall_s, 3), reader.lines)


def compiled(figure: str) -> Pattern:
    """Raises ValueError for an expression that cannot be used."""
    try:
        pattern = re.compile(figure)
    except re.error as error:
        raise ValueError(f"--figure {figure!r} is no regular expression: {error}") from None
    if figure and not (pattern.groups == 1 or pattern.groups and len(pattern.groupindex) == pattern.groups):
        raise ValueError(f"--figure {figure!r} needs one group around the number, such as 'sync ([0-9.]+) s', or named groups")
    return pattern
