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
from typing import IO, Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Pattern

from nccl_runbook.core.world import Sample
from nccl_runbook.launch.stop import never

_SUPERVISED = Path(__file__).with_name("supervised.py")
# Regular expressions run in a process of their own: one that backtracks without end holds Python's lock, and neither a
# deadline nor a signal ends that. It dies with whoever started it (PR_SET_PDEATHSIG).
_MATCHER = """
import ctypes, json, re, select, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
wanted = re.compile(sys.argv[1])
"""
# what the expression catches in the lines of standard input: a JSON object for each match
_FIGURES = _MATCHER + """
for line in sys.stdin:
    for match in wanted.finditer(line):
        print(json.dumps(match.groupdict() or {"figure": match[1]}), flush=True)
"""
FOUND, NOT_FOUND = 0, 3  # 1 is a Python that raised
# the first line of a file that matches; the file may grow until standard input ends
_FIRST_LINE = _MATCHER + f"""
rest, wait_s = "", 0.0
with open(sys.argv[2], encoding="utf-8", errors="replace") as log:
    while True:
        is_whole = bool(select.select([sys.stdin], [], [], wait_s)[0])
        text = log.read(1 << 20)
        *lines, rest = (rest + text + "\\n" * (is_whole and not text)).split("\\n")
        for line in lines:
            if wanted.search(line[:65536]):
                print(line.strip()[:400])
                sys.exit({FOUND})
        if is_whole and not text:
            sys.exit({NOT_FOUND})
        rest, wait_s = rest[:65536], 0.0 if text else 0.2
"""
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


@contextlib.contextmanager
def _matcher(program: str, *arguments: str, **more: Any) -> Iterator[subprocess.Popen]:
    """A child that matches; killed at the end. In a session of its own: Ctrl-C is for the runner to answer."""
    argv = [sys.executable, "-S", "-E", "-c", program, *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, **more) as child:
        try:
            yield child
        finally:
            child.kill()


def first_line(pattern: str, log: str) -> ContextManager[subprocess.Popen]:
    """A child that prints the first line of the file ``log`` in which the regular expression is found.

    The file may grow until the child's standard input is closed. The child ends with FOUND or NOT_FOUND, and with
    another exit code if it could not search.
    """
    return _matcher(_FIRST_LINE, pattern, log, stdout=subprocess.PIPE, text=True, encoding="utf-8")


class _Reader(threading.Thread):
    """Passes a command's output on to the child that matches while it is printed; keeps its last lines."""

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


def _wait(child: subprocess.Popen, seconds: float, stopped: Callable[[], str]) -> int:
    """The exit code; TimeoutExpired once so many seconds have gone, or ``stopped`` says why."""
    until = time.monotonic() + seconds
    while True:
        try:
            return child.wait(max(0.0, min(STOP_S, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            if stopped() or time.monotonic() >= until:
                raise


def run(arm: str, argv: List[str], env: Mapping[str, str], figure: Pattern, deadline_s: float,
        stopped: Callable[[], str] = never) -> Sample:
    """``env``: the whole environment; ``figure``: one group, or named ones, that catch numbers. Without any in the pattern the figure is
    the seconds of the whole run."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as found, _matcher(_FIGURES, figure.pattern, stdout=found, bufsize=0) as matcher:
        with supervised(argv, env, subprocess.PIPE, text=True, errors="replace") as child:
            reader = _Reader(child.stdout, matcher.stdin)
            reader.start()
            try:
                code = _wait(child, deadline_s, stopped)
                ended = "passed" if code == 0 else f"exit code {code}"
            except subprocess.TimeoutExpired:
                ended = stopped() or f"not done after {deadline_s:.0f} s"
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
