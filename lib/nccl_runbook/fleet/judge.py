"""One night of a fleet: who differs or did not answer, and what changed since the previous night."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast, get_args

from nccl_runbook.core.facts import Evidence, Gap, Reason, counted, grouped, known
from nccl_runbook.core.findings import Finding, Remedy, Severity, worst_first
from nccl_runbook.fleet.facts import MISSING, ORDER, Change, Fleet, History, Line, Night
from nccl_runbook.fleet.judge_rates import flaky, judge_rates, rates
from nccl_runbook.hosts import judge as rules
from nccl_runbook.hosts.facts import Difference, HostFacts

GAP = "gap: "  # begins a value that could not be read
STATUS = "status"  # name of the change of a node's outcome
LOOK_AGAIN = Remedy(
    "you",
    "Repeat the test on the nodes that wrote no record. If a node again writes no record, ask "
    "your administrator.",
)


def lines_of(night: Night, differing: Sequence[Difference], missing: Sequence[str] = ()) -> list[Line]:
    """The lines of one night: first what most nodes share, then each node with the facts of its own. Only
    facts that must be the same on every host (hosts/same.toml) are kept."""
    facts = {h.host: named_facts(h) for h in night.hosts.answered}
    counts = Counter(item for own in facts.values() for item in own.items())
    shared = {path: value for (path, value), number in counts.items() if 2 * number > len(facts)}
    odd = grouped((node, d.name) for d in differing if d.severity == "warn" for node in d.odd)
    made = [Line(night.name, facts=dict(sorted(shared.items())))]
    for node, own in facts.items():
        steps = _steps(night, node)
        status, reason = min(steps.values(), key=lambda ended: ORDER.index(ended[0]), default=("unknown", ""))
        different: dict[str, str | None] = {
            **{path: value for path, value in sorted(own.items()) if shared.get(path) != value},
            **{path: None for path in shared if path not in own},
        }
        made.append(
            Line(
                night.name,
                node,
                status=status,
                reason=reason if status not in ("ok", "note") else "",
                steps={step: ended[0] for step, ended in steps.items()},
                odd=list(dict.fromkeys(odd.get(node, []))),
                facts=different,
            )
        )
    return [*made, *(Line(night.name, node, MISSING, "no record") for node in missing)]


def named_facts(host: HostFacts) -> dict[str, str]:
    """Path -> value of the facts that same.toml names, and of Gaps as text."""
    return {
        path: f"{GAP}{value}" if isinstance(value, Gap) else value
        for path, value in host.facts.items()
        if (isinstance(value, Gap) or rules.rule_of(path)) and not rules.is_own(path)
    }


def _fact(text: str) -> str | Gap:
    """A value of the history as ``named_facts`` had it."""
    if not text.startswith(GAP):
        return text
    reason, _, detail = text.removeprefix(GAP).partition(": ")
    return Gap(cast(Reason, reason), detail) if reason in get_args(Reason) else text


def _steps(night: Night, node: str) -> dict[str, tuple[str, str]]:
    """Step -> (status, reason): the worst of its records, since a failure is not undone by a later pass."""
    worst = {
        step: min(reversed(night.hosts.records[node, step]), key=lambda one: ORDER.index(one.status))
        for step in night.hosts.judged.get(node, {})
    }  # of equally bad ones the latest
    return {step: (record.status, record.reason) for step, record in worst.items()}


def missing_nodes(history: History, night: Night, expected: Sequence[str] | Gap) -> dict[str, str]:
    """Node that left no record in this night -> the last night in which it left one, or empty. Expected are
    the given names, else all nodes of earlier nights."""
    earlier = [name for name in sorted(history.lines) if name < night.name]
    recorded = (node for name in earlier for node in history.lines[name])
    full = _full_names([*recorded, *known(expected), *night.hosts.hosts])
    answers = {
        full.get(node, node): name
        for name in earlier
        for node, line in history.lines[name].items()
        if node and line.status != MISSING
    }
    here = {full.get(host, host) for host in night.hosts.hosts}
    nodes = sorted(answers) if isinstance(expected, Gap) else [full.get(node, node) for node in expected]
    return {node: answers.get(node, "") for node in nodes if node not in here}


def _full_names(nodes: Iterable[str]) -> dict[str, str]:
    """Short name -> the full name that it stands for (n1 -> n1.example.org), unless two begin with it."""
    by_short = grouped((node.partition(".")[0], node) for node in {*nodes} if "." in node)
    return {short: full[0] for short, full in by_short.items() if len(full) == 1}


def changes(history: History, night: Night, lines: Sequence[Line]) -> list[Change]:
    """What differs on each node from the last night in which it left a record; equal changes are one."""
    shared, *nodes = lines
    every = [
        change
        for line in nodes
        if line.status != MISSING and (last := _last_answer(line.node, history, night))
        for change in _changed(*last, line, shared)
    ]
    alike = grouped(((c.name, c.was, c.now, c.since, c.severity), c) for c in every)
    made = [dataclasses.replace(same[0], nodes=[c.nodes[0] for c in same]) for same in alike.values()]
    return sorted(made, key=lambda c: (c.name != STATUS, c.severity != "warn", -len(c.nodes), c.name))


def _last_answer(node: str, history: History, night: Night) -> tuple[Line, Line] | None:
    """The line of a node of its last night with a record, and what most nodes of that night share."""
    for name in sorted(history.lines, reverse=True):
        lines = history.lines[name]
        if name < night.name and node in lines and lines[node].status != MISSING:
            return lines[node], lines.get("", Line(name))
    return None


def _changed(before: Line, shared_then: Line, line: Line, shared_now: Line) -> Iterable[Change]:
    """The changes of one node."""
    if before.status != line.status:
        severity = "warn" if line.failed else "note"
        yield Change(STATUS, before.status, line.status, before.night, [line.node], severity)
    then, now = {**shared_then.facts, **before.facts}, {**shared_now.facts, **line.facts}
    if then == now:
        return
    pair = [
        HostFacts(name, "history", {path: _fact(value) for path, value in facts.items() if value is not None})
        for name, facts in (("then", then), ("now", now))
    ]
    for difference in rules.differences(pair):
        if not rules.rule_of(difference.paths[0]) and difference.severity != "warn":
            continue
        values = {host: value for value, hosts in difference.values.items() for host in hosts}
        yield Change(
            difference.name,
            values["then"],
            values["now"],
            before.night,
            [line.node],
            difference.severity,
        )


def fleet(night: Night, history: History, expected: list[str] | Gap) -> Fleet:
    """The newest night beside the earlier ones, which ``history`` holds."""
    differing = rules.differences(night.hosts.answered)
    missing = missing_nodes(history, night, expected)
    lines = lines_of(night, differing, [*missing])
    earlier = {name: then for name, then in history.lines.items() if name < night.name}
    nights = {**earlier, night.name: {line.node: line for line in lines}}
    whole = dataclasses.replace(history, lines=nights)
    nodes = {line.node: line for line in lines if line.node}
    failing = [rate for rate in rates(whole) if rate.node in nodes]  # others have left the fleet
    ever = {node for then in nights.values() for node in then if node}
    return Fleet(
        night,
        nodes,
        history=whole,
        expected=expected,
        changes=changes(history, night, lines),
        rates=failing,
        flaky=flaky(failing, len(ever)),
        last_answers=missing,
        differing=differing,
    )


def judge(fleet: Fleet) -> list[Finding]:
    """Findings of the newest night, worst first: those of the hosts compared, and those of the fleet."""
    night = fleet.night
    compared = rules.judge_hosts(dataclasses.replace(night.hosts, unread={}), fleet.differing)
    leave_out = rules.leave_out(failing_nodes(fleet))
    return worst_first(
        [
            *(
                dataclasses.replace(f, remedy=(*leave_out, *f.remedy)) if f.id == "host-step-broken" else f
                for f in compared
            ),
            *judge_rates(fleet),
            *_missing(fleet),
            *_unread(fleet),
            *_repeated(night),
            *_changes(fleet),
        ]
    )


def _missing(fleet: Fleet) -> Iterator[Finding]:
    if fleet.last_answers:
        last = [
            Evidence(f"last record: {then}" if then else "no record in any night", node)
            for node, then in fleet.last_answers.items()
        ]
        nodes = rules.names([*fleet.last_answers])
        text = f"{nodes} wrote no readable record on the night of {fleet.night.name}."
        yield Finding("fleet-node-missing", Severity.UNKNOWN, text, tuple(last[:8]), (LOOK_AGAIN,))
    elif isinstance(fleet.expected, Gap) and len(fleet.history.lines) < 2:
        text = (
            "On the first night, nccl-runbook does not know which nodes should have written a record. "
            "Name all nodes with --nodes."
        )
        yield Finding("fleet-members-unknown", Severity.NOTE, text)


def _unread(fleet: Fleet) -> Iterator[Finding]:
    unread = fleet.night.hosts.unread
    if unread:
        more = f" {counted(len(unread) - 1, 'more file')} could not be read." if len(unread) > 1 else ""
        first = next(iter(unread.values()))
        shown = tuple(Evidence(gap.detail, path) for path, gap in unread.items())[:8]
        yield Finding("fleet-file-unread", Severity.UNKNOWN, f"{first.detail}.{more}", shown)
    lines = fleet.history.unread
    if lines:
        text = (
            f"{counted(len(lines), 'line')} of the history cannot be read (the first is line "
            f"{lines[0]}). The failure rates ignore such lines. `fleet` does not remove "
            "them from the file."
        )
        yield Finding("fleet-history-unread", Severity.UNKNOWN, text)


def _repeated(night: Night) -> Iterator[Finding]:
    """Nodes with several records of one step; a failure that a later record hides is a warning."""
    several = {key: ended for key, ended in night.hosts.records.items() if len(ended) > 1}
    hidden = {
        key: sum(one.status == "broken" for one in ended)
        for key, ended in several.items()
        if ended[-1].status != "broken"
    }
    yield from (
        Finding(
            "fleet-node-failed-once",
            Severity.WARN,
            f"{node}: {step} failed in {failed} of {len(several[node, step])} records of this night.",
            tuple(Evidence(f"{one.status} {one.reason}".strip(), one.started) for one in several[node, step]),
            (Remedy("you", "Repeat the failed test on this node:", ("nccl-runbook soak --for 30m",)),),
        )
        for (node, step), failed in hidden.items()
        if failed
    )
    if several:
        (node, step), ended = next(iter(several.items()))
        nodes = list(dict.fromkeys(node for node, _ in several))
        more = (
            f" {counted(len(nodes) - 1, 'more node')} also wrote several records." if len(nodes) > 1 else ""
        )
        text = (
            f"{node} wrote {len(ended)} records of {step} on one night.{more} The facts come from the "
            "latest record, but a failure in any of the records counts."
        )
        yield Finding("fleet-node-repeated", Severity.NOTE, text)


def _changes(fleet: Fleet) -> Iterator[Finding]:
    if fleet.changes:
        shown = tuple(
            Evidence(f"{c.name}: {c.was} -> {c.now} on {rules.names(c.nodes)}", f"since {c.since}")
            for c in fleet.changes[:8]
        )
        text = f"{counted(len(fleet.changes), 'change')} since the previous night."
        yield Finding("fleet-changed", Severity.NOTE, text, shown)


def failing_nodes(fleet: Fleet) -> list[str]:
    """Nodes to leave out: those with a broken record in this night, unless most are broken, since then no
    single node is at fault."""
    failed = [node for node, line in fleet.lines.items() if line.failed]
    answered = [line for line in fleet.lines.values() if line.status != MISSING]
    return failed if 2 * len(failed) <= len(answered) else []
