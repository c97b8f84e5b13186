"""Runs argv[1:] and leaves nothing of it behind: when the command has ended, or standard input ends (whoever
started this is gone), every process that came of it gets SIGTERM, and SIGKILL after GRACE_S. torchrun's
workers lead sessions of their own, so that a signal to one process group would miss them: this process is the
subreaper (Linux) to which they fall. Standard library only, Python >= 3.9."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GRACE_S, KILL_S = 5.0, 1.0


def below(pid):
    """Ids of all descendants of this process; empty if /proc does not show them, or the process has ended."""
    children = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/%d/task" % pid):  # a thread has children of its own
            children += map(int, Path("/proc/%d/task/%s/children" % (pid, task)).read_text().split())
    return [p for child in children for p in (child, *below(child))]


def end():
    """Send SIGTERM, then SIGKILL, to all descendants until none is left or KILL_S seconds of SIGKILL have
    passed."""
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, KILL_S)):
        until, left = time.monotonic() + seconds, below(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while left and time.monotonic() < until:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.02)
            left = below(os.getpid())


def end_with_stdin():
    """End the child when standard input closes, then exit with 137."""
    sys.stdin.buffer.read()
    end()
    os._exit(137)


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=end_with_stdin, daemon=True).start()
    code = command.wait()
    end()
    os._exit(code if code >= 0 else 128 - code)
