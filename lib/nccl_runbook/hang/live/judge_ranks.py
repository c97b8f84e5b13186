"""What one rank does, by a few samples of its process: waits in a collective, works,
sleeps elsewhere, is stopped.

And the picture of a job that is made of such ranks. Python >= 3.9.
"""

import collections
import dataclasses
import re
from typing import Callable, Iterable, List, Optional, Sequence, Tuple

from nccl_runbook.core.facts import Evidence, Gap, counted, grouped, known, rank_names
from nccl_runbook.hang.live.facts import (
    Frame,
    Live,
    LiveGpu,
    LiveRank,
    RasCommunicator,
    RasRank,
    Stack,
    Thread,
)

# a thread that used less CPU between two samples only waited: a wake-up every second
# costs under a tick of 10 ms
STILL_CPU_S = 0.05
STILL_SWITCHES_PER_S = 3  # a wake-up now and then; a step of 200 ms makes at least ten
# a step of 200 ms falls into it more than once, also where the samples are closer together than the steps
LAST_S = 1.0
STILL_SHARE = 0.95  # of the moments in between; the others were the wake-ups
BUSY_SHARE = 0.5  # of those moments on a CPU or ready to run; a share, as CPU time shrinks on a crowded host
GIL_SAMPLES = 4  # stacks at one and the same line: a loop in Python is seen at several
GPU_BUSY = 90  # percent of NVML's utilisation; an NCCL kernel that waits counts as busy

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")
DISTRIBUTED = re.compile(
    r"/torch/distributed/(?!checkpoint/)"
)  # what saves a checkpoint works between its collectives
INIT = frozenset(
    (
        "init_process_group",
        "rendezvous",
        "_create_c10d_store",
        "_env_rendezvous_handler",
        "_store_based_barrier",
        "_new_process_group_helper",
        "new_group",
        "_new_group_with_tag",
    )
)
_DEVICE_WAITS = re.compile(r"/torch/(cuda/|autograd/graph\.py|accelerator/)")
_LOOP = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr)>$")
ON_A_LOCK = re.compile(r"futex")
HOST_WORK = re.compile(r"save|checkpoint|serializ|tokeniz|evaluat|download|load_?data|data_?load", re.I)
WAITING = ("waits", "device", "spins", "lock")


@dataclasses.dataclass(frozen=True)
class RankView:
    """One rank. ``does``: waits (in a collective), device (for its GPU), spins (in one call on a CPU: NCCL
    polls, or it steps), lock (stands still, no stack), stopped, busy, asleep (elsewhere), missing, starting
    (no torch yet), moving, or unknown; ``frame``: where it is in its own code; ``where``: the call that
    it waits in, "" for none; ``helper``: the process of its own that it waits for; ``process``: what was seen
    of it, None where it is missing."""

    rank: Optional[int]
    host: str
    pid: Optional[int]
    does: str
    frame: str = ""
    where: str = ""
    has_gil: bool = False
    helper: str = ""
    process: Optional[LiveRank] = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"


def view(rank: LiveRank, look: Live) -> RankView:
    """What one rank did over the samples: its main thread, or where that only joins others, one that
    is in a collective in all of them."""
    stack = next(reversed(main_stacks(rank)), None)
    where = waits_in(stack) if stack else ""
    does = _does(rank, look, stack, where)
    # sleep() has no frame of its own, join() and what waits for a queue have
    if does == "asleep" and stack and any(_LIBRARY.search(f.file) for f in stack.frames[:1]):
        inside = (
            {s.tid for s in sample.stacks if waits_in(s)}
            for sample in rank.samples
            if not isinstance(sample.stacks, Gap)
        )
        if working := set.intersection(*inside):
            return dataclasses.replace(view(_led_by(min(working), rank), look), process=rank)
    helper = next(filter(None, map(at_work, rank.children)), "") if does in ("busy", "asleep") else ""
    return RankView(
        rank.rank,
        look.host,
        rank.pid,
        does,
        words_of(stack),
        numbered(rank, where, does),
        holds_gil(rank),
        helper,
        rank,
    )


