"""What a planned allocation means, and what to do about it, in the order to try it. Thresholds: none; the
arithmetic is planning's."""

import dataclasses
import difflib
from collections.abc import Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Clash, Gap, Identity, clashes, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.machine.facts import NvmlGpu
from nccl_runbook.machine.visible_devices import read_selection
from nccl_runbook.plan.allocation.areal_rules import Rules, newest, spans
from nccl_runbook.plan.allocation.areal_written import valid_at, written_for
from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.allocation.judge_remedies import remedies
from nccl_runbook.plan.areal import Mode, Refused
from nccl_runbook.plan.groups import Group, Placed, Site, that_apply

CAUSE = "trainer-and-engine-share-gpu"
SEVERITY = {
    "clean": Severity.OK,
    "oversubscribed": Severity.WARN,
    "duplicate": Severity.BROKEN,
    "refused": Severity.BROKEN,
    "zero-visible": Severity.BROKEN,
}


def refused(text: str, why: Refused, rules: Rules) -> Finding:
    """The finding for a string that does not parse at this tag."""
    valid, instead = valid_at(text), written_for(text, rules)
    return Finding(
        "allocation-refused",
        Severity.BROKEN,
        f"AReaL {rules.tag} cannot read this allocation: {why.says}",
        (
            Evidence(f"AReaL {rules.tag} raises {why.error}: {why.says}"),
            *([Evidence(f"the allocation is valid in {spans(valid)}")] if valid else []),
        ),
        (
            Remedy(
                "you",
                f"For {rules.tag}, write:"
                if instead
                else f"Use the grammar of {rules.tag}, such as sglang:d1+fsdp:d1.",
                (instead,) if instead else (),
            ),
        ),
    )


def judge(text: str, mode: Mode, placed: Placed, rules: Rules, site: Site) -> Finding:
    """The finding about a placement, with the remedies for this tag."""
    cause = (
        CAUSE
        if placed.verdict == "duplicate"
        else "visible-devices-wrong"
        if placed.verdict == "zero-visible"
        else None
    )
    return Finding(
        f"allocation-{placed.verdict}",
        SEVERITY[placed.verdict],
        title(mode, placed, site),
        (*(Evidence(line) for line in shared_lines(placed)), *(Evidence(note) for note in placed.notes)),
        tuple(remedies(text, mode, placed, rules, site)) if placed.verdict != "clean" else (),
        cause=cause,
        status=cause and "likely",
    )


def title(mode: Mode, placed: Placed, site: Site) -> str:
    """One sentence that predicts what will happen."""
    where = sizes(mode, site.gpus) + (f" a node, {site.nodes} nodes" if site.nodes > 1 else "")
    if placed.verdict == "duplicate" and not any(
        g.shared for g in placed.groups if g.name == "weight-update"
    ):
        return f"two ranks of the trainer share one GPU, so NCCL will refuse to connect them ({where})"
    return f"{table('plan/areal')['sentences'][placed.verdict]} ({where})"


def sizes(mode: Mode, gpus: int) -> str:
    """The components in words: "sglang 4 ranks, fsdp 1 rank on 8 GPUs"."""
    return (
        ", ".join(f"{p.name or p.backend} {counted(p.world_size, 'rank')}" for p in mode.parts)
        + f" on {counted(gpus, 'GPU')}"
    )


def shared_lines(placed: Placed) -> list[str]:
    """One line for each GPU with several ranks of one group."""
    return [
        f"{g.name}: rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks[:6]))} on GPU {gpu}"
        for g in placed.groups
        for gpu, ranks in list(g.shared.items())[:4]
    ]


def about_tag(rules: Rules, site: Site) -> list[str]:
    """Notes about this tag beside the verdict."""
    return that_apply(
        (
            not rules.known,
            f"AReaL {rules.tag} is not in our table (the newest tag is {newest().tag}), so the "
            f"allocation was read as in {rules.tags[-1]}",
        ),
        (
            site.launcher == "single-controller" and not rules.controller,
            f"AReaL {rules.tag} has no single-controller mode (new in v0.5.0), so this plan is for v1.0.4",
        ),
    )


def judge_launch(launch: Launch, mode: Mode, placed: Placed, gpus: int, per_node: int) -> Finding:
    """The finding about a launch; unknown flags that resemble those of the table are evidence."""
    cause, known = CAUSE if placed.verdict == "duplicate" else None, launch.row["flags"]
    slips = [
        f"--{n}: not in our table; the most similar flag is --{near}"
        for n in launch.flags
        if n not in known
        for near in difflib.get_close_matches(n, known, 1, 0.95)
    ]
    notes = [*shared_lines(placed), *(note.partition(". Set ")[0] for note in placed.notes), *slips]
    return Finding(
        f"allocation-{placed.verdict}",
        # under Ray such a job never starts; TRL's two programs only share a GPU
        Severity.BROKEN
        if placed.verdict == "oversubscribed" and launch.framework != "trl"
        else SEVERITY[placed.verdict],
        f"{launch.framework}: {table('plan/areal')['launches'][placed.verdict]} ({sizes(mode, gpus)})",
        tuple(Evidence(e, launch.row["source"] if i == 0 else "") for i, e in enumerate(notes)),
        () if placed.verdict == "clean" else tuple(_fixes(launch, mode, placed, gpus, per_node)),
        cause=cause,
        status=cause and "likely",
    )


