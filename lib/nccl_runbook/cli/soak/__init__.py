"""`nccl-runbook soak`: one thing again and again, until a time, a number of runs, or a failure.

Example: nccl-runbook soak --for 8h -- bash train_short.sh   or
nccl-runbook soak --for 30m --failures 20 --against NCCL_P2P_DISABLE=1   or
nccl-runbook soak --for 10m --sync Qwen/Qwen2.5-0.5B
"""

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.book import duration_s
from nccl_runbook.cli import answer, options
from nccl_runbook.compare import ask as compare, read as reader
from nccl_runbook.compare.lazy_ranks import LazyRanks
from nccl_runbook.compare.soak import ask, judge, table
from nccl_runbook.compare.soak.facts import Soak
from nccl_runbook.core.findings import Finding, exit_code, finding_row, verdict_of, worst_first
from nccl_runbook.core.records import new_folder
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch import stop
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.gpu_lists import check_present
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.launch.warm_link import EngineError
from nccl_runbook.machine import ask_nvml as nvml, judge_busy as busy
from nccl_runbook.sync import models


def soak(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]", help="Your command, which runs again and again.", show_default=False
        ),
    ] = None,
    time_: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long to repeat, such as 90s, 30m or 8h. The last run may end later.",
        ),
    ] = "10m",
    runs: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after this number of runs; 0 means no limit.")
    ] = 0,
    failures: Annotated[
        int, typer.Option(metavar="N", min=1, help="End after this number of failed runs.")
    ] = 1,
    run_limit: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Time limit of one run. `soak` ends a run that takes longer, and counts it as failed.",
        ),
    ] = "10m",
    against: Annotated[
        str,
        typer.Option(
            metavar="SETTINGS",
            help="Settings to compare with, in the form of set-up B of `ab`. Runs with and without "
            "these settings alternate, to show which runs fail less often.",
        ),
    ] = "",
    figure: Annotated[
        str, typer.Option(metavar="REGEX", help="Regular expression for the number that your command prints.")
    ] = "",
    collective: Annotated[
        str, typer.Option(metavar="OP", help="Collective to run if you name no command.")
    ] = "all_reduce",
    size: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Size of the collective in bytes. 0 means 256 MiB, or 1 MiB without a GPU.",
        ),
    ] = 0,
    sync: Annotated[
        str, typer.Option(metavar="MODEL", help="Repeat a weight sync of this model instead of a command.")
    ] = "",
    method: Annotated[str, typer.Option(help="Method of the weight sync, as in `ab`.")] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="New folder for the results. Its file runs.jsonl has one line per run."
        ),
    ] = None,
    python: options.PythonOption = "",
    gpus: options.GpusOption = "",
    allow_busy: options.AllowBusyOption = False,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Run the same thing again and again: your command, or a collective, or a weight sync. How
    often does a run fail, do the runs get slower, and does another setting help? If `soak` is killed, the
    results of all finished runs are still on disk."""
    stopped = stop.Stop()
    with contextlib.ExitStack() as stack:
        try:
            until = ask.Until(
                duration_s("--for", time_), runs or 1 << 62, failures, duration_s("--run-limit", run_limit)
            )
            check_present(gpus, python)
            arms = reader.read(".", against or ".")
            if somebody := busy.gpus_busy(nvml.users(), allow_busy):
                raise ValueError(f"{somebody.title}; with --allow-busy, the runs start nevertheless")
            ranks = LazyRanks(
                lambda: stack.enter_context(
                    Engine(choose(python).prefix, None, Redactor(os.environ), stopped=stopped)
                ),
                gpus,
            )
            wanted = compare.Wanted(
                argv=command or [],
                figure=figure,
                op=collective,
                size_bytes=size,
                spec=models.part(models.find(sync), 0) if sync else {},
                method=method,
            )
            subject = compare.subject(wanted, ranks, stopped)
            if against and not arms.keys:
                raise ValueError(
                    "--against changes no setting; name a setting with a different value, but no secret"
                )
            folder = out or Path(
                "outputs", time.strftime(f"soak-%Y%m%dT%H%M%SZ-{os.getpid()}", time.gmtime())
            )
            new_folder(folder, parents=not out)
            stopped.remember()
            on_gpus = bool(command) or ranks.devices[0] is not None
            soaked = dataclasses.replace(ask.collect(arms, subject, until, folder, stopped), on_gpus=on_gpus)
        except FileExistsError:
            answer.leave(f"{folder} exists: --out needs the name of a new folder, such as {folder}-2")
        except OSError as error:
            answer.leave(
                f"cannot write {error.filename or out or 'outputs'}: {error.strerror or error}",
                1 if error.errno in answer.FULL else 2,
            )
        except ValueError as error:
            answer.leave(error)
        except EngineError as error:
            answer.leave(error, 1)
    findings = worst_first(judge.judge(soaked))
    verdict = verdict_of(findings)
    code = 128 + stopped.received if stopped.received else exit_code(verdict, fail_on)
    sentence = f"{verdict.capitalize()}: {findings[0].title}"
    shown = f"{_text(sentence, findings, soaked, folder)}\nverdict: {verdict} (exit code {code})"
    answer.end(
        _document(soaked, findings, verdict, code) if json else shown,
        code,
        html,
        lambda: answer.page_of("soak", sentence, findings, table.tables(soaked), code),
    )


def _text(sentence: str, findings: list[Finding], soaked: Soak, folder: Path) -> str:
    lines = [
        line
        for f in findings
        for line in (
            *([f.title] if f.title not in sentence else []),
            *(f"        {e.text}" for e in f.evidence),
            *(f"        {line}" for r in f.remedy for line in (r.text, *r.lines)),
        )
    ]
    return "\n\n".join(
        [sentence, "\n".join(lines), *map(repr, table.tables(soaked)), f"every run: {folder / ask.RUNS}"]
    )


def _document(soaked: Soak, findings: list[Finding], verdict: str, code: int) -> dict[str, Any]:
    return {
        "schema": "nccl-runbook/soak/1",
        "verdict": verdict,
        "exit_code": code,
        "what": soaked.what,
        "unit": soaked.unit,
        "ended": soaked.ended,
        "wall_s": soaked.wall_s,
        "differences": soaked.differences,
        "arms": {
            arm: {
                "runs": len(soaked.of(arm)),
                "failed": len(soaked.failed(arm)),
                "figures": soaked.figures(arm),
            }
            for arm in soaked.arms
        },
        "findings": [finding_row(f) for f in findings],
    }
