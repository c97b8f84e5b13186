"""What broke first, from what the job printed: hypotheses, best first. No test was run; a log alone proves no health."""

from __future__ import annotations

import collections
import dataclasses

from nccl_runbook.causes.causes import causes, fitting
from nccl_runbook.causes.failures import usual
from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import STATUSES, Evidence, Finding, Remedy, Severity
from nccl_runbook.core.gpu_identity import bus_of_message
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import SLOW, clues, hints, says
from nccl_runbook.messages.facts import Logs
from nccl_runbook.triage import judge_ranks as triage_ranks
from nccl_runbook.triage.judge_ranks import Pointer
from nccl_runbook.triage.start.symptoms import step_texts

RESTS_ON: tuple[str, ...] = ()  # a file that cannot be read has a finding of its own
HINTED, GENERIC, HINT = 620, 600, 100  # places of what only hints name, and of what only fits every hang; what a hint of weight 1 is worth
ITSELF, PLAIN = 4, 1.5  # weight of a message that says that nothing is wrong; of words that speak for a cause, or for health, by themselves
WORDS = "no message of it was seen, only words that are usual with it"
MOST = 5  # hypotheses that are worth a reader's time
_SEVERITY = {"established": Severity.BROKEN, "likely": Severity.WARN, "possible": Severity.NOTE}


