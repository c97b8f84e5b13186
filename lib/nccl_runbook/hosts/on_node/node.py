"""What one host shows of its network, its GPUs and its clock, without torch and without another host. One
JSON object on standard output.

argv[1:]: host names to resolve. What cannot be read is {"reason", "detail"}. Standard library, Python >=
3.9, imports nothing of ours.
"""

import fcntl
import glob
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

SIOCGIFADDR = 0x8915
RESOLVE_S = 4.0
NVIDIA_SMI_S = 10.0
QUERY = (
    "index",
    "name",
    "memory.total",
    "driver_version",
    "pci.bus_id",
    "mig.mode.current",
    "ecc.mode.current",
)


def text(path):
    """Stripped content of a file in /sys or /proc, or why it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        reason = "no-permission" if isinstance(error, PermissionError) else "absent"
        return {"reason": reason, "detail": "%s: %s" % (path, error.strerror)}


def shm_bytes():
    """Size of /dev/shm in bytes, or why it is unknown: a container may have none."""
    try:
        return os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    except OSError as error:
        return {"reason": "absent", "detail": "/dev/shm: %s" % error.strerror}


def address(name):
    """The IPv4 address of an interface, empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
        except OSError:  # EADDRNOTAVAIL: no address, hence ""
            return ""
    return socket.inet_ntoa(answer[20:24])


def interfaces():
    """Name -> MTU, state, speed (Mb/s, real devices only) and IPv4 address of each interface; all as text."""
    folder = "/sys/class/net/%s/%s"
    return {
        name: {
            "mtu": text(folder % (name, "mtu")),
            "state": text(folder % (name, "operstate")),
            "speed": text(folder % (name, "speed")) if os.path.exists(folder % (name, "device")) else "",
            "address": address(name),
        }
        for _, name in socket.if_nameindex()
    }


def routes():
    """Interface and prefix length of each IPv4 route; the addresses differ by host and are left out."""
    rows = [line.split() for line in str(text("/proc/net/route")).splitlines()[1:]]
    return sorted(
        "%s via %s" % ("default" if r[1] == "00000000" else "/%d" % bin(int(r[7], 16)).count("1"), r[0])
        for r in rows
        if len(r) > 7
    )


def names(asked):
    """Name -> its IPv4 addresses, or why there are none; a hanging resolver costs RESOLVE_S seconds in
    all."""
    addresses = {n: {"reason": "timed-out", "detail": "no answer within %.0f s" % RESOLVE_S} for n in asked}

    def ask(name):
        try:
            rows = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            addresses[name] = sorted({row[4][0] for row in rows})
        except OSError as error:
            addresses[name] = {"reason": "failed", "detail": error.strerror or str(error)}

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in asked]
    for thread in threads:
        thread.start()
    until = time.monotonic() + RESOLVE_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return addresses


def hcas():
    """State, rate and RoCE GID types of each InfiniBand or RoCE port."""
    return {
        "%s/%s" % (port.split("/")[4], port.split("/")[6]): {
            "state": text(port + "/state"),
            "rate": text(port + "/rate"),
            "link": text(port + "/link_layer"),
            # an index without a GID gives EINVAL
            "gids": sorted(
                "%s %s" % (os.path.basename(path), text(path))
                for path in glob.glob(port + "/gid_attrs/types/*")
                if isinstance(text(path), str)
            ),
        }
        for port in sorted(glob.glob("/sys/class/infiniband/*/ports/*"))
    }  # fmt: skip


def gpus():
    """One row a GPU, as nvidia-smi lists them."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + ",".join(QUERY), "--format=csv,noheader"],
            capture_output=True, text=True, timeout=NVIDIA_SMI_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        return {"reason": "absent", "detail": "no nvidia-smi on this host"}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {
            "reason": "timed-out" if isinstance(error, subprocess.TimeoutExpired) else "failed",
            "detail": str(error),
        }
    if done.returncode:
        return {"reason": "failed", "detail": (done.stdout + done.stderr).strip()[:500]}
    return [dict(zip(QUERY, map(str.strip, row.split(",")))) for row in done.stdout.splitlines()]


def network():
    """Interfaces, routes, RDMA ports, and what else belongs to the host rather than to a process."""
    return {
        "host": socket.gethostname(),
        "kernel": os.uname().release,
        "boot_id": text("/proc/sys/kernel/random/boot_id"),
        "driver": text("/proc/driver/nvidia/version"),
        "peermem": text("/sys/module/nvidia_peermem/version"),
        "interfaces": interfaces(),
        "routes": routes(),
        "hcas": hcas(),
        "cpus": len(os.sched_getaffinity(0)),
        "shm_bytes": shm_bytes(),
        "time": time.time(),
    }


def main():
    """Print the facts of this host as one JSON object."""
    asked = dict.fromkeys([socket.gethostname(), *sys.argv[1:]])
    print(json.dumps({**network(), "names": names(list(asked)), "gpus": gpus()}))


if __name__ == "__main__":
    main()
