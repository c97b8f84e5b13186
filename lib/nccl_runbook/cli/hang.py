"""`nccl-runbook hang`: from what a hung job left to the rank that did not come.
Reads only; no torch, no Jupyter.

Example: nccl-runbook hang dumps/ slurm-4711.out --html hang.html   # dumps: /tmp/nccl_trace_rank_*
of every node
"""

import dataclasses
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.core.findings import Finding, exit_code, verdict_of
from nccl_runbook.hang import judge as rules, judge_silence
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.read import collect
from nccl_runbook.hang.table import files_table, tables
from nccl_runbook.report.tables import Table
from nccl_runbook.report.verdict_sentence import how_sure

SHOWN = 3  # files of one kind that were not used: beside dumps there may lie a whole project


def hang(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Files of the hung job: flight-recorder dumps, logs, stacks, and records of "
            "`look`. Folders and archives are read, too.",
        ),
    ],
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Read the files of a hung job, and show which rank never reached the collective, which ranks only
    waited, and what to collect next."""
    answer.named(paths, one=True)
    facts = collect(paths)
    judged, findings = rules.judge_hang(facts), rules.findings(facts)
    verdict = verdict_of(findings)
    code = exit_code(verdict, fail_on)
    shown = tables(facts, judged.culprits, judged.group)
    sentence = f"{verdict.capitalize()}: {judged.sentence.rstrip('.')}{how_sure(judged.cause, judged.status)}"
    answer.end(
        document(facts, judged, verdict, code)
        if json
        else text(facts, judged, sentence, findings[0], shown) + f"\nverdict: {verdict} (exit code {code})",
        code,
        html,
        lambda: answer.page_of("hang", sentence, findings, shown, code),
    )


def document(facts: Hang, judged: judge_silence.HangVerdict, verdict: str, code: int) -> dict[str, Any]:
    """What --json prints; its schema is schemas/hang.json."""
    return {
        "schema": "nccl-runbook/hang/1",
        "verdict": verdict,
        "exit_code": code,
        **vars(judged),
        "collective": judged.collective or None,
        "frame": judged.frame or None,
        "pid": judged.pid or None,
        "host": judged.host or None,
        "stacks": facts.stacks,
        "files": facts.files,
    }


def text(
    facts: Hang, judged: judge_silence.HangVerdict, sentence: str, first: Finding, shown: list[Table]
) -> str:
    """The answer for a terminal, the leading sentence first."""
    from nccl_runbook.case.table import evidence_line, remedy

    lines = [sentence, "", *map(evidence_line, judged.evidence[:8])]
    lines += [line for r in first.remedy for line in remedy(r)]
    lines += [f"next: {e.text.removeprefix('decides: ')}" for e in first.evidence if e.source == "next"]
    used = [f for f in facts.files if not f.problem]  # the others stand below
    shown = shown[:-1]
    if used:
        shown.append(files_table(dataclasses.replace(facts, files=used)))
    lines += [f"\n{table!r}" for table in shown if len(table.rows) <= 80]
    lines += [
        f"not used: {', '.join(names[:SHOWN])}"
        + (f" and {counted(len(names) - SHOWN, 'more file')}" if len(names) > SHOWN else "")
        + f": {why}"
        for why, names in grouped((f.problem, f.name) for f in facts.files if f.problem).items()
        if why not in sentence or len(names) > 1
    ]
    return "\n".join(lines)
