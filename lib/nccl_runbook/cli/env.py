"""`nccl-runbook env`: which settings are set, what reads them, and what to set instead.

Example: nccl-runbook env train.sbatch --torch 2.11 --nccl 2.28.9
or nccl-runbook env --pid 4711 --pid 4712
"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import Gap, counted, gaps_in
from nccl_runbook.core.findings import Finding, Severity, exit_code, finding_row, verdict_of, worst_first
from nccl_runbook.environment import judge as judge_environment, read as probe, read_file as environment_file
from nccl_runbook.environment.change import diff_of, variable_of
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.table import tables


def env(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A launch script, the output of the shell command `env`, or the environment block of "
            "a Slurm, Ray or YAML file. Write - for standard input.",
            show_default=False,
        ),
    ] = None,
    pid: Annotated[
        list[int],
        typer.Option(
            metavar="N...",
            help="A running process. If you name several processes, such as trainer and engine, "
            "`env` compares their settings.",
        ),
    ] = [],  # noqa: B006
    torch: Annotated[
        str,
        typer.Option(metavar="VERSION", help="Check the settings against this torch version, such as 2.11."),
    ] = "",
    nccl: Annotated[
        str,
        typer.Option(metavar="VERSION", help="Check the settings against this NCCL version, such as 2.28.9."),
    ] = "",
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
) -> None:
    """List settings that no program reads, and settings that are wrong, renamed or obsolete, with the
    correct setting. The command only reads."""
    wrong = [
        *(f"--pid {p}: a process id must be above 0" for p in pid if p < 1),
        *(["name either a file or processes, not both"] if file and pid else []),
        *(
            f"{v!r} is not a version: write numbers such as 2.11"
            for v in (torch, nccl)
            if v and not v[0].isdecimal()
        ),
    ]
    if wrong:
        answer.leave(wrong[0])
    looked_at = _read(file, pid)
    said_to_run = {name: given for name, given in (("torch", torch), ("reported", nccl)) if given}
    looked_at = dataclasses.replace(
        looked_at, roles=[dataclasses.replace(role, **said_to_run) for role in looked_at.roles]
    )
    findings = worst_first(judge_environment.judge(looked_at))
    verdict = verdict_of(findings)
    code = exit_code(verdict, fail_on)
    # a note is no headline of a healthy job
    findings.sort(key=lambda f: verdict == "healthy" and f.severity is not Severity.OK)
    many = sum(f.severity in (Severity.BROKEN, Severity.WARN) for f in findings)
    of_all = f" (1 of {many} faults and warnings)" if many > 1 else ""
    sentence = f"{verdict.capitalize()}: {findings[0].title}{of_all}"
    diff = diff_of(findings[0] if verdict in ("broken", "degraded") else None, [str(file)] if file else [])
    answer.end(
        _as_json(looked_at, findings, verdict, code, diff)
        if json
        else "\n".join(
            [sentence, "", *_lines(looked_at, findings, diff), f"verdict: {verdict} (exit code {code})"]
        ),
        code,
        html,
        lambda: answer.page_of(
            "env", sentence, findings, tables(looked_at), code, answer.judged(looked_at), diff=diff
        ),
    )


def _read(file: Path | None, pids: list[int]) -> Environment:
    """What was named, as facts; exits with one sentence if it cannot be read."""
    if file:
        text = sys.stdin.read(environment_file.MOST_BYTES + 1) if str(file) == "-" else ""
        if len(text) > environment_file.MOST_BYTES:
            answer.leave(f"standard input is larger than {environment_file.MOST_BYTES >> 20} MiB")
        role = (
            environment_file.parse(text, "standard input")
            if str(file) == "-"
            else environment_file.read(str(file))
        )
        environment = (
            role if isinstance(role, Gap) else Environment([role], Gap("not-run", "only a file was examined"))
        )
    else:
        environment = probe.looks(pids)
    if isinstance(environment, Gap):
        answer.leave(
            environment.detail, 1 if not file and environment.reason in ("failed", "timed-out") else 2
        )
    return environment


def _as_json(
    environment: Environment, findings: list[Finding], verdict: str, code: int, diff: str
) -> dict[str, Any]:
    rows = [{"id": f.id, "variable": variable_of(f), **finding_row(f)} for f in findings]
    return {
        "schema": "nccl-runbook/env/1",
        "verdict": verdict,
        "exit_code": code,
        "roles": [r.name for r in environment.roles],
        "findings": rows,
        "fix_diff": diff,
        "settings": {r.name: r.variables for r in environment.roles},
    }


def _lines(environment: Environment, findings: list[Finding], diff: str) -> list[str]:
    """What follows the first sentence: its evidence and fix, the other findings, and what was read."""
    lines = [
        line
        for f in findings
        for line in (
            *([f"{f.severity.value:7} {f.title}"] if f is not findings[0] else []),
            *(f"        {' '.join(e.text.split())}" for e in f.evidence[:3] if e.text not in f.title),
            *(
                line
                for r in f.remedy
                for line in (f"        {r.text}", *(f"            {x}" for x in r.lines))
            ),
            *(f"            {row}" for row in diff.splitlines() if f is findings[0]),
        )
    ]
    lines += [
        f"not looked at: {path}: {gap}"
        for name, part in [*((r.name, r) for r in environment.roles), ("host", environment.host)]
        for path, gap in gaps_in(part, name)
        if gap.reason != "not-run"
    ]
    variables = counted(sum(len(r.variables) for r in environment.roles), "variable")
    return [*lines, f"looked at: {variables} set in {', '.join(r.name for r in environment.roles)}"]