def at_work(helper: Stack) -> str:
    """What a process of a rank is and does; "" for one of a data loader that has nothing to do."""
    parts = {f.file.rpartition("/torch/utils/data/_utils/")[2] for f in helper.frames}  # torch 2.2 to 2.13
    if "worker.py" in parts and "fetch.py" not in parts:
        return ""
    name = (
        f"its data loader's process {helper.tid}"
        if "worker.py" in parts
        else f"its process {helper.tid} ({helper.name})"
    )
    return name + (f", which is in {words_of(helper)}" if helper.frames else "")


def _led_by(tid: int, rank: LiveRank) -> LiveRank:
    """The same with that thread in the place of the main one."""
    return dataclasses.replace(
        rank,
        samples=[
            dataclasses.replace(
                s,
                threads=sorted(s.threads, key=lambda thread: thread.tid != tid),
                stacks=s.stacks
                if isinstance(s.stacks, Gap)
                else sorted(s.stacks, key=lambda stack: stack.tid != tid),
            )
            for s in rank.samples
        ],
    )


def numbered(rank: LiveRank, where: str, does: str) -> str:
    """ "all_reduce 4711", if the flight recorder has that call as the newest
    of its group and not completed."""
    opened = [
        f"{g.op} {g.enqueued}"
        for g in known(rank.recorder)
        if g.enqueued is not None and g.enqueued != g.completed and (where == g.op or does == "device")
    ]
    return opened[0] if len(opened) == 1 else where


def _does(rank: LiveRank, look: Live, stack: Optional[Stack], where: str) -> str:
    if not rank.samples or "gone" in rank.main_thread or rank.samples[-1].threads[0].state in ("Z", "X"):
        return "missing"
    gpu, counts = gpu_of(rank, look), launches(rank, look) or (0, 0)
    gpu_busy = (
        rank.nccl and gpu and all(not isinstance(u, Gap) and u >= GPU_BUSY for u in gpu.utilisation_percent)
    )
    calls, spots = [waits_in(s) for s in main_stacks(rank)], len(set(places(rank)))
    on_cpu = share(rank, lambda what: what[:1] in "RD") >= BUSY_SHARE
    return next(
        does
        for does, fits in (
            ("stopped", all(s.threads[0].state in "Tt" for s in rank.samples)),
            ("starting", not rank.has_torch),
            ("moving", counts[1] > counts[0] or gpu_busy and spots > 1),
            ("device", gpu_busy),
            (_still(rank.samples[-1].threads[0], stack, where), is_still(rank)),
            ("waits", calls and INIT.issuperset(calls)),  # rank 0 looks into its store again and again
            ("busy", on_cpu and not any(calls)),
            ("spins", on_cpu and all(calls) and len(calls) >= GIL_SAMPLES and spots == 1),
            ("moving", moved_last(rank)),
            ("unknown", True),
        )
        if fits
    )


def is_still(rank: LiveRank) -> bool:
    """Its main thread only waited, in one place, from the second sample to the last."""
    first, last = rank.samples[min(1, len(rank.samples) - 1)], rank.samples[-1]
    before, after, moments = first.threads[0], last.threads[0], sum(rank.main_thread.values())
    longest = max((n for what, n in rank.main_thread.items() if what[:1] in "SDTt"), default=0)
    return (
        moments > 0
        and longest >= STILL_SHARE * moments
        and after.cpu_s - before.cpu_s <= STILL_CPU_S
        and after.switches - before.switches <= STILL_SWITCHES_PER_S * (last.at_s - first.at_s)
        and len(set(places(rank))) <= 1
    )


def _still(thread: Thread, stack: Optional[Stack], where: str) -> str:
    """What a thread that stands still does. Asleep in the kernel for anything but a lock is no collective;
    on a lock it is one where torch.distributed is above it or nothing of Python's own is (`work.wait()`
    has no frame of its own)."""
    frames, on_lock = stack.frames if stack else [], ON_A_LOCK.search(thread.waits)
    words = [word for f in frames for word in (f.function, f.file.rpartition("/")[2])]
    return next(
        does
        for does, fits in (
            ("waits", where),
            ("unknown", stack is None and not thread.waits),
            ("lock", stack is None and on_lock),
            ("busy", any(map(HOST_WORK.search, words))),
            ("waits", on_lock and frames and not _LIBRARY.search(frames[0].file)),
            ("asleep", True),
        )
        if fits
    )


