"""`nccl-runbook reduce`: the smallest form of the user's own job that still fails, with the
log of each that was tried.

Example: nccl-runbook reduce --axis nodes=1,2,4 --axis learners=1,2 --deadline 900 --fail-on
'Watchdog caught' -- srun -N {nodes} python3 train.py --learners {learners}
"""

import contextlib
import dataclasses
import errno
import itertools
import os
import re
import resource
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.records import new_folder
from nccl_runbook.core.redact import clipped
from nccl_runbook.launch.stop import Stop
from nccl_runbook.logs.file import text_of

LOGS = Path("reduce-logs")
LOOK_S = 3.0


@dataclasses.dataclass
class Tried:
    """One combination. ``outcome``: passed, failed, hung (at the deadline), interrupted, otherwise (failed,
    but not as --fail-on says)."""

    values: dict[str, str]
    outcome: str = "passed"
    code: int | None = None
    failed: int = 0
    runs: int = 0
    seconds: list[float] = dataclasses.field(default_factory=list)
    line: str = ""
    look: str = ""
    logs: list[str] = dataclasses.field(default_factory=list)


def reduce(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- CMD...",
            help="Command of your job. In the command, {NAME} stands for the value of the axis "
            "NAME. Each run also has an environment variable NAME with this value.",
        ),
    ],
    axis: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=A,B,...",
            help="A size of the job, with its values from smallest to largest. Repeatable.",
        ),
    ] = [],  # noqa: B006
    deadline: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=1.0,
            max=1e6,
            help="Time limit of a run in seconds. After this time, "
            "`reduce` examines the hung run as `look` does, and ends it.",
        ),
    ] = 900,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="REGEX",
            help="Regular expression for an output line that shows "
            "the failure. Default: any exit code except 0 is a "
            "failure.",
        ),
    ] = "",
    repeats: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Number of runs per combination of sizes, for intermittent failures."
        ),
    ] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New or empty folder for the logs.")] = LOGS,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
) -> None:
    """Run your job with growing sizes until a run fails. All processes of a run end before the next
    run starts."""
    from nccl_runbook.compare import reduction

    try:
        axes = reduction.axes_of(axis)
        re.compile(fail_on)
        combinations = reduction.smallest_first(axes)
        reduction.check_placeholders(command, axes, _script)
        if out == LOGS and out.is_dir() and any(out.iterdir()):  # of an earlier call
            numbered = (Path(f"{LOGS}-{n}") for n in itertools.count(2))
            out = next(folder for folder in numbered if not folder.exists())
        new_folder(out, exist_ok=True)
        if any(out.iterdir()):
            raise ValueError(f"{out} is not empty; name a new folder with --out")
        out.chmod(0o700)  # one that was there may be open to others
    except (ValueError, re.error) as error:
        answer.leave(str(error) if isinstance(error, ValueError) else f"--fail-on: {error}", 2)
    except OSError as error:
        answer.leave(f"cannot write {out}: {error.strerror}", 1 if error.errno in answer.FULL else 2)
    tried: list[Tried] = []
    stopped = Stop().remember()
    for values in combinations:
        words = reduction.command_for(command, values)
        try:
            tried.append(
                _try(
                    values,
                    words,
                    fail_on,
                    deadline,
                    repeats,
                    out / f"{len(tried) + 1:02d}-{_name(values)}",
                    stopped,
                )
            )
        except (ValueError, OSError) as error:
            _ = [
                p.unlink() for p in out.iterdir() if not p.stat().st_size
            ]  # of what could not start: the folder may be named again
            answer.leave(
                *(
                    (error, 2)
                    if isinstance(error, ValueError)
                    else (f"cannot write {out}: {error.strerror}", 1)
                )
            )
        (answer.say if json else answer.tell)(_line(tried[-1]))
        if tried[-1].failed or stopped():
            break
    document = _document(tried, len(combinations), stopped)
    answer.end(document if json else document["sentence"], document["exit_code"])


def _script(word: str) -> str:
    text = text_of(word, 1 << 20, "a script") if Path(word).is_file() else ""
    return text if isinstance(text, str) else ""


def _try(
    values: dict[str, str],
    words: list[str],
    wanted: str,
    deadline_s: float,
    repeats: int,
    stem: Path,
    stopped: Stop,
) -> Tried:
    """Up to ``repeats`` runs, none after the first failure or a signal."""
    tried = Tried(values)
    while tried.runs < repeats and not tried.failed and not (tried.runs and stopped()):
        tried.runs += 1
        tried.logs.append(f"{stem}-run{tried.runs}.log")
        began = time.monotonic()
        outcome, tried.code, line = _run(words, values, wanted, deadline_s, tried, stopped)
        if lost := _lost(Path(tried.logs[-1])):  # what the job printed is lost, and may be why it failed
            raise OSError(lost, os.strerror(lost))
        tried.seconds.append(round(time.monotonic() - began, 1))
        if outcome != "passed":
            tried.outcome, tried.line = outcome, line
        tried.failed += outcome in ("failed", "hung")
    return tried