def _fixes(launch: Launch, mode: Mode, placed: Placed, gpus: int, per_node: int) -> list[Remedy]:
    if placed.verdict == "refused":
        says, _, instead = placed.notes[0].partition(". ")
        return [
            Remedy(
                "you", f"{instead[:1].upper()}{instead[1:]}." if instead else f"Change the launch: {says}."
            )
        ]
    fixes, asked = [], mode.total_gpus
    if launch.framework == "trl" and placed.verdict == "duplicate":
        server, trainer = (mode.of(kind)[0].world_size for kind in ("engine", "trainer"))
        trainer = min(trainer, per_node - server)
        lines = (
            f"CUDA_VISIBLE_DEVICES={_range(0, server)} trl vllm-serve ...",
            f"CUDA_VISIBLE_DEVICES={_range(server, server + trainer)} accelerate launch "
            f"--num_processes {trainer} ...",
        )
        fixes += (
            [Remedy("your launcher", "Give server and trainer different GPUs:", lines)] if trainer > 0 else []
        )
    can_share = placed.verdict == "duplicate" or (
        (any(p.anchor is None for p in mode.of("engine")) and not launch.on("async"))
        and (launch.framework != "open-instruct" or gpus == 1)
    )
    if "share_text" in launch.row and can_share:
        fixes.append(Remedy("you", launch.row["share_text"], launch.row["share_lines"]))
    alone = (
        placed.verdict == "duplicate" and launch.framework != "trl"
    )  # they share by a flag: more GPUs change nothing
    return fixes + (
        [Remedy("your launcher", f"Give the job {asked} GPUs.", (f"#SBATCH --gpus={asked}",))]
        if not alone
        else []
    )


def _range(start: int, end: int) -> str:
    return ",".join(map(str, range(start, min(end, start + 64))))


def unplanned(measured: Sequence[Finding]) -> list[Finding]:
    """The findings of a test without a plan. As no plan shares a GPU, NCCL's refusal to share one is only
    noted."""
    return [
        dataclasses.replace(f, cause=None, status=None, remedy=())
        if f.cause == CAUSE and f.severity is Severity.NOTE
        else f
        for f in measured
    ]


def visible(gpus: Sequence[NvmlGpu | Gap], value: str | None) -> list[Identity]:
    """GPUs that a process numbers from 0, as NVML names them. ``value``: CUDA_VISIBLE_DEVICES, None if not
    set. A MIG slice has its own UUID and its card's bus id. CUDA's order may differ from NVML's
    (CUDA_DEVICE_ORDER)."""
    slices = {
        index: name
        for index, name in enumerate([e.strip() for e in (value or "").split(",")])
        if name.upper().startswith("MIG-")
    }
    shown = read_selection(value, gpus).shown if value is not None else range(len(gpus))
    return [
        Identity(
            index, slices.get(index, str(gpu.uuid)), "" if isinstance(gpu.pci_bus_id, Gap) else gpu.pci_bus_id
        )
        for index, gpu in enumerate(gpus[i] for i in shown)
        if not isinstance(gpu, Gap)
    ]


def judge_devices(groups: Sequence[Group], gpus: Sequence[Identity]) -> list[Finding]:
    """A finding for every set of ranks of one NCCL group that share a GPU of this machine."""
    return [
        _clash(group, clash)
        for group in groups
        if group.name != "inference"
        for clash in clashes(
            [
                Identity(r.rank, gpus[r.gpu].uuid, gpus[r.gpu].bus_id)
                for r in group.ranks
                if r.gpu is not None and r.gpu < len(gpus)
            ]
        )
    ]


def _clash(group: Group, clash: Clash) -> Finding:
    ranks = f"ranks {' and '.join(map(str, clash.ranks[:6]))}"
    says, cause, who, advice = table("plan/areal")["clash"][clash.kind]
    return Finding(
        f"devices-{clash.kind}",
        Severity.BROKEN if clash.kind == "shared" else Severity.WARN,
        f"{ranks} of the group {group.name} {says} ({clash.what})",
        (Evidence(f"{group.name}: {ranks}: {clash.what}", "NVML"),),
        (Remedy(who, advice, ("nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv",)),),
        cause=cause,
        status="established" if clash.kind == "shared" else "likely",
    )
