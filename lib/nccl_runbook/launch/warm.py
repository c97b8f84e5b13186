"""The warm process: imports torch once, never CUDA, and forks ranks on request. Python >= 3.9. Sent over the
standard input of the judged interpreter, below warm_world.py in one text: imports nothing of ours. Requests
then arrive on standard input, reports leave on the former standard output, a JSON document a line. When
standard input ends, it kills every rank; if it is killed, its ranks die by PR_SET_PDEATHSIG. Forking is safe
with one thread and no initialised CUDA driver (importing torch 2.11 and 2.13 does neither: measured); else a
rank is executed ("exec")."""

import contextlib
import ctypes
import dataclasses
import faulthandler
import fcntl
import json
import os
import runpy
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, BinaryIO, List

if TYPE_CHECKING:  # they stand above this file in the text that is sent
    from nccl_runbook.launch.warm_world import Rank, World, mapped

PR_SET_PDEATHSIG = 1
POLL_S = 0.02  # pipes close before the rank can be reaped, or stay open if a grandchild holds them
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


@dataclasses.dataclass(eq=False)
class Warm:
    """The process itself: reads requests, runs worlds, and sends reports. ``folder``: made once torch is
    imported."""

    pid: int = dataclasses.field(default_factory=os.getpid)
    out: BinaryIO = dataclasses.field(default_factory=lambda: open(os.dup(1), "wb"))
    selector: selectors.BaseSelector = dataclasses.field(default_factory=selectors.DefaultSelector)
    worlds: List[World] = dataclasses.field(default_factory=list)
    pending: bytes = b""
    folder: str = ""

    def __post_init__(self) -> None:
        os.dup2(2, 1)  # whatever a library prints goes to the log, not into the protocol

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
            environ = {
                name: value
                for name, value in {**os.environ, **self.rank_environment(rank)}.items()
                if value is not None
            }
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
                if key.fd in self.selector.get_map():  # else an earlier one of this round finished its rank
                    data = os.read(key.fd, 1 << 16)
                    if data:
                        key.data(data)
                    elif key.fd == 0:
                        return
                    else:
                        self.selector.unregister(key.fd)
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
