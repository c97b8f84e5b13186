"""Asks NVML, in a process of its own that may hang or die. Standard library and pynvml only; Python
>= 3.9; run by file path.

Prints one JSON object a line: {"part": "system"|"gpu"|"pair"|"use"|"live"|"end", ...}; what was printed
before a hang still counts. A value that NVML refuses is {"reason", "detail"} with NVML's own text. Leaves
when standard input ends. argv[1]: "all", "use" or "live".
"""

import ctypes
import itertools
import json
import os
import sys
import threading
import time

SAMPLE_GAP_S = 0.3
# NVML's utilisation is an average of up to one second (nvml.h, nvmlUtilization_t): a job
# that just ended still shows
SETTLE_S = 1.2
OUR_ROOT = os.getppid()

try:
    import pynvml as nvml

    missing = ""
except ImportError as error:
    nvml, missing = None, str(error)

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
COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")
VIRTUALISATION = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
CLOCK_REASONS = (
    "idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
PCIE = {
    "generation": "CurrPcieLinkGeneration",
    "width": "CurrPcieLinkWidth",
    "max_generation": "MaxPcieLinkGeneration",
    "max_width": "MaxPcieLinkWidth",
}
MAX_LINKS = 36
SWITCH, UNKNOWN_DEVICE = 2, 255
REASON_OF_CODE = {
    3: "unsupported",
    4: "no-permission",
    6: "absent",
    10: "timed-out",
    12: "absent",
    13: "unsupported",
    25: "unsupported",
}


def text(value):
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def words_of(error):
    """The library's own text, as NCCL prints it: pynvml words some errors
    differently (13.615: 18, 15, 16)."""
    try:
        return text(nvml.nvmlErrorString(error.value))
    except (nvml.NVMLError, TypeError):  # no library loaded
        return str(error)


def is_gap(value):
    return isinstance(value, dict) and "reason" in value


def ask(name, *args, **kwargs):
    """The call's value with text decoded, or {"reason", "detail"}. ``shown``: the arguments
    as the detail shows them."""
    shown = kwargs.pop("shown", "")
    function = getattr(nvml, name, None)
    if function is None:
        return {"reason": "unsupported", "detail": f"this pynvml has no {name}"}
    try:
        return text(function(*args, **kwargs))
    except nvml.NVMLError as error:
        return {
            "reason": REASON_OF_CODE.get(error.value, "failed"),
            "detail": f"{name}({shown}) failed: {words_of(error)}",
        }


def first(*answers):
    """The first answer that is not a Gap, else the last."""
    return next((a for a in answers if not is_gap(a)), answers[-1])


def then(answer, make):
    return answer if is_gap(answer) else make(answer)


def name_in(names):
    return lambda number: names[number] if 0 <= number < len(names) else f"unknown ({number})"


def say(part, **fields):
    print(json.dumps(dict(fields, part=part)), flush=True)


def memory(handle):
    newer = (
        ask("nvmlDeviceGetMemoryInfo", handle, version=nvml.nvmlMemory_v2)
        if hasattr(nvml, "nvmlMemory_v2")
        else {"reason": "unsupported", "detail": "this pynvml has no nvmlMemory_v2"}
    )
    if not is_gap(newer):
        return {"total_bytes": newer.total, "used_bytes": newer.used, "reserved_bytes": newer.reserved}
    return then(
        ask("nvmlDeviceGetMemoryInfo", handle),
        lambda m: {"total_bytes": m.total, "used_bytes": m.used, "reserved_bytes": newer},
    )


def ecc(handle):
    counts = [ask("nvmlDeviceGetTotalEccErrors", handle, 1, counter) for counter in (0, 1)]
    return (
        counts[1]
        if all(map(is_gap, counts))
        else {"volatile_uncorrected": counts[0], "aggregate_uncorrected": counts[1]}
    )


def mig(handle):
    mode = ask("nvmlDeviceGetMigMode", handle)
    if is_gap(mode):
        return mode
    most = ask("nvmlDeviceGetMaxMigDeviceCount", handle) if mode[0] else 0
    parts = [
        ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i) for i in range(0 if is_gap(most) else most)
    ]
    return {
        "is_enabled": bool(mode[0]),
        "pending": bool(mode[1]),
        "instances": [
            {"uuid": first(ask("nvmlDeviceGetUUID", p), ""), "name": first(ask("nvmlDeviceGetName", p), "")}
            for p in parts
            if not is_gap(p)
        ],
    }


