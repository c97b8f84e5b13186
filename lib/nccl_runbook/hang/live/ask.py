"""A live look at the ranks on this host: first evidence within a second, a second sample after
a gap, nothing disturbed."""

import dataclasses
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, Iterator, List, Tuple, Union

from nccl_runbook.core.facts import Gap, fields_in, grouped, known, utc_now
from nccl_runbook.hang.live import (
    ask_answers,
    ask_proc,
    ask_processes as proc,
    ask_ras,
    ask_sockets as proc_ask_sockets,
    ask_threads as proc_ask_threads,
)
from nccl_runbook.hang.live.facts import Live, LiveGpu, LiveRank, RasCommunicator, Sample, Stack
from nccl_runbook.hang.live.launched.ask_joined import joined
from nccl_runbook.machine import ask_nvml as nvml

SETTLE_S = 0.25  # between the two readings of the first evidence: 25 clock ticks, so that a busy thread shows
TICK_S = 0.1
MOST_HELPERS = 16
NVML_DEADLINE_S = 5.0
STACKS_BETWEEN = 5  # further stacks in the gap: a rank that is elsewhere each time moves
HELPED = re.compile(
    r"/torch/utils/data/dataloader\.py$|/lib/python3\.\d+/(?:subprocess\.py$|multiprocessing/)"
)


