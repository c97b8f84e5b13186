"""nccl-look.pyz: looks where nothing can be installed, and leaves one file that is judged elsewhere. Python >= 3.9, no dependency.

`make look` builds it. It asks what the notebooks 01, 03, 04 and 05 ask, in their order, under the interpreter that runs it, and writes
their records, unjudged, as one JSON array: `nccl-runbook run --record FILE` judges it. Exit codes: 0 the file is written, 1 it could
not be, 2 wrong usage, 128 + n ended by signal n; what was seen until then is in the file.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pkgutil
import runpy
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from nccl_runbook.facts import Gap, to_json
from nccl_runbook.facts.experiments import Trial
from nccl_runbook.facts.machine import CudaView, NvmlGpu, Surroundings
from nccl_runbook.facts.sync import SyncArm
from nccl_runbook.launch.devices import rank_devices
from nccl_runbook.launch.engine import Engine, EngineError
from nccl_runbook.planning import guard, placement
from nccl_runbook.probes import gpus, sync, users, worlds
from nccl_runbook.redact import Redactor

RANKS_OPTION = "--rank"  # of the lines that repeat a world: everything after it belongs to the rank
NOT_JUDGED = "not judged yet: nccl-runbook run --record FILE"


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Step:
    """One notebook's facts. ``engine``: None where this interpreter cannot run ranks, ``without`` then says why."""

    def __init__(self, name: str, parameters: Dict[str, Any], engine: Optional[Engine], without: Optional[Gap]) -> None:
        self.name, self.parameters, self.engine, self.why_not = name, parameters, engine, without
        self.facts: Dict[str, Any] = {}
        self.begin(parameters["budget_s"])

    def begin(self, left_s: float) -> None:
        """The clock starts; ``left_s``: seconds left for all steps. A step without any says so in its facts."""
        self.started, self._clock, self._worlds_before = utc_now(), time.monotonic(), len(self.engine.history) if self.engine else 0
        self.parameters["budget_s"] = max(1, int(min(self.parameters["budget_s"], left_s)))
        if left_s < 1 and self.why_not is None:
            self.why_not = Gap("not-run", "the budget was spent: raise --budget")

    @property
    def left_s(self) -> float:
        return max(1.0, self.parameters["budget_s"] - (time.monotonic() - self._clock))

    @property
    def devices(self) -> List[Optional[int]]:
        assert self.engine
        return rank_devices(self.parameters["gpus"], self.parameters["max_ranks"], self.engine.cuda_count())

    def ask_who_works(self) -> None:
        """Nothing runs on GPUs that somebody uses."""
        self.facts["users"] = users.collect()
        busy = guard.in_the_way(self.facts["users"], self.parameters["allow_busy"])
        if busy and self.why_not is None:
            self.why_not = Gap("not-run", busy.reason)

    def ask(self, fact: str, probe: Callable[[], Any]) -> Any:
        found = self.facts[fact] = probe() if self.why_not is None else self.why_not
        return found

    def record(self, reason: str) -> Dict[str, Any]:
        """As records.Record reads it."""
        judged = {"python": self.parameters["python"], **(self.engine.judged() if self.engine else {"host": os.uname().nodename})}
        worlds_run = self.engine.history[self._worlds_before:] if self.engine else []
        return {"schema": "nccl-runbook/record/1", "step": self.name, "status": "unknown", "reason": reason, "started": self.started,
                "ended": utc_now(), "wall_s": round(time.monotonic() - self._clock, 2), "parameters": self.parameters, "judged": judged,
                "facts": to_json(self.facts), "commands": [{"label": w.request.name, "line": w.shell_line} for w in worlds_run]}


def visibility(step: Step) -> None:
    step.facts["gpus"] = gpus.collect(step.engine)


def fewer_gpus(step: Step) -> None:
    step.ask_who_works()
    step.ask("ladder", lambda: worlds.ladder(step.engine, step.devices, step.left_s))
    singles = step.ask("singles", lambda: worlds.singles(step.engine, step.devices, step.left_s))
    step.ask("pairs", lambda: worlds.pairs(step.engine, step.devices, singles, step.left_s))


def transports(step: Step) -> None:
    step.ask_who_works()
    step.ask("arms", lambda: worlds.arms(step.engine, step.devices, step.left_s))


def weight_sync(step: Step) -> None:
    step.ask_who_works()
    p, spec = step.parameters, settings()["spec"]
    plan = step.ask("plan", lambda: placement.place(step.devices))
    layers = 0 if isinstance(plan, Gap) else placement.layers_to_move(plan, p["layers"], spec["layers_of"])
    step.ask("runs", lambda: sync.collect(step.engine, {**spec, "layers": layers}, plan.devices, p["methods"], p["directory"],
                                          p["repeats"], step.left_s))


STEPS = {"01-gpu-visibility": visibility, "03-fewer-gpus": fewer_gpus, "04-transports": transports, "05-weight-sync": weight_sync}


def settings() -> Dict[str, Any]:
    """What was settled when the file was built: each notebook's parameters, and the shapes of the model that 05 moves."""
    return json.loads(pkgutil.get_data("nccl_runbook", "look.json") or b"")


# --- what the reader sees: facts in a line each, no judgement

