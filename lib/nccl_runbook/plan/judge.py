"""What a planned allocation means, and what to do about it, in the order to try it. Thresholds: none; the
arithmetic is planning's."""

import dataclasses
import difflib
from collections.abc import Sequence

from nccl_runbook.causes.causes import table
from nccl_runbook.core.facts import Clash, Gap, Identity, clashes, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.machine.facts import NvmlGpu
from nccl_runbook.machine.visible_devices import read_selection
from nccl_runbook.plan.areal import Mode, Refused, Rules, newest, spans, spelt, valid_at, written_for
from nccl_runbook.plan.frameworks import Launch
from nccl_runbook.plan.groups import Group, Placed, Site, place, that_apply

CAUSE = "trainer-and-engine-share-gpu"
SEVERITY = {
    "clean": Severity.OK,
    "oversubscribed": Severity.WARN,
    "duplicate": Severity.BROKEN,
    "refused": Severity.BROKEN,
    "zero-visible": Severity.BROKEN,
}
_OWN_GPU = "There, this allocation gives each rank a GPU of its own."
_SMI = ("nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv",)


def refused(text: str, why: Refused, rules: Rules) -> Finding:
    """The string does not parse at this tag."""
    valid, instead = valid_at(text), written_for(text, rules)
    return Finding(
        "allocation-refused",
        Severity.BROKEN,
        f"AReaL {rules.tag} cannot read this allocation: {why.says}",
        (
            Evidence(f"AReaL {rules.tag} raises {why.error}: {why.says}"),
            *([Evidence(f"it is valid in {spans(valid)}")] if valid else []),
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
    """The verdict on a placement, with the remedies for this tag."""
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
        cause,
        cause and "likely",
    )


def title(mode: Mode, placed: Placed, site: Site) -> str:
    """One sentence: what will happen."""
    where = sizes(mode, site.gpus) + (f" a node, {site.nodes} nodes" if site.nodes > 1 else "")
    if placed.verdict == "duplicate" and not any(
        g.shared for g in placed.groups if g.name == "weight-update"
    ):
        return f"two ranks of the trainer share one GPU: NCCL will refuse them ({where})"
    return f"{table('plan/areal')['sentences'][placed.verdict]} ({where})"


def sizes(mode: Mode, gpus: int) -> str:
    """In words: "sglang 4 ranks, fsdp 1 rank on 8 GPUs"."""
    return (
        ", ".join(f"{p.name or p.backend} {counted(p.world_size, 'rank')}" for p in mode.parts)
        + f" on {counted(gpus, 'GPU')}"
    )


def shared_lines(placed: Placed) -> list[str]:
    """Ranks of one group on one GPU, in words."""
    return [
        f"{g.name}: rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks[:6]))} on GPU {gpu}"
        for g in placed.groups
        for gpu, ranks in list(g.shared.items())[:4]
    ]


def remedies(text: str, mode: Mode, placed: Placed, rules: Rules, site: Site) -> list[Remedy]:
    """What to do, the first that can work first. Lines are for this tag; where its source
    was not read, that is said."""
    by_update = (
        placed.verdict == "duplicate"
        and place(mode, dataclasses.replace(site, update="disk")).verdict != "duplicate"
    )
    found = _disk(rules, mode, site) if by_update else []
    if smaller := fitting(mode, site, rules):
        found.append(
            Remedy(
                "you",
                f"Ask for no more than {counted(site.gpus, 'GPU')} (batch sizes may have to change too):",
                (smaller,),
            )
        )
    found += [*_more(mode, site), *(_others(rules) if by_update else [])]
    why = (
        f"Ray assigns whole nodes of {counted(site.gpus, 'GPU')}, to engines first; "
        "the trainer needs one more."
        if site.launcher == "ray"
        else "no number of GPUs is enough for this one."
    )
    return found or [Remedy("you", f"Choose another allocation: {why}")]


def _disk(rules: Rules, mode: Mode, site: Site) -> list[Remedy]:
    switch = rules.switch
    unread = "" if rules.known else f" ({rules.tag} itself was not read; this is for {rules.tags[-1]}.)"
    shipped = (
        [f"# or take {switch['example']} with:", "rollout.backend=sglang:d1 actor.backend=fsdp:d1"]
        if "example" in switch and site.gpus == 1
        else []
    )
    engine = next(iter(mode.of("engine")), None)
    share = {"sglang": "sglang.mem_fraction_static=0.3", "vllm": "vllm.gpu_memory_utilization=0.3"}.get(
        engine.backend if engine else ""
    )
    room = [f"{share}  # both share one GPU: the engine must leave memory for the trainer"] * bool(
        share and site.gpus == 1
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
    """More hardware, if that alone makes it clean."""
    asked = sum(p.world_size for p in mode.parts)
    least = max(
        site.nodes + 1, sum(p.world_size for p in mode.of("engine")) // site.gpus
    )  # the engines' nodes, then one for the trainer
    nodes = (
        next(
            (
                n
                for n in range(least, least + 4)
                if place(mode, dataclasses.replace(site, nodes=n)).verdict == "clean"
            ),
            0,
        )
        if site.launcher == "ray"
        else 0
    )
    if nodes:
        return [
            Remedy("your launcher", f"Give the job {nodes} nodes. {_OWN_GPU}", (f"#SBATCH --nodes={nodes}",))
        ]
    if site.own_gpus:
        nodes = -(-mode.total_gpus // site.gpus)
        return [Remedy("your launcher", f"Give the job {nodes} nodes.", (f"#SBATCH --nodes={nodes}",))]
    if place(mode, dataclasses.replace(site, gpus=asked)).verdict != "clean":
        return []
    return [
        Remedy(
            "your launcher",
            f"Give the job {counted(asked, 'GPU')} on one node. {_OWN_GPU}",
            (f"#SBATCH --gpus-per-node={asked}",),
        )
    ]


def _others(rules: Rules) -> list[Remedy]:
    fit = {"take-turns": rules.era == "C", "adapter": rules.switch["honours_option"], "opt-in": True}
    return [Remedy("you", **table("plan/areal")["remedy"][name]) for name, fits in fit.items() if fits]


def fitting(mode: Mode, site: Site, rules: Rules) -> str:
    """A string of the same shape that is clean on these GPUs: fewer replicas, the instances
    as they are; "" if none fits."""
    engines, trainers = mode.of("engine"), mode.of("trainer")
    if len(engines) != 1 or len(trainers) != 1 or trainers[0].experts or trainers[0].size("e") > 1:
        return ""
    engine, trainer = engines[0], trainers[0]
    shape = trainer.world_size // trainer.size("d")
    sizes = [
        (d, (site.gpus - d * engine.instance_size) // shape)
        for d in range(1, min(site.gpus, engine.size("d")) + 1)
    ]
    fit = [(d, min(t, trainer.size("d"))) for d, t in sizes if t >= 1 and d <= engine.size("d")]
    if not fit:
        return ""
    d, t = max(fit, key=lambda s: (min(s[0] / engine.size("d"), s[1] / trainer.size("d")), s))
    parts = [
        dataclasses.replace(p, dims={**p.dims, "d": n}, anchor=None) for p, n in ((engine, d), (trainer, t))
    ]
    if place(Mode(tuple(parts), "DECOUPLED_TRAIN"), site).verdict != "clean":
        return ""
    if mode.scheduled:
        return " ".join(f"{p.name}.backend={spelt(p, '', rules)}" for p in parts)
    return "+".join(spelt(p, p.name or "", rules) for p in parts)


def about_tag(rules: Rules, site: Site) -> list[str]:
    """What is to be known about this tag beside the verdict."""
    return that_apply(
        (
            not rules.known,
            f"{rules.tag} is not in our table (newest: {newest().tag}); read as {rules.tags[-1]}",
        ),
        (
            site.launcher == "single-controller" and not rules.controller,
            f"{rules.tag} has no single-controller mode (new in v0.5.0); computed as for v1.0.4",
        ),
    )


def judge_launch(launch: Launch, mode: Mode, placed: Placed, gpus: int, per_node: int) -> Finding:
    """The verdict on a launch; flags that look like one of the table and are none are named as evidence."""
    cause, known = CAUSE if placed.verdict == "duplicate" else None, launch.row["flags"]
    slips = [
        f"--{n}: not known to us; the nearest flag is --{near}"
        for n in launch.flags
        if n not in known
        for near in difflib.get_close_matches(n, known, 1, 0.95)
    ]
    seen = [*shared_lines(placed), *placed.notes, *slips]
    return Finding(
        f"allocation-{placed.verdict}",
        SEVERITY[placed.verdict],
        f"{launch.framework}: {table('plan/areal')['launches'][placed.verdict]} ({sizes(mode, gpus)})",
        tuple(Evidence(e, launch.row["source"] if i == 0 else "") for i, e in enumerate(seen)),
        () if placed.verdict == "clean" else tuple(_fixes(launch, mode, placed, gpus, per_node)),
        cause,
        cause and "likely",
    )


def _fixes(launch: Launch, mode: Mode, placed: Placed, gpus: int, per_node: int) -> list[Remedy]:
    if placed.verdict == "refused":
        return [Remedy("you", f"Change the launch: {placed.notes[0]}.")]
    found, asked = [], sum(p.alloc_size for p in mode.parts)
    if launch.framework == "trl" and placed.verdict == "duplicate":
        server, trainer = (mode.of(kind)[0].world_size for kind in ("engine", "trainer"))
        trainer = min(trainer, per_node - server)
        lines = (
            f"CUDA_VISIBLE_DEVICES={_range(0, server)} trl vllm-serve ...",
            f"CUDA_VISIBLE_DEVICES={_range(server, server + trainer)} accelerate launch "
            f"--num_processes {trainer} ...",
        )
        found += [Remedy("your launcher", "Give server and trainer different GPUs:", lines)] * (trainer > 0)
    apart = any(p.anchor is None for p in mode.of("engine")) and not launch.on("async")
    can_share = placed.verdict == "duplicate" or apart and (launch.framework != "open-instruct" or gpus == 1)
    if "share_text" in launch.row and can_share:
        found.append(Remedy("you", launch.row["share_text"], launch.row["share_lines"]))
    alone = (
        placed.verdict == "duplicate" and launch.framework != "trl"
    )  # they share by a flag: more GPUs change nothing
    return found + [Remedy("your launcher", f"Give the job {asked} GPUs.", (f"#SBATCH --gpus={asked}",))] * (
        not alone
    )


def _range(start: int, end: int) -> str:
    return ",".join(map(str, range(start, min(end, start + 64))))


def visible(gpus: Sequence[NvmlGpu | Gap], value: str | None) -> list[Identity]:
    """The GPUs that a process counts from 0 on, as NVML names them. ``value``: CUDA_VISIBLE_DEVICES,
    None where it is not set.

    A MIG slice has its own UUID and its card's bus id. CUDA may count in another order than
    NVML (CUDA_DEVICE_ORDER).
    """
    named = [e.strip() for e in (value or "").split(",")]
    slices = {index: name for index, name in enumerate(named) if name.upper().startswith("MIG-")}
    shown = read_selection(value, gpus).shown if value is not None else range(len(gpus))
    return [
        Identity(
            index, slices.get(index, str(gpu.uuid)), "" if isinstance(gpu.pci_bus_id, Gap) else gpu.pci_bus_id
        )
        for index, gpu in enumerate(gpus[i] for i in shown)
        if not isinstance(gpu, Gap)
    ]


def judge_devices(groups: Sequence[Group], gpus: Sequence[Identity]) -> list[Finding]:
    """A finding for every set of ranks of one NCCL group that is not on different GPUs of this machine."""
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
        f"{ranks} of the {group.name} group {says} ({clash.what})",
        (Evidence(f"{group.name}: {ranks}: {clash.what}", "NVML"),),
        (Remedy(who, advice, _SMI),),
        cause,
        "established" if clash.kind == "shared" else "likely",
    )
