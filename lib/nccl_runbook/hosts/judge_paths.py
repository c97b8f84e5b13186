"""What TCP connections between hosts say about the path."""

from collections.abc import Sequence

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.core.facts import Evidence, Gap, grouped, known
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.hosts.facts import TcpPath
from nccl_runbook.hosts.judge import names

# kind -> the finding's id, its cause, and what happened, after "From n2 to n1:"
KINDS = {
    "no-answer": (
        "tcp-dropped",
        "network-path-blocked",
        "no answer on port {port}, so packets are dropped on the way.",
    ),
    "refused": (
        "tcp-refused",
        "network-path-blocked",
        "port {port} is refused although the runbook's agent listens on it, so a firewall rejects the "
        "connection.",
    ),
    "large-lost": (
        "tcp-mtu",
        "mtu-black-hole",
        "1 byte passes but 1 MiB does not, so full-size packets are lost (segments of {mss} bytes).",
    ),
    "no-route": ("tcp-no-route", "no-route-between-hosts", "no route ({detail})."),
    "unresolved": (
        "name-unresolved",
        "rendezvous-name-resolution",
        "the name {target} does not resolve ({detail}).",
    ),
    "loopback": (
        "name-is-loopback",
        "rendezvous-name-resolution",
        "the name {target} resolves to {address}, an address by which {source} reaches only itself.",
    ),
    "other-host": (
        "tcp-other-host",
        "rendezvous-name-resolution",
        "{address} is not {target}, because another machine answers at this address.",
    ),
    "closed": ("tcp-closed", "network-path-blocked", "the connection ended early ({detail})."),
    "not-tried": ("tcp-not-tried", None, "not tried: {detail}."),
}
_FIREWALL = (
    "Packets between these hosts are blocked. Please allow all TCP ports between the nodes of a job, "
    "because NCCL and Gloo choose their ports themselves."
)


def kind_of(path: TcpPath) -> str:
    """Kind of a path; "loopback" if the name led there, however the connection ended."""
    return "loopback" if path.address.startswith("127.") and path.source != path.target else path.kind


def failed(paths: Sequence[TcpPath] | Gap) -> list[TcpPath]:
    """Paths that did not pass, and those that led to loopback; empty for a Gap. Untried paths do not
    count."""
    return [p for p in known(paths) if p.kind not in ("passes", "not-tried") or kind_of(p) == "loopback"]


def failing(paths: Sequence[TcpPath] | Gap) -> list[str]:
    """The one host that takes part in every failed path while others pass; empty if there is none or only
    two hosts."""
    wrong = [{p.source, p.target} for p in failed(paths)]
    hosts = {h for p in known(paths) for h in (p.source, p.target)}
    common = set.intersection(*wrong) if wrong else set()
    return sorted(common) if len(hosts) > 2 and len(common) == 1 else []


def judge_paths(paths: Sequence[TcpPath] | Gap) -> list[Finding]:
    """One finding for each kind and purpose of failed paths, with every path as evidence. A wrong name is
    wrong for every purpose."""
    tried = known(paths)
    groups = grouped(
        ((kind_of(p), *(("", p.target) if kind_of(p) in ("loopback", "unresolved") else (p.purpose, ""))), p)
        for p in tried
    )
    wrong = [_finding(kind, purpose, of) for (kind, purpose, _), of in groups.items() if kind != "passes"]
    fine = [p for p in tried if kind_of(p) == "passes"]
    text = f"{len(fine)} of {len(tried)} TCP paths between hosts pass 1 byte and 1 MiB in both directions."
    return [*wrong, *([Finding("tcp-passes", Severity.OK, text)] if fine else [])]


def _finding(kind: str, purpose: str, paths: Sequence[TcpPath]) -> Finding:
    name, cause, text = KINDS[kind]
    first = paths[0]
    sources, targets = (list(dict.fromkeys(getattr(p, end) for p in paths)) for end in ("source", "target"))
    where = f"From {names(sources)} to {names(targets)}"
    title = f"{where}{f' ({purpose})' if purpose else ''}: {text.format(**vars(first))}"
    evidence = tuple(
        Evidence(
            f"{p.source} -> {p.target} ({p.address}) port {p.port}: {p.kind} {p.detail} {p.stage}".strip(),
            "TCP connection",
        )
        for p in paths[:6]
    )
    if cause is None:
        return Finding(name, Severity.UNKNOWN, title, evidence)
    return Finding(
        name,
        Severity.BROKEN,
        title,
        evidence,
        _remedies(kind, cause, first),
        cause=cause,
        status="established",
    )


def _remedies(kind: str, cause: str, path: TcpPath) -> tuple[Remedy, ...]:
    if kind in ("no-answer", "refused"):
        lines = (f"nc -vz -w 3 {path.target} {path.port}", "iptables -S; nft list ruleset")
        return (Remedy("the administrator", _FIREWALL, lines),)
    if kind in ("loopback", "unresolved"):
        text = f"Map the name {path.target} to its own address on every node, in /etc/hosts or DNS."
        return (Remedy("the administrator", text, (f"getent ahostsv4 {path.target}",)),)
    commands = {
        "large-lost": ("ip link", f"ping -M do -s SIZE -c 3 {path.address}", f"tracepath -n {path.address}"),
        "no-route": (f"ip route get {path.address}",),
    }
    return tuple(
        Remedy(r.who, r.text, commands.get(kind, r.lines) if r.who == "the administrator" else r.lines)
        for r in remedies_for(cause)
    )
