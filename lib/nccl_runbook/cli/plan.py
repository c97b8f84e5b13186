"""`nccl-runbook plan`: from an allocation to who sits on which GPU, before anything starts. Reads only."""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from nccl_runbook.findings import Finding
    from nccl_runbook.knowledge.allocation import Rules
    from nccl_runbook.planning.allocation import Mode, Refused
    from nccl_runbook.planning.groups import Placed, Site

EPILOG = 'Example: nccl-runbook plan "sglang:d1+fsdp:d1" --gpus 1 --areal v0.4.0   or   nccl-runbook plan examples/math --gpus 8'
SCHEMA = "nccl-runbook/plan/1"


def plan(
    target: Annotated[str, typer.Argument(metavar="ALLOCATION|FILE|FOLDER", help="An allocation string, a training YAML, or a folder.")],
    gpus: Annotated[int, typer.Option(metavar="N", help="GPUs of a node; a YAML may say it.", min=0)] = 0,
    areal: Annotated[str, typer.Option(metavar="TAG", help="AReaL's tag, such as v0.4.0; the newest known if empty.")] = "",
    launcher: Annotated[str, typer.Option(help="local, single-controller or ray.")] = "",
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes, for ray.", min=1)] = 1,
    update: Annotated[str, typer.Option(help="How weights are updated: xccl (NCCL) or disk.")] = "",
    json: Annotated[bool, typer.Option("--json", help="The plan alone, as JSON, on standard output.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page, too.")] = None,
) -> None:
    """Who will sit on which GPU, whether NCCL will refuse it, and what to change. Starts nothing; exit code 0 clean, 3 otherwise."""
    from nccl_runbook.knowledge import allocation as knowledge
    from nccl_runbook.planning.groups import LAUNCHERS, Site

    if launcher not in ("", *LAUNCHERS) or update not in ("", "xccl", "disk"):
        _leave(f"--launcher is one of {', '.join(LAUNCHERS)}, --update one of xccl, disk", 2)
    try:
        rules = knowledge.at(areal) if areal else knowledge.newest()
    except ValueError as error:
        _leave(str(error), 2)
    if not gpus:
        _leave("say how many GPUs a node has: --gpus N", 2)
    site = Site(gpus, launcher or "local", nodes, update or "xccl", rules.controller == "engine")
    document = one(target, rules, site)
    if json:
        import json as json_format

        print(json_format.dumps(document, indent=1))
    sys.exit(document["exit_code"])


def one(text: str, rules: Rules, site: Site) -> dict[str, Any]:
    """What --json prints about one allocation; its schema is schemas/plan.json."""
    from nccl_runbook.planning.allocation import Refused, parse
    from nccl_runbook.planning.groups import place
    from nccl_runbook.rules import allocation as judge

    try:
        mode = parse(text, rules)
    except Refused as why:
        return _document(text, rules, site, judge.refused(text, why, rules), None, None, why)
    placed = place(mode, site)
    return _document(text, rules, site, judge.judge(text, mode, placed, rules, site), mode, placed, None)


def _document(text: str, rules: Rules, site: Site, finding: Finding, mode: Mode | None, placed: Placed | None, why: Refused | None) -> dict[str, Any]:
    groups = [] if placed is None else [
        {"name": g.name, "ranks": [{"rank": r.rank, "role": r.role, "gpu": r.gpu} for r in g.ranks]} for g in placed.groups]
    return {
        "schema": SCHEMA, "allocation": text, "areal": rules.tag, "era": rules.era, "launcher": site.launcher, "gpus": site.gpus,
        "ok": mode is not None, "error": why and why.error, "type": mode and mode.type,
        "components": [{"name": p.name, "backend": p.backend, "world_size": p.world_size, "alloc_size": p.alloc_size}
                       for p in (mode.parts if mode else ())],
        "dims": [dict(p.dims) for p in (mode.parts if mode else ())],
        "total_gpus": mode.total_gpus if mode else None,
        "groups": groups, "verdict": placed and placed.verdict, "sentence": finding.title,
        "evidence": [e.text for e in finding.evidence],
        "remedies": [{"who": r.who, "text": r.text, "lines": list(r.lines)} for r in finding.remedy],
        "exit_code": 0 if placed and placed.verdict == "clean" else 3,
    }


def _leave(sentence: str, code: int) -> NoReturn:
    print(f"nccl-runbook: {sentence}", file=sys.stderr)
    sys.exit(code)
