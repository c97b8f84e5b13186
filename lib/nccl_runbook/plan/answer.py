"""Judged placements of an allocation, a launch line, a script, a YAML or a folder. Reads only."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import clipped
from nccl_runbook.placement import Placement
from nccl_runbook.plan import frameworks, judge as judge_plan, read_training_file as training_file
from nccl_runbook.plan.allocation import areal_rules, flags as launch_flags
from nccl_runbook.plan.allocation.areal_written import of_realhf
from nccl_runbook.plan.areal import Mode, Refused, from_roles, parse
from nccl_runbook.plan.groups import Placed, Site, place, that_apply
from nccl_runbook.plan.later import configs
from nccl_runbook.scripts.read import Command, Script, read as read_script

MOST_GPUS = 1024  # of one node; more is a slip
FOREIGN = "no known allocation; name one, or a launch script (AReaL, verl, OpenRLHF, TRL, slime, SkyRL, ...)"


@dataclasses.dataclass(frozen=True)
class Plan:
    """One judged allocation. ``where``: the file, empty for a string; ``mode``, ``placed``: None if it does
    not parse; ``devices``: findings about this machine's GPUs, None if they were not asked; ``rules``:
    AReaL's, None for others."""

    where: str
    text: str
    framework: str
    launcher: str
    gpus: int
    finding: Finding
    mode: Mode | None = None
    placed: Placed | None = None
    error: str | None = None
    devices: list[Finding] | None = None
    rules: areal_rules.Rules | None = None

    @property
    def findings(self) -> list[Finding]:
        """About the placement, then about this machine's GPUs."""
        return [self.finding, *(self.devices or [])]

    @property
    def placement(self) -> str | None:
        """Where the ranks would sit (see Placed), None if the plan does not parse."""
        return self.placed.verdict if self.placed else None


def plans_of(target: str, asked: Site, rules: areal_rules.Rules) -> tuple[list[Plan], list[str]]:
    """Every named allocation, judged, and what was left out. ValueError for wrong usage."""
    path = Path(target)
    if not os.path.lexists(target):
        # no allocation
        slip = target.startswith(("/", "~", "./", "../")) or ("/" in target and not set(" :+") & set(target))
        if slip or (
            " " not in target
            and target.endswith(
                (".yaml", ".yml", ".sh", ".sbatch", ".slurm", ".py", ".toml", ".json", ".log", ".txt")
            )
        ):
            raise Unusable(f"there is no file {target}")
        return [of_text(target, "", asked, rules)], []
    plans, left_out = [], []
    files = training_file.files(path)
    for file in files[: training_file.MOST_FILES]:
        name = file.name if file == path else str(file.relative_to(path))
        try:
            plans.append(of_text(configs.whole(training_file.text_of(file), file), name, asked, rules, file))
        except ValueError as error:
            left_out.append(f"{name}: {error}")
    if files[training_file.MOST_FILES :]:
        left_out.append(f"{path.name}: only {training_file.MOST_FILES} of {len(files)} YAML files")
    if not plans:
        raise Unusable(left_out[0] if left_out else f"{target} contains no YAML file")
    return plans, left_out


def of_text(text: str, where: str, asked: Site, rules: areal_rules.Rules, file: Path | None = None) -> Plan:
    """The plan of an allocation string, a launch line, a script or a YAML. ValueError if it is none of
    these."""
    is_yaml = file is not None and file.suffix in (".yaml", ".yml", ".toml")
    if file is None and not (" " in text and any(mark in text for mark in (" --", "="))):
        return _areal(text, where, asked, rules, [])
    script = read_script("" if is_yaml else text)
    overrides = {name: values[-1] for c in script.commands for name, values in c.flags.items() if values}
    training = training_file.read(
        text if is_yaml else _named_config(script.commands, file, "config"), overrides
    )
    if training.mode or {"actor", "rollout"} <= set(training.backends):
        return _of_training(training, where, asked, rules, " ".join(c.text for c in script.commands))
    if (known := frameworks.of(text)) is None:
        raise Unusable(FOREIGN)
    accelerate = training_file.read(_named_config(script.commands, file, "config_file")).flat
    own = {n: (v,) for n, v in {**accelerate, **training.flat}.items() if n not in overrides}
    return _of_framework(
        known,
        (([(" ".join(own), own, {})] if own else []) + [(c.text, c.flags, c.env) for c in script.commands]),
        script,
        where,
        asked,
    )


