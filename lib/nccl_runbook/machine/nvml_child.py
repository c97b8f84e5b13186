"""Asks NVML, in a process of its own that may hang or die. Standard library and pynvml only; Python
>= 3.9; run by file path.

Prints one JSON object a line: {"part": "system"|"gpu"|"pair"|"use"|"live"|"end", ...}; what was printed
before a hang still counts. A value that NVML refuses is {"reason", "detail"} with NVML's own text. Leaves
when standard input ends. argv[1]: "all", "use" or "live".
"""

import dataclasses
import itertools
import json
import os
import sys
import threading
import time

from nccl_runbook.machine.ask_nvml_fields import (
    MAX_LINKS,
    ask,
    clock_reasons,
    ecc,
    fabric,
    first,
    is_gap,
    memory,
    mig,
    missing,
    name_in,
    nvlinks,
    power_w,
    text,
    then,
    utilisation,
)
from nccl_runbook.machine.ask_owner import owner
from nccl_runbook.machine.facts import NvmlGpu

# NVML's utilisation is an average of up to one second (nvml.h, nvmlUtilization_t): a job
# that just ended still shows
SETTLE_S = 1.2

# literal numbers of nvml.h: pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake
# (13.615), and old ones lack names
P2P_READ, P2P_WRITE, P2P_NVLINK = 0, 1, 2
P2P_STATUS = (
    "ok",
    "chipset not supported",
    "GPU not supported",
    "topology not supported",
    "disabled by registry key",
    "not supported",
    "unknown",
)
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
PCIE = {
    "generation": "CurrPcieLinkGeneration",
    "width": "CurrPcieLinkWidth",
    "max_generation": "MaxPcieLinkGeneration",
    "max_width": "MaxPcieLinkWidth",
}


def say(part, **fields):
    """Print one part of the answer as a JSON line at once, so that a crash of the driver loses only the
    rest."""
    print(json.dumps(dict(fields, part=part)), flush=True)


# --- who is on a GPU


def owners(handle):
    """Processes on a GPU, each once, with the kind of work (compute, graphics or both); a Gap if refused."""
    compute = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    graphics = ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
    if is_gap(compute):
        return compute
    drawing = {} if is_gap(graphics) else {p.pid: p for p in graphics}
    listed = [owner(p, "both" if drawing.pop(p.pid, None) else "compute") for p in compute]
    return listed + [owner(p, "graphics") for p in drawing.values()]


# --- the parts


def by_one_call(handle):
    """The fields of NvmlGpu that name their call (machine/facts.py, ``asked``)."""
    return {
        field.name: then(ask(how["call"], handle), name_in(how["names"]) if how["names"] else text)
        for field in dataclasses.fields(NvmlGpu)
        if (how := field.metadata)
    }


def gpu(index, handle):
    """Print everything about one GPU; what NVML refuses is a Gap in its place."""
    rows = then(
        ask("nvmlDeviceGetRemappedRows", handle),
        lambda r: {
            "correctable": r[0],
            "uncorrectable": r[1],
            "is_pending": bool(r[2]),
            "has_failed": bool(r[3]),
        },
    )
    # pages retired for double-bit errors (cause 1); Kepler to Turing only, later cards remap rows instead
    pages = then(ask("nvmlDeviceGetRetiredPages", handle, 1), len) if is_gap(rows) else None
    say(
        "gpu",
        nvml_index=index,
        **by_one_call(handle),
        pci_bus_id=then(ask("nvmlDeviceGetPciInfo", handle), lambda p: text(p.busId)),
        memory=memory(handle),
        mig=mig(handle),
        ecc=ecc(handle),
        remapped_rows=rows,
        retired_pages=pages,
        clock_reasons=clock_reasons(handle),
        pcie={key: ask(f"nvmlDeviceGet{call}", handle) for key, call in PCIE.items()},
        nvlinks=nvlinks(handle),
        fabric=fabric(handle),
        utilisation_percent=utilisation(handle),
        temperature_c=ask("nvmlDeviceGetTemperature", handle, 0),
        owners=owners(handle),
        power_w=power_w(handle),
    )


