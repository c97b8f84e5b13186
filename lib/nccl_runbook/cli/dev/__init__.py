"""`nccl-runbook dev gym`: real jobs with a mistake, which `diagnose` has to explain without a hint.

Example: nccl-runbook dev gym --fault stopped --fault works-torchrun
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from nccl_runbook.cli import answer
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.gym import ask, table
from nccl_runbook.gym.facts import Trial, jobs
from nccl_runbook.launch.interpreters import InterpreterError, choose
from nccl_runbook.launch.stop import Stop


def dev(
    what: Annotated[Literal["gym"], typer.Argument(metavar="gym", help="What to run.")],
    fault: Annotated[
        list[str], typer.Option(metavar="NAME", help="Only this job. Repeatable. Default: all.")
    ] = [],  # noqa: B006
    on: Annotated[Literal["cpu"], typer.Option(help="Where the ranks run: cpu (Gloo).")] = "cpu",
    at_once: Annotated[int, typer.Option(metavar="N", min=1, max=32, help="Jobs at the same time.")] = 2,
    to_the_end: Annotated[
        bool,
        typer.Option("--to-the-end", help="Let jobs that hang end, and read their logs too."),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the folder of each job there: script, log, dumps."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the jobs, and run none.")] = False,
    python: Annotated[
        str, typer.Option(metavar="PREFIX", help="Interpreter with torch, a path or a prefix.")
    ] = "",
    json: answer.JsonOption = False,
    share: answer.ShareOption = False,
    html: answer.HtmlOption = None,
) -> None:
    """Prove on this machine that diagnosis works: start real jobs, most of them with a mistake, ask
    `diagnose` about each without a hint, and compare. Each job has three small ranks, and nothing of it
    stays."""
    if unknown := [name for name in fault if name not in jobs()]:
        answer.leave(f"there is no job {unknown[0]}: nccl-runbook dev gym --list shows them")
    chosen = [jobs()[name] for name in dict.fromkeys(fault)] or [*jobs().values()]
    if listed:
        answer.end("\n".join(f"{job.name:24} {job.about}" for job in chosen), 0)
    trials: list[Trial] = []
    with Stop() as stopped:
        try:
            prefix = choose(python).prefix
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
            if not ask.has_namespaces():
                answer.say("no namespaces for this user: jobs of others are visible to the live look")
            for trial in ask.Gym(prefix, to_the_end, keep, stopped).run(chosen, at_once):
                trials.append(trial)
                answer.say(table.lines(trial))
        except InterpreterError as error:
            answer.leave(error, error.exit_code)
        except OSError as error:
            answer.leave(f"cannot write {keep}: {error.strerror or error}")
        except ValueError as error:
            answer.leave(error, 1)
    if stopped.received:
        answer.say(f"{stopped()}: {len(trials)} of {len(chosen)} jobs ended before")
    code = _exit_code(trials) if not stopped.received else 128 + stopped.received
    document = {
        "schema": "nccl-runbook/gym/1",
        "on": on,
        "sentence": table.sentence(trials),
        "exit_code": code,
        "faults": [trial.to_json() for trial in trials],
    }
    answer.end(document if json else table.sentence(trials), code, html, lambda: _page(trials, code))


def _exit_code(trials: list[Trial]) -> int:
    """0 if all are right, 3 if one is wrong, 4 if one is undecided."""
    outcomes = {trial.outcome for trial in trials}
    return 3 if "wrong" in outcomes else 4 if "undecided" in outcomes else 0


def _page(trials: list[Trial], code: int) -> str:
    severity = {0: Severity.OK, 3: Severity.BROKEN}.get(code, Severity.UNKNOWN)
    sentence = f"Gym: {table.sentence(trials)}"
    finding = Finding("gym", severity, sentence)
    return answer.page_of("gym", sentence, [finding], [table.trials_table(trials)], code)
