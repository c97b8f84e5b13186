"""Settings against the machine they are set on, and what the machine itself lacks."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Host, Role
from nccl_runbook.environment.judge_settings import Setting, told

LEAST_SHM = 256 << 20   # NCCL 2.28.9 asked for 9.2 MiB a connection; Docker's default of 64 MiB ends at about seven
LEAST_FILES = 4096      # sockets and shared memory of a rank grow with the world; 1024 has been too few
LEAST_MEMLOCK = 1 << 30  # InfiniBand pins the buffers of every connection; NCCL's guide asks for unlimited
# Xids that a program's own fault leaves, by NVIDIA's catalogue of Xid errors (r570): the GPU goes on working
_OF_PROGRAMS = re.compile(r"Xid[^:]*\(PCI:[^)]*\): (13|31|32|43|45|68|69)\b")
_NEEDS_HCA = re.compile(r"NCCL_IB_(?!DISABLE)|NCCL_NET_GDR_|NCCL_CROSS_NIC$")


def _matches(value: str, names: Sequence[str], exact: bool) -> tuple[list[str], list[str]]:
    """Which entries of a list of names or prefixes fit a name that is there, and which fit none."""
    exact, entries = exact or value.startswith("="), [e.split(":")[0] for e in value.removeprefix("=").split(",") if e]
    hit = [e for e in entries if any(n == e if exact else n.startswith(e) for n in names)]
    return hit, [e for e in entries if e not in hit]


def interface_missing(_: Host, s: Setting) -> Finding | None:
    """An interface is named that the process does not have. None of those named: NCCL and Gloo fail."""
    kind, here = s.known.values if s.known else "", s.role.interfaces
    if kind not in ("interfaces", "interfaces_exact") or isinstance(here, Gap) or not s.value or s.value[0] in "^$":
        return None
    hit, missed = _matches(s.value, here, kind == "interfaces_exact")
    if not missed:
        return None
    severity = Severity.NOTE if hit else Severity.BROKEN
    cause = {} if hit else {"cause": "socket-interface-wrong", "status": "established"}
    usable = ([] if isinstance(s.role.routes, Gap) else s.role.routes) or [n for n in here if n != "lo"]
    return told("interface-missing", severity, s, f"no interface here fits {', '.join(missed)}; there are {', '.join(here)}",
                "Name one that every host has, or take it out:", f"{s.name}={usable[0]}" if usable else f"unset {s.name}", **cause)


def hca_missing(host: Host, s: Setting) -> Finding | None:
    """An adapter is named that this host does not have: NCCL goes on with what is left, or with sockets."""
    if s.name != "NCCL_IB_HCA" or isinstance(host.hcas, Gap) or not host.hcas or not s.value or s.value[0] in "^$":
        return None
    hit, missed = _matches(s.value, host.hcas, False)
    if not missed:
        return None
    left = "NCCL then uses sockets" if not hit else f"only {', '.join(hit)} is used"
    return told("hca-missing", Severity.NOTE if hit else Severity.WARN, s, f"no adapter here fits {', '.join(missed)}: {left}",
                "Adapters that are here:", f"NCCL_IB_HCA={','.join(host.hcas)}")


def cannot_act(host: Host, s: Setting) -> Finding | None:
    """A setting of a network that this host does not have, or of the loopback."""
    hcas = [] if isinstance(host.hcas, Gap) else host.hcas
    if s.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and s.value.removeprefix("=") == "lo":
        return told("cannot-act", Severity.NOTE, s, "the loopback joins ranks of one host only", "For several hosts:", f"unset {s.name}")
    slingshot = s.name.startswith("FI_CXI_") and not any(h.startswith("cxi") for h in hcas)
    lacks = "Slingshot" if slingshot else "RDMA" if _NEEDS_HCA.match(s.name) and not hcas else ""
    if not lacks or isinstance(host.hcas, Gap):
        return None
    return told("cannot-act", Severity.NOTE, s, f"this host has no {lacks} adapter", "It does nothing here:", f"unset {s.name}")


def limits_too_low(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """Open files, and locked memory where adapters pin it: a warning in a job of several hosts only, as others use no adapter."""
    pins = not isinstance(host.hcas, Gap) and bool(host.hcas)
    for index, role in enumerate(roles):
        rows = (("nofile", role.nofile, LEAST_FILES, "open files", "ulimit -n 1048576", Severity.NOTE),
                ("memlock", role.memlock, LEAST_MEMLOCK, "bytes of locked memory", "ulimit -l unlimited",
                 Severity.WARN if _of_several_hosts(role) else Severity.NOTE))
        for key, limit, least, words, line, severity in rows:
            if isinstance(limit, str) and limit.isdecimal() and int(limit) < least and (key != "memlock" or pins):
                yield Finding("limit-too-low", severity, f"{role.name}: only {limit} {words} are allowed",
                              (Evidence(f"{key} {limit}", f"environment.roles[{index}].{key}"),),
                              (Remedy("your launcher", "Raise it before the job starts:", (line,)),), "ulimit-too-low", "possible")


def _of_several_hosts(role: Role) -> bool:
    world, local = (role.variables.get(n, "") for n in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return world.isdecimal() and local.isdecimal() and world != local


def shm_too_small(roles: Sequence[Role]) -> Iterator[Finding]:
    """Once for each mount, as several processes may share one."""
    mounts = {role.shm[2]: (index, role) for index, role in reversed([*enumerate(roles)]) if isinstance(role.shm, list)}
    for index, role in mounts.values():
        size, free = (n >> 20 for n in role.shm[:2])
        if role.shm[1] < LEAST_SHM:
            yield Finding("shm-too-small", Severity.WARN, f"{role.name}: /dev/shm: {free} MiB free of {size} MiB",
                          (Evidence(f"{free} MiB of {size} MiB are free", f"environment.roles[{index}].shm"),),
                          (Remedy("your launcher", "Give the container more shared memory:",
                                  ("docker run --shm-size=16g IMAGE", "docker run --ipc=host IMAGE")),),
                          "shm-too-small", "likely")


def name_not_resolved(host: Host, roles: Sequence[Role]) -> Finding | None:
    """The host's own name. MASTER_ADDR=$(hostname) needs it; without, it is a note: one host goes on by its loopback (torch 2.11, Gloo)."""
    if not isinstance(host.addresses, Gap) or host.addresses.reason == "not-run":
        return None
    needed = any(role.variables.get("MASTER_ADDR") == host.name for role in roles)
    return Finding("name-not-resolved", Severity.WARN if needed else Severity.NOTE, f"the host's own name, {host.name}, does not resolve",
                   (Evidence(host.addresses.detail, "environment.host.addresses"),),
                   (Remedy("the administrator", "Enter the name in DNS or /etc/hosts.", (f"getent hosts {host.name}",)),
                    Remedy("your launcher", "Until then name an address and an interface:", ("GLOO_SOCKET_IFNAME=eth0",))),
                   "rendezvous-name-resolution", "possible")


