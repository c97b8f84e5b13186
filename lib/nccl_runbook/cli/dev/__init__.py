"""`nccl-runbook dev gym`: real jobs with a mistake, which `diagnose` has to explain without a hint.

Example: nccl-runbook dev gym --fault stopped --fault works-torchrun
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.core.records import new_folder
from nccl_runbook.gym import ask, judge, table
from nccl_runbook.gym.facts import Job, Trial, in_turn, jobs
from nccl_runbook.launch.interpreters import InterpreterError, choose
from nccl_runbook.launch.stop import Stop
from nccl_runbook.machine import ask_nvml, guard


def dev(
    what: Annotated[
        Literal["gym"], typer.Argument(metavar="gym", help="Name of the check; gym is the only one.")
    ],
    fault: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Start only the job of this name. Repeatable. Default: all jobs."),
    ] = [],  # noqa: B006
    on: Annotated[
        Literal["cpu", "gpu"], typer.Option(help="Where the ranks run: cpu (Gloo) or gpu (NCCL).")
    ] = "cpu",
    works: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="Run only the healthy jobs, in turn and repeatedly, until N jobs have run.",
        ),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=32,
            show_default=False,
            help="Number of jobs that run at the same time on the CPU. Default: two per core, "
            "because a job mostly waits.",
        ),
    ] = min(32, 2 * (os.cpu_count() or 1)),
    to_the_end: Annotated[
        bool,
        typer.Option(
            "--to-the-end", help="Wait until jobs that hang reach their timeout, and diagnose their logs too."
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the folder of each job (script, log, dumps) in this folder."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the jobs without running them.")] = False,
    python: Annotated[
        str,
        typer.Option(
            metavar="PREFIX",
            help="A Python with torch: a path, or a command such as `docker exec -i areal python3`.",
        ),
    ] = "",
    json: options.JsonOption = False,
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
) -> None:
    """Check on this machine whether `diagnose` works. The command starts real jobs, most of them with
    a planted mistake, and compares each answer of `diagnose` with the mistake. Each job has up to
    three small ranks over Gloo, or one or two ranks over NCCL. When a job ends, none of its processes is
    left."""
    if unknown := [name for name in fault if name not in jobs()]:
        answer.leave(f"there is no job {unknown[0]}. List all jobs with: nccl-runbook dev gym --list")
    there = [job for job in jobs().values() if (job.gpus > 0) == (on == "gpu")]
    chosen = [jobs()[name] for name in dict.fromkeys(fault)] or there
    if others := [job.name for job in chosen if job not in there]:
        answer.leave(f"{others[0]} does not run on the {on}: add --on {'cpu' if on == 'gpu' else 'gpu'}")
    if works:
        chosen = in_turn([job for job in chosen if not job.is_fault], works)
    if listed:
        answer.end("\n".join(f"{job.name:24} {job.about}" for job in chosen), 0)
    if on == "gpu":
        chosen, at_once = _that_fit(chosen), 1  # some jobs fill a GPU
    if not ask.has_namespaces():
        answer.say(
            "this user cannot create namespaces. `diagnose` is therefore given the process of each gym "
            "job, and the gym leaves out jobs that mount a file system"
        )
        chosen = [job for job in chosen if not job.mounts]
    trials: list[Trial] = []
    with Stop() as stopped:
        try:
            prefix = choose(python).prefix
            if keep:
                new_folder(keep, exist_ok=True)
            for trial in ask.Gym(prefix, to_the_end, keep, stopped).run(chosen, at_once):
                trials.append(trial)
                answer.say(table.lines(trial))
        except InterpreterError as error:
            answer.leave(error, error.exit_code)
        except OSError as error:
            answer.leave(
                f"cannot write {error.filename or keep}: {error.strerror or error}",
                1 if error.errno in answer.FULL else 2,
            )
        except ValueError as error:
            answer.leave(error, 1)
    if stopped.received:
        answer.say(f"{stopped()}: {len(trials)} of {len(chosen)} jobs ended before")
    code = (
        judge.exit_code([trial.outcome for trial in trials])
        if not stopped.received
        else 128 + stopped.received
    )
    document = {
        "schema": "nccl-runbook/gym/1",
        "on": on,
        "sentence": table.sentence(trials),
        "exit_code": code,
        "faults": [trial.to_json() for trial in trials],
    }
    answer.end(document if json else table.sentence(trials), code, html, lambda: _page(trials, code))


def _that_fit(chosen: list[Job]) -> list[Job]:
    """The jobs for which this machine has enough GPUs. Leaves with code 4 if there are none, or if somebody
    uses them."""
    users = ask_nvml.users()
    if isinstance(users, Gap):
        answer.leave(f"NVML finds no GPU: {users.detail}", 4)
    if busy := guard.in_the_way(users, False):
        answer.leave(busy.reason, 4)
    fit = [job for job in chosen if job.gpus <= len(users.gpus)]
    if not fit:
        answer.leave(f"{chosen[0].name} needs {chosen[0].gpus} GPUs; this machine has {len(users.gpus)}", 4)
    if len(fit) < len(chosen):
        answer.say(f"{len(chosen) - len(fit)} of {len(chosen)} jobs need more GPUs than this machine has")
    return fit


def _page(trials: list[Trial], code: int) -> str:
    severity = {0: Severity.OK, 3: Severity.BROKEN}.get(code, Severity.UNKNOWN)
    sentence = f"Gym: {table.sentence(trials)}"
    report = Remedy(
        "you",
        "Read the wrong answer. Then open an issue that names this gym job, and attach the log that "
        "--keep DIR saves.",
    )
    finding = Finding("gym", severity, sentence, remedy=(report,) if severity is Severity.BROKEN else ())
    return answer.page_of("gym", sentence, [finding], [table.trials_table(trials)], code)
