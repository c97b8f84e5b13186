"""A raw line made readable: colours, carriage returns and prefixes off; rank, host and time found."""

import collections
import dataclasses
import functools
import re
from typing import NamedTuple

from nccl_runbook.core.secret_values import FORMS
from nccl_runbook.logs.facts import ClockOffset, LogLine

LINE_CHARACTERS = 2000  # longer ones are cut into pieces that overlap by half
MAX_PIECES = 200  # of one line, the first and the last ones: a line of a gigabyte is no message
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\].*$")
# a progress bar without its newline
_GLUED = re.compile(
    r"(?<=[\w%\])>])(?=(?:\[rank\d+\]:)?\[[EWF](?:\d{3,4} \d\d:\d\d:\d\d\.\d+)? \w+\.cpp:\d+\])"
)
# what stands in front of a message; each may come once, in any order, a few in a row
_PREFIX = re.compile(
    r"\s*(?=[\[(\d|>rRIWEDCMTFS]|[\w.-]{1,60}[_-]\d{1,3} {2})(?:"
    r"(?!(?i:step|epoch|iter))[\w.-]{1,60}[_-]\d{1,3} {2,60}\|(?=\s)|"  # docker compose
    r"\[?(?:rank|Rank|RANK)[ _]?(?P<rank>\d{1,6})\]?\s?[:|]\s?|\[rank(?P<rank2>\d{1,6})\]\s?:?|"
    r"\[default\d{1,3}\]:|"
    r"\((?:[\w.:-]{1,80} )?(?:pid|rank)=(?P<pid>\d{1,8})(?:, ip=(?P<ip>[\w.:]{1,60}))?[^)]{0,40}\)|"
    # but for Horovod's list of the tensors that a rank lacks
    r"(?P<srun>\d{1,5}):(?=\s|$)(?! \[[A-Za-z][^\[\]\n]{0,1900}\]\s*$)|"
    r"(?:[A-Z]\w\w [A-Z]\w\w [ \d]\d [\d:]{8} \d{4})?\[(?:1,)?(?P<mpi>\d{1,5})\]<std(?:out|err)>:|"
    r"\[pod/(?P<pod>[\w.-]{1,80})(?:/[\w.-]{1,80})?\]|\[std(?:err|out)\]|"
    r"(?P<stamp>\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?)|"
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?=\s)|\[\d{1,3}(?:;\d{1,3}){0,4}m|\|(?=\s)|"
    r"(?:ERROR|WARNING|INFO|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d+\]|"
    r"> (?=\S)|\d{1,9}:?\s*(?=\[rank\d))"  # the last one is the number that an editor or grep put in front
)
_STAMP = re.compile(r"(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{3,9})")
_NCCL = re.compile(r"(?P<host>[\w.-]{1,80}):(?P<pid>\d{1,8}):\d{1,8} \[(?P<device>\d{1,3})\] ")
_NCCL_END = re.compile(r":\d{1,8} \[\d")  # without it the search for a host would try each letter
_INSIDE = re.compile(
    r"\[(?:PG [^\]]{0,120}|)Rank (\d{1,6})\]|\[rank(\d{1,6})\]|\[Rank (\d{1,6})\]|\b(?:Global rank|RANK|"
    r"Rank) (\d{1,6})\b[,:]"
)
_NAME = re.compile(
    r"(?:rank|task|proc)[_.-]?(\d{1,6})(?!\d)|(?:^|/)(\d{1,5})/std(?:out|err)(?:\.log)?$|fr_rank_(\d+)", re.I
)


class Said(NamedTuple):
    """One line. ``text``: without prefixes; ``rank``, ``pid``: if the line shows them; ``time``: seconds."""

    text: str
    rank: int | None
    host: str
    pid: str
    time: float | None
    times: int = 1


def rank_of_name(name: str) -> int | None:
    """The rank in a file's name (rank3.log, attempt_0/3/stderr.log), or None."""
    match = _NAME.search(name)
    return int(next(g for g in match.groups() if g)) if match else None


def attempt_of_name(name: str) -> tuple[str, int]:
    """(folder of a launch, number of its attempt) from a file's name (x_1/attempt_2/3/stderr.log: torchrun
    --log-dir); ("", 0) for other names."""
    match = re.match(r"(.*/|)attempt_(\d{1,6})/", name)
    return (match[1], int(match[2])) if match else ("", 0)


