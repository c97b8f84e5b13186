"""What was given, read by the subject that knows it: one record for each that has something to say; without
torch."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from nccl_runbook.against.facts import Comparison
from nccl_runbook.case.gathered import Gathered, of_logs
from nccl_runbook.case.given import Material
from nccl_runbook.case.judge import (
    DUMPS,
    met,
)
from nccl_runbook.causes.causes import launcher_of
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.core.records import Record, load_all, of_findings
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.logs.file import Limit, text_of
from nccl_runbook.logs.kind import READ_BY_HANG
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.read import collect
from nccl_runbook.report.verdict import VERDICT_STEP
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer

SETTINGS, PLAN = "02-environment", "plan"
# logs in a line to copy
_ALSO = {"broken": "hangs", "degraded": "is slow", "unknown": "may hang"}  # another job, by its verdict
LIMIT_S = 5.0  # somebody waits for the first answer; 07-logs takes longer


@dataclasses.dataclass(frozen=True)
class Start:
    """What 00-start was given. ``logs``: what log and symptom contain, or None; ``hang``: what dumps and
    stacks show, or None."""

    logs: Logs | None
    hang: Hang | None = None


def collect_start(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path; empty for what was not given. Touches no GPU. ``log``: a
    file, folder or archive, or several separated by colons."""
    limit = Limit(LIMIT_S)
    logs = collect(log.strip(), symptom.strip(), limit=limit) if symptom.strip() or log.strip() else None
    return Start(logs, hang_of(logs, log.strip(), limit) if logs else None)


def hang_of(logs: Logs, paths: Sequence[str] | str, limit: Limit) -> Hang | None:
    """What recorder dumps and stacks among these files show; None without any."""
    if not any(READ_BY_HANG in f.kind + f.problem for f in logs.files):
        return None
    from nccl_runbook.hang.read import collect as collect_hang

    return collect_hang(paths, limit)


def gather(
    material: Material,
    stdin: BinaryIO | None,
    gpus: int,
    look: Callable[[list[int]], Live],
    compared: Comparison | None = None,
) -> Gathered:
    """The judgement of each subject. ``gpus``: of a node, 0 if unknown; ``look``: at these processes, or at
    every rank; ``compared``: with a good run. ValueError for a process, allocation or record that cannot be
    read."""
    gathered = left_by(material, stdin, gpus, compared)
    if material.pids or material == Material():
        gathered.records.extend(_live([look([int(p) for p in material.pids])], here=True))
    return gathered


def left_by(
    material: Material,
    stdin: BinaryIO | None = None,
    gpus: int = 0,
    compared: Comparison | None = None,
) -> Gathered:
    """The judgement of what a job left, without a look at processes. ``compared``: with a good run."""
    gathered = (
        logs_of(material, stdin, compared)
        if material.logs or material.words
        else Gathered([], compared=compared)
    )
    plans = [*_plans(material, gpus)]
    settings = [*_settings(material.scripts, material.configurations, gathered.variables, gathered.logs)]
    # beside a log, a script need not set a variable, nor need a launch that is planned
    gathered.records.extend(
        [
            *(
                r
                for r in settings
                if not (plans or gathered.records) or {f.id for f in r.findings} != {"nothing-read"}
            ),
            *plans,
            *(_recorded(material.records) if material.records else ()),
        ]
    )
    return gathered


def _recorded(paths: Iterable[str]) -> list[Record]:
    """Looks at several hosts as one record, and every other record as it is; one that contains neither facts
    nor findings shows nothing, whatever its status says."""
    from nccl_runbook.hang.read_stacks import whole_looks

    loaded = [
        r
        if r.facts or r.findings or r.status != "ok"
        else dataclasses.replace(r, status="unknown", reason=f"{path} contains no facts")
        for path in paths
        for r in load_all(Path(path))
        if r.step != VERDICT_STEP
    ]
    looks = whole_looks(r.facts["live"] for r in loaded if "live" in r.facts)
    return [*_live(looks), *(r for r in loaded if not looks or "live" not in r.facts)]


