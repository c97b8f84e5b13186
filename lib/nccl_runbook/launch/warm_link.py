"""This side of the warm process: start it, talk to it, notice its end."""

import atexit
import collections
import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import threading
from pathlib import Path
from typing import IO, Any, Callable, Deque, Dict, List, Mapping, Optional, Tuple

from nccl_runbook.core.facts import PlainError
from nccl_runbook.core.redact import clipped
from nccl_runbook.launch.interpreters import STOPPED, is_stopped, killed_by

LOADER = (
    "import sys; n = int(sys.stdin.buffer.readline()); exec(compile(sys.stdin.buffer.read(n), "
    '"warm.py", "exec"))'
)
START_S = 120.0
LINE_BYTES = 16 << 20  # of a report; a launcher in the prefix may print without end
LINE_CHARACTERS = 4000
AFTER_END_S = 1.0  # a process that the prefix left behind may hold its output open


class EngineError(PlainError, RuntimeError):
    """The warm process did not start; the message says why."""


class NoTorch(EngineError):
    """The interpreter started, and reported that it cannot import torch or run ranks."""


def source_of(*paths: str) -> bytes:
    """Bytes of source files of ours by their paths below lib/, one file below the other, also from inside a
    zip; OSError if one does not exist."""
    return b"\n\n".join(__loader__.get_data(str(Path(__file__).parents[2] / path)) for path in paths)


@dataclasses.dataclass(eq=False)
class WarmLink:
    """One warm process under one interpreter and environment.

    A thread starts the process and lives as long as it does, because PR_SET_PDEATHSIG fires when the
    *thread* that started a process ends. EngineError if the process is not ready within ``start_s``
    seconds. ``source``: the files that it runs, sent as one text.
    """

    prefix: List[str]
    env: Mapping[str, str]
    on_report: Callable[[Dict[str, Any]], None]
    start_s: float = START_S
    source: Tuple[str, ...] = ("nccl_runbook/launch/warm_world.py", "nccl_runbook/launch/warm.py")
    process: Optional[subprocess.Popen] = None
    hello: Dict[str, Any] = dataclasses.field(default_factory=dict)
    errors: Deque[str] = dataclasses.field(default_factory=lambda: collections.deque(maxlen=50))
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    _ready: threading.Event = dataclasses.field(default_factory=threading.Event)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        threading.Thread(target=self._live, name="warm process", daemon=True).start()
        atexit.register(
            self.close
        )  # so that it takes its folder with it: PR_SET_PDEATHSIG would leave it no time
        if not self._ready.wait(self.start_s) or not self.hello.get("ready"):
            why = self._why_not()
            self.close()
            error = NoTorch if self.hello.get("error") else EngineError
            raise error(f"{' '.join(self.prefix)} cannot run ranks: {why}")

    def _why_not(self) -> str:
        """Why it did not come up: how it was ended from outside, else the last that it said."""
        if self.stopped:
            return STOPPED
        killed = killed_by(self.process.returncode) if self.process else ""
        last = self.hello.get("error") or "".join([*self.errors][-1:])
        return ": ".join(filter(None, (killed, last))) or "it did not answer"

    def _live(self) -> None:
        """Start the process, send it its source, and wait for its end (runs in a thread)."""
        try:
            self.process = subprocess.Popen(
                # ssh gives its words to a shell of the other host, joined by blanks
                [
                    *self.prefix,
                    "-u",
                    "-c",
                    shlex.quote(LOADER) if os.path.basename(self.prefix[0]) == "ssh" else LOADER,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self.env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a name or value that no environment can hold
            self.errors.append(getattr(error, "strerror", None) or str(error))
        else:
            readers = [
                threading.Thread(target=self._read, args=pipe, name="warm process output", daemon=True)
                for pipe in ((self.process.stdout, self._take), (self.process.stderr, self._note))
            ]
            for reader in readers:
                reader.start()
            source = source_of(*self.source)
            self._write(b"%d\n" % len(source) + source)
            self.process.wait()
            for reader in readers:
                reader.join(AFTER_END_S)
        self.ended.set()
        self._ready.set()
        self.on_report({"gone": True})

    @staticmethod
    def _read(stream: IO[bytes], take: Callable[[bytes], None]) -> None:
        """Give each line of the stream to ``take`` until the stream ends (runs in a thread)."""
        for line in iter(lambda: stream.readline(LINE_BYTES), b""):
            take(line)

    def _note(self, line: bytes) -> None:
        """Keep a line that is no report, for the message of an error."""
        self.errors.append(clipped(line.decode("utf-8", "replace").rstrip(), LINE_CHARACTERS))

    def _take(self, line: bytes) -> None:
        """A line of standard output: a report, or what a launcher in the prefix prints."""
        report = None
        with contextlib.suppress(ValueError):
            report = json.loads(line)
        if not isinstance(report, dict):  # a launcher in the prefix that prints to standard output
            self._note(line)
        elif "ready" in report:
            self.hello = report
            self._ready.set()
        else:
            self.on_report(report)

    def _write(self, data: bytes) -> None:
        """Send these bytes; nothing happens if the process has ended."""
        # if the process has ended, the reader thread reports that
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def send(self, **request: Any) -> None:
        """Write one request as a JSON line to the warm process."""
        self._write((json.dumps(request) + "\n").encode())

    @property
    def stopped(self) -> bool:
        """Whether the warm process was stopped by a signal (SIGSTOP, Ctrl-Z)."""
        return self.process is not None and is_stopped(self.process.pid)

    def close(self) -> None:
        """End the process and its ranks: close the pipe, then SIGKILL after two seconds."""
        atexit.unregister(self.close)
        if self.process is None:
            return
        with contextlib.suppress(OSError):  # what was still buffered cannot be delivered any more
            self.process.stdin.close()
        if self.stopped or not self.ended.wait(2.0):  # a stopped one does not leave by itself
            self.process.kill()
            self.ended.wait(2.0)


def environment(delta: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """The environment of a warm process: this one's, changed by ``delta`` (None removes a variable).

    OpenMP gets one thread unless set, as under torchrun. OpenBLAS too: the threads that it starts at import
    (NumPy) would make forking unsafe.
    """
    return {
        name: value
        for name, value in {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **os.environ,
            **delta,
        }.items()
        if value is not None
    }