def lines(fact: Any, name: str = "") -> Iterator[str]:
    """What a fact says of GPUs, worlds and syncs, and every Gap in it."""
    if isinstance(fact, Gap):
        yield f"{name}: {fact}"
    elif isinstance(fact, Trial):
        failed = [e["text"] for r in fact.world.ranks for e in r.named("error")] + fact.world.log.splitlines()[-1:]
        why = "" if fact.passed or not failed else f": {failed[0].splitlines()[0]}"
        yield f"{fact.name}: {fact.world.ended} ({fact.world.wall_s:.1f} s){f', again {fact.again.ended}' if fact.again else ''}{why}"
    elif isinstance(fact, SyncArm):
        took = [] if fact.steady_s is None else [f"{fact.steady_s:.3f} s a sync"]
        yield f"{fact.method}: {', '.join(took + ['wrong bytes'] * bool(fact.wrong) + sorted(set(fact.ended)))}"
    elif isinstance(fact, NvmlGpu):
        yield f"NVML: GPU {fact.nvml_index}, {fact.name}, {fact.uuid}"
    elif isinstance(fact, CudaView):
        yield f"CUDA: {len(fact.gpus)} GPUs{'. '.join(['', *fact.error.splitlines()])}"
    elif isinstance(fact, Surroundings):
        yield f"device files: {', '.join(f'{f.path} {f.error}'.strip() for f in fact.files) or 'none'}"
    else:
        parts = vars(fact) if dataclasses.is_dataclass(fact) else fact if isinstance(fact, dict) else {}
        for key, part in parts.items():
            yield from lines(part, getattr(fact, "name", key))
        for part in fact if isinstance(fact, list) else ():
            yield from lines(part, name)


# --- the command

def arguments(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("nccl-look.pyz", description="Looks at GPUs and collectives here; the file is judged elsewhere: "
                                     "nccl-runbook run --record FILE. Nothing is installed, and nothing but FILE is written.")
    parser.add_argument("--json", metavar="FILE", default=f"nccl-look-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json",
                        help="what to write, - for standard output; default: nccl-look-TIME.json here")
    parser.add_argument("--step", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="NAME", help=", ".join(STEPS))
    parser.add_argument("--gpus", default="", help="CUDA indices such as 0,1 or 0-3, one a rank; default: all")
    parser.add_argument("--allow-busy", action="store_true", help="test on GPUs that somebody else uses, too")
    parser.add_argument("--budget", type=float, default=300.0, metavar="S", help="seconds for all steps together")
    return parser.parse_args(argv)


def write(records: List[Dict[str, Any]], path: str, redactor: Redactor) -> None:
    """Replace the file as a whole, mode 0600: what is on disk is complete at every moment. Standard output waits for the end."""
    if path == "-":
        return
    text = json.dumps(redactor.json(records), indent=1, ensure_ascii=False) + "\n"
    with open(os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    os.replace(path + ".part", path)


def start(redactor: Redactor) -> Tuple[Optional[Engine], Optional[Gap]]:
    """An engine under this interpreter, or why it can have none."""
    engine = Engine([sys.executable], None, redactor)
    try:
        engine.software()
        return engine, None
    except EngineError as error:
        return None, Gap("absent", str(error))


def look(options: argparse.Namespace, redactor: Redactor) -> List[Dict[str, Any]]:
    """Every step asked for; a step that was not reached is on record as such."""
    engine, without = start(redactor)
    try:
        said = engine.judged() if engine else {}
        print(f"{os.uname().nodename}: {sys.executable}" + (f", torch {said['torch']}, NCCL {said['nccl'] or 'none'}" if said else
                                                            f"\nlooked without running ranks: {without and without.detail}"), flush=True)
        return _steps(options, redactor, engine, without)
    finally:
        if engine:
            engine.close()


def _steps(options: argparse.Namespace, redactor: Redactor, engine: Optional[Engine], without: Optional[Gap]) -> List[Dict[str, Any]]:
    ends = time.monotonic() + options.budget
    own = {"python": shlex.quote(sys.executable), "gpus": options.gpus, "allow_busy": options.allow_busy}
    asked = {n: Step(n, {**settings()["parameters"][n], **own}, engine, without) for n in STEPS if n in options.step}
    records = {n: step.record("not run") for n, step in asked.items()}
    write(list(records.values()), options.json, redactor)
    if engine:
        rank_devices(options.gpus, 0, engine.cuda_count())  # a GPU that does not exist is wrong usage, before anything runs
    for name, step in asked.items():
        step.begin(ends - time.monotonic())
        print(name, flush=True)
        try:
            STEPS[name](step)
        finally:
            records[name] = step.record(NOT_JUDGED)
            write(list(records.values()), options.json, redactor)
        for line in (line for fact, found in step.facts.items() for line in lines(found, fact)):
            print(f"  {redactor.text(line)}", flush=True)
    return list(records.values())


def _find_scratch() -> None:
    """/dev/shm where no temporary folder can be written. Raises OSError if that cannot be either."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = "/dev/shm"
        tempfile.TemporaryFile().close()


def main() -> int:
    if sys.argv[1:2] == [RANKS_OPTION]:
        sys.argv[:] = sys.argv[2:]
        runpy.run_module("nccl_runbook.ranks." + Path(sys.argv[0]).stem, None, "__main__", True)
        return 0
    options, redactor = arguments(sys.argv[1:]), Redactor(os.environ)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    try:
        write([], options.json, redactor)
        _find_scratch()
    except OSError as error:
        return _refuse(f"cannot write {error.filename or 'a temporary file (TMPDIR names a folder)'}: {error.strerror}; "
                       "--json FILE names another, --json - writes to standard output", 1)
    try:
        with contextlib.redirect_stdout(sys.stderr if options.json == "-" else sys.stdout):
            records = look(options, redactor)
    except ValueError as error:
        return _refuse(str(error), 2)
    if options.json == "-":
        print(json.dumps(redactor.json(records), indent=1))
    else:
        print(f"written: {options.json}; {NOT_JUDGED.replace('FILE', options.json)}")
    return 0


def _refuse(sentence: str, code: int) -> int:
    print(f"nccl-look: {sentence}", file=sys.stderr)
    return code
