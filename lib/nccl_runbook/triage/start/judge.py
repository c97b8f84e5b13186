"""What the log and the symptom point to. No test was run here, so a cause is only possible, and no finding is worse than a note."""

from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.messages.facts import Logs
from nccl_runbook.triage.facts import Start
from nccl_runbook.triage.judge import Hypothesis, answer, where
from nccl_runbook.triage.start.steps import deciding, recognised

RESTS_ON: tuple[str, ...] = ()  # a log that cannot be read has a finding of its own


def judge(start: Start) -> list[Finding]:
    """At least one finding."""
    if start.logs is None:
        return [nothing_brought(start)]
    pointed = [message_points_to_cause(h) for h in answer(start.logs).hypotheses if h.cause != "benign"]
    return [*log_not_read(start.logs), *pointed, *(symptom_recognised(start) if not pointed else [])] or [nothing_recognised(start.logs)]


def message_points_to_cause(hypothesis: Hypothesis) -> Finding:
    """A known message makes its cause possible; only an experiment can establish it or rule it out."""
    lines = tuple(Evidence(line.text, where(line)) for line in hypothesis.evidence)
    steps = deciding(line.text for line in hypothesis.evidence)
    decides = f"{steps[0]} decides it" if steps else "no single step decides, so all steps run"
    return Finding("message-points-to-cause", Severity.NOTE, hypothesis.title,
                   (*lines, Evidence(f"only a message, no test was run: {decides}", "plan")),
                   hypothesis.remedy, hypothesis.cause, "possible")


def symptom_recognised(start: Start) -> list[Finding]:
    """A symptom that many causes share names none: it only orders the steps."""
    return [Finding("symptom-recognised", Severity.NOTE, f"{symptom.words}: {symptom.steps[0]} decides first",
                    (Evidence(line.text, where(line)), Evidence(symptom.says, "table of symptoms"))) for symptom, line in recognised(start)]


def log_not_read(logs: Logs) -> list[Finding]:
    """Files that could not be read, if no other could."""
    return [Finding("log-not-read", Severity.UNKNOWN, f"the log could not be read: {f.name} {f.problem}", (Evidence(f.problem, f.name),))
            for f in (logs.files if all(file.problem for file in logs.files) else ())]


def nothing_recognised(logs: Logs) -> Finding:
    """Silence of the tables is not health: the steps go on as if nothing had been given."""
    seen = f"lines of the log that were read: {sum(file.lines for file in logs.files)}" if logs.files else "no log was given"
    return Finding("nothing-recognised", Severity.NOTE, "no known message in your log or symptom: all steps run", (Evidence(seen, "log"),))


def nothing_brought(start: Start) -> Finding:
    """The first true sentence of a run: what this host shows before anything is started on it."""
    count = 0 if isinstance(start.devices, Gap) else len(start.devices)
    files = counted(count, "NVIDIA device file") if count else "no NVIDIA device file"
    driver = "" if isinstance(start.driver, Gap) else f" and driver {start.driver}"
    return Finding("nothing-brought", Severity.OK, f"this host has {files}{driver}; no log and no symptom: all steps run")
