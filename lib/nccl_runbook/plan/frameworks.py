"""Placement of verl, OpenRLHF, TRL and open-instruct, out of the flags of their launch
lines. Nothing is started.

Ray gives every worker a GPU of its own and waits where there is none, so nothing is shared by accident there;
TRL's server and trainer are two programs, each of which counts from the first GPU that it sees.
Sources: plan/flags.toml.
"""

import dataclasses
import math
from collections.abc import Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import Mode, part
from nccl_runbook.plan.groups import (
    Group,
    Job,
    Placed,
    Pool,
    Shape,
    groups_of,
    jobs_of,
    that_apply,
    verdict_of,
)
from nccl_runbook.plan.later import LATER

LOCAL = ("", "0.0.0.0", "127.0.0.1", "localhost")


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
        return *_trl(launch, gpus, count), count
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
            f"the launch needs {asked} GPUs, which is {count} nodes of {gpus} GPUs. Choose another "
            "number of nodes with --nodes",
        ),
    )
    engines, trainers = ([j for j in jobs if j.size] for jobs in jobs_of(mode, shape.parts, 0, gpus * count))
    groups = groups_of(engines, trainers, shape.update)
    shared = any(g.shared for g in groups if g.name == "weight-update")
    verdict = verdict_of((shared, "duplicate"), (shape.refusals, "refused"), (waits, "oversubscribed"))
    not_empty = tuple(p for p in shape.parts if p.world_size)
    placed = Placed(groups, verdict, (*shape.refusals, *notes))
    return dataclasses.replace(mode, parts=not_empty), placed, count


