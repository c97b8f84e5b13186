"""slime and miles: Megatron trains, SGLang generates, in one placement group of Ray, sorted by node and GPU.

slime/ray/placement_group.py and utils/arguments.py; miles has the same layout, and engines for evaluation."""

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import part
from nccl_runbook.plan.groups import Pool, Shape, that_apply

TOGETHER = "engines share the actor's GPUs, and weights travel as CUDA IPC handles"


def shape(launch: Launch) -> Shape:
    """What a slime launch starts. ValueError if it cannot be planned."""
    together, external = "colocate" in launch.flags, launch.value("external")
    tensor = max(1, launch.number("tensor"))
    alone = bool({"debug_train_only", "load_debug_rollout_data"} & {*launch.flags})
    pool = launch.pool("trainer")
    actor = pool.nodes * pool.gpus
    if "debug_rollout_only" in launch.flags:
        raise ValueError("a run without trainer (--debug-rollout-only) is not planned")
    if not (launch.value("rollout") or together or external or alone):
        raise ValueError("--rollout-num-gpus is not given, and neither is --colocate")
    rollout = launch.number("rollout") if launch.value("rollout") else actor
    rollout = 0 if external or alone else rollout
    larger = together and rollout > actor
    engines = [
        part("engine", "sglang", "rollout", rollout // tensor, tensor, 0 if together and not larger else None)
    ]
    critic = (
        [part("trainer", "megatron", "critic", actor, anchor=0)] if launch.value("estimator") == "ppo" else []
    )
    trainers = [part("trainer", "megatron", "actor", actor, anchor=0 if larger else None), *critic]
    each = max(1, launch.number("eval_tensor")) if launch.value("eval") else 1
    evals = (
        [part("engine", "sglang", "eval", launch.number("eval") // each, each)]
        if launch.value("eval")
        else []
    )
    delta = "delta" in launch.value("mode")
    disk = delta or launch.value("transport") == "disk"
    notes = that_apply(
        (together, TOGETHER),
        (bool(critic), "the advantage estimator ppo adds a critic on the actor's GPUs"),
        (bool(external), "the engines run elsewhere (--rollout-external-engine-addrs)"),
        (
            rollout % tensor > 0,
            f"{rollout % tensor} of {rollout} rollout GPUs stay idle, because each engine has {tensor} GPUs",
        ),
    )
    refusals = that_apply(
        (
            delta and together,
            f"{launch.framework} refuses {launch.value('mode')} weight updates with --colocate",
        ),
        (
            delta and launch.value("transport") == "nccl" and launch.framework == "slime",
            "slime refuses delta over nccl",
        ),
    )
    own = [pool] if together or not rollout else [pool, Pool(1, rollout)]
    parts = [p for p in (engines + trainers if larger else trainers + engines) if p.world_size]
    return Shape([*parts, *evals], own, "ipc" if together else "disk" if disk else "xccl", notes, refusals)
