"""Tables of hosts: what differs, which TCP paths work, how the worlds ended."""

from nccl_runbook.hosts.facts import Difference, Hosts
from nccl_runbook.hosts.judge import names
from nccl_runbook.report.tables import Cell, Table, titled

MOST_VALUES = 4


def differences_table(asked_hosts: Hosts, differing: list[Difference]) -> Table:
    """One row a fact that differs: the odd hosts, their values, and the majority's value."""
    rows = [
        [
            Cell(names(d.odd), "warn" if d.severity == "warn" else ""),
            d.name,
            "; ".join(f"{v} ({names(h)})" for v, h in [*d.values.items()][:MOST_VALUES] if v != d.majority),
            d.majority and f"{d.majority} ({len(d.values[d.majority])})",
        ]
        for d in differing
    ]
    return Table(
        "Facts that differ",
        ["odd hosts", "fact", "there", "most hosts"],
        rows,
        f"{len(asked_hosts.answered)} of {len(asked_hosts.hosts)} hosts answered. The table shows only "
        "facts that differ between hosts.",
    )


def missing_table(asked_hosts: Hosts) -> Table:
    """Hosts and files that gave nothing, with the reason."""
    return Table(
        "Hosts and files without facts",
        ["host or file", "why"],
        [[name, Cell(str(gap), "unknown")] for name, gap in asked_hosts.missing.items()],
    )


@titled("TCP between hosts")
def paths_table(paths: list) -> Table:
    """One row a connection, failed ones first."""
    rows = [
        [
            f"{p.source} -> {p.target}",
            p.purpose,
            str(p.port),
            p.address,
            Cell(p.kind, "ok" if p.kind == "passes" else "broken"),
            p.detail,
            p.mss or "",
        ]
        for p in sorted(paths, key=lambda p: p.kind == "passes")
    ]
    return Table(
        "", ["path", "purpose", "port", "address", "1 byte and 1 MiB", "detail", "segment bytes"], rows
    )


@titled("Test ranks on the hosts")
def worlds_table(worlds: list) -> Table:
    """One row a world: its hosts and how each rank ended."""
    rows = [
        [
            w.name,
            names(list(dict.fromkeys(w.hosts))),
            w.backend,
            Cell("not tested", "unknown")
            if w.not_run
            else Cell("passed" if w.passed else "failed", "ok" if w.passed else "broken"),
            f"{w.wall_s:.1f}",
            "; ".join(
                f"rank {r.rank} on {h}: {r.outcome} {'' if r.code is None else r.code}".strip()
                for r, h in zip(w.ranks, w.hosts, strict=False)
                if r.code or r.outcome != "exited"
            ),
        ]
        for w in worlds
    ]
    return Table("", ["test", "hosts", "backend", "result", "seconds", "ranks that failed"], rows)


def tables(hosts: Hosts, differing: list[Difference]) -> list[Table]:
    """Differences, paths, worlds, and missing hosts and files; without the tables that have no rows."""
    made = [
        differences_table(hosts, differing),
        paths_table(hosts.paths),
        worlds_table(hosts.worlds),
        missing_table(hosts),
    ]
    return [table for table in made if table.rows]
