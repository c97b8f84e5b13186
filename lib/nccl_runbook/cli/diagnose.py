"""`nccl-runbook diagnose`: whatever somebody has of a failed job, read together and answered once. Reads only; no torch, no Jupyter."""

import dataclasses
import sys
from typing import Annotated, Any

import typer

from nccl_runbook.case import judge
from nccl_runbook.case.answer import LOGS, Gathered, gather
from nccl_runbook.case.read import Brought, sort
from nccl_runbook.case.table import text
from nccl_runbook.cli import answer
from nccl_runbook.core.facts import utc_now
from nccl_runbook.core.findings import Finding, exit_code
from nccl_runbook.launch import stop
from nccl_runbook.logs.sources import piped
from nccl_runbook.look import live
from nccl_runbook.report.verdict import RunInfo, VerdictDocument, leading, verdict_document

EPILOG = "Example: nccl-runbook diagnose slurm-4711.out dumps/ train.sbatch   or   nccl-runbook diagnose 'hangs at the first all_reduce'"


def diagnose(
    given: Annotated[list[str] | None, typer.Argument(
        metavar="[ANYTHING...]", show_default=False, help="Logs, folders, archives, dumps, stacks, records, launch scripts, "
        "configurations, an allocation, a pid, an error text, - for standard input; nothing: the ranks on this machine.")] = None,
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs of a node, for an allocation that does not say it.", min=0)] = 0,
    gap: Annotated[float, typer.Option(metavar="S", min=0.0, max=3600.0, help="Seconds between two looks at a running job.")] = 10.0,
    json: answer.JsonOption = False,
    redact: answer.RedactOption = "",
    share: answer.ShareOption = False,
    html: answer.HtmlOption = None,
    fail_on: answer.FailOnOption = "unknown",
) -> None:
    """Start here: name everything you have, and read what is broken, how that is known, and what to change."""
    stop.end()
    brought, found = _gathered(list(given or ()), gap, gpus)
    if not found.records and sys.stdin.isatty():  # nothing was named, and no rank runs here
        brought, found = _gathered([typer.prompt("A path, or the error text")], gap, gpus)
    if not found.records:
        answer.leave("no rank runs here, and nothing was named: name a log, a folder of dumps, a launch script, a pid or an error text")
    steps = [r.step for r in found.records]
    run = RunInfo(id="diagnose", started=utc_now(), command=answer.command(), planned=steps, asked=steps)
    document = verdict_document(run, found.records)
    lead = leading(document.steps, document.causes)
    document = dataclasses.replace(document, sentence=_sentence(document, lead, brought), exit_code=exit_code(document.verdict, fail_on))
    test = judge.next_test(document, lead, found.fits, found.steps)
    answer.end(_document(document, brought, found, lead, test) if json else text(document, lead, found.fits, test), document.exit_code,
               html, lambda: answer.index(document, found.records, test))


def _gathered(given: list[str], gap_s: float, gpus: int) -> tuple[Brought, Gathered]:
    try:
        brought = sort(given)
        if brought == Brought(logs=brought.logs):
            answer.named(list(brought.logs), one=True)
        return brought, gather(brought, piped(sys.stdin.fileno()) if "-" in brought.logs else None, gpus,
                               lambda pids: live.look(live.checked_pids(pids), gap_s, answer.say))
    except ValueError as error:  # a record that is none, too
        answer.leave(error)


def _sentence(document: VerdictDocument, lead: Finding | None, brought: Brought) -> str:
    """Who, what, where, and how sure."""
    if lead:
        printed = [s.notebook for s in document.steps if s.notebook == LOGS and lead in s.findings and lead.evidence]
        return document.sentence.rstrip(".") + (f": {lead.evidence[0].source}." if printed else ".")
    if document.verdict == "healthy":
        sound = [s.reason.rstrip(".") for s in document.steps if s.status == "ok"]
        return f"Healthy: {'; '.join(sound) or 'nothing that was named is wrong'}."
    if brought.words and not brought.logs and not document.causes:
        return "Unknown: these words alone do not show a cause. Add what the job printed."
    return f"Unknown: {next(s.reason for s in document.steps if s.status == 'unknown').rstrip('.')}."


def _document(document: VerdictDocument, brought: Brought, found: Gathered, lead: Finding | None,
              test: judge.Test | None) -> dict[str, Any]:
    """What --json prints; its schema is schemas/diagnose.json."""
    return {"schema": "nccl-runbook/diagnose/1", "verdict": document.verdict, "exit_code": document.exit_code,
            "sentence": document.sentence, "lead": lead, "causes": document.causes, "fits": found.fits, "next": test,
            "not_looked_at": document.not_looked_at,
            "brought": {what: names for what, names in vars(brought).items() if names},
            "steps": [{"step": s.notebook, "status": s.status, "reason": s.reason} for s in document.steps]}
