"""NeMo-RL (GRPO): one Ray cluster for both, or whole nodes for generation; on one node GPUs of it.

nemo_rl/algorithms/grpo.py (setup), models/generation/vllm/vllm_generation.py."""

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import part
from nccl_runbook.plan.groups import Pool, Shape, that_apply

SAYS = "policy.generation.colocated.enabled"


def shape(launch: Launch) -> Shape:
    """What a NeMo-RL launch starts. ValueError if it cannot be planned."""
    if SAYS not in launch.flags:
        raise ValueError(f"{SAYS} is not given on the command line. Name the YAML file that --config names")
    teachers = [n for n in launch.flags if n.startswith("on_policy_distillation.")]
    if teachers or any("reward_model" in v for n, v in launch.flags.items() if n.endswith("env_name")):
        raise ValueError("NeMo-RL with a reward model or teachers on nodes of their own is not planned")
    nodes, each = launch.pool("cluster")
    together, backend = launch.on("colocate"), launch.value("backend")
    wide = (
        launch.number("servers")
        if backend == "sglang"
        else launch.number("tensor") * launch.number("pipeline")
    )
    tensor = max(1, wide) if backend in ("vllm", "sglang") else 1
    asked_nodes, asked = launch.number("engine_nodes"), launch.number("engine_per_node")
    if together:
        train, rollout, own = nodes * each, nodes * each, [Pool(nodes, each)]
    elif nodes == 1:
        train, rollout, own = each - asked, asked, [Pool(1, each)]
    else:
        train, rollout, own = (
            (nodes - asked_nodes) * each,
            asked_nodes * asked,
            [Pool(nodes - asked_nodes, each), Pool(asked_nodes, asked)],
        )
    apart = not together
    refusals = that_apply(
        (
            apart and nodes == 1 and not 0 < asked < each,
            f"NeMo-RL refuses {asked} of {each} GPUs for generation, because training or generation is "
            "left without a GPU",
        ),
        (
            apart and nodes == 1 and asked_nodes > 1,
            f"NeMo-RL refuses {asked_nodes} generation nodes in a cluster of one",
        ),
        (
            apart and nodes > 1 and not 0 < asked_nodes < nodes,
            f"NeMo-RL refuses {asked_nodes} generation nodes in a cluster of {nodes}",
        ),
        (
            apart and nodes > 1 and asked != each,
            f"NeMo-RL refuses {asked} generation GPUs per node, because the number must be {each}",
        ),
        (
            backend == "vllm" and rollout % tensor > 0,
            f"NeMo-RL refuses {rollout} generation GPUs, because this is not a multiple of {tensor}, "
            "the number of GPUs per engine (tensor x pipeline)",
        ),
    )
    notes = that_apply(
        (together, "generation shares the policy's GPUs, and weights travel as CUDA IPC handles"),
        (apart, "the update group of NeMo-RL contains every training rank, not only the first"),
    )
    if train < 1 or rollout < 1:
        train, rollout = max(1, train), max(1, rollout)
    return Shape(
        [
            part("trainer", "nemo-rl", "policy", train),
            part("engine", backend, "generation", max(1, rollout // tensor), tensor, 0 if together else None),
        ],
        own,
        "ipc" if together else "xccl",
        notes,
        refusals,
    )