def moved_last(rank: LiveRank) -> bool:
    """Its main thread ran in the last second of the samples, and had not come to rest meanwhile."""
    last = rank.samples[-1]
    before = next((s for s in reversed(rank.samples) if s.at_s <= last.at_s - LAST_S), rank.samples[0])
    return (
        last.threads[0].cpu_s > before.threads[0].cpu_s
        or last.threads[0].switches > before.threads[0].switches + 2
    )


def polls(rank: LiveRank) -> bool:
    """It mostly sleeps, is in one place of its own code in every sample, and uses no CPU: for a lock
    of torch's extensions, a file."""
    return (
        share(rank, lambda what: "nanosleep" in what) >= BUSY_SHARE
        and len(set(places(rank))) == 1
        and rank.samples[-1].threads[0].cpu_s - rank.samples[0].threads[0].cpu_s <= STILL_CPU_S
    )


def share(rank: LiveRank, fits: Callable[[str], bool]) -> float:
    """The share of moments between the samples at which the main thread was so."""
    return sum(n for what, n in rank.main_thread.items() if fits(what)) / max(
        1, sum(rank.main_thread.values())
    )


# --- stacks


def main_stacks(rank: LiveRank) -> List[Stack]:
    return [s.stacks[0] for s in rank.samples if not isinstance(s.stacks, Gap) and s.stacks]


def own_frame(stack: Stack) -> Optional[Frame]:
    """The innermost frame that is neither of the standard library nor installed; else the innermost."""
    return next(
        (f for f in stack.frames if not _LIBRARY.search(f.file)), stack.frames[0] if stack.frames else None
    )


def places(rank: LiveRank) -> List[Tuple[str, int]]:
    """Where its own code stood in each sample with stacks: file and line."""
    return [(f.file, f.line) for f in map(own_frame, main_stacks(rank)) if f]


def waits_in(stack: Stack) -> str:
    """The call of torch.distributed, or that waits for a device outside of one, which the
    stack is in; "" for none."""
    device = ""
    for frame in stack.frames:
        if DISTRIBUTED.search(frame.file) and frame.function not in ("wrapper", "<module>"):
            return next((f.function for f in reversed(stack.frames) if f.function in INIT), frame.function)
        if _DEVICE_WAITS.search(frame.file):
            device = device or frame.function
        elif not _LIBRARY.search(frame.file):
            break
    return device


def words_of(stack: Optional[Stack]) -> str:
    """ "save_pretrained, train.py:812"; the innermost call beside it where that is a library's."""
    if stack is None or (frame := own_frame(stack)) is None:
        return ""
    return (
        f"{frame.function}, {frame.file.rpartition('/')[2]}:{frame.line}"
        + f" (in {stack.frames[0].function})" * (stack.frames[0] != frame)
    )


def holds_gil(rank: LiveRank) -> bool:
    """In every sample with stacks the main thread held the interpreter lock, at the very same innermost
    line; a comprehension's own frame (up to Python 3.11) is a loop, which gives the lock away, however often
    it is met at its one line."""
    stacks = main_stacks(rank)
    inner = stacks[0].frames[:1] if len(stacks) >= GIL_SAMPLES else []
    return (
        bool(inner)
        and all(s.owns_gil and s.is_active and s.frames[:1] == inner for s in stacks)
        and not _LOOP.search(inner[0].function)
    )


def by_ras(
    told: RasCommunicator,
    ranks: List[RasRank],
    pid: Optional[int],
    rank: Optional[int],
    world_size: Optional[int],
) -> List[RasRank]:
    """What RAS says of one process: one or none. It tells of all hosts, and pids repeat from host to host,
    in containers above all; a communicator of the whole job has the job's ranks."""
    rows = [r for r in ranks if r.pid == pid and (told.size != world_size or rank is None or r.rank == rank)]
    return rows if len(rows) == 1 else []


def launches(rank: LiveRank, look: Live) -> Optional[Tuple[int, int]]:
    """How many collectives NCCL's RAS says that the rank launched, at the first and the last moment;
    None if RAS did not show it."""
    both = [
        [
            sum(r.launched.values())
            for c in known(look.ras)
            for r in by_ras(c, getattr(c, when), rank.pid, rank.rank, rank.world_size)
            if not r.missing
        ]
        for when in ("ranks", "later")
    ]
    return (sum(both[0]), sum(both[1])) if both[0] and both[1] else None


