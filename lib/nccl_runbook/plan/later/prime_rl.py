"""prime-rl: a vLLM server on the first GPUs, the trainer on the next; of several nodes each has its own.

src/prime_rl/entrypoints/rl.py, packages/prime-rl-configs/src/prime_rl/configs/rl.py."""

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import Part, part
from nccl_runbook.plan.groups import that_apply


def shape(launch: Launch) -> tuple[list[Part], list[tuple[int, int]], str, list[str], list[str]]:
    """Components, pools (nodes, GPUs each), weight update, notes and refusals of a prime-rl launch.
    ValueError if a size is no number."""
    each, tensor = launch.number("each"), max(1, launch.number("tensor"))
    serves = any(name.startswith("inference.") for name in launch.flags)
    lora = any(name.startswith("trainer.model.lora") for name in launch.flags)
    several = launch.value("type") == "multi_node"
    if several:
        nodes = launch.number("infer_nodes" if launch.value("infer_nodes") else "engine_nodes")
        pools = [(nodes * launch.number("replicas") * serves, each), (launch.number("train_nodes"), each)]
    else:
        pools = [(1, launch.number("infer") * serves), (1, launch.number("train"))]
    rollout, train = (nodes * gpus for nodes, gpus in pools)
    broadcast = launch.value("broadcast")
    update = broadcast if broadcast or serves and not lora else "filesystem"
    in_memory = update in ("", "nccl", "nixl")
    refusals = that_apply(
        (
            not several and rollout + train > each,
            f"prime-rl refuses {rollout} inference and {train} training GPUs: gpus_per_node is {each}",
        ),
        (
            not several and in_memory and rollout + train < 2,
            "prime-rl refuses weight broadcast over NCCL on one GPU",
        ),
        (
            not several and rollout % tensor > 0,
            f"prime-rl refuses {rollout} inference GPUs: no multiple of tensor_parallel_size {tensor}",
        ),
        (
            lora and broadcast in ("nccl", "nixl"),
            f"prime-rl refuses LoRA with weight_broadcast.type {broadcast}",
        ),
    )
    notes = that_apply(
        (not in_memory, "weights travel through files (weight_broadcast.type filesystem)"),
        (update == "nixl", "weights travel through NIXL; the group shown is of the ranks that take part"),
        (not serves, "there is no [inference] table: the inference server runs elsewhere"),
        (several, "prime-rl starts several nodes through Slurm only"),
    )
    engines = [part("engine", "vllm", "inference", max(1, rollout // tensor), tensor)] if rollout > 0 else []
    return (
        [*engines, part("trainer", "prime-rl", "trainer", train)],
        [p for p in pools if p[0] * p[1]],
        "xccl" if in_memory else "disk",
        notes,
        refusals,
    )