@dataclasses.dataclass(frozen=True)
class Decides:
    """The cheapest evidence that settles a hypothesis: the notebook or command, why, and the line to run where the job ran."""

    probe: str
    why: str
    line: str


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One possible first cause. ``against``: what speaks against it, in words."""

    cause: str
    status: str
    title: str
    says: str
    evidence: tuple[LogLine, ...]
    remedy: tuple[Remedy, ...]
    decides: Decides
    against: tuple[str, ...] = ()


def judge(logs: Logs) -> list[Hypothesis]:
    """Hypotheses, best first; none where nothing is known. `benign` alone means: only harmless messages were seen."""
    found = pointers(logs)
    kept, hinted = [_weighed(p, logs) for p in found], _from_hints(logs)
    score = {p.cause: -p.place for p in hinted}
    kept = [dataclasses.replace(p, place=min(p.place, GENERIC) - HINT * score.get(p.cause, 0)) for p in kept]
    sure = {p.status for p in kept} - {"possible"}
    if "established" not in sure:  # beside the fault itself mere words have no place, beside what is likely only plain ones
        kept += [dataclasses.replace(p, place=HINTED + HINT * p.place) for p in hinted if not sure or p.place <= -PLAIN]
    kept.sort(key=lambda p: p.place)
    merged = [_hypothesis(cause, found, logs.launcher) for cause, found in grouped((p.cause, p) for p in kept).items()]
    return _without_noise(sorted(merged, key=lambda h: STATUSES.index(h.status)), logs)[:MOST]


def pointers(logs: Logs) -> list[Pointer]:
    """What messages point at, and what the ranks show."""
    named = _from_clues(logs)
    known = {(p.evidence[0], status) for p in named for status in STATUSES[STATUSES.index(p.status) :]}  # that cause, not only an exception
    return [*named, *(p for p in triage_ranks.judge(logs) if p.cause != "peer-crashed" or (p.evidence[0], p.status) not in known)]


def _from_clues(logs: Logs) -> list[Pointer]:
    """Every clue whose own line was seen, with all that must be there and nothing that must not."""
    found, slow = [], says(logs.context, "<slow>") and not _reassured(logs, PLAIN)
    for clue in clues():
        seen = logs.seen.get(clue.message)
        background = seen is None or seen.resumed and not (clue.stays and (slow or clue.cause not in SLOW))
        if not background and all(i in logs.seen for i in clue.also) and not any(i in logs.seen for i in clue.without):
            beside = [logs.seen[i].lines[0] for i in clue.also]
            first = 100 + 0.3 * clue.order - HINT * bool(clue.also)  # what must stand beside it makes a message say more
            found.append(Pointer(clue.cause, clue.status, (*seen.lines[:4], *beside), (), first))
    return found


def _from_hints(logs: Logs) -> list[Pointer]:
    """Causes that hints make likelier, and by how much: the place is that, negative."""
    failed = logs.context or failed_line(logs)
    if not (failed or logs.unknown) or logs.foreign and not logs.context:
        return []  # words alone are no complaint
    lines: dict[str, list[tuple[float, LogLine]]] = collections.defaultdict(list)
    for expression, weights in hints().items():
        for cause, weight in weights.items() if expression in logs.seen else ():
            lines[cause].append((weight, logs.seen[expression].lines[0]))
    if "benign" in lines and _calm(logs):
        lines["benign"].append((PLAIN, lines["benign"][0][1]))
    total = {cause: sum(weight for weight, _ in said) for cause, said in lines.items()}
    surest = {cause: sorted(said, key=lambda pair: -pair[0])[:2] for cause, said in lines.items()}
    return [Pointer(c, "possible", tuple(x for _, x in surest[c]), (WORDS,), -total[c]) for c in lines if total[c] >= 0.3]


def _weighed(pointer: Pointer, logs: Logs) -> Pointer:
    """Less sure if only the reporter says it, or if it was printed after the timeout that it should explain."""
    status, against = pointer.status, pointer.against
    if pointer.evidence[0].file == "--context" and status != "possible":
        status, against = "possible", (*against, "it was told, not printed by the job")
    may_follow = pointer.cause in ("gpu-memory-exhausted", "peer-crashed", "shm-too-small")
    if may_follow and status != "possible" and _after_timeout(pointer, logs):
        status, against = "possible", (*against, "it was printed after the timeout, by a rank that had waited: rather a consequence")
    return dataclasses.replace(pointer, status=status, against=against)


def _after_timeout(pointer: Pointer, logs: Logs) -> bool:
    """Whether each line of evidence stands below a watchdog line of the same rank."""
    first = {r.rank: (r.timeouts[0].at.file, r.timeouts[0].at.line) for r in logs.ranks if r.timeouts}
    printed = [e for e in pointer.evidence if e.file != "--context"]
    return bool(printed) and all(e.rank in first and e.file == first[e.rank][0] and e.line > first[e.rank][1] for e in printed)


def _hypothesis(cause_id: str, found: list[Pointer], launcher: str) -> Hypothesis:
    best = sorted(found, key=lambda p: STATUSES.index(p.status))
    evidence = tuple(dict.fromkeys(line for p in best for line in p.evidence))[:8]
    texts = [line.text for line in evidence]
    cause = fitting(cause_id, *texts)
    surest = [p for p in best if p.status == best[0].status]
    against = tuple(dict.fromkeys(text for p in surest for text in p.against if text != WORDS or len(best) == 1))
    remedy = usual(cause_id, best[0].status, texts, launcher)
    bus = next(filter(None, map(bus_of_message, texts)), "")
    says = f"{cause.says} NCCL names that GPU by its PCI bus id in hexadecimal: it is {bus}." if bus else cause.says
    return Hypothesis(cause_id, best[0].status, cause.title, says, evidence, remedy, Decides(*cause.decides), against)


def _without_noise(ranked: list[Hypothesis], logs: Logs) -> list[Hypothesis]:
    """`benign` leads if nothing failed and nothing surer is known. Beside a failure, or a complaint of the reporter, it is left out."""
    benign = [h for h in ranked if h.cause == "benign"]
    others = [h for h in ranked if h.cause != "benign"]
    reassured = 0 if says(logs.context, "<complaint>") else _reassured(logs, PLAIN) + _reassured(logs, 2 * PLAIN)
    grave = [h for h in others if h.status == "established" or 2 * (h.status == "likely") + _warns(h, benign) > reassured]
    if grave or not _calm(logs):
        return others
    known = reassured or any(c.message in logs.seen and (c.cause == "benign" or logs.seen[c.message].resumed) for c in clues())
    if known and not logs.context:  # nobody complains, and nothing but single words speaks for them
        others = [h for h in others if WORDS not in h.against]
    return benign + others if known else ranked if ranked[:1] == benign else others


def _calm(logs: Logs) -> bool:
    """Nobody says that something failed, or somebody calls the message itself harmless or asks whether it is."""
    return failed_line(logs) is None and (not says(logs.context, "<complaint>") or _reassured(logs, 2 * PLAIN))


def _reassured(logs: Logs, least: float) -> bool:
    """Whether the reporter says that nothing failed, in words of at least this weight, or the message itself does."""
    said = [(weights.get("benign", 0), logs.seen[e].lines[0]) for e, weights in hints().items() if e in logs.seen]
    return any(weight >= ITSELF or weight >= least and line.file == "--context" for weight, line in said)


def _warns(hypothesis: Hypothesis, benign: list[Hypothesis]) -> bool:
    """Whether NCCL itself warned with words that are not known as harmless."""
    return any("NCCL WARN" in e.text and not any(e in h.evidence for h in benign) for e in hypothesis.evidence)


def failed_line(logs: Logs) -> LogLine | None:
    """A line that says that the job failed, whatever the cause."""
    ended = logs.seen["job-ended"].lines[0] if "job-ended" in logs.seen else logs.failed
    return next((row.first_error or row.timeouts[0].at for row in logs.ranks if row.first_error or row.timeouts), ended)


def verdict(hypotheses: list[Hypothesis]) -> str:
    """ "broken" where a cause is established, "degraded" where one is likely, else "unknown": a log that is silent proves nothing."""
    seen = {h.status for h in hypotheses if h.cause != "benign"}
    return "broken" if "established" in seen else "degraded" if "likely" in seen else "unknown"


def where(line: LogLine) -> str:
    """In words: "train.log line 812, rank 3"."""
    at = f" line {line.line}" if line.line else ""
    place = "what you told" if line.file == "--context" else "/".join(line.file.split("/")[-2:]) + at
    return place + (f", rank {line.rank}" if line.rank is not None else "")


def sentence(logs: Logs, hypotheses: list[Hypothesis]) -> str:
    """One true line at the top."""
    read = [f for f in logs.files if not f.problem and f.lines]
    if not logs.files:
        return "Unknown: no log was named."
    if not read:
        return "Unknown: nothing could be read (" + "; ".join(f"{f.name} {f.problem or 'is empty'}" for f in logs.files[:3]) + ")."
    if not hypotheses:
        foreign = "this does not look like the log of a GPU job" if logs.foreign else "no message that is known here was found"
        lines = sum(f.lines for f in read)
        return f"Unknown: {lines} {'line was' if lines == 1 else 'lines were'} read, and {foreign}."
    lead = hypotheses[0]
    if lead.cause == "benign":
        if lead.against[:1] == (WORDS,):
            return "Unknown: no message that is known here was found; the words are those of a harmless matter, which proves nothing."
        return "Unknown: only messages that are known to be harmless; a log cannot show that all is well."
    word = {"established": "Broken", "likely": "Likely"}.get(lead.status, "Undecided")
    again = f" The ranks were started {logs.attempts} times: this broke first; nccl-runbook hang judges the last attempt."
    return f"{word}: {lead.title}{'' if word == 'Likely' else f' ({lead.status})'}.{again * (logs.attempts > 1)}"


def there(logs: Logs, hypotheses: list[Hypothesis]) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The hosts of a log that names others than the one where it is read, and what to run there as no test is run here: lines, the
    causes that each tells apart, and what it costs."""
    hosts = list(dict.fromkeys(h for r in logs.ranks for h in r.hosts))
    if not logs.here or not hosts or logs.here.split(".")[0] in {h.split(".")[0] for h in hosts}:
        return [], []
    lines = grouped((one.decides.line, one) for one in hypotheses)
    step = {line: step_texts().get(those[0].decides.probe) for line, those in lines.items()}
    rows = [(line, "; or ".join(h.title for h in those), f"about {step[line].about_s} s" if step[line] else "reads only")
            for line, those in lines.items()]
    return hosts, rows or [("nccl-runbook run", "all steps: each cause that a log cannot show", "about 5 minutes")]