@dataclasses.dataclass(frozen=True)
class Apart:
    """Ranks that launched another number of one collective than most. ``usual``: the number of most,
    None where no number is that of more than half: then nobody can tell which side is late and
    which made a call too many."""

    call: str
    usual: Optional[int]
    most: int
    ranks: List[RasRank]

    def words(self, rank: RasRank) -> str:
        """ "launched 1 AllReduce fewer than 3 ranks"."""
        more = rank.launched[self.call] - (self.usual or 0)
        return (
            f"launched {abs(more)} {self.call} {'more' if more > 0 else 'fewer'} than "
            f"{counted(self.most, 'other rank')}"
        )

    def is_behind(self, rank: RasRank) -> bool:
        return self.usual is not None and rank.launched[self.call] < self.usual


def apart(ranks: Iterable[RasRank]) -> List[Apart]:
    """One row for each collective that the ranks of a communicator launched different numbers."""
    callers = grouped((call, rank) for rank in ranks if not rank.missing for call in rank.launched)
    return [
        Apart(
            call,
            usual if 2 * most > len(rows) else None,
            most,
            [r for r in rows if r.launched[call] != usual],
        )
        for call, rows in callers.items()
        for usual, most in collections.Counter(rank.launched[call] for rank in rows).most_common(1)
        if most < len(rows)
    ]


def gpu_of(rank: LiveRank, look: Live) -> Optional[LiveGpu]:
    """The GPU on which NVML lists the rank's process; RAS knows it where NVML counts the
    pids of another namespace."""
    indices = {
        r.nvml_index
        for c in known(look.ras)
        for r in by_ras(c, c.ranks, rank.pid, rank.rank, rank.world_size)
    }
    return next((g for g in known(look.gpus) if rank.pid in known(g.pids) or g.nvml_index in indices), None)


# --- a whole job


@dataclasses.dataclass(frozen=True)
class Picture:
    """One job. ``kind``: skipped, mismatch, slow, dead, stopped, gpu-stuck, gil-held, host-busy, unreachable,
    left-over, symmetric, healthy, unknown; ``status``: as of a hypothesis, "" for none; ``decides``: what
    to do or collect next, as a line to paste."""

    job: str
    kind: str
    sentence: str
    culprits: List[RankView]
    victims: List[RankView]
    ranks: List[RankView]
    world_size: Optional[int] = None
    collective: str = ""
    cause: Optional[str] = None
    status: str = ""
    evidence: List[Evidence] = dataclasses.field(default_factory=list)
    not_seen: List[str] = dataclasses.field(default_factory=list)
    decides: str = ""


def accuse(
    base: Picture,
    kind: str,
    culprits: List[RankView],
    why: str,
    cause: Optional[str],
    status: str,
    seen: Iterable[Evidence] = (),
    decides: str = "",
) -> Picture:
    """The picture with its sentence: who did not come, what it does, how many wait for it and where."""
    late = set(culprits)
    victims = [v for v in base.ranks if v not in late and v.does in WAITING]
    collective = next(iter(collections.Counter(v.where for v in victims if v.where)), "")
    hosts = sorted({v.host for v in culprits})[:4] if len({v.host for v in base.ranks}) > 1 else []
    who = f"{names(culprits)}{' on ' * bool(hosts)}{', '.join(hosts)} " * bool(culprits)
    wait = (
        f"; {counted(len(victims), 'rank')} wait{'s' * (len(victims) == 1)} for "
        f"{'it' if len(culprits) == 1 else 'them'}{f' in {collective}' * bool(collective)}"
    )
    sentence = f"{who}{why}{wait * bool(victims and culprits)}"
    own = (
        Evidence(f"{v.name} waits in {v.frame}", f"pid {v.pid} on {v.host}") for v in victims[:4] if v.frame
    )
    return dataclasses.replace(
        base,
        kind=kind,
        sentence=sentence,
        culprits=culprits,
        victims=victims,
        collective=collective,
        cause=cause,
        status=status,
        evidence=[*seen, *own],
        decides=decides or stack_line(culprits or victims),
    )


def names(views: List[RankView]) -> str:
    return rank_names([v.rank if v.rank is not None else f"(pid {v.pid})" for v in views])


