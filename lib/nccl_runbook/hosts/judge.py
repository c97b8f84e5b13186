"""What differs between hosts, and which hosts are the odd ones."""

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.causes.causes import usual
from nccl_runbook.core.facts import Evidence, Gap, counted, grouped
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.hosts.facts import Difference, HostFacts, Hosts

UNSET = "(absent)"
LIST_MOST = 8  # names of hosts in one sentence
ASK = Remedy("you", "Make the odd hosts like the others, or leave them out of the job.")


@functools.cache
def _rules() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("same.toml").read_text(encoding="utf-8"))


@functools.cache
def _own() -> re.Pattern[str]:
    return re.compile("|".join(_rules()["own"]))


@functools.lru_cache(maxsize=4096)
def rule_of(path: str) -> dict[str, str] | None:
    """The row of same.toml that a path falls under, its name filled in."""
    for row in _rules()["fact"]:
        if match := re.search(row["path"], path):
            return {**row, "name": row["name"].format(**match.groupdict())}
    return None


def names(hosts: Sequence[str]) -> str:
    """Hosts in a sentence; of many the first ones and how many more."""
    more = f" and {len(hosts) - LIST_MOST} more" * (len(hosts) > LIST_MOST)
    return ", ".join(hosts[:LIST_MOST]) + more


def differences(hosts: Sequence[HostFacts]) -> list[Difference]:
    """Facts that are not the same on every host that shows them, in the order in which they are read: what
    a job can fail by first, then those that split off the fewest hosts. Facts of which each host has a
    value of its own say nothing from three hosts on."""
    gapped = [sorted(p for p, v in h.facts.items() if isinstance(v, Gap)) for h in hosts]
    roots = [{_root(p) for p in h.facts} for h in hosts]
    found: dict[tuple[Any, ...], list[str]] = {}
    for path in sorted({p for h in hosts for p in h.facts}):
        if _own().search(path):
            continue
        values = [
            (str(value), h.host)
            for h, blind, known in zip(hosts, gapped, roots, strict=True)
            if _root(path) in known and not _below(path, blind)
            for value in [h.facts.get(path, UNSET)]
            if not isinstance(value, Gap)
        ]
        if len({v for v, _ in values}) < 2:
            continue
        by_value = grouped(values)
        if len(hosts) > 2 and len(by_value) == len(values):
            continue
        ranked = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
        rule = rule_of(path)
        kind = rule["name"] if rule else re.sub(r"\[\d+\]", "[*]", path)
        key = (kind, tuple((v, tuple(h)) for v, h in ranked))
        found.setdefault(key, []).append(path)
    made = [_difference(kind, paths, dict(ranked)) for (kind, ranked), paths in found.items()]
    return sorted(made, key=lambda d: (severity(d) != "warn", len(d.odd), d.name, d.paths))


def _difference(kind: str, paths: list[str], values: dict[str, tuple[str, ...]]) -> Difference:
    listed = {value: list(hosts) for value, hosts in values.items()}
    made = Difference(kind, paths, listed, [])
    odd = [h for value, hosts in listed.items() if value != made.majority or not made.majority for h in hosts]
    return Difference(kind, paths, listed, odd)


def _root(path: str) -> str:
    return ".".join(path.split(".", 2)[:2])


def _below(path: str, gaps: Iterable[str]) -> bool:
    return any(path == gap or path.startswith((f"{gap}.", f"{gap}[")) for gap in gaps)


def severity(difference: Difference) -> str:
    rule = rule_of(difference.paths[0])
    return rule["severity"] if rule else "note"


def odd_hosts(found: Iterable[Difference]) -> list[str]:
    """Hosts against a majority in what a job can fail by, those with the most differences first."""
    counts = Counter(h for d in found if d.majority and severity(d) == "warn" for h in d.odd)
    return [host for host, _ in counts.most_common()]


def judge(seen: Hosts, found: Sequence[Difference]) -> list[Finding]:
    """The comparison as findings; hosts and files that gave nothing are unknown, and hide nothing of the
    others."""
    answered = seen.answered
    findings = [_differs(d) for d in found if severity(d) == "warn"]
    minor = [d for d in found if severity(d) != "warn"]
    if minor:
        text = f"Further facts that differ: {len(minor)}. None of them is known to stop a job."
        shown = tuple(Evidence(_values(d), d.paths[0]) for d in minor[:6])
        findings.append(Finding("hosts-minor-differences", Severity.NOTE, text, shown))
    findings += [
        Finding(
            "host-lost",
            Severity.UNKNOWN,
            f"{host} answered at first and was lost: {gap.detail}",
            (Evidence(str(gap), host),),
        )
        for host, gap in seen.lost.items()
    ]
    missing = {**{h: g for h, g in seen.hosts.items() if isinstance(g, Gap)}, **seen.unread}
    findings += [
        Finding(
            "host-not-seen",
            Severity.UNKNOWN,
            f"{name} gave no facts: {gap.detail or gap.reason}",
            (Evidence(str(gap), name),),
        )
        for name, gap in missing.items()
    ]
    findings += [*_loopback(answered), *_interfaces(answered), *_steps(seen)]
    if len(answered) < 2:
        findings.append(
            Finding(
                "hosts-too-few",
                Severity.UNKNOWN,
                f"Only {counted(len(answered), 'host')} gave facts: nothing to compare.",
            )
        )
    elif not found:
        facts = sum(len(h.facts) for h in answered)
        findings.append(
            Finding(
                "hosts-alike",
                Severity.OK,
                f"{counted(len(answered), 'host')} agree in every fact ({facts} compared).",
            )
        )
    return findings