def clock_reasons(handle):
    return then(
        first(
            ask("nvmlDeviceGetCurrentClocksEventReasons", handle),
            ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        ),
        lambda bits: [name for i, name in enumerate(CLOCK_REASONS) if bits >> i & 1],
    )


def nvlinks(handle):
    answers = (ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(MAX_LINKS))
    first_link = next(answers)
    if is_gap(first_link):
        return first_link
    states = [bool(s) for s in (first_link, *itertools.takewhile(lambda answer: not is_gap(answer), answers))]
    up = [i for i, state in enumerate(states) if state]
    kind = (
        ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, up[0])
        if up
        else {"reason": "absent", "detail": "no link is up"}
    )
    return {
        "active": states,
        "to_switch": {"reason": "unsupported", "detail": "remote device type unknown"}
        if kind == UNKNOWN_DEVICE
        else then(kind, lambda k: k == SWITCH),
    }


def utilisation(handle):
    return then(ask("nvmlDeviceGetUtilizationRates", handle), lambda u: u.gpu)


def power_w(handle):
    return then(ask("nvmlDeviceGetPowerUsage", handle), lambda mw: mw / 1000)


def fabric(handle):
    answer = {"reason": "unsupported", "detail": "this pynvml has no nvmlDeviceGetGpuFabricInfo"}
    for struct, call in (
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        if hasattr(nvml, struct):
            info = getattr(nvml, struct)()
            answer = ask(call, handle, ctypes.byref(info))
            if not is_gap(answer):
                return {
                    "state": name_in(FABRIC_STATES)(info.state),
                    "status": "Success" if info.status == 0 else str(nvml.NVMLError(info.status)),
                }
    return answer


# --- who is on a GPU


def status_of(pid):
    """{"PPid": ..., "Uid": ...} of a process in this pid namespace, or {}."""
    try:
        with open(f"/proc/{pid}/status") as lines:
            return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    except OSError:
        return {}


def holds_gpu(pid):
    """Whether a process has the driver's library mapped or a GPU's device file open; None where
    that may not be looked at."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            if any("libcuda.so" in line or "/dev/nvidia" in line for line in maps):
                return True
        links = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    return any(
        os.path.realpath(f"/proc/{pid}/fd/{link}").startswith(("/dev/nvidia", "/dev/dxg")) for link in links
    )


def is_descendant(pid):
    while pid not in (0, 1, OUR_ROOT):
        pid = int(status_of(pid).get("PPid", "0"))
    return pid == OUR_ROOT


def user_name(uid):
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return f"uid {uid}"


def owner(process, kind):
    """One listed process. NVML may list a pid of the host that here belongs to another process,
    which then holds no GPU open."""
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


def owners(handle):
    compute = ask("nvmlDeviceGetComputeRunningProcesses", handle)
    graphics = ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
    if is_gap(compute):
        return compute
    drawing = {} if is_gap(graphics) else {p.pid: p for p in graphics}
    listed = [owner(p, "both" if drawing.pop(p.pid, None) else "compute") for p in compute]
    return listed + [owner(p, "graphics") for p in drawing.values()]


# --- the parts


def gpu(index, handle):
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
        name=ask("nvmlDeviceGetName", handle),
        uuid=ask("nvmlDeviceGetUUID", handle),
        pci_bus_id=then(ask("nvmlDeviceGetPciInfo", handle), lambda p: text(p.busId)),
        memory=memory(handle),
        compute_mode=then(ask("nvmlDeviceGetComputeMode", handle), name_in(COMPUTE_MODES)),
        mig=mig(handle),
        virtualisation=then(ask("nvmlDeviceGetVirtualizationMode", handle), name_in(VIRTUALISATION)),
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
    """Active NVLinks from ``a`` that end at ``b`` itself or, where NVLink P2P is granted,
    at a switch that both share."""
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
    """Two samples; a third once the average has settled, if the second shows work
    that nobody is listed for."""
    samples = [[utilisation(h) for h in handles.values()]]
    for wait_s in (SAMPLE_GAP_S, SETTLE_S):
        time.sleep(wait_s)
        samples.append([utilisation(h) for h in handles.values()])
        listed = [owners(h) for h in handles.values()]
        if not any(not is_gap(u) and u > 0 and not owner for u, owner in zip(samples[-1], listed)):
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
    """One moment of every GPU, at once: how busy, how much power, whose."""
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
    while os.read(0, 4096):
        pass
    os._exit(1)


def main(what):
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