def _named_config(commands: tuple[Command, ...], file: Path | None, flag: str) -> str:
    """Text of the YAML that a command names with this flag; empty if none can be read here."""
    # prime-rl reads `rl @ FILE`
    names = [
        values[0]
        for c in commands
        for values in [c.flags.get(flag, ()), c.words[(*c.words, "@").index("@") + 1 :]]
        if values
    ]
    folders = [Path.cwd(), *(file.absolute().parents[:4] if file else [])]
    files = [
        f / n
        for n in names[:1]
        for f in folders
        if (f / n).is_file() and n.endswith((".yaml", ".yml", ".toml"))
    ]
    try:
        return configs.whole(training_file.text_of(files[0]), files[0]) if files else ""
    except ValueError as error:
        raise Unusable(f"the file {files[0].name} that --{flag} names: {error}") from error


def _sized(asked: Site, gpus_of_launch: int) -> Site:
    gpus = asked.gpus or gpus_of_launch
    if not 0 < gpus <= MOST_GPUS:
        raise Unusable(
            f"{gpus} GPUs per node are too many: at most {MOST_GPUS} can be planned"
            if gpus
            else "the allocation does not give the number of GPUs per node. Add --gpus 8, or the "
            "number that a node has"
        )
    return dataclasses.replace(asked, gpus=gpus)


def _of_training(
    training: training_file.Training, where: str, asked: Site, rules: areal_rules.Rules, command: str
) -> Plan:
    """AReaL's YAML: one string for all, or from v1.0.3 on a backend for each role."""
    launcher = asked.launcher or ("ray" if "launcher.ray" in command else "")
    by_role = (
        bool({"actor", "rollout"} <= set(training.backends))
        and launcher in ("", "single-controller")
        and rules.era == "C"
    )
    realhf = training.realhf and rules.realhf
    update = asked.update or (
        "disk" if realhf or (training.update == "disk" and rules.switch["honours_option"]) else "xccl"
    )
    nodes = asked.nodes or training.nodes or 1
    controlled = realhf or by_role or training.scheduler == "local"
    site = dataclasses.replace(
        _sized(asked, training.gpus),
        update=update,
        nodes=nodes,
        launcher="single-controller"
        if realhf or (controlled and not launcher)
        else launcher or ("ray" if nodes > 1 else "local"),
        own_gpus=realhf or (controlled and (nodes > 1 or training.scheduler in ("ray", "slurm"))),
    )
    roles = {r: b for r, b in training.backends.items() if r != "ref" or training.has_ref} if by_role else {}
    if not roles and not training.mode:
        raise Unusable(
            "AReaL reads a backend for each role only from v1.0.3 on, with the single-controller launcher"
        )
    text = " ".join(f"{r}.backend={b}" for r, b in roles.items()) or (
        of_realhf(training.mode) if realhf else training.mode
    )
    if "${" in text:
        raise Unusable(
            f"{clipped(text, 200)} is not resolved in this file. Give the allocation string instead of "
            "the file"
        )
    return _areal(text, where, site, rules, _about(training, rules, update), roles, training.shares)


def _about(training: training_file.Training, rules: areal_rules.Rules, update: str) -> list[str]:
    """What this tag makes of the file's other settings."""
    effect = (
        f"but {rules.tag}'s training script never reads it, so NCCL is used"
        if (training.update == "disk" and not rules.switch["honours_option"])
        else f"planned with {update}"
    )
    return that_apply(
        (training.update not in ("", update), f"actor.weight_update_mode is {training.update}, {effect}"),
        (
            rules.era == "C" and not training.backends,
            f"{rules.tag}'s trainer reads actor.backend and rollout.backend, which this file lacks",
        ),
    )


