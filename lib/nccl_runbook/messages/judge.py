"""What several subjects ask the facts of logs: facts of another catalogue read again, who raised first,
and what a clue points to."""

import dataclasses

from nccl_runbook.causes.causes import Advice
from nccl_runbook.logs.facts import ClockOffset, LogLine
from nccl_runbook.logs.text import clock
from nccl_runbook.messages.clues import ECHO, SLOW, Clue, compiled, expressions, says, version
from nccl_runbook.messages.facts import Logs, Seen
from nccl_runbook.messages.lines import OWN, plain


def current(logs: Logs) -> Logs:
    """The facts under the ids of this catalogue; facts from another version are matched again from their
    quoted lines."""
    if logs.catalogue == version():
        return logs
    quoted = [
        *((line, occurrence) for occurrence in logs.seen.values() for line in occurrence.lines),
        *((t.first, Seen([t.first], t.times)) for t in logs.unknown),
    ]
    matched = {
        name: [(line, occurrence) for line, occurrence in quoted if compiled(e).search(plain(line.text))]
        for name, e in expressions().items()
    }
    return dataclasses.replace(
        logs,
        catalogue=version(),
        seen={
            name: Seen(
                list(dict.fromkeys(line for line, _ in of)),
                max(s.times for _, s in of),
                all(s.resumed for _, s in of),
            )
            for name, of in matched.items()
            if of
        },
    )


def raised_first(logs: Logs) -> tuple[list[LogLine], list[LogLine]]:
    """(exceptions of ranks that others waited for: the first and those too close in time to tell; lines of
    waiting ranks). Both empty if no rank raised one of its own, or none waited."""
    waited = {r.rank: r.timeouts[0].at for r in logs.ranks if r.timeouts}
    first = [
        r
        for r in [r for r in logs.ranks if r.first_error and not ECHO.search(r.first_error.text)]
        if r.rank not in waited or surely_after(waited[r.rank], r.first_error, logs)
    ]
    others = [
        line
        for r in logs.ranks
        if r not in first and (r.timeouts or r.warned or (r.first_error and ECHO.search(r.first_error.text)))
        for line in [r.timeouts[0].at if r.timeouts else r.first_error]
        if line is None or any(is_same_attempt(line, one.first_error, logs) for one in first)
    ]
    if not first or not others:
        return [], []
    lead = min(first, key=lambda r: (r.first_error.time is None, when(r.first_error, logs) or 0.0, r.rank))
    rivals = [r for r in first if r is not lead and not surely_after(r.first_error, lead.first_error, logs)]
    return [r.first_error for r in (lead, *rivals)], [line for line in others[:2] if line]


def is_earlier(line: LogLine, logs: Logs) -> bool:
    """Whether the launcher started the ranks again below this line."""
    return any(line.file == again.file and line.line <= again.line for again in logs.again)


def is_same_attempt(line: LogLine, other: LogLine, logs: Logs) -> bool:
    """Whether no restart of the ranks separates these lines; unknown for different files, so true."""
    return line.file != other.file or is_earlier(line, logs) == is_earlier(other, logs)


def when(line: LogLine, logs: Logs) -> float | None:
    """Time of the line in seconds on the first clock, or on its own if nothing connects the clocks; None
    without a time."""
    offset = _offset(line, logs)
    return None if line.time is None else line.time - (offset.offset_s if offset else 0.0)


def surely_after(line: LogLine, other: LogLine, logs: Logs) -> bool:
    """Whether ``line`` was printed after ``other``, beyond the error of their clocks."""
    if line.file == other.file:
        return line.line > other.line
    if line.time is None or other.time is None:
        return False
    if line.host == other.host != "":
        return line.time > other.time
    one, two = _offset(line, logs), _offset(other, logs)
    return bool(one and two and when(line, logs) - when(other, logs) > one.error_s + two.error_s)


def _offset(line: LogLine, logs: Logs) -> ClockOffset | None:
    return next((c for c in logs.clocks if c.clock == clock(line)), None)


@dataclasses.dataclass(frozen=True)
class Indication:
    """Evidence for a cause. ``place``: among equally certain ones the smallest leads; ``advice``: replaces
    the cause's; ``message``: id of the line, if it is one of the catalogue; ``left_behind``: printed in an
    earlier attempt, and another error ended the last one."""

    cause: str
    status: str
    evidence: tuple[LogLine, ...]
    against: tuple[str, ...] = ()
    place: float = 0
    advice: Advice | None = None
    message: str = ""
    left_behind: bool = False


