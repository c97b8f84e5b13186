"""Which GPU each rank of the engines, the trainer and the weight-update group gets, and whether that can
work. Nothing is started.

AReaL's rules, read at the tags of plan/areal.toml. The launcher "local" (areal/launcher/local.py,
since v1.0.0 areal/infra/launcher/local.py) counts GPUs round and round, all of the engines first; how
the string joins its components is never looked at. "single-controller" (areal/infra/scheduler/local.py)
counts the same way, but worker by worker. "ray" (areal/launcher/ray.py) gives engines whole nodes and the
trainer all that is left.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.plan.areal import Mode, Part

LAUNCHERS = ("local", "single-controller", "ray")
MOST_RANKS = 4096  # listed for each group; the verdict counts them all


@dataclasses.dataclass(frozen=True)
class Site:
    """Where the plan runs. ``gpus``: per node; ``nodes``; the launcher; how weights are updated ("xccl" or
    "disk"); for single-controller mode whether engines come first, and whether the scheduler assigns
    ``own_gpus`` to each worker."""

    gpus: int
    launcher: str = "local"
    nodes: int = 1
    update: str = "xccl"
    engines_first: bool = False
    own_gpus: bool = False


@dataclasses.dataclass(frozen=True)
class RankAt:
    """One rank of a group. ``role``: engine, trainer, or the component's name; ``gpu``: numbered across
    nodes, None if it waits for a GPU that does not exist."""

    rank: int
    role: str
    gpu: int | None


@dataclasses.dataclass(frozen=True)
class Group:
    """One NCCL group. ``name``: inference, trainer or weight-update (each trainer has its own); ``size``:
    all ranks, of which at most MOST_RANKS are listed; ``of``: the component, if there are several."""

    name: str
    ranks: tuple[RankAt, ...]
    size: int
    of: str = ""

    @property
    def shared(self) -> dict[int, list[int]]:
        """GPU -> its ranks in this group, if there are two or more: NCCL refuses those."""
        return {
            gpu: ranks
            for gpu, ranks in grouped((r.gpu, r.rank) for r in self.ranks if r.gpu is not None).items()
            if len(ranks) > 1
        }


@dataclasses.dataclass(frozen=True)
class Placed:
    """The groups, the verdict (clean, oversubscribed, zero-visible, duplicate, refused by a framework other
    than AReaL), and notes."""

    groups: tuple[Group, ...]
    verdict: str
    notes: tuple[str, ...] = ()


class Pool(NamedTuple):
    """Nodes of their own, and how many GPUs of each are used."""

    nodes: int
    gpus: int


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a launch of another framework starts. ``parts``: in order, each on GPUs of its own, one with an
    anchor on the anchor's; ``pools``: of the parts that have nodes of their own; ``update``: how the weights
    travel; ``refusals``: why the framework starts nothing."""

    parts: list[Part]
    pools: list[Pool]
    update: str
    notes: list[str] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Job:
    """Ranks of one component. ``gpus``: of its first MOST_RANKS ranks, None for a GPU that does not exist."""

    role: str
    size: int
    gpus: Sequence[int | None]


def job(role: str, start: int, size: int, ring: int = 0, count: int = 0) -> Job:
    """The ranks of a component. On a ``ring`` of GPUs rank r sits on (start + r) mod ring; without a ring
    (0) on start + r, if that is below ``count``, else on none."""
    ats = range(start, start + min(size, MOST_RANKS))
    return Job(role, size, [at % ring for at in ats] if ring else [at if at < count else None for at in ats])


def that_apply(*sentences: tuple[bool, str]) -> list[str]:
    """The sentences whose condition is true, in order."""
    return [text for applies, text in sentences if applies]


def place(mode: Mode, site: Site) -> Placed:
    """Every rank's GPU under this launcher."""
    if site.launcher == "ray":
        return _ray(mode, site)
    controlled = site.launcher == "single-controller"
    ordered = [*mode.of("engine"), *mode.of("trainer")]
    if controlled:
        ordered.sort(key=lambda part: _place_of(part, site.engines_first))
    engines, trainers = jobs_of(mode, ordered, 0 if site.own_gpus else site.gpus, site.gpus * site.nodes)
    groups = groups_of(engines, trainers, site.update)
    shares = any(trainers[0].gpus[0] in g.shared for g in groups if g.name == "weight-update")
    asked = mode.total_gpus if mode.shares else sum(p.world_size for p in mode.parts)
    count = site.gpus * site.nodes if site.own_gpus else site.gpus
    too_large = not site.own_gpus and any(
        j.size > site.gpus for j in (trainers if controlled else engines + trainers)
    )
    return Placed(
        groups,
        verdict_of(
            (too_large and not controlled, "zero-visible"),
            (shares or too_large, "duplicate"),
            (asked > count, "oversubscribed"),
        ),
        tuple(_notes(mode, site, trainers)),
    )


def verdict_of(*cases: tuple[object, str]) -> str:
    """The first verdict that holds; "clean" if none does."""
    return next((verdict for holds, verdict in cases if holds), "clean")


def jobs_of(mode: Mode, ordered: Sequence[Part], ring: int, count: int) -> tuple[list[Job], list[Job]]:
    """(engines, trainers), in the order in which they get GPUs; a component that shares has its anchor's.
    ``ring``, ``count``: see job."""
    own = [part for part in ordered if part.anchor is None or not mode.shares]
    starts = {id(part): sum(p.world_size for p in own[:at]) for at, part in enumerate(own)}
    starts |= {id(part): starts[id(mode.parts[part.anchor])] for part in ordered if id(part) not in starts}
    jobs = [(p.kind, job(p.name or p.kind, starts[id(p)], p.world_size, ring, count)) for p in ordered]
    return [j for kind, j in jobs if kind == "engine"], [j for kind, j in jobs if kind == "trainer"]


