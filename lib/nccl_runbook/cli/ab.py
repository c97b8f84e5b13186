"""`nccl-runbook ab`: two set-ups, run in turn, and which of their differences carries the effect.

Example: nccl-runbook ab good.env 'bad.sbatch module:brics/nccl' --figure 'sync took ([0-9.]+) s' --
bash run.sh
or nccl-runbook ab . NCCL_DEBUG=INFO
or nccl-runbook ab . '@trainer preload:/x/libnccl.so.2' --sync Qwen/Qwen2.5-0.5B
or nccl-runbook ab . '@trainer preload:/x/libnccl.so.2' -- {trainer} python3 t.py
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from nccl_runbook.book import duration_s
from nccl_runbook.cli import answer, options
from nccl_runbook.compare import (
    ask as compare,
    judge as comparison,
    judge_ratio as comparison_ratio,
    read as reader,
)
from nccl_runbook.compare.facts import Comparison
from nccl_runbook.compare.lazy_ranks import LazyRanks
from nccl_runbook.compare.read import Arms
from nccl_runbook.compare.table import tables as tables_of
from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.findings import Finding, exit_code, finding_row, verdict_of, worst_first
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment import read as environment
from nccl_runbook.environment.facts import Environment
from nccl_runbook.launch import stop
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.gpu_lists import check_present
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.machine import ask_nvml as nvml, judge_busy as busy
from nccl_runbook.sync import models


def ab(
    a: Annotated[str, typer.Argument(metavar="A", help=f"Set-up A: {reader.GRAMMAR}.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Set-up B, in the same form as A.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]", help="Your command, which runs in both set-ups.", show_default=False
        ),
    ] = None,
    figure: Annotated[
        str,
        typer.Option(
            metavar="REGEX",
            help="Regular expression for the number that your command prints. Use named groups "
            "for several numbers.",
        ),
    ] = "",
    more_is_better: Annotated[
        bool,
        typer.Option("--more-is-better", help="A larger number is better, as for tokens per second."),
    ] = False,
    collective: Annotated[
        str,
        typer.Option(
            metavar="OP",
            help="Collective to run if you name no command. In A and B, its ranks are @rank0, @rank1, ...",
        ),
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
        str,
        typer.Option(
            metavar="MODEL",
            help="Run a weight sync of this model instead of a command. In A and B, its processes are "
            "@trainer and @engine.",
        ),
    ] = "",
    method: Annotated[
        str,
        typer.Option(
            help="Method of the weight sync. Default: nccl-per-tensor, or gloo-per-tensor without a GPU."
        ),
    ] = "",
    layers: Annotated[
        int, typer.Option(min=0, help="Number of layers of the model; 0 means all layers.")
    ] = 0,
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of rounds. Each round runs A, B, B, A.")
    ] = 3,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit of all runs together, such as 90s, 5m or 1h30m.")
    ] = "10m",
    python: options.PythonOption = "",
    gpus: options.GpusOption = "",
    allow_busy: options.AllowBusyOption = False,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """Run set-ups A and B in turn, measure the difference with its uncertainty, and find the setting
    that causes the difference."""
    stopped, began = stop.Stop(), time.monotonic()
    with contextlib.ExitStack() as stack:
        until = began + duration_s("--budget", budget)
        check_present(gpus, python)
        ranks = LazyRanks(
            lambda: stack.enter_context(
                Engine(
                    choose(python, until - time.monotonic()).prefix,
                    None,
                    Redactor(os.environ),
                    stopped=stopped,
                    until=until,
                )
            ),
            gpus,
        )
        wanted = compare.Wanted(
            argv=command or [],
            figure=figure,
            more_is_better=more_is_better,
            op=collective,
            size_bytes=size,
            spec=models.part(models.find(sync), layers) if sync else {},
            method=method,
        )
        arms = _arms(a, b, until, allow_busy)
        subject = compare.subject(wanted, ranks, stopped)
        stopped.remember()  # from here on a signal ends the runs, and what was measured is answered
        compared = compare.collect(
            arms, until - time.monotonic(), lambda: subject, comparison.walk, rounds, stopped
        )
        if command or compared.stopped:
            libraries = Gap(
                "not-run",
                compared.stopped or "the runbook does not read the settings inside your own command",
            )
        else:
            libraries = environment.of_arms(ranks.engine, arms)
    _end(compared, libraries, stopped.received, json=json, html=html, fail_on=fail_on)


def _arms(a: str, b: str, until: float, allow_busy: bool) -> Arms:
    """The two set-ups. ValueError if they cannot be read or do not differ, or if the GPUs are busy."""
    arms = reader.read(a, b, within_s=until - time.monotonic())
    if somebody := busy.gpus_busy(nvml.users(until - time.monotonic()), allow_busy):
        raise Unusable(f"{somebody.title}; with --allow-busy, the test runs nevertheless")
    if not arms.named:
        raise Unusable("A and B are both your unchanged environment; name a setting in which they differ")
    return arms


def _end(
    compared: Comparison,
    libraries: Environment | Gap,
    received: int,
    *,
    json: bool,
    html: Path | None,
    fail_on: str,
) -> NoReturn:
    """Print and write the answer. ``libraries``: libnccl of a rank of each arm; ``received``: the signal that
    ended the runs, 0 for none."""
    findings = worst_first(comparison.judge(compared, libraries))
    verdict, tables = verdict_of(findings), tables_of(compared)
    code = 128 + received if received else exit_code(verdict, fail_on)
    carries = [f.title for f in findings[1:2] if f.id == "effect-named"]
    # not report.tables.finding_text: a remedy of the first finding is not repeated below the others
    lines = [
        line
        for f in findings
        for line in (
            f"{f.severity.value:7} {f.title}",
            *(f"        {' '.join(e.text.split())}" for e in f.evidence[:4] if e.text not in f.title),
            *(
                f"        {x}"
                for r in f.remedy
                if r not in findings[0].remedy or f is findings[0]
                for x in (r.text, *r.lines)
            ),
        )
    ]
    lines[0] = f"{verdict.capitalize()}: {findings[0].title}"
    text = "\n\n".join(["\n".join(lines), *map(repr, tables), f"verdict: {verdict} (exit code {code})"])
    answer.end(
        _document(compared, findings, verdict, code) if json else text,
        code,
        html,
        lambda: answer.page_of(
            "ab",
            ". ".join([f"{verdict.capitalize()}: {findings[0].title}", *carries]),
            findings,
            tables,
            code,
            answer.judged(libraries),
        ),
    )


def _document(compared: Comparison, findings: list[Finding], verdict: str, code: int) -> dict[str, Any]:
    """What --json prints; its schema is schemas/ab.json."""
    ratios = [
        {"figure": n, "ratio": r.value, "low": r.low, "high": r.high, "pairs": r.n}
        for n in comparison_ratio.names(compared)
        if (r := comparison_ratio.ratio(compared, n))
    ]
    kept = {
        n: getattr(compared, n)
        for n in ("what", "unit", "arms", "differences", "left_out", "wanted", "warm_up", "samples")
    }
    return {
        "schema": "nccl-runbook/ab/1",
        "verdict": verdict,
        "exit_code": code,
        **kept,
        "ratios": ratios,
        "findings": [finding_row(f) for f in findings],
        "walk": None if isinstance(compared.walk, Gap) else compared.walk,
    }