def links_between(a, b):
    """Number of active NVLinks from ``a`` that end at ``b`` or, if P2P over NVLink is allowed, at a switch
    that both share."""
    if ask("nvmlDeviceGetP2PStatus", a, b, P2P_NVLINK) != 0:
        return 0
    up = [link for link in range(MAX_LINKS) if ask("nvmlDeviceGetNvLinkState", a, link) == 1]
    there = ask("nvmlDeviceGetPciInfo", b)
    ends = [ask("nvmlDeviceGetNvLinkRemotePciInfo", a, link) for link in up]
    direct = [
        e
        for e in ends
        if not is_gap(e) and not is_gap(there) and text(e.busId).lower() == text(there.busId).lower()
    ]
    return len(direct) or len(up)


def pair(a, b, handles):
    """Print NVLink or PCIe level between two GPUs, and whether P2P reads and writes are allowed."""
    both, shown = (handles[a], handles[b]), f"{a},{b}"
    links = links_between(*both)
    level = (
        f"NV{links}"
        if links
        else then(
            ask("nvmlDeviceGetTopologyCommonAncestor", *both, shown=shown), lambda n: LEVELS.get(n, str(n))
        )
    )
    read, write = [
        then(ask("nvmlDeviceGetP2PStatus", *both, way, shown=shown), name_in(P2P_STATUS))
        for way in (P2P_READ, P2P_WRITE)
    ]
    say("pair", a=a, b=b, level=level, p2p_read=read, p2p_write=write)


def use(handles):
    """Print two samples of each GPU; a third one after the average has settled, if the second shows work
    without a listed owner."""
    samples = [[utilisation(h) for h in handles.values()]]
    for wait_s in (0.3, SETTLE_S):
        time.sleep(wait_s)
        samples.append([utilisation(h) for h in handles.values()])
        listed = [owners(h) for h in handles.values()]
        if not any(not is_gap(u) and u > 0 and not processes for u, processes in zip(samples[-1], listed)):
            break
    for i, (index, handle) in enumerate(handles.items()):
        values = [s[i] for s in samples]
        say(
            "use",
            nvml_index=index,
            used_mib=then(memory(handle), lambda m: m["used_bytes"] >> 20),
            owners=listed[i],
            utilisation_percent=next((v for v in values if is_gap(v)), values),
        )


def live(handles):
    """Print one moment of every GPU: utilisation, power, owners."""
    for index, handle in handles.items():
        say(
            "live",
            nvml_index=index,
            uuid=ask("nvmlDeviceGetUUID", handle),
            utilisation_percent=utilisation(handle),
            power_w=power_w(handle),
            pids=then(ask("nvmlDeviceGetComputeRunningProcesses", handle), lambda ps: [p.pid for p in ps]),
            used_mib=then(memory(handle), lambda m: m["used_bytes"] >> 20),
        )


def leave_with_parent():
    """Exit with 1 when standard input closes (runs in a thread)."""
    sys.stdin.buffer.read()
    os._exit(1)


def main(what):
    """Print the system, then its GPUs and pairs. ``what``: "all", or "use" or "live" for less."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    count = (
        {"reason": "not-run", "detail": f"{sys.executable}: {missing}"}
        if missing
        else then(ask("nvmlInit"), lambda _: ask("nvmlDeviceGetCount"))
    )
    if is_gap(count):
        say("system", refused=count)
        return
    say(
        "system",
        count=count,
        driver=ask("nvmlSystemGetDriverVersion"),
        nvml=ask("nvmlSystemGetNVMLVersion"),
        cuda_driver=then(
            first(ask("nvmlSystemGetCudaDriverVersion_v2"), ask("nvmlSystemGetCudaDriverVersion")),
            lambda v: f"{v // 1000}.{v % 1000 // 10}",
        ),
    )
    handles = {}
    for index in range(count):
        handle = ask("nvmlDeviceGetHandleByIndex", index, shown=str(index))
        if is_gap(handle):
            say("gpu", nvml_index=index, refused=handle)
        else:
            handles[index] = handle
            if what == "all":
                gpu(index, handle)
    if what in ("use", "live"):
        {"use": use, "live": live}[what](handles)
    else:
        for a, b in itertools.combinations(handles, 2):
            pair(a, b, handles)
    say("end")


if __name__ == "__main__":
    main(sys.argv[1])
