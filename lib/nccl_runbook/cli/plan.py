"""`nccl-runbook plan`: from an allocation to who sits on which GPU, before anything starts. Reads only.

Example: nccl-runbook plan "sglang:d1+fsdp:d1" --gpus 1 --areal v0.4.0
or nccl-runbook plan examples/math --gpus 8
"""

import dataclasses
import os
import re
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer
from nccl_runbook.core.facts import Gap, Identity
from nccl_runbook.core.findings import verdict_of
from nccl_runbook.machine import ask_nvml as nvml
from nccl_runbook.plan import judge as judge_plan
from nccl_runbook.plan.allocation import areal_rules
from nccl_runbook.plan.answer import FOREIGN, Plan, plans_of
from nccl_runbook.plan.groups import LAUNCHERS, Site
from nccl_runbook.plan.table import groups_table, groups_tables, plans_table
from nccl_runbook.report.tables import finding_text

SCHEMA = "nccl-runbook/plan/1"


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="ALLOCATION|FILE|FOLDER",
            help="An allocation string, a launch line, a training YAML, an rl.toml, "
            "a launch script, or a folder of YAML files.",
        ),
    ],
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", help="GPUs per node. The YAML may already contain this number.", min=1),
    ] = None,
    areal: Annotated[
        str, typer.Option(metavar="TAG", help="AReaL's tag, such as v0.4.0. Default: the newest known.")
    ] = "",
    launcher: Annotated[str, typer.Option(help="AReaL's launcher: local, single-controller or ray.")] = "",
    nodes: Annotated[
        int, typer.Option(metavar="N", help="Number of nodes, if Ray places the ranks.", min=0)
    ] = 0,
    update: Annotated[str, typer.Option(help="How AReaL updates weights: xccl (NCCL) or disk.")] = "",
    check_devices: Annotated[
        bool,
        typer.Option(
            "--check-devices",
            help="Also check with NVML that the planned GPUs of this machine are different GPUs. "
            "Without --gpus: all visible ones.",
        ),
    ] = False,
    json: answer.JsonOption = False,
    redact: answer.RedactOption = "",
    share: answer.ShareOption = False,
    html: answer.HtmlOption = None,
) -> None:
    """Show which rank gets which GPU, whether NCCL will refuse that, and what to change. Exit code:
    0 clean, 3 otherwise. Reads only."""
    if (no_option := launcher not in ("", *LAUNCHERS) or update not in ("", "xccl", "disk")) or (
        re.fullmatch("[A-Za-z_]+", target) and not os.path.exists(target)
    ):
        answer.leave(
            f"--launcher must be one of {', '.join(LAUNCHERS)}, and --update one of xccl, disk"
            if no_option
            else f"{target} is neither a file nor an allocation such as sglang:d4+fsdp:d4"
        )
    try:
        rules = areal_rules.at(areal) if areal else areal_rules.newest()
        devices = _devices() if check_devices else None
        # 0 and "" if not given on the command line
        plans, left_out = plans_of(target, Site(gpus or len(devices or ()), launcher, nodes, update), rules)
        if devices is not None:
            plans = [
                dataclasses.replace(
                    p, devices=judge_plan.judge_devices(p.placed.groups if p.placed else (), devices)
                )
                for p in plans
            ]
    except ValueError as error:
        answer.leave(error)
    code = 0 if all(p.clean for p in plans) and not _not_read(left_out) else 3
    folder = {
        "schema": SCHEMA,
        "plans": [document(p) for p in plans],
        "left_out": left_out,
        "exit_code": code,
    }
    answer.end(
        _as_text(plans, left_out, code)
        if not json
        else folder
        if os.path.isdir(target)
        else document(plans[0]),
        code,
        html,
        lambda: _page(plans, left_out, code),
    )


def _devices() -> list[Identity]:
    """The GPUs that a process here numbers from 0. ValueError if NVML does not answer."""
    view = nvml.view()
    if isinstance(view, Gap):
        raise ValueError(f"--check-devices: NVML reports no GPU here ({view})")
    return judge_plan.visible(view.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _not_read(left_out: list[str]) -> str:
    return f", {unread} not read" if (unread := sum(not line.endswith(FOREIGN) for line in left_out)) else ""


def _clean(plans: list[Plan]) -> str:
    return f"{sum(p.clean for p in plans)} of {len(plans)} clean"


def document(one: Plan) -> dict[str, Any]:
    """What --json prints about one allocation; its schema is schemas/plan.json."""
    mode, placed = one.mode, one.placed
    return {
        "schema": SCHEMA,
        "file": one.where,
        "framework": one.framework,
        "allocation": one.text,
        "launcher": one.launcher,
        "gpus": one.gpus,
        "areal": one.rules.tag if one.rules else "",
        "era": one.rules.era if one.rules else "",
        "ok": mode is not None,
        "error": one.error,
        "type": mode and mode.type,
        "dims": [dict(p.dims) for p in (mode.parts if mode else ())],
        "components": [
            {"name": p.name, "backend": p.backend, "world_size": p.world_size, "alloc_size": p.alloc_size}
            for p in (mode.parts if mode else ())
        ],
        "total_gpus": mode and mode.total_gpus,
        "groups": [{"name": g.name, "ranks": g.ranks} for g in (placed.groups if placed else ())],
        "verdict": one.verdict,
        "sentence": one.finding.title,
        "evidence": [e.text for e in one.finding.evidence],
        "remedies": one.finding.remedy,
        "devices": None if one.devices is None else [f.title for f in one.devices],
        "exit_code": 0 if one.clean else 3,
    }


def _as_text(plans: list[Plan], left_out: list[str], code: int) -> str:
    first = plans[0]
    if len(plans) == 1:
        lines = [*map(finding_text, [first.finding, *(first.devices or [])]), ""]
        lines += [repr(groups_table(first.placed.groups, first.gpus))] if first.placed else []
        word = "clean" if first.clean else "broken"
    else:
        lines = [repr(plans_table(plans)), "", "For the fix of each plan: use --html FILE, or name one file."]
        word = _clean(plans)
    lines += [f"{'passed over' if line.endswith(FOREIGN) else 'not read'}: {line}" for line in left_out]
    return "\n".join([*lines, f"verdict: {word}{_not_read(left_out)} (exit code {code})"])


def _page(plans: list[Plan], left_out: list[str], code: int) -> str:
    several = len(plans) + len(left_out) > 1
    # plans of a page in full; a table names all
    worst = sorted(plans, key=lambda p: p.clean)[:40]
    # of several plans each keeps its own remedies: a cause would join those of all files
    findings = [
        dataclasses.replace(f, title=f"{p.where}: {f.title}", cause=None, status=None) if several else f
        for p in worst
        for f in [p.finding, *(p.devices or [])]
    ]
    sentence = (
        f"Allocations: {_clean(plans)}{_not_read(left_out)}"
        if several
        else f"{verdict_of(findings).capitalize()}: {findings[0].title}"
    )
    return answer.page_of(
        "plan", sentence, findings, [*[plans_table(plans, left_out)] * several, *groups_tables(worst)], code
    )
