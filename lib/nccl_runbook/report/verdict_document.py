"""The fields of verdict.json."""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from nccl_runbook.core.findings import Evidence, Finding, Remedy
from nccl_runbook.core.records import Judged, strict

AT_WORK, TO_COME = "still at work", "not run yet"


@strict
class RunInfo:
    """What a runner knows about its run. ``command``: repeats it, empty for notebooks run by hand.
    ``planned``: step names in order; ``asked``: those on the command line; ``not_run``: step -> why it ended
    without a result (kernel died, busy, out of time). A planned step with neither a finished record nor a
    reason is still to come, unless ``interrupted``; ``signal``: its number, or 0."""

    id: str
    started: str
    command: str = ""
    planned: list[str] = dataclasses.field(default_factory=list)
    asked: list[str] = dataclasses.field(default_factory=list)
    not_run: dict[str, str] = dataclasses.field(default_factory=dict)
    fail_on: Literal["broken", "degraded", "unknown", "never"] = "unknown"
    interrupted: bool = False
    signal: int = 0


@strict
class Cause:
    """A cause over all steps. ``status``: the best that any step gave it; evidence against it is kept."""

    id: str
    status: Literal["established", "likely", "possible", "ruled-out"]
    title: str
    evidence: list[Evidence] = dataclasses.field(default_factory=list)
    against: list[Evidence] = dataclasses.field(default_factory=list)
    remedy: list[Remedy] = dataclasses.field(default_factory=list)


@strict
class StepEntry:
    """One step of the run. ``record``: its file beside verdict.json, empty if it left none."""

    notebook: str
    status: Literal["ok", "note", "warn", "broken", "unknown", "skipped"]
    reason: str = ""
    wall_s: float = 0.0
    findings: list[Finding] = dataclasses.field(default_factory=list)
    record: str = ""


@strict
class VerdictDocument:
    """verdict.json. ``sentence``: the verdict in words; ``exit_code``: of `nccl-runbook`, after --fail-on or
    a signal; ``written``: UTC time, which shows that a page that still says "running" is left from a killed
    run."""

    schema: Literal["nccl-runbook/verdict/1"] = "nccl-runbook/verdict/1"
    run: RunInfo
    written: str = ""
    verdict: Literal["healthy", "degraded", "broken", "unknown"]
    sentence: str
    exit_code: int
    judged: Judged = dataclasses.field(default_factory=Judged)
    causes: list[Cause] = dataclasses.field(default_factory=list)
    steps: list[StepEntry] = dataclasses.field(default_factory=list)
    not_looked_at: list[str] = dataclasses.field(default_factory=list)

    @property
    def running(self) -> bool:
        """Whether steps are still to come."""
        return is_running(self.run, self.steps)

    @property
    def tried(self) -> str:
        """Results of a step without and with the proposed change; empty if there was no such test."""
        return next((f.tried for s in self.steps for f in s.findings if f.tried), "")


def is_running(run: RunInfo, steps: Iterable[StepEntry]) -> bool:
    """Whether steps of this run are still to come."""
    return (
        bool(run.command)
        and not run.interrupted
        and any(s.status == "unknown" and s.reason in (AT_WORK, TO_COME) for s in steps)
    )
