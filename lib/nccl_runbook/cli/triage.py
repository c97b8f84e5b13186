"""`nccl-runbook triage`: from what the job printed to what broke first. Reads only; no torch, no Jupyter."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nccl_runbook.cli import answer

if TYPE_CHECKING:
    from nccl_runbook.messages.facts import Logs
    from nccl_runbook.triage.judge_against import Comparison
    from nccl_runbook.triage.judge import Hypothesis

EPILOG = "Example: nccl-runbook triage slurm-4711.out --context 'hangs at the first all_reduce'; kubectl logs job | nccl-runbook triage -"
SCHEMA, STEP = "nccl-runbook/triage/1", "07-logs"
LINE_CHARACTERS, EVIDENCE = 240, ("file", "line", "text", "rank")
DUMPS = "The dumps and stacks among these files, side by side"


def triage(
    paths: Annotated[list[str], answer.typer.Argument(metavar="PATH...", help="Logs, folders, archives, gzip; - for standard input.")],
    against: Annotated[list[str], answer.typer.Option(
        metavar="GOOD", help="The log of a run that went well: the two side by side; may be repeated.")] = [],  # noqa: B006
    context: Annotated[str, answer.typer.Option(metavar="TEXT", help="What was run and what happened, in your words.")] = "",
    json: answer.JsonOption = False,
    html: answer.HtmlOption = None,
    fail_on: answer.FailOnOption = "unknown",
) -> None:
    """Read what the job printed, and say what broke first, what only followed, and which test decides."""
    from nccl_runbook.core.findings import exit_code
    from nccl_runbook.logs.sources import piped
    from nccl_runbook.messages.read import collect
    from nccl_runbook.triage import judge as rules

    answer.named(against)
    if not context or against:
        answer.named(paths, one=not against)
    gc.disable()  # what a log gives lives until the end of this short process
    logs = collect(paths, context, piped(sys.stdin.fileno()) if "-" in paths else None)
    told = rules.judge(logs)
    compared = _compared(against, paths) if against else None
    told = [h for h in told if h.cause != "benign" or not (compared and compared.slower)]
    code = exit_code(_verdict(logs, told, compared), fail_on)
    dumps = _of_dumps(logs, paths)
    said = text(logs, told, compared) + f"\n\n{DUMPS} (`nccl-runbook hang` shows more): {dumps}" * bool(dumps)
    answer.tell({**document(logs, told, code, compared), "dumps": dumps} if json else said)
    if html is not None:
        _write_page(html, logs, told, paths, code, compared, against, dumps)
    sys.exit(code)


def _of_dumps(logs: Logs, paths: list[str]) -> str:
    """What the recorder dumps among the files say together, "" without any."""
    if not any("`nccl-runbook hang`" in f.kind + f.problem for f in logs.files):
        return ""
    from nccl_runbook.hang.judge import judge
    from nccl_runbook.hang.read import collect

    return "{0.kind}: {0.sentence}".format(judge(collect([p for p in paths if p != "-"])))


def _compared(against: list[str], paths: list[str]) -> Comparison:
    """The good run beside the bad one."""
    from nccl_runbook.triage import read_profile as log_profile
    from nccl_runbook.triage.judge_against import compare

    return compare(log_profile.collect(against), log_profile.collect([p for p in paths if p != "-"]))


def _verdict(logs: Logs, told: list[Hypothesis], compared: Comparison | None) -> str:
    """What the log alone says; a run that became slower is degraded, at least."""
    from nccl_runbook.triage import judge as rules

    verdict = rules.verdict(logs, told)
    return "degraded" if verdict == "unknown" and compared and compared.slower else verdict


def _sentence(logs: Logs, told: list[Hypothesis], compared: Comparison | None) -> str:
    """One true line at the top: the cause, else what became slower."""
    from nccl_runbook.triage import judge as rules

    sure = any(h.status != "possible" for h in told)
    return compared.sentence if compared and (not told or compared.slower and not sure) else rules.sentence(logs, told)


def document(logs: Logs, told: list[Hypothesis], code: int, compared: Comparison | None = None) -> dict[str, Any]:
    """What --json prints; its schema is schemas/triage.json."""
    verdict = _verdict(logs, told, compared)
    return {"schema": SCHEMA, "verdict": verdict, "exit_code": code, "sentence": _sentence(logs, told, compared),
            "undecided": verdict == "unknown",
            "hypotheses": [{**vars(h), "evidence": [{name: vars(e)[name] for name in EVIDENCE} for e in h.evidence]} for h in told],
            "ranks": logs.ranks, "files": logs.files, "launcher": logs.launcher, "against": compared,
            "unknown_lines": [{"file": t.first.file, "line": t.first.line, "text": t.first.text, "times": t.times} for t in logs.unknown]}


def text(logs: Logs, told: list[Hypothesis], compared: Comparison | None = None) -> str:
    """The answer for a terminal: the first sentence first."""
    from nccl_runbook.triage.table import against_table, ranks_table, there_tables
    from nccl_runbook.triage import judge as rules

    lines = [_sentence(logs, told, compared), ""]
    for number, one in enumerate(told, 1):
        if_so = "If so: " * (one.status == "possible" and one.cause != "benign")  # what it means is not seen there
        lines += [f"{number}. {one.title} [{one.cause}, {one.status}]", f"   {if_so}{one.says}" if one.says else ""]
        lines += [f"   seen: {_cut(e.text)}  ({rules.where(e)})" for e in one.evidence[:4]]
        lines += [f"   against: {a}" for a in one.against]
        lines += [f"   {r.who}: {r.text}" + "".join(f"\n       {x}" for x in r.lines) for r in one.remedy]
        lines += [f"   decides: {one.decides.why}: {one.decides.line}", ""]
    lines += [f"{table!r}\n" for table in there_tables(logs.here, *rules.there(logs, told))]
    if compared:
        lines += [repr(against_table(compared.sentence, compared.rows())), ""]
    if logs.ranks:
        lines += [repr(ranks_table(logs)), ""]
    if logs.unknown and all(one.status == "possible" for one in told):
        quoted = {(e.file, e.line) for one in told for e in one.evidence[:4]}
        rows = [f"   {t.times} x {_cut(t.first.text)}" for t in logs.unknown[:8] if (t.first.file, t.first.line) not in quoted]
        lines += ["Lines that look like errors and are not known:"] * bool(rows) + rows
    lines += [f"{f.name} is {f.kind}" for f in logs.files if f.kind and not f.problem]
    lines += [f"not read: {f.name}: {f.problem or f.left_out}" for f in logs.files if f.problem or f.left_out]
    return "\n".join(lines).rstrip()


def _cut(text: str) -> str:
    return text if len(text) <= LINE_CHARACTERS else text[:LINE_CHARACTERS] + " ..."


def _write_page(path: Path, logs: Logs, told: list[Hypothesis], paths: list[str], code: int, compared: Comparison | None, good: list[str],
                dumps: str) -> None:
    from nccl_runbook.report.tables import Table
    from nccl_runbook.triage.table import against_table, tables, there_tables
    from nccl_runbook.triage import judge_against as against
    from nccl_runbook.triage import judge as rules

    findings = against.beside(rules.findings(logs), compared, *good[:1], *paths[:1]) if compared else rules.findings(logs)
    beside = [against_table(compared.sentence, compared.rows())] if compared else []
    shown = [*[Table(DUMPS, ["`nccl-runbook hang` says"], [[dumps]])] * bool(dumps), *beside,
             *there_tables(logs.here, *rules.there(logs, told)), *tables(logs)]
    answer.write_page(path, "07-logs", _sentence(logs, told, compared), findings, shown, code)