def findings(logs: Logs, told: list[Hypothesis]) -> list[Finding]:
    """The hypotheses of these logs as findings of a step. At least one."""
    if not logs.files and not logs.context:
        return [Finding("no-log-named", Severity.SKIPPED, "no log was named: --log takes a file or a folder (papermill: -p log PATH)")]
    unread = [log_not_read(f.name, f.problem or f.left_out) for f in logs.files if f.problem or f.left_out]
    if not told or told[0].cause == "benign":
        unread.append(Finding("no-cause-in-log", Severity.UNKNOWN, sentence(logs, told).removeprefix("Unknown: ")))
    elif all(h.status == "possible" for h in told):
        title = f"the log alone does not decide it: {told[0].title} ({told[0].status})"  # what is only possible is no verdict, never health
        unread.append(Finding("log-undecided", Severity.UNKNOWN, title))
    return [*map(log_points_to_cause, told), *unread]


def log_points_to_cause(hypothesis: Hypothesis) -> Finding:
    """A message is a hypothesis until a test decides; hard evidence alone is broken."""
    severity = Severity.NOTE if hypothesis.cause == "benign" else _SEVERITY[hypothesis.status]
    evidence = [Evidence(line.text, where(line)) for line in hypothesis.evidence]
    decoded = hypothesis.says.removeprefix(causes()[hypothesis.cause].says).strip()  # what is true of this log alone
    evidence += [Evidence(decoded, "decoded")] * bool(decoded)
    line = hypothesis.decides.line
    decides = Evidence(f"decides: {hypothesis.decides.why}" + f" ({line})" * bool(line), hypothesis.decides.probe)
    first = Remedy("you", f"What decides it: {hypothesis.decides.why}.", (line,) if line else ())
    remedy = (first, *hypothesis.remedy) if hypothesis.status == "possible" or not hypothesis.remedy else hypothesis.remedy
    against = tuple(Evidence(text, "logs") for text in hypothesis.against)
    return Finding(
        "log-points-to-cause", severity, hypothesis.title, (*evidence, decides), remedy, hypothesis.cause, hypothesis.status, against)


def log_not_read(name: str, why: str) -> Finding:
    return Finding("log-not-read", Severity.UNKNOWN, f"{name}: {why}", (Evidence(why, name),))
