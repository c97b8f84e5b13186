"""Which processes hold a GPU, and who owns them."""

import contextlib
import os
from pathlib import Path

OUR_ROOT = os.getppid()


def status_of(pid):
    """{"PPid": ..., "Uid": ...} of a process in this pid namespace; empty if there is none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", errors="replace") as lines:
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {}


def holds_gpu(pid):
    """Whether a process maps the driver's library or has a GPU's device file open; None without permission
    to see."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        if "libcuda.so" in maps or "/dev/nvidia" in maps:
            return True
        links = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    return any(
        os.path.realpath(f"/proc/{pid}/fd/{link}").startswith(("/dev/nvidia", "/dev/dxg")) for link in links
    )


def is_descendant(pid):
    """Whether the process is the runbook itself, or one of its descendants."""
    while pid not in (0, 1, OUR_ROOT):
        pid = int(status_of(pid).get("PPid", "0"))
    return pid == OUR_ROOT


def user_name(uid):
    """Login name of a user id, or "uid 1000" if the system has none."""
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


def owner(process, kind):
    """One listed process. NVML may list a pid of the host's namespace; the process of that number here then
    holds no GPU."""
    pid, used = process.pid, process.usedGpuMemory
    status = {} if holds_gpu(pid) is False else status_of(pid)
    unknown = {"reason": "absent", "detail": f"pid {pid} is not a GPU process of this pid namespace"}
    uid = int(status["Uid"].split()[0]) if status else -1
    return {
        "pid": pid,
        "kind": kind,
        "name": status["Name"].strip() if status else unknown,
        "user": user_name(uid) if status else unknown,
        "used_mib": {"reason": "unsupported", "detail": "NVML reports no memory per process here"}
        if used is None
        else used >> 20,
        "is_ours": bool(status) and is_descendant(pid),
        "is_same_user": uid == os.getuid(),
    }
