"""Placement of verl, OpenRLHF and open-instruct, out of the flags of their launch
lines. Nothing is started. TRL stands in plan/trl.py, younger frameworks in plan/later.

Ray gives every worker a GPU of its own and waits where there is none, so nothing is shared by accident there.
Sources: plan/flags.toml.
"""

import dataclasses
import math

from nccl_runbook.causes.tables import table
from nccl_runbook.plan import trl
from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import Mode, part
from nccl_runbook.plan.groups import (
    Placed,
    Pool,
    Shape,
    divisors,
    groups_of,
    jobs_of,
    that_apply,
    verdict_of,
)
from nccl_runbook.plan.later import LATER


def of(text: str) -> str | None:
    """The first framework of the table whose marks are in the text; None if there is none."""
    return next(
        (name for name, row in table("plan/flags").items() if any(mark in text for mark in row["marks"])),
        None,
    )


def place(launch: Launch, gpus: int, nodes: int, least_nodes: int = 0) -> tuple[Mode, Placed, int]:
    """Components, placement, and number of nodes. ``nodes`` 0 means unknown: as many as a launch over
    several nodes fills, at least ``least_nodes``, else one. ValueError if a size is no number."""
    if launch.framework == "trl":
        count = max(nodes, least_nodes, 1)
        return *trl.place(launch, gpus, count), count
    shapes = {"verl": _verl, "openrlhf": _openrlhf, "open-instruct": _open_instruct, **LATER}
    shape = shapes[launch.framework](launch)
    mode = Mode(tuple(shape.parts), None, scheduled=True)
    asked = mode.total_gpus
    # a pool of one node may share that node, unless it fills it
    own_nodes = sum(pool.nodes for pool in shape.pools if pool.nodes > 1 or pool.gpus == gpus)
    count = nodes or max(1, least_nodes, -(-asked // gpus) if own_nodes > 1 else 1)
    waits = asked > gpus * count
    notes = that_apply(
        (waits, f"Ray waits forever for {asked} GPUs, because there are only {gpus * count}"),
        *((True, note) for note in shape.notes),
        (
            not nodes and count > 1,
            f"the launch needs {asked} GPUs, which is {count} nodes of {gpus} GPUs. Choose a "
            "different number of nodes with --nodes",
        ),
    )
    engines, trainers = ([j for j in jobs if j.size] for jobs in jobs_of(mode, shape.parts, 0, gpus * count))
    groups = groups_of(engines, trainers, shape.update)
    shared = any(g.shared for g in groups if g.name == "weight-update")
    verdict = verdict_of((shared, "duplicate"), (shape.refusals, "refused"), (waits, "oversubscribed"))
    not_empty = tuple(p for p in shape.parts if p.world_size)
    return (
        dataclasses.replace(mode, parts=not_empty),
        Placed(groups, verdict, (*shape.refusals, *notes)),
        count,
    )


def _verl(launch: Launch) -> Shape:
    apart = not launch.on("hybrid") or any(word in launch.text for word in launch.row["apart"])
    pools = [launch.pool("trainer"), *([launch.pool("engine")] if apart else [])]
    replicas = math.prod(max(1, launch.number(way)) for way in ("data", "pipeline"))
    gpus_per_engine = replicas * max(1, launch.number("tensor"))
    train, rollout = math.prod(pools[0]), math.prod(pools[-1])
    how = (
        "the engines have their own GPUs, and the weights travel through NCCL"
        if apart
        else "the hybrid engine puts actor, rollout and reference on the same GPUs. "
        "The weights do not leave the process, so no NCCL group is needed"
    )
    return Shape(
        parts=[
            part("trainer", "verl", "actor", train),
            part(
                "engine",
                "rollout",
                "rollout",
                max(1, rollout // gpus_per_engine),
                gpus_per_engine,
                anchor=None if apart else 0,
            ),
        ],
        pools=pools,
        update="xccl" if apart else "in-process",
        notes=[how],
        refusals=that_apply(
            (
                rollout % gpus_per_engine > 0,
                f"verl refuses {rollout} rollout GPUs, because this is not a multiple of {gpus_per_engine}, "
                "the number of GPUs per engine (tensor x data x pipeline). "
                + divisors("actor_rollout_ref.rollout.tensor_model_parallel_size", rollout, replicas)
                + f"use a multiple of {gpus_per_engine} GPUs for the rollout",
            )
        ),
    )


def _openrlhf(launch: Launch) -> Shape:
    shape = {role: launch.pool(role) for role in ("trainer", "ref", "critic", "reward")}
    engines, tensor = launch.number("engines"), max(1, launch.number("tensor"))
    together, asynchronous = launch.on("colocate"), launch.on("async")
    # train_ppo_ray.py from v0.6.0 on: gae makes a critic of the reward or the actor model, any
    # other estimator takes it away
    has = {
        "ref": launch.above_zero("kl"),
        "critic": launch.value("estimator") == "gae",
        "reward": bool(launch.value("has_reward")) and not launch.value("no_reward"),
    }
    parts = [part("trainer", "deepspeed", "actor", math.prod(shape["trainer"]))]
    for role in (r for r in has if has[r]):
        with_actor = together or (role == "ref" and launch.on("share_ref"))
        with_critic = role == "reward" and has["critic"] and launch.on("share_reward")
        # the actor is part 0, and the critic stands just before the reward
        anchor = 0 if with_actor else len(parts) - 1 if with_critic else None
        parts.append(part("trainer", "deepspeed", role, math.prod(shape[role]), anchor=anchor))
    pools = [shape.get(p.name, shape["trainer"]) for p in parts if p.anchor is None]
    shares = together and not asynchronous
    if engines:
        parts.append(part("engine", "vllm", "vllm", engines, tensor, anchor=0 if shares else None))
    handed_over = shares and launch.value("backend") == "nccl"
    gloo = launch.value("backend") == "gloo"  # Gloo up to v0.8.5; planned as NCCL
    same_gpus = (
        ("trainer", "ref", has["ref"] and (together or launch.on("share_ref"))),
        ("critic", "reward", has["critic"] and launch.on("share_reward")),
    )
    notes = that_apply(
        (
            handed_over,
            "engines share the actor's GPUs, and weights travel as CUDA IPC handles, without an NCCL group",
        ),
        (has["critic"], "the advantage estimator gae (the default) trains a critic"),
        (
            together and asynchronous,
            "with asynchronous training, the engines are not colocated and need their own GPUs",
        ),
        (
            gloo and not launch.on("with_ray"),
            "this plan is for v0.8.11 and later, which use NCCL unless vllm_sync_with_ray is given, "
            "whatever sync_backend says. Up to v0.8.5, sync_backend gloo uses Gloo",
        ),
    )
    refusals = that_apply(
        (
            shares and engines > 0 and engines * tensor != parts[0].world_size,
            f"OpenRLHF refuses this launch: {parts[0].world_size} actor GPUs must equal {engines} "
            f"engines of {tensor} GPUs",
        ),
        *(
            (
                same and shape[a] != shape[b],
                "OpenRLHF refuses this launch: {} and {} share GPUs, so nodes x GPUs {}x{} must equal "
                "{}x{}".format(a, b, *shape[a], *shape[b]),
            )
            for a, b, same in same_gpus
        ),
        (
            together and asynchronous and launch.on("sleep"),
            "OpenRLHF refuses asynchronous training with vLLM's sleep mode",
        ),
    )
    update = "ipc" if handed_over else "gloo" if gloo and launch.on("with_ray") else "xccl"
    return Shape(parts, pools, update, notes, refusals)


def _open_instruct(launch: Launch) -> Shape:
    together = launch.on("colocate")
    engines, tensor = launch.number("engines"), max(1, launch.number("tensor"))
    parts = [
        part("trainer", "deepspeed", "learner", launch.number("learners")),
        part("engine", "vllm", "vllm", engines, tensor, anchor=0 if together else None),
    ]
    return Shape(
        parts=parts,
        pools=[Pool(1, learners) for learners in launch.numbers("learners")],
        update="ipc" if together else "xccl",
        notes=that_apply(
            (
                together,
                "with single_gpu_mode, learner and engine share the GPU. v0.3.0 passes weights as "
                "CUDA IPC handles, without NCCL. v0.2.0 still opens a process group between learner "
                "and engine. NCCL refuses two ranks on one GPU, so set vllm_sync_backend to gloo",
            ),
            (
                "vllm_sync_backend" in launch.flags,
                "v0.2.0 reads vllm_sync_backend. v0.3.0 ignores it and uses NCCL, or CUDA IPC with "
                "single_gpu_mode",
            ),
        ),
        refusals=that_apply(
            (
                together and tensor > 1,
                "open-instruct refuses tensor parallel engines with single_gpu_mode",
            )
        ),
    )
