"""What a launch of verl, OpenRLHF, TRL or open-instruct means for its groups, and the line to change."""
from __future__ import annotations

from nccl_runbook.causes.toml import table
from nccl_runbook.core.findings import Evidence, Finding, Remedy
from nccl_runbook.plan.areal.allocation import Mode
from nccl_runbook.plan.frameworks import Launch
from nccl_runbook.plan.groups import Placed
from nccl_runbook.plan.judge import CAUSE, SEVERITY, shared_lines, sizes


def judge(launch: Launch, mode: Mode, placed: Placed, gpus: int, per_node: int) -> Finding:
    """The verdict on a launch; flags that sound like placement and are not in the table are named as evidence."""
    cause = CAUSE if placed.verdict == "duplicate" else None
    return Finding(
        f"allocation-{placed.verdict}", SEVERITY[placed.verdict],
        f"{launch.framework.name}: {table('plan/areal/tags')['launches'][placed.verdict]} "
        f"({sizes(mode, gpus)})",
        tuple(Evidence(e, launch.framework.source if i == 0 else "") for i, e in enumerate(
            [*shared_lines(placed), *placed.notes,
             *(f"--{n}: not known to us" for n in launch.unknown[:8])])),
        () if placed.verdict == "clean" else tuple(_fixes(launch, mode, placed, per_node)), cause,
        cause and "likely")


def _fixes(launch: Launch, mode: Mode, placed: Placed, per_node: int) -> list[Remedy]:
    if placed.verdict == "refused":
        return [Remedy("you", f"Change the launch: {placed.notes[0]}.")]
    found = []
    asked = sum(p.alloc_size for p in mode.parts)
    if launch.framework.name == "trl" and placed.verdict == "duplicate":
        server, trainer = (mode.of(kind)[0].world_size for kind in ("engine", "trainer"))
        trainer = min(trainer, per_node - server)
        lines = (f"CUDA_VISIBLE_DEVICES={_range(0, server)} trl vllm-serve ...",
                 f"CUDA_VISIBLE_DEVICES={_range(server, server + trainer)} accelerate launch --num_processes {trainer} ...")
        found += [Remedy("your launcher", "Give server and trainer different GPUs:", lines)] * (trainer > 0)
    found.append(Remedy("you", launch.framework.share_text, tuple(launch.framework.share_lines)))
    alone = placed.verdict == "duplicate" and launch.framework.name != "trl"  # they share by a flag: more GPUs change nothing
    return found + [Remedy("your launcher", f"Or give the job {asked} GPUs.", (f"#SBATCH --gpus={asked}",))] * (not alone)


def _range(start: int, end: int) -> str:
    return ",".join(map(str, range(start, min(end, start + 64))))
