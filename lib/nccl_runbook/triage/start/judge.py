"""What the brought log and symptom point to. No test was run here, so nothing is more than possible, and nothing worse than a note."""

from __future__ import annotations

from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.failures import usual
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.triage.start.facts import Message, Start
from nccl_runbook.triage.start.steps import decides, recognised

RESTS_ON: tuple[str, ...] = ()  # a log that cannot be read has a finding of its own

# one message, several causes behind it: only a device map by UUID tells them apart
_BEHIND = {"duplicate-gpu": ("device-not-set-per-rank", "scheduler-shares-gpu", "trainer-and-engine-share-gpu")}


def judge(start: Start) -> list[Finding]:
    """At least one finding."""
    pointed = [f for m in _by_table(start.messages) for f in message_points_to_cause(m)]
    findings = [*log_not_read(start), *pointed, *(symptom_recognised(start) if not pointed else [])]
    return findings or ([nothing_recognised(start)] if start.symptom or start.log else [nothing_brought(start)])


def _by_table(messages: list[Message]) -> list[Message]:
    """Hard evidence above consequences: the order of the table of causes."""
    order = list(causes())
    return sorted((m for m in messages if m.kind == "cause"), key=lambda m: order.index(m.id))


def where(message: Message) -> str:
    """In words: "log line 812", "log line 12 from the end", "your own words"."""
    if message.line == 0:
        return "your own words"
    line = f"log line {message.line}" if message.line > 0 else f"log line {-message.line} from the end"
    return line + (f", {message.times} times" if message.times > 1 else "")


def message_points_to_cause(message: Message) -> list[Finding]:
    """A known message makes its cause possible; only an experiment can establish it or rule it out."""
    found = []
    for cause in (causes()[name] for name in _BEHIND.get(message.id, (message.id,))):
        who = next((f"{step} decides it" for step in decides(message)), "no single step decides it, so all run")
        evidence = (Evidence(message.text, where(message)), Evidence(f"a message only, no test was run: {who}", "plan"))
        fix = usual(cause.id, "possible")
        found.append(Finding("message-points-to-cause", Severity.NOTE, cause.title, evidence, fix, cause.id, "possible"))
    return found


def symptom_recognised(start: Start) -> list[Finding]:
    """A symptom that many causes share names none: it only orders the steps."""
    first = {m.id: m for m in reversed(start.messages) if m.kind == "symptom"}
    told = ((s, Evidence(first[s.id].text, where(first[s.id])), Evidence(s.says, "table of symptoms")) for s in recognised(start))
    return [Finding("symptom-recognised", Severity.NOTE, f"{s.words}: {s.steps[0]} decides first", (seen, says)) for s, seen, says in told]


def log_not_read(start: Start) -> list[Finding]:
    """A note where it is a folder, with which nothing is wrong."""
    if not isinstance(start.log, Gap):
        return []
    later = start.log.reason == "not-run"
    title = start.log.detail if later else f"the log could not be read: {start.log.detail}"
    return [Finding("log-not-read", Severity.NOTE if later else Severity.UNKNOWN, title, (Evidence(str(start.log), "log"),))]


def nothing_recognised(start: Start) -> Finding:
    """Silence of the tables is no health: the steps go on as if nothing had been brought."""
    read = start.log
    seen = f"lines of the log that were looked at: {read.lines}" if read is not None and not isinstance(read, Gap) else "no log was brought"
    return Finding("nothing-recognised", Severity.NOTE, "no known message in what you brought: all steps run", (Evidence(seen, "log"),))


def nothing_brought(start: Start) -> Finding:
    """The first true sentence of a run: what this host shows before anything is started on it."""
    return Finding("nothing-brought", Severity.OK, f"{host_in_words(start)}; nothing was brought: all steps run")


def host_in_words(start: Start) -> str:
    count = 0 if isinstance(start.devices, Gap) else len(start.devices)
    files = counted(count, "NVIDIA device file") if count else "no NVIDIA device file"
    return f"this host has {files}" + ("" if isinstance(start.driver, Gap) else f" and driver {start.driver}")
