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
import pkgutil
import runpy
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from nccl_runbook import placement
from nccl_runbook.core.facts import Gap, to_json, utc_now
from nccl_runbook.core.redact import Redactor, Terminal
from nccl_runbook.edges import ask as edges
from nccl_runbook.gpus import ask as gpus
from nccl_runbook.hang.live import judge as live_rules
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.launch import stop
from nccl_runbook.launch.engine import Engine, EngineError
from nccl_runbook.launch.interpreters import NOT_HERE, rank_devices
from nccl_runbook.look import live as live_look
from nccl_runbook.machine import ask_nvml as nvml, guard
from nccl_runbook.machine.facts import CudaView, NvmlGpu, Surroundings
from nccl_runbook.search import group_testing, halving
from nccl_runbook.sync import ask as sync
from nccl_runbook.sync.facts import SyncArm
from nccl_runbook.worlds import ask as worlds, ask_arms as arms
from nccl_runbook.worlds.facts import Trial

NOT_JUDGED = "not judged yet: nccl-runbook run --record FILE"


class Step:
    """One notebook's facts. ``engine``: None where this interpreter cannot run ranks; ``why_not``: why
    no rank may run, None if it may."""

    def __init__(
        self, name: str, parameters: Dict[str, Any], engine: Optional[Engine], why_not: Optional[Gap]
    ) -> None:
        self.name, self.parameters, self.engine, self.why_not = name, parameters, engine, why_not
        self.facts: Dict[str, Any] = {}
        self.begin(parameters["budget_s"])

    def begin(self, left_s: float) -> None:
        """The clock starts; ``left_s``: seconds left for all steps.
        A step without any says so in its facts."""
        self.started, self._clock, self._worlds_before = (
            utc_now(),
            time.monotonic(),
            len(self.engine.history) if self.engine else 0,
        )
        self.parameters["budget_s"] = max(1, int(min(self.parameters["budget_s"], left_s)))
        self.forbid(Gap("not-run", "the budget was spent: raise --budget") if left_s < 1 else None)

    def forbid(self, gap: Optional[Gap]) -> None:
        """The first reason counts."""
        self.why_not = gap if self.why_not is None else self.why_not

    @property
    def left_s(self) -> float:
        return max(1.0, self.parameters["budget_s"] - (time.monotonic() - self._clock))

    @property
    def devices(self) -> List[Optional[int]]:
        return rank_devices(
            self.parameters["gpus"],
            self.parameters["max_ranks"],
            self.engine.cuda_count() if self.engine else 0,
        )

    def ask_who_works(self) -> None:
        """Nothing runs on GPUs that somebody uses."""
        self.facts["users"] = nvml.users(self.left_s)
        busy = guard.in_the_way(self.facts["users"], self.parameters["allow_busy"])
        self.forbid(Gap("not-run", busy.reason) if busy else None)

    def ask(self, fact: str, probe: Callable[[], Any]) -> Any:
        self.facts[fact] = probe() if self.why_not is None else self.why_not
        return self.facts[fact]

    def record(self, reason: str) -> Dict[str, Any]:
        judged = {
            "python": self.parameters["python"],
            **(self.engine.judged() if self.engine else {"host": os.uname().nodename}),
        }
        commands = [
            {"label": w.request.name, "line": w.shell_line}
            for w in (self.engine.history if self.engine else [])
        ]
        return live_look.unjudged(
            self.name,
            reason,
            self.started,
            time.monotonic() - self._clock,
            parameters=self.parameters,
            judged=judged,
            facts=to_json(self.facts),
            commands=commands[self._worlds_before :],
        )


def visibility(step: Step) -> None:
    step.facts["gpus"] = gpus.collect(step.engine, step.left_s)


def fewer_gpus(step: Step) -> None:
    step.ask_who_works()
    step.ask("edges", lambda: edges.collect(step.engine, step.devices, step.left_s))
    ladder = step.ask("ladder", lambda: worlds.ladder(step.engine, step.devices, step.left_s))
    singles = step.ask("singles", lambda: worlds.singles(step.engine, step.devices, step.left_s))
    pairs = step.ask("pairs", lambda: worlds.pairs(step.engine, step.devices, singles, step.left_s, ladder))
    step.ask(
        "search",
        lambda: worlds.search(step.engine, ladder, singles, pairs, step.left_s, group_testing.identify),
    )


