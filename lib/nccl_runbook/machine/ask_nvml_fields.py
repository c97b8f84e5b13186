"""Fields of one GPU as NVML answers them, or the reason that it does not."""

import ctypes
import itertools

try:
    import pynvml as nvml

    missing = ""
except ImportError as error:
    nvml, missing = None, str(error)

FABRIC_STATES = ("not-supported", "not-started", "in-progress", "completed")

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
    """The answer as text: older pynvml returns bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def words_of(error):
    """The library's own error text, as NCCL prints it: pynvml words some errors differently (13.615: 18, 15,
    16)."""
    try:
        return text(nvml.nvmlErrorString(error.value))
    except (nvml.NVMLError, TypeError):  # no library loaded
        return str(error)


def is_gap(value):
    """Whether the answer is a Gap (a dict with its reason)."""
    return isinstance(value, dict) and "reason" in value


def ask(name, *args, **kwargs):
    """Value of the call with text decoded, or {"reason", "detail"}. ``shown``: the arguments in the
    detail."""
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
    """The first answer that is not a Gap, else the last one."""
    return next((a for a in answers if not is_gap(a)), answers[-1])


def then(answer, make):
    """The Gap unchanged, else what ``make`` returns for the answer."""
    return answer if is_gap(answer) else make(answer)


def name_in(names):
    """A function that names a number of NVML, "unknown (7)" for one without a name."""
    return lambda number: names[number] if 0 <= number < len(names) else f"unknown ({number})"


def memory(handle):
    """Total, used and reserved bytes; older drivers do not report the reserved ones, and used then includes
    them."""
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
    """Uncorrected ECC errors since the driver was loaded and in all; a Gap if the GPU reports neither."""
    counts = [ask("nvmlDeviceGetTotalEccErrors", handle, 1, counter) for counter in (0, 1)]
    return (
        counts[1]
        if all(map(is_gap, counts))
        else {"volatile_uncorrected": counts[0], "aggregate_uncorrected": counts[1]}
    )


def mig(handle):
    """MIG mode (now and after the next reset) and its instances; a Gap if the GPU has no MIG."""
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
    """Names of the reasons that lower the clocks now; a Gap if NVML does not report them."""
    return then(
        first(
            ask("nvmlDeviceGetCurrentClocksEventReasons", handle),
            ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        ),
        lambda bits: [name for i, name in enumerate(CLOCK_REASONS) if bits >> i & 1],
    )


def nvlinks(handle):
    """State of each NVLink, and whether they lead to a switch; a Gap without NVLink."""
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
    """Percent of the last sample period in which the GPU ran a kernel, or a Gap."""
    return then(ask("nvmlDeviceGetUtilizationRates", handle), lambda u: u.gpu)


def power_w(handle):
    """Watts, or a Gap."""
    return then(ask("nvmlDeviceGetPowerUsage", handle), lambda mw: mw / 1000)


def fabric(handle):
    """State and status of the NVLink fabric (Fabric Manager), or a Gap."""
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
