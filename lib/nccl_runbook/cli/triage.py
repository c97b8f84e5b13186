"""`nccl-runbook triage`: from what the job printed to what broke first. Reads only; no torch, no Jupyter."""

from __future__ import annotations

import gc
import sys
from typing import Annotated, Any

from nccl_runbook.case.dumps import dumps_of
from nccl_runbook.cli import answer
from nccl_runbook.core.findings import exit_code
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import piped
from nccl_runbook.messages.read import collect
from nccl_runbook.report.tables import Table
from nccl_runbook.triage.judge import READ_BY_HANG, Answer, answer as judged, platform, where
from nccl_runbook.triage.judge_against import Comparison, compare
from nccl_runbook.triage.table import against_table, fits_tables, ranks_table, tables, there_tables

EPILOG = "Example: nccl-runbook triage slurm-4711.out --context 'hangs at the first all_reduce'; kubectl logs job | nccl-runbook triage -"
LINE_CHARACTERS, EVIDENCE = 240, ("file", "line", "text", "rank")
DUMPS = "Dumps and stacks among these files"


def triage(
    paths: Annotated[list[str], answer.typer.Argument(metavar="PATH...", help="Logs, folders, archives, gzip, or - for standard input.")],
    against: Annotated[list[str], answer.typer.Option(
        metavar="GOOD", help="The log of a good run, to compare. Repeatable.")] = [],  # noqa: B006
    context: Annotated[str, answer.typer.Option(metavar="TEXT", help="What you ran and what happened, in your words.")] = "",
    json: answer.JsonOption = False,
    redact: answer.RedactOption = "",
    share: answer.ShareOption = False,
    html: answer.HtmlOption = None,
    fail_on: answer.FailOnOption = "unknown",
) -> None:
    """Read what the job printed: what broke first, what only followed, and which test decides."""
    answer.named(against)
    if not context or against:
        answer.named(paths, one=not against)
    gc.disable()  # what a log gives lives until the end of this short process
    limit = Limit()
    logs = collect(paths, context, piped(sys.stdin.fileno()) if "-" in paths else None, limit)
    compared = _compared(against, paths, limit) if against else None
    given = judged(logs, compared, "".join(against[:1]), "".join(paths[:1]), dumps_of(logs, paths, limit)[0])
    code = exit_code(given.verdict, fail_on)
    answer.end(document(given, code) if json else text(given), code, html, lambda: answer.page_of(
        "07-logs", given.sentence, given.findings, _tables(given), code))


def _compared(against: list[str], paths: list[str], limit: Limit) -> Comparison:
    """The good run beside the bad one."""
    from nccl_runbook.triage import read_profile

    return compare(*(read_profile.collect(those, limit=limit) for those in (against, [p for p in paths if p != "-"])))


def document(given: Answer, code: int) -> dict[str, Any]:
    """What --json prints; its schema is schemas/triage.json."""
    logs = given.logs
    return {"schema": "nccl-runbook/triage/1", "verdict": given.verdict, "exit_code": code, "sentence": given.sentence,
            "undecided": given.verdict == "unknown",
            "hypotheses": [{**vars(h), "evidence": [{name: vars(e)[name] for name in EVIDENCE} for e in h.evidence]}
                           for h in given.hypotheses],
            "fits": [{"cause": c.id, "title": c.title, "decides": dict(zip(("probe", "why", "line"), c.decides))} for c in given.fits],
            "ranks": logs.ranks, "files": logs.files, "launcher": logs.launcher, "platform": platform(logs), "against": given.compared,
            "unknown_lines": [{"file": t.first.file, "line": t.first.line, "text": t.first.text, "times": t.times} for t in logs.unknown],
            "dumps": given.dumps.sentence if given.dumps else ""}


def text(given: Answer) -> str:
    """The answer for a terminal: the first sentence first."""
    logs, dumps = given.logs, given.dumps
    lines = [given.sentence, ""]
    if dumps and given.led and not dumps.finding.cause:
        lines += [f"   seen: {_cut(e.text)}  ({e.source})" for e in dumps.finding.evidence if e.source != "next"]
        lines += [*_remedies(dumps.finding.remedy), ""]
    for number, one in enumerate(given.hypotheses, 1):
        if_so = "If so: " * (one.status == "possible" and one.cause != "benign")  # what it means is not seen there
        lines += [f"{number}. {one.title} [{one.cause}, {one.status}]", f"   {if_so}{one.says}" if one.says else ""]
        lines += [f"   seen: {_cut(e.text)}  ({where(e)})" for e in one.evidence[:4]]
        lines += [f"   against: {a}" for a in one.against]
        lines += _remedies(one.remedy)
        lines += [f"   decides: {one.decides.why}: {one.decides.line}"] * bool(one.decides.line) + [""]
    lines += [f"{table!r}\n" for table in fits_tables(given.fits)]
    lines += [f"{table!r}\n" for table in there_tables(logs.here, given.hosts, given.there)]
    if given.compared:
        lines += [repr(against_table(given.compared)), ""]
    if logs.ranks:
        lines += [repr(ranks_table(logs)), ""]
    if logs.unknown and all(one.status == "possible" for one in given.hypotheses):
        quoted = {(e.file, e.line) for one in given.hypotheses for e in one.evidence[:4]}
        rows = [f"   {t.times} x {_cut(t.first.text)}" for t in logs.unknown[:8] if (t.first.file, t.first.line) not in quoted]
        lines += ["Lines that look like errors, but match no known message:"] * bool(rows) + rows
    files = [f for f in logs.files if not (dumps and f.kind.startswith(READ_BY_HANG))]
    lines += [f"{f.name} is {f.kind}" for f in files if f.kind and not f.problem]
    lines += [f"not read: {f.name}: {f.problem or f.left_out}" for f in files if f.problem or f.left_out]
    lines += [f"\n{DUMPS}: {dumps.sentence}"] if dumps and not given.led else []
    return "\n".join(lines).rstrip()


def _remedies(remedies: Any) -> list[str]:
    return [f"   {r.who}: {r.text}" + "".join(f"\n       {x}" for x in r.lines) for r in remedies]


def _cut(text: str) -> str:
    return text if len(text) <= LINE_CHARACTERS else text[:LINE_CHARACTERS] + " ..."


def _tables(given: Answer) -> list[Any]:
    """Every table of the page."""
    beside = [against_table(given.compared)] if given.compared else []
    dumps = [Table(DUMPS, ["`nccl-runbook hang` says"], [[given.dumps.sentence]])] if given.dumps else []
    return [*dumps, *beside, *fits_tables(given.fits), *there_tables(given.logs.here, given.hosts, given.there), *tables(given.logs)]
