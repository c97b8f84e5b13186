"""What to change when an allocation does not fit."""

import dataclasses

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import Remedy
from nccl_runbook.plan.allocation.areal_rules import Rules
from nccl_runbook.plan.allocation.areal_written import spelt
from nccl_runbook.plan.areal import Mode
from nccl_runbook.plan.groups import Placed, Site, place

LARGE_NODE = 8  # GPUs of an HGX or DGX node with A100, H100 or B200; a larger node is rare
_OWN_GPU = "With this number of GPUs, the allocation gives each rank a GPU of its own."


def remedies(text: str, mode: Mode, placed: Placed, rules: Rules, site: Site) -> list[Remedy]:
    """What to do, the first that can work first. Lines are for this tag; a tag whose source was not read is
    marked."""
    by_update = (
        placed.verdict == "duplicate"
        and place(mode, dataclasses.replace(site, update="disk")).verdict != "duplicate"
    )
    fixes = _disk(rules, mode, site) if by_update else []
    if smaller := fitting(mode, site, rules):
        fixes.append(
            Remedy(
                "you",
                f"Ask for no more than {counted(site.gpus, 'GPU')} (batch sizes may have to change too):",
                (smaller,),
            )
        )
    fixes += [*_more(mode, site), *(_others(rules) if by_update else [])]
    why = (
        f"Ray assigns whole nodes of {counted(site.gpus, 'GPU')}, first to the engines, so the trainer "
        "needs one more node."
        if site.launcher == "ray"
        else "no number of GPUs is enough for this allocation."
    )
    return fixes or [Remedy("you", f"Choose another allocation: {why}")]


def _disk(rules: Rules, mode: Mode, site: Site) -> list[Remedy]:
    switch = rules.switch
    unread = (
        "" if rules.known else f" (We have not read AReaL {rules.tag}. This advice is for {rules.tags[-1]}.)"
    )
    shipped = (
        [
            f"# or take {switch['example']}, with the backends instead of its allocation string:",
            "rollout.backend=sglang:d1 actor.backend=fsdp:d1",
        ]
        if "example" in switch and site.gpus == 1
        else []
    )
    engine = next(iter(mode.of("engine")), None)
    share = {"sglang": "sglang.mem_fraction_static=0.3", "vllm": "vllm.gpu_memory_utilization=0.3"}.get(
        engine.backend if engine else ""
    )
    room = (
        [f"{share}  # engine and trainer share one GPU, so the engine must leave memory for the trainer"]
        if share and site.gpus == 1
        else []
    )
    apart = (
        [Remedy("you", "Also add this to the command line that starts the job:", tuple(room))]
        if room and not switch["honours_option"]
        else []
    )
    return [
        Remedy("you", switch["text"] + unread, (*switch["lines"], *shipped, *([] if apart else room))),
        *apart,
    ]


def _more(mode: Mode, site: Site) -> list[Remedy]:
    """More hardware, if that alone makes it clean. AReaL's local launcher serves one node."""
    asked = sum(p.world_size for p in mode.parts)
    needs_ray = site.launcher == "local" and asked > LARGE_NODE
    # the engines' nodes, then one for the trainer
    least = max(site.nodes + 1, sum(p.world_size for p in mode.of("engine")) // site.gpus)
    nodes = (
        next(
            (
                n
                for n in range(least, least + 4)
                if place(mode, dataclasses.replace(site, nodes=n, launcher="ray")).verdict == "clean"
            ),
            0,
        )
        if site.launcher == "ray" or needs_ray
        else 0
    )
    if nodes:
        return [
            Remedy(
                "your launcher",
                f"Give the job {nodes} nodes"
                + (" and start it with AReaL's Ray launcher" if needs_ray else "")
                + f". {_OWN_GPU}",
                (f"#SBATCH --nodes={nodes}",),
            )
        ]
    if site.own_gpus:
        nodes = -(-mode.total_gpus // site.gpus)
        return [Remedy("your launcher", f"Give the job {nodes} nodes.", (f"#SBATCH --nodes={nodes}",))]
    if place(mode, dataclasses.replace(site, gpus=asked)).verdict != "clean":
        return []
    return [
        Remedy(
            "your launcher",
            f"Give the job {counted(asked, 'GPU')} on one node"
            f"{', if your cluster has such a node' if needs_ray else ''}. {_OWN_GPU}",
            (f"#SBATCH --gpus-per-node={asked}",),
        )
    ]


def _others(rules: Rules) -> list[Remedy]:
    fit = {"take-turns": rules.era == "C", "adapter": rules.switch["honours_option"], "opt-in": True}
    return [Remedy("you", **table("plan/areal")["remedy"][name]) for name, fits in fit.items() if fits]


def fitting(mode: Mode, site: Site, rules: Rules) -> str:
    """A string of the same shape that is clean on these GPUs: the same instances, fewer replicas, and of
    the trainer's a number that divides the asked one, as the batch does; empty if none fits."""
    engines, trainers = mode.of("engine"), mode.of("trainer")
    if len(engines) != 1 or len(trainers) != 1 or trainers[0].experts or trainers[0].size("e") > 1:
        return ""
    engine, trainer = engines[0], trainers[0]
    shape = trainer.world_size // trainer.size("d")
    fit = [
        (d, t)
        for d in range(1, min(site.gpus, engine.size("d")) + 1)
        for t in range(1, min(site.gpus, trainer.size("d")) + 1)
        if trainer.size("d") % t == 0 and d * engine.instance_size + t * shape <= site.gpus
    ]
    if not fit:
        return ""
    d, t = max(fit, key=lambda s: (min(s[0] / engine.size("d"), s[1] / trainer.size("d")), s))
    parts = [
        dataclasses.replace(p, dims={**p.dims, "d": n}, anchor=None) for p, n in ((engine, d), (trainer, t))
    ]
    if place(Mode(tuple(parts), "DECOUPLED_TRAIN"), site).verdict != "clean":
        return ""
    return (
        " ".join(f"{p.name}.backend={spelt(p, '', rules)}" for p in parts)
        if mode.scheduled
        else "+".join(spelt(p, p.name or "", rules) for p in parts)
    )
