"""The ranks of one test in the warm process (warm.py): their pipes, output, deadline and end. Python >= 3.9.
Sent over standard input in front of warm.py, as one text (warm_link.py): imports nothing of ours."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import selectors
import shutil
import signal
import tempfile
import time
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:  # it stands below this file in the text that is sent
    from nccl_runbook.launch.warm import Warm

FORWARD_BYTES = 4 << 20  # of one rank's log; what comes after is counted and only its end is kept
TAIL_BYTES = 64 << 10
STACK_WAIT_S = 0.7  # faulthandler writes without the GIL, so a rank that can answer answers at once
TERM_GRACE_S = 1.0
GIVE_UP_AFTER = 5  # seconds of SIGKILL without effect
HELD_S = 600.0  # a net only: the engine lets a world go whose ranks do not get ready
AFTER_FAILURE_S = 2.0  # how long ranks may go on once one of them has failed: they can only wait for it
CUDA_ERROR_NOT_INITIALIZED = 3


def mapped(name: str) -> str:
    """Path of the first mapped file whose base name starts with ``name``; empty if there is none."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        paths = (line.split(None, 5)[-1].strip() for line in maps if "/" in line)
        return next((p for p in paths if os.path.basename(p).startswith(name)), "")
    return ""


def why_not_fork() -> str:
    """Why forking would be unsafe now; empty if it is safe."""
    with contextlib.suppress(OSError):  # no /proc
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            return "%d threads after importing torch" % threads
    driver, count = mapped("libcuda.so"), ctypes.byref(ctypes.c_int())
    is_initialised = driver and ctypes.CDLL(driver).cuDeviceGetCount(count) != CUDA_ERROR_NOT_INITIALIZED
    return "the CUDA driver is initialised" if is_initialised else ""


