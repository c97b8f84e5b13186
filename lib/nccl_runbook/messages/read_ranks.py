"""What single lines show about a rank: its devices, versions, transports, sequence numbers,
first error and progress."""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.text import Clocks
from nccl_runbook.messages.clues import ECHO, compiled
from nccl_runbook.messages.facts import RankLog, Timeout
from nccl_runbook.messages.lines import EXPRESSIONS
from nccl_runbook.messages.survived import Survived
from nccl_runbook.messages.survived.attempts import Attempts

_GROUP = re.compile(r"\[PG (?:ID )?(\w+)(?: PG GUID ([^\s(]*))?\s*(?:\(([^)]*)\)\s*)?Rank (\d+)\]")
Found = Mapping[str, re.Match[str]]  # id -> where a line matches it
MAX_CALLS = 50_000
# who failed; whether it was an exception or a fatal line, not a watchdog's; whether it follows no failure of
# another rank; up to where this rank had survived its exceptions
Failure = tuple[int | str, bool, bool, int]


def _who(line: LogLine) -> int | str:
    """The rank that printed the line, or its file if the rank is unknown."""
    return line.file if line.rank is None else line.rank


@dataclasses.dataclass(eq=False)
class Ranks:
    """The table of ranks while logs are read. ``newest``: drop what ranks printed in attempts before the
    last."""

    newest: bool = False
    # how often the launcher started ranks again, by file: each node has one
    again_in: Counter[str] = dataclasses.field(default_factory=Counter)
    # the rank of a process, by host or file, once one of its lines shows it
    of_pid: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    attempts: Attempts = dataclasses.field(default_factory=Attempts)
    over_at: int = -1  # where the launcher or the scheduler last reported the end of the job
    _over: str = ""
    _rows: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    # the last two steps of a rank, or of a file if the rank is unknown, the last one first
    _progress: dict[int | str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    _broke_at: int = -1  # order of the last line of a failure
    # files in which the job said that it ended well, and the rank that said so
    _well: dict[str, int | None] = dataclasses.field(default_factory=dict)
    _versions: dict[str, set[str]] = dataclasses.field(default_factory=lambda: defaultdict(set))
    _comms: dict[int, set[str]] = dataclasses.field(default_factory=lambda: defaultdict(set))
    _calls: dict[tuple[str, str], dict[str | int | None, dict[tuple[str, ...], LogLine]]] = dataclasses.field(
        default_factory=dict
    )
    # the first line of each sort by which a rank, or a file, failed since it last survived an error
    _failures: dict[Failure, tuple[int, LogLine]] = dataclasses.field(default_factory=dict)
    _survived: Survived = dataclasses.field(default_factory=Survived)

    def _row(self, line: LogLine) -> dict[str, Any] | None:
        if line.rank is None:
            return None
        if line.rank not in self._rows:
            self._rows[line.rank] = vars(RankLog(line.rank, [], [], transports=Counter()))
        row = self._rows[line.rank]
        for name, value in (("hosts", line.host), ("files", line.file)):
            if value and value not in row[name] and len(row[name]) < 8:
                row[name].append(value)
        return row

    def take(self, line: LogLine, text: str, pid: str, order: int, matches: Found) -> None:
        """Record what this line shows, given the expressions that match it."""
        self.clocks.take(line, text)
        call, comm = matches.get("rank-call"), matches.get("rank-communicator")
        if call and len(self._calls) < MAX_CALLS:
            op, number, count, datatype, nranks = filter(None, call.groups())
            self._calls.setdefault((number, nranks), {}).setdefault(pid or line.rank, {}).setdefault(
                (op, count, datatype), line
            )
        if comm and pid and int(comm.group(2)) > 1:
            # a rank of a sub-group is no global rank: the first communicator of a
            # process is usually the world
            self.of_pid.setdefault((line.host or line.file, pid), int(comm.group(1)))
        if comm and line.rank is None and int(comm.group(2)) > 1:
            line = LogLine(line.file, line.line, line.text, int(comm.group(1)), line.host, line.time)
        row = self._row(line)
        numbers = {name: matches.get(f"rank-{name}") for name in ("nccl", "torch", "network")}
        took = {name: next(filter(None, match.groups())) for name, match in numbers.items() if match}
        if "nccl" in took and len(self._versions[took["nccl"]]) < 8:
            self._versions[took["nccl"]].add(f"rank {line.rank}" if row else line.host or line.file)
        if (
            not comm or len(matches) > 1
        ):  # a job that opens communicators again and again prints nothing as often
            self._life(line, row, text, order, matches)
        if row is None:
            return
        if comm:
            self._communicator(line.rank or 0, row, comm)
        self._sequence(row, line, text, matches)
        row |= took
        if "rank-via" in matches:
            row["transports"][matches["rank-via"].group(1)] += 1

    def _life(self, line: LogLine, row: dict[str, Any] | None, text: str, order: int, matches: Found) -> None:
        watched, ended = "rank-watched" in matches, "rank-ended" in matches
        if "rank-again" in matches:
            self._restarted(line, order)
        self._over = line.file if "rank-over" in matches else self._over
        if "rank-success" in matches or "tests-passed" in matches:
            self._ended_well(line)
        if "tests-passed" in matches:  # what follows is another program
            del self._well[line.file]
            self._survived.ended_well((_who(line), (line.file,)), text)
        if line.file in self._well and (
            "rank-progress" not in matches
            or '"tracked_stats"' in text
            or self._well[line.file] not in (None, line.rank)
        ):
            # teardown, MLPerf's statistics of the last step, or steps of other ranks
            # that the launcher held back
            return
        error = not watched and "rank-error" in matches and "NCCL INFO" not in text
        own = error and not ECHO.search(text)
        if error or watched:
            who = _who(line)
            self._broke_at = max(self._broke_at, order)
            since = max(self.attempts.began(line.file), self._survived.mark(who))
            self._failures.setdefault((who, error, own, since), (order, line))
        if own:
            self._survived.raised(_who(line), order, text)
        elif "rank-progress" in matches:
            self._went(line, order, text)
            row = self._again(line, order) if self._over == line.file else row
            if row is not None:
                row["progress"] = line
        if ended and not error:
            if "rank-progress" not in matches:  # which was counted above
                self._went(line, order, text)
            self._survived.ended_well((_who(line), (line.file,)), text)
        if row is not None:
            row["ended"], row["warned"] = row["ended"] or ended, row["warned"] or watched

    def _ended_well(self, line: LogLine) -> None:
        """The job survived what was printed before; what follows is its teardown."""
        file, self._well[line.file] = line.file, line.rank
        self._broke_at = -1
        self._failures = {f: at for f, at in self._failures.items() if at[1].file != file}
        for row in self._rows.values():
            row["timeouts"] = [t for t in row["timeouts"] if t.at.file != file]

    def _went(self, line: LogLine, order: int, text: str) -> None:
        who = _who(line)
        self._well.pop(line.file, None)
        self._progress[who] = order, self._progress.get(who, (-1, -1))[0]
        self._survived.stepped((who, (line.file,)), order, text)

    def _survived_to(self, who: int | str) -> int:
        return self._survived.up_to(who, max(self.over_at, self._broke_at))

    def failures(self) -> list[tuple[LogLine, bool, bool]]:
        """(line, whether it is an exception, whether it follows no other rank's failure), without exceptions
        that ranks survived, in the order of the logs."""
        failed = [
            (line, error, own)
            for (who, error, own, _), (order, line) in self._failures.items()
            if order > self._survived_to(who)
        ]
        ended = self.attempts.ended_again(failed)
        return [row for row in failed if not self._is_behind(row[0], ended)]

    def _is_behind(self, line: LogLine, ended: bool) -> bool:
        """Whether a restart left the attempt of this line behind: the ranks went further than before, or
        (``ended``) an error of some rank's own ended the last attempt."""
        return self.attempts.left_behind(line, self._survived.mark((line.file,))) or (
            ended and self.attempts.is_earlier(line)
        )

    def _restarted(self, line: LogLine, order: int) -> None:
        self.attempts.begin(line, order)
        self._survived.restarted(line.file, order)

    def _again(self, line: LogLine, order: int) -> dict[str, Any] | None:
        """After an attempt was over, ranks go on in the same file: the launcher has started them again."""
        self._over = ""
        self.again_in[line.file] += 1
        if self.attempts.began(line.file) < self.over_at:
            self._restarted(line, order)
        if self.newest:  # what other nodes wrote is dropped, or not, by their own files
            self._rows = {rank: row for rank, row in self._rows.items() if line.file not in row["files"]}
            self._failures = {f: at for f, at in self._failures.items() if at[1].file != line.file}
        return self._row(line)

    def _communicator(self, rank: int, row: dict[str, Any], comm: re.Match[str]) -> None:
        rank_there, nranks, cuda, nvml, bus, ident = comm.groups()
        if rank == int(rank_there):
            row["nranks"] = max(int(nranks), row["nranks"] or 0)
        device = " ".join(
            f"{k} {v}" for k, v in (("cudaDev", cuda), ("nvmlDev", nvml), ("busId", bus)) if v is not None
        )
        if device and device not in row["devices"] and len(row["devices"]) < 16:
            row["devices"].append(device)
        if ident:
            self._comms[rank].add(ident)

    def _sequence(self, row: dict[str, Any], line: LogLine, text: str, matches: Found) -> None:
        status, work = matches.get("rank-status"), matches.get("rank-work")
        group = _GROUP.search(text) if status or work else None
        name = (group.group(3) or group.group(2) or group.group(1)) if group else ""
        if status:
            row["enqueued"][name] = max(int(status.group(1)), row["enqueued"].get(name, -1))
            row["completed"][name] = max(int(status.group(2)), row["completed"].get(name, -1))
        if work and len(row["timeouts"]) < 16:
            seq, op, numel, _, limit, ran = work.groups()
            if (seq and int(seq), op) not in {(t.seq, t.op) for t in row["timeouts"]}:
                row["timeouts"].append(
                    Timeout(
                        line,
                        op,
                        seq=int(seq) if seq else None,
                        numel_in=int(numel) if numel else None,
                        timeout_ms=int(limit or -1),
                        ran_ms=int(ran or -1),
                        group=name,
                    )
                )

    def last(self, line: LogLine, order: int) -> None:
        """Record the last line of a known rank, in file order, and progress in it."""
        row = self._row(line)
        row["last"] = line
        went, *broke = (
            compiled(EXPRESSIONS[f"rank-{what}"]).search(line.text)
            for what in ("progress", "error", "watched")
        )
        if went and not any(broke):
            row["progress"] = line
            self._progress[_who(line)] = max((order, -1), self._progress.get(_who(line), (-1, -1)))

    def went_on(self, file: str, rank: int | None, order: int, ended: bool = False) -> bool:
        """Whether this rank (or an unnamed one in this file) made progress after ``order``, and none failed
        later. One unnamed line is not enough: it may have been printed late. After a line of no rank, such
        as a scheduler's, a rank of this file must begin a second step: one that lost a peer ends the step it
        is in. ``ended``: the line reports that a process or the job was ended, so an unnamed rank, too, must
        begin a second step. Otherwise two steps of the same rank suffice, even before an error of its own."""
        who = file if rank is None else rank
        past = max(self._survived_to(who), self._survived.mark((file,)))
        errors = [at for (_, _, own, _), (at, line) in self._failures.items() if own and line.file == file]
        if (
            file in self._well
            or order <= past
            or (not ended and self._survived.ran_on(who, order, max(errors, default=-1)))
        ):
            return True
        ranks = [r for r, row in self._rows.items() if rank is None and file in row["files"]]
        seconds = (self._progress.get(r, (-1, -1))[1] for r in (file, *ranks))
        return max(self._progress.get(who, (-1, -1))[ended], *seconds) > order > self._broke_at

    def rows(self) -> list[RankLog]:
        """The table, by rank."""
        failures = self.failures()
        first = {line.rank: line for line, error, _ in reversed(failures) if error}
        ended = self.attempts.ended_again(failures)
        return [
            RankLog(
                **{
                    **row,
                    "communicators": len(self._comms[rank]),
                    "first_error": first.get(rank),
                    "timeouts": [t for t in row["timeouts"] if not self._is_behind(t.at, ended)],
                }
            )
            for rank, row in sorted(self._rows.items())
        ]

    def apart(self) -> list[LogLine]:
        """The first calls of one number, in groups of one size, that differ between processes."""
        for of_group in self._calls.values():
            one, *others = of_group.values()
            # who only lacks calls of another is in fewer groups, or not as far
            other = next(
                (calls for calls in others if calls.keys() - one.keys() and one.keys() - calls.keys()), None
            )
            if other:
                return [
                    next(line for what, line in a.items() if what not in b)
                    for a, b in ((one, other), (other, one))
                ]
        return []

    def versions(self) -> dict[str, list[str]]:
        """NCCL version -> who printed it."""
        return {version: sorted(who) for version, who in sorted(self._versions.items())}