def pieces(raw: bytes) -> list[str]:
    """The texts in one raw line: without colours, split at carriage returns, cut if very long."""
    text = raw.decode("utf-8", "replace").strip("\x00").replace("\x00", " ")
    text = FORMS["colours"].sub("", text) if "\x1b" in text else text
    if "\r" not in text and len(text) <= LINE_CHARACTERS:
        return _GLUED.split(text) if ".cpp:" in text else [text]
    step = LINE_CHARACTERS // 2
    cut = [
        part[at : at + LINE_CHARACTERS]
        for part in text.split("\r")
        if part
        for at in range(0, max(1, len(part) - step), step)
    ]
    return cut if len(cut) <= MAX_PIECES else cut[: MAX_PIECES // 2] + cut[-MAX_PIECES // 2 :]


@functools.lru_cache(maxsize=4096)  # a line of a new kind is asked for again soon
def who_says(text: str) -> Said:
    """Who printed the line, when, and its text without prefixes."""
    rank, host, pid, time, at = None, "", "", None, 0
    for _ in range(6):
        if not (match := _PREFIX.match(text, at)):
            break
        at, what = match.end(), match.lastgroup  # no two of them stand in one prefix, but for pid and ip
        if what in ("pid", "ip", "pod"):
            pid, host = match["pid"] or pid, match["ip"] or match["pod"] or host
        elif what == "stamp":
            time = _time(match[what])
        elif what and (rank is None or what != "srun"):
            rank = int(match[what])
    rest = text[at:]
    nccl = _NCCL.search(rest[:200]) if "] " in rest and _NCCL_END.search(rest) else None
    if nccl:
        host, pid = host or nccl.group("host"), nccl.group("pid")
    inside = (
        _INSIDE.search(rest)
        if "Rank " in rest or "[rank" in rest or "RANK " in rest or "Global rank " in rest
        else None
    )
    # behind [rankN], which is the job's, another one is that of a group
    rank = int(next(g for g in inside.groups() if g)) if inside and "[rank" not in text[:at] else rank
    again = _REPEATED.search(rest) if "repeated " in rest else None
    times = 1 + min(int(again.group(1)), 10**6) if again else 1
    # in a line that NCCL begins no time is left: it puts it in front of all
    time = time if time or (nccl and not nccl.start()) else _time(rest)
    return Said(rest[: again.start()].rstrip() if again else rest, rank, host, pid, time, times)


def _time(text: str) -> float | None:
    match = (_GLOG.search(text[:120]) or _STAMP.search(text[:80])) if ":" in text else None
    return _seconds(*match.groups()) if match else None


def _seconds(month: str, day: str, hour: str, minute: str, second: str, part: str | None) -> float:
    """Seconds of the year, months of 31 days: good for comparing two lines of one job."""
    return (
        (int(month) * 31 + int(day)) * 86400.0
        + int(hour) * 3600
        + int(minute) * 60
        + int(second)
        + (float(f"0.{part}") if part else 0.0)
    )


LEAST = 3  # shared events: with fewer the error is a guess
# a synchronous step ends everywhere at once, and so does the set-up of a communicator
_STEP = re.compile(
    r"[Pp](?i:(?<=\bstep)(?<!\bjob step)|(?<=\b(g)lobal_step))[ :=#\[]{1,3}\d+\b"
)  # begins with a letter that few words hold
_COMM = re.compile(r"commId 0x([0-9a-f]+) - Init COMPLETE")
MAX_EVENTS = 20_000


@dataclasses.dataclass(eq=False)
class Clocks:
    """When each clock showed each shared event; a clock is a host, or a file without a known host."""

    _seen: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def take(self, line: LogLine, text: str) -> None:
        """Record the line's time if it shows such an event."""
        match = None if line.time is None else _COMM.search(text) or _STEP.search(text)
        if match:
            self.note(f"{match[0]}{match[1]}".lower(), clock(line), line.time)

    def note(self, event: str, clock_name: str, at: float) -> None:
        """Record that the clock of this name showed the event at ``at`` seconds."""
        if len(self._seen) < MAX_EVENTS or event in self._seen:
            self._seen.setdefault(event, {}).setdefault(clock_name, at)

    def offsets(self) -> list[ClockOffset]:
        """Every clock with enough events in common with the best connected one (offset 0), directly or
        through others."""
        shared = [times for times in self._seen.values() if len(times) > 1]
        if not (counts := collections.Counter(name for times in shared for name in times)):
            return []
        first = max(sorted(counts), key=lambda name: counts[name])
        tied = {first: ClockOffset(first, 0.0, 0.0, counts[first])}
        while more := _tied_to(tied, shared):
            tied |= more
        return [tied.pop(first), *(tied[name] for name in sorted(tied))]


def _tied_to(tied: dict[str, ClockOffset], shared: list[dict[str, float]]) -> dict[str, ClockOffset]:
    """Clocks that share enough events with those, and no others."""
    apart: dict[str, list[tuple[float, float]]] = collections.defaultdict(
        list
    )  # seconds, and the error of the clock they are of
    for times in shared:
        known = min(
            (tied[name] for name in times if name in tied),
            key=lambda one: (one.error_s, one.clock),
            default=None,
        )
        for name in times if known else ():
            if name not in tied:
                apart[name].append((times[name] - times[known.clock] + known.offset_s, known.error_s))
    return {name: _offset(name, offsets) for name, offsets in apart.items() if len(offsets) >= LEAST}


def _offset(name: str, offsets: list[tuple[float, float]]) -> ClockOffset:
    import statistics  # takes 10 ms, and is asked for where several hosts share events

    middle = statistics.median(apart for apart, _ in offsets)
    return ClockOffset(
        name,
        round(middle, 3),
        round((max(abs(apart - middle) for apart, _ in offsets) + max(error for _, error in offsets)), 3),
        len(offsets),
    )


def clock(line: LogLine) -> str:
    """Name of the clock that stamped the line."""
    return line.host or line.file
