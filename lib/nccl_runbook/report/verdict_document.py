"""The fields of verdict.json."""

from collections.abc import Iterable
from typing import Literal

from nccl_runbook.core.findings import Evidence, Finding, Remedy
from nccl_runbook.core.records import Judged, some, strict

AT_WORK, TO_COME = "still at work", "not run yet"


@strict
class RunInfo:
    """What a runner knows about its run.

    ``command``: the line that repeats the run, "" for notebooks run by hand. ``planned``: step names
    in order; ``asked``: those named on the command line. ``not_run``: step -> why it is over without a result
    of its own (kernel died, busy, out of time). A planned step with neither a finished record nor a reason
    here is still to come, unless the run was ``interrupted``; ``signal``: by which, 0 for none.
    """

    id: str
    started: str
    command: str = ""
    planned: list[str] = some(list)
    asked: list[str] = some(list)
    not_run: dict[str, str] = some(dict)
    fail_on: Literal["broken", "degraded", "unknown", "never"] = "unknown"
    interrupted: bool = False
    signal: int = 0


@strict
class Cause:
    """A cause over all steps: ``status`` is the best that any step gave it; what spoke
    against it stays beside it."""

    id: str
    status: Literal["established", "likely", "possible", "ruled-out"]
    title: str
    evidence: list[Evidence] = some(list)
    against: list[Evidence] = some(list)
    remedy: list[Remedy] = some(list)


@strict
class StepEntry:
    """One step of the run; ``record``: its file beside verdict.json, "" where it left none."""

    notebook: str
    status: Literal["ok", "note", "warn", "broken", "unknown", "skipped"]
    reason: str = ""
    wall_s: float = 0.0
    findings: list[Finding] = some(list)
    record: str = ""


@strict
class VerdictDocument:
    """verdict.json. ``sentence``: the verdict for a human; ``exit_code``: what `nccl-runbook` ends with,
    after --fail-on or a signal; ``written``: when (UTC), so that a page which says "running" long after that
    is known to be left from a run that was killed.
    """

    schema: Literal["nccl-runbook/verdict/1"] = "nccl-runbook/verdict/1"
    run: RunInfo
    written: str = ""
    verdict: Literal["healthy", "degraded", "broken", "unknown"]
    sentence: str
    exit_code: int
    judged: Judged = some(Judged)
    causes: list[Cause] = some(list)
    steps: list[StepEntry] = some(list)
    not_looked_at: list[str] = some(list)

    @property
    def running(self) -> bool:
        """Whether steps are still to come."""
        return _running(self.run, self.steps)

    @property
    def tried(self) -> str:
        """What a step saw without the proposed change and with it; "" where none was tried."""
        return next((f.tried for s in self.steps for f in s.findings if f.tried), "")


def _running(run: RunInfo, steps: Iterable[StepEntry]) -> bool:
    return (
        bool(run.command)
        and not run.interrupted
        and any(s.status == "unknown" and s.reason in (AT_WORK, TO_COME) for s in steps)
    )
