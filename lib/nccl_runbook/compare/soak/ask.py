"""Runs one thing until a time, a number of runs or of failures. Each run is on disk before the next one
begins."""

import dataclasses
import itertools
import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nccl_runbook.compare.ask import Subject
from nccl_runbook.compare.soak.facts import COUNTERS, Run, Soak
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.stop import never
from nccl_runbook.machine import ask_nvml
from nccl_runbook.machine.facts import Ecc, NvLinks, NvmlGpu, Pcie, RemappedRows

RUNS, FAILED = "runs.jsonl", "failed.log"


@dataclasses.dataclass(frozen=True)
class Until:
    """When the soak ends: after ``seconds``, after so many ``runs``, or after so many ``failures``; one run
    may last ``run_s`` seconds."""

    seconds: float
    runs: int
    failures: int
    run_s: float


def collect(
    arms: Any, subject: Subject, until: Until, folder: Path, stopped: Callable[[], str] = never
) -> Soak:
    """Run the subject in turn as A and as B (A B B A), or as A alone if B changes nothing. ``arms``:
    compare.read.Arms; ``folder``: gets runs.jsonl, with a line for each run, and failed.log, with the last
    lines of each failed run. A run that ``stopped`` ends is left out. ValueError if
    the command does not start; OSError if nothing can be written."""
    envs = {"A": arms.env([]), **({"B": arms.env(arms.keys)} if arms.keys else {})}
    runs: list[Run] = []
    before, began = counters(), time.monotonic()
    ended = ""
    for arm in itertools.cycle("ABBA" if arms.keys else "A"):
        at_s = time.monotonic() - began
        if ended := stopped() or _over(until, runs, at_s):
            break
        sample = subject.run(arm, envs[arm], until.run_s)
        if stopped() and not sample.passed:
            continue
        lines = [] if sample.passed else [arms.secrets.text(line) for line in sample.last_lines]
        runs.append(Run(arm, round(at_s, 3), sample.ended, sample.wall_s, sample.figures, lines))
        _keep(folder / RUNS, json.dumps(dataclasses.asdict(runs[-1])))
        if not sample.passed:
            _keep(folder / FAILED, "\n".join([f"run {len(runs)} ({arm}): {sample.ended}", *lines]))
    wall_s = round(time.monotonic() - began, 1)
    what = arms.secrets.text(subject.what)
    line = f"nccl-runbook diagnose {shlex.quote(str(folder / FAILED))}"
    return Soak(
        what=what,
        unit=subject.unit,
        differences=arms.differences,
        runs=runs,
        ended=ended,
        wall_s=wall_s,
        before=before,
        after=counters(),
        diagnose=line,
    )


def _over(until: Until, runs: list[Run], at_s: float) -> str:
    """Why the soak is over, or empty."""
    if at_s >= until.seconds:
        return f"its {until.seconds:.0f} s are over"
    if len(runs) >= until.runs:
        return f"{counted(until.runs, 'run')} ended"
    failed = sum(not run.passed for run in runs)
    return f"{failed} failed" if failed >= until.failures else ""


def _keep(path: Path, text: str) -> None:
    """Add the text to the file, redacted, and see it on the disk; a file that stays empty is removed."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(Redactor(os.environ).text(text) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if path.is_file() and not path.stat().st_size:
            path.unlink()
        raise


def counters() -> dict[int, dict[str, int]] | Gap:
    """The counters of each GPU by NVML's index; a Gap without NVML. A counter that the driver does not
    report is left out."""
    view = ask_nvml.view()
    if isinstance(view, Gap):
        return view
    return {gpu.nvml_index: _counters(gpu) for gpu in view.gpus if not isinstance(gpu, Gap)}


def _counters(gpu: NvmlGpu) -> dict[str, int]:
    values = (
        gpu.ecc.volatile_uncorrected if isinstance(gpu.ecc, Ecc) else None,
        gpu.remapped_rows.uncorrectable if isinstance(gpu.remapped_rows, RemappedRows) else None,
        gpu.nvlinks.up if isinstance(gpu.nvlinks, NvLinks) else None,
        gpu.pcie.width if isinstance(gpu.pcie, Pcie) else None,
    )
    return {name: value for name, value in zip(COUNTERS, values) if isinstance(value, int)}
