"""`nccl-runbook watch`: stays beside a running job and looks at it once it stops moving.
Reads only; no torch, no Jupyter.

Example: nccl-runbook watch --job $SLURM_JOB_ID --after 5m --html hang.html &   # in the batch
script, before srun
"""

import collections
import math
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nccl_runbook.book import duration_s
from nccl_runbook.cli import answer, look, options
from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import exit_code
from nccl_runbook.hang.live.ask_proc import runs
from nccl_runbook.hang.live.judge import judge_looks
from nccl_runbook.look import live as look_live
from nccl_runbook.look.progress import Progress

RUNS_ON = (
    "healthy",
    "unknown",
    "slow",
)  # kinds of picture for a job that does not hang, or of which nothing is known


def watch(
    pid: Annotated[
        list[int], typer.Option(metavar="N...", help="Watch only the job of this rank or launcher.")
    ] = [],  # noqa: B006
    job: Annotated[str, typer.Option(metavar="ID", help="Watch only the ranks of this Slurm job.")] = "",
    after: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a rank may make no progress before `watch` examines the job."
        ),
    ] = "2m",
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long to wait for the first rank. If no rank appears, the exit code is 4.",
        ),
    ] = "10m",
    every: Annotated[
        float, typer.Option(metavar="S", min=0.2, max=3600.0, help="Seconds between two checks.")
    ] = 10.0,
    gap: Annotated[
        float,
        typer.Option(
            metavar="S", min=0.5, max=3600.0, help="Seconds between two samples when `watch` examines a job."
        ),
    ] = 10.0,
    save: options.SaveOption = None,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = Path("hang.html"),
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Watch a job until it hangs or ends. If the job hangs, `watch` writes the same page as `look`.
    The command only reads."""
    limit_s, wait_s, named = (
        duration_s("--after", after),
        duration_s("--wait", wait),
        look_live.checked_pids(pid),
    )
    answer.say(f"watching; `watch` examines the job if a rank makes no progress for {after}")
    began = present = time.monotonic()
    progress = Progress()
    patience: dict[str, float] = collections.defaultdict(lambda: limit_s)
    most_ranks = 0
    while True:
        ranks = [r for r in progress.ask(named) if job in ("", r.variables.get("SLURM_JOB_ID"))]
        if len(ranks) > most_ranks:
            answer.say(f"{counted(len(ranks), 'rank')} found; `watch` checks every {every:g} s")
        if ranks:
            present = time.monotonic()
        # a launcher may start its ranks again
        elif (named and not any(map(runs, named))) or time.monotonic() - present > (
            (math.inf if named else limit_s) if most_ranks else wait_s
        ):
            _leave_ended(most_ranks, time.monotonic() - began, json, fail_on)
        most_ranks = max(most_ranks, len(ranks))
        if still := next((r for r in ranks if progress.still_s[r.pid] >= patience[r.job]), None):
            members = [r.pid for r in ranks if r.job == still.job]
            answer.say(
                f"process {still.pid} has made no progress for {patience[still.job]:.0f} s; "
                "now examining its job"
            )
            try:
                looks = [look_live.look(members, gap, lambda _: None)]
            except ValueError as error:  # they have just ended, or one is not readable
                answer.say(f"{error}. `watch` continues")
            else:
                pictures = judge_looks(looks)
                if any(p.kind not in RUNS_ON for p in pictures):
                    look.end(pictures, looks, pid, fail_on, json, html, save, began)
                answer.say(f"{'; '.join(p.sentence for p in pictures)}. `watch` continues")
                patience[still.job] *= 2  # else a job whose ranks stand at one line is looked at for ever
            progress.again(members)
        time.sleep(every if most_ranks else min(every, wait_s))


def _leave_ended(ranks: int, watched_s: float, json: bool, fail_on: str) -> NoReturn:
    """The job ended; its exit status is not visible from outside, so this is no proof of health."""
    code = exit_code("unknown", fail_on)
    sentence = (
        f"{counted(ranks, 'rank')} ended within {watched_s:.0f} s; `watch` saw no rank hang. The "
        "job's log shows whether the ranks ended without an error"
        if ranks
        else f"no rank appeared within {watched_s:.0f} s: the process ended, or started no rank"
    )
    text = f"{sentence}\nverdict: unknown (exit code {code})"
    answer.end(look.document([], [], "unknown", code) if json else text, code)
