"""The gym in a notebook: start a job with a mistake, watch it, and compare the answer."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nccl_runbook.cockpit import is_interactive
from nccl_runbook.core.parameters import check_names
from nccl_runbook.core.redact import Redactor
from nccl_runbook.gym.ask import Gym
from nccl_runbook.gym.facts import Job, Trial, jobs
from nccl_runbook.gym.table import TONES
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.report.tables import Cell, Table


def show(namespace: Mapping[str, Any]) -> Any:
    """A list of the jobs that need no GPU, with a button that starts the chosen one; without a frontend, what
    became of the job that ``job`` names. Unusable if there is none of that name."""
    here = {name: job for name, job in jobs().items() if not job.gpus}
    check_names([namespace["job"]], here, "job")
    if not is_interactive(namespace):
        return watch(namespace["job"], namespace["python"])
    import ipywidgets

    named = ipywidgets.Dropdown(
        options=[(f"{job.name}: {job.about}", job.name) for job in here.values()],
        value=namespace["job"],
        description="Job",
        layout=ipywidgets.Layout(width="98%"),
    )
    button = ipywidgets.interact_manual.options(manual_name="Start the job")
    button(lambda name: watch(name, namespace["python"]), name=named)
    return None


def watch(name: str, python: str = "") -> Table:
    """Run one job over Gloo, print what it prints, and return what was planted beside what `diagnose`
    answered. ``python``: an interpreter with torch, a path or a prefix; empty: the one that is found.
    InterpreterError, ValueError if it cannot be started."""
    with tempfile.TemporaryDirectory(prefix="nccl-runbook-gym-") as folder:
        job = jobs()[name]
        gym = Gym(choose(python).prefix, keep=Path(folder), stopped=_printing(Path(folder, name), job))
        trial = gym.trial(job)
    return compared(trial)


def _printing(folder: Path, job: Job) -> Callable[[], str]:
    """For Gym.stopped: prints what came since the last call, and gives no reason to stop."""
    redactor, printed, looks = Redactor(os.environ), 0, False

    def stopped() -> str:
        nonlocal printed, looks
        log = folder / "job.log"
        text = redactor.text(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else ""
        print(text[printed:], end="", flush=True)
        printed = max(printed, len(text))
        if not looks and job.look and len([*folder.glob(f"{job.look}-*")]) >= job.many:
            looks = True
            print("-- diagnose looks at the running job, about 12 s --", flush=True)
        return ""

    return stopped


def compared(trial: Trial) -> Table:
    """What was planted, and each answer."""
    rank = "" if trial.job.rank is None else f", rank {trial.job.rank}"
    answers = [
        [
            f"answer {'from the log' if a.door == 'log' else 'for the running job'}",
            Cell(a.sentence, TONES[a.outcome]),
        ]
        for a in trial.answers
    ]
    return Table(
        f"{trial.job.name}: {trial.outcome}",
        ["", "result"],
        [["planted", trial.job.about], ["right causes", ", ".join(trial.job.causes) + rank], *answers],
    )
