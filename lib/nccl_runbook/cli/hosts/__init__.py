"""`nccl-runbook hosts`: the hosts of one job side by side, from records or in a running allocation."""

import dataclasses
import os
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.book import UsageError, duration_s
from nccl_runbook.cli import answer
from nccl_runbook.core.facts import Gap, known, to_json
from nccl_runbook.core.findings import Finding, exit_code, step_status, verdict_of, worst_first
from nccl_runbook.core.records import Record, RecordError, read as read_as
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment import read as environment
from nccl_runbook.gpus import judge as gpus_rules
from nccl_runbook.hosts import (
    ask,
    ask_paths as paths,
    ask_worlds as worlds,
    judge as rules,
    judge_network,
    judge_paths,
    judge_worlds,
    read,
)
from nccl_runbook.hosts.facts import Difference, Hosts
from nccl_runbook.hosts.table import tables
from nccl_runbook.launch import stop
from nccl_runbook.machine.facts import Machine

RENDEZVOUS_PORT = 29500  # torchrun's default
RANKS_SHARE, RANKS_LEAST_S = 0.25, 5.0  # of what the budget leaves, for one world; two healthy hosts take 1 s
EPILOG = (
    "Example: nccl-runbook hosts --html hosts.html   or   nccl-runbook hosts --job 4711   or   "
    "nccl-runbook hosts --record n1.json n2.json"
)
STEP, GPUS_STEP = "08-hosts", "01-gpu-visibility"


def hosts(
    record: Annotated[
        list[Path],
        typer.Option(metavar="FILE...", help="Compare these records of several hosts; no machine is asked."),
    ] = [],  # noqa: B006
    job: Annotated[
        str,
        typer.Option(metavar="ID", help="A running Slurm job. Default: the allocation around this shell."),
    ] = "",
    python: Annotated[
        str, typer.Option(metavar="PREFIX", help="Interpreter of your job on each host.", show_default=True)
    ] = "python3",
    port: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=65535, help="Port of the rendezvous. Default: MASTER_PORT, else 29500."
        ),
    ] = 0,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit: 90s, 5m.")] = "90s",
    no_ranks: Annotated[
        bool, typer.Option("--no-ranks", help="Start no ranks; compare facts and try TCP paths.")
    ] = False,
    json: answer.JsonOption = False,
    redact: answer.RedactOption = "",
    share: answer.ShareOption = False,
    html: answer.HtmlOption = None,
    fail_on: answer.FailOnOption = "unknown",
    fault: Annotated[
        str, typer.Option(hidden=True)
    ] = "",  # for the runbook's own tests, as in ranks/check.py
) -> None:
    """Compare the hosts of one job, try TCP between them, and run ranks over all."""
    if record:
        answer.named([str(path) for path in record], one=True)
        end(read.read(record, _judged), json, html, fail_on)
    stop.end()
    try:
        prefix, port = shlex.split(python), port or int(os.environ.get("MASTER_PORT") or RENDEZVOUS_PORT)
    except ValueError as error:
        answer.leave(f"--python or MASTER_PORT cannot be read: {error}")
    try:
        if not 0 < port < 65536 or not prefix:
            raise UsageError(f"MASTER_PORT={port} is no port" if prefix else "--python is empty")
        end(_asked(job, prefix, port, duration_s(budget), no_ranks, fault), json, html, fail_on)
    except (ask.NoAllocation, UsageError) as error:
        answer.leave(error)


def _asked(job: str, python: list[str], port: int, budget_s: float, no_ranks: bool, fault: str) -> Hosts:
    """Everything that the hosts of the job show: facts first, then paths, then ranks."""
    began = time.monotonic()
    job, named = ask.hosts_of_job(job, os.environ)
    redactor = Redactor(os.environ)
    marks: dict[str, float] = {}

    def mark(name: str, line: str) -> None:
        marks[name] = round(time.monotonic() - began, 2)
        answer.say(f"{marks[name]:6.1f} s  {line}")

    with ask.Agents(named, ask.srun(job, python), began + budget_s) as agents:
        mark("agents", f"{len(agents.here)} of {len(named)} hosts answer")
        gathered = paths.paths(agents, port)
        failed = [f for f in judge_paths.judge_paths(gathered) if f.severity.value == "broken"]
        mark("paths", failed[0].title if failed else "TCP paths were tried")
        facts = redactor.json(ask.facts(agents, environment.request(whole=True, torch=True), _environment))
        seen = Hosts(facts, paths=gathered, marks=marks)
        mark("facts", f"{len(seen.answered)} hosts gave facts")
        if not no_ranks:
            gpus = {h.host: int(str(h.facts.get("network.gpus.count", "0"))) for h in seen.answered}
            over = worlds.Worlds(agents, gpus, redactor.json)
            deadline_s = max(RANKS_LEAST_S, RANKS_SHARE * (began + budget_s - time.monotonic()))
            seen = dataclasses.replace(seen, worlds=worlds.ladder(over, deadline_s, fault))
            mark("ranks", "ranks were run over the hosts")
        # a host may go while the others are asked
        told = {h for w in known(seen.worlds) for h in w.lost}
        late = {
            h: Gap("failed", a.why_gone) for h, a in agents.agents.items() if a.why_gone and h not in told
        }
        return dataclasses.replace(seen, lost=late)


def _environment(said: dict[str, Any]) -> dict[str, Any]:
    """The answer of ranks/environment.py as facts of the step 02."""
    if said.get("event") != "environment":
        return {"environment": Gap("failed", str(said.get("detail", "no answer")))}
    return {
        "environment": to_json(
            {"roles": [environment.role_of("a rank", said)], "host": environment.host_of(said)}
        )
    }


