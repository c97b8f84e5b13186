"""What differs between hosts, and which hosts are the odd ones."""

import functools
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.core.facts import Evidence, Gap, counted, grouped, listed
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.hosts.facts import Difference, HostFacts, Hosts

UNSET = "(absent)"
LIST_MOST = 8  # names of hosts in one sentence
ASK = Remedy(
    "you", "Give the deviating hosts the same set-up as the other hosts, or exclude them from the job."
)


@functools.cache
def _rules() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("same.toml").read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=4096)
def is_own(path: str) -> bool:
    """Whether a path is each host's own, and never compared."""
    return bool(re.search("|".join(_rules()["own"]), path))


@functools.lru_cache(maxsize=4096)
def rule_of(path: str) -> dict[str, Any] | None:
    """The row of same.toml that applies to a path, with its name filled in; None if there is none."""
    for row in _rules()["fact"]:
        if match := re.search(row["path"], path):
            return {**row, "name": row["name"].format(**match.groupdict())}
    return None


def names(hosts: Sequence[str]) -> str:
    """Hosts in a sentence; for many hosts the first ones and the number of the rest."""
    return listed(hosts, LIST_MOST)


def differences(hosts: Sequence[HostFacts]) -> list[Difference]:
    """Facts that differ between the hosts that show them, in reading order: what can fail a job first, then
    what splits off the fewest hosts. From three hosts on, a fact that differs on every host is left out."""
    gapped = [sorted(p for p, v in h.facts.items() if isinstance(v, Gap)) for h in hosts]
    roots = [{_root(p) for p in h.facts} for h in hosts]
    usual_counts, whole = _usual_counts(hosts), {p for h in hosts for p in h.facts}
    gaps = {gap for blind in gapped for gap in blind}
    above = {path[: end.start()] for path in whole for end in re.finditer(r"[.\[]", path)}
    by_values: dict[tuple[Any, ...], list[str]] = {}
    for path in sorted(whole):
        if is_own(path):
            continue
        rule = rule_of(path) or {}
        counts = [f"{path[: index.start()]}.count" for index in re.finditer(r"\[\d+\]", path)]
        is_below = _below(path, gaps)
        values = [
            (_said(value), h.host)
            for h, blind, known in zip(hosts, gapped, roots, strict=True)
            if _root(path) in known and not (is_below and _below(path, blind))
            if all(h.facts.get(count) == usual_counts.get(count) for count in counts)
            if (value := _unsaid(path, h, rule, path in above)) is not None
        ]
        by_value = grouped(values)
        if len(by_value) < 2 or (len(hosts) > 2 and len(by_value) == len(values) and not rule):
            continue
        ranked = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
        kind = rule.get("name") or re.sub(r"\[\d+\]", "[*]", path)
        key = (kind, _severity(path, rule, hosts, by_value), tuple((v, tuple(h)) for v, h in ranked))
        by_values.setdefault(key, []).append(path)
    return sorted(
        (
            Difference(kind, paths, {value: list(hosts_of) for value, hosts_of in ranked}, how)
            for (kind, how, ranked), paths in by_values.items()
        ),
        key=lambda d: (d.severity != "warn", len(d.odd), d.name, d.paths),
    )


def _usual_counts(hosts: Sequence[HostFacts]) -> dict[str, str | Gap]:
    """Path of a list's count -> the count of most hosts. The elements of a list that is longer or shorter do
    not pair with those of the others: only its count is compared."""
    counts = grouped((p, v) for h in hosts for p, v in h.facts.items() if p.endswith(".count"))
    return {path: Counter(values).most_common(1)[0][0] for path, values in counts.items()}


def _said(value: str | Gap) -> str:
    return f"(could not say: {value})" if isinstance(value, Gap) else value or "(empty)"


def _unsaid(path: str, host: HostFacts, rule: dict[str, Any], is_above: bool) -> str | Gap | None:
    """What a path that a host lacks counts as: a Gap elsewhere is an answer here, and only of some facts
    (``unset`` in same.toml) was every host asked. ``is_above``: whether any host has facts below it."""
    value = host.facts.get(path)
    if value is not None:
        return value
    if is_above and any(p.startswith((f"{path}.", f"{path}[")) for p in host.facts):
        return "(answered)"
    return UNSET if rule.get("unset") else None


def _severity(
    path: str, rule: dict[str, Any], hosts: Sequence[HostFacts], values: dict[str, list[str]]
) -> str:
    """Severity of a difference: an interface without an address is unused; a fact that a host could not read
    is serious."""
    unused = rule.get("used") and any(
        h.facts.get(f"{path.rpartition('.')[0]}.address", "?") == "" for h in hosts
    )
    unread = any(v.startswith(("(could not say: failed", "(could not say: timed-out")) for v in values)
    return "warn" if unread and not unused else "note" if unused else rule.get("severity", "note")


def compared(hosts: Sequence[HostFacts]) -> dict[str, int]:
    """Host -> number of its facts (without Gaps) that another host shows too."""
    shown = [{p for p, v in h.facts.items() if not isinstance(v, Gap) and not is_own(p)} for h in hosts]
    counts = Counter(p for paths in shown for p in paths)
    return {h.host: sum(counts[p] > 1 for p in paths) for h, paths in zip(hosts, shown, strict=True)}


def _unread(hosts: Sequence[HostFacts]) -> list[str]:
    """Paths that no host could read although each tried."""
    tried = [
        {p for p, v in h.facts.items() if isinstance(v, Gap) and v.reason in ("failed", "timed-out")}
        for h in hosts
    ]
    return sorted(set.intersection(*tried)) if tried else []