def _areal(
    text: str,
    where: str,
    asked: Site,
    rules: areal_rules.Rules,
    notes: list[str],
    roles: dict[str, str] | None = None,
    shares: dict[str, str] | None = None,
) -> Plan:
    nodes = asked.nodes or 1
    site = dataclasses.replace(
        asked,
        launcher=asked.launcher or ("ray" if nodes > 1 else "local"),
        nodes=nodes,
        update=asked.update or "xccl",
        engines_first=rules.controller == "engine",
    )
    try:
        mode = from_roles(roles, shares or {}, rules) if roles else parse(text, rules)
    except Refused as why:
        return Plan(
            where=where,
            text=text,
            framework="areal",
            launcher=site.launcher,
            gpus=site.gpus,
            finding=judge_plan.refused(text, why, rules),
            error=why.error,
            rules=rules,
        )
    site = _sized(site, site.gpus)  # what cannot be read needs no GPUs
    placed = place(mode, site)
    placed = dataclasses.replace(placed, notes=(*placed.notes, *notes, *judge_plan.about_tag(rules, site)))
    return Plan(
        where=where,
        text=text,
        framework="areal",
        launcher=site.launcher,
        gpus=site.gpus,
        finding=judge_plan.judge(text, mode, placed, rules, site),
        mode=mode,
        placed=placed,
        rules=rules,
    )


def check(text: str, tag: str = "") -> None:
    """ValueError for an allocation that this tag (the newest known if empty) cannot read, and for an invalid
    tag."""
    rules = areal_rules.at(tag) if tag else areal_rules.newest()
    try:
        if text.strip():
            parse(text, rules)
    except Refused as why:
        raise Unusable(f"AReaL {rules.tag} cannot read the allocation {text}: {why.says}") from why


def intend(text: str, measured: Placement | Gap, tag: str = "", named: int = 0) -> Plan | Gap | None:
    """The plan of an allocation by AReaL's local launcher on the GPUs of ``measured``, else on ``named``
    GPUs. None without text, a Gap without GPUs. ValueError as in ``check``, which also explains ``tag``."""
    gpus = (
        named if isinstance(measured, Gap) else len({d for d in measured.devices if d is not None}) or named
    )
    rules = areal_rules.at(tag) if tag else areal_rules.newest()
    if not text.strip():
        return None
    if not gpus:
        return Gap(
            "not-run",
            "no GPU is visible, or none was checked. Name the GPUs of the job, such as --gpus 0 or 0-7",
        )
    return _areal(text, "", Site(gpus), rules, [])


def intention(intended: Plan | Gap | None, measured: Sequence[Finding] = ()) -> list[Finding]:
    """Findings about the allocation that the reader named, before those that were measured. Without an
    allocation only the measured ones, of which sharing a GPU is no cause. If NCCL refused the same seats,
    that establishes the planned refusal, which replaces it."""
    if not isinstance(intended, Plan):
        return judge_plan.unplanned(measured)
    planned = intended.finding
    fault = next((f for f in measured if f.cause == judge_plan.CAUSE == planned.cause), None)
    if fault:
        planned = dataclasses.replace(
            planned, status=fault.status, evidence=(*planned.evidence, *fault.evidence[:1])
        )
    return [planned, *(dataclasses.replace(f, remedy=()) if f is fault else f for f in measured)]


def _of_framework(known: str, commands: list[Any], script: Script, where: str, asked: Site) -> Plan:
    row = table("plan/flags")[known]
    pools = {" ".join(v) for _, flags, _ in commands for n, v in flags.items() if n in row.get("node", ())}
    per_node = sum(int(n) for n in pools if n.isdecimal() and len(pools) == 1) or row.get("node_default", 0)
    lists = ",".join(env.get("CUDA_VISIBLE_DEVICES", "") for _, _, env in commands if "by_list" in row)
    shown = [int(n) + 1 for n in lists.split(",") if n.isdecimal()]
    gpus = _sized(asked, script.gpus or max(per_node, *shown, 0)).gpus
    launch = launch_flags.merged(known, commands, gpus)
    mode, placed, nodes = frameworks.place(launch, gpus, asked.nodes or script.nodes, script.spread)
    finding = judge_plan.judge_launch(launch, mode, placed, gpus * nodes, gpus)
    return Plan(where, "", known, "", gpus, finding, mode=mode, placed=placed)
