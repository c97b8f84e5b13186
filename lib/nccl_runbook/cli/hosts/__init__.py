"""`nccl-runbook hosts`: the hosts of one job side by side, from records or in a running allocation.

Example: nccl-runbook hosts --html hosts.html
or nccl-runbook hosts --job 4711
or nccl-runbook hosts n1 n2
or nccl-runbook hosts --ray
or nccl-runbook hosts --record n1.json n2.json
"""

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.book import duration_s
from nccl_runbook.cli import answer, options
from nccl_runbook.cli.hosts import carriers
from nccl_runbook.cli.hosts.document import document, failing_hosts, text
from nccl_runbook.core.facts import Gap, known, to_json
from nccl_runbook.core.findings import Finding, exit_code, step_status, verdict_of, worst_first
from nccl_runbook.core.records import Record, RecordError, read as read_as
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment import read as environment
from nccl_runbook.gpus import judge as judge_gpus
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
from nccl_runbook.machine.facts import Machine

RANKS_SHARE, RANKS_LEAST_S = 0.25, 5.0  # of what the budget leaves, for one world; two healthy hosts take 1 s
GPUS_STEP = "01-gpu-visibility"


def hosts(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[HOST...]", help="Hosts that ssh reaches. Default: the hosts of the Slurm job."
        ),
    ] = [],  # noqa: B006
    record: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE...", help="Compare these records of several hosts, without contacting a machine."
        ),
    ] = [],  # noqa: B006
    job: Annotated[
        str,
        typer.Option(metavar="ID", help="Id of a running Slurm job. Default: the allocation of this shell."),
    ] = "",
    python: Annotated[
        str, typer.Option(metavar="PREFIX", help="Interpreter of your job on each host.", show_default=True)
    ] = "python3",
    over: Annotated[
        str, typer.Option(metavar="LINE", help="Command that starts a program on {host}.", show_default=True)
    ] = carriers.SSH,
    ray: Annotated[bool, typer.Option("--ray", help="Use the nodes of this machine's Ray cluster.")] = False,
    port: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help="Rendezvous port to test. Default: MASTER_PORT, else 29500.",
            show_default=False,
        ),
    ] = 0,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit, such as 90s or 5m.")] = "90s",
    no_ranks: Annotated[
        bool,
        typer.Option("--no-ranks", help="Only compare the hosts and test TCP paths; start no test jobs."),
    ] = False,
    json: options.JsonOption = False,
    redact: options.RedactOption = "",
    share: options.ShareOption = False,
    html: options.HtmlOption = None,
    fail_on: options.FailOnOption = "unknown",
    fault: Annotated[
        str, typer.Option(hidden=True)
    ] = "",  # for the runbook's own tests, as in ranks/check.py
) -> None:
    """Compare the hosts of one job, test the TCP paths between the hosts, and run short test jobs: first one
    on each host, then one on all hosts together."""
    if sum(map(bool, (names, job, ray, record))) > 1:
        answer.leave("use only one of host names, --job, --ray and --record")
    if record:
        answer.named([str(path) for path in record], one=True)
        end(read.read(record, judged), json, html, fail_on)
    names, carrier = carriers.chosen(names, job, ray, over, python)
    port, budget_s = carriers.port_of(port), duration_s("--budget", budget)
    end(asked(names, carrier, port, budget_s, no_ranks, fault), json, html, fail_on)


