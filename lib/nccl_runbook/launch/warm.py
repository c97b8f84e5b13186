"""The warm process: imports torch once, never CUDA, and forks ranks on request. Python >= 3.9. Sent over the
standard input of the judged interpreter: imports nothing of ours. Requests then arrive on standard input,
reports leave on the former standard output, a JSON document a line. When standard input ends, it kills every
rank; if it is killed, its ranks die by PR_SET_PDEATHSIG. Forking is safe with one thread and no initialised
CUDA driver (importing torch 2.11 and 2.13 does neither: measured); else a rank is executed ("exec")."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import json
import os
import pathlib
import runpy
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback

PR_SET_PDEATHSIG = 1
FORWARD_BYTES = 4 << 20  # of one rank's log; what comes after is counted and only its end is kept
TAIL_BYTES = 64 << 10
POLL_S = 0.02  # pipes close before the rank can be reaped, or stay open if a grandchild holds them
STACK_WAIT_S = 0.7  # faulthandler writes without the GIL, so a rank that can answer answers at once
TERM_GRACE_S = 1.0
GIVE_UP_AFTER = 5  # seconds of SIGKILL without effect
HELD_S = 600.0  # a net only: the engine lets a world go whose ranks do not get ready
AFTER_FAILURE_S = 2.0  # how long ranks may go on once one of them has failed: they can only wait for it
CUDA_ERROR_NOT_INITIALIZED = 3
EXEC_BOOT = """
import faulthandler, os, runpy, signal, sys
faulthandler.register(signal.SIGUSR2, file=int(os.environ["NCCL_RUNBOOK_STACK_FD"]), all_threads=True)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def die_with_parent() -> None:
    """Linux kills this process when the thread that started it ends; elsewhere the closed pipe does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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
    if driver and ctypes.CDLL(driver).cuDeviceGetCount(count) != CUDA_ERROR_NOT_INITIALIZED:
        return "the CUDA driver is initialised"
    return ""


def process_state(pid: int) -> str:
    """State letter of /proc/PID/stat and its kernel function, "S futex_wait_queue"; empty if gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/wchan") as wchan:
        return ("%s %s" % (stat.read().rpartition(")")[2].split()[0], wchan.read().strip("0"))).strip()
    return ""


