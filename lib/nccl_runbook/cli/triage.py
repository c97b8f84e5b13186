"""`nccl-runbook triage`: from what the job printed to what broke first. Reads only; no torch, no Jupyter.

Example: nccl-runbook triage slurm-4711.out --context 'hangs at the first all_reduce'; kubectl logs
job | nccl-runbook triage -
"""

import gc
import sys
from typing import Annotated, Any

import typer

from nccl_runbook.against.table import tables
from nccl_runbook.case.answer import Case, case
from nccl_runbook.case.gathered import Dumps
from nccl_runbook.case.given import Material
from nccl_runbook.case.good_run import compared_with
from nccl_runbook.case.read import logs_of
from nccl_runbook.case.table import text as answer_text
from nccl_runbook.causes.causes import causes
from nccl_runbook.cli import answer, options
from nccl_runbook.core.findings import UNDECIDED, Evidence
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.source import piped
from nccl_runbook.triage.hypotheses.judge_hypothesis import Decides, Hypothesis, platform
from nccl_runbook.triage.table import ranks_table, unknown_table


def triage(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Logs, folders, archives, gzip files, or - for standard input."
        ),
    ],
    against: Annotated[
        list[str],
        typer.Option(metavar="GOOD", help="Files of a good run to compare with. Repeatable."),
    ] = [],  # noqa: B006
    context: Annotated[
        str,
        typer.Option(metavar="TEXT", help="In your own words: which command you ran, and what happened."),
    ] = "",
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Read the output of a failed job, and show what broke first, what is only a consequence, and what
    to test next."""
    answer.named(against)
    if not context or against:
        answer.named(paths, one=not against)
    gc.disable()  # what a log gives lives until the end of this short process
    material = Material(logs=tuple(paths), words=(context,) if context else ())
    try:
        compared = compared_with(against, material)
    except ValueError as error:  # what was left of the good run cannot be compared
        answer.leave(error)
    logs = logs_of(material, piped(sys.stdin.fileno()) if "-" in paths else None, compared)
    judged = case(logs, "triage", answer.command(), fail_on)
    answer.end(
        document(judged) if json else text(judged),
        judged.document.exit_code,
        html,
        lambda: answer.page_of_case(judged),
    )


def document(judged: Case) -> dict[str, Any]:
    """What --json prints; its schema is schemas/triage.json."""
    given, dumps, end = judged.found.logs, judged.found.dumps, judged.document
    logs, lead = (
        given.logs,
        [_of_dumps(dumps)] if dumps and judged.lead == dumps.finding and dumps.finding.cause else [],
    )
    behind = [h for h in given.hypotheses if h.cause not in [first.cause for first in lead]]
    return {
        "schema": "nccl-runbook/triage/1",
        "verdict": end.verdict,
        "exit_code": end.exit_code,
        "sentence": end.sentence,
        "undecided": end.verdict == "unknown" or any(f.id == UNDECIDED for f in given.findings),
        "hypotheses": [
            {
                **vars(h),
                "evidence": [
                    {name: vars(e)[name] for name in ("file", "line", "text", "rank")} for e in h.evidence
                ],
            }
            for h in [*lead, *behind]
        ],
        "fits": [
            {"cause": c.id, "title": c.title, "decides": dict(zip(("probe", "why", "line"), c.decides))}
            for c in given.fits
        ],
        "ranks": logs.ranks,
        "files": logs.files,
        "launcher": logs.launcher,
        "platform": platform(logs),
        "against": judged.found.compared,
        "unknown_lines": [
            {"file": t.first.file, "line": t.first.line, "text": t.first.text, "times": t.times}
            for t in logs.unknown
        ],
        "dumps": dumps.sentence if dumps else "",
    }


def _of_dumps(dumps: Dumps) -> Hypothesis:
    """The cause that dumps name."""
    finding, cause = dumps.finding, causes()[dumps.finding.cause]
    evidence = [e for e in finding.evidence if e.source != "next"] or [Evidence(finding.title, "dumps")]
    return Hypothesis(
        cause.id,
        finding.status,
        title=cause.title,
        says=cause.says,
        evidence=tuple(LogLine(e.source, 0, e.text) for e in evidence),
        remedy=finding.remedy,
        decides=Decides(cause.decides[0], "", dumps.next),
    )


def text(judged: Case) -> str:
    """The answer for a terminal, with the files that were read below."""
    given = judged.found.logs
    logs, undecided = given.logs, judged.document.verdict == "unknown"
    shown = [
        *tables(judged.found.compared),
        *([ranks_table(logs)] if logs.ranks else []),
        *([unknown_table(logs)] if logs.unknown and undecided else []),
    ]
    return "\n".join(
        [
            answer_text(judged),
            *[f"{f.name} is {f.kind}" for f in logs.files if f.kind and not f.problem],
            *(f"\n{table!r}" for table in shown),
        ]
    )
