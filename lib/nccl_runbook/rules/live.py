"""Who did not come, and why: what live looks at the ranks of a job mean. Standard library and Python >= 3.9: nccl-look.pyz holds it, too.

A rank is accused only where others stand still and it is seen to be elsewhere, stopped or not there. Without a second sample nothing
is called hung.
"""
from __future__ import annotations

import collections
import dataclasses
import re
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from nccl_runbook.facts import Gap
from nccl_runbook.facts.live import Frame, Live, LiveGpu, LiveRank, Stack, Thread

RESTS_ON = ("live",)
STILL_CPU_S = 0.05  # a thread that used less CPU between two samples only waited: a wake-up every second costs under a tick of 10 ms
STILL_SHARE = 0.95  # of the moments in between; the others were the wake-ups
BUSY_SHARE = 0.5  # of the moments between the samples on a CPU or ready to run; a share, as CPU time shrinks on a crowded host
WAITS_MOST, WAITS_LEAST, APART = 0.6, 0.4, 0.35  # shares of time in waits: a straggler of 200 ms at steps of 250 ms gives 0.8 and 0.2
GPU_BUSY, GPU_IDLE = 90, 5  # percent of NVML's utilisation; a waiting NCCL kernel counts as busy

_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")
_DISTRIBUTED = re.compile(r"/torch/distributed/")
_INIT = frozenset(("init_process_group", "rendezvous", "_create_c10d_store", "_env_rendezvous_handler", "_store_based_barrier",
                   "_new_process_group_helper", "new_group", "_new_group_with_tag"))
_DEVICE_WAITS = re.compile(r"/torch/(cuda/|autograd/graph\.py|accelerator/)")
_CHANNEL_OF_WAITS = re.compile(r"futex")
_HOST_WORK = re.compile(r"save|checkpoint|serializ|tokeniz|evaluat|download|load_dataset|dataloader", re.I)


@dataclasses.dataclass(frozen=True)
class Seen:
    """One piece of evidence: what, and where it was seen."""

    text: str
    source: str


@dataclasses.dataclass(frozen=True)
class RankView:
    """One rank in words. ``is``: waits, stopped, busy, asleep, device, missing, starting, moving or unknown; ``frame``: where it is."""

    rank: Optional[int]
    host: str
    pid: Optional[int]
    does: str
    frame: str
    where: str  # the call that it waits in, "" for none
    note: str = ""

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"


@dataclasses.dataclass(frozen=True)
class Picture:
    """One job. ``kind``: skipped, mismatch, slow, dead, stopped, gpu-stuck, gil-held, host-busy, unreachable, symmetric, healthy, unknown;
    ``status``: as of a hypothesis, "" for none; ``decides``: what to do or collect next, as a line to paste."""

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
    evidence: List[Seen] = dataclasses.field(default_factory=list)
    not_seen: List[str] = dataclasses.field(default_factory=list)
    decides: str = ""


# --- one rank

def is_still(rank: LiveRank) -> bool:
    """Its main thread only waited, in one place, from the second sample to the last."""
    first, last = rank.samples[-2 if len(rank.samples) == 2 else 1], rank.samples[-1]
    moments = sum(rank.main_thread.values())
    waiting = max((n for what, n in rank.main_thread.items() if what[:1] in "SDTt"), default=0)
    return (moments > 0 and waiting >= STILL_SHARE * moments and last.threads[0].cpu_s - first.threads[0].cpu_s <= STILL_CPU_S
            and len(set(places(rank))) <= 1)


def places(rank: LiveRank) -> List[Tuple[str, int]]:
    """Where its own code stood in each sample with stacks: file and line."""
    return [(f.file, f.line) for f in map(own_frame, main_stacks(rank)) if f]


def main_stacks(rank: LiveRank) -> List[Stack]:
    return [s.stacks[0] for s in rank.samples if not isinstance(s.stacks, Gap) and s.stacks]


def own_frame(stack: Stack) -> Optional[Frame]:
    """The innermost frame that is neither of the standard library nor installed; else the innermost."""
    return next((f for f in stack.frames if not _LIBRARY.search(f.file)), stack.frames[0] if stack.frames else None)


def waits_in(stack: Stack) -> str:
    """The call of torch.distributed, or that waits for a device, which the stack is in; "" for none."""
    for frame in stack.frames:
        if _DISTRIBUTED.search(frame.file) and frame.function not in ("wrapper", "<module>"):
            names = [f.function for f in stack.frames if f.function in _INIT]
            return names[-1] if names else frame.function
        if _DEVICE_WAITS.search(frame.file):
            return frame.function
        if not _LIBRARY.search(frame.file):
            break
    return ""


