"""Runs of A and B, interleaved A B B A so that a drift of the machine falls on both: a collective, a weight
sync, or the user's command."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Collection
from typing import Any

from nccl_runbook.compare.facts import Comparison, Sample, Walk
from nccl_runbook.compare.lazy_ranks import LazyRanks
from nccl_runbook.compare.read import Env, only_set
from nccl_runbook.core.facts import TIMED_OPS, Gap, Unusable
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.launch import command
from nccl_runbook.launch.engine import LOGGED, Engine
from nccl_runbook.launch.stop import never
from nccl_runbook.sync.methods import METHODS

Devices = list[int | None]
Ask = Callable[[Collection[str]], Sample | None]
REPEATS = 5  # timed samples in one world; their median is its figure
SYNCS = 4  # the first is left out
GPU_BYTES, CPU_BYTES = 256 << 20, 1 << 20


@dataclasses.dataclass(frozen=True)
class Subject:
    """What runs in each arm. ``run(arm, environment by role, deadline in seconds)`` returns its sample;
    ``roles``: the known ones."""

    what: str
    unit: str
    run: Callable[[str, dict[str, Env], float], Sample]
    roles: list[str] = dataclasses.field(default_factory=list)
    more_is_better: bool = False
    backend: str = "nccl"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a command line asks to run in each arm: the user's command ``argv`` if there is one, a weight sync
    if ``spec`` names tensors, else the collective ``op``. ``size_bytes`` 0 and ``method`` "": the default of
    this machine."""

    argv: list[str] = dataclasses.field(default_factory=list)
    figure: str = ""
    more_is_better: bool = False
    op: str = "all_reduce"
    size_bytes: int = 0
    spec: dict[str, Any] = dataclasses.field(default_factory=dict)
    method: str = ""


def subject(wanted: Wanted, ranks: LazyRanks, stopped: Callable[[], str] = never) -> Subject:
    """What runs in each arm. ``ranks``: engine and devices when they are needed; a step of a notebook has
    both, too. ValueError for anything unknown."""
    if wanted.argv:
        return of_command(wanted.argv, wanted.figure, wanted.more_is_better, stopped)
    if wanted.figure:
        raise Unusable("--figure needs your own command. Add the command after --")
    on_gpus = ranks.devices[0] is not None
    if wanted.spec:
        method = wanted.method or ("nccl-per-tensor" if on_gpus else "gloo-per-tensor")
        return of_sync(ranks.engine, ranks.devices, wanted.spec, method)
    return of_collective(
        ranks.engine, ranks.devices, wanted.op, wanted.size_bytes or (GPU_BYTES if on_gpus else CPU_BYTES)
    )


def of_command(
    argv: list[str], figure: str, more_is_better: bool = False, stopped: Callable[[], str] = never
) -> Subject:
    """The user's own command. A word ``{trainer}`` marks where that role's environment goes, as ``env
    NAME=VALUE ...``. ValueError for an invalid expression, and on running for a command that does not
    start."""
    pattern = command.compiled(figure)
    roles = [word[1:-1] for word in argv if word[:1] == "{" and word[-1:] == "}"]

    def run(arm: str, env: dict[str, Env], deadline_s: float) -> Sample:
        words = [
            w
            for word in argv
            for w in (_env_words(env.get(word[1:-1], {})) if word[1:-1] in roles else [word])
        ]
        try:
            return command.run(arm, words, only_set({**os.environ, **env[""]}), pattern, deadline_s, stopped)
        except ValueError as error:
            if arm == "A":  # it runs first: nothing can be compared
                raise
            return Sample(arm, {}, str(error), 0.0)  # what B sets, as its PATH

    return Subject(
        f"your command: {' '.join(argv)}", "" if figure else "s", run, roles, more_is_better, backend=""
    )


def _env_words(delta: Env) -> list[str]:
    return [
        "env",
        *(w for n, v in delta.items() if v is None for w in ("-u", n)),
        *(f"{n}={v}" for n, v in delta.items() if v is not None),
    ]


def of_collective(engine: Engine, devices: Devices, op: str, size_bytes: int) -> Subject:
    """One collective through ranks/check.py, every value checked. Figure: the slowest rank's median, in
    seconds. Roles: its ranks (rank0, rank1, ...). ValueError for an unknown collective."""
    if op not in TIMED_OPS:
        raise Unusable(f"unknown collective {op!r}. Choose one of {', '.join(TIMED_OPS)}")
    backend = "gloo" if devices[0] is None else "nccl"
    asked = WorldRequest(
        op,
        "check.py",
        list(devices),
        ["--ops", op, "--sizes", str(size_bytes), "--repeats", str(REPEATS), "--backend", backend],
        deadline_s=60.0,
    )
    return _of_world(
        engine,
        asked,
        f"{op} of {size_bytes} bytes, {len(devices)} ranks, {backend}",
        [f"rank{r}" for r in range(len(devices))],
        op,
        ("op", "median_s"),
    )


