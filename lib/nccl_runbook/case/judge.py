"""The one sentence, what is left to separate after reading, and the cheapest test that does it."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from nccl_runbook.causes.causes import causes, for_launcher
from nccl_runbook.causes.tables import table, version
from nccl_runbook.causes.variables import variables
from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.core.records import Record
from nccl_runbook.messages.clues import catalogue
from nccl_runbook.messages.facts import Logs
from nccl_runbook.report.verdict import VERDICT_STEP, verdict_document
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument
from nccl_runbook.report.verdict_sentence import leading
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer, Decides
from nccl_runbook.triage.symptoms import StepText, Symptom, step_texts

DUMPS, LOGS = "06-timeouts", "07-logs"
# what a script alone can show of them
_BEFORE_ANY_COLLECTIVE = ("socket-interface-wrong", "rendezvous-name-resolution", "rendezvous-misconfigured")
READING = ("00-start", DUMPS, LOGS)  # seconds, and no GPU
# first words of a line that a look asks for -> what the line shows
_SHOWS = {
    "open ": "Read the code up to this line: it is the last known line of the rank that is to blame.",
    "nccl-runbook hang ": "which rank never reached the collective",
    "nccl-runbook watch ": "which rank is at fault, if the next run hangs",
    "py-spy dump --native": "what the process is doing in native code, below Python",
    "py-spy dump --locals": "the arguments of the calls in which the ranks wait",
    "ss ": "which process listens on the port",
    "nc ": "whether this host can reach the address",
    "ping ": "whether the address answers",
    "dmesg ": "whether the kernel killed the process",
    "ps ": "who started these processes, and when",
}


@dataclasses.dataclass(frozen=True)
class Test:
    """What to do next. ``separates``: causes that its outcome separates; ``about_s``: seconds on four GPUs,
    0 if it only reads; ``costs``: the GPUs that it uses and whom it disturbs; empty if it is no step."""

    line: str
    why: str
    separates: tuple[str, ...] = ()
    about_s: int = 0
    costs: str = ""

    @property
    def steps(self) -> list[str]:
        """Steps that its line runs."""
        return re.findall(r"--step (\S+)", self.line)


def sentence(document: VerdictDocument) -> str:
    """Who, what, where, and how certain, in one sentence."""
    if document.verdict in ("broken", "degraded"):
        return document.sentence
    sound = [s.reason.rstrip(".") for s in document.steps if s.status == "ok"]
    if document.verdict == "healthy":
        return f"Healthy: {'; '.join(sound) or 'the named files show no fault'}."
    unknown = [
        s.reason.rstrip(".")
        for status in ("unknown", "skipped")
        for s in document.steps
        if s.status == status
    ]
    return f"Unknown: {'; '.join([*unknown[:1], *sound])}."


def left(document: VerdictDocument, lead: Finding | None, fits: Sequence[str]) -> list[str]:
    """Causes that are still undecided, most certain first; empty if one is established, or dumps name the
    rank."""
    known = {
        c.id: c for c in document.causes if c.status != "ruled-out" and c.id in causes() and c.id != "benign"
    }
    if any(c.status == "established" for c in known.values()) or (lead and lead.id == "hang-told"):
        return []
    return [c for c in known if known[c].status == "likely"] or [*known] or [*fits]


def cheapest(open_causes: Sequence[str], done: Collection[str]) -> Test | None:
    """Of the remaining steps the one that separates most for its GPU seconds, or for its seconds if it uses
    no GPU; None if none separates anything. Each cause that a step decides is one outcome, all that it cannot
    see are one together; causes count alike, since no frequencies are known."""
    decided = grouped((causes()[cause].decides[0], cause) for cause in open_causes)

    def bits_per_second(step: StepText) -> float:
        shares = [
            n / len(open_causes)
            for n in (*[1] * len(decided[step.name]), len(open_causes) - len(decided[step.name]))
        ]
        return -sum(p * math.log2(p) for p in shares if p) / (step.about_s * max(step.gpus, 1))

    able = [step for step in step_texts().values() if step.name not in done and step.name in decided]
    if not able or len(open_causes) < 2:
        return None
    best = max(able, key=bits_per_second)
    return _test(f"nccl-runbook run --step {best.name}", best.answers, tuple(decided[best.name]))


def _test(line: str, why: str, separates: tuple[str, ...] = ()) -> Test:
    """With the cost of the step that the line runs, which also says what it shows if ``why`` is empty."""
    for step in (step for step in step_texts().values() if f"--step {step.name}" in line):
        return Test(line, why or step.answers, separates, step.about_s, step.costs)
    return Test(line, why or "where each rank is, which is still unknown", separates)


def next_test(
    document: VerdictDocument,
    lead: Finding | None,
    fits: Sequence[str],
    steps: Sequence[str],
    decisions: Mapping[str, Decides],
) -> Test | None:
    """What comes next: what dumps ask for; else the cheapest step that separates the remaining causes; else
    what decides the leading cause; None if nothing helps. ``fits``: causes that only fit the symptom;
    ``steps``: those that decide it; ``decisions``: what decides a cause in this job."""
    for asked in (
        e.text
        for s in document.steps
        for f in s.findings
        for e in f.evidence
        if f.id == "hang-told" and e.source == "next"
    ):
        line = asked.removeprefix("decides: ")
        return _test(line, next((why for words, why in _SHOWS.items() if line.startswith(words)), ""))
    open_causes, done = left(document, lead, fits), {s.notebook for s in document.steps}
    usual = Decides(*causes()[open_causes[0]].decides) if open_causes else None
    first = decisions.get(open_causes[0], usual) if open_causes else None
    if (
        first and first != usual and first.probe == "by hand" and first.line
    ):  # the printed line names the place to look
        return Test(first.line, first.why, (open_causes[0],))
    # only words and no log: a hanging job is looked at first, since it may end
    if (test := cheapest(open_causes, done)) and (lead or not first or first.probe != "hang"):
        return test
    if first:
        if first.probe == "hang" and DUMPS not in done:
            return Test(
                "nccl-runbook look   # on the job's host, while the job hangs",
                "Without a dump, the faulty rank is unknown. Run `look`, or collect dumps next time.",
                (open_causes[0],),
            )
        was_made = first.probe in done and first.line.startswith("nccl-runbook run")
        return _test(first.line, first.why, (open_causes[0],)) if first.line and not was_made else None
    ahead = [name for name in steps if name not in done and document.verdict == "unknown"]
    return _test(f"nccl-runbook run --step {ahead[0]}", "") if ahead else None


def of_words(given: Answer | None) -> Test | None:
    """The command that looks into a complaint without a log; None if the complaint names none."""
    if given is None or given.logs.files:
        return None
    return next(
        (Test(*row) for name, row in catalogue()["commands"].items() if name in given.logs.seen), None
    )


def met(finding: Finding, logs: Logs) -> Finding:
    """The finding, without a cause that prevents ranks from meeting if this job's ranks completed
    collectives."""
    done = min(((t.seq or 0) - 1 for r in logs.ranks for t in r.timeouts), default=0)
    if not 0 < done < 1 << 60 or finding.cause not in _BEFORE_ANY_COLLECTIVE:
        return finding
    progress = Evidence(f"the ranks completed {counted(done, 'collective')} before the timeout", "logs")
    return dataclasses.replace(
        finding, severity=Severity.NOTE, status="ruled-out", evidence=(progress, *finding.evidence)
    )


def plan(test: Test | None, steps: Sequence[str]) -> list[tuple[StepText, str]]:
    """(step, why it is planned), each step once: first those that decide, then those that rule out the rest.
    ``steps``: those that decide the symptom."""
    separating = test.steps if test else []
    reasons = {
        **dict.fromkeys(step_texts(), "rules out other causes"),
        **dict.fromkeys(steps, "decides: this step usually finds the cause of the symptom"),
        **dict.fromkeys(separating, "decides: this step separates the remaining causes"),
    }
    return [
        (step_texts()[name], reasons[name])
        for name in dict.fromkeys([*separating, *steps, *step_texts()])
        if name in step_texts()
    ]


def symptom_recognised(symptom: Symptom) -> Finding:
    """The finding for a symptom that many causes share: it names none and only orders the steps."""
    return Finding(
        "symptom-recognised",
        Severity.NOTE,
        f"{symptom.words}: {symptom.says}",
        (Evidence(symptom.says, "table of symptoms"),),
    )


def following(
    done: Sequence[Record], waiting: Sequence[str], symptom_steps: Sequence[str] = ()
) -> tuple[str, str]:
    """(next step of a run with evidence, empty) or (VERDICT_STEP, why no other step can help). First steps
    that only read; then the cheapest that separates the remaining causes, those that decide one of them, and
    ``symptom_steps``; the others only while nothing is likely."""
    if reading := [name for name in READING if name in waiting]:
        return reading[0], ""
    steps = [r.step for r in done]
    document = verdict_document(RunInfo(id="", started="", planned=steps), done)
    lead = leading(document.steps, document.causes)
    if lead and (
        lead.id == "hang-told"
        or any(c.id == lead.cause and c.status == "established" for c in document.causes)
    ):
        return (
            VERDICT_STEP,
            f"not needed: {next(s.notebook for s in document.steps if lead in s.findings)} already has "
            "the answer",
        )
    open_causes = left(document, lead, ())
    best = cheapest(open_causes, steps)
    ahead = [
        name
        for name in (
            *(best.steps if best else [causes()[c].decides[0] for c in open_causes]),
            *symptom_steps,
        )
        if name in waiting
    ]
    if ahead:
        return ahead[0], ""
    if any(c.status == "likely" for c in document.causes):
        return VERDICT_STEP, "not needed: this step cannot decide between the remaining causes"
    return waiting[0], ""


_ELSEWHERE = ("platform-ascend", "platform-xpu")  # neither NCCL nor its recorder


def to_collect(
    document: VerdictDocument, deciding: Iterable[str], logs: Logs, has_dumps: bool, is_set: Mapping[str, str]
) -> tuple[str, ...]:
    """Lines in the form of this job's launcher; empty if a cause is established, no file could be read, or
    nothing more can be collected. ``deciding``: lines that decide between causes, empty if none is known;
    ``is_set``: variables of the job's script."""
    sure = document.verdict == "healthy" or any(c.status == "established" for c in document.causes)
    nothing_read = not logs.context and all(f.problem for f in logs.files)
    if sure or nothing_read or any(message in logs.seen for message in _ELSEWHERE):
        return ()
    asked, open_causes = "\n".join(deciding), [c for c in document.causes if c.id != "benign"]
    there = {
        "dump": has_dumps,
        "stack": "faulthandler-stack" in logs.seen,
        "log": any(r.network or r.transports for r in logs.ranks),
    }
    # every later torch reads the names of 2.2 as well: for a job that does not say its version
    torch = version(next((r.torch for r in logs.ranks if r.torch), "2.2"))
    rows = [
        row
        for row in table("case/collect")["row"]
        if version(row["since"]) <= torch < version(row["before"])
        and not there.get(row["kind"])
        and (not open_causes or re.search(row["asks"], asked))
    ]
    where = table("case/collect")["where"]
    place = where.get(logs.launcher, where["any"])
    pairs = [
        pair.format(dir=place["dir"]) for row in rows for pair in row["set"] if not _is_set(pair, is_set)
    ]
    if not pairs:
        return ()
    return (
        place["make"],
        *for_launcher(f"export {' '.join(pairs)}", logs.launcher),
        *([place["look"]] if any(row["kind"] == "stack" for row in rows) else []),
        place["read"],
    )


def _is_set(pair: str, is_set: Mapping[str, str]) -> bool:
    """By its name, or its old or new one. Another folder or size serves as well; another
    level of the log does not."""
    name, _, value = pair.partition("=")
    names = {
        name,
        variables()[name].renamed_to,
        *(v.name for v in variables().values() if v.renamed_to == name),
    }
    return any(is_set[n] not in ("", "0") for n in names & {*is_set}) and (
        name != "NCCL_DEBUG" or is_set[name].upper() in (value, "TRACE")
    )