def logs_of(material: Material, stdin: BinaryIO | None, compared: Comparison | None = None) -> Gathered:
    """The judgement of what was printed and reported. ``compared``: with a good run."""
    limit = Limit()
    logs = collect([*material.logs], "\n".join(material.words), stdin, limit)
    texts = [text_of(p, 1 << 18, "a script") for p in (*material.scripts, *material.configurations)]
    # a log need not name what started the job
    logs = dataclasses.replace(logs, launcher=logs.launcher or launcher_of("\n".join(map(str, texts))))
    return of_logs(logs, hang_of(logs, [p for p in material.logs if p != "-"], limit), compared)


def _settings(
    scripts: Iterable[str], configurations: Iterable[str], variables: dict[str, str], job: Answer | None
) -> Iterator[Record]:
    """Of each file; what they set is added to ``variables``. ``job``: what the logs of the same job show."""
    from nccl_runbook.environment.facts import Environment
    from nccl_runbook.environment.judge import judge
    from nccl_runbook.environment.read_file import read

    findings: list[Finding] = []
    for path in (*scripts, *configurations):
        role = read(path)
        if isinstance(role, Gap):
            findings.append(
                Finding("not-read", Severity.UNKNOWN, role.detail, (Evidence(role.detail, path),))
            )
        elif path in scripts or role.variables or role.nodes:  # a configuration need do neither
            variables |= role.variables
            findings += judge(Environment([role], Gap("not-run", "only a file was examined, not a machine")))
    if findings:
        yield of_findings(SETTINGS, [met(f, job.logs) for f in findings] if job else findings)


def _plans(material: Material, gpus: int) -> Iterator[Record]:
    """Each allocation that was named; what holds none has nothing to say here."""
    named = (*material.allocations, *material.scripts, *material.configurations)
    if not named:
        return
    from nccl_runbook.plan.allocation.areal_rules import newest
    from nccl_runbook.plan.answer import Plan, plans_of
    from nccl_runbook.plan.groups import Site
    from nccl_runbook.plan.table import groups_tables

    plans: list[Plan] = []
    findings: list[Finding] = []
    for target in named:
        try:
            plans += plans_of(os.path.expanduser(target), Site(gpus, "", 0, ""), newest())[0]
        except ValueError as error:
            if target in material.allocations:
                raise
            if re.search("--gpus|not readable as YAML at line", str(error)):
                findings.append(
                    Finding("not-planned", Severity.UNKNOWN, str(error), (Evidence(str(error), target),))
                )
    findings += [
        dataclasses.replace(p.finding, title=f"{p.where}: {p.finding.title}" if p.where else p.finding.title)
        for p in plans
    ]
    if findings:
        yield of_findings(PLAN, findings, groups_tables(plans))


def _live(looks: list[Live], here: bool = False) -> Iterator[Record]:
    from nccl_runbook.hang.judge import hang_finding
    from nccl_runbook.hang.judge_silence import of_picture
    from nccl_runbook.hang.live import judge as live
    from nccl_runbook.hang.live.judge_hosts import together
    from nccl_runbook.hang.live.ranks.table_ranks import DOES, job_name
    from nccl_runbook.hang.table import looked_table

    if not any(one.ranks for one in looks):
        return
    first, *others = jobs = live.with_command(live.judge_looks(together(looks)), [] if here else None)
    lead = hang_finding(of_picture(first), still=True, now=here)
    yield of_findings(
        DUMPS,
        [
            dataclasses.replace(lead, title=(f"{job_name(first)}: " if others else "") + lead.title),
            *(
                Finding(
                    "another-job-hangs",
                    Severity.UNKNOWN if word == "unknown" else Severity.WARN,
                    f"another job {_ALSO[word]} ({job_name(job)}): {job.sentence}",
                    tuple(
                        Evidence(f"{v.name} {DOES[v.does]}", f"pid {v.pid} on {v.host}")
                        for v in job.ranks[:4]
                    ),
                    (
                        Remedy(
                            "you",
                            "Look at the other job alone:",
                            (f"nccl-runbook diagnose {job.ranks[0].pid if here else 'PID'}",),
                        ),
                    ),
                )
                for job in others
                if (word := live.verdict([job])) in _ALSO
                and not (word == "unknown" and any(v.does in ("moving", "starting") for v in job.ranks))
            ),
        ],
        [looked_table(j, looks) for j in jobs],
        not_seen=dict.fromkeys(line for j in jobs for line in j.not_seen),
    )
