"""The answer for a terminal: one sentence, its proof, the fix, what weaker causes there
are, and what comes next."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

from nccl_runbook.case.answer import Case
from nccl_runbook.case.judge import DUMPS, LOGS, plan
from nccl_runbook.causes.causes import causes
from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.core.findings import (
    UNDECIDED,
    WHO,
    Evidence,
    Finding,
    Remedy,
    Severity,
    cut,
)
from nccl_runbook.hang.facts import UNDATED
from nccl_runbook.report.pictures import macros
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.report.verdict_document import Cause

SHOWN, TEXT_CHARACTERS = 4, 240  # of a finding's evidence; of one piece of it
NOT_READ = ("log-not-read", "not-read", "not-planned")  # of what was named
# what a reader must know beside the causes
NOTED = frozenset(
    ["another-job-hangs", "other-vendor", "read-elsewhere", "started-again", "tcp-sockets"]
    + ["run-differs-from-good-run", "symptom-recognised"]
)


def text(case: Case, diff: str = "") -> str:
    """The answer for a terminal, strongest first; weaker findings take one line each. ``diff``: the fix in a
    script."""
    document, lead, test = case.document, case.lead, case.test
    lines = [
        document.sentence,
        *(
            f"   {'not read' if f.id in NOT_READ else 'note'}: {f.title}"
            for s in document.steps
            for f in s.findings
            if f.id in (*NOT_READ, "several-jobs") and f.title not in document.sentence
        ),
        "",
    ]
    behind = [
        c
        for c in document.causes
        if c.status != "ruled-out" and not (lead and c.id == lead.cause) and c.id != "benign"
    ]
    first = lead or next(iter(behind), None)
    if first:
        if first.title.rstrip(".") not in document.sentence:
            lines.append(f"{first.status or first.severity.value}: {first.title}")
        evidence = [e for e in first.evidence if not e.text.startswith("decides: ")]
        fresh = [e for i, e in enumerate(evidence) if not _is_shown(e.text, document.sentence, evidence[:i])]
        # the line that proves it stands before those that only followed, also if the first sentence has it
        if any(e.source != "decoded" for e in fresh) and evidence[0] not in fresh:
            fresh.insert(0, evidence[0])
        known = causes().get(first.cause if lead else first.id)
        # what comes next is said once, below
        fix = [
            dataclasses.replace(r, text=f"{r.text.rstrip(':.')}.", lines=())
            if test and r.lines and _commands(r.lines) <= _commands(test.line.splitlines())
            else r
            for r in first.remedy
        ]
        verify = known.verify if known and fix and first.status != "possible" else ""
        lines += [
            *map(evidence_line, fresh[:SHOWN]),
            *[f"   against: {cut(e.text, TEXT_CHARACTERS)}" for e in first.against[:SHOWN]],
            *(
                [f"   {'If this is the cause: ' if first.status == 'possible' else ''}{known.says}"]
                if known and not any(e.source.endswith("decoded") for e in evidence)
                else []
            ),
            *[line for r in fix for line in remedy(r)],
            *([f"   Tested on this machine: {document.tried}"] if document.tried else []),
            *[f"       {row}" for row in diff.splitlines()],
            *([f"   The fix worked if: {verify}"] if verify else []),
            "",
        ]
    # why the verdict is unknown, and what to do about it
    unseen = [f for s in document.steps for f in s.findings if f.severity is Severity.UNKNOWN and not f.cause]
    lines += [
        line
        for f in unseen
        if not first and f.title.rstrip(".") in document.sentence
        for r in f.remedy
        for line in remedy(r)
    ]
    behind = [c for c in behind if c is not first]
    for cause in behind[:SHOWN]:  # a sentence stands once, a line to copy with each cause
        lines += [line for line in _weaker(cause, first) if line not in lines or line.startswith("       ")]
    lines += [
        *(
            f"and {counted(len(those), 'more cause')}{place}: {'; '.join(c.title for c in those)} "
            "(shown on the page that --html FILE writes)"
            for place, those in grouped((_in_file(c), c) for c in behind[SHOWN:]).items()
        ),
        *(
            [
                "other possible causes of this symptom, for which there is no evidence: "
                + "; ".join(c.title for c in case.found.fits)
            ]
            if case.found.fits
            else []
        ),
        *(
            ": ".join(
                [f"ruled out: {c.title} [{c.id}]", *(cut(e.text, TEXT_CHARACTERS) for e in c.evidence[:1])]
            )
            for c in document.causes
            if c.status == "ruled-out"
        ),
    ]
    also = [
        f
        for s in document.steps
        for f in _beside(s.findings, lead, lead is None)
        if f.title.rstrip(".") not in document.sentence
        and not any(e.text in document.sentence for e in f.evidence)
    ]
    lines += [
        line
        for f in also[:SHOWN]
        for line in (
            f"{f.severity.value}: {f.title}",
            *(row for r in f.remedy[:1] for row in remedy(r) if f.severity is Severity.WARN or f.id in NOTED),
        )
    ]
    lines += [
        f"not seen: {line.removeprefix(DUMPS + ': ')}"
        for line in document.not_looked_at
        if line.startswith(DUMPS)
    ][:SHOWN]
    if test:
        line = test.line.replace("\n", "\n      ")
        shows = (
            f"this answers: {test.why}"
            if test.why.endswith("?")
            else test.why
            if test.why.endswith(".")
            else f"this shows {test.why}"
        )
        lines += [
            f"next: {line}",
            f"      {shows}" + (f" (about {test.about_s} s, {test.costs})" if test.about_s else ""),
            *(
                [f"      its outcome decides: {'; '.join(causes()[c].title for c in test.separates)}"]
                if test.about_s and any(causes()[c].title not in document.sentence for c in test.separates)
                else []
            ),
        ]
    if case.collect:
        known = any(c.id != "benign" for c in document.causes)
        when = "" if known or case.found.fits else ", if the job fails or hangs"
        lines += [
            f"in the next run{when}, collect the missing evidence:",
            *(f"       {row}" for row in case.collect),
        ]
    return "\n".join([*lines, f"verdict: {document.verdict} (exit code {document.exit_code})"])


def _commands(lines: Iterable[str]) -> set[str]:
    """The lines without their comments."""
    return {line.partition("   #")[0] for line in lines}


def _in_file(cause: Cause | Finding) -> str:
    """ " in FILE": where the first line that points to it stands; empty if no log has it."""
    place = re.match(rf"(?:{LOGS}: )?(.+) line \d", cause.evidence[0].source if cause.evidence else "")
    return f" in {place[1]}" if place else ""


def _weaker(cause: Cause, first: Cause | Finding | None) -> Iterator[str]:
    """A cause in one line, with its file if that is not the one of ``first``; if it is more than possible,
    with its fix, which is needed as well."""
    elsewhere = _in_file(cause) if first and _in_file(cause) != _in_file(first) else ""
    yield f"also {cause.status}: {cause.title} [{cause.id}]{elsewhere}"
    yield from (
        line for r in cause.remedy[:1] if cause.status in ("likely", "established") for line in remedy(r)
    )


def evidence_line(evidence: Evidence) -> str:
    """What was seen, with its place (unless that is a fact of a record); or what such lines show together."""
    place = evidence.source.removeprefix(f"{LOGS}: ")
    shown = bool(place) and not re.search(r"\[\d+\]\.\w", place)
    return (
        f"   {evidence.text}"
        if place == "decoded"
        else f"   {'but' if place == UNDATED else 'seen'}: {cut(evidence.text, TEXT_CHARACTERS)}"
        + (f"  ({place})" if shown else "")
    )


def remedy(r: Remedy) -> list[str]:
    """Lines of text: who can do it, what, and the lines to copy."""
    return [
        f"   {WHO[r.who]}: {r.text.removeprefix('If this is the cause: ')}",
        *(f"       {line}" for line in r.lines),
    ]


def _beside(findings: Iterable[Finding], lead: Finding | None, all_notes: bool) -> list[Finding]:
    """Problems without a cause, and what could not be read; ``all_notes``: also every note."""
    return [
        f
        for f in findings
        if f.cause is None
        and f != lead
        and f.id not in ("no-cause-in-log", UNDECIDED, "several-jobs", *NOT_READ)
        and (
            f.severity in (Severity.BROKEN, Severity.WARN, Severity.UNKNOWN)
            or f.id in NOTED
            or (all_notes and f.severity is Severity.NOTE)
        )
    ]


def _is_shown(text: str, sentence: str, before: Iterable[Evidence]) -> bool:
    """Whether the first sentence or an earlier line already states it."""
    return text.strip().rstrip(".") in sentence or any(text.strip() in e.text for e in before)


@dataclasses.dataclass(repr=False)
class Answer:
    """The answer as a notebook or a terminal shows it. ``below``: further tables and lines of a notebook."""

    case: Case
    below: tuple[Any, ...] = ()

    def _repr_html_(self) -> str:
        return "".join([card(self.case), *(part._repr_html_() for part in self.below)])

    def __repr__(self) -> str:
        return "\n\n".join([text(self.case), *map(repr, self.below)])


def card(case: Case | None, run: object = None, page: str = "") -> str:
    """The answer as HTML. ``run``, ``page``: what was tested since, and its report."""
    return str(macros("cells.html.j2").answer(case, text(case).splitlines()[1:-1] if case else [], run, page))


def plan_table(case: Case, gpus: int = 4) -> Table:
    """The steps that could follow, in deciding order, with their seconds on so many GPUs."""
    rows = [
        [
            step.name,
            step.answers,
            f"{step.seconds(gpus)} s",
            step.costs,
            Cell(why, "note" if why.startswith("decides") else ""),
        ]
        for step, why in plan(case.test, case.found.steps)
    ]
    return Table(
        "Plan of steps, with the deciding steps first",
        ["step", "what it answers", "about", "what it uses", "why it is planned"],
        rows,
        "A run first reads files, then runs tests, and ends as soon as a cause is established. The "
        f"seconds are estimates for {counted(gpus, 'GPU') if gpus else 'a machine without a GPU'}.",
    )
