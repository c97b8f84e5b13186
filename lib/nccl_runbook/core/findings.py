"""What a judgement looks like: findings, how they add up to a step, and how steps add up to a
verdict. Pure, no thresholds."""

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from nccl_runbook.core.facts import Evidence as Evidence


class Severity(enum.StrEnum):
    """How bad a finding is. UNKNOWN and SKIPPED stand beside the scale OK < NOTE < WARN < BROKEN."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


STATUSES = ("established", "likely", "possible", "ruled-out")
# who can change it -> how a remedy begins
WHO = {"you": "to do", "your launcher": "in your launcher", "the administrator": "ask your administrator"}
# worst first; what a step is called when its findings disagree
_STEP_ORDER = (Severity.BROKEN, Severity.WARN, Severity.UNKNOWN, Severity.SKIPPED, Severity.NOTE, Severity.OK)
EXIT_CODES = {"healthy": 0, "broken": 3, "degraded": 3, "unknown": 4}
FAIL_ON = ("broken", "degraded", "unknown", "never")  # from which verdict on the exit code is not 0


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What to change. ``who`` can do it: one of WHO; ``lines`` are to be copied as they stand."""

    who: str
    text: str
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.who not in WHO:
            raise ValueError(f"unknown who {self.who!r}; one of {', '.join(WHO)}")


MOST_QUOTED = 160  # characters of a line in the first sentence
UNDECIDED = "log-undecided"  # the finding that names several possible causes: theirs are the fixes
NOTHING_KNOWN = Remedy(
    "you", "No known cause matches. Save the record, and include the lines above when you ask for help."
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One judgement. ``id``: the rule, permanent. ``cause``: an id of the causes table, or None; then
    ``status`` says how sure. ``tried``: what a test without the proposed change showed, and the same with
    it; "" where none was made.

    Raises ValueError for a finding from WARN up without a remedy, and for a cause without a status.
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

    def __post_init__(self) -> None:
        if self.severity in (Severity.WARN, Severity.BROKEN) and not self.remedy:
            raise ValueError(f"finding {self.id}: {self.severity.value} needs a remedy")
        if self.cause is not None and self.status not in STATUSES:
            raise ValueError(
                f"finding {self.id}: cause {self.cause} needs a status, one of {', '.join(STATUSES)}"
            )


def quoted(line: str, most: int = MOST_QUOTED) -> str:
    """The line that was printed, its beginning where it is long."""
    return f'"{cut(line.strip(), most)}"'


def cut(text: str, most: int) -> str:
    """Its whole words as far as they fit."""
    return text if len(text) <= most else (text[:most].rpartition(" ")[0] or text[:most]) + " ..."


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: _STEP_ORDER.index(f.severity))


def step_status(findings: Sequence[Finding]) -> tuple[Severity, str]:
    """The step's status and one line why: its worst finding. No findings at all is unknown, never health."""
    if not findings:
        return Severity.UNKNOWN, "nothing was judged"
    worst = worst_first(findings)[0]
    return worst.severity, worst.title


def verdict(steps: Iterable[tuple[str, bool]]) -> str:
    """healthy, degraded, broken or unknown. Of each step: its status, a Severity value, and whether
    it was asked for by name.

    Broken if any step is broken, else degraded if any warns, else unknown if any is unknown or did not finish
    (a step asked for by name that is skipped counts so, and so do no steps at all), else healthy.
    """
    steps_and_asked = list(steps)
    statuses = {status for status, _ in steps_and_asked}
    all_done = all(
        status in ("ok", "note") or status == "skipped" and not asked for status, asked in steps_and_asked
    )
    healthy = "healthy" if statuses & {"ok", "note"} and all_done else "unknown"
    return "broken" if "broken" in statuses else "degraded" if "warn" in statuses else healthy


def verdict_of(findings: Sequence[Finding]) -> str:
    """The verdict where these findings are all that was asked for."""
    return verdict([(step_status(findings)[0].value, True)])


def exit_code(word: str, fail_on: str = "unknown") -> int:
    """0, 3 or 4 for a verdict; ``fail_on``, one of FAIL_ON, says from where on it is a failure."""
    return EXIT_CODES[word] if fail_on != "never" and word in FAIL_ON[: FAIL_ON.index(fail_on) + 1] else 0
