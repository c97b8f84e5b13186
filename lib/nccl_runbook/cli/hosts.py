"""`nccl-runbook hosts`: the hosts of one job side by side, from records or in a running allocation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Finding, exit_code, verdict_of, worst_first
from nccl_runbook.hosts import judge as rules, read
from nccl_runbook.hosts.facts import Difference, Hosts
from nccl_runbook.hosts.table import tables

EPILOG = "Example: nccl-runbook hosts --record n1.json n2.json --html hosts.html"
STEP = "08-hosts"


def hosts(
    record: Annotated[
        list[Path],
        typer.Option(metavar="FILE...", help="Compare these records of several hosts; no machine is asked."),
    ] = [],  # noqa: B006
    json: answer.JsonOption = False,
    redact: answer.RedactOption = "",
    share: answer.ShareOption = False,
    html: answer.HtmlOption = None,
    fail_on: answer.FailOnOption = "unknown",
) -> None:
    """Compare the hosts of one job: only what differs, the odd hosts first."""
    if not record:
        answer.leave("name records with --record FILE...")
    answer.named([str(path) for path in record], one=True)
    end(read.read(record), json, html, fail_on)


def end(seen: Hosts, json: bool, html: Path | None, fail_on: str) -> None:
    """Judge, print, write the page, and leave with the exit code."""
    found = rules.differences(seen.answered)
    findings = worst_first(judge(seen, found))
    verdict = verdict_of(findings)
    code = exit_code(verdict, fail_on)
    failing = failing_hosts(seen, found)
    said = (
        document(seen, found, findings, verdict, code) if json else text(seen, found, findings, verdict, code)
    )
    answer.end(
        said,
        code,
        html,
        lambda: answer.page_of(
            STEP,
            f"{verdict.capitalize()}: {findings[0].title}",
            findings,
            tables(seen, found),
            code,
            not_seen=_exclude(failing),
        ),
    )


def judge(seen: Hosts, found: list[Difference]) -> list[Finding]:
    return rules.judge(seen, found)


def failing_hosts(seen: Hosts, found: list[Difference]) -> list[str]:
    """Hosts to leave out of the next run."""
    return rules.odd_hosts(found)


def _exclude(failing: list[str]) -> list[str]:
    return [f"--exclude={','.join(failing)}"] * bool(failing)


def text(seen: Hosts, found: list[Difference], findings: list[Finding], verdict: str, code: int) -> str:
    """The answer for a terminal."""
    from nccl_runbook.report.tables import finding_text

    failing = failing_hosts(seen, found)
    return "\n\n".join(
        [
            *map(finding_text, findings),
            *(repr(table) for table in tables(seen, found) if table.rows),
            *[f"next: run without the failing hosts: {line}" for line in _exclude(failing)],
            *filter(None, [ticket(seen, findings, failing)]),
            f"verdict: {verdict} (exit code {code})",
        ]
    )


def ticket(seen: Hosts, findings: list[Finding], failing: list[str]) -> str:
    """A text for the administrator; "" where no host is to blame."""
    if not failing:
        return ""
    lines = [f"- {f.title}" for f in findings if f.severity.value in ("broken", "warn")][:6]
    return "\n".join([f"For the administrator: please check {rules.names(failing)}.", *lines])


def document(
    seen: Hosts, found: list[Difference], findings: list[Finding], verdict: str, code: int
) -> dict[str, Any]:
    """What --json prints; its schema is schemas/hosts.json."""
    failing = failing_hosts(seen, found)
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
                    for r, h in zip(w.ranks, w.hosts, strict=True)
                ],
            }
            for w in seen.worlds
        ],
        "marks": seen.marks,
        "failing": failing,
        "exclude": "".join(_exclude(failing)),
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
