"""`nccl-runbook hang`: from what a hung job left to the rank that did not come. Reads only; no torch, no Jupyter."""

from __future__ import annotations

import json as json_format
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nccl_runbook.cli.ending import FailsOn, leave
from nccl_runbook.findings import FailOn, exit_code

if TYPE_CHECKING:
    from nccl_runbook.facts.recorder import Hang
    from nccl_runbook.rules.hang import Told

EPILOG = "Example: nccl-runbook hang dumps/ slurm-4711.out --html hang.html   (dumps: /tmp/nccl_trace_rank_* of every node)"
SCHEMA = "nccl-runbook/hang/1"
STEP = "06-timeouts"


def hang(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Recorder dumps, logs, stacks, live looks; folders, archives.")],
    json: Annotated[bool, typer.Option("--json", help="The answer alone on standard output.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one page to pass on.")] = None,
    fail_on: FailsOn = FailOn.UNKNOWN,
) -> None:
    """Read what a hung job left, and say which rank did not come, who only waited, and what to collect next."""
    from nccl_runbook.evidence.hang import collect
    from nccl_runbook.redact import Redactor, plain
    from nccl_runbook.rules import hang as rules

    absent = [p for p in paths if not os.path.lexists(os.path.expanduser(p))]
    if absent:
        leave(f"there is no file {absent[0]}", 2)
    seen = collect(paths)
    told = rules.judge(seen)
    code = exit_code(verdict(told), fail_on)
    redactor = Redactor(os.environ)
    if html is not None:
        try:
            _write_page(html, seen, paths, code)
        except OSError as error:
            leave(f"cannot write {html}: {error.strerror or error}", 1)
    if json:
        print(plain(json_format.dumps(redactor.json(document(seen, told, code)), indent=1, ensure_ascii=False)))
    else:
        print(plain(redactor.text(text(seen, told))))
    sys.exit(code)


def verdict(told: Told) -> str:
    """ "broken" for a hang, "degraded" for a slow rank or what is only possible, else the kind."""
    if told.kind in ("healthy", "unknown"):
        return told.kind
    return "degraded" if told.kind == "slow" or told.status == "possible" else "broken"


def document(seen: Hang, told: Told, code: int) -> dict[str, Any]:
    """What --json prints; its schema is schemas/hang.json."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(told),
        "exit_code": code,
        "sentence": told.sentence,
        "culprits": list(told.culprits),
        "victims": list(told.victims),
        "kind": told.kind,
        "collective": told.collective or None,
        "frame": told.frame or None,
        "cause": told.cause,
        "status": told.status,
        "evidence": [{"text": e.text, "source": e.source} for e in told.evidence],
        "files": [{"name": f.name, "what": f.what, "rank": f.rank, "problem": f.problem} for f in seen.files],
        "decides": told.decides,
    }


def text(seen: Hang, told: Told) -> str:
    """The answer for a terminal: the first sentence first."""
    from nccl_runbook.report.tables_hang import tables
    from nccl_runbook.rules.hang import findings

    lines = [f"{told.kind}: {told.sentence}", ""]
    lines += [f"   seen: {e.text[:240]}" + (f"  ({e.source})" if e.source else "") for e in told.evidence[:8]]
    lines += [f"   {r.who}: {r.text}" + "".join(f"\n       {x}" for x in r.lines) for r in findings(seen)[0].remedy]
    lines += [f"   decides: {told.decides}"] if told.decides else []
    lines += [f"\n{table!r}" for table in tables(seen, told.culprits) if len(table.rows) <= 80]
    return "\n".join([*lines, *(f"not used: {f.name}: {f.problem}" for f in seen.files if f.problem)])


def _write_page(path: Path, seen: Hang, paths: list[str], code: int) -> None:
    import shlex

    from nccl_runbook.findings import step_status, worst_first
    from nccl_runbook.records import Record, utc_now, write_text
    from nccl_runbook.redact import Redactor, plain
    from nccl_runbook.report.page import render_index
    from nccl_runbook.report.tables_hang import tables
    from nccl_runbook.report.verdict import RunInfo, verdict_document
    from nccl_runbook.rules import hang as rules

    redactor = Redactor(os.environ)
    found, told = worst_first(rules.findings(seen)), rules.judge(seen)
    status, reason = step_status(found)
    record = Record(step=STEP, status=status.value, reason=reason, started=utc_now(), findings=found,
                    tables=[t.to_json() for t in tables(seen, told.culprits)])
    clean = Record.model_validate(redactor.json(record.model_dump(mode="json", by_alias=True)))
    command = redactor.text(shlex.join(["nccl-runbook", "hang", *paths]))
    info = RunInfo(id="hang", started=utc_now(), command=command, planned=[STEP], asked=[STEP])
    sentence = f"{verdict(told).capitalize()}: {redactor.text(told.sentence)}"
    page = verdict_document(info, [clean]).model_copy(update={"sentence": sentence, "exit_code": code})
    write_text(path, plain(redactor.text(render_index(page, [clean]))))