def share(rank: LiveRank, fits: Callable[[str], bool]) -> float:
    """The share of moments between the samples at which the main thread was so."""
    return sum(n for what, n in rank.main_thread.items() if fits(what)) / max(1, sum(rank.main_thread.values()))


def words_of(frame: Optional[Frame], stack: Optional[Stack]) -> str:
    """ "save_pretrained, train.py:812"; the innermost call beside it where that is a library's."""
    if frame is None:
        return ""
    inner = stack.frames[0] if stack and stack.frames else frame
    return f"{frame.function}, {frame.file.rpartition('/')[2]}:{frame.line}" + (f" (in {inner.function})" if inner != frame else "")


def holds_gil(rank: LiveRank) -> bool:
    """In each sample with stacks the main thread held the interpreter lock, at the very same innermost line."""
    stacks = main_stacks(rank)
    return len(stacks) > 1 and all(s.owns_gil and s.is_active for s in stacks) and len({s.frames[0] for s in stacks if s.frames}) == 1


def view(rank: LiveRank, host: str, gpu: Optional[LiveGpu]) -> RankView:
    """What one rank did over the samples."""
    stacks = main_stacks(rank)
    stack = stacks[-1] if stacks else None
    frame, where = own_frame(stack) if stack else None, waits_in(stack) if stack else ""
    thread = rank.samples[-1].threads[0] if rank.samples else None
    if thread is None:
        does = "missing"
    elif all(s.threads[0].state in "Tt" for s in rank.samples):
        does = "stopped"
    elif not rank.has_torch:
        does = "starting"
    elif gpu and where != "" and not is_still(rank) and gpu_is(gpu, GPU_BUSY) or gpu and rank.nccl and gpu_is(gpu, GPU_BUSY):
        does = "device" if len(set(places(rank))) <= 1 else "moving"
    elif is_still(rank):
        does = _still(thread, stack, where)
    elif share(rank, lambda what: what[:1] in "RD") >= BUSY_SHARE and not any(map(waits_in, stacks)):
        does = "busy"
    else:
        does = "moving" if moved_last(rank) else "unknown"
    return RankView(rank.rank, host, rank.pid, does, words_of(frame, stack), where, holds_gil(rank) and "holds the GIL" or "")


def _still(thread: Thread, stack: Optional[Stack], where: str) -> str:
    """What a thread that stands still does. Asleep in the kernel for anything but a lock is no collective; on a lock it is one where
    torch.distributed is above it or nothing of Python's own is (`work.wait()` has no frame of its own)."""
    if where:
        return "waits"
    if stack is None:
        return "asleep" if thread.waits and not _CHANNEL_OF_WAITS.search(thread.waits) else "unknown"
    if any(_HOST_WORK.search(f.function) or _HOST_WORK.search(f.file.rpartition("/")[2]) for f in stack.frames):
        return "busy"
    native = stack.frames and not _LIBRARY.search(stack.frames[0].file) and _CHANNEL_OF_WAITS.search(thread.waits)
    return "waits" if native else "asleep"


def moved_last(rank: LiveRank) -> bool:
    """Its main thread ran between the last two samples, so that it had not come to rest meanwhile."""
    before, last = rank.samples[-2:] if len(rank.samples) > 1 else rank.samples * 2
    return last.threads[0].cpu_s > before.threads[0].cpu_s or last.threads[0].switches > before.threads[0].switches + 2


def gpu_is(gpu: LiveGpu, least: int) -> bool:
    return all(not isinstance(u, Gap) and u >= least for u in gpu.utilisation_percent)


def gpu_of(rank: LiveRank, look: Live) -> Optional[LiveGpu]:
    """The GPU on which NVML lists the rank's process; RAS knows it where NVML counts the pids of another namespace."""
    if isinstance(look.gpus, Gap):
        return None
    by_ras = {(r.pid, r.nvml_index) for c in ([] if isinstance(look.ras, Gap) else look.ras) for r in c.ranks}
    return next((g for g in look.gpus if not isinstance(g.pids, Gap) and rank.pid in g.pids or (rank.pid, g.nvml_index) in by_ras), None)


# --- one job