def peer_traffic_redirected(host: Host) -> Finding | None:
    """PCI access control sends traffic between GPUs through the root: slow, or hanging with an IOMMU. A note: it is usual where an IOMMU is
    on, and does nothing to NVLink; 03 and 04 show whether it does harm."""
    if isinstance(host.acs, Gap) or not host.acs:
        return None
    return Finding("peer-traffic-redirected", Severity.NOTE, f"PCI access control redirects peer traffic at {len(host.acs)} bridges",
                   (Evidence(", ".join(host.acs[:8]), "environment.host.acs"), Evidence(f"IOMMU {host.iommu}", "environment.host.iommu")),
                   (Remedy("the administrator", "On bare metal switch ACS off on these bridges; in a guest have the host do it.",
                           tuple(f"sudo setpci -s {b} ECAP_ACS+6.w=0000" for b in host.acs[:8])),), "p2p-broken-acs-iommu", "possible")


def xids_seen(host: Host) -> Finding | None:
    if isinstance(host.xids, Gap) or not host.xids:
        return None
    severity = Severity.NOTE if all(_OF_PROGRAMS.search(line) for line in host.xids) else Severity.WARN
    return Finding("xids-seen", severity, f"the kernel log names {len(host.xids)} GPU errors (Xid) since it was started",
                   tuple(Evidence(line, "environment.host.xids") for line in host.xids[-5:]),
                   (Remedy("the administrator", "Look the number up in NVIDIA's list of Xids.", ("sudo dmesg -T | grep -i xid",)),),
                   "gpu-or-link-fault", "possible")


def judge(roles: Sequence[Role], host: Host, settings: Sequence[Setting]) -> Iterator[Finding]:
    for setting in settings:
        yield from filter(None, (rule(host, setting) for rule in (interface_missing, hca_missing, cannot_act)))
    yield from limits_too_low(host, roles)
    yield from shm_too_small(roles)
    yield from filter(None, (rule(host) for rule in (peer_traffic_redirected, xids_seen)))
    yield from filter(None, [name_not_resolved(host, roles)])
