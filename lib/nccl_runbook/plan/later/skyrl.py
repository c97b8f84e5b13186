"""SkyRL: policy, reference and critic under FSDP or Megatron, vLLM engines; all on the same GPUs by default.

skyrl/train/utils/utils.py (validate_cfg), trainer.py (build_models), weight_sync/__init__.py."""

import math

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import part
from nccl_runbook.plan.groups import Pool, Shape, that_apply

# SkyRL up to skyrl_train-v0.4.0 has other names for the engines, and other defaults
OLDER = {
    "generator.num_inference_engines",
    "generator.inference_engine_tensor_parallel_size",
    "trainer.placement.policy_num_gpus_per_node",
}
REF = "trainer.placement.ref_num_gpus_per_node"


def shape(launch: Launch) -> Shape:
    """What a SkyRL launch starts. ValueError if it cannot be planned."""
    together, delta = launch.on("colocate"), launch.value("sync") == "delta"
    instance = math.prod(max(1, launch.number(way)) for way in ("tensor", "data", "pipeline"))
    local = launch.on("local")
    rollout = launch.number("engines") * instance if local else 0
    pools = {role: launch.pool(role) for role in ("trainer", "ref", "critic")}
    size = {role: math.prod(pool) for role, pool in pools.items()}
    has = {"ref": launch.on("kl_loss") or launch.on("kl_reward"), "critic": bool(launch.value("has_critic"))}
    older = any("inference_engine_" in name or "num_inference_engines" in name for name in launch.flags)
    if older and (missing := sorted({*OLDER, *([REF] if has["ref"] else [])} - {*launch.flags})):
        raise ValueError(f"{missing[0]} is not given, and its default differs between versions of SkyRL")
    parts = [part("trainer", "skyrl", "policy", size["trainer"])]
    for role in (r for r in has if has[r]):
        shares = together or (role == "ref" and launch.on("share_ref"))
        parts.append(part("trainer", "skyrl", role, size[role], anchor=0 if shares else None))
    # together, every GPU is its own bundle, and Ray spreads bundles over any nodes
    own = [pools.get(str(p.name), pools["trainer"]) for p in parts if p.anchor is None and not together]
    engine = part("engine", "vllm", "rollout", rollout // instance, instance, 0 if together else None)
    ref_differs = has["ref"] and launch.on("share_ref") and pools["ref"] != pools["trainer"]
    refusals = that_apply(
        (
            together and local and rollout != size["trainer"],
            f"SkyRL refuses colocate_all, because {size['trainer']} policy GPUs must equal {rollout} "
            "engine GPUs",
        ),
        (
            ref_differs and not together,
            "SkyRL refuses this launch: policy and ref share GPUs, so nodes x GPUs {}x{} must equal "
            "{}x{}".format(*pools["trainer"], *pools["ref"]),
        ),
        (
            together and "fully_async" in launch.text,
            "SkyRL refuses colocate_all in fully asynchronous training",
        ),
    )
    notes = that_apply(
        (together, "all models share GPUs, and weights travel as CUDA IPC handles"),
        (delta, "weights travel as deltas through files (weight_sync_backend=delta)"),
        (not local, "the engines run elsewhere (run_engines_locally=false)"),
    )
    update = "disk" if delta else "ipc" if together else "xccl"
    own += [Pool(size["trainer"], 1)] if together else [Pool(1, rollout)] if local else []
    return Shape([*parts, *([engine] if local else [])], own, update, notes, refusals)
