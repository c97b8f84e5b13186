"""The user's own command, run once with a deadline: its figures are read out of what it prints, and
nothing of it outlives this."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Pattern, Tuple

from nccl_runbook.core.facts import Unusable, grouped
from nccl_runbook.core.facts_world import Sample
from nccl_runbook.launch.stop import never
from nccl_runbook.launch.warm_link import LINE_CHARACTERS

# Regular expressions run in a process of their own: one that backtracks without end holds Python's lock, and
# neither a deadline nor a signal ends that. It dies with whoever started it (PR_SET_PDEATHSIG).
_MATCHER = """
import ctypes, json, re, select, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
wanted = re.compile(sys.argv[1])
"""
FOUND, NOT_FOUND = 0, 3  # 1 is a Python that raised
# the first line of a file that matches; the file may grow until standard input ends
_FIRST_LINE = (
    _MATCHER
    + f"""
rest, wait_s = "", 0.0
with open(sys.argv[2], encoding="utf-8", errors="replace") as log:
    while True:
        is_whole = bool(select.select([sys.stdin], [], [], wait_s)[0])
        text = log.read(1 << 20)
        *lines, rest = (rest + text + "\\n" * (is_whole and not text)).split("\\n")
        for line in lines:
            if wanted.search(line[:65536]):
                print(line[:65536].strip())
                sys.exit({FOUND})
        if is_whole and not text:
            sys.exit({NOT_FOUND})
        rest, wait_s = rest[:65536], 0.0 if text else 0.2
"""
)
MATCH_S = 5.0
LAST_LINES = 20
# reads what a command prints: a JSON object for each match, and at the end the array of the last lines
_FIGURES = (
    _MATCHER
    + f"""
sys.stdin.reconfigure(encoding="utf-8", errors="replace")
last = []
for line in iter(lambda: sys.stdin.readline({LINE_CHARACTERS}), ""):
    last = [*last[{1 - LAST_LINES}:], line.rstrip()]
    for match in wanted.finditer(line) if wanted.groups else ():
        print(json.dumps(match.groupdict() or {{"figure": match[1]}}), flush=True)
print(json.dumps(last))
"""
)
_NUMBER = re.compile(r"[+-]?(\d[\d,]*(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?")
END_S = 8.0  # supervised.py: SIGTERM, its grace, SIGKILL
NO_FIGURE = "no figure found"
STOP_S = 0.2  # how soon a stop is seen


@contextlib.contextmanager
def supervised(argv: List[str], env: Mapping[str, str], out: Any) -> Iterator[subprocess.Popen]:
    """A context in which the command runs and prints to ``out``. When it ends, all its descendants are ended
    (the supervisor watches its standard input, which closes even if we die). ValueError if the command
    cannot be started: no such program, or arguments too long."""
    if not shutil.which(argv[0], path=env.get("PATH", os.defpath)):
        why = (
            "it is not executable"
            if os.path.isfile(argv[0]) and not os.access(argv[0], os.X_OK)
            else "there is no such program"
        )
        raise Unusable(f"cannot start {argv[0][:200]}: {why}")
    try:
        child = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).with_name("supervised.py")), *argv],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise Unusable(f"cannot start {argv[0][:200]}: {error.strerror}") from error
    try:
        yield child
    finally:
        child.stdin.close()
        if not ends(child, END_S):
            child.kill()
            # False if it is in the kernel for good (state D): nothing a process can do ends it
            ends(child, 1.0)


@contextlib.contextmanager
def _matcher(program: str, *arguments: str, **more: Any) -> Iterator[subprocess.Popen]:
    """A child that matches the expression, killed at the end. It has its own session, since the runner
    answers Ctrl-C."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **more,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def first_line(pattern: str, log: str) -> ContextManager[subprocess.Popen]:
    """A child that searches the growing file ``log`` for the regular expression and prints the first line
    that matches. It stops when its standard input closes. Exit codes: FOUND, NOT_FOUND, or another one if it
    could not search."""
    return _matcher(_FIRST_LINE, pattern, log, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def _found(output: IO[str]) -> Tuple[Dict[str, List[float]], List[str]]:
    """Name -> every number that was caught; and the last lines."""
    output.seek(0)
    rows = [json.loads(row) for row in output if row.endswith("\n")]
    numbers = (
        (name, float(text.replace(",", "")))
        for row in rows
        if isinstance(row, dict)
        for name, text in row.items()
        if text and _NUMBER.fullmatch(text)
    )
    figures = grouped((name, number) for name, number in numbers if math.isfinite(number))
    return figures, rows[-1] if rows and isinstance(rows[-1], list) else []


def ends(
    job: subprocess.Popen,
    seconds: float,
    stopped: Callable[[], str] = never,
    search: Optional[subprocess.Popen] = None,
) -> bool:
    """Whether the job (or the search of its log) ends within ``seconds`` and before ``stopped`` gives a
    reason to stop."""
    until = time.monotonic() + seconds
    while not stopped() and time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            (search or job).wait(min(STOP_S, seconds))
            return True
        if search and job.poll() is not None:
            search.stdin.close()  # the log is whole
    return False


def run(
    arm: str,
    argv: List[str],
    env: Mapping[str, str],
    figure: Pattern,
    deadline_s: float,
    stopped: Callable[[], str] = never,
) -> Sample:
    """One timed run of a command. ``env``: the whole environment; ``figure``: a pattern whose group or named
    groups catch numbers. Without groups the figure is the seconds of the whole run. ValueError if the
    command does not start."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, _matcher(_FIGURES, figure.pattern, stdout=output) as matcher:
        with supervised(argv, env, matcher.stdin) as child:
            matcher.stdin.close()  # the command alone holds it
            is_over = ends(child, deadline_s, stopped)
            ended = stopped() or f"not done after {deadline_s:.0f} s"
            wall_s = time.monotonic() - began
        if is_over:
            ended = "passed" if child.returncode == 0 else f"exit code {child.returncode}"
        if not ends(matcher, MATCH_S) and is_over:
            ended = f"--figure was still searching {MATCH_S:.0f} s after the command had ended"
        figures, last_lines = _found(output)
    figures = figures if figure.groups else {"seconds": [wall_s]}
    return Sample(
        arm,
        figures,
        ended if figures or ended != "passed" else NO_FIGURE,
        round(wall_s, 3),
        last_lines,
    )


def compiled(figure: str) -> Pattern:
    """The compiled expression; ValueError with the reason if it is invalid."""
    try:
        pattern = re.compile(figure)
    except re.error as error:
        raise Unusable(f"--figure {figure!r} is not a regular expression: {error}") from None
    if figure and not (pattern.groups == 1 or (pattern.groups and len(pattern.groupindex) == pattern.groups)):
        raise Unusable(
            f"--figure {figure!r} needs a group around the number, such as 'sync ([0-9.]+) s', or "
            "several named groups"
        )
    return pattern
