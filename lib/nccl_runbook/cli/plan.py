"""`nccl-runbook plan`: from an allocation to who sits on which GPU, before anything starts. Reads only.

Example: nccl-runbook plan "sglang:d1+fsdp:d1" --gpus 1 --areal v0.4.0
or nccl-runbook plan examples/math --gpus 8
"""

import dataclasses
import os
import re
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import Gap, Identity, counted
from nccl_runbook.core.findings import exit_code, verdict, verdict_of
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
        typer.Option(
            metavar="N", help="GPUs per node. Needed only if the input does not contain this number.", min=1
        ),
    ] = None,
    areal: Annotated[
        str, typer.Option(metavar="TAG", help="AReaL tag, such as v0.4.0. Default: the newest known tag.")
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
            help="Also check, with NVML, that the planned indices mean different GPUs on this "
            "machine. Without --gpus, check all visible GPUs.",
        ),
    ] = False,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
) -> None:
    """Show which rank gets which GPU, whether NCCL will refuse this placement, and what to change. The
    command starts no process."""
    if not target.strip():
        answer.leave(
            "the allocation is empty (an unset shell variable?); write for example sglang:d4+fsdp:d4"
        )
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
    # a file that could not be read leaves an otherwise healthy folder unknown
    word = verdict(
        [
            *((f.severity.value, True) for p in plans for f in p.findings),
            *[("unknown", True) for _ in _unread(left_out)],
        ]
    )
    code = exit_code(word)
    folder = {
        "schema": SCHEMA,
        "plans": [document(p) for p in plans],
        "left_out": left_out,
        "exit_code": code,
    }
    answer.end(
        _as_text(plans, left_out, word, code)
        if not json
        else folder
        if os.path.isdir(target)
        else document(plans[0]),
        code,
        html,
        lambda: _page(plans, left_out, word, code),
    )


def _devices() -> list[Identity]:
    """The GPUs that a process here numbers from 0. ValueError if NVML does not answer."""
    view = nvml.view()
    if isinstance(view, Gap):
        raise ValueError(f"--check-devices: NVML reports no GPU here ({view})")
    return judge_plan.visible(view.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _unread(left_out: list[str]) -> list[str]:
    return [line for line in left_out if not line.endswith(FOREIGN)]


def _is_healthy(plan: Plan) -> bool:
    return verdict_of(plan.findings) == "healthy"


def _counted(plans: list[Plan], left_out: list[str]) -> str:
    """ "2 of 3 allocations healthy, 1 file not read"."""
    unread = len(_unread(left_out))
    words = f"{sum(_is_healthy(p) for p in plans)} of {counted(len(plans), 'allocation')} healthy"
    return words + (f", {counted(unread, 'file')} not read" if unread else "")


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
        "verdict": one.placement,
        "sentence": one.finding.title,
        "evidence": [e.text for e in one.finding.evidence],
        "remedies": one.finding.remedy,
        "devices": None if one.devices is None else [f.title for f in one.devices],
        "exit_code": exit_code(verdict_of(one.findings)),
    }


def _as_text(plans: list[Plan], left_out: list[str], word: str, code: int) -> str:
    first = plans[0]
    if len(plans) == 1:
        lines = [*map(finding_text, first.findings), ""]
        lines += [repr(groups_table(first.placed.groups, first.gpus))] if first.placed else []
    else:
        lines = [
            repr(plans_table(plans)),
            "",
            "To see the fix of each plan, use --html FILE, or name one file.",
        ]
    lines += [f"{'passed over' if line.endswith(FOREIGN) else 'not read'}: {line}" for line in left_out]
    summary = f": {_counted(plans, left_out)}" if len(plans) + len(left_out) > 1 else ""
    return "\n".join([*lines, f"verdict: {word} (exit code {code}){summary}"])


def _page(plans: list[Plan], left_out: list[str], word: str, code: int) -> str:
    several = len(plans) + len(left_out) > 1
    # plans of a page in full; a table names all
    worst = sorted(plans, key=_is_healthy)[:40]
    # of several plans each keeps its own remedies: a cause would join those of all files
    findings = [
        dataclasses.replace(f, title=f"{p.where}: {f.title}", cause=None, status=None) if several else f
        for p in worst
        for f in p.findings
    ]
    lead = [findings[0].title] if not several or not _is_healthy(worst[0]) else []
    how_many = [_counted(plans, left_out)] if several else []
    sentence = f"{word.capitalize()}: {'; '.join([*lead, *how_many])}"
    return answer.page_of(
        "plan",
        sentence,
        findings,
        [*([plans_table(plans, left_out)] if several else []), *groups_tables(worst)],
        code,
    )
