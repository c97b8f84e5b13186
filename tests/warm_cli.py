"""`read_cli`: the command line as `book_samples.run_cli` calls it, without its start of half a second.

As a program, this file has imported the commands, has answered once, and forks for each call. Before the first `run` it also imports what
runs notebooks and shows them, which takes each new interpreter 3 s. Whatever a command changes in its process ends with that fork.
What a new interpreter does at its start is for `run_cli`: PYTHON* variables, the encoding, the import itself.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

from processes import slowness

if __name__ == "__main__":
    from nccl_runbook.__main__ import COMMANDS, main


class Ended(subprocess.CompletedProcess):
    """With the seconds that it computed, and the most memory that it took."""

    cpu_s: float
    peak_bytes: int

    def usual_s(self) -> float:
        """Seconds that it would compute on the machine for which limits were set."""
        return self.cpu_s / slowness()


_servers: dict[bool, list[subprocess.Popen[str]]] = {False: [], True: []}  # True: those that run notebooks, which take more memory
_ENVIRONMENT = dict(os.environ)  # of a server: no test has changed it yet


def read_cli(*words: str | Path, timeout: float = 120, cwd: str | Path | None = None, env: dict[str, str] | None = None) -> Ended:
    pipe = subprocess.PIPE
    idle = _servers[words[:1] == ("run",)]
    server = (
        idle.pop()
        if idle
        else subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parent, env=_ENVIRONMENT)
    )
    with _text_file() as out, _text_file() as errors:
        files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, errors)]
        call = {
            "words": list(map(str, words)),
            "files": files,
            "timeout": timeout,
            "cwd": str(cwd or os.getcwd()),
            "env": env or dict(os.environ),
        }
        print(json.dumps(call), file=server.stdin, flush=True)
        code, cpu_s, peak_bytes = json.loads(server.stdout.readline())
        idle.append(server)  # one that a test was torn from still owes an answer: it is not asked again
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(call["words"], timeout)
        ended = Ended(call["words"], code, *(_text(file) for file in (out, errors)))
    ended.cpu_s, ended.peak_bytes = cpu_s, peak_bytes
    return ended


def _text_file() -> Any:
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")


def _text(file: Any) -> str:
    file.seek(0)
    return file.read()


def end() -> None:
    """Nothing is left of it."""
    for idle in _servers.values():
        while idle:
            idle.pop().communicate()


def serve() -> None:
    for name in COMMANDS:
        importlib.import_module(f"nccl_runbook.cli.{name}")
    calls, answers = sys.stdin, sys.stdout
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit):
        sys.argv = ["nccl-runbook", "triage", __file__, "--html", os.devnull]
        main()
    for call in map(json.loads, calls):
        if call["words"][:1] == ["run"]:
            _load_notebooks()
        pid = os.fork() or _answer(**call)
        _, status, used = os.wait4(pid, 0)
        print(
            json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]), file=answers, flush=True
        )


@functools.cache
def _load_notebooks() -> None:
    from nccl_runbook.book.visit import load
    from nccl_runbook.report.notebook_html import NotebookPages

    load()
    NotebookPages()
    assert threading.active_count() == 1, "a fork would lose the other threads"


def _answer(words: list[str], files: list[str], timeout: float, cwd: str, env: dict[str, str]) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, timeout)  # whose signal ends it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    for number, name in ((0, os.devnull), *enumerate(files, 1)):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.argv = ["nccl-runbook", *words]
    sys.stdin = open(0, encoding="utf-8")
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8")
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    try:
        main()
    except SystemExit as end:  # as an interpreter ends, but for the 0.15 s in which it forgets everything
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(end.code or 0)
    sys.exit()


if __name__ == "__main__":
    serve()