def judge(looks: Sequence[Live]) -> List[Picture]:
    """One picture a job, over the hosts that were looked at; none where no rank was found."""
    jobs: Dict[str, List[Tuple[LiveRank, Live]]] = {}
    for look in looks:
        for rank in look.ranks:
            jobs.setdefault(rank.job, []).append((rank, look))
    return [_picture(job, members) for job, members in jobs.items()]


def _picture(job: str, members: List[Tuple[LiveRank, Live]]) -> Picture:
    views = sorted((view(r, look.host, gpu_of(r, look)) for r, look in members), key=lambda v: (v.rank is None, v.rank, v.pid))
    base = Picture(job, "unknown", "", [], [], views, _world_size(members), not_seen=list(_not_seen(members)))
    if any(look.gap_s == 0 for _, look in members):
        return dataclasses.replace(base, sentence=f"{len(views)} ranks seen once; whether they move, a second sample tells",
                                   decides="look again with --gap 10")
    for judgement in (_stopped, _differing_worlds, _missing, _unreachable, _behind, _elsewhere, _together, _slow, _moving):
        found = judgement(base, members)
        if found:
            return found
    return dataclasses.replace(base, sentence="who waits for whom cannot be told from what was seen", decides=_stack_line(views))


def _world_size(members: List[Tuple[LiveRank, Live]]) -> Optional[int]:
    sizes = collections.Counter(r.world_size for r, _ in members if r.world_size)
    return sizes.most_common(1)[0][0] if sizes else None


def _told(base: Picture, kind: str, culprits: Iterable[RankView], why: str, cause: Optional[str], status: str,
          evidence: Iterable[Seen] = (), decides: str = "") -> Picture:
    """The picture with its sentence: who did not come, what it does, how many wait for it and where."""
    accused = list(culprits)
    victims = [v for v in base.ranks if v not in accused and v.does in ("waits", "device")]
    wheres = collections.Counter(v.where for v in victims if v.where)
    collective = wheres.most_common(1)[0][0] if wheres else ""
    waiting = f"; {_count(len(victims), 'rank')} wait{'s' if len(victims) == 1 else ''} for it" + (f" in {collective}" if collective else "")
    sentence = f"{_names(accused)} {why}" + (waiting if victims else "")
    own = [Seen(f"{v.name}: {v.does}, {v.frame}", f"{v.host} pid {v.pid}") for v in victims[:4] if v.frame]
    return dataclasses.replace(base, kind=kind, sentence=sentence, culprits=accused, victims=victims, collective=collective, cause=cause,
                               status=status, evidence=[*evidence, *own], decides=decides or _stack_line(accused or victims))


def _names(views: List[RankView]) -> str:
    numbers = [str(v.rank) if v.rank is not None else f"(pid {v.pid})" for v in views]
    return ("ranks " if len(numbers) > 1 else "rank ") + ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if numbers[8:] else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _stack_line(views: Iterable[RankView]) -> str:
    return next((f"py-spy dump --native --pid {v.pid}" for v in views if v.pid), "")