def _place_of(part: Part, engines_first: bool) -> tuple[bool, int]:
    """Of a component among others, as single-controller mode starts them."""
    engine = part.kind == "engine"
    order = [None, "actor", "critic", "ref", "teacher", part.name]
    return engine != engines_first, 0 if engine else order.index(part.name)


def _ray(mode: Mode, site: Site) -> Placed:
    """Whole nodes: first the engines', then one process a GPU on all others, whatever the trainer's string
    says. Engines other than vLLM take at least one node."""
    engine = next(iter(mode.of("engine")), None)
    is_vllm = engine is not None and engine.backend == "vllm"
    size = engine.world_size if engine else 0
    nodes = max(1, size // site.gpus) if engine and not is_vllm else size // site.gpus
    nodes_left = max(0, site.nodes - nodes)
    left = nodes_left * site.gpus if mode.of("trainer") else 0
    count = site.nodes * site.gpus
    wanted = sum(t.world_size for t in mode.of("trainer"))
    held = count - left if is_vllm else nodes * site.gpus
    return Placed(
        groups_of(
            [job(engine.name or "engine", 0, size, count=count)] if engine else [],
            [job(mode.of("trainer")[0].name or "trainer", nodes * site.gpus, left, count=count)]
            if left
            else [],
            site.update,
        ),
        verdict_of(
            (mode.of("trainer") and not left, "zero-visible"),
            (size > held or size + left > count, "oversubscribed"),
        ),
        tuple(
            that_apply(
                (
                    wanted != left,
                    f"Ray starts {counted(left, 'trainer rank')} on {counted(nodes_left, 'node')}, but the "
                    f"allocation asks for {wanted}",
                )
            )
        ),
    )


def groups_of(
    engines: Sequence[Job], trainers: Sequence[Job], update: str, trainer_last: bool = False
) -> tuple[Group, ...]:
    """Groups that these jobs open. A weight-update group holds rank 0 of the first trainer and every rank of
    its engines."""
    groups = [
        _group(name, [j], j.role if len(jobs) > 1 else "")
        for name, jobs in (("inference", engines), ("trainer", trainers))
        for j in jobs
    ]
    if update == "xccl" and engines and trainers:
        sender = Job(trainers[0].role, 1, trainers[0].gpus[:1])
        # beside AReaL's rollout other engines, as judge_engine, keep their own
        # weights (rl_trainer.py, v1.0.4)
        synced = [e for e in engines if e.role == "rollout"] or [*engines]
        groups.append(_group("weight-update", [*synced, sender] if trainer_last else [sender, *synced]))
    return tuple(groups)


def divisors(option: str, total: int, replicas: int) -> str:
    """The beginning of a remedy: the values of the option, up to MOST_RANKS, at which replicas of that many
    GPUs fill the total; empty if there are none."""
    fit = [str(n) for n in range(1, min(total, MOST_RANKS) + 1) if total % (n * replicas) == 0]
    return f"Set {option} to {' or '.join(fit)}, or " if fit else ""


def _group(name: str, jobs: Sequence[Job], of: str = "") -> Group:
    """The group of these jobs, whose ranks are numbered one job after the other."""
    return Group(
        name,
        tuple(
            RankAt(i, role, gpu)
            for i, (role, gpu) in enumerate([(j.role, gpu) for j in jobs for gpu in j.gpus][:MOST_RANKS])
        ),
        sum(j.size for j in jobs),
        of,
    )


def _notes(mode: Mode, site: Site, trainers: Sequence[Job]) -> list[str]:
    """What is to be known beside the verdict."""
    engines = mode.of("engine")
    widest = max((e.instance_size for e in engines), default=0)
    sharing = [
        e
        for e in engines
        if mode.scheduled
        and e.anchor is not None
        and (site.update != "disk" or e.size("d") != mode.parts[e.anchor].world_size)
    ]
    return that_apply(
        (
            not mode.plain and site.launcher == "local",
            "AReaL's launchers start at most one engine and one trainer. With more components, the "
            "launchers raise AttributeError (ambiguous 'train' or 'gen'). This plan lists each "
            "component",
        ),
        (
            site.launcher == "single-controller" and widest > site.gpus,
            f"one engine needs {widest} GPUs, which the scheduler refuses (GPUAllocationError)",
        ),
        *[
            (
                True,
                "AReaL refuses to start. An engine may share the trainer's GPUs only with "
                "actor.weight_update_mode=disk, enable_offload=true, and the same number of workers "
                "for engine and trainer",
            )
            for _ in sharing
        ],
        (
            site.own_gpus,
            "Ray or Slurm gives each worker its own GPU, and waits until a GPU is free. Which GPU a "
            "worker gets is not known in advance",
        ),
        (
            any(e.size("p") > 1 for e in engines) and site.update == "xccl" and bool(trainers),
            "for engines with p above 1, AReaL's SGLang engine raises NotImplementedError in weight "
            "updates over NCCL (up to v1.0.4)",
        ),
        (
            any(
                p.anchor is not None and mode.parts[p.anchor].name is None
                for p in mode.parts
                if p.name is not None
            ),
            'the component before "|" has no name, so AReaL cannot find the GPUs that the component after '
            '"|" must share (its target is None)',
        ),
    )