def _lost(log: Path) -> int:
    """Why a job could print no more into its log, as an errno; 0 if it could."""
    if not shutil.disk_usage(log.parent).free:
        return errno.ENOSPC
    return errno.EFBIG if log.stat().st_size == resource.getrlimit(resource.RLIMIT_FSIZE)[0] else 0


def _run(
    words: list[str], values: Mapping[str, str], wanted: str, deadline_s: float, tried: Tried, stopped: Stop
) -> tuple[str, int | None, str]:
    """How one run ended, its exit code, and the line that shows it."""
    from nccl_runbook.launch import command

    with (
        open(tried.logs[-1], "wb") as log,
        command.supervised(words, {**os.environ, **values}, log) as job,
        command.first_line(wanted, log.name) if wanted else contextlib.nullcontext() as search,
    ):
        if not command.ends(job, deadline_s, stopped, search):
            return _unfinished(job, deadline_s, tried, stopped)
        if search and search.returncode == command.FOUND:
            return "failed", job.poll(), clipped(search.stdout.read().rstrip("\n"), 400)
        if search and search.returncode != command.NOT_FOUND:
            return (
                "otherwise",
                job.poll(),
                f"the search of the run's log ended with exit code {search.returncode}",
            )
        return "passed" if job.poll() == 0 else "otherwise" if wanted else "failed", job.poll(), ""


def _unfinished(
    job: subprocess.Popen, deadline_s: float, tried: Tried, stopped: Stop
) -> tuple[str, int | None, str]:
    if stopped():
        return "interrupted", None, stopped()
    if job.poll() is not None:
        return (
            "otherwise",
            job.poll(),
            f"ended with exit code {job.poll()}; the search of its log took longer than {deadline_s:g} s",
        )
    tried.look = _looked_at(job.pid)
    return "hung", None, f"still running after {deadline_s:g} s"


def _looked_at(pid: int) -> str:
    """What a live look shows of the hung job, before its processes end; empty for a job without torch."""
    from nccl_runbook.hang.live.ask import Look
    from nccl_runbook.hang.live.judge import judge_looks

    looking = Look([pid])
    if not any(r.has_torch for r in looking.ranks):
        return ""
    looking.first()
    return "; ".join(p.sentence for p in judge_looks([looking.after(LOOK_S)]))


# --- the answer in words


def _name(values: Mapping[str, str]) -> str:
    return re.sub(r"[^\w=,.-]", "_", ",".join(f"{n}={v}" for n, v in values.items()))[:120]


def _line(tried: Tried) -> str:
    how = {
        "passed": "passed",
        "failed": f"FAILED: {tried.line or f'exit code {tried.code}'}",
        "hung": f"HUNG: {tried.line}",
        "interrupted": tried.line,
        "otherwise": tried.line
        or f"ended with exit code {tried.code}, but no line of its output matches --fail-on",
    }[tried.outcome]
    rate = f", failed {tried.failed} of {tried.runs}" if tried.runs > 1 else ""
    look = f"\n    {tried.look}" if tried.look else ""
    return f"{_name(tried.values)}: {how} ({max(tried.seconds):.1f} s{rate}); {tried.logs[-1]}{look}"


def _document(tried: list[Tried], count: int, stopped: Stop) -> dict[str, Any]:
    failing = next((t for t in tried if t.failed), None)
    otherwise = [t for t in tried if t.outcome == "otherwise"]
    sentence = (
        f"not reproduced: none of {count} combinations failed. Try larger values, or --repeats "
        "for an intermittent failure"
    )
    if failing:
        sentence = (
            f"smallest that fails: {_name(failing.values)} (run {len(tried)} of {count} combinations); "
            f"{failing.look or failing.line or f'exit code {failing.code}'}"
        )
    elif stopped():
        sentence = (
            f"{stopped()} after {sum(t.outcome != 'interrupted' for t in tried)} of {count} "
            "combinations; none showed the "
            "failure"
        )
    elif otherwise:
        sentence = (
            f"none of {count} combinations showed the failure, but {len(otherwise)} ended with "
            f"a different error; see {shlex.quote(otherwise[0].logs[-1])}"
        )
    code = 128 + stopped.received if stopped.received else 3 if failing else 4
    return {
        "schema": "nccl-runbook/reduce/1",
        "verdict": "broken" if failing else "unknown",
        "exit_code": code,
        "sentence": sentence,
        "smallest": failing.values if failing else None,
        "combinations": count,
        "runs": tried,
    }
