"""The answer of `nccl-runbook hosts`, for a terminal and as JSON."""

from typing import Any

from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Finding
from nccl_runbook.hosts import judge as rules, judge_paths, judge_worlds
from nccl_runbook.hosts.facts import Difference, Hosts
from nccl_runbook.hosts.table import tables


def failing_hosts(hosts: Hosts) -> list[str]:
    """Hosts to leave out of the next run; a mere difference is no reason."""
    return list(
        dict.fromkeys(
            [
                *judge_worlds.failing(hosts.worlds),
                *rules.broken_hosts(hosts),
                *judge_paths.failing(hosts.paths),
            ]
        )
    )


def text(hosts: Hosts, different: list[Difference], findings: list[Finding], verdict: str, code: int) -> str:
    """The answer for a terminal."""
    from nccl_runbook.report.tables import finding_text

    failing = failing_hosts(hosts)
    option = rules.exclude(failing)
    return "\n\n".join(
        [
            *map(finding_text, findings),
            *map(repr, tables(hosts, different)),
            *([f"next: run without the failing hosts (sbatch, srun: {option})"] if option else []),
            *filter(None, [ticket(hosts, findings, failing)]),
            f"verdict: {verdict} (exit code {code})",
        ]
    )


def ticket(hosts: Hosts, findings: list[Finding], failing: list[str]) -> str:
    """A text for the administrator; empty if no host is at fault."""
    return (
        "\n".join(
            [
                f"For the administrator: please check {rules.names(failing)}.",
                *[f"- {f.title}" for f in findings if f.severity.value in ("broken", "warn")][:6],
            ]
        )
        if failing
        else ""
    )


def document(
    hosts: Hosts, different: list[Difference], findings: list[Finding], verdict: str, code: int
) -> dict[str, Any]:
    """What --json prints; its schema is schemas/hosts.json."""
    failing = failing_hosts(hosts)
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
            for name, h in hosts.hosts.items()
        ],
        "unread": {path: str(gap) for path, gap in hosts.unread.items()},
        "differences": [
            {
                "name": d.name,
                "severity": d.severity,
                "paths": d.paths,
                "majority": d.majority or None,
                "odd": d.odd,
                "values": d.values,
            }
            for d in different
        ],
        "paths": [] if isinstance(hosts.paths, Gap) else to_json(hosts.paths),
        "worlds": []
        if isinstance(hosts.worlds, Gap)
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
            for w in hosts.worlds
        ],
        "marks": hosts.marks,
        "failing": failing,
        "exclude": rules.exclude(failing),
        "ticket": ticket(hosts, findings, failing),
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