def _root(path: str) -> str:
    return ".".join(path.split(".", 2)[:2])


def _below(path: str, gaps: Iterable[str]) -> bool:
    return any(path.startswith((f"{gap}.", f"{gap}[")) for gap in gaps)


def judge_hosts(asked_hosts: Hosts, differing: Sequence[Difference]) -> list[Finding]:
    """Findings of the comparison; hosts and files that gave nothing are unknown and do not hide the
    others."""
    answered = asked_hosts.answered
    findings = [_differs(d) for d in differing if d.severity == "warn"]
    minor = [d for d in differing if d.severity != "warn"]
    if minor:
        text = f"{len(minor)} further facts differ between hosts, but none of them is known to stop a job."
        shown = tuple(Evidence(_values(d), d.paths[0]) for d in minor[:6])
        findings.append(Finding("hosts-minor-differences", Severity.NOTE, text, shown))
    findings += [
        Finding(
            "host-lost",
            Severity.UNKNOWN,
            f"{host} answered at first, and then the connection was lost: {gap.detail}",
            (Evidence(str(gap), host),),
        )
        for host, gap in asked_hosts.lost.items()
    ]
    findings += [
        Finding(
            "host-not-seen",
            Severity.UNKNOWN,
            f"{name} reported no facts about itself: {gap.detail or gap.reason}",
            (Evidence(str(gap), name),),
        )
        for name, gap in asked_hosts.missing.items()
    ]
    findings += _steps(asked_hosts)
    if len(answered) < 2:
        findings.append(
            Finding(
                "hosts-too-few",
                Severity.UNKNOWN,
                f"{counted(len(answered), 'host')} reported facts, but a comparison needs two hosts.",
            )
        )
    counts = compared(answered)
    alone = [host for host, count in counts.items() if not count] if len(answered) > 1 else []
    unread = _unread(answered) if len(answered) > 1 else []
    if alone or unread:
        text = f"No fact of {names(alone)} could be compared with a fact of another host." if alone else ""
        text += f" No host could read {names(unread)}, so this was not compared." if unread else ""
        findings.append(Finding("hosts-not-compared", Severity.UNKNOWN, text.strip()))
    elif len(answered) > 1 and not differing:
        facts = sum(counts.values())
        findings.append(
            Finding(
                "hosts-alike",
                Severity.OK,
                f"{counted(len(answered), 'host')} agree in all compared facts ({facts}).",
            )
        )
    return findings


def _values(difference: Difference) -> str:
    return "; ".join(f"{value}: {names(hosts)}" for value, hosts in [*difference.values.items()][:4])


def _differs(difference: Difference) -> Finding:
    rule = {"cause": "nodes-differ", **(rule_of(difference.paths[0]) or {})}
    odd, majority = difference.odd, difference.majority
    verb = "differs" if len(odd) == 1 else "differ"
    title = (
        f"{names(odd)} {verb} from {counted(len(difference.values[majority]), 'host')} in {difference.name}."
        if majority
        else f"{names(odd)} have different values of {difference.name}, and no value is that of most hosts."
    )
    evidence = (Evidence(_values(difference), difference.paths[0]),)
    remedies = tuple(remedies_for(rule["cause"])) or (ASK,)
    return Finding(
        "hosts-differ",
        Severity.WARN,
        title,
        evidence,
        (ASK, *remedies),
        cause=rule["cause"],
        status="possible",
    )


_STEP_IS = {
    "broken": Severity.BROKEN,
    "warn": Severity.WARN,
    "unknown": Severity.UNKNOWN,
    "running": Severity.UNKNOWN,
}


def _steps(asked_hosts: Hosts) -> list[Finding]:
    """What each host's own records say: hosts that are broken alike differ in nothing."""
    same = grouped(
        ((step, status, reason), host)
        for host, steps in asked_hosts.judged.items()
        for step, (status, reason) in steps.items()
        if status in _STEP_IS
    )
    return [
        Finding(
            f"host-step-{_STEP_IS[status].value}",
            _STEP_IS[status],
            f"{step} is {_STEP_IS[status].value} on {names(hosts)}: {reason}",
            (Evidence(reason, f"{step} of {hosts[0]}"),),
            (_alone(asked_hosts, hosts[0], step),),
        )
        for (step, status, reason), hosts in same.items()
    ]


def _alone(asked_hosts: Hosts, host: str, step: str) -> Remedy:
    """How to judge the record of a step of one host alone."""
    line = f"nccl-runbook run --record {shlex.quote(asked_hosts.records[host, step][-1].path)}"
    return Remedy("you", f"To get the cause and the fix, judge the record of {host} alone:", (line,))


def exclude(failing: Sequence[str]) -> str:
    """The option of Slurm that leaves out these hosts; empty without hosts. A record may give a host any
    name: what is no host name is not in it."""
    hosts = [host for host in failing if re.fullmatch(r"[A-Za-z0-9][\w.:-]*", host, re.ASCII)]
    return f"--exclude={','.join(hosts)}" if hosts else ""


def leave_out(failing: Sequence[str]) -> list[Remedy]:
    """The remedy that leaves out these hosts, if any."""
    option = exclude(failing)
    return (
        [Remedy("your launcher", "Exclude the failing hosts until they are repaired:", (option,))]
        if option
        else []
    )


def broken_hosts(asked_hosts: Hosts) -> list[str]:
    """Hosts with a broken step; empty if most hosts are broken, since then no single host is at fault."""
    broken = [
        h
        for h, steps in asked_hosts.judged.items()
        if any(status == "broken" for status, _ in steps.values())
    ]
    return broken if 2 * len(broken) <= len(asked_hosts.hosts) else []
