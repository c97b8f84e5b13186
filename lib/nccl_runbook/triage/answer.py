"""The answer to a log, judged once: the same for terminal, JSON, page and notebook."""

import dataclasses

from nccl_runbook.causes.causes import Cause, causes
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.logs.facts import FileRead, LogLine
from nccl_runbook.messages.clues import version
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import current
from nccl_runbook.triage import judge, judge_against
from nccl_runbook.triage.judge import Decides, Hypothesis
from nccl_runbook.triage.judge_against import Comparison

HANG = "nccl-runbook hang "
READ_BY_HANG = ("a flight-recorder dump", "stacks of ", "an answer of NCCL's RAS")
HANG_READS = "`nccl-runbook hang`"  # how the reader of files names what it leaves to hang


@dataclasses.dataclass(frozen=True)
class Dumps:
    """What recorder dumps and stacks among the files say, as `hang` judges them. ``next``: what to collect next, or ""."""

    sentence: str
    finding: Finding
    next: str = ""

    def leads(self, hypotheses: list[Hypothesis]) -> bool:
        """Whether they show that the job is broken, and the log does not show it more surely."""
        surer = self.finding.status == "possible" and any(h.status == "established" for h in hypotheses)
        return self.finding.severity is Severity.BROKEN and not surer

    @property
    def verdict(self) -> str:
        """As of a log: what is complete in the dumps proves no health."""
        return {Severity.BROKEN: "broken", Severity.WARN: "degraded"}.get(self.finding.severity, "unknown")

    def headline(self, logs: Logs) -> str:
        """One true line at the top."""
        word = {"broken": "Broken", "degraded": "Likely"}.get(self.verdict, "Unknown")
        sure = f" ({self.finding.status})" if word == "Broken" and self.finding.status in ("possible", "likely") else ""
        unread = "; no log was read" if word == "Unknown" and not _were_read(logs) else ""
        return f"{word}: {self.finding.title.rstrip('.')}{unread}{sure}."


@dataclasses.dataclass(frozen=True)
class Answer:
    """``verdict``: "broken", "degraded" or "unknown"; ``hypotheses``: best first; ``findings``: the same as findings of a
    step; ``hosts`` and ``there``: other hosts, and lines to run on them as (line, what it tells apart, seconds);
    ``led``: whether the dumps lead; ``fits``: what fits the symptom, and no line shows."""

    logs: Logs
    verdict: str
    sentence: str
    hypotheses: list[Hypothesis]
    findings: list[Finding]
    hosts: list[str]
    there: list[tuple[str, str, str]]
    compared: Comparison | None = None
    dumps: Dumps | None = None
    led: bool = False
    fits: tuple[Cause, ...] = ()


def answer(logs: Logs, compared: Comparison | None = None, good: str = "", bad: str = "", dumps: Dumps | None = None) -> Answer:
    """Judge the logs alone, then beside a good run and beside dumps. ``good`` and ``bad``: names of the compared logs."""
    recorded, logs = logs, current(logs)
    if dumps:
        logs = dataclasses.replace(logs, files=[*map(_given_to_hang, logs.files)])
    found = [_after_hang(h, dumps) if dumps else h for h in judge.judge(logs)]
    slower = bool(compared and compared.slower)
    kept = [h for h in found if h.cause != "benign" or not slower]
    verdict, sentence = judge.verdict(kept), judge.sentence(logs, kept)
    if slower and verdict == "unknown":
        verdict = "degraded"
    if compared and (not kept or slower and all(h.status == "possible" for h in kept)):
        sentence = compared.sentence
    findings = judge_against.beside([*judge.findings(logs, found), *_read_again(recorded)], compared, good, bad)
    led = dumps is not None and (dumps.leads(kept) or not _were_read(logs))
    if dumps and led:
        verdict, sentence = dumps.verdict, dumps.headline(logs)
        kept, findings = _behind_dumps(kept, findings, dumps)
    fits = () if led or slower else tuple(judge.fits(logs, kept))
    return Answer(logs, verdict, sentence, kept, findings, *judge.there(logs, kept), compared, dumps, led, fits)


def _were_read(logs: Logs) -> bool:
    """Whether any log says anything."""
    return any(f.lines and not f.problem for f in logs.files)


def _given_to_hang(file: FileRead) -> FileRead:
    """What `hang` has read is not unread."""
    if HANG_READS not in file.kind + file.problem:
        return file
    return dataclasses.replace(file, kind=(file.problem or file.kind).partition(":")[0], problem="")


def _read_again(recorded: Logs) -> list[Finding]:
    """That the facts were read with another catalogue of messages."""
    return [] if recorded.catalogue == version() else [Finding(
        "catalogue-differs", Severity.NOTE,
        "the record was made with another catalogue of messages: only its quoted lines were read again")]


def _behind_dumps(kept: list[Hypothesis], findings: list[Finding], dumps: Dumps) -> tuple[list[Hypothesis], list[Finding]]:
    """What dumps show, before what the log alone shows."""
    lead = dumps.finding.cause
    kept = [h for h in kept if h.cause not in (lead, "benign")]
    findings = [f for f in findings if f.cause not in (lead or "", "benign") and f.id not in ("no-cause-in-log", "log-undecided")]
    return [*_hypothesis(dumps), *kept], [dumps.finding, *findings]


def _after_hang(hypothesis: Hypothesis, dumps: Dumps) -> Hypothesis:
    """Nobody is sent to `hang`, which has read what is there."""
    decides = hypothesis.decides
    if decides.line.startswith(HANG):
        decides = dataclasses.replace(decides, line=dumps.next, why="what the dumps do not show")
    remedy = (dataclasses.replace(r, lines=tuple(line for line in r.lines if not line.startswith(HANG))) for r in hypothesis.remedy)
    return dataclasses.replace(hypothesis, decides=decides, remedy=tuple(remedy))


def _hypothesis(dumps: Dumps) -> list[Hypothesis]:
    """The cause that dumps name; none if they name none."""
    finding = dumps.finding
    if not finding.cause or not finding.status:
        return []
    cause, seen = causes()[finding.cause], [e for e in finding.evidence if e.source != "next"]
    lines = tuple(_line(e) for e in seen or [Evidence(finding.title, "dumps")])
    return [_after_hang(Hypothesis(
        cause.id, finding.status, cause.title, cause.says, lines, finding.remedy, Decides(*cause.decides)), dumps)]


def _line(evidence: Evidence) -> LogLine:
    name, _, number = evidence.source.rpartition(" line ")
    return LogLine(name, int(number), evidence.text) if name and number.isdecimal() else LogLine(evidence.source, 0, evidence.text)
