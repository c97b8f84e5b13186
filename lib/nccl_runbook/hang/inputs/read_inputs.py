"""Dumps, logs, stacks and looks, each with its rank; of several from one rank, the newest."""

import collections
import dataclasses
import os
import re
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.hang import read_stacks as stacks
from nccl_runbook.hang.dumps import file as dump_file
from nccl_runbook.hang.dumps.columns import Reading
from nccl_runbook.hang.dumps.times import earlier
from nccl_runbook.hang.facts import EARLIER, HangFile, Stack
from nccl_runbook.hang.live import ask_ras
from nccl_runbook.hang.live.facts import Live, RasAnswer
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.kind import DAMAGED, DUMP_NAME
from nccl_runbook.logs.source import Source
from nccl_runbook.logs.sources import sources
from nccl_runbook.logs.text import rank_of_name
from nccl_runbook.messages import excerpt

PARALLEL_BYTES = 12 << 20  # below, more processes cost about as much as they save
LARGE_BYTES = 12 << 20  # one such dump takes some 100 MB as objects: no two at a time
STACK_BYTES = 4 << 20


@dataclasses.dataclass(eq=False)
class Inputs:
    """Every file once: dumps, stacks and live looks are read, the rest is left to the log reader."""

    paths: dataclasses.InitVar[list[str] | str]
    limit: Limit
    files: list[HangFile] = dataclasses.field(default_factory=list)
    stacks: list[Stack] = dataclasses.field(default_factory=list)
    looks: list[Live] = dataclasses.field(default_factory=list)
    ras: list[RasAnswer] = dataclasses.field(default_factory=list)
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    logs: list[str] = dataclasses.field(default_factory=list)
    read: list[tuple[str, Reading]] = dataclasses.field(default_factory=list)

    def __post_init__(self, paths: list[str] | str) -> None:
        plain: set[str] = set()
        for source in sources(paths, limit=self.limit):
            if source.problem:
                self.logs.append(source.name)  # the log reader reports the problem
            else:
                self._take(source, plain)
        with self.limit.paused():
            self._read_plain(sorted(plain))

    def stamps(self) -> dict[int, float]:
        """Rank -> time of its file, in seconds since the epoch; files in archives have none."""
        return {rank: os.path.getmtime(name) for rank, name in self.names.items() if os.path.isfile(name)}

    def _take(self, source: Source, plain: set[str]) -> None:
        if not (head := source.peek(4096)):
            self.files.append(HangFile(source.name, "", rank_of(source.name), source.problem or "is empty"))
        elif source.plain and head.startswith(b"\x80"):
            plain.add(source.name)
        elif ask_ras.looks_like_ras(head.decode("utf-8", "replace")):
            answers = ask_ras.read_ras(
                excerpt.short(source.name), source.peek(STACK_BYTES).decode("utf-8", "replace")
            )
            self.files.append(
                HangFile(source.name, "ras", None, answers.detail if isinstance(answers, Gap) else "")
            )
            self.ras += [] if isinstance(answers, Gap) else answers
        elif dump_file.looks_like_dump(head):
            if source.size > dump_file.MAX_BYTES:
                self._keep(source.name, None, None, dump_file.TOO_LARGE)
                return
            data = source.peek(dump_file.MAX_BYTES + 1)
            with self.limit.paused():
                self._keep(source.name, *dump_file.outcome(data))
        elif stacks.looks_like_stacks(head.decode("utf-8", "replace")):
            stack = stacks.read(source.name, source.peek(STACK_BYTES).decode("utf-8", "replace"))
            self.files.append(
                HangFile(
                    source.name,
                    "stack",
                    stack and stack.rank,
                    "" if stack else "the rank of these stacks is unknown. Name the file rankN.txt",
                )
            )
            self.stacks += [stack] if stack else []
        elif DUMP_NAME.search(source.name):
            self.files.append(HangFile(source.name, "dump", rank_of(source.name), f"is {DAMAGED}"))
        else:
            self.logs.append(source.name)

    def _read_plain(self, names: list[str]) -> None:
        sizes = [os.path.getsize(n) if os.path.exists(n) else 0 for n in names]
        workers = min(4, os.cpu_count() or 1)
        alone = sum(sizes) < PARALLEL_BYTES or workers < 2 or max(sizes) > LARGE_BYTES
        for name, outcome in zip(
            names, map(dump_file.of_file, names) if alone else dump_file.of_files(names, workers)
        ):
            self._keep(name, *outcome)

    def _keep(self, name: str, reading: Reading | None, looks: Any, problem: str) -> None:
        if reading is not None:
            self.read.append((name, reading))
        elif looks:
            whole = stacks.whole_looks(looks)
            self.files.append(
                HangFile(
                    name, "live", None, "" if whole else "is a record of a different version of this tool"
                )
            )
            self.looks += whole
            self.stacks += stacks.stacks_of(name, whole)
        else:
            what, rank = ("", None) if problem == dump_file.FOREIGN else ("dump", rank_of(name))
            self.files.append(HangFile(name, what, rank, problem))


