"""Ranks that share a GPU, and hosts or versions that differ."""

from nccl_runbook.causes.causes import Advice
from nccl_runbook.core.facts import grouped
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import Indication
from nccl_runbook.triage.ranks.judge_indication import matches

MANY_COMMUNICATORS = 8  # of one rank; parallel groups of a usual job are fewer


def ranks_on_one_gpu(logs: Logs) -> list[Indication]:
    """Behind `Duplicate GPU`: the devices that the ranks took."""
    refusal = logs.seen.get("nccl-duplicate-gpu-detected")
    taken = ((row, device.partition("busId ")) for row in logs.ranks for device in row.devices)
    named = grouped((f"{row.hosts[:1]} {bus}", row) for row, (_, known, bus) in taken if known)
    same = next((rows for rows in named.values() if len({r.rank for r in rows}) > 1), None)
    if not refusal or refusal.resumed or not same or "reporter-uuids-differ" in logs.seen:
        return []
    devices = {d.split()[1] for r in same for d in r.devices if d.startswith("cudaDev")}
    nvml = {d.split()[3] for r in same for d in r.devices if " nvmlDev " in d}
    if len(nvml) > 1:
        return [
            Indication("bus-id-collision", "likely", tuple(refusal.lines[:2]), ("UUIDs were not printed",), 1)
        ]
    one_device = len(devices) == 1 and nvml == devices
    return [
        Indication(
            "scheduler-shares-gpu" if len(devices) > 1 else "device-not-set-per-rank",
            "likely" if one_device else "possible",
            tuple(refusal.lines[:2]),
            ("no rank's CUDA_VISIBLE_DEVICES was printed",) if one_device else (),
            1 if one_device else 2,
        )
    ]


def ranks_chose_one_gpu(logs: Logs) -> list[Indication]:
    """Two ranks that NCCL refuses printed the same device; if both see the same GPUs, the program chose it
    twice."""
    own = {match[1] or str(line.rank): (match[2], line) for match, line in matches(logs, "device-of-rank")}
    visible = {str(line.rank): match[1] for match, line in matches(logs, "visible-devices")}
    for pair, refused in matches(logs, "ranks-share-gpu"):
        chosen = [own[rank] for rank in pair.groups() if rank in own]
        lists = {visible.get(rank, visible.get("None", "")) for rank in pair.groups()}
        if len(chosen) == 2 and chosen[0][0] == chosen[1][0] and not logs.seen["ranks-share-gpu"].resumed:
            several = len(lists) == 1 and "," in lists.pop()
            return [
                Indication(
                    "device-not-set-per-rank",
                    "likely" if several else "possible",
                    (refused, *(line for _, line in chosen)),
                    () if several else ("the visible devices of these ranks were not printed",),
                    245,
                )
            ]
    return []


def first_gpu_is_held(logs: Logs) -> list[Indication]:
    """In nvidia-smi's list, processes of other GPUs hold memory of the first one."""
    rows = [(match[1], match[2], line) for match, line in matches(logs, "nvidia-smi-process")]
    first = {pid for gpu, pid, _ in rows if gpu == "0"}
    both = first & {pid for gpu, pid, _ in rows if gpu != "0"}
    return (
        [
            Indication(
                "device-not-set-per-rank",
                "likely",
                tuple(line for _, pid, line in rows if pid in both)[:4],
                (),
                3,
            )
        ]
        if both and len(first) > 1
        else []
    )


def versions_differ(logs: Logs) -> list[Indication]:
    """Processes use different NCCL versions: likely the fault if each rank or host names one and a message
    arrived with an unexpected size."""
    files = {f.name for f in logs.files}  # a line that names neither rank nor host
    by_version = {v: [w for w in who if w not in files] or who for v, who in logs.nccl_versions.items()}
    if len(by_version) < 2:
        return []
    speakers = [who for those in by_version.values() for who in those]
    are_ranks, are_hosts = all(w.startswith("rank ") for w in speakers), not files & {*speakers}
    apart = len(speakers) == len(set(speakers)) and (
        are_ranks or (are_hosts and "nccl-message-truncated" in logs.seen)
    )
    says = "; ".join(
        f"{', '.join(w[:4])} {'runs' if len(w) == 1 else 'run'} NCCL {v}" for v, w in by_version.items()
    )
    return [
        Indication(
            "nccl-version-mismatch",
            "likely" if apart else "possible",
            tuple(LogLine(who[0], 0, f"NCCL version {version}") for version, who in by_version.items()),
            (),
            35,
            Advice(f"{says}."),
        )
    ]


def nodes_differ(logs: Logs) -> list[Indication]:
    """Ranks or hosts of a communicator use different networks or numbers of channels. Hosts may share a
    name, and runs a file."""
    networks = {
        match[1]: line for match, line in matches(logs, "nccl-network") if line.rank is not None or line.host
    } | {
        r.network: LogLine(
            "".join(r.files[:1]), 0, f"Using network {r.network}", r.rank, "".join(r.hosts[:1])
        )
        for r in logs.ranks
        if r.network
    }
    sure = "likely" if len({(line.rank, line.host) for line in networks.values()}) > 1 else "possible"
    channels = {
        match[1]: line
        for match, line in matches(logs, "nccl-channels")
        if line.rank is not None and (logs.failed or logs.context)
    }
    differences = (
        (networks, sure, (), 36),
        (channels, "possible", ("communicators of other ranks may have different numbers of channels",), 37),
    )
    return [
        Indication("nodes-differ", status, tuple(by.values()), why, place)
        for by, status, why, place in differences
        if len(by) > 1
    ]


def communicators_pile_up(logs: Logs) -> list[Indication]:
    """One rank opened many communicators."""
    most = max(logs.ranks, key=lambda r: r.communicators, default=None)
    if most is None or most.communicators < MANY_COMMUNICATORS:
        return []
    return [
        Indication(
            "communicator-recreated",
            "possible",
            (LogLine(most.files[0], 0, f"{most.communicators} communicators opened", most.rank),),
            (),
            950,
        )
    ]