def _judged(record: Record) -> tuple[str, str]:
    """The status of a record and why. One of GPUs that nccl-look.pyz left unjudged is judged here; of its
    worlds the ends are compared."""
    if record.ended and record.findings or record.status != "unknown":
        return record.status, record.reason
    if record.step != GPUS_STEP:
        worlds_failed = [
            path for path, value in read.flat(record.facts) if path.startswith("world.") and value == "failed"
        ]
        return (
            ("broken", f"the test {worlds_failed[0].partition('.')[2]} failed")
            if worlds_failed
            else read.unjudged(record)
        )
    try:
        machine = read_as(Machine | Gap, record.facts.get("gpus", Gap("absent", "no gpus in the record")))
    except RecordError as error:
        return "unknown", str(error)
    status, reason = step_status(gpus_rules.judge_gpus(machine))
    return status.value, reason


def judge_hosts_together(record: list[Path], json: bool, html: Path | None, fail_on: str) -> None:
    """`run --record` of one step from several hosts: answered here, as `run` judges one machine; else
    nothing happens."""
    if len(record) > 1 and read.several_hosts(record):
        end(read.read(record, _judged), json, html, fail_on)


def end(seen: Hosts, json: bool, html: Path | None, fail_on: str) -> None:
    """Judge, print, write the page, and leave with the exit code."""
    found = rules.differences(seen.answered)
    findings = worst_first(judge(seen, found))
    verdict = verdict_of(findings)
    code = exit_code(verdict, fail_on)
    failing = failing_hosts(seen)
    said = (
        document(seen, found, findings, verdict, code) if json else text(seen, found, findings, verdict, code)
    )
    answer.end(
        said,
        code,
        html,
        lambda: answer.page_of(
            STEP,
            f"{verdict.capitalize()}: {findings[0].title}",
            findings,
            tables(seen, found),
            code,
            not_seen=_exclude(failing),
        ),
    )


def judge(seen: Hosts, found: list[Difference]) -> list[Finding]:
    """Findings of facts, of paths and of worlds."""
    facts = [*rules.judge_hosts(seen, found), *judge_network.judge_network(seen.answered)]
    return [*facts, *judge_paths.judge_paths(seen.paths), *judge_worlds.judge_host_worlds(seen.worlds)]


def failing_hosts(seen: Hosts) -> list[str]:
    """Hosts to leave out of the next run: a mere difference is no reason."""
    return list(
        dict.fromkeys(
            [
                *judge_worlds.failing(seen.worlds),
                *rules.broken_hosts(seen),
                *judge_paths.failing(seen.paths),
            ]
        )
    )


def _exclude(failing: list[str]) -> list[str]:
    return [f"--exclude={','.join(failing)}"] * bool(failing)


def text(seen: Hosts, found: list[Difference], findings: list[Finding], verdict: str, code: int) -> str:
    """The answer for a terminal."""
    from nccl_runbook.report.tables import finding_text

    failing = failing_hosts(seen)
    return "\n\n".join(
        [
            *map(finding_text, findings),
            *(repr(table) for table in tables(seen, found) if table.rows),
            *[f"next: run without the failing hosts: {line}" for line in _exclude(failing)],
            *filter(None, [ticket(seen, findings, failing)]),
            f"verdict: {verdict} (exit code {code})",
        ]
    )


def ticket(seen: Hosts, findings: list[Finding], failing: list[str]) -> str:
    """A text for the administrator; "" where no host is to blame."""
    if not failing:
        return ""
    lines = [f"- {f.title}" for f in findings if f.severity.value in ("broken", "warn")][:6]
    return "\n".join([f"For the administrator: please check {rules.names(failing)}.", *lines])


def document(
    seen: Hosts, found: list[Difference], findings: list[Finding], verdict: str, code: int
) -> dict[str, Any]:
    """What --json prints; its schema is schemas/hosts.json."""
    failing = failing_hosts(seen)
    return {
        "schema": "nccl-runbook/hosts/1",
        "verdict": verdict,
        "exit_code": code,
        "hosts": [
            {
                "host": name,
                "answered": not isinstance(h, Gap),
                "why": str(h) if isinstance(h, Gap) else "",
                "facts": 0 if isinstance(h, Gap) else len(h.facts),
            }
            for name, h in seen.hosts.items()
        ],
        "unread": {path: str(gap) for path, gap in seen.unread.items()},
        "differences": [
            {
                "name": d.name,
                "severity": rules.severity(d),
                "paths": d.paths,
                "majority": d.majority or None,
                "odd": d.odd,
                "values": d.values,
            }
            for d in found
        ],
        "paths": [] if isinstance(seen.paths, Gap) else to_json(seen.paths),
        "worlds": []
        if isinstance(seen.worlds, Gap)
        else [
            {
                "name": w.name,
                "hosts": list(dict.fromkeys(w.hosts)),
                "passed": w.passed,
                "wall_s": w.wall_s,
                "backend": w.backend,
                "lost": w.lost,
                "ranks": [
                    {"rank": r.rank, "host": h, "outcome": r.outcome, "code": r.code}
                    for r, h in zip(w.ranks, w.hosts, strict=False)
                ],
            }
            for w in seen.worlds
        ],
        "marks": seen.marks,
        "failing": failing,
        "exclude": "".join(_exclude(failing)),
        "ticket": ticket(seen, findings, failing),
        "findings": [
            {
                "id": f.id,
                "severity": f.severity.value,
                "cause": f.cause,
                "status": f.status,
                "text": f.title,
                "fix": [line for r in f.remedy for line in r.lines],
            }
            for f in findings
        ],
    }