def of_sync(engine: Engine, devices: Devices, spec: dict[str, Any], method: str) -> Subject:
    """Weight syncs through ranks/weight_sync.py, every byte compared. Figure: the slowest rank's seconds,
    for each sync after the first. Roles: trainer (rank 0), engine (all others). ValueError for an unknown
    method."""
    fit = [
        m
        for m in METHODS
        if m != "nccl-one-gpu" and m.startswith("gloo" if devices[0] is None else ("nccl", "gloo"))
    ]
    if method not in fit:
        raise Unusable(
            f"method {method!r} is not one of {', '.join(fit)}, or it needs a GPU and this machine has none"
        )
    args = [
        "--method",
        method,
        "--spec",
        json.dumps(spec, separators=(",", ":")),
        "--repeats",
        str(SYNCS),
        *(["--cpu"] if devices[0] is None else []),
    ]
    asked = WorldRequest(
        "weight sync",
        "weight_sync.py",
        list(devices),
        args,
        deadline_s=math.inf,
        shown=spec.get("line", ""),
    )
    what = (
        f"weight sync of {spec['name']}, {spec['layers']} of {spec['layers_of']} layers, {method}, "
        f"{len(devices)} ranks"
    )
    return _of_world(
        engine,
        asked,
        what,
        ["trainer", *["engine"] * max(1, len(devices) - 1)],
        "sync",
        ("sync", "seconds"),
        warm_up=1,
    )


def _of_world(
    engine: Engine,
    asked: WorldRequest,
    what: str,
    roles: list[str],
    figure: str,
    seconds: tuple[str, str],
    warm_up: int = 0,
) -> Subject:
    """A world of ranks that is started once in each arm. ``roles``: by rank; ``seconds``: the event
    of every rank that holds its time, and under which name: the slowest rank's counts, after the
    first ``warm_up`` of them."""

    def run(arm: str, env: dict[str, Env], deadline_s: float) -> Sample:
        own = {rank: env[role] for rank, role in enumerate(roles) if role in env}
        world = engine.run(
            dataclasses.replace(
                asked,
                name=f"{asked.name}, {arm}",
                env=env[""],
                of_ranks=own,
                deadline_s=min(asked.deadline_s, deadline_s),
            )
        )
        slowest = [
            max(e[seconds[1]] for e in together)
            for together in zip(*(r.named(seconds[0]) for r in world.ranks))
        ]
        figures, last = (
            ({figure: slowest[warm_up:]}, []) if world.passed else ({}, world.log.splitlines()[-8:])
        )
        via, taken = world.transports, world.set_by_environment
        log_says = [
            *([] if isinstance(via, Gap) else [f"via {name}" for name in sorted(via)]),
            *([] if isinstance(taken, Gap) else taken),
        ]
        return Sample(arm, figures, world.ended, world.wall_s, last, log_says)

    return Subject(
        what, "s", run, list(dict.fromkeys(roles)), backend="gloo" if asked.devices[0] is None else "nccl"
    )


def collect(
    arms: Any,
    budget_s: float,
    subject: Callable[[], Subject],
    walk: Callable[[Comparison, Ask], Walk | Gap],
    rounds: int = 3,
    stopped: Callable[[], str] = never,
) -> Comparison | Gap:
    """Warm-up runs, then ``rounds`` times A B B A, then the walk. ``arms``: compare.read.Arms; ``walk``:
    chooses the differences to try next. A Gap if nothing is compared. ValueError for a role that the subject
    does not know."""
    if not arms.named:
        return Gap("absent", "no second set-up was named to compare with")
    made = subject()
    unknown = [role for role in arms.roles if role not in made.roles]
    if unknown:
        where = (
            f"roles: {', '.join(made.roles)}"
            if made.backend
            else f"write {{{unknown[0]}}} into your command, directly before the command of the process "
            "with this role"
        )
        raise Unusable(f"role {unknown[0]!r} does not exist in this comparison ({where})")
    until, longest_s = time.monotonic() + budget_s, 1.0

    def run(arm: str, env: dict[str, Env]) -> Sample | None:
        """None if one as long as the longest so far does not fit into the budget any more; a run that
        a signal ended does not count."""
        nonlocal longest_s
        began = time.monotonic()
        if until - began < longest_s or stopped():
            return None
        sample = made.run(arm, env, until - began)
        if stopped() and not sample.passed:
            return None
        longest_s = max(longest_s, time.monotonic() - began)
        return dataclasses.replace(sample, last_lines=[arms.secrets.text(line) for line in sample.last_lines])

    envs = {"A": arms.env([]), "B": arms.env(arms.keys)} if arms.keys else {}
    logged = [(arm, {**env, "": {**env[""], **LOGGED}}) for arm, env in envs.items()]
    first = logged if made.backend else list(envs.items())[:1]
    warm_up = [s for s in (run(arm, env) for arm, env in first) if s is not None]
    if any(s.ended == command.NO_FIGURE for s in warm_up):
        raise Unusable(
            "--figure matches no number that your command prints, so nothing can be compared. The "
            "last lines of the command: " + " | ".join(warm_up[0].last_lines[-2:])
        )
    planned = [(arm, envs[arm]) for arm in "ABBA" * rounds if envs]
    compared = Comparison(
        what=arms.secrets.text(made.what),
        unit=made.unit,
        more_is_better=made.more_is_better,
        arms=list(arms.names),
        differences=arms.differences,
        left_out=arms.left_out,
        wanted=4 * rounds,
        warm_up=warm_up,
        samples=[s for s in (run(arm, env) for arm, env in planned) if s is not None],
        walk=Gap("not-run", "A and B do not differ, so there was nothing to test"),
        backend=made.backend,
    )
    walked = (
        Gap("not-run", stopped())
        if stopped()
        else walk(compared, lambda keys: run(f"{len(keys)} settings as in B", arms.env(keys)))
    )
    return dataclasses.replace(compared, walk=walked, stopped=stopped())
