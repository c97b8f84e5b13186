"""Tables of a fleet: deviating nodes, changes since the last night, failures over the nights."""

from collections import Counter

from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.fleet.facts import MISSING, Fleet, Line
from nccl_runbook.fleet.judge import ORDER, STATUS
from nccl_runbook.hosts.judge import names
from nccl_runbook.hosts.table import differences_table
from nccl_runbook.report.tables import Cell, Table

TONES = {
    MISSING: "unknown",
    "running": "unknown",
    "skipped": "muted",
    "ok": "",
}  # others are tones themselves
ROWS = (*ORDER[:1], MISSING, *ORDER[1:])  # order of the rows: broken, missing, warn, ...


def tables(fleet: Fleet) -> list[Table]:
    """Deviating nodes first; tables without rows are left out, except that of the nodes."""
    made = [changes_table(fleet), differences_table(fleet.night.hosts, fleet.differing), rates_table(fleet)]
    made.append(
        Table(
            "Files that could not be read",
            ["file", "why"],
            [
                [path, Cell(gap.detail.removeprefix(f"{path} "), "unknown")]
                for path, gap in fleet.night.hosts.unread.items()
            ],
        )
    )
    return [nodes_table(fleet), *(table for table in made if table.rows)]


def deviating(fleet: Fleet) -> list[Line]:
    """Nodes that fail, are missing, differ from most nodes, or fail in some nights; worst first. What most
    nodes have in common is no deviation."""
    outcomes = [(line.status, line.reason) for line in fleet.lines.values()]
    common = {outcome for outcome in {*outcomes} if 2 * outcomes.count(outcome) > len(outcomes)}
    sometimes = {rate.node for rate in fleet.flaky}
    chosen = [
        line
        for line in fleet.lines.values()
        if line.odd
        or line.node in sometimes
        or (line.status not in ("ok", "note") and (line.status, line.reason) not in common)
    ]
    return sorted(chosen, key=lambda line: (ROWS.index(line.status), -len(line.odd), line.node))


def deviation(fleet: Fleet) -> str:
    """How many nodes deviate, in words; if most have a status that is not healthy, how many these are."""
    statuses = [line.status for line in fleet.lines.values()]
    most = max(statuses, key=statuses.count, default="ok")
    total = counted(len(statuses), "node")
    if 2 * statuses.count(most) > len(statuses) and most not in ("ok", "note"):
        return f"{statuses.count(most)} of {total} have the status {most}"
    number = len(deviating(fleet))
    return f"{number} of {total} {'deviates' if 1 in (number, len(statuses)) else 'deviate'}"


def nodes_table(fleet: Fleet) -> Table:
    """One row a deviating node."""
    rates = {rate.node: rate for rate in fleet.rates}
    changed = grouped((node, c.name) for c in fleet.changes if c.name != STATUS for node in c.nodes)
    rows = [
        [
            line.node,
            Cell(line.status, TONES.get(line.status, line.status)),
            _why(fleet, line),
            ", ".join(line.odd),
            ", ".join(dict.fromkeys(changed.get(line.node, []))),
            f"{rates[line.node].failed} of {rates[line.node].tested}" if line.node in rates else "",
        ]
        for line in deviating(fleet)
    ]
    others = len(fleet.lines) - len(rows)
    return Table(
        "Nodes that deviate",
        [
            "node",
            "status",
            "why",
            "differs in",
            "changed",
            "failed nights",
        ],
        rows,
        f"Night of {fleet.night.name or 'an unknown date'}. "
        f"{counted(others, 'other node' if rows else 'node')} {'does' if others == 1 else 'do'} not "
        f"deviate{_outcomes(fleet, rows)}. Each node is compared with the majority of nodes, and with "
        "its own previous night.",
    )


def _outcomes(fleet: Fleet, rows: list[list[str | Cell]]) -> str:
    """The statuses of the other nodes that are not healthy: " (9 broken)"."""
    shown = {str(row[0]) for row in rows}
    statuses = Counter(line.status for node, line in fleet.lines.items() if node not in shown)
    unhealthy = [f"{statuses[status]} {status}" for status in sorted({*statuses} - {"ok", "note"})]
    return f" ({', '.join(unhealthy)})" if unhealthy else ""


def _why(fleet: Fleet, line: Line) -> str:
    """The reason of the node's status; of a missing node, when it last answered."""
    if line.status == MISSING:
        last = fleet.last_answers.get(line.node, "")
        return f"no record since {last}" if last else "no record in any night"
    return line.reason


def changes_table(fleet: Fleet) -> Table:
    """One row a fact that changed, with its nodes."""
    rows = [
        [Cell(c.name, "warn" if c.severity == "warn" else ""), c.was, c.now, names(c.nodes), c.since]
        for c in fleet.changes
    ]
    return Table("Changed since the previous night", ["what", "was", "is", "nodes", "previous night"], rows)


def rates_table(fleet: Fleet) -> Table:
    """One row a node that failed in any night, the surest first."""
    sure = {rate.node for rate in fleet.flaky}
    rows = [
        [
            Cell(rate.node, "warn" if rate.node in sure else ""),
            f"{rate.failed} of {rate.tested}",
            f"{rate.low:.0%} to {rate.high:.0%}",
            rate.last,
            "yes" if rate.node in sure else f"not proven (by chance: {rate.chance:.2g})",
        ]
        for rate in fleet.rates
    ]
    return Table(
        "Failures over the nights",
        ["node", "failed nights", "95% interval of the rate", "last", "more often than the other nodes"],
        rows,
        "Only nights with a result count, and a night in which most nodes failed does not count."
        + (" The history has lines that cannot be read." if fleet.history.unread else ""),
    )
