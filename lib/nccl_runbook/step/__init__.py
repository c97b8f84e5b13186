"""One notebook's run: its parameters, what it collects, and the record it leaves behind."""

import dataclasses
import math
import os
import re
import shlex
import tempfile
import time
import typing
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nccl_runbook.causes.variables import ignored_by_gloo, may_be_shown
from nccl_runbook.core import records
from nccl_runbook.core.facts import Gap, PlainError, Unusable, gaps_in, to_json, utc_now
from nccl_runbook.core.facts_world import World, WorldRequest
from nccl_runbook.core.findings import Evidence, Finding, Severity, step_status, worst_first
from nccl_runbook.core.redact import Redactor, plain
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.gpu_lists import gpu_ranges, parse_gpus, rank_devices
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.launch.shell_line import pasteable, shell_line
from nccl_runbook.launch.stop import never, sweep
from nccl_runbook.launch.warm_link import NoTorch
from nccl_runbook.step.parameters import outputs_root, read_parameters

RUN_DIR_VARIABLE = "NCCL_RUNBOOK_RUN_DIR"
HEADLESS_VARIABLE = "NCCL_RUNBOOK_HEADLESS"


@dataclasses.dataclass(eq=False)
class Step:
    """One notebook at work, made by ``open_step(name, globals())``: ``collect`` facts, then ``finish`` with
    findings. ``stopped``: returns why the engine must end what runs, empty while nothing asks for it.

    The budget ends every wait, except by hand: a reader may come back to a notebook after an hour.
    """

    name: str
    parameters: dict[str, Any]
    stopped: Callable[[], str] = never
    redactor: Redactor = dataclasses.field(default_factory=lambda: Redactor(os.environ))
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    _engine: Engine | None = None
    # by probe: a cell may run again
    _busy_checks: dict[Any, Callable[[], Finding | None]] = dataclasses.field(default_factory=dict)
    _clock: float = dataclasses.field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        # run by hand, records lie in the session of `make lab`, else in one folder a day (UTC)
        self.run_dir = Path(
            self.parameters.get("run_dir")
            or os.environ.get(RUN_DIR_VARIABLE)
            or outputs_root() / f"by-hand-{utc_now()[:10].replace('-', '')}"
        ).absolute()
        given = self.parameters.get("record_path")
        self.replayed = records.load(Path(given), self.name) if given else None
        # the runner's budget for this step ends then, by time.monotonic()
        own_end = self._clock + self.parameters.get("budget_s", 300)
        self._ends = min(own_end, float(os.environ.get("NCCL_RUNBOOK_UNTIL", "inf")))
        self._until = math.inf if self.by_hand and self.stopped is never else self._ends
        self.record = self.replayed or records.Record(
            step=self.name, started=utc_now(), parameters=dict(self.parameters)
        )

    @property
    def by_hand(self) -> bool:
        """Whether a reader runs this notebook on this machine, without a runner or a replayed record."""
        return self.replayed is None and HEADLESS_VARIABLE not in os.environ

    @property
    def left_s(self) -> float:
        """Seconds left of this step's budget, at least 1."""
        return max(1.0, self._ends - time.monotonic())

    @property
    def within_s(self) -> float:
        """Seconds until the budget ends every wait, at least 1; infinite by hand."""
        return max(1.0, self._until - time.monotonic())

    @property
    def engine(self) -> Engine:
        """The engine of the judged interpreter, started at first use. RuntimeError while a record is
        replayed; InterpreterError or EngineError if no ranks can run. The step is then broken if the
        interpreter itself cannot import torch."""
        if self.replayed:
            raise RuntimeError("this step judges a saved record, so no test can run")
        if self._engine is None:
            choice = choose(self.parameters.get("python", ""), self.within_s)
            sweep({tempfile.gettempdir(), "/dev/shm"})
            self.save()
            try:
                self._engine = Engine(
                    choice.prefix,
                    log_dir=self.run_dir / "logs" / self.name,
                    redactor=self.redactor,
                    root=self.run_dir,
                    stopped=self.stopped,
                    until=self._until,
                )
                self.record.judged = records.Judged(
                    python=shlex.join(choice.prefix), own=choice.own, **self._engine.judged()
                )
            except NoTorch as error:
                from nccl_runbook.messages.printed.failed_world import cannot_run  # rare, and takes 0.1 s

                self.finish([cannot_run(str(error), choice.prefix)])
                raise
        return self._engine

    def collect(
        self, fact: str, probe: Callable[..., Any], *args: Any, unless: Finding | None = None, **kwargs: Any
    ) -> Any:
        """Ask ``probe`` and keep its answer as ``fact``; a replay takes the record's (RecordError if it does
        not fit). ``unless``: a finding that forbids the probe (such as busy GPUs); the fact is then a Gap.
        Callable arguments (``lambda: step.engine``) are called only with the probe."""
        if self.replayed:
            recorded = self.record.facts
            self.facts[fact] = (
                records.read(typing.get_type_hints(probe)["return"] | Gap, recorded[fact])
                if fact in recorded
                else Gap("absent", f"the record contains no {fact}")
            )
        elif unless is not None:
            self.facts[fact] = Gap("not-run", unless.title)
        else:
            self.facts[fact] = probe(*(a() if callable(a) else a for a in args), **kwargs)
        # a later cell may fail: the facts so far are not lost
        if not self.replayed and self.record.status == "running":
            self.record.facts = to_json(self.facts)
            self.save()
        return self.facts[fact]

    def say(self, line: str) -> None:
        """Print progress for a reader who waits at a cell."""
        if self.by_hand and line:
            print(plain(self.redactor.text(line)), flush=True)

    def guard(self, probe: Callable[..., Any], rule: Callable[[Any, bool], Finding | None]) -> Finding | None:
        """The finding that forbids tests because another process uses the GPUs, or None. ``trial`` asks
        again. ``probe``: called with the seconds left."""
        allowed = self.parameters.get("allow_busy", False)
        self._busy_checks[probe] = lambda: rule(probe(self.within_s), allowed)
        return rule(self.collect("users", probe, lambda: self.within_s), allowed)

    def finish(
        self, findings: list[Finding], rests_on: Iterable[str] = (), tables: Iterable[Any] = ()
    ) -> Any:
        """Judge the step, write its record, and show it. ``rests_on``: patterns of fact paths (``fnmatch``);
        a Gap there makes the step unknown, any other is listed as not looked at."""
        from nccl_runbook.report.tables import StepView  # late: probes never load the page's look

        titles = {f.title for f in findings}  # a Gap that a finding already states is not repeated
        missing = [(path, gap) for path, gap in gaps_in(self.facts) if gap.detail not in titles]
        needed = [(p, g) for p, g in missing if any(fnmatchcase(p, pattern) for pattern in rests_on)]
        sources = {e.source for f in findings if f.severity is Severity.UNKNOWN for e in f.evidence}
        unseen = [
            Finding("not-seen", Severity.UNKNOWN, f"{p} could not be seen ({g})", (Evidence(str(g), p),))
            for p, g in needed
            if p not in sources
        ]
        judged = worst_first([*self._not_here(), *findings, *unseen])
        status, reason = step_status(judged)
        self.record = dataclasses.replace(
            self.record,
            status=status.value,
            reason=reason,
            findings=judged,
            # those of a list count as one: rungs[0] and rungs[1] become rungs[*]
            not_looked_at=list(
                dict.fromkeys(
                    re.sub(r"\[\d+\]", "[*]", f"{p}: {g}") for p, g in missing if (p, g) not in needed
                )
            ),
            tables=records.of_tables(tables),
        )
        if not self.replayed:
            self.record.facts = to_json(self.facts)
            self.record.ended, self.record.wall_s = utc_now(), round(time.monotonic() - self._clock, 2)
            self.record.commands = [
                records.Command(label=w.request.name, line=self._line(w))
                for w in (self._engine.history if self._engine else [])
            ]
        return StepView(self.record, self.save())

    def _not_here(self) -> list[Finding]:
        """A finding that GPUs were named and none is present: the runs say nothing about them."""
        named, judged = self.parameter("gpus").strip(), self.record.judged
        return (
            [
                Finding(
                    "gpus-not-here",
                    Severity.UNKNOWN,
                    f"no rank ran on GPUs {named}, because CUDA shows no GPU",
                )
            ]
            if judged.torch and not judged.gpus and named not in ("", "all")
            else []
        )

    def save(self) -> Path:
        """Write the record into the run's folder and return its path. PlainError if that fails."""
        path = self.run_dir / f"{self.name}.json"
        try:
            records.save(self.record, path, self.redactor)
        except OSError as error:
            raise PlainError(f"run_dir: cannot write {path}: {error.strerror}") from error
        return path

    def _line(self, world: World) -> str:
        """The shell line that repeats the world, without the values of variables that no page may show."""
        asked = world.request
        shown = dataclasses.replace(
            asked, env=_shown(asked.env), of_ranks={rank: _shown(env) for rank, env in asked.of_ranks.items()}
        )
        line = world.shell_line if shown == asked else shell_line(self.engine.prefix, shown)
        return pasteable(line, asked.args)

    def trial(
        self,
        env: Mapping[str, str | None] | None = None,
        gpus: list[int] | str | None = None,
        repeats: int = 5,
        sizes: tuple[int, ...] = (4, 1 << 24),
        ops: tuple[str, ...] | str = ("all_reduce",),
        deadline_s: float = 30.0,
    ) -> World:
        """Run your own experiment: one checked world with this environment on these GPUs; it joins the
        record as *tried by hand*. ``gpus`` and ``ops`` may be texts, as in notebooks: "0,1" and
        "all_reduce,broadcast". RuntimeError if another process uses the GPUs (unless ``allow_busy``), or
        while a record is replayed; ValueError for a missing GPU, a variable that cannot be set, or a number
        out of range."""
        if somebody := next(filter(None, (check() for check in self._busy_checks.values())), None):
            raise RuntimeError(somebody.title)
        delta = {name: None if value is None else str(value) for name, value in (env or {}).items()}
        if not all(re.fullmatch(r"[A-Za-z_]\w*", n) and "\0" not in (v or "") for n, v in delta.items()):
            raise Unusable(
                f"env: at least one of {', '.join(delta)} cannot be set. A name consists of letters, "
                "digits and _, and does not start with a digit. A value contains no zero byte"
            )
        if not (ops and sizes and min(repeats, *sizes) >= 0 and deadline_s > 0):
            raise Unusable(
                "trial: ops or sizes are empty, repeats or sizes are below 0, or deadline_s is not above 0"
            )
        known = self.engine.cuda_count()
        named = gpus if isinstance(gpus, str) else ",".join(map(str, gpus or ())) or "none"
        devices: list[int | None] = (
            list(self.devices)
            if gpus is None
            else list(parse_gpus(named, len(named) + 1024 if isinstance(known, Gap) else known))
        )
        chosen = ops.replace(" ", "") if isinstance(ops, str) else ",".join(ops)
        args = ["--ops", chosen, "--sizes", ",".join(map(str, sizes)), "--repeats", str(repeats), "--leave"]
        world = self.engine.run(WorldRequest("tried by hand", "check.py", devices, args, delta, deadline_s))
        self.record.tried_by_hand.append(
            {
                "at": utc_now(),
                "env": _shown(delta),
                "gpus": devices,
                "passed": world.passed,
                "note": ignored_by_gloo(delta) if None in devices else "",
                "wall_s": world.wall_s,
                "line": self._line(world),
            }
        )
        self.save()
        self.say(self.record.tried_by_hand[-1]["note"])
        return world

    @property
    def devices(self) -> list[int | None]:
        """One device a rank, from the parameter ``gpus``; two ranks on the CPU if CUDA shows no GPU.
        ValueError for a GPU that does not exist."""
        return rank_devices(
            self.parameters.get("gpus", ""), self.parameters.get("max_ranks", 0), self.engine.cuda_count()
        )

    @property
    def named_gpus(self) -> int:
        """Number of GPUs that ``gpus`` names, present or not; 0 for all. ValueError if it is no list of
        GPUs."""
        return sum(last - first + 1 for first, last in gpu_ranges(self.parameter("gpus")))

    def parameter(self, name: str) -> str:
        """A text parameter; in a replay the recorded one if this is empty."""
        return str(self.parameters.get(name) or self.record.parameters.get(name, ""))


def _shown(env: Mapping[str, str | None]) -> dict[str, str | None]:
    return {n: v if v is None or may_be_shown(n, v) else "..." for n, v in env.items()}


def open_step(name: str, namespace: Mapping[str, Any]) -> Step:
    """The step of this notebook, from its parameters (``globals()``). Unusable if they do not fit."""
    return Step(name, read_parameters(namespace))
