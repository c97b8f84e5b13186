"""What `nccl-runbook hosts` says: for a terminal, and as JSON."""

from typing import Any

from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Finding
from nccl_runbook.hosts import judge as rules, judge_paths, judge_worlds
from nccl_runbook.hosts.facts import Difference, Hosts
from nccl_runbook.hosts.table import tables


def failing_hosts(seen: Hosts) -> list[str]:
    """Hosts to leave out of the next run: a mere difference is no reason."""
    return list(
        dict.fromkeys(
            [
                *judge_worlds.failing(seen.worlds),
                *rules.broken_hosts(seen),
                *judge_paths.failing(seen.paths),
            ]
        )
    )


def exclude(failing: list[str]) -> list[str]:
    return [f"--exclude={','.join(failing)}"] * bool(failing)


def text(seen: Hosts, found: list[Difference], findings: list[Finding], verdict: str, code: int) -> str:
    """The answer for a terminal."""
    from nccl_runbook.report.tables import finding_text

    failing = failing_hosts(seen)
    return "\n\n".join(
        [
            *map(finding_text, findings),
            *(repr(table) for table in tables(seen, found) if table.rows),
            *[f"next: run without the failing hosts (sbatch, srun: {line})" for line in exclude(failing)],
            *filter(None, [ticket(seen, findings, failing)]),
            f"verdict: {verdict} (exit code {code})",
        ]
    )


def ticket(seen: Hosts, findings: list[Finding], failing: list[str]) -> str:
    """A text for the administrator; "" where no host is to blame."""
    if not failing:
        return ""
    return "\n".join(
        [
            f"For the administrator: please check {rules.names(failing)}.",
            *[f"- {f.title}" for f in findings if f.severity.value in ("broken", "warn")][:6],
        ]
    )


def document(
    seen: Hosts, found: list[Difference], findings: list[Finding], verdict: str, code: int
) -> dict[str, Any]:
    """What --json prints; its schema is schemas/hosts.json."""
    failing = failing_hosts(seen)
    return {
        "schema": "nccl-runbook/hosts/1",
        "verdict": verdict,
        "exit_code": code,
        "hosts": [
            {
                "host": name,
                "answered": not isinstance(h, Gap),
                "why": str(h) if isinstance(h, Gap) else "",
                "facts": 0 if isinstance(h, Gap) else len(h.facts),
            }
            for name, h in seen.hosts.items()
        ],
        "unread": {path: str(gap) for path, gap in seen.unread.items()},
        "differences": [
            {
                "name": d.name,
                "severity": rules.severity(d),
                "paths": d.paths,
                "majority": d.majority or None,
                "odd": d.odd,
                "values": d.values,
            }
            for d in found
        ],
        "paths": [] if isinstance(seen.paths, Gap) else to_json(seen.paths),
        "worlds": []
        if isinstance(seen.worlds, Gap)
        else [
            {
                "name": w.name,
                "hosts": list(dict.fromkeys(w.hosts)),
                "passed": w.passed,
                "wall_s": w.wall_s,
                "backend": w.backend,
                "lost": w.lost,
                "ranks": [
                    {"rank": r.rank, "host": h, "outcome": r.outcome, "code": r.code}
                    for r, h in zip(w.ranks, w.hosts, strict=False)
                ],
            }
            for w in seen.worlds
        ],
        "marks": seen.marks,
        "failing": failing,
        "exclude": "".join(exclude(failing)),
        "ticket": ticket(seen, findings, failing),
        "findings": [
            {
                "id": f.id,
                "severity": f.severity.value,
                "cause": f.cause,
                "status": f.status,
                "text": f.title,
                "fix": [line for r in f.remedy for line in r.lines],
            }
            for f in findings
        ],
    }
