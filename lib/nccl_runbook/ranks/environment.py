"""What one process has around it, read raw: allowed variables, named files, the libnccl and plugins it has mapped.

Runs under the judged interpreter by file path, as a rank or by itself; imports nothing of ours. argv[1] is a request in JSON:
``names``, ``secret``: patterns of variables to keep, and of those whose values are taken out of the kept ones; ``pid``: "self" or a
process id; ``files``: glob -> pattern of the lines to keep ("" for all; ``{pid}`` and ``~`` are filled in); ``mapped``: pattern of
mapped paths; ``copies``: globs of other copies; ``import_torch``, ``resolve``: whether to. Reports one event, ``environment``; what
cannot be read is {"reason", "detail"}. Parsing is not done here.
"""
import base64
import ctypes
import glob
import hashlib
import json
import os
import re
import socket
import sys
import zlib

BLOCK = 1 << 22
MOST_BYTES = 1 << 22
SAYS = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda(\d+\.\d+)")


def emit(event):
    line = (json.dumps(event) + "\n").encode()
    fd = int(os.environ.get("NCCL_RUNBOOK_EVENT_FD", "1"))
    while line:
        line = line[os.write(fd, line):]


def gap(error):
    reason = {FileNotFoundError: "absent", ProcessLookupError: "absent", PermissionError: "no-permission"}.get(type(error), "failed")
    return {"reason": reason, "detail": str(error)}


def raw(path):
    """The bytes of a file, or of a link its target; never waits (/dev/kmsg ends with EAGAIN)."""
    if os.path.islink(path):
        return os.readlink(path).encode()
    if os.path.isdir(path):
        return b""
    parts, fd = [], os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while sum(map(len, parts)) < MOST_BYTES:
            parts.append(os.read(fd, 1 << 16))
            if not parts[-1]:
                break
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
    return b"".join(parts)


def content(path, keep):
    try:
        data = raw(path)
    except OSError as error:
        return gap(error)
    if b"\0" in data and not keep:
        return {"binary": base64.b64encode(zlib.compress(data)).decode()}
    lines = data.decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines if not keep or re.search(keep, line))


def identity(path, root):
    """Size, hash, what the file says of itself, and what the wheels beside it say of the file at this path."""
    digest, size, said, tail = hashlib.sha256(), 0, None, b""
    try:
        with open(root + path, "rb") as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                digest.update(block)
                size, said, tail = size + len(block), said or SAYS.search(tail + block), block[-64:]
    except OSError as error:
        return gap(error)
    beside = os.path.normpath(os.path.join(root + path, "..", "..", "..", ".."))
    recorded = {os.path.basename(d): content(os.path.join(d, "RECORD"), re.escape(os.path.basename(path)) + ",")
                for d in sorted(glob.glob(os.path.join(beside, "*nccl*.dist-info")))}
    return {"bytes": size, "sha256": digest.hexdigest(), "says": [s.decode() for s in said.groups()] if said else [], "wheels": recorded,
            "same_as": os.path.realpath(root + path)}


def reported(paths):
    """The version that the mapped library answers; only within its own process."""
    version = ctypes.c_int()
    try:
        return version.value if paths and ctypes.CDLL(paths[0]).ncclGetVersion(ctypes.byref(version)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def environ_of(pid):
    if pid == "self":
        return dict(os.environ)
    pairs = raw("/proc/%s/environ" % pid).decode("utf-8", "replace").split("\0")
    return dict(p.split("=", 1) for p in pairs if "=" in p)


def kept(env, names, secret):
    hidden = [v for n, v in env.items() if re.search(secret, n) and len(v) >= 6]
    allowed = {n: v for n, v in env.items() if re.fullmatch(names, n)}
    for value in sorted(hidden, key=len, reverse=True):
        allowed = {n: v.replace(value, "[redacted]") for n, v in allowed.items()}
    return allowed


def addresses(name):
    try:
        return sorted({a[4][0] for a in socket.getaddrinfo(name, None)})
    except OSError as error:
        return gap(error)


def look(request):
    pid = request["pid"]
    root = "" if pid == "self" else "/proc/%s/root" % pid
    env = environ_of(pid)
    seen = {}
    for pattern, keep in request["files"].items():
        start = "" if pattern.startswith("/proc/") else root
        whole = start + os.path.expanduser(pattern.replace("{pid}", pid))
        seen.update({path[len(start):]: content(path, keep) for path in sorted(glob.glob(whole)) or [whole]})
    maps = content("/proc/%s/maps" % pid, request["mapped"])
    paths = sorted({line.split(None, 5)[-1] for line in maps.splitlines()}) if isinstance(maps, str) else maps
    nccl = [p for p in paths if "libnccl.so" in p]
    torch = {os.path.dirname(os.path.dirname(p)) for p in paths if "/torch/lib/" in p}
    found = {p[len(root):] for g in request["copies"] for p in glob.glob(root + os.path.expanduser(g))}
    shm = os.statvfs(root + "/dev/shm") if os.path.isdir(root + "/dev/shm") else None
    return {"event": "environment", "variables": kept(env, request["names"], request["secret"]), "names": len(env), "files": seen,
            "mapped": paths, "libraries": {p: identity(p, root) for p in sorted(found | {p for p in paths if "nccl" in p})},
            "reports": reported(nccl) if pid == "self" else 0, "torch": {d: content(root + d + "/version.py", "") for d in torch},
            "host": socket.gethostname(), "interfaces": [name for _, name in socket.if_nameindex()], "pid": os.getpid(),
            "addresses": addresses(socket.gethostname()) if request["resolve"] else {"reason": "not-run", "detail": "not asked here"},
            "shm": [shm.f_frsize * shm.f_blocks, shm.f_frsize * shm.f_bavail] if shm else None}


def main():
    request = json.loads(sys.argv[1])
    try:
        if request["import_torch"]:
            import torch  # noqa: F401  (maps its libraries)
    except ImportError:
        pass
    try:
        emit(look(request))
    except OSError as error:
        emit({"event": "unreadable", **gap(error)})


if __name__ == "__main__":
    main()