def transports(step: Step) -> None:
    step.ask_who_works()
    step.ask("links", lambda: nvml.links(step.left_s))
    made = step.ask("arms", lambda: arms.collect(step.engine, step.devices, step.left_s, halving.halve))
    step.ask("pairs", lambda: arms.pairs(step.engine, made, step.left_s))


def weight_sync(step: Step) -> None:
    step.ask_who_works()
    p, spec = step.parameters, settings()["spec"]
    plan = step.ask("plan", lambda: placement.place(step.devices))
    step.ask(
        "runs",
        lambda: sync.collect(
            step.engine,
            {**spec, "layers": placement.layers_to_move(plan, p["layers"], spec["layers_of"])},
            plan.devices,
            p["methods"],
            p["directory"],
            p["repeats"],
            step.left_s,
            p["receivers_busy"],
        ),
    )


STEPS = {
    "01-gpu-visibility": visibility,
    "03-fewer-gpus": fewer_gpus,
    "04-transports": transports,
    "05-weight-sync": weight_sync,
}


def settings() -> Dict[str, Any]:
    """What was settled when the file was built: each notebook's parameters, and the shapes
    of the model that 05 moves."""
    return json.loads(pkgutil.get_data("nccl_runbook", "look.json") or b"")


# --- what the reader sees: facts in a line each, no judgement


def _trial(trial: Trial) -> str:
    failed = [e["text"] for r in trial.world.ranks for e in r.named("error")] + trial.world.log.splitlines()[
        -1:
    ]
    why = "" if trial.passed or not failed else f": {failed[0].partition(chr(10))[0]}"
    return (
        f"{trial.name}: {trial.world.ended} ({trial.world.wall_s:.1f} s)"
        f"{f', again {trial.again.ended}' if trial.again else ''}{why}"
    )


_WORDS: Dict[type, Callable[[Any], str]] = {
    Trial: _trial,
    SyncArm: str,
    NvmlGpu: lambda gpu: f"NVML: GPU {gpu.nvml_index}, {gpu.name}, {gpu.uuid}",
    CudaView: lambda cuda: f"CUDA: {len(cuda.gpus)} GPUs{'. '.join(['', *cuda.error.splitlines()])}",
    Surroundings: lambda around: (
        f"device files: {', '.join(f'{f.path} {f.error}'.strip() for f in around.files) or 'none'}"
    ),
}


def lines(fact: Any, name: str = "") -> Iterator[str]:
    """What a fact says of GPUs, worlds and syncs, and every Gap in it."""
    if isinstance(fact, Gap):
        yield f"{name}: {fact}"
    elif type(fact) in _WORDS:
        yield _WORDS[type(fact)](fact)
    else:
        parts = (
            list(vars(fact).items())
            if dataclasses.is_dataclass(fact)
            else list(fact.items())
            if isinstance(fact, dict)
            else []
        )
        for key, part in [(name, one) for one in fact] if isinstance(fact, list) else parts:
            yield from lines(part, getattr(fact, "name", key))


# --- the command

