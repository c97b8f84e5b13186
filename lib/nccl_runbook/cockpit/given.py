"""What somebody typed or pasted, answered by the engine of `nccl-runbook diagnose`."""
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nccl_runbook.case.answer import Gathered, gather
from nccl_runbook.case.judge import Test, next_test
from nccl_runbook.case.read import Brought, sort
from nccl_runbook.case.table import text
from nccl_runbook.cli.diagnose import _sentence
from nccl_runbook.core.facts import utc_now
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.records import Record, write_text
from nccl_runbook.core.redact import Redactor
from nccl_runbook.look import live
from nccl_runbook.report.verdict import RunInfo, VerdictDocument, leading, verdict_document

WEAKER = ("also ", "and ", "other causes ", "ruled out: ")
GAP_S = 10.0  # between two looks at a process, as the command line has it


@dataclass(frozen=True)
class Answer:
    """What was given, sorted; what was gathered of it, and what it adds up to."""

    brought: Brought
    found: Gathered
    document: VerdictDocument
    lead: Finding | None
    test: Test | None

    @property
    def _told(self) -> list[str]:
        """As the terminal shows it, without the first line, which is the sentence, and the last, which repeats the verdict."""
        return list(filter(None, text(self.document, self.lead, self.found.fits, self.test).splitlines()[1:-1]))

    @property
    def lines(self) -> list[str]:
        return [line for line in self._told if not line.startswith(WEAKER)]

    @property
    def weaker(self) -> list[str]:
        """What stands behind the leading answer."""
        return [line for line in self._told if line.startswith(WEAKER)]


def items(given: str, root: Path, pasted: Path) -> list[str]:
    """What the command line would get: each path, absolute; a line that is none, as it is; several such lines as one file.

    ``root``: the folder that relative paths start from; ``pasted``: where the lines of a log are written to.
    """
    paths: list[str] = []
    rest: list[str] = []
    for line in filter(str.strip, given.splitlines()):
        named = _paths(line.strip(), root)
        paths += named
        rest += [] if named else [line]
    if len(rest) < 2 or not any(" " in line.strip() for line in rest):
        return [*paths, *map(str.strip, rest)]
    write_text(pasted, Redactor(os.environ).text("\n".join([*rest, ""])))
    return [*paths, str(pasted)]


def _paths(line: str, root: Path) -> list[str]:
    """The paths that a line names, blanks between them as in a shell; none if the line is a text."""
    try:
        words = [line] if os.path.lexists(root / os.path.expanduser(line)) else shlex.split(line)
        paths = [root / os.path.expanduser(word) for word in words]
        there = [os.path.lexists(path) for path in paths]
    except (ValueError, OSError):  # a quote that does not close, a zero byte
        return []
    named = any(there) and all(here or "/" in word for here, word in zip(there, words, strict=True))
    return [str(path) for path in paths] if named else []


def ask(given: Sequence[str]) -> Answer:
    """The answer of the engine. Raises ValueError for a path that leads nowhere, and for what cannot be read."""
    brought = sort(given)
    return _answer(brought, gather(brought, None, 0, lambda pids: live.look(live.checked_pids(pids), GAP_S, str)))


def with_run(answer: Answer | None, tested: Sequence[Record]) -> Answer:
    """The answer once the hardware was tested too; what was given is not judged again."""
    found = answer.found if answer else Gathered([])
    known = {r.step for r in found.records}
    records = [*found.records, *(r for r in tested if r.step not in known)]
    return _answer(answer.brought if answer else Brought(), replace(found, records=records))


def _answer(brought: Brought, found: Gathered) -> Answer:
    steps = [r.step for r in found.records]
    document = verdict_document(RunInfo(id="00-start", started=utc_now(), planned=steps, asked=steps), found.records)
    lead = leading(document.steps, document.causes)
    document = replace(document, sentence=_sentence(document, lead, brought))
    return Answer(brought, found, document, lead, next_test(document, lead, found.fits, found.steps))
