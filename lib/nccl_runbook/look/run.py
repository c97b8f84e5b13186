"""nccl-look.pyz: looks where nothing can be installed, and leaves one file that is judged elsewhere.
Python >= 3.9, no dependency.

`make look` builds it. It asks what the notebooks 01, 03, 04 and 05 ask, in their order, under the interpreter
that runs it, and writes their records, unjudged, as one JSON array: `nccl-runbook run --record FILE` judges
it. Exit codes: 0 the file is written, 1 it could not be, 2 wrong usage, 128 + n ended by signal n; what was
seen until then is in the file.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import runpy
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hang.live import judge as judge_live
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.launch import stop
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.gpu_lists import check_present
from nccl_runbook.launch.warm_link import EngineError
from nccl_runbook.look import live as look_live
from nccl_runbook.look.steps import Step, fewer_gpus, lines, settings, transports, visibility, weight_sync
from nccl_runbook.look.terminal import Terminal

NOT_JUDGED = "not judged yet: nccl-runbook run --record FILE"

STEPS = {
    "01-gpu-visibility": visibility,
    "03-fewer-gpus": fewer_gpus,
    "04-transports": transports,
    "05-weight-sync": weight_sync,
}

OPTIONS: Dict[str, Dict[str, Any]] = {
    "--json": {"metavar": "FILE", "help": "- for standard output; default: nccl-look-HOST-TIME.json"},
    "--step": {
        "nargs": "+",
        "choices": list(STEPS),
        "default": list(STEPS),
        "metavar": "NAME",
        "help": ", ".join(STEPS),
    },
    "--gpus": {"default": "", "help": "CUDA indices such as 0,1 or 0-3, one per rank; default: all GPUs"},
    "--allow-busy": {"action": "store_true", "help": "also test on GPUs that another process uses"},
    "--budget": {
        "type": float,
        "default": 300.0,
        "metavar": "S",
        "help": "time limit for all steps together, in seconds",
    },
}
WHILE_IT_HANGS: Dict[str, Dict[str, Any]] = {
    "--live": {
        "action": "store_true",
        "help": (
            "find the rank that never reached the collective; prints a table at once, and the answer later"
        ),
    },
    "--gap": {
        "type": float,
        "default": 10.0,
        "metavar": "S",
        "help": ("seconds between the two samples of each process (10)"),
    },
    "--pid": {
        "type": int,
        "nargs": "+",
        "default": [],
        "metavar": "N",
        "help": "look only at the job of the rank or launcher with this pid",
    },
    "--html": {"metavar": "FILE", "default": "", "help": "also write the answer as an HTML page"},
}


def arguments() -> argparse.Namespace:
    """The parsed command line. Exits with 2 for options that do not fit."""
    parser = argparse.ArgumentParser(
        "nccl-look.pyz",
        description="Tests GPUs and collectives on this node, and writes a record. To judge the record "
        "elsewhere, run nccl-runbook run --record FILE. This program installs nothing, and leaves "
        "only FILE behind.",
    )
    live = parser.add_argument_group(
        "while the job hangs",
        "examine the running ranks instead of testing GPUs; start no test, stop no process, send no signal",
    )
    for group, options in ((parser, OPTIONS), (live, WHILE_IT_HANGS)):
        for name, how in options.items():
            group.add_argument(name, **how)
    parser.set_defaults(
        json=f"nccl-look-{os.uname().nodename}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    )
    args = parser.parse_args()
    if (args.pid or args.html or args.gap != 10.0) and not args.live:
        parser.error("--pid, --gap and --html belong to --live")
    return args


@dataclasses.dataclass
class Output:
    """The file of the look, mode 0600, replaced atomically so that it is always complete; or standard output
    at the end."""

    path: str
    redactor: Redactor = dataclasses.field(default_factory=lambda: Redactor(os.environ))

    def write(self, records: List[Dict[str, Any]], last: bool = False) -> None:
        """Write the records, redacted, to the file; to standard output only with ``last``. OSError if that
        fails."""
        text = json.dumps(self.redactor.json(records), indent=1) + "\n"
        if self.path != "-":
            self.put(self.path, text)
        elif last:
            sys.stdout.write(text)

    def put(self, path: str, text: str) -> None:
        """Replace a file atomically (mode 0600); OSError if that fails."""
        with open(
            os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(path + ".part", path)

    def say(self, text: str) -> None:
        """Print a redacted line; on standard error if the records go to standard output."""
        print(self.redactor.text(text), file=sys.stderr if self.path == "-" else sys.stdout, flush=True)


def look(options: argparse.Namespace, output: Output) -> None:
    """Run every step under this interpreter. ValueError for GPUs that do not exist, OSError if the file
    cannot be written; EngineError if no ranks can run."""
    if not 0 <= options.budget <= 86400:
        raise Unusable(
            f"budget: {options.budget:g} is out of range. The budget must be between 0 and 86400 seconds"
        )
    check_present(options.gpus)
    ends = time.monotonic() + options.budget
    engine, why_not = (
        Engine([sys.executable], None, output.redactor, until=ends if options.budget else math.inf),
        None,
    )
    try:
        software = engine.judged()
        output.say(
            f"{software['host']}: {sys.executable}, torch {software['torch']}, "
            f"NCCL {software['nccl'] or 'none'}"
        )
    except EngineError as error:
        why_not = Gap("absent", str(error))
        output.say(
            f"no test rank can run: {error}. Only checks that need no rank were made. To see more, use "
            "the interpreter of your job"
        )
    with engine:
        _steps(options, output, engine if why_not is None else None, why_not, ends)


def live(options: argparse.Namespace, output: Output) -> None:
    """Look at every job of this user on this host. ValueError for a pid without a process, OSError if the
    file cannot be written."""
    began = time.monotonic()

    def keep(picture: Live) -> None:
        with contextlib.suppress(
            OSError
        ):  # reported at the end: the answer comes before any problem of the disk
            output.write([look_live.record(picture, time.monotonic() - began)])

    live_facts = look_live.look(look_live.checked_pids(options.pid), options.gap, output.say, keep)
    keep(live_facts)
    pictures = judge_live.judge_looks([live_facts])
    output.say(look_live.text(pictures, [live_facts]))
    output.write([look_live.record(live_facts, time.monotonic() - began)], last=True)
    if options.html:
        output.put(options.html, look_live.page(pictures, [live_facts]))


def _steps(
    options: argparse.Namespace, output: Output, engine: Optional[Engine], why_not: Optional[Gap], ends: float
) -> None:
    own = {"python": shlex.quote(sys.executable), "gpus": options.gpus, "allow_busy": options.allow_busy}
    asked = [
        Step(n, {**settings()["parameters"][n], **own}, engine, why_not) for n in STEPS if n in options.step
    ]
    records = [step.record("not run") for step in asked]
    try:
        for number, step in enumerate(asked):
            output.write(records)
            output.say(step.name)
            step.begin(ends - time.monotonic())
            try:
                STEPS[step.name](step)
            finally:
                records[number] = step.record(NOT_JUDGED)
            for line in (line for fact, value in step.facts.items() for line in lines(value, fact)):
                output.say(f"  {line}")
    finally:
        output.write(records, last=True)


def _find_scratch() -> None:
    """Use /dev/shm if no temporary folder is writable, as warm.py does; exits with a sentence if that is not
    writable either."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = (
            "/dev/shm"
            if os.access("/dev/shm", os.W_OK)
            else sys.exit(
                "nccl-look: no temporary folder is writable, not even /dev/shm. Name a writable "
                "folder with TMPDIR"
            )
        )


def main() -> int:
    """Run the look, or the rank named by --rank. Exit code 0, or 2 for wrong usage."""
    if sys.argv[1:2] == ["--rank"]:  # in the lines that repeat a world: what follows belongs to the rank
        del sys.argv[:2]
        runpy.run_module("nccl_runbook.ranks." + Path(sys.argv[0]).stem, None, "__main__", True)
        return 0
    Terminal.take()
    options = arguments()
    output = Output(options.json)
    stop.end()
    try:
        output.write([])
        _find_scratch()
        (live if options.live else look)(options, output)
    except ValueError as error:
        print(f"nccl-look: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        name = str(
            error.filename or ("standard output" if isinstance(error, BrokenPipeError) else options.json)
        ).removesuffix(".part")
        ours = (
            f"cannot write {name}: {error.strerror}. Name another file with "
            f"{'--html' if name == options.html else '--json, or - for standard output'}"
        )
        sys.exit(f"nccl-look: {ours if name in (options.json, options.html) else error}")
    later = look_live.REASON if options.live else NOT_JUDGED
    output.say(
        later
        if options.json == "-"
        else f"written: {options.json}; {later.replace('FILE', shlex.quote(options.json))}"
    )
    return 0
