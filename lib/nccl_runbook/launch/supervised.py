"""Runs argv[1:] and leaves nothing of it behind: when the command has ended, or standard input ends (whoever started this is gone), every
process that came of it gets SIGTERM, and SIGKILL after GRACE_S. torchrun's workers lead sessions of their own, so that a signal to one
process group would miss them: this process is the subreaper (Linux) to which they fall. Standard library only, Python >= 3.9."""
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0


def descendants():
    """Process ids below this process, children first; none where /proc does not tell."""
    found, new = [], [os.getpid()]
    while new:
        files = ["/proc/%d/task/%d/children" % (pid, pid) for pid in new]
        new = [int(pid) for path in files if os.path.exists(path) for pid in read(path).split()]
        found += new
    return found


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # ended meanwhile
        return ""


def end(child):
    """Until nothing is left, or SIGKILL has been tried for a second."""
    until = time.monotonic() + GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in descendants():
            send(pid, number)
        while time.monotonic() < until and descendants():
            reap()
            time.sleep(0.02)
        until = time.monotonic() + 1.0
    child.poll()


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def reap():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass


def main():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def watch():
        sys.stdin.buffer.read()
        end(child)
        os._exit(137)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    end(child)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