def asked(
    names: list[str],
    carrier: carriers.Carrier,
    port: int,
    budget_s: float,
    no_ranks: bool,
    fault: str = "",
    say: Callable[[str], None] = answer.say,
) -> Hosts:
    """Everything that the hosts of the job show: paths, then facts, then ranks."""
    began = time.monotonic()
    redactor = Redactor(os.environ)
    marks: dict[str, float] = {}

    def mark(name: str, line: str) -> None:
        marks[name] = round(time.monotonic() - began, 2)
        say(f"{marks[name]:6.1f} s  {line}")

    with ask.Agents(names, carrier, began + budget_s) as agents:
        mark("agents", f"{len(agents.here)} of {len(names)} hosts answered")
        gathered = paths.paths(agents, port)
        failed = (f.title for f in judge_paths.judge_paths(gathered) if f.severity.value == "broken")
        mark("paths", next(failed, "TCP paths tested"))
        facts = redactor.json(ask.facts(agents, environment.request(whole=True, torch=True), _environment))
        hosts = Hosts(
            facts,
            paths=gathered,
            marks=marks,
            worlds=Gap("not-run", "no ranks were started, because of --no-ranks"),
        )
        mark("facts", f"facts collected from {len(hosts.answered)} hosts")
        if not no_ranks:
            gpus = {h.host: int(str(h.facts.get("network.gpus.count", "0"))) for h in hosts.answered}
            deadline_s = max(RANKS_LEAST_S, RANKS_SHARE * (began + budget_s - time.monotonic()))
            hosts = dataclasses.replace(
                hosts, worlds=worlds.ladder(worlds.Worlds(agents, gpus, redactor.json), deadline_s, fault)
            )
            mark("ranks", "test ranks ran on the hosts")
        # a host may go while the others are asked
        lost = {h for w in known(hosts.worlds) for h in w.lost}
        return dataclasses.replace(
            hosts,
            lost={
                h: Gap("failed", a.why_gone) for h, a in agents.agents.items() if a.why_gone and h not in lost
            },
        )


def _environment(raw: dict[str, Any]) -> dict[str, Any]:
    """The answer of ranks/environment.py as facts of the step 02."""
    if raw.get("event") != "environment":
        return {"environment": Gap("failed", str(raw.get("detail", "no answer")))}
    return {
        "environment": to_json(
            {"roles": [environment.role_of("a rank", raw)], "host": environment.host_of(raw)}
        )
    }


def judged(record: Record) -> tuple[str, str]:
    """(status, reason) of a record. GPUs that nccl-look.pyz left unjudged are judged here; of its worlds the
    outcomes are compared."""
    if (record.ended and record.findings) or record.status != "unknown":
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
        machine = read_as(Machine | Gap, record.facts.get("gpus", Gap("absent", "the record names no GPUs")))
    except RecordError as error:
        return "unknown", str(error)
    status, reason = step_status(judge_gpus.judge_gpus(machine))
    return status.value, reason


def judge_hosts_together(record: list[Path], json: bool, html: Path | None, fail_on: str) -> None:
    """Answer `run --record` of one step from several hosts and exit, since `run` judges one machine;
    otherwise do nothing."""
    if len(record) > 1 and read.several_hosts(record):
        end(read.read(record, judged), json, html, fail_on)


def end(hosts: Hosts, json: bool, html: Path | None, fail_on: str) -> None:
    """Judge, print, write the page, and exit with the exit code."""
    if not hosts.hosts:
        answer.leave("; ".join(gap.detail for gap in hosts.unread.values()))
    different = rules.differences(hosts.answered)
    findings = worst_first(sorted(judge(hosts, different), key=lambda f: f.status != "established"))
    verdict = verdict_of(findings)
    code = exit_code(verdict, fail_on)
    leave_out = rules.leave_out(failing_hosts(hosts))
    answer.end(
        (document if json else text)(hosts, different, findings, verdict, code),
        code,
        html,
        lambda: answer.page_of(
            "hosts",
            f"{verdict.capitalize()}: {findings[0].title.rstrip('.')}"
            + (f" ({findings[0].status})" if findings[0].status in ("likely", "possible") else ""),
            [dataclasses.replace(findings[0], remedy=(*leave_out, *findings[0].remedy)), *findings[1:]],
            tables(hosts, different),
            code,
        ),
    )


def judge(hosts: Hosts, different: list[Difference]) -> list[Finding]:
    """Findings of facts, paths and worlds."""
    return [
        *rules.judge_hosts(hosts, different),
        *judge_network.judge_network(hosts.answered),
        *judge_paths.judge_paths(hosts.paths),
        *judge_worlds.judge_host_worlds(hosts.worlds),
    ]
