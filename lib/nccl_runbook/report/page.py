"""index.html: the one page that is passed on. Self-contained, escaped everywhere, and
never larger than MAX_BYTES."""

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from nccl_runbook.causes.causes import causes
from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import NOTHING_KNOWN
from nccl_runbook.core.records import Record, RecordError, read
from nccl_runbook.report.markup import badge, framed
from nccl_runbook.report.pictures import environment
from nccl_runbook.report.tables import Table, not_looked_at_table
from nccl_runbook.report.verdict import VERDICT_STEP, fixes
from nccl_runbook.report.verdict_document import VerdictDocument
from nccl_runbook.report.verdict_sentence import leading

MAX_BYTES = 300_000
# pieces of evidence, tables of what leads, their rows, and fixes; more than that
# is one line until it is opened
LEADING, OPEN_TABLES, OPEN_ROWS, OPEN_CARDS = 6, 2, 16, 3


@dataclasses.dataclass(frozen=True)
class Cut:
    """How much of long values a page shows (sizes in characters and counts); the page says what it leaves
    out."""

    text_chars: int
    json_chars: int
    item_count: int
    sections: bool = True
    columns: int = 72  # a row of a heat map over 8 hosts of 8 GPUs still fits

    def text(self, value: object) -> str:
        """Head and tail of a long text, with the size of what is missing between."""
        return _middle_out(str(value), self.text_chars)

    def json(self, value: Any) -> str:
        """The value as indented JSON, cut in the middle."""
        return _middle_out(json.dumps(value, indent=1, ensure_ascii=False), self.json_chars)


# tried in this order until the page fits
CUTS = (
    Cut(4000, 24_000, 60),
    Cut(2000, 8000, 30),
    Cut(800, 2000, 15),
    Cut(300, 500, 8),
    Cut(200, 0, 8, sections=False),
    Cut(60, 0, 3, sections=False),
)


def _middle_out(text: str, limit: int) -> str:
    """A text longer than ``limit`` as its head, a note of what was cut, and its tail."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return (
        f"{text[:head]} [cut: {len(text) - limit} of {len(text)} characters left out] "
        f"{text[head + len(text) - limit :]}".rstrip()
    )


def render_index(
    document: VerdictDocument,
    records: Iterable[Record],
    files: Collection[str] = (),
    test: object = None,
    diff: str = "",
    collect: Sequence[str] = (),
    fits: Sequence[str] = (),
) -> str:
    """The page of a run or of one command. ``files``: names in the run's folder to link; ``test``:
    case.judge.Test, what to do next; ``diff``: the fix as a change of a script; ``collect``: lines for the
    job's next run; ``fits``: causes that fit the symptom without evidence."""
    known = {r.step: r for r in records if r.step != VERDICT_STEP}
    tables = {step: [_table(data) for data in record.tables] for step, record in known.items()}
    lead, one_step = leading(document.steps, document.causes), len(document.steps) == 1
    ahead = next(
        (
            s.notebook
            for s in document.steps
            if lead in s.findings
            or one_step
            or (not lead and s.reason and s.reason.rstrip(".") in document.sentence)
        ),
        "",
    )
    shown_fixes = fixes(document)
    # a cause that is only possible has no fix yet
    undecided = lead is None or lead.status == "possible"
    weaker = [
        c
        for c in document.causes
        if c.status != "ruled-out"
        and not (lead and c.id == "benign")
        and (c.status == "possible" or not (lead and c.id == lead.cause))
    ]
    context = {
        "doc": document,
        "records": known,
        "tables": tables,
        "fields": {name for record in known.values() for name in record.facts},
        "files": set(files),
        "test": test,
        "diff": diff,
        "collect": collect,
        "fits": fits,
        "counts": _counts(document),
        "verify": "" if undecided else getattr(causes().get(lead.cause), "verify", ""),
        "lead": lead,
        "ahead": ahead,
        # the best picture of the step that leads; if nothing is wrong, of any step
        "picture": max(
            (
                table
                for step, tables_of_step in tables.items()
                if step == ahead or document.verdict == "healthy"
                for table in tables_of_step
                if any(_first_shown(table))
            ),
            key=_first_shown,
            default=None,
        ),
        # whose evidence is shown: the cause that leads; if none leads, the first cause that is a fault
        "proof": next(
            (
                c
                for c in document.causes
                if (c.id == lead.cause if lead else c.status != "ruled-out" and c.id != "benign")
            ),
            lead,
        ),
        "undecided": undecided,
        "apart": [f.title for s in document.steps for f in s.findings if f.id == "several-jobs"],
        "weaker": [c for c in weaker if c.title not in dict(shown_fixes)],
        "ruled_out": [c for c in document.causes if c.status == "ruled-out"],
        "fixes": shown_fixes,
        "fixed": [
            *(remedy for _, remedies in shown_fixes for remedy in remedies),
            *([NOTHING_KNOWN] if document.causes else []),
        ],
        "stands": {
            **{f.title: f.severity.value for s in document.steps for f in s.findings},
            **{c.title: c.status for c in document.causes},
        },
        "by_title": {
            **{
                f.title: f
                for s in document.steps[:1]
                for f in s.findings
                if one_step and not f.cause and f != lead
            },
            **{c.title: c for c in weaker},
        },
        # what would decide a cause is no evidence
        "grounds": lambda f: [e for e in f.evidence if not e.text.startswith("decides: ")],
        "asks": lambda f: [e.text[9:] for e in f.evidence if e.text.startswith("decides: ")],
        "says": {c.id: c.says for c in causes().values()},
        "decided": [causes()[cause].title for cause in getattr(test, "separates", ())],
        "leading": LEADING,
        "open_tables": OPEN_TABLES,
        "open_rows": OPEN_ROWS,
        "open_cards": OPEN_CARDS,
        "gpus": [f"{n} x {name}" if n > 1 else name for name, n in Counter(document.judged.gpus).items()],
        "tried": [(step, trial) for step, record in known.items() for trial in record.tried_by_hand],
        "missing": not_looked_at_table(document),
    }
    template = environment().get_template("index.html.j2")
    below_title = ([_counts(document)] if len(document.steps) > 1 else []) + [
        f"nccl-runbook's exit code {document.exit_code}{', if the run ended now' if document.running else ''}"
    ]
    for cut in CUTS:
        page = framed(
            template.render(context, cut=cut),
            "running" if document.running else document.verdict,
            cut.text(document.sentence),
            " \u00b7 ".join(below_title),
            f"{cut.text(document.run.id)} \u00b7 {cut.text(document.run.started)}",
        )
        if len(page.encode("utf-8", "replace")) <= MAX_BYTES:
            break
    return page


def _first_shown(table: Table) -> tuple[bool, bool]:
    """Whether a cell shows something broken, and whether the table has a picture: the greatest is shown."""
    return any(cell.tone == "broken" for row in table.rows for cell in row), bool(table.picture)


def _counts(document: VerdictDocument) -> str:
    """The number of steps, and how many have each status."""
    words = [s.status for s in document.steps]
    counts = [
        f"{words.count(w)} {badge(w).word}"
        for w in ("broken", "warn", "unknown", "skipped", "note", "ok")
        if w in words
    ]
    return counted(len(words), "step") + (f": {', '.join(counts)}" if counts else "")


def _table(data: dict[str, Any]) -> Table:
    """The recorded table; one of another version that cannot be shown says so."""
    try:
        return read(Table, data)
    except RecordError as error:
        return Table("A table that could not be read", ["why"], [[str(error)]])
