"""Copies between every two GPUs, both ways, in one process and without NCCL, each value compared.

One file, standard library and torch (>= 2.2, Python >= 3.9); by hand:
    python3 edges.py --devices 0,1,2,3
Exit codes: 0 all right, 1 an exception (the text is the finding), 6 wrong values arrived.
Each copy carries values of its own, so that what another copy left behind is never taken for right.
"""

import argparse
import json
import os
import signal
import sys
import time

import torch

WRONG_VALUES = 6
ODD = -1640531535  # 0x9E3779B1 as a signed number: times the position, every byte of a value changes
SAMPLES = 3


def emit(event, **fields):
    """Report one event to the engine that started this process, else print it as a line."""
    fd = os.environ.get("NCCL_RUNBOOK_EVENT_FD")
    fields = {"event": event, "t": round(time.monotonic(), 6), **fields}
    if fd:
        os.write(int(fd), (json.dumps(fields) + "\n").encode())
    else:
        print(
            event, *("%s=%s" % pair for pair in fields.items() if pair[0] not in ("event", "t")), flush=True
        )


def values(count, device, edge):
    """``count`` int32 values that only this edge sends."""
    return torch.arange(count, dtype=torch.int32, device=device).mul_(ODD).add_(edge * 7919 + 1)


def settle(*devices):
    """Wait until these GPUs have finished all queued work; a CPU has nothing to wait for."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def copied(source, target, size_bytes, edge, fault):
    """(number of values that arrived wrong, index of the first, seconds of the fastest copy) for one size."""
    sent = values(size_bytes // 4, source, edge)
    arrived = torch.empty(size_bytes // 4, dtype=torch.int32, device=target)
    fastest = float("inf")
    for _ in range(SAMPLES):
        arrived.fill_(-1)
        settle(source, target)
        began = time.perf_counter()
        arrived.copy_(sent)
        settle(source, target)
        fastest = min(fastest, time.perf_counter() - began)
    if fault == "corrupt":
        arrived[size_bytes // 8] += 1
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    differ = (arrived != values(size_bytes // 4, target, edge)).nonzero()
    return len(differ), int(differ[0]) if len(differ) else None, fastest


def main():
    """Copy along every edge at every size, one event a copy; exits with 6 if any value arrived wrong, else
    0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", required=True, help="cuda indices, comma-separated; cpu: a rehearsal")
    parser.add_argument(
        "--only", default="", help="copies such as 0-1,1-0, as positions in --devices; default: all"
    )
    parser.add_argument("--sizes", default="4,1048576,67108864", help="bytes, comma-separated")
    parser.add_argument("--fault", default="", help="corrupt@0-1 or stop@0-1, for the runbook's own tests")
    args = parser.parse_args()
    devices = [torch.device(name if name == "cpu" else "cuda:" + name) for name in args.devices.split(",")]
    fault, _, faulty = args.fault.partition("@")
    count = len(devices)
    every = ["%d-%d" % (a, b) for a in range(count) for b in range(count) if a != b]
    for device in devices:
        settle(device)  # makes the context: an error names this GPU before any copy
    emit("init", devices=args.devices)
    wrong = 0
    for edge in args.only.split(",") if args.only else every:
        a, b = map(int, edge.split("-"))
        source, target = devices[a], devices[b]
        peer = source.type == "cuda" and torch.cuda.can_device_access_peer(source, target)
        for size in map(int, args.sizes.split(",")):
            emit("begin", what="copy " + edge, edge=edge, size_bytes=size, peer=peer)
            bad, first, seconds = copied(source, target, size, a * count + b, fault if edge == faulty else "")
            emit("copy", edge=edge, size_bytes=size, wrong=bad, first=first, peer=peer, s=seconds)
            wrong += bad
    sys.exit(WRONG_VALUES if wrong else 0)


if __name__ == "__main__":
    main()
