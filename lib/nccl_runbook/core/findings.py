"""What a judgement looks like: findings, how they add up to a step, and how steps add up to a
verdict. Pure, no thresholds."""

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Literal

from nccl_runbook.core.facts import Evidence as Evidence


class Severity(enum.StrEnum):
    """How bad a finding is: OK < NOTE < WARN < BROKEN. UNKNOWN and SKIPPED stand beside this scale. The
    order here, worst first, decides what a step is called when its findings disagree."""

    BROKEN = "broken"
    WARN = "warn"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    NOTE = "note"
    OK = "ok"


STATUSES = ("established", "likely", "possible", "ruled-out")
# who can change it -> how a remedy begins
WHO = {"you": "to do", "your launcher": "in your launcher", "the administrator": "ask your administrator"}
EXIT_CODES = {"healthy": 0, "broken": 3, "degraded": 3, "unknown": 4}
FAIL_ON = ("broken", "degraded", "unknown", "never")  # from which verdict on the exit code is not 0


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What to change. ``who``: a key of WHO, else ValueError; ``lines``: to be copied as they stand."""

    who: Literal["you", "your launcher", "the administrator"]
    text: str
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.who not in WHO:
            raise ValueError(f"unknown who {self.who!r}; one of {', '.join(WHO)}")


MOST_QUOTED = 100  # characters of a line in the first sentence, which then has two lines of a terminal
UNDECIDED = "log-undecided"  # the finding that names several possible causes: theirs are the fixes
NOTHING_KNOWN = Remedy(
    "you",
    "No known cause matches. When you ask for help, attach the record and the evidence of this finding.",
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One judgement. ``id``: the rule, permanent. ``cause``: an id of the causes table, or None; then
    ``status`` says how certain. ``tried``: results without and with the proposed change, empty if there was
    no such test; ``setting``: the NAME=VALUE that it is about, and that its title may begin with, else empty.

    ValueError for a WARN or BROKEN finding without a remedy, and for a cause without a status.
    """

    id: str
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[Remedy, ...] = ()
    cause: str | None = None
    status: str | None = None
    against: tuple[Evidence, ...] = ()
    tried: str = ""
    setting: str = ""

    def __post_init__(self) -> None:
        if self.severity in (Severity.WARN, Severity.BROKEN) and not self.remedy:
            raise ValueError(f"finding {self.id}: {self.severity.value} needs a remedy")
        if self.cause is not None and self.status not in STATUSES:
            raise ValueError(
                f"finding {self.id}: cause {self.cause} needs a status, one of {', '.join(STATUSES)}"
            )


def quoted(line: str, most: int = MOST_QUOTED) -> str:
    """The line in quotation marks, cut to ``most`` characters."""
    return f'"{cut(line.strip(), most)}"'


def cut(text: str, most: int) -> str:
    """The text up to the last whole word within ``most`` characters, followed by " ..." if anything was left
    out."""
    return text if len(text) <= most else (text[:most].rpartition(" ")[0] or text[:most]) + " ..."


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, worst severity first; equal ones keep their order."""
    return sorted(findings, key=lambda f: [*Severity].index(f.severity))


def step_status(findings: Sequence[Finding]) -> tuple[Severity, str]:
    """Severity and title of the worst finding. No findings at all is UNKNOWN, never healthy."""
    if not findings:
        return Severity.UNKNOWN, "nothing was judged"
    worst = worst_first(findings)[0]
    return worst.severity, worst.title


def verdict(steps: Sequence[tuple[str, bool]]) -> str:
    """healthy, degraded, broken or unknown, from each step's status and whether it was asked for by name.

    Broken if any step is broken, else degraded if any warns, else unknown if there is no step, one is
    unknown or unfinished, or one asked for by name was skipped; else healthy.
    """
    statuses = {status for status, _ in steps}
    all_done = all(status in ("ok", "note") or (status == "skipped" and not asked) for status, asked in steps)
    healthy = "healthy" if statuses & {"ok", "note"} and all_done else "unknown"
    return "broken" if "broken" in statuses else "degraded" if "warn" in statuses else healthy


def verdict_of(findings: Sequence[Finding]) -> str:
    """The verdict if these findings are all that was asked for."""
    return verdict([(step_status(findings)[0].value, True)])


def exit_code(word: str, fail_on: str = "unknown") -> int:
    """Exit code of a verdict: 0, 3 or 4. ``fail_on``, one of FAIL_ON, is the mildest verdict that is not
    0."""
    return EXIT_CODES[word] if fail_on != "never" and word in FAIL_ON[: FAIL_ON.index(fail_on) + 1] else 0


def finding_row(finding: Finding) -> dict[str, str]:
    """The finding as --json lists it; ``replacement``: the lines of its remedies."""
    return {
        "id": finding.id,
        "severity": finding.severity.value,
        "text": finding.title,
        "replacement": "\n".join(line for r in finding.remedy for line in r.lines),
    }
