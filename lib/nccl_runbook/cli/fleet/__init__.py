"""`nccl-runbook fleet`: all nodes of a night on one page, beside the nights before.

Example: nccl-runbook fleet night/ --history fleet.jsonl --html fleet.html
or nccl-runbook fleet night/ --nodes nodes.txt
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.cli.hosts import judged
from nccl_runbook.core.facts import Gap, known, to_json
from nccl_runbook.core.findings import Finding, exit_code, verdict_of
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.share import learn
from nccl_runbook.fleet import judge as rules, read
from nccl_runbook.fleet.facts import Fleet, History, Line
from nccl_runbook.fleet.table import deviating, deviation, tables
from nccl_runbook.hosts.judge import exclude

HISTORY = "fleet.jsonl"


def fleet(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder with the records of one night: files, or one folder per node."
        ),
    ],
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=options.in_a_folder,
            help="History file, to which the command appends one JSON line per node. Default: "
            "fleet.jsonl in DIR.",
        ),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the names of all nodes. Default: the nodes in the history file."
        ),
    ] = None,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Compare the records of all nodes. Which nodes differ from most nodes, changed since the
    previous night, wrote no record, or fail often? The command reads records, and appends a line
    per node to the history file."""
    path = history or folder / HISTORY
    answer.named([str(name) for name in (folder, nodes, path if path.exists() else None) if name])
    if not folder.is_dir():
        answer.leave(f"{folder} is a file; name the folder that contains the records")
    try:
        expected = read.names(nodes) if nodes else Gap("not-run", "no names were given")
        nights = read.records_by_night(folder)
        before = read.history(path)
    except OSError as error:
        answer.leave(f"cannot read {error.filename}: {error.strerror}")
    if not nights:
        answer.leave(f"{folder} contains no record; nccl-look.pyz and nccl-runbook run write records")
    if before.text.strip() and not before.lines:
        answer.leave(f"{path} exists, but is not a history file; name another file with --history")
    if expected == []:
        answer.leave(f"{nodes} names no node")
    if share:
        before, expected = _shared(before, expected)
    newest, added = gathered(nights, before, expected)
    findings = rules.judge(newest)
    verdict = verdict_of(findings)
    code = exit_code(verdict, fail_on)
    answer.end(
        (document if json else text)(newest, findings, verdict, code),
        code,
        html,
        lambda: answer.page_of("fleet", sentence(newest, findings, verdict), findings, tables(newest), code),
        None if share else path,
        lambda: read.text_of(before, added),
    )


def gathered(
    nights: dict[str, list[Path]], before: History, expected: list[str] | Gap
) -> tuple[Fleet, list[Line]]:
    """The newest night beside all earlier ones, and the lines of the history of each night in the folder."""
    added: list[Line] = []
    earlier = before
    for name, paths in nights.items():
        newest = rules.fleet(read.read(name, paths, judged), earlier, expected)
        earlier = newest.history
        added += earlier.lines[name].values() if name else []
    return newest, added


def _shared(before: History, expected: list[str] | Gap) -> tuple[History, list[str] | Gap]:
    """The history and the expected nodes under the names that --share gives."""
    hidden = Redactor(os.environ)
    nodes = {node for lines in before.lines.values() for node in lines}.union(known(expected))
    learn([{"host": node} for node in nodes])  # a bare name has no form that shows it
    others = expected if isinstance(expected, Gap) else [hidden.text(node) for node in expected]
    return read.history_of(hidden.text(before.text)), others


def sentence(newest: Fleet, findings: list[Finding], verdict: str) -> str:
    """The first sentence of the page."""
    return f"{verdict.capitalize()}: {deviation(newest)}. {findings[0].title}"


def text(newest: Fleet, findings: list[Finding], verdict: str, code: int) -> str:
    """The answer for a terminal."""
    from nccl_runbook.report.tables import finding_text

    return "\n\n".join(
        [*map(finding_text, findings), *map(repr, tables(newest)), f"verdict: {verdict} (exit code {code})"]
    )


def document(newest: Fleet, findings: list[Finding], verdict: str, code: int) -> dict[str, Any]:
    """What --json prints; its schema is schemas/fleet/fleet.json."""
    return {
        "schema": "nccl-runbook/fleet/1",
        "verdict": verdict,
        "exit_code": code,
        "night": newest.night.name,
        "nights": sorted(newest.history.lines),
        "nodes": len(newest.lines),
        "deviating": [
            {"node": line.node, "status": line.status, "reason": line.reason, "odd": line.odd}
            for line in deviating(newest)
        ],
        "missing": newest.last_answers,
        "unread": {path: gap.detail for path, gap in newest.night.hosts.unread.items()},
        "differences": [
            {"name": d.name, "severity": d.severity, "paths": d.paths, "odd": d.odd, "values": d.values}
            for d in newest.differing
        ],
        "changes": to_json(newest.changes),
        "rates": to_json(newest.rates),
        "failing": rules.failing_nodes(newest),
        "exclude": exclude(rules.failing_nodes(newest)),
        "findings": [
            {
                "id": f.id,
                "severity": f.severity.value,
                "text": f.title,
                "fix": [line for r in f.remedy for line in r.lines],
            }
            for f in findings
        ],
    }
