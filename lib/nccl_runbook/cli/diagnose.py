"""`nccl-runbook diagnose`: whatever somebody has of a failed job, read together and answered once. Reads
only; no torch, no Jupyter.

Example: nccl-runbook diagnose slurm-4711.out dumps/ train.sbatch
or nccl-runbook diagnose 'hangs at the first all_reduce'
"""

import os
import sys
import threading
from typing import Annotated, Any

import typer

from nccl_runbook.against.table import tables
from nccl_runbook.case.answer import Case, case
from nccl_runbook.case.gathered import NO_RANK, Gathered
from nccl_runbook.case.given import Material, sort
from nccl_runbook.case.good_run import compared_with
from nccl_runbook.case.read import gather
from nccl_runbook.case.table import text
from nccl_runbook.cli import answer, options
from nccl_runbook.logs.file import READ_S, Limit
from nccl_runbook.logs.source import piped


def diagnose(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ANYTHING...]",
            show_default=False,
            help="Any of: logs, folders, archives, dumps, stacks, records, launch scripts, "
            "configurations, an allocation, a pid, an error text, or - for standard input. "
            "If you name nothing, `diagnose` examines the ranks that run on this machine.",
        ),
    ] = None,
    against: Annotated[
        list[str],
        typer.Option(
            metavar="GOOD",
            help="Files of a good run to compare with: the folder that `run` wrote (outputs/<UTC time>), "
            "records, logs or scripts. Repeatable.",
        ),
    ] = [],  # noqa: B006
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="GPUs per node. Needed only if an allocation or launch line does not give this number.",
            min=1,
        ),
    ] = None,
    gap: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0.0,
            max=3600.0,
            help="Seconds between the first and the last sample of a running job.",
        ),
    ] = 10.0,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Start here. Name every file you have of a failed or hung job, and get the fault, its evidence,
    and the fix."""
    answer.named(against)
    material, gathered = _gathered(list(given or ()), gap, gpus or 0, against)
    if not gathered.records and not given and sys.stdin.isatty():
        material, gathered = _gathered([typer.prompt("A path, or the error text")], gap, gpus or 0, against)
    if not gathered.records and given and not material.pids:
        answer.leave(f"{', '.join(given)}: contains no log or dump, sets no variable, and starts no job")
    if not gathered.records:
        from nccl_runbook.case.judge import DUMPS
        from nccl_runbook.core.records import of_findings

        gathered.records.append(of_findings(DUMPS, [NO_RANK]))
    judged = case(gathered, "diagnose", answer.command(), fail_on)
    from nccl_runbook.environment.change import diff_of

    diff = diff_of(judged.lead, (*material.scripts, *material.configurations))
    shown = "\n\n".join([text(judged, diff), *map(repr, tables(judged.found.compared))])
    answer.end(
        _document(judged, material, diff) if json else shown,
        judged.document.exit_code,
        html,
        lambda: answer.page_of_case(judged, diff),
    )


def _gathered(given: list[str], gap_s: float, gpus: int, against: list[str]) -> tuple[Material, Gathered]:
    from nccl_runbook.look import live

    done = threading.Event()
    threading.Thread(target=_while_reading, args=[done, any(map(os.path.isdir, given))], daemon=True).start()
    try:
        # an empty variable of the shell
        material = (
            sort(given)
            if all(map(str.strip, given))
            else answer.leave("one of the names is empty (an unset shell variable?)")
        )
        answer.named(list(material.logs), one=True)
        return material, gather(
            material,
            piped(sys.stdin.fileno()) if "-" in material.logs else None,
            gpus,
            lambda pids: live.look(live.checked_pids(pids), gap_s, answer.say),
            compared_with(against, material),
        )
    except ValueError as error:  # also a file that is no valid record
        answer.leave(error)
    finally:
        done.set()


def _while_reading(done: threading.Event, is_folder: bool) -> None:
    for pause in (2.0, *[10.0] * 30) if is_folder else ():
        if not done.wait(pause) and Limit.now:
            answer.say(f"still {Limit.now} (files are read for at most {READ_S:g} s; Ctrl-C ends it)")


def _document(judged: Case, material: Material, diff: str) -> dict[str, Any]:
    """What --json prints; its schema is schemas/diagnose.json."""
    document = judged.document
    return {
        "schema": "nccl-runbook/diagnose/1",
        "verdict": document.verdict,
        "exit_code": document.exit_code,
        "sentence": document.sentence,
        "lead": judged.lead,
        "causes": document.causes,
        "fits": [c.id for c in judged.found.fits],
        "fix_diff": diff,
        "next": judged.test,
        "collect": judged.collect,
        "not_looked_at": document.not_looked_at,
        "against": judged.found.compared,
        "brought": {what: names for what, names in vars(material).items() if names},
        "steps": [{"step": s.notebook, "status": s.status, "reason": s.reason} for s in document.steps],
    }