def _verl(launch: Launch) -> Shape:
    apart = not launch.on("hybrid") or any(word in launch.text for word in launch.row["apart"])
    pools = [launch.pool("trainer"), *([launch.pool("engine")] if apart else [])]
    own = max(1, launch.number("tensor"))
    tensor = own * math.prod(max(1, launch.number(way)) for way in ("data", "pipeline"))
    train, rollout = math.prod(pools[0]), math.prod(pools[-1])
    how = (
        "the engines have their own GPUs, and the weights travel through NCCL"
        if apart
        else "the hybrid engine puts actor, rollout and reference on the same GPUs. "
        "Weights stay inside the process, without an NCCL group"
    )
    refusals = []
    if rollout % tensor:
        refusals.append(
            (f"verl refuses {rollout} rollout GPUs, not a multiple of {tensor} (tensor, data, pipeline). ")
            + _divisors("actor_rollout_ref.rollout.tensor_model_parallel_size", rollout, tensor // own)
            + f"use a multiple of {tensor} GPUs for the rollout"
        )
    return Shape(
        parts=[
            part("trainer", "verl", "actor", train),
            part("engine", "rollout", "rollout", max(1, rollout // tensor), tensor, None if apart else 0),
        ],
        pools=pools,
        update="xccl" if apart else "in-process",
        notes=[how],
        refusals=refusals,
    )


def _divisors(name: str, total: int, others: int) -> str:
    fit = [str(n) for n in range(1, total + 1) if total % (n * others) == 0]
    # none where the others alone do not divide the total
    return (
        f"Set {name} to {', '.join(fit[:-1])}{' or ' if len(fit) > 1 else ''}{''.join(fit[-1:])}, or "
        if fit
        else ""
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
        critic = [
            i
            for i, p in enumerate(parts)
            if p.name == "critic" and role == "reward" and launch.on("share_reward")
        ]
        actor = [0] if together or role == "ref" and launch.on("share_ref") else []
        parts.append(
            part(
                "trainer", "deepspeed", role, math.prod(shape[role]), anchor=next(iter(actor + critic), None)
            )
        )
    pools = [shape.get(p.name, shape["trainer"]) for p in parts if p.anchor is None]
    shares = together and not asynchronous
    if engines:
        parts.append(part("engine", "vllm", "vllm", engines, tensor, 0 if shares else None))
    handed_over = shares and launch.value("backend") == "nccl"
    gloo = launch.value("backend") == "gloo"  # clean only in old releases does not count as clean
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
        part("engine", "vllm", "vllm", engines, tensor, 0 if together else None),
    ]
    return Shape(
        parts=parts,
        pools=[Pool(1, learners) for learners in launch.numbers("learners")],
        update="ipc" if together else "xccl",
        notes=that_apply(
            (
                together,
                "with single_gpu_mode, learner and engine share the GPU. v0.3.0 passes weights as "
                "CUDA IPC handles, without NCCL. v0.2.0 still opens a process group, which NCCL "
                "refuses unless vllm_sync_backend is gloo",
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


def _trl(launch: Launch, gpus: int, nodes: int) -> tuple[Mode, Placed]:
    """One node of those that the trainer has."""
    everything = tuple(range(gpus))
    sees, server = (
        everything if visible is None else visible for visible in (launch.trainer_sees, launch.server_sees)
    )
    all_visible = (
        "accelerate launch" in launch.text and not launch.value("processes") and not launch.value("per_node")
    )
    # accelerate 1.0, commands/launch.py: as many processes as torch.cuda.device_count() says
    notes = that_apply(
        (all_visible, "accelerate launch without --num_processes starts one process per visible GPU")
    )
    machines = max(nodes, launch.number("machines"))
    processes = max(1, len(sees)) if all_visible else 1
    if launch.value("per_node"):
        processes = launch.number("per_node")
    elif launch.value("processes"):
        processes = -(-launch.number("processes") // machines)
    if launch.value("mode") != "server":
        tensor = max(1, launch.number("tensor"))
        parts = [
            part("trainer", "accelerate", "trainer", processes),
            part("engine", "vllm", "vllm", processes // tensor or 1, tensor, 0),
        ]
        refusals = (
            [
                f"TRL refuses this launch, because vllm_tensor_parallel_size {tensor} does not divide "
                f"{processes} processes. "
                + _divisors("vllm_tensor_parallel_size", processes, 1)
                + f"start a multiple of {tensor} processes"
            ]
            if processes % tensor
            else []
        )
        verdict = verdict_of((refusals, "refused"), (processes > len(sees), "zero-visible"))
        notes += [
            "with vllm_mode colocate, each trainer process runs its own engine and loads the weights "
            "itself, without an NCCL group"
        ]
        return Mode(tuple(parts), None), Placed(_seats(sees[:processes], ()), verdict, (*refusals, *notes))
    tensor, data = max(1, launch.number("server_tensor")), max(1, launch.number("server_data"))
    parts = [
        part("trainer", "accelerate", "trainer", processes),
        part("engine", "vllm", "vllm-serve", data, tensor),
    ]
    used, held = server[: tensor * data], sees[:processes]
    elsewhere = machines > 1 or launch.value("server_host") not in LOCAL
    shared = bool(held) and held[0] in used and not elsewhere
    crowded = bool(set(held) & set(used)) and not elsewhere
    lacking = len(used) < tensor * data or len(held) < processes
    verdict = verdict_of((lacking, "zero-visible"), (shared, "duplicate"), (crowded, "oversubscribed"))
    notes += that_apply(
        (
            shared,
            "TRL compares GPU UUIDs before NCCL starts (from v0.20.0 on) and raises "
            "'Attempting to use the same "
            "CUDA device'",
        ),
        (not processes, "this command starts only the server, and its trainer is not known"),
        (elsewhere, "server and trainer are assumed to be on different nodes"),
    )
    used = tuple(gpus * machines + gpu for gpu in used) if elsewhere else used
    return Mode(tuple(p for p in parts if p.world_size), None), Placed(
        _seats(held, used), verdict, tuple(notes)
    )


def _seats(trainers: Sequence[int], engines: Sequence[int]) -> tuple[Group, ...]:
    """TRL's groups; in the weight update the trainer has the highest rank (generation/vllm_client.py)."""
    return groups_of(
        *(
            (
                [Job(role, len(gpus), gpus)] if gpus else []
                for role, gpus in (("engine", engines), ("trainer", trainers))
            )
        ),
        "xccl",
        trainer_last=True,
    )