class Rank:
    """One child process: its pipes, output and end."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.fds = [*os.pipe(), *os.pipe(), *os.pipe()]
        self.log_write, self.event_write, self.stack_write = self.write_ends = self.fds[1::2]
        self.pid, self.status = 0, None
        self.timed_out, self.state, self.stack = False, "", b""
        self.events, self.log_bytes, self.tail = b"", 0, b""
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


class World:
    """Ranks started together, their deadline, and the signals sent when it passes."""

    def __init__(self, warm: Warm, request: dict) -> None:
        self.warm, self.request = warm, request
        self.started = time.monotonic()
        self.held, self.gate = request.get("held", False), os.pipe() if request.get("held") else ()
        self.deadline = self.limit = self.started + (HELD_S if self.held else request["deadline_s"])
        self.is_over, self.signals = False, self.escalate()
        self.folder = tempfile.mkdtemp(prefix="world-", dir=warm.folder)
        self.ranks = [Rank(self, rank) for rank in range(len(request["ranks"]))]

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


class Warm:
    """The process itself: reads requests, runs worlds, and sends reports."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.out = open(os.dup(1), "wb")
        os.dup2(2, 1)  # whatever a library prints goes to the log, not into the protocol
        self.selector = selectors.DefaultSelector()
        self.worlds, self.pending, self.folder = [], b"", ""  # folder: made once torch is imported

    def make_folder(self) -> str:
        """A private folder (0700), marked as in launch/stop.py; OSError if no place is writable."""
        for parent in (os.environ.get("NCCL_RUNBOOK_SCRATCH"), None, "/dev/shm"):
            with contextlib.suppress(OSError):
                folder = tempfile.mkdtemp(prefix="nccl-runbook-", dir=parent)
                with contextlib.suppress(OSError):  # a full disk, or a file system without locks
                    self.mark = open(os.path.join(folder, ".owner.new"), "w")
                    fcntl.flock(self.mark, fcntl.LOCK_EX)
                    os.rename(self.mark.name, os.path.join(folder, ".owner"))
                return folder
        raise OSError("no temporary folder is writable, not even /dev/shm. Name one with TMPDIR")

    def send(self, **document) -> None:
        """Send one report, as a JSON line."""
        self.out.write((json.dumps(document) + "\n").encode())
        self.out.flush()

    def become(self, rank: Rank, fresh: bool) -> None:
        """In the child: turn into the rank, by EXEC_BOOT (same hooks, same file) if ``fresh``. Never
        returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            die_with_parent()
            if os.getppid() != self.pid:
                os._exit(1)
            self.tidy_child(rank)
            changed = {**os.environ, **self.rank_environment(rank)}
            environ = {name: value for name, value in changed.items() if value is not None}
            os.environ.clear()
            os.environ.update(environ)
            argv = [os.path.join(rank.world.folder, rank.world.request["entry"])] + rank.world.request["args"]
            if fresh:
                os.execv(sys.executable, [sys.executable, "-c", EXEC_BOOT] + argv)
            faulthandler.register(signal.SIGUSR2, file=rank.stack_write, all_threads=True)
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
            if isinstance(leaving.code, str):
                print(leaving.code, file=sys.stderr)
        except BaseException:  # a rank's own failure, shown as the interpreter would show it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            with contextlib.suppress(OSError):  # an exit handler's work: CUDA IPC's counters (torch 2.11)
                os.unlink(mapped("torch_%d_" % os.getpid()))
            os._exit(code)  # no exit handlers: Gloo's can abort a healthy rank (torch 2.13, 4 of 48)

    def tidy_child(self, rank: Rank) -> None:
        """In the child: log to the rank's pipe and close what is not its own (numbers may be reused)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(rank.log_write, 1)
        os.dup2(rank.log_write, 2)
        own = {rank.event_write, rank.stack_write, *rank.world.gate[:1]}
        others = [fd for w in self.worlds for fds in [w.gate, *(r.fds for r in w.ranks)] for fd in fds]
        for fd in {*others, self.out.fileno(), nothing, rank.log_write} - {0, 1, 2, *own}:
            with contextlib.suppress(OSError):  # closed already by the parent before the fork
                os.close(fd)
        self.selector.close()
        for fd in own:
            os.set_inheritable(fd, True)

    def rank_environment(self, rank: Rank) -> dict:
        """Variables to change for this rank; None removes a variable."""
        size, gate = str(len(rank.world.ranks)), rank.world.gate
        return {
            "RANK": str(rank.rank),
            "LOCAL_RANK": str(rank.rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "NCCL_RUNBOOK_STORE_FILE": os.path.join(rank.world.folder, "store"),
            "NCCL_RUNBOOK_EVENT_FD": str(rank.event_write),
            "NCCL_RUNBOOK_STACK_FD": str(rank.stack_write),
            **({"NCCL_RUNBOOK_GATE_FD": str(gate[0])} if gate else {}),
            **rank.world.request["env"],
            **rank.world.request["ranks"][rank.rank]["env"],
        }

    def on_request(self, data: bytes) -> None:
        """Start a world, open its gate, or kill all ranks, as each request says."""
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "world":
                self.worlds.append(World(self, request))
                self.worlds[-1].start()
            else:
                for world in self.worlds:
                    if request["do"] == "cancel":
                        world.kill_all()
                    elif world.request["world"] == request["world"]:
                        world.go(request["deadline_s"])

    def serve(self) -> None:
        """Serve requests until standard input ends."""
        self.selector.register(0, selectors.EVENT_READ, self.on_request)
        while True:
            deadlines = [w.deadline for w in self.worlds]
            timeout = min(POLL_S, max(0.0, min(deadlines) - time.monotonic())) if deadlines else None
            for key, _ in self.selector.select(timeout):
                if key.fd not in self.selector.get_map():
                    continue  # its rank was finished by an earlier one of this round
                data = os.read(key.fd, 1 << 16)
                if key.fd == 0 and not data:
                    return
                if not data:
                    self.selector.unregister(key.fd)
                else:
                    key.data(data)
            self.worlds = [w for w in self.worlds if w.step()]


def main() -> None:
    """Report ``ready`` (true once torch is imported, else with the error), then serve. Exits with 0."""
    die_with_parent()
    warm = Warm()
    try:
        import torch
        import torch.distributed  # noqa: F401

        warm.folder = warm.make_folder()
        warm.send(ready=True, torch=torch.__version__, libnccl=mapped("libnccl"), host=os.uname().nodename)
        warm.serve()
    except BaseException as error:  # of importing torch, too (OSError: a CUDA library is missing)
        warm.send(ready=False, error=" ".join(("%s: %s" % (type(error).__name__, error)).split()))
    finally:
        for world in warm.worlds:
            world.kill_all()
        shutil.rmtree(warm.folder, ignore_errors=True)
        os._exit(0)


main()