def rank_of(name: str) -> int | None:
    """The rank in a dump's name: rank_7, nccl_trace_rank_node01_7, dump-7.json, else the last number; None
    without a number."""
    base = os.path.basename(name)
    word = re.search(r"rank[_.-]?(\d{1,7})(?![\d_])", base, re.I)
    numbers = re.findall(r"(?<!\d)\d{1,7}(?!\d)", re.sub(r"\.(?:json|pkl|pickle|gz|xz|bin|log)\b", "", base))
    return int(word.group(1)) if word else int(numbers[-1]) if numbers else rank_of_name(name)


def one_a_rank(inputs: Inputs) -> dict[int, Reading]:
    """Rank -> its dump. If two dumps claim one rank, neither is used, unless one is a later dump of the
    other."""
    claims: dict[int, list[tuple[str, Reading]]] = collections.defaultdict(list)
    for name, reading in sorted(inputs.read, key=lambda pair: pair[0]):
        rank = rank_of(name)
        world = next((ranks for key, (desc, ranks) in reading.members.items() if desc == "default_pg"), ())
        problem = next(
            (
                why
                for applies, why in (
                    (rank is None, "the file's name contains no rank"),
                    (
                        world and rank not in world,
                        f"the file's name says rank {rank}, but the dump's default process group has "
                        "no such rank",
                    ),
                    (
                        any(reading.digest == other.digest for _, other in claims.get(rank, ())),
                        "another file contains the same dump",
                    ),
                )
                if applies
            ),
            "",
        )
        if problem:
            inputs.files.append(HangFile(name, "dump", rank, problem))
        else:
            claims[rank].append((name, reading))
    chosen = {rank: newest for rank, rows in claims.items() if (newest := _newest(rank, rows, inputs))}
    for rank, seconds in earlier(chosen, inputs.stamps()).items():
        why = (
            f"{EARLIER} (or its clock is wrong), because its log ends {seconds:.0f} s before another "
            "rank's log begins"
        )
        inputs.files = [
            dataclasses.replace(f, problem=why) if f.name == inputs.names[rank] else f for f in inputs.files
        ]
        del chosen[rank], inputs.names[rank]
    return chosen


def _newest(rank: int, rows: list[tuple[str, Reading]], inputs: Inputs) -> Reading | None:
    rows = sorted(rows, key=lambda row: (row[1].newest_ns, row[0]))
    *older, (name, newest) = rows
    if not all(
        b.newest_ns > a.newest_ns and (b.members == a.members or b.oldest_ns > a.until_ns)
        for (_, a), (_, b) in zip(rows, rows[1:])
    ):
        inputs.files += [
            HangFile(n, "dump", rank, "two files claim to be of this rank, so neither was used")
            for n, _ in rows
        ]
        return None
    inputs.names[rank] = name
    inputs.files += [HangFile(n, "dump", rank, "another file is a newer dump of this rank") for n, _ in older]
    inputs.files.append(
        HangFile(name, "dump", rank, "" if newest.entries or newest.status else "the dump has no entries")
    )
    return newest
