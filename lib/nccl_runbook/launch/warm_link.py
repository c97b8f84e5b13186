"""This side of the warm process: start it, talk to it, notice its end."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

_LOADER = 'import sys; n = int(sys.stdin.buffer.readline()); exec(compile(sys.stdin.buffer.read(n), "warm.py", "exec"))'


class EngineError(RuntimeError):
    """The warm process did not come up; the message says why in one sentence."""


def source_of(path: str) -> bytes:
    """A source file of ours by its path below lib/, also from inside a zip; OSError if there is none."""
    return __loader__.get_data(str(Path(__file__).parents[2] / path))


class WarmLink:
    """One warm process under one interpreter and environment.

    A thread of its own starts it and reads what it says until it ends: PR_SET_PDEATHSIG fires at the end of the *thread* that started
    a process, so that thread has to live exactly as long.
    """

    def __init__(self, prefix: List[str], env: Mapping[str, str], on_report: Callable[[Dict[str, Any]], None],
                 start_s: float = 120.0) -> None:
        self.prefix, self.env, self._on_report = prefix, dict(env), on_report
        self._ready = threading.Event()
        self._sent: set = set()
        self._lock = threading.Lock()
        self.process: Optional[subprocess.Popen] = None
        self.hello: Dict[str, Any] = {}
        self.errors: List[str] = []
        self.ended = threading.Event()
        self._reader = threading.Thread(target=self._live, name="warm process", daemon=True)
        self._reader.start()
        atexit.register(self.close)  # so that it takes its folder with it: PR_SET_PDEATHSIG would leave it no time
        if not self._ready.wait(start_s) or not self.hello.get("ready"):
            self.close()
            raise EngineError(self._why())

    def _why(self) -> str:
        said = self.hello.get("error") or (self.errors[-1] if self.errors else "it did not answer")
        return f"{' '.join(self.prefix)} cannot run ranks: {said}"

    def _live(self) -> None:
        try:
            self.process = subprocess.Popen([*self.prefix, "-u", "-c", _LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, env=self.env, start_new_session=True)
        except (OSError, ValueError) as error:  # ValueError: a name or value that no environment can hold
            self.errors.append(getattr(error, "strerror", None) or str(error))
            self._leave()
            return
        threading.Thread(target=self._read_errors, name="warm process stderr", daemon=True).start()
        source = source_of("nccl_runbook/launch/warm.py")
        self._write(b"%d\n" % len(source) + source)
        for line in self.process.stdout:
            self._take(line)
        self.process.wait()
        self._leave()

    def _leave(self) -> None:
        self.ended.set()
        self._ready.set()
        self._on_report({"gone": True})

    def _read_errors(self) -> None:
        for line in self.process.stderr:
            self.errors = (self.errors + [line.decode("utf-8", "replace").rstrip()])[-50:]

    def _take(self, line: bytes) -> None:
        try:
            report = json.loads(line)
        except ValueError:  # a launcher in the prefix that prints to standard output
            self.errors.append(line.decode("utf-8", "replace").rstrip())
            return
        if "ready" in report:
            self.hello = report
            self._ready.set()
        else:
            self._on_report(report)

    def _write(self, data: bytes) -> None:
        # where it has ended the reader thread reports that
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def send(self, **request: Any) -> None:
        self._write((json.dumps(request) + "\n").encode())

    def send_source(self, path: str) -> None:
        """What a rank runs or imports, once: where the interpreter runs it may not exist on disk."""
        if path not in self._sent:
            self._sent.add(path)
            self.send(do="source", entry=Path(path).name, text=source_of(path).decode())

    @property
    def alive(self) -> bool:
        return not self.ended.is_set()

    def close(self) -> None:
        """End it and its ranks: the closed pipe first, SIGKILL for one that does not leave."""
        atexit.unregister(self.close)
        if self.process is None:
            return
        with contextlib.suppress(OSError):  # what was still buffered cannot be delivered any more
            self.process.stdin.close()
        if not self.ended.wait(2.0):
            self.process.kill()
            self.ended.wait(2.0)


def environment(delta: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """The surroundings plus a delta (None removes), and what every warm process gets.

    One OpenMP thread unless set, as torchrun does; OpenBLAS the same, because the threads that it starts at import (NumPy does that)
    would make forking unsafe.
    """
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, **delta}
    return {name: value for name, value in env.items() if value is not None}