def process_state(pid: int) -> str:
    """State letter of /proc/PID/stat and its kernel function, "S futex_wait_queue"; empty if gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/wchan") as wchan:
        return ("%s %s" % (stat.read().rpartition(")")[2].split()[0], wchan.read().strip("0"))).strip()
    return ""


@dataclasses.dataclass(eq=False)
class Rank:
    """One child process: its pipes, output and end."""

    world: World
    rank: int
    pid: int = 0
    status: Optional[int] = None
    timed_out: bool = False
    state: str = ""
    stack: bytes = b""
    events: bytes = b""
    log_bytes: int = 0
    tail: bytes = b""

    def __post_init__(self) -> None:
        self.fds = [*os.pipe(), *os.pipe(), *os.pipe()]
        self.log_write, self.event_write, self.stack_write = self.write_ends = self.fds[1::2]
        self.read_ends = dict(zip(self.fds[::2], (self.on_log, self.on_events, self.on_stack)))
        for fd in self.read_ends:
            os.set_blocking(fd, False)

    @property
    def running(self) -> bool:
        """Whether the rank was started and its end has not been collected."""
        return self.pid > 0 and self.status is None

    def on_log(self, data: bytes) -> None:
        """Forward up to FORWARD_BYTES of the log; count the rest and keep its last TAIL_BYTES."""
        self.world.heard()
        room = max(0, FORWARD_BYTES - self.log_bytes)
        if room:
            self.world.report(rank=self.rank, log=data[:room].decode("utf-8", "replace"))
        self.log_bytes += len(data)
        self.tail = (self.tail + data[room:])[-TAIL_BYTES:]

    def on_events(self, data: bytes) -> None:
        """Forward every complete event line."""
        self.world.heard()
        *whole, self.events = (self.events + data).split(b"\n")
        for line in whole:
            self.world.report(rank=self.rank, said=line.decode("utf-8", "replace"))

    def on_stack(self, data: bytes) -> None:
        """Keep the stacks that faulthandler wrote, up to TAIL_BYTES."""
        self.stack = (self.stack + data)[:TAIL_BYTES]

    def drain(self) -> None:
        """Read what is left in the pipes, without waiting for a grandchild that holds one open."""
        for fd, take in self.read_ends.items():
            with contextlib.suppress(OSError):  # EAGAIN: nothing more now
                while data := os.read(fd, 1 << 16):
                    take(data)

    def kill(self, number: int) -> None:
        """Send a signal to the rank and its children, if it still runs."""
        if self.running:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)  # between fork and setpgid


@dataclasses.dataclass(eq=False)
class World:
    """Ranks started together, their deadline, and the signals sent when it passes."""

    warm: Warm
    request: dict
    started: float = dataclasses.field(default_factory=time.monotonic)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.held = self.request.get("held", False)
        self.gate = os.pipe() if self.held else ()
        self.deadline = self.limit = self.started + (HELD_S if self.held else self.request["deadline_s"])
        self.signals = self.escalate()
        self.folder = tempfile.mkdtemp(prefix="world-", dir=self.warm.folder)
        self.ranks = [Rank(self, rank) for rank in range(len(self.request["ranks"]))]

    def report(self, **fields) -> None:
        """Send one report about this world to the engine."""
        self.warm.send(world=self.request["world"], **fields)

    def start(self) -> None:
        """Write the sources into a folder of this world, then start one child a rank."""
        for name, text in self.request["sources"].items():
            pathlib.Path(self.folder, name).write_text(text, encoding="utf-8")
        unsafe = why_not_fork()
        self.report(how="exec" if unsafe else "fork", why=unsafe)
        for rank in self.ranks:
            rank.pid = os.fork()
            if rank.pid == 0:
                self.warm.become(rank, bool(unsafe) or self.request["ranks"][rank.rank]["fresh"])
            for fd in rank.write_ends:
                os.close(fd)
            for fd, take in rank.read_ends.items():
                self.warm.selector.register(fd, selectors.EVENT_READ, take)

    def go(self, deadline_s: float) -> None:
        """Open the gate at which the ranks of a held world wait; the deadline counts from now."""
        if self.held and not self.is_over:
            self.held, self.started = False, time.monotonic()
            self.deadline = self.limit = self.started + deadline_s
            os.write(self.gate[1], b"g" * len(self.ranks))

    def heard(self) -> None:
        """A rank gave a sign of life: the limit on silence (``stall_s`` seconds) starts anew."""
        stall_s = self.request.get("stall_s")
        if stall_s and not (self.is_over or self.held):
            self.deadline = min(self.limit, time.monotonic() + stall_s)

    def reap(self) -> None:
        """Collect ranks that ended; after a failure the others have AFTER_FAILURE_S seconds left."""
        for rank in self.left:
            pid, status = os.waitpid(rank.pid, os.WNOHANG)
            if pid:
                rank.status = status
                if status != 0 and not self.is_over:
                    self.limit = min(self.limit, time.monotonic() + AFTER_FAILURE_S)
                    self.deadline = min(self.deadline, self.limit)
                self.finish(rank)

    def finish(self, rank: Rank) -> None:
        """Report how a rank ended, with the end of its log; its pipes are closed."""
        rank.drain()
        for fd in rank.read_ends:
            if fd in self.warm.selector.get_map():
                self.warm.selector.unregister(fd)
            os.close(fd)
        dropped = max(0, rank.log_bytes - FORWARD_BYTES - len(rank.tail))
        if rank.tail:
            tail = rank.tail.decode("utf-8", "replace")
            self.report(rank=rank.rank, log=f"\n[runbook: {dropped} bytes left out here]\n{tail}")
        signalled = os.WIFSIGNALED(rank.status)
        self.report(
            rank=rank.rank,
            pid=rank.pid,
            ended="timed-out" if rank.timed_out else "signalled" if signalled else "exited",
            code=os.WTERMSIG(rank.status) if signalled else os.WEXITSTATUS(rank.status),
            state=rank.state,
            stack=rank.stack.decode("utf-8", "replace"),
            dropped=dropped,
        )

    def step(self) -> bool:
        """Do what is due by now; False once every rank has ended."""
        self.reap()
        if not self.left:
            shutil.rmtree(self.folder, ignore_errors=True)
            for fd in self.gate:
                os.close(fd)
            self.report(done=True, wall_s=round(time.monotonic() - self.started, 4))
            return False
        if time.monotonic() >= self.deadline:
            self.is_over = True
            self.deadline = time.monotonic() + next(self.signals)
        return True

    @property
    def left(self):
        """The ranks that still run."""
        return [r for r in self.ranks if r.running]

    def escalate(self):
        """At the deadline: stacks, SIGTERM, SIGKILL. Yields the seconds to wait after each."""
        for rank in self.left:
            rank.timed_out, rank.state = True, process_state(rank.pid)
            if not rank.state.startswith("T"):
                rank.kill(signal.SIGUSR2)
        yield STACK_WAIT_S
        for rank in self.left:
            rank.kill(signal.SIGKILL if rank.state.startswith("T") else signal.SIGTERM)
        yield TERM_GRACE_S
        for _ in range(GIVE_UP_AFTER):
            self.kill_all()
            yield 1.0
        for rank in self.left:  # in the kernel for good (state D): nothing a process can do ends it
            rank.state += " (cannot be killed)"
            rank.status = signal.SIGKILL
            self.finish(rank)
        yield 0.0

    def kill_all(self) -> None:
        """SIGKILL to every rank that still runs."""
        for rank in self.ranks:
            rank.kill(signal.SIGKILL)
