"""What one process has around it, read raw: allowed variables, named files, the libnccl
and plugins it has mapped.

Runs under the judged interpreter by file path, as a rank or by itself; imports nothing of ours. argv[1]
is a request in JSON: ``names``, ``hidden``: patterns of variables to keep, and of those whose values are
taken out of the kept ones; ``pid``: "self" or a process id; ``files``: glob -> pattern of the lines to keep
("" for all; ``{pid}``, ``{conf}``, the user's nccl.conf, and ``~``, the home of that process, are filled
in); ``mapped``: pattern of mapped paths; ``copies``: globs of other copies; ``packages``: distributions
beside torch whose metadata count, ``sites``: globs of folders to look for torch in where none is mapped;
``import_torch``, ``resolve``: whether to. Reports one event, ``environment``; what cannot be read
is {"reason", "detail"}. Parsing is not done here.
"""

import contextlib
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
MOST_BYTES = (1 << 22) - 1  # a file in /proc/sys answers a read of 4 MiB with ENOMEM
SAYS = re.compile(rb"NCCL version (\d+\.\d+\.\d+)\+cuda(\d+\.\d+)")


def tried(function, *arguments):
    """What the function returns, or a Gap as {"reason", "detail"}."""
    try:
        return function(*arguments)
    except (OSError, AttributeError) as error:
        reasons = {
            FileNotFoundError: "absent",
            ProcessLookupError: "absent",
            PermissionError: "no-permission",
        }
        return {"reason": reasons.get(type(error), "failed"), "detail": str(error)}


def raw(path):
    """Bytes of a file, or the target of a link; never blocks (/dev/kmsg ends with EAGAIN). OSError if
    unreadable."""
    if os.path.islink(path) or os.path.isdir(path):
        return os.readlink(path).encode() if os.path.islink(path) else b""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        return file.read(MOST_BYTES) or b""  # None if there is nothing yet


def content(path, keep):
    """Text of a file, only the lines that match ``keep`` (all if empty). A binary file comes as compressed
    hex."""
    data = raw(path)
    if b"\0" in data and not keep:
        return {"binary": zlib.compress(data).hex()}
    return "\n".join(
        line for line in data.decode("utf-8", "replace").splitlines() if not keep or re.search(keep, line)
    )


def identity(path, root):
    """Hash of the file at this path, the version in its text, and what the wheels beside it record of it."""
    digest, version, tail = hashlib.sha256(), None, b""
    with open(root + path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
            version, tail = version or SAYS.search(tail + block), block[-64:]
    recorded = {
        os.path.basename(w): tried(content, w + "/RECORD", re.escape(os.path.basename(path)) + ",")
        for w in sorted(glob.glob(os.path.normpath(root + path + "/../../../..") + "/*nccl*.dist-info"))
    }
    return {
        "sha256": digest.hexdigest(),
        "says": [s.decode() for s in version.groups()] if version else [],
        "wheels": recorded,
    }


def reported(path):
    """The version that the mapped library returns; works only in its own process."""
    version = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
    major, rest = divmod(version.value, 10000 if version.value >= 10000 else 1000)
    return "%d.%d.%d" % (major, rest // 100, rest % 100)


def environ_of(pid):
    """Variables of a process, name -> value, as the process started with them; "self": those of this one
    now."""
    if pid == "self":
        return dict(os.environ)
    pairs = raw("/proc/%s/environ" % pid).decode("utf-8", "replace").split("\0")
    return dict(p.split("=", 1) for p in pairs if "=" in p)


def kept(env, names, secret):
    """The variables whose names match ``names``; values of secret variables inside them are masked."""
    hidden = [v for n, v in env.items() if re.search(secret, n) and len(v) >= 6]
    allowed = {n: v for n, v in env.items() if re.fullmatch(names, n)}
    for value in sorted(hidden, key=len, reverse=True):
        allowed = {n: v.replace(value, "[redacted:variable]") for n, v in allowed.items()}
    return allowed


def shared_memory(path):
    """Block size in bytes, blocks, free blocks, and the mount's device number."""
    mount = os.statvfs(path)
    return [mount.f_frsize, mount.f_blocks, mount.f_bavail, os.stat(path).st_dev]


def preloads(path, root, words):
    """Whether a word of LD_PRELOAD names this mapped file."""
    return any(
        tried(os.path.samefile, root + path, root + word) is True
        if "/" in word
        else os.path.basename(path) == word
        for word in words
    )


def look(request):
    """What one process sees: its variables, files, mapped libraries, and copies of NCCL. Gaps for what
    fails."""
    pid = request["pid"]
    root = "" if pid == "self" else "/proc/%s/root" % pid
    env = environ_of(pid)
    home = glob.escape(env.get("HOME") or os.path.expanduser("~"))

    def placed(pattern):
        """A glob of the request as it leads there from here."""
        start = "" if pattern.startswith("/proc/") else root
        conf = env.get("NCCL_CONF_FILE") or "~/.nccl.conf"
        return start + re.sub("^~", lambda _: home, pattern.replace("{pid}", pid).replace("{conf}", conf))

    files = {
        path.removeprefix(root): tried(content, path, keep)
        for pattern, keep in request["files"].items()
        for path in sorted(glob.glob(placed(pattern))) or [placed(pattern)]
    }
    maps = tried(content, "/proc/%s/maps" % pid, request["mapped"])
    paths = sorted({line.split(None, 5)[-1] for line in maps.splitlines()}) if isinstance(maps, str) else maps
    words = env.get("LD_PRELOAD", "").replace(":", " ").split()
    preloaded = [p for p in paths if preloads(p, root, words)]
    nccl = [p for p in [*preloaded, *paths] if "libnccl.so" in p]
    sites = sorted(
        {p.rpartition("/torch/lib/")[0] for p in paths if "/torch/lib/" in p}
        or {site for pattern in request["sites"] for site in glob.glob(pattern)}
    )
    copies = {p.removeprefix(root) for g in request["copies"] for p in glob.glob(placed(g))}
    return {
        "event": "environment",
        "variables": kept(env, request["names"], request["hidden"]),
        "names": len(env),
        "files": files,
        "mapped": paths,
        "preloaded": preloaded,
        "libraries": {
            p: tried(identity, p, root) for p in sorted(copies | {p for p in paths if "nccl" in p})
        },
        "reports": tried(reported, nccl[0]) if nccl and pid == "self" else "",
        "torch": {site: tried(content, root + site + "/torch/version.py", "") for site in sites},
        "packages": [
            tried(content, p, "^(Name|Version|Requires-Dist):")
            for site in sites
            for name in request["packages"]
            for p in sorted(glob.glob(root + site + "/" + name + "-*.dist-info/METADATA"))
        ],
        "host": socket.gethostname(),
        "machine": os.uname().machine,
        "interfaces": [name for _, name in socket.if_nameindex()],
        "addresses": tried(lambda: [a[4][0] for a in socket.getaddrinfo(socket.gethostname(), 0)])
        if request["resolve"]
        else None,
        "shm": tried(shared_memory, root + "/dev/shm"),
    }


def main():
    """Write one JSON event with the answer to the request in the first argument."""
    request = json.loads(sys.argv[1])
    if request["import_torch"]:
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401  (maps its libraries)
    with open(int(os.environ.get("NCCL_RUNBOOK_EVENT_FD", "1")), "w", closefd=False) as events:
        events.write(json.dumps({"event": "unreadable", **tried(look, request)}) + "\n")


if __name__ == "__main__":
    main()
