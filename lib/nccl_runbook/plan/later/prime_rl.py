"""prime-rl: a vLLM server on the first GPUs, the trainer on the next; of several nodes each has its own.

src/prime_rl/entrypoints/rl.py, packages/prime-rl-configs/src/prime_rl/configs/rl.py."""

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import part
from nccl_runbook.plan.groups import Pool, Shape, that_apply


def shape(launch: Launch) -> Shape:
    """What a prime-rl launch starts. ValueError if a size is no number."""
    each, tensor = launch.number("each"), max(1, launch.number("tensor"))
    serves = any(name.startswith("inference.") for name in launch.flags)
    lora = any(name.startswith("trainer.model.lora") for name in launch.flags)
    several = launch.value("type") == "multi_node"
    if several:
        nodes = launch.number("infer_nodes" if launch.value("infer_nodes") else "engine_nodes")
        pools = [
            Pool(nodes * launch.number("replicas") if serves else 0, each),
            Pool(launch.number("train_nodes"), each),
        ]
    else:
        pools = [Pool(1, launch.number("infer") if serves else 0), Pool(1, launch.number("train"))]
    rollout, train = (pool.nodes * pool.gpus for pool in pools)
    broadcast = launch.value("broadcast")
    update = broadcast if broadcast or (serves and not lora) else "filesystem"
    in_memory = update in ("", "nccl", "nixl")
    refusals = that_apply(
        (
            not several and rollout + train > each,
            f"prime-rl refuses {rollout} inference and {train} training GPUs, because gpus_per_node is "
            f"{each}",
        ),
        (
            not several and in_memory and rollout + train < 2,
            "prime-rl refuses weight broadcast over NCCL on one GPU",
        ),
        (
            not several and rollout % tensor > 0,
            f"prime-rl refuses {rollout} inference GPUs, because this is not a multiple of "
            f"tensor_parallel_size {tensor}",
        ),
        (
            lora and broadcast in ("nccl", "nixl"),
            f"prime-rl refuses LoRA with weight_broadcast.type {broadcast}",
        ),
    )
    notes = that_apply(
        (not in_memory, "weights travel through files (weight_broadcast.type filesystem)"),
        (update == "nixl", "weights travel through NIXL; the group below contains the ranks that take part"),
        (not serves, "there is no [inference] table, so the inference server runs elsewhere"),
        (several, "prime-rl starts a job on several nodes only through Slurm"),
    )
    engines = [part("engine", "vllm", "inference", max(1, rollout // tensor), tensor)] if rollout > 0 else []
    return Shape(
        [*engines, part("trainer", "prime-rl", "trainer", train)],
        [pool for pool in pools if pool.nodes and pool.gpus],
        "xccl" if in_memory else "disk",
        notes,
        refusals,
    )
