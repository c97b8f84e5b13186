"""Names and interfaces as the hosts report them."""

from collections.abc import Iterator, Sequence

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.core.facts import Evidence, grouped
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.hosts.facts import HostFacts
from nccl_runbook.hosts.judge import names


def judge_network(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Findings about names that lead to loopback, and about network interfaces."""
    return [*_loopback(hosts), *_interfaces(hosts)]


def _loopback(hosts: Sequence[HostFacts]) -> Iterator[Finding]:
    """A host whose own name leads to loopback gives the others an address at which each of them finds only
    itself."""
    for host in hosts:
        own = host.facts.get(f"network.names.{host.host}")
        if isinstance(own, str) and own and all(a.startswith("127.") for a in own.split(", ")):
            remedy = Remedy(
                "the administrator",
                f"Map the name {host.host} to the host's own address in /etc/hosts or DNS.",
                (f"getent ahostsv4 {host.host}",),
            )
            title = f"{host.host} resolves its own name to {own}, an address that no other host can reach."
            evidence = (Evidence(f"{host.host} -> {own}", f"{host.host}: getaddrinfo"),)
            yield Finding(
                "host-name-is-loopback",
                Severity.BROKEN,
                title,
                evidence,
                (remedy,),
                cause="rendezvous-name-resolution",
                status="likely",
            )


def _interfaces(hosts: Sequence[HostFacts]) -> list[Finding]:
    """A variable that names no interface of the host, or loopback alone: with it no rank finds one on
    another host."""
    by_setting = grouped((setting, host.host) for host in hosts for setting in _without_interface(host))
    return [
        Finding(
            "hosts-interface-wrong",
            Severity.BROKEN,
            f"{name}={value} on {names(where)} names no interface that reaches another host.",
            (Evidence(f"{name}={value}", where[0]),),
            tuple(remedies_for("socket-interface-wrong")),
            cause="socket-interface-wrong",
            status="established",
        )
        for (name, value), where in by_setting.items()
        if len(hosts) > 1
    ]


def _without_interface(host: HostFacts) -> Iterator[tuple[str, str]]:
    """(name, value) of the settings that name no interface of this host but lo."""
    below = "network.interfaces."  # the name of a VLAN has a dot: bond0.42
    devices = {p[len(below) :].rpartition(".")[0] for p in host.facts if p.startswith(below)} - {""}
    for path, value in host.facts.items() if devices else ():
        name = path.rpartition(".variables.")[2]
        if (
            name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
            and isinstance(value, str)
            and len(value) > 1
            and not _named(value, devices, name.startswith("GLOO")) - {"lo"}
        ):
            yield name, value


def _named(value: str, devices: set[str], whole: bool) -> set[str]:
    """The interfaces that a value selects: NCCL takes prefixes, unless "=" stands first, and all others
    after "^" (NCCL 2.30, user guide); Gloo whole names. Both ignore an empty value."""
    wanted = value.removeprefix("^")
    exact = whole or wanted.startswith("=")
    words = [w.strip().partition(":")[0] for w in wanted.removeprefix("=").split(",") if w.strip()]
    chosen = {d for d in devices for w in words if (d == w if exact else d.startswith(w))}
    return devices - chosen if value.startswith("^") else chosen