def _values(difference: Difference) -> str:
    return "; ".join(f"{value}: {names(hosts)}" for value, hosts in [*difference.values.items()][:4])


def _differs(difference: Difference) -> Finding:
    rule = rule_of(difference.paths[0]) or {}
    odd, majority = difference.odd, difference.majority
    verb = "differs" if len(odd) == 1 else "differ"
    title = (
        f"{names(odd)} {verb} from {counted(len(difference.values[majority]), 'host')} in {difference.name}."
        if majority
        else f"{names(odd)} differ in {difference.name}, and no value has a majority."
    )
    evidence = (Evidence(_values(difference), difference.paths[0]),)
    remedies = tuple(usual(rule["cause"])) or (ASK,)
    return Finding(
        "hosts-differ", Severity.WARN, title, evidence, (ASK, *remedies), rule["cause"], "possible"
    )


def _loopback(hosts: Sequence[HostFacts]) -> list[Finding]:
    """A host whose own name leads to loopback gives the others an address at which each of them finds only
    itself."""
    found = []
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
            found.append(
                Finding(
                    "host-name-is-loopback",
                    Severity.BROKEN,
                    title,
                    evidence,
                    (remedy,),
                    "rendezvous-name-resolution",
                    "likely",
                )
            )
    return found


def _interfaces(hosts: Sequence[HostFacts]) -> list[Finding]:
    """A variable that names no interface of the host, or loopback alone: with it no rank finds one on
    another host."""
    found: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        devices = {p.split(".")[2] for p in host.facts if p.startswith("network.interfaces.")}
        for path, value in host.facts.items():
            name = path.rpartition(".variables.")[2]
            if (
                name not in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
                or not isinstance(value, str)
                or not devices
            ):
                continue
            if not value.startswith("^") and not _named(value, devices, name.startswith("GLOO")) - {"lo"}:
                found.setdefault((name, value), []).append(host.host)
    return [
        Finding(
            "hosts-interface-wrong",
            Severity.BROKEN,
            f"{name}={value} on {names(where)} names no interface that reaches another host.",
            (Evidence(f"{name}={value}", where[0]),),
            tuple(usual("socket-interface-wrong")),
            "socket-interface-wrong",
            "established",
        )
        for (name, value), where in found.items()
        if len(hosts) > 1
    ]


def _named(value: str, devices: set[str], whole: bool) -> set[str]:
    """The interfaces that a value selects: NCCL takes prefixes, unless "=" stands first (NCCL 2.30, user
    guide); Gloo whole names."""
    words = [w for w in value.removeprefix("=").split(",") if w]
    exact = whole or value.startswith("=")
    return {
        d
        for d in devices
        for w in words
        if (d == w.partition(":")[0] if exact else d.startswith(w.partition(":")[0]))
    }


_STEP_IS = {
    "broken": Severity.BROKEN,
    "warn": Severity.WARN,
    "unknown": Severity.UNKNOWN,
    "running": Severity.UNKNOWN,
}


def _steps(seen: Hosts) -> list[Finding]:
    """What each host's own records say: hosts that are broken alike differ in nothing."""
    same = grouped(
        ((step, status, reason), host)
        for host, steps in seen.judged.items()
        for step, (status, reason) in steps.items()
        if status in _STEP_IS
    )
    one_host = Remedy(
        "you",
        "Judge one of these records alone for the cause and the fix:",
        ("nccl-runbook run --record FILE",),
    )
    return [
        Finding(
            f"host-step-{_STEP_IS[status].value}",
            _STEP_IS[status],
            f"{step} is {_STEP_IS[status].value} on {names(hosts)}: {reason}",
            (Evidence(reason, f"{step} of {hosts[0]}"),),
            (one_host,),
        )
        for (step, status, reason), hosts in same.items()
    ]


def broken_hosts(seen: Hosts) -> list[str]:
    """Hosts with a broken step; none if every host is broken, as that is no matter of a host."""
    broken = [
        h for h, steps in seen.judged.items() if any(status == "broken" for status, _ in steps.values())
    ]
    return broken if len(broken) < len(seen.hosts) else []