def points_to(clue: Clue, logs: Logs) -> Indication:
    """What a clue that fires points to, with its advice filled from the message's fields."""
    fullest = {  # of the lines of a message, those of the last attempt that name the most values first
        i: sorted(logs.seen[i].lines, key=lambda line: (is_earlier(line, logs), -len(_fields(i, line))))
        for i in (*clue.also, clue.message)
    }
    if clue.above:
        line, head = _under(clue, clue.above, logs)[0]
        fullest |= {clue.message: [line], clue.above: [head]}
    fields = {n: text for i, lines in fullest.items() for n, text in _fields(i, lines[0]).items()}
    return Indication(
        clue.cause,
        clue.status,
        evidence=(*fullest[clue.message][:4], *(fullest[i][0] for i in fullest if i != clue.message)),
        against=(),
        place=100
        + 0.3 * clue.order
        - (100 if clue.also or clue.above else 0),  # what must stand beside a message makes it say more
        advice=clue.advice and clue.advice.filled(fields),
        message=clue.message,
    )


def _fields(message: str, line: LogLine) -> dict[str, str]:
    """Values that the line names, by the groups of the message's expression, without the full stop or comma
    of the sentence that they end; empty if the expression does not match by itself."""
    match = compiled(expressions()[message]).search(plain(line.text))
    return (
        {
            name: value.rstrip(".,;")
            for name, value in match.groupdict().items()
            if value and value.strip(".,;")
        }
        if match
        else {}
    )


def fires(clue: Clue, logs: Logs) -> bool:
    """Whether the clue's line was seen, with everything that must and nothing that must not accompany it."""
    matches = logs.seen.get(clue.message)
    if (
        matches is None
        or (matches.resumed and not clue.stays)
        or (clue.cause in SLOW and clue.status != "established" and not may_be_slow(logs, matches.resumed))
    ):
        return False
    return (
        all(i in logs.seen and _beside(logs.seen[i], matches, logs) for i in clue.also)
        and not any(i in logs.seen and _beside(logs.seen[i], matches, logs) for i in clue.without)
        and (not clue.above or bool(_under(clue, clue.above, logs)))
        and not {line for line, _ in _under(clue, clue.not_above, logs)}.issuperset(matches.lines)
    )


def _beside(other: Seen, matches: Seen, logs: Logs) -> bool:
    """Whether the other message says something about these lines: an error of another attempt does not."""
    return any(
        is_same_attempt(line, match, logs)
        or not any(compiled(OWN[error]).search(line.text) for error in ("looks-odd", "rank-error"))
        for line in other.lines
        for match in matches.lines
    )


def _under(clue: Clue, message: str, logs: Logs) -> list[tuple[LogLine, LogLine]]:
    """(line of the clue, this message in one of the two lines above it), where both are there."""
    above = logs.seen[message].lines if message in logs.seen else []
    return [
        (line, head)
        for line in logs.seen[clue.message].lines
        for head in above
        if head.file == line.file and 1 <= line.line - head.line <= 2
    ]


def may_be_slow(logs: Logs, works: bool = False) -> bool:
    """Whether a reporter complains of slowness, a rate was measured, or it is unknown whether the job failed
    or works: a job that somebody cancelled has not failed."""
    failed = failed_line(logs)
    return (
        says(logs.context, "<slow>")
        or "nccl-tests-row" in logs.seen
        or not (works or says(logs.context, "<complaint>") or (failed and "CANCELLED AT" not in failed.text))
    )


def has_ended(logs: Logs) -> bool:
    """Whether the log shows that the job failed, and nobody reports that the job hangs."""
    return failed_line(logs) is not None and not says(logs.context, "<hang>")


def is_over(logs: Logs) -> bool:
    """Whether a launcher or Slurm says that the job has ended. After a watchdog's line, other ranks may still
    run."""
    return has_ended(logs) and any(
        "exitcode" in line.text or "exited on signal" in line.text or " CANCELLED AT " in line.text
        for message in ("torchrun-failed-pid", "job-ended")
        for line in (logs.seen[message].lines if message in logs.seen else ())
    )


def failed_line(logs: Logs) -> LogLine | None:
    """A line that shows that the job failed, whatever the cause; None without one."""
    ended = logs.seen.get("job-ended")
    return next(
        (row.first_error or row.timeouts[0].at for row in logs.ranks if row.first_error or row.timeouts),
        ended.lines[0] if ended and not ended.resumed else logs.failed,
    )
