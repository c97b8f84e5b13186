"""Settings that choose interfaces, adapters and names of hosts."""

import re
from collections.abc import Iterator, Mapping, Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Host, Role
from nccl_runbook.environment.settings.judge_effective import Setting

NEEDS_HCA = re.compile(r"NCCL_IB_(?!DISABLE)|NCCL_NET_GDR_|NCCL_CROSS_NIC$")

_OWN_ADDRESS = re.compile(r"(?:localhost|127\.[\d.]+|\[?::1\]?)(?::\d+)?")
OFF = ("", "0", "n", "no", "f", "false")


def sockets_forced(s: Mapping[str, Setting], hcas: Sequence[str]) -> Iterator[Finding]:
    """NCCL_NET=Socket, or InfiniBand off without a network plugin: bad for several nodes with RDMA between
    them."""
    net, plugin, off = (
        s[n].as_read if n in s else "" for n in ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE")
    )
    plugged = (
        net not in ("", "ib", "socket")
        or plugin not in ("", "none")
        or any(n.startswith(("FI_", "OFI_NCCL_")) for n in s)
    )
    if net == "socket" or (off not in OFF and not plugged):
        forced = s["NCCL_NET" if net == "socket" else "NCCL_IB_DISABLE"]
        costs = of_several_hosts(forced.role) and (bool(hcas) or any(map(NEEDS_HCA.match, s)))
        yield forced.finding(
            "debugging-left-on",
            Severity.WARN if costs else Severity.NOTE,
            "between nodes, all data goes through TCP sockets; within a node, the setting has no effect",
            "If the hosts have InfiniBand, RoCE or a network plugin, remove the variable:",
            f"unset {forced.name}",
        )


def loopback(s: Mapping[str, Setting]) -> Iterator[Finding]:
    """Ranks that may meet only over loopback: fine on one node, impossible across several."""
    for only in (
        s[n]
        for n in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        if n in s and s[n].value.removeprefix("=") == "lo"
    ):
        several = of_several_hosts(only.role)
        yield only.finding(
            "cannot-act",
            Severity.BROKEN if several else Severity.NOTE,
            "the loopback interface connects only ranks of one node"
            + (", but this job has several nodes" if several else ""),
            "For a job on several nodes, name the interface that connects the nodes, or remove the variable:",
            f"unset {only.name}",
            **({"cause": "socket-interface-wrong", "status": "likely"} if several else {}),
        )
    for own in (
        s[n]
        for n in table("environment/environment")["meeting"]
        if n in s
        and _OWN_ADDRESS.fullmatch(s[n].value)
        and _OWN_ADDRESS.fullmatch(s[n].role.meeting or s[n].value)
        and of_several_hosts(s[n].role)
    ):
        yield own.finding(
            "cannot-act",
            Severity.BROKEN,
            "each node looks for rank 0 on itself, but this job has several nodes",
            "Name the first node of the job. With Slurm:",
            f'export {own.name}=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            cause="rendezvous-misconfigured",
            status="likely",
        )


def _matches(value: str, names: Sequence[str], exact: bool) -> tuple[list[str], list[str]]:
    """(entries of a list of names or prefixes that match a present name, entries that match none); both
    empty for a list that excludes, or that the shell has yet to expand."""
    exact = exact or value.startswith("=")
    entries = (
        []
        if value.startswith(("^", "$"))
        else [e.split(":")[0] for e in value.removeprefix("=").split(",") if e]
    )
    hit = [e for e in entries if any(n == e if exact else n.startswith(e) for n in names)]
    return hit, [e for e in entries if e not in hit]


def interface_missing(s: Setting) -> Iterator[Finding]:
    """A named interface that the process does not have. If none of those named exists, NCCL and Gloo fail."""
    kind = s.known.values if s.known else ""
    here = known(s.role.interfaces)
    hit, missed = _matches(s.value, here, kind == "interfaces_exact")
    if kind in ("interfaces", "interfaces_exact") and missed and not isinstance(s.role.interfaces, Gap):
        usable = known(s.role.routes) or [n for n in here if n != "lo"]
        yield s.finding(
            "interface-missing",
            Severity.NOTE if hit else Severity.BROKEN,
            f"{', '.join(missed)} names no interface of this host ({', '.join(here)})",
            "Name an interface that every host has, or remove the variable:",
            f"{s.name}={usable[0]}" if usable else f"unset {s.name}",
            **({} if hit else {"cause": "socket-interface-wrong", "status": "established"}),
        )


def hca_missing(host: Host, s: Setting) -> Iterator[Finding]:
    """A named adapter that this host does not have: NCCL uses the remaining ones, or sockets."""
    hit, missed = _matches(s.value, known(host.hcas), False)
    if s.name == "NCCL_IB_HCA" and not isinstance(host.hcas, Gap) and host.hcas and missed:
        left = f"NCCL uses only {', '.join(hit)}" if hit else "NCCL uses sockets"
        yield s.finding(
            "hca-missing",
            Severity.NOTE if hit else Severity.WARN,
            f"no adapter of this host matches {', '.join(missed)}, so {left}",
            "Name adapters of this host:",
            f"NCCL_IB_HCA={','.join(host.hcas)}",
        )


def of_several_hosts(role: Role) -> bool:
    """Whether the role's job spans several hosts, by its node count or torchrun's world sizes."""
    world, local = (role.variables.get(n, "") for n in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return role.nodes > 1 or (world.isdecimal() and local.isdecimal() and world != local)


def name_not_resolved(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """The host cannot resolve its own name, which MASTER_ADDR=$(hostname) needs; otherwise a note: one host
    falls back to loopback (torch 2.11, Gloo)."""
    if isinstance(host.addresses, Gap) and host.addresses.reason != "not-run":
        yield Finding(
            "name-not-resolved",
            Severity.WARN
            if any(r.variables.get("MASTER_ADDR") == host.name for r in roles)
            else Severity.NOTE,
            f"the host's own name, {host.name}, does not resolve",
            (Evidence(host.addresses.detail, "environment.host.addresses"),),
            (
                Remedy(
                    "the administrator", "Add the name to DNS or /etc/hosts.", (f"getent hosts {host.name}",)
                ),
                Remedy(
                    "your launcher",
                    "As a workaround, set MASTER_ADDR to the IP address of the host of rank 0, and name "
                    "Gloo's network interface:",
                    ("GLOO_SOCKET_IFNAME=eth0",),
                ),
            ),
            cause="rendezvous-name-resolution",
            status="possible",
        )


def peer_traffic_redirected(host: Host) -> Iterator[Finding]:
    """PCI access control redirects traffic between GPUs through the root: slow, or hanging with an IOMMU. A
    note: this is usual with an IOMMU and does not affect NVLink; steps 03 and 04 measure the effect."""
    if not isinstance(host.acs, Gap) and host.acs:
        yield Finding(
            "peer-traffic-redirected",
            Severity.NOTE,
            f"Access Control Services (ACS) redirect peer-to-peer traffic at {len(host.acs)} PCIe bridges",
            (
                Evidence(", ".join(host.acs[:8]), "environment.host.acs"),
                Evidence(f"IOMMU {host.iommu}", "environment.host.iommu"),
            ),
            (
                Remedy(
                    "the administrator",
                    "On bare metal, disable ACS on these bridges. In a virtual machine, "
                    "ask the host's administrator to do so.",
                    tuple(f"sudo setpci -s {b} ECAP_ACS+6.w=0000" for b in host.acs[:8]),
                ),
            ),
            cause="p2p-broken-acs-iommu",
            status="possible",
        )