def all_wait(views: List[RankView]) -> str:
    """ "rank 3 waits", "all 8 ranks wait"."""
    return f"{views[0].name} waits" if len(views) == 1 else f"all {len(views)} ranks wait"


def is_are(culprits: List[RankView]) -> str:
    return "is" if len(culprits) == 1 else "are"


def stack_line(views: Iterable[RankView]) -> str:
    return next((f"py-spy dump --native --pid {v.pid}" for v in views if v.pid), "")


COLUMNS = ("rank", "host", "pid", "state", "CPU", "waits in", "where it is", "GPU", "does")
MOST_ROWS = 512
DOES = {
    "waits": "waits in a collective",
    "device": "waits for its GPU",
    "spins": "polls in a call",
    "lock": "stands still",
    "stopped": "STOPPED",
    "busy": "works on the host",
    "asleep": "sleeps elsewhere",
    "missing": "NOT THERE",
    "starting": "has not loaded torch",
    "moving": "moves",
    "unknown": "not known",
}
# how what a rank does looks, by a key of markup.TONES; the table and the words beside it say it, too
TONE = {
    **dict.fromkeys(DOES, "broken"),
    **dict.fromkeys(WAITING, "note"),
    "moving": "ok",
    "unknown": "unknown",
}


def cells(look: Live, rank: LiveRank) -> List[str]:
    """What was seen of one rank, by COLUMNS without the last."""
    name = str(rank.rank) if rank.rank is not None else "?"
    if not rank.samples:
        return [name, look.host, str(rank.pid), "gone", "", "", "", ""]
    first, last = rank.samples[0], rank.samples[-1]
    elapsed = last.at_s - first.at_s
    cpu = sum(t.cpu_s for t in last.threads) - sum(t.cpu_s for t in first.threads)
    gpus = (
        []
        if isinstance(look.gpus, Gap)
        else [g for g in look.gpus if not isinstance(g.pids, Gap) and rank.pid in g.pids]
    )
    watts = [
        f"power {g.power_w[-1]}" if isinstance(g.power_w[-1], Gap) else f"{g.power_w[-1]:.0f} W" for g in gpus
    ]
    return [
        name,
        look.host,
        str(rank.pid),
        last.threads[0].state,
        f"{max(0, cpu) / elapsed:.0%}" if elapsed > 0 else "",
        last.threads[0].waits,
        words_of((main_stacks(rank) or [None])[-1]) or "no stack",
        ", ".join(
            f"GPU {g.nvml_index}: {g.utilisation_percent[-1]} %, {power}" for g, power in zip(gpus, watts)
        ),
    ]


def filled(rows: Sequence[Sequence[str]]) -> List[List[str]]:
    """The rows below their names, without columns that are empty in all."""
    return [[row[i] for i, column in enumerate(zip(*rows)) if any(column)] for row in (COLUMNS, *rows)]


def ordered(picture: Picture) -> List[RankView]:
    """Who did not come first, then the others by rank."""
    late = set(picture.culprits)
    return (picture.culprits + [v for v in picture.ranks if v not in late])[:MOST_ROWS]


def table(picture: Picture, looks: Sequence[Live]) -> Tuple[List[str], List[List[str]]]:
    """Column names and one row a rank of the job; columns that are empty for all are left out."""
    seen = {
        (look.host, r.pid): (look, r) for look in sorted(looks, key=lambda one: one.taken) for r in look.ranks
    }
    head, *rows = filled(
        [
            [*row[:6], v.frame or row[6], row[7], DOES[v.does]]
            for v in ordered(picture)
            for it in [seen.get((v.host, v.pid or 0))]
            for row in [cells(*it) if it else [str(v.rank), v.host, *[""] * 6]]
        ]
    )
    return head, rows


def job_name(picture: Picture) -> str:
    return f"job at {picture.job.partition(' in net:')[0]}" if ":" in picture.job else picture.job


def looked_at(looks: Sequence[Live]) -> str:
    """Which hosts, when, and what that did to them."""
    taken = ", ".join(
        f"{look.host} at {look.taken}, {f'samples over {look.gap_s:g} s' if look.gap_s else 'one sample'}"
        for look in looks
    )
    return f"Looked at: {taken}. Nothing was stopped, signalled or changed."
