"""One page about planned allocations, for `plan --html`: no script, no request, everything escaped."""
from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from nccl_runbook.report.cells import banner, finding_html
from nccl_runbook.report.tables_plan import TONE, groups_table, plans_table

MOST_SHOWN = 40  # plans that are not clean in full; the table above names all


def page(plans: Sequence[Any], left_out: Sequence[str]) -> str:
    """The whole document, of plans as cli/plan.py makes them."""
    parts = [plans_table(plans)._repr_html_()] if len(plans) > 1 else []
    parts += [_one(p, len(plans) > 1) for p in [p for p in plans if len(plans) == 1 or not p.clean][:MOST_SHOWN]]
    parts += [f"<p>not read: {html.escape(line)}</p>" for line in left_out]
    name = html.escape(plans[0].text or plans[0].where) if len(plans) == 1 else f"{len(plans)} allocations"
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>Plan of {name}</title>"
            "<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
            "h1,h2{overflow-wrap:anywhere}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
            "td,th{padding:.2rem .6rem;border:1px solid #8884;overflow-wrap:anywhere}</style></head>"
            f"<body><h1>Plan of {name}</h1>{''.join(parts)}</body></html>\n")


def _one(plan: Any, titled: bool) -> str:
    head = f"<h2>{html.escape(plan.where or plan.text)}</h2>" if titled else ""
    told = [f"AReaL {plan.rules.tag}, era {plan.rules.era}" if plan.rules else plan.framework,
            plan.launcher and f"launcher {plan.launcher}", f"{plan.gpus} GPU{'' if plan.gpus == 1 else 's'} a node"]
    line = banner(TONE.get(plan.verdict or "", "broken"), f"{plan.verdict or 'does not parse'} ({', '.join(filter(None, told))})")
    table = groups_table(plan.placed.groups)._repr_html_() if plan.placed else ""
    return head + line + "".join(map(finding_html, [plan.finding, *(plan.devices or [])])) + table
