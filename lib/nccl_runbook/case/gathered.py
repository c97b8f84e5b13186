"""What was gathered from logs and dumps, one record for each subject."""

import dataclasses

from nccl_runbook.against.facts import Comparison
from nccl_runbook.case.judge import DUMPS, LOGS, symptom_recognised
from nccl_runbook.causes.causes import Cause
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.core.records import Record, of_findings
from nccl_runbook.hang.facts import Hang
from nccl_runbook.logs.kind import READ_BY_HANG
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import has_ended
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer
from nccl_runbook.triage.judge import answer
from nccl_runbook.triage.symptoms import deciding, matching
from nccl_runbook.triage.table import tables as log_tables

# of a look without a job
NO_RANK = Finding(
    "no-rank-found",
    Severity.UNKNOWN,
    "no rank was found",
    remedy=(
        Remedy(
            "you",
            "Run `nccl-runbook look` on a node of the job, as the job's user. If the job has ended, "
            "diagnose the files that it left, such as logs, dumps and the launch script.",
            ("nccl-runbook diagnose slurm-4711.out dumps/ train.sbatch",),
        ),
    ),
)


@dataclasses.dataclass(frozen=True)
class Dumps:
    """``sentence``: as `hang` words it; ``next``: what to collect next, or empty."""

    sentence: str
    finding: Finding
    tables: list[object]
    next: str = ""


def dumps_of(hang: Hang | Gap | None, logs: Logs) -> tuple[Dumps | None, Logs]:
    """(what `hang` concludes, None without dumps or in an old record; the logs, in which these files count
    as read)."""
    if hang is None or isinstance(hang, Gap):
        return None, logs
    from nccl_runbook.hang.judge import hang_finding, judge_hang
    from nccl_runbook.hang.table import tables

    verdict = judge_hang(hang)
    sure = f" ({verdict.status})" if verdict.status in ("possible", "likely") else ""
    dumps = Dumps(
        f"{verdict.kind}: {verdict.sentence}{sure}",
        hang_finding(verdict, logs.launcher, ended=has_ended(logs)),
        tables(hang, verdict.culprits, verdict.group),
        verdict.decides,
    )
    return dumps, dataclasses.replace(
        logs,
        files=[
            dataclasses.replace(f, kind="", problem="") if READ_BY_HANG in f.kind + f.problem else f
            for f in logs.files
        ],
    )


@dataclasses.dataclass(frozen=True)
class Gathered:
    """One record a subject. ``logs``, ``dumps``: conclusions, or None; ``steps``: those that decide the
    symptom; ``variables``: set by scripts; ``compared``: with a good run."""

    records: list[Record]
    logs: Answer | None = None
    dumps: Dumps | None = None
    steps: tuple[str, ...] = ()
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    compared: Comparison | None = None

    @property
    def findings(self) -> list[Finding]:
        """Findings of all subjects."""
        return [finding for record in self.records for finding in record.findings]

    @property
    def fits(self) -> tuple[Cause, ...]:
        """Causes that fit the symptom without a line of their own."""
        return self.logs.fits if self.logs and not self.dumps else ()


def of_logs(logs: Logs, hang: Hang | Gap | None, compared: Comparison | None = None) -> Gathered:
    """What dumps and stacks show, then what was printed and reported, each under its own step. ``compared``:
    with a good run; a run that became slower has no harmless messages."""
    dumps, logs = dumps_of(hang, logs)
    given = answer(logs, dumps.next if dumps else None)
    if compared and compared.slower:
        given = dataclasses.replace(
            given,
            hypotheses=[h for h in given.hypotheses if h.cause != "benign"],
            findings=[f for f in given.findings if f.cause != "benign"],
            fits=(),
        )
    words = logs.context.splitlines()
    unread = [f for f in given.findings if f.id == "log-not-read"]
    only_dumps = dumps and not logs.context and not any(f.lines for f in logs.files)  # so no log is missing
    records = (
        [of_findings(DUMPS, [dumps.finding, *(unread if only_dumps else ())], dumps.tables)] if dumps else []
    )
    if not only_dumps:
        symptoms = (
            []
            if given.hypotheses or dumps
            else dict.fromkeys(symptom for line in words for symptom in matching(line))
        )
        records.append(
            of_findings(
                LOGS,
                [*given.findings, *map(symptom_recognised, symptoms)],
                log_tables(given),
                not_seen=[f.title for f in unread],
            )
        )
    return Gathered(records, given, dumps, tuple(deciding(words)), compared=compared)
