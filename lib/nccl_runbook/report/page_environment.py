"""One page of findings and tables, for `env --html` and `ab --html`: no script, no request, everything escaped."""
from __future__ import annotations

import html
from collections.abc import Sequence

from nccl_runbook.facts.environment import Environment
from nccl_runbook.findings import Finding
from nccl_runbook.report.cells import banner, finding_html
from nccl_runbook.report.tables import Table
from nccl_runbook.report.tables_environment import host_table, libraries_table, variables_table

_TONE = {"healthy": "ok", "degraded": "warn", "broken": "broken", "unknown": "unknown"}


def page(env: Environment, findings: Sequence[Finding], verdict: str) -> str:
    """The whole document."""
    names = ", ".join(r.name for r in env.roles)
    return document(f"Environment of {names}", verdict, findings, (variables_table(env), libraries_table(env), host_table(env)))


def document(title: str, verdict: str, findings: Sequence[Finding], tables: Sequence[Table]) -> str:
    """A page of findings, worst first by the caller, and tables."""
    line = f"{verdict}: {findings[0].title}" if findings else verdict
    shown = "".join(finding_html(f) for f in findings) + "".join(t._repr_html_() for t in tables)
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(title)}: {verdict}</title>"
            "<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
            "table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}td,th{padding:.2rem .6rem;border:1px solid #8884}"
            f"</style></head><body><h1>{html.escape(title)}</h1>{banner(_TONE[verdict], line)}{shown}</body></html>\n")