def _stopped(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    stopped = [v for v in base.ranks if v.does == "stopped"]
    if not stopped:
        return None
    return _told(base, "stopped", stopped, "is stopped (process state T): a signal, a debugger or a batch system holds it", "peer-stopped",
                 "established", [Seen(f"{v.name} is in state T in every sample", f"/proc/{v.pid}/stat on {v.host}") for v in stopped],
                 f"kill -CONT {stopped[0].pid}")


def _differing_worlds(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """Ranks that were started with another world size than most, or with the same rank number twice, and now wait."""
    sizes = collections.Counter(r.world_size for r, _ in members if r.world_size)
    if len(sizes) < 2 or not any(v.does == "waits" for v in base.ranks):
        return None
    told = ", ".join(f"{size} in {_count(n, 'rank')}" for size, n in sizes.most_common())
    (common, most), (_, second) = sizes.most_common(2)
    odd = {r.pid for r, _ in members if r.world_size not in (common, None)} if most > second else set()
    seen = [Seen(f"WORLD_SIZE: {told}", "environment of the ranks")]
    return _told(base, "mismatch", [v for v in base.ranks if v.pid in odd], f"was started with another WORLD_SIZE ({told})" if odd else
                 f"the ranks were started with different WORLD_SIZE ({told})", "rendezvous-misconfigured", "established", seen)


def _missing(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """Ranks that should be on the hosts that were looked at, and are not there while others wait."""
    gone = missing_ranks(members)
    starting = [v for v in base.ranks if v.does == "starting"]
    if not any(v.does in ("waits", "device") for v in base.ranks) or not gone and not starting:
        return None
    if not gone:
        return _told(base, "host-busy", starting, "has not loaded torch yet", "start-skew", "likely")
    host = members[0][1].host
    views = [RankView(rank, host, None, "missing", "", "") for rank in gone]
    ended = [e for e in {e.pid: e for _, look in members for e in look.ended}.values() if len(gone) == 1]
    seen = [Seen(f"a process of the same launcher ended: pid {e.pid}, {_ending(e.code)}", f"/proc/{e.pid}/stat") for e in ended]
    port = next((one for _, look in members for one in look.listeners if one.job == base.job and one.who in ("other", "unseen")), None)
    base = dataclasses.replace(base, ranks=sorted(base.ranks + views, key=lambda v: (v.rank is None, v.rank)))
    if port and 0 in gone:
        owner = f"{port.name}, pid {port.pid}" if port.pid else "a process of another user"
        seen.append(Seen(f"port {port.port}, where the ranks should meet, is held by {owner}: no rank of this job", "/proc/net/tcp"))
        return _told(base, "dead", views, f"is not there, and port {port.port} is held by {owner}", "rendezvous-port-in-use", "likely", seen,
                     f"ss -ltnp 'sport = :{port.port}'")
    why = f"is not there: its process {_ending(ended[0].code)}" if ended else "is not there: it ended, or was never started"
    in_init = all(v.where in _INIT for v in base.ranks if v.does == "waits")
    return _told(base, "dead", views, why, "rendezvous-misconfigured" if in_init and not ended else "peer-crashed", "likely", seen,
                 "dmesg -T | grep -i -E 'oom|killed process'")


def missing_ranks(members: List[Tuple[LiveRank, Live]]) -> List[int]:
    """Ranks without a process on a host that should have them: all where the ranks meet on loopback, else by LOCAL_WORLD_SIZE."""
    seen = {r.rank for r, _ in members}
    sizes = {r.world_size for r, _ in members}
    if None in seen or len(sizes) != 1 or None in sizes:
        return []
    if all(" in net:" in r.job for r, _ in members):
        return [n for n in range(min(sizes)) if n not in seen][:4096]
    expected = {r.rank - r.local_rank + n for r, _ in members if r.local_rank is not None and r.local_world_size
                for n in range(min(r.local_world_size, 64))}
    return sorted(expected - seen)


def _ending(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"exited with {code}"


def _unreachable(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """A rank whose connection is not answered while it waits to join."""
    asking = {r.pid: s for r, _ in members if not isinstance(r.sockets, Gap) for s in r.sockets if s.state == "SYN-SENT"}
    accused = [v for v in base.ranks if v.pid in asking and v.does in ("waits", "asleep", "unknown")]
    if not accused:
        return None
    seen = [Seen(f"{v.name}: SYN-SENT from {asking[v.pid].local} to {asking[v.pid].remote}, no answer", "/proc/net/tcp") for v in accused]
    return _told(base, "unreachable", accused, f"gets no answer from {asking[accused[0].pid].remote}", "network-path-blocked", "likely", seen,
                 f"nc -vz {asking[accused[0].pid].remote.replace(':', ' ')}")


def _behind(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """Ranks that launched fewer collectives than the others, by NCCL's RAS, while no count moved."""
    for c in (c for _, look in members for c in ([] if isinstance(look.ras, Gap) else look.ras)):
        before, after = ({r.rank: sum(r.launched.values()) for r in ranks if not r.missing} for ranks in (c.ranks, c.later))
        pids = {r.pid for r in c.ranks} & {v.pid for v in base.ranks}
        if not pids or before != after or not after or len(set(after.values())) < 2:
            continue
        late = {r.pid for r in c.later if after.get(r.rank, max(after.values())) < max(after.values())}
        accused = [v for v in base.ranks if v.pid in late]
        seen = [Seen(f"launched collectives by rank: {after}", f"NCCL RAS, communicator {c.id}")]
        if accused and len(accused) < len(pids):
            return _told(base, _kind(accused[0]), accused, _says(accused), _cause(accused[0]), "established", seen)
    return None


def _elsewhere(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """Ranks that are in their own code while others stand still in a collective."""
    waiting = [v for v in base.ranks if v.does in ("waits", "device")]
    accused = [v for v in base.ranks if v.does in ("busy", "asleep")]
    if not accused or not waiting or any(v.does == "moving" for v in base.ranks):
        return None
    seen = [Seen(f"{v.name}: {_doing(v)}, {v.frame or 'no stack'}", f"{v.host} pid {v.pid}") for v in accused[:4]]
    return _told(base, _kind(accused[0]), accused, _says(accused), _cause(accused[0]), "likely", seen)


def _kind(accused: RankView) -> str:
    return "gil-held" if accused.note and accused.does == "busy" else "host-busy" if accused.does == "busy" else "skipped"


def _cause(accused: RankView) -> str:
    return "rank-busy-on-host" if accused.does == "busy" else "collective-on-some-ranks-only"


def _doing(accused: RankView) -> str:
    return f"runs on the host{' and holds the GIL' if accused.note else ''}" if accused.does == "busy" else "sleeps outside any collective"


def _says(accused: List[RankView]) -> str:
    return f"never came: it is in {accused[0].frame or 'its own code (no stack to be had)'} and {_doing(accused[0])}; not the network"


def _together(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """Everybody waits: in different places the odd one out took another way; in one place nobody is missing."""
    if not base.ranks or any(v.does not in ("waits", "device") for v in base.ranks):
        return None
    spots = collections.Counter((v.where, v.frame) for v in base.ranks)
    (spot, most), rest = spots.most_common(1)[0], len(base.ranks)
    if len(spots) > 1:
        odd = [v for v in base.ranks if (v.where, v.frame) != spot] if most > rest - most and most > 1 else []
        said = "; ".join(f"{_count(n, 'rank')} in {where}, {frame}" for (where, frame), n in spots.most_common(4))
        return _told(base, "skipped" if odd else "unknown", odd, f"waits elsewhere ({said})" if odd else f"the ranks wait in different calls ({said})",
                     "collective-on-some-ranks-only", "likely" if odd else "possible", [Seen(said, "stacks")])
    return dataclasses.replace(
        base, kind="symmetric", victims=base.ranks, collective=spot[0], status="possible", decides=_stack_line(base.ranks),
        sentence=f"all {_count(rest, 'rank')} wait in {spot[0]}, {spot[1]}: nobody is missing; the path between them, or a GPU",
        evidence=[Seen(f"{v.name}: {v.frame}", f"{v.host} pid {v.pid}") for v in base.ranks[:4]])


def _slow(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    """One rank waits least while all others mostly wait: they wait for it at every step."""
    waits = {r.pid: share(r, lambda what: bool(_CHANNEL_OF_WAITS.search(what))) for r, _ in members}
    least = min(waits, key=lambda pid: waits[pid])
    others = [w for pid, w in waits.items() if pid != least]
    if not others or waits[least] > WAITS_LEAST or min(others) < WAITS_MOST or min(others) - waits[least] < APART:
        return None
    slowest = next(v for v in base.ranks if v.pid == least)
    told = f"waits {waits[least]:.0%} of the time, the others at least {min(others):.0%}"
    return _told(base, "slow", [slowest], f"is slow: it {told}; it was last in {slowest.frame or 'its own code'}", "straggler", "likely",
                 [Seen(told, "main threads, ten moments a second")], f"py-spy top --pid {slowest.pid}")


def _moving(base: Picture, members: List[Tuple[LiveRank, Live]]) -> Optional[Picture]:
    if any(v.does not in ("moving", "busy") for v in base.ranks):
        return None
    return dataclasses.replace(base, kind="healthy", sentence=f"not hung: {_count(len(base.ranks), 'rank')} moved within the look")


def _not_seen(members: List[Tuple[LiveRank, Live]]) -> Iterable[str]:
    """What was not to be had, each reason once."""
    said: Dict[str, List[str]] = {}
    for rank, look in members:
        last = rank.samples[-1].stacks if rank.samples else Gap("absent", "the process ended")
        for what, fact in (("stacks", last), ("flight recorder", rank.recorder), ("log", rank.log_tail), ("sockets", rank.sockets),
                           ("GPUs", look.gpus), ("NCCL RAS", look.ras)):
            if isinstance(fact, Gap):
                said.setdefault(f"{what}: {fact}", []).append(str(rank.rank if rank.rank is not None else rank.pid))
    yield from (f"{text} (ranks {', '.join(dict.fromkeys(names))})" for text, names in said.items())
    present, size = {r.rank for r, _ in members}, _world_size(members)
    if size and len(present) < size and not missing_ranks(members):
        yield f"{size - len(present)} of {size} ranks are on hosts that were not looked at"