@dataclasses.dataclass(eq=False)
class Look:
    """One look at running ranks: ``first()`` returns the first evidence, ``after(gap_s)`` adds later
    samples."""

    pids: Iterable[int] = ()
    began: float = dataclasses.field(default_factory=time.monotonic)
    taken: str = dataclasses.field(default_factory=utc_now)
    gpus: List[Any] = dataclasses.field(default_factory=list)
    ras: List[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks, self.helpers = chosen(list(self.pids))
        self.py_spy = ask_answers.find_py_spy([r.pid for r in self.ranks])
        self.samples: Dict[int, List[Sample]] = {r.pid: [] for r in self.ranks}
        self.main_thread: Dict[int, Dict[str, int]] = {r.pid: {} for r in self.ranks}
        boot, space = (
            ask_proc.read("/proc/sys/kernel/random/boot_id", 64),
            ask_proc.unless_gone("", os.readlink, "/proc/self/ns/pid"),
        )
        self.facts = Live(
            host=os.uname().nodename,
            boot_id=f"{boot.strip()} {space}".strip(),
            taken=self.taken,
            first_s=0.0,
            gap_s=0.0,
            ranks=[],
            ended=[],
            listeners=[],
            gpus=Gap("not-run"),
            ras=Gap("not-run"),
        )

    def first(self) -> Live:
        """The evidence after one moment. Slow answers (NVML, RAS) do not delay those of the ranks."""
        with ThreadPoolExecutor(8) as pool:
            host = pool.submit(self._ask_host)
            self._sample(True)
            looks = list(pool.map(lambda r: ask_proc.unless_gone(None, self._rank, r), self.ranks))
            time.sleep(max(0.0, SETTLE_S - (time.monotonic() - self.began)))
            self._sample(False)
            first_s = round(time.monotonic() - self.began, 2)
            host.result()
        return self._live([r for r in looks if r], first_s=first_s)

    def after(self, gap_s: float) -> Live:
        """The evidence with the samples after ``gap_s`` more seconds."""
        start, stacks_at = (
            time.monotonic(),
            [gap_s * (n + 1) / (STACKS_BETWEEN + 1) for n in range(STACKS_BETWEEN)],
        )
        while time.monotonic() - start < gap_s:
            for rank in self.ranks:
                self._note_main_thread(rank.pid)
            if stacks_at and time.monotonic() - start >= stacks_at[0]:
                stacks_at.pop(0)
                self._sample(True)
            time.sleep(min(TICK_S, max(0.0, gap_s - (time.monotonic() - start))))
        self._ask_host()
        self._sample(True)
        # a rank that was still starting has its sockets by now
        now = {p.pid: ask_proc.unless_gone(None, self._rank, p) for p in self.ranks}
        return self._live(
            [now[r.pid] or r for r in self.facts.ranks], gap_s=round(time.monotonic() - start, 1)
        )

    def _sample(self, with_stacks: bool) -> None:
        with ThreadPoolExecutor(8) as pool:
            taken = pool.map(
                lambda r: ask_proc.unless_gone(None, self._sample_of, r.pid, with_stacks), self.ranks
            )
            for rank, sample in zip(self.ranks, taken):
                self.samples[rank.pid] += [sample] if sample else []  # if it is gone, its samples end here

    def _sample_of(self, pid: int, with_stacks: bool) -> Sample:
        threads = proc_ask_threads.threads(pid)
        stacks = (
            ask_answers.stacks(self.py_spy, pid)
            if with_stacks
            else Gap("not-run", "the process was in no call at this moment")
        )
        return Sample(round(time.monotonic() - self.began, 2), threads, stacks)

    def _note_main_thread(self, pid: int) -> None:
        main_threads = ask_proc.unless_gone([], proc_ask_threads.threads, pid, 1)
        key = f"{main_threads[0].state} {main_threads[0].waits}".strip() if main_threads else "gone"
        self.main_thread[pid][key] = self.main_thread[pid].get(key, 0) + 1

    def _rank(self, process: proc.Process) -> LiveRank:
        """Everything of a rank but its samples; raises OSError if the process is gone."""
        pid = process.pid
        return LiveRank(
            **fields_in(LiveRank, vars(process)),
            rank=process.rank,
            local_rank=process.number(proc.LOCAL_NAMES),
            world_size=process.number(proc.SIZE_NAMES),
            local_world_size=process.number(["LOCAL_WORLD_SIZE"]),
            sockets=proc_ask_sockets.sockets(pid, proc_ask_sockets.table(pid)),
            log_tail=proc_ask_threads.log_tail(pid, process.redactor),
            recorder=ask_answers.recorder(pid, process.variables, process.rank),
            samples=[],
            main_thread={},
            children=list(self._helpers(pid)),
        )

    def _helpers(self, pid: int) -> Iterator[Stack]:
        """The processes that a rank started, if it waits for one of them, as its newest stack shows."""
        if any(
            HELPED.search(frame.file)
            for sample in self.samples[pid][-1:]
            for stack in known(sample.stacks)[:1]
            for frame in stack.frames
        ):
            for helper in self.helpers.get(pid, [])[:MOST_HELPERS]:
                frames = [
                    f for stack in known(ask_answers.stacks(self.py_spy, helper))[:1] for f in stack.frames
                ]
                yield Stack(
                    helper,
                    ask_proc.unless_gone("", ask_proc.read, f"/proc/{helper}/comm").strip(),
                    False,
                    False,
                    frames,
                )

    def _ask_host(self) -> None:
        self.gpus.append(nvml.ask("live", NVML_DEADLINE_S, lambda _, lines, __: lines))
        named = [r.variables["NCCL_RAS_ADDR"] for r in self.ranks if "NCCL_RAS_ADDR" in r.variables]
        self.ras.append(
            ask_ras.ras(named)
            if any(r.nccl for r in self.ranks)
            else Gap("absent", "no rank has libnccl mapped")
        )

    def _live(self, ranks: List[LiveRank], **taken_s: float) -> Live:
        ranks = [
            dataclasses.replace(
                r, samples=list(self.samples[r.pid]), main_thread=dict(self.main_thread[r.pid])
            )
            for r in ranks
        ]
        self.facts = dataclasses.replace(
            self.facts,
            ranks=ranks,
            gpus=gpus_of(self.gpus),
            ras=communicators(self.ras),
            listeners=list(
                proc_ask_sockets.listeners(
                    self.ranks,
                    {r.pid: ask_proc.unless_gone(None, proc_ask_sockets.table, r.pid) for r in self.ranks},
                )
            ),
            ended=proc.ended([r.pid for r in self.ranks]),
            **taken_s,
        )
        return self.facts


def chosen(pids: List[int], others: bool = True) -> Tuple[List[proc.Process], Dict[int, List[int]]]:
    """(ranks on this host in order, rank's pid -> helpers). With ``pids`` only their jobs; with ``others``
    each named process that is no rank comes alone."""
    by_pid = proc.processes(pids)
    ranks, helpers = proc.ranks_among(by_pid)
    ranks = joined(ranks)
    if pids:
        jobs = {
            r.job for r in ranks if {r.pid, *helpers.get(r.pid, []), *ask_proc.ancestors(r.pid)} & set(pids)
        }
        own = {r.pid for r in ranks}
        alone = [
            p
            for pid, p in by_pid.items()
            if pid in pids
            and pid not in own
            and not any(pid in ask_proc.ancestors(r) for r in own)
            and not any(pid in h for h in helpers.values())
        ]
        ranks = [r for r in ranks if r.job in jobs] + alone * others
    return sorted(ranks, key=lambda r: (r.job, r.rank is None, r.rank, r.pid)), helpers


def gpus_of(answers: List[Any]) -> Union[List[LiveGpu], Gap]:
    """GPUs in the first and last answer of NVML's child; a Gap if NVML did not answer."""
    whole = [lines for lines in answers if not isinstance(lines, Gap)]
    if not whole:
        return answers[-1] if answers else Gap("not-run")
    rows = grouped(
        (line["nvml_index"], {k: nvml.m.gap_or(v, lambda given: given) for k, v in line.items()})
        for lines in whole
        for line in lines
        if line["part"] == "live"
    )
    return [
        LiveGpu(
            index,
            [s["utilisation_percent"] for s in readings],
            [s["power_w"] for s in readings],
            readings[-1]["pids"],
        )
        for index, readings in sorted(rows.items())
    ]


def communicators(answers: List[Any]) -> Union[List[RasCommunicator], Gap]:
    """The communicators of the first answer, each with its ranks in the last one; the first answer's Gap."""
    last = {c.id: c.ranks for later in answers[1:][-1:] for c in known(later)}
    return (
        answers[0]
        if isinstance(answers[0], Gap)
        else [dataclasses.replace(c, later=last.get(c.id, [])) for c in answers[0]]
    )
