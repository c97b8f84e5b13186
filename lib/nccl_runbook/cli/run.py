"""`nccl-runbook run`: the notebooks, headlessly, and one page.

Example: nccl-runbook run --step 03-fewer-gpus --gpus 0,1 -p max_ranks 2
"""

import contextlib
import errno
import functools
import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, TextIO

import typer

from nccl_runbook.against.table import tables
from nccl_runbook.book import Book, Choice, duration_s
from nccl_runbook.book.folder import Options, from_here, in_order
from nccl_runbook.book.plan import Planned, check_records, make_plan
from nccl_runbook.case.good_run import good_run, run_against
from nccl_runbook.cli import answer, options
from nccl_runbook.cli.hosts import judge_hosts_together
from nccl_runbook.core.facts import Unusable
from nccl_runbook.core.records import RecordError
from nccl_runbook.core.share import learn
from nccl_runbook.launch.stop import own_folder
from nccl_runbook.logs import file as log_file
from nccl_runbook.logs.source import LEARNT_BYTES
from nccl_runbook.logs.sources import sources
from nccl_runbook.report.verdict_sentence import START_STEP
from nccl_runbook.step.parameters import PATHS, check_values

_CHECKOUT = Path(__file__).resolve().parents[3]
_WITH_STDIN = "--stop-with-stdin"  # for the cockpit: the run may not outlive it


def run(
    step: Annotated[
        list[str],
        typer.Option(
            metavar="NAME...",
            help="Run only these steps, such as 03-fewer-gpus. The step 99-verdict always runs.",
        ),
    ] = [],  # noqa: B006
    log: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="Log of the failed job, which the steps 00-start and 07-logs read. Repeatable.",
        ),
    ] = [],  # noqa: B006
    symptom: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="The symptom in your words, or the error text. The symptom decides the order of the steps.",
        ),
    ] = "",
    python: options.PythonOption = "",
    gpus: options.GpusOption = "",
    allow_busy: options.AllowBusyOption = False,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit of the whole run, such as 90s, 5m or 1h30m.")
    ] = "5m",
    parameter: Annotated[
        list[str],
        typer.Option("-p", metavar="NAME VALUE", help="Name and value of a notebook parameter. Repeatable."),
    ] = [],  # noqa: B006
    against: Annotated[
        list[str],
        typer.Option(
            metavar="GOOD",
            help="Files of a good run to compare with: the folder that `run` wrote (outputs/<UTC time>), "
            "records or logs. Repeatable.",
        ),
    ] = [],  # noqa: B006
    record: Annotated[
        list[Path],
        typer.Option(metavar="FILE...", help="Judge these saved records again, without running a test."),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder of this run. Default: outputs/<UTC time>."),
    ] = None,
    notebooks: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that contains the notebooks.", show_default=False)
    ] = _CHECKOUT / "notebooks",
    fail_on: options.FailOnOption = "unknown",
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    stop_with_stdin: Annotated[bool, typer.Option(_WITH_STDIN, hidden=True)] = False,
) -> None:
    """Run the notebooks, and write one page that names the fault and the fix."""
    began = time.monotonic()
    judge_hosts_together(record, json, out and out / "index.html", fail_on)
    os.umask(0o077)  # logs of ranks and notebooks are this user's own, whatever folder --out names
    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, name="stdin", daemon=True).start()
    try:
        logs = ":".join(os.path.abspath(os.path.expanduser(path)) for path in log)
        brought = [(name, text) for name, text in (("log", logs), ("symptom", symptom)) if text]
        if record and (brought or parameter or python or gpus or allow_busy):
            answer.leave(
                "--record cannot be combined with --log, --symptom, -p, --python, --gpus or "
                "--allow-busy, because a record contains these values"
            )
        given = [*brought, *map(_pair, parameter)]
        seconds = duration_s("--budget", budget)
        # a wrong path is reported before the run, not after it
        read = [path for name, text in given if name in PATHS for path in log_file.named(text)]
        answer.named([*read, *against])
        # names that the logs contain are also replaced in the words of the command line
        for source in sources(read if share else []):
            learn(source.peek(LEARNT_BYTES).decode("utf-8", "replace"))
        needs_start = brought and step and START_STEP not in step
        plan = make_plan(notebooks, [START_STEP, *step] if needs_start else step, given, record)
        if notebooks.resolve() == _CHECKOUT / "notebooks":
            with own_folder("nccl-runbook-") as folder:
                check_records(plan, folder)
        good = good_run(against, [p.name for p in plan]) if against else None
        book_options = Options(
            outputs=notebooks.absolute().parent / "outputs",
            out=out,
            python=_interpreter(python, gpus, plan, seconds),
            gpus=gpus,
            allow_busy=allow_busy,
            budget_s=seconds,
            began=began,
            asked=tuple(step),
            fail_on=fail_on,
            command=answer.command(_WITH_STDIN),
        )
        book = Book(
            plan,
            book_options,
            functools.partial(_progress, sys.stderr if json else sys.stdout),
            _by_evidence(symptom) if brought and not step else in_order,
        )
        document = book.run()
        if good and not book.stop():
            document, compared = run_against(book.page.parent, document, good, read)
            book.on_line("".join(f"\n{table!r}" for table in tables(compared)))
    except Unusable as error:
        is_full = getattr(error.__cause__, "errno", None) in answer.FULL
        answer.leave(error, 1 if is_full and not isinstance(error, RecordError) else 2)
    except OSError as error:
        what = (
            "raise ulimit -n"
            if error.errno == errno.EMFILE
            else f"cannot write {error.filename or 'the report'}"
        )
        answer.leave(f"{what}: {error.strerror or error}; pages that were written before are complete", 1)
    if json:
        answer.tell(document)
    book.on_line(
        f"\n{document.sentence}\nverdict: {document.verdict} (exit code {document.exit_code}): "
        f"{from_here(book.page)}"
    )
    if book.stop():  # the thread of the stopped notebook still waits for its dead kernel: do not wait for it
        sys.stdout.flush()
        os._exit(document.exit_code)
    sys.exit(document.exit_code)


def _by_evidence(symptom: str) -> Choice:
    """A run that was given a log or a symptom takes what decides it first, and ends when it is decided."""
    from nccl_runbook.case.judge import following
    from nccl_runbook.triage.symptoms import deciding

    return functools.partial(following, symptom_steps=deciding([symptom]))


def _progress(stream: TextIO, line: str) -> None:
    """Print a line. If it cannot be written, for example on a full disk, the run goes on without it."""
    with contextlib.suppress(SystemExit):
        answer.put(line, stream)


def _stop_with_stdin() -> None:
    """End this run like SIGTERM once standard input closes, since its owner (a notebook kernel) has then
    ended."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _interpreter(python: str, gpus: str, plan: list[Planned], within_s: float) -> str:
    """The interpreter to judge, chosen before any notebook starts, so that a wrong one is reported as wrong
    usage. Empty if no rank starts, for example if only records are judged."""
    from nccl_runbook.launch.gpu_lists import check_present
    from nccl_runbook.launch.interpreters import choose

    check_present(gpus, python)
    for planned in plan:
        check_present(planned.parameters.get("gpus", ""), python)
        check_values(planned.parameters)
    starts = any("step.engine" in p.source.read_text(encoding="utf-8") for p in plan if not p.record)
    return shlex.join(choose(python, within_s).prefix) if python or starts else ""


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Unusable(f"-p {name} has no value: write -p NAME VALUE")
    return name, value
