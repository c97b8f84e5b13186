"""`nccl-runbook look`: who did not come to the collective, seen from beside the running job.
Reads only; no torch, no Jupyter.

Example: nccl-runbook look --html hang.html
or nccl-runbook look --record node1.json node2.json --json
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.findings import exit_code
from nccl_runbook.core.records import Record, json_text, load_all, read
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hang.judge import hang_finding
from nccl_runbook.hang.judge_silence import of_picture
from nccl_runbook.hang.live import judge as rules
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.hang.live.judge_hosts import together
from nccl_runbook.hang.live.ranks.judge_picture import RankView
from nccl_runbook.hang.read_stacks import whole_looks
from nccl_runbook.hang.table import looked_table
from nccl_runbook.look import live as look_live
from nccl_runbook.report.verdict_sentence import how_sure


def look(
    pid: Annotated[
        list[int], typer.Option(metavar="N...", help="Look only at the job of this rank or launcher.")
    ] = [],  # noqa: B006
    gap: Annotated[
        float,
        typer.Option(metavar="S", min=0.0, max=3600.0, help="Seconds between the first and the last sample."),
    ] = 10.0,
    record: Annotated[
        list[Path],
        typer.Option(metavar="FILE...", help="Join records from several hosts, without touching a machine."),
    ] = [],  # noqa: B006
    save: options.SaveOption = None,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Examine a job that hangs now, and show which rank never reached the collective, what this rank
    is doing, and which ranks wait. The command only reads."""
    if record and (pid or save):
        answer.leave(
            "--record cannot be combined with --pid or --save, because --record joins saved records and "
            "reads no processes"
        )
    began = time.monotonic()
    looks = (
        together(_recorded(record))
        if record
        else [look_live.look(look_live.checked_pids(pid), gap, answer.say)]
    )
    end(rules.judge_looks(looks), looks, None if record else pid, fail_on, json, html, save, began)


def end(
    pictures: Sequence[rules.Picture],
    looks: Sequence[Live],
    pids: Sequence[int] | None,
    fail_on: str,
    json: bool,
    html: Path | None,
    save: Path | None,
    began: float,
) -> NoReturn:
    """Print the answer, write the requested files, and exit with the exit code. ``pids``: named ones, None
    for records; ``began``: by time.monotonic()."""
    from nccl_runbook.case.gathered import NO_RANK  # 80 ms, which the first samples do not wait for
    from nccl_runbook.case.table import remedy

    pictures = rules.with_command(pictures, pids)
    word = rules.verdict(pictures)
    code = exit_code(word, fail_on)
    findings = [hang_finding(of_picture(p), still=True, now=pids is not None) for p in pictures] or [NO_RANK]
    shown = look_live.text(pictures, looks) if pictures else findings[0].title
    asked = [p.decides for p in pictures]  # stands there as what comes next
    fixes = [line for f in findings for r in f.remedy if not {*asked} & {*r.lines} for line in remedy(r)]
    shown = "\n".join([shown, *dict.fromkeys(fixes)])
    answer.end(
        document(pictures, looks, word, code) if json else f"{shown}\nverdict: {word} (exit code {code})",
        code,
        html,
        lambda: answer.page_of(
            "look",
            look_live.headline(pictures, how_sure(pictures[0].cause, pictures[0].status))
            if pictures
            else f"Unknown: {findings[0].title}",
            findings,
            [looked_table(p, looks) for p in pictures],
            code,
            not_seen=[line for p in pictures for line in p.not_seen],
        ),
        save,
        lambda: json_text(
            read(Record, look_live.record(looks[0], time.monotonic() - began)), Redactor(os.environ)
        ),
    )


def _recorded(paths: Sequence[Path]) -> list[Live]:
    """The live looks in records; exits with one sentence if a file is no record."""
    recorded = [r.facts["live"] for path in paths for r in load_all(path) if "live" in r.facts]
    looks = whole_looks(recorded)
    if len(looks) < len(recorded):
        answer.leave("a record was written by a different version, or contains an incomplete sample")
    return looks or answer.leave(
        f"{', '.join(map(str, paths))}: no record of a running job; nccl-look.pyz --live writes one"
    )


def document(
    pictures: Sequence[rules.Picture], looks: Sequence[Live], verdict: str, code: int
) -> dict[str, Any]:
    """What --json prints; its schema is schemas/look.json."""
    return {
        "schema": "nccl-runbook/look/1",
        "verdict": verdict,
        "exit_code": code,
        "jobs": [_job(p) for p in pictures],
        "hosts": [
            {"host": one.host, "taken": one.taken, "first_s": one.first_s, "gap_s": one.gap_s}
            for one in looks
        ],
    }


def _job(picture: rules.Picture) -> dict[str, Any]:
    return {
        **vars(picture),
        "status": picture.status or None,
        "frame": picture.culprits[0].frame if picture.culprits else "",
        "culprits": [_who(v) for v in picture.culprits],
        "victims": [_who(v) for v in picture.victims],
        "ranks": [{**_who(v), "does": v.does, "frame": v.frame, "waits_in": v.where} for v in picture.ranks],
    }


def _who(view: RankView) -> dict[str, Any]:
    return {"rank": view.rank, "host": view.host, "pid": view.pid}