OPTIONS: Dict[str, Dict[str, Any]] = {
    "--json": {"metavar": "FILE", "help": "- for standard output; default: nccl-look-HOST-TIME.json"},
    "--step": {
        "nargs": "+",
        "choices": list(STEPS),
        "default": list(STEPS),
        "metavar": "NAME",
        "help": ", ".join(STEPS),
    },
    "--gpus": {"default": "", "help": "CUDA indices such as 0,1 or 0-3, one per rank; default: all"},
    "--allow-busy": {"action": "store_true", "help": "also test on GPUs that somebody else uses"},
    "--budget": {
        "type": float,
        "default": 300.0,
        "metavar": "S",
        "help": "time limit in seconds of all steps together",
    },
}
WHILE_IT_HANGS: Dict[str, Dict[str, Any]] = {
    "--live": {
        "action": "store_true",
        "help": "which rank never came, and why: a table at once, the answer after the gap",
    },
    "--gap": {"type": float, "default": 10.0, "metavar": "S", "help": "seconds between the two samples (10)"},
    "--pid": {
        "type": int,
        "nargs": "+",
        "default": [],
        "metavar": "N",
        "help": "look only at the job of this rank or launcher",
    },
    "--html": {"metavar": "FILE", "default": "", "help": "also write the answer as a page"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "nccl-look.pyz",
        description="Looks at GPUs and collectives on this node, and writes a record; to judge it elsewhere: "
        "nccl-runbook run --record FILE. Installs nothing, and leaves nothing but FILE.",
    )
    live = parser.add_argument_group(
        "while the job hangs", "looks at the running ranks instead; starts, stops and signals nothing"
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


class Output:
    """The file, replaced as a whole so that what is on disk is complete at every moment, mode 0600;
    or standard output at the end."""

    def __init__(self, path: str) -> None:
        self.path, self.redactor = path, Redactor(os.environ)

    def write(self, records: List[Dict[str, Any]], last: bool = False) -> None:
        text = json.dumps(self.redactor.json(records), indent=1) + "\n"
        if self.path != "-":
            self.put(self.path, text)
        elif last:
            sys.stdout.write(text)

    def put(self, path: str, text: str) -> None:
        with open(
            os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(path + ".part", path)

    def say(self, text: str) -> None:
        print(self.redactor.text(text), file=sys.stderr if self.path == "-" else sys.stdout, flush=True)


def look(options: argparse.Namespace, output: Output) -> None:
    """Every step asked for, under this interpreter. Raises ValueError for GPUs that do not exist, OSError
    if the file cannot be written."""
    if not 0 <= options.budget <= 86400:
        raise ValueError(f"budget: {options.budget:g} is not from 0 to 86400 seconds")
    ends = time.monotonic() + options.budget
    engine, why_not = (
        Engine([sys.executable], None, output.redactor, until=ends if options.budget else math.inf),
        None,
    )
    try:
        said = engine.judged()
        output.say(f"{said['host']}: {sys.executable}, torch {said['torch']}, NCCL {said['nccl'] or 'none'}")
        if None in rank_devices(options.gpus, 0, engine.cuda_count()) and options.gpus:
            output.say(NOT_HERE % options.gpus)
    except EngineError as error:
        why_not = Gap("absent", str(error))
        output.say(
            f"no rank is run: {error}; only what needs no rank is looked at. "
            "Use the interpreter of your job to see more"
        )
    with engine:
        _steps(options, output, engine if why_not is None else None, why_not, ends)


def live(options: argparse.Namespace, output: Output) -> None:
    """Who did not come, for every job of this user on this host. Raises ValueError for a pid without
    a process, OSError as above."""
    began = time.monotonic()

    def keep(found: Live) -> None:
        with contextlib.suppress(
            OSError
        ):  # it is told at the end: whatever is wrong with the disk, the answer comes first
            output.write([live_look.record(found, time.monotonic() - began)])

    seen = live_look.look(live_look.checked_pids(options.pid), options.gap, output.say, keep)
    keep(seen)
    pictures = live_rules.judge([seen])
    output.say(live_look.text(pictures, [seen]))
    output.write([live_look.record(seen, time.monotonic() - began)], last=True)
    if options.html:
        output.put(options.html, live_look.page(pictures, [seen]))


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
            for line in (line for fact, found in step.facts.items() for line in lines(found, fact)):
                output.say(f"  {line}")
    finally:
        output.write(records, last=True)


def _find_scratch() -> None:
    """/dev/shm where no temporary folder can be written, as warm.py does it; ends with a sentence
    if that cannot be either."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = (
            "/dev/shm"
            if os.access("/dev/shm", os.W_OK)
            else sys.exit(
                "nccl-look: no temporary folder can be written, nor /dev/shm: name one that can with TMPDIR"
            )
        )


def main() -> int:
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
            f"cannot write {name}: {error.strerror}; name another file with "
            f"{'--html' if name == options.html else '--json, - for standard output'}"
        )
        sys.exit(f"nccl-look: {ours if name in (options.json, options.html) else error}")
    later = live_look.REASON if options.live else NOT_JUDGED
    output.say(
        later
        if options.json == "-"
        else f"written: {options.json}; {later.replace('FILE', shlex.quote(options.json))}"
    )
    return 0
