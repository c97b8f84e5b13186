"""Who did not come, and why: what live looks at the ranks of a job mean. Standard library and Python >= 3.9:
nccl-look.pyz holds it, too.

A rank is named only if others stand still and it is seen to be elsewhere, stopped or not there. Without
a second sample nothing is called hung.
"""

import collections
import dataclasses
import re
import statistics
from typing import Dict, Iterable, List, Optional, Sequence

from nccl_runbook.core.facts import Evidence, Gap, counted, grouped, known
from nccl_runbook.hang.live.facts import LEFT_OVER, Live, LiveRank
from nccl_runbook.hang.live.judge_hosts import (
    LOOK_THERE,
    Members,
    lost,
    missing_ranks,
    stale,
    unreachable,
    unseen,
    without_store,
    world_size,
)
from nccl_runbook.hang.live.judge_ranks import (
    INIT,
    ON_A_LOCK,
    WAITING,
    Picture,
    RankView,
    accuse,
    all_wait,
    apart,
    by_ras,
    gpu_of,
    is_are,
    is_still,
    launches,
    main_stacks,
    moved_last,
    names,
    polls,
    share,
    stack_line,
    view,
)

# shares of time in waits that tell a straggler: one of 200 ms at steps of 220 ms waited 4 %, the others
# at least 93 % (Gloo, 4 ranks)
WAITS_MOST, WAITS_LEAST, APART = 0.6, 0.4, 0.35
# percent of NVML's utilisation, in both samples; ranks that wait for another in a collective show 100,
# it 0 to 1 (4 H200, NCCL 2.28.9)
IDLE_MOST, RUNS_LEAST = 30, 75
# 4 H200, NCCL 2.28.9: GPUs that waited in an all_reduce drew 200 to 209 W, one that spun in another
# kernel 122 W, all at 100 %
ODD_POWER, EVEN_POWER = 0.2, 0.1
NO_JOB = "other processes"
_ELASTIC = "/torch/distributed/elastic/"
# what a rank's log ends with whose peer went first: Gloo 2.13, NCCL 2.28, torch's store
_PEER_WENT = re.compile(r"(?:closed|reset) by peer|remote process exited|Broken pipe")


def judge(looks: Sequence[Live]) -> List[Picture]:
    """One picture a job, worst first, over the hosts that were looked at; none where no rank was found.
    Of several looks at a host the newest counts: an older one shows where its ranks were then."""
    looks = sorted({id(one): one for one in looks}.values(), key=lambda one: (one.taken, one.host))
    newest = {(look.host, look.boot_id, _launch(rank)): look for look in looks for rank in look.ranks}
    emptied = {(look.host, look.boot_id): look.taken for look in looks if not look.ranks}
    seen = [
        (rank, look)
        for look in looks
        for rank in look.ranks
        if newest[look.host, look.boot_id, _launch(rank)] is look
        and look.taken >= emptied.get((look.host, look.boot_id), "")
    ]
    bare = sorted({look.host for look in looks if not look.ranks} - {look.host for _, look in seen})
    pictures = sorted(
        (
            _picture(members, bare)
            for members in grouped((rank.job, (rank, look)) for rank, look in seen).values()
        ),
        key=lambda picture: ("broken", "degraded", "unknown", "healthy").index(verdict([picture])),
    )
    return [p for p in pictures if p.job != NO_JOB] or [
        dataclasses.replace(p, ranks=[v for picture in pictures for v in picture.ranks]) for p in pictures[:1]
    ]


def _launch(rank: LiveRank) -> str:
    """The same for all attempts of one torchrun, whose ranks meet at another port each time; "none" is what
    it calls one without a name."""
    return rank.job if (run := rank.variables.get("TORCHELASTIC_RUN_ID", "none")) == "none" else run


def verdict(pictures: Sequence[Picture]) -> str:
    """broken where somebody did not come, degraded where a rank is slow, unknown where nothing
    can be said, else healthy."""
    kinds = {p.kind for p in pictures}
    if kinds - {"healthy", "unknown", "slow", "symmetric"}:
        return "broken"
    return "degraded" if "slow" in kinds else "healthy" if kinds == {"healthy"} else "unknown"


def _picture(members: Members, bare: Sequence[str]) -> Picture:
    views = sorted((view(r, look) for r, look in members), key=lambda v: (v.rank is None, v.rank, v.pid))
    does, before = {v.does for v in views}, stale(members)
    if "moving" not in does or not does & {*WAITING, "asleep"}:
        before = {}  # else one or the other is no longer so: the hosts that were looked at last are believed
    now, views = [m for m in members if m[1].host not in before], [v for v in views if v.host not in before]
    base = Picture(
        members[0][0].job,
        "unknown",
        "",
        [],
        [],
        views,
        world_size(members),
        not_seen=[
            *_not_seen(now, bare),
            *(
                f"what {host} does by now: it was looked at {seconds:.0f} s before the others"
                for host, seconds in sorted(before.items())
            ),
        ],
    )
    if any(look.gap_s == 0 for _, look in members):
        return _strangers(base, now) or dataclasses.replace(
            base,
            sentence=f"{counted(len(views), 'rank')} seen once; a second sample shows whether they move",
            decides="python3 nccl-look.pyz --live --gap 10",
        )
    rules = (
        _strangers,
        _left_over,
        _launchers,
        _stopped,
        _differing_worlds,
        lambda *_: _missing(base, members, bare),
        unreachable,
        without_store,
        lost,
        _behind,
        _elsewhere,
        _gpu_stuck,
        _together,
        *((_slow, _slow_by_gpus, _moving) if all(v.does in ("moving", "busy") for v in views) else ()),
    )
    found = next((p for p in (rule(base, now) for rule in rules) if p), None) or dataclasses.replace(
        base, **_undecided(base)
    )
    return dataclasses.replace(
        found, sentence=_attempt(members) + found.sentence, decides=_where(found, now, bare)
    )


def _where(found: Picture, members: Members, bare: Sequence[str]) -> str:
    """The line to paste, with its host; what is not certain is settled by the
    hosts that were not looked at."""
    if found.status != "established" and found.kind != "healthy" and unseen(members, bare):
        return LOOK_THERE
    more = len({v.host for v in found.ranks}) > 1 and found.decides and "#" not in found.decides
    line = found.decides + (
        f"   # on {(found.culprits or found.victims or found.ranks)[0].host}" if more else ""
    )
    return "".join(filter(str.isprintable, line))  # one line, whatever a record calls its host


def _attempt(members: Members) -> str:
    """ "attempt 1: ", as torchrun counts, from 0, if torchrun restarted the ranks; else ""."""
    counts = (r.variables.get("TORCHELASTIC_RESTART_COUNT", "0") for r, _ in members)
    return next((f"attempt {count}: " for count in counts if count.strip("0").isdecimal()), "")


def _undecided(base: Picture) -> Dict[str, str]:
    unclear = [v.process for v in base.ranks if v.does == "unknown"]
    rested = [r for r in unclear if r.samples and not is_still(r) and not moved_last(r)]
    if ended := [v for v in base.ranks if v.does == "missing"]:
        return {
            "sentence": f"{names(ended)} exited while we were looking. Run `look` again for the processes "
            "that are still running",
            "decides": "nccl-runbook hang DUMPS LOGS   # what the job left",
        }
    if not rested:
        return {
            "sentence": "the samples do not show which rank waits for which",
            "decides": stack_line(base.ranks),
        }
    return {
        "sentence": f"{counted(len(rested), 'rank')} stopped moving only while we were looking. "
        "Run `look` again to see whether "
        "they hang",
        "decides": "python3 nccl-look.pyz --live --gap 10",
    }


def _not_seen(members: Members, bare: Sequence[str]) -> Iterable[str]:
    """What was not to be had, each reason once."""
    ended = Gap("absent", "the process ended")
    unknown = grouped(
        (f"{what}: {fact.detail or fact.reason}", str(rank.rank if rank.rank is not None else rank.pid))
        for rank, look in members
        for what, fact in (
            ("stacks", rank.samples[-1].stacks if rank.samples else ended),
            ("flight recorder", rank.recorder),
            ("log", rank.log_tail),
            ("sockets", rank.sockets),
            ("GPUs", look.gpus),
            ("NCCL RAS", look.ras),
        )
        if isinstance(fact, Gap)
    )
    for text, whose in unknown.items():
        yield text if len(whose) == len(members) else f"{text} (rank {', '.join(whose[:16])})"
    yield from filter(None, [unseen(members, bare)])


# --- the rules, in the order in which they are asked; the last three only if every rank moves or works


def _strangers(base: Picture, members: Members) -> Optional[Picture]:
    """Processes without a rank that have no torch and no NCCL, or that speak to none of each other and wait
    in no collective: a shell, a notebook, a server."""
    homes = {s.local: r.pid for r, _ in members for s in known(r.sockets)}
    together = any(homes.get(s.remote, r.pid) != r.pid for r, _ in members for s in known(r.sockets))
    bare = not any(r.has_torch or r.nccl for r, _ in members)
    if (
        any(r.rank is not None or r.world_size for r, _ in members)
        or not bare
        and (together or any(v.where or not v.frame for v in base.ranks))
    ):
        return None
    lacks = (
        "it has loaded neither torch nor NCCL"
        if bare
        else "it has torch, but waits in no collective and is connected to no rank"
    )
    return dataclasses.replace(
        base,
        job=NO_JOB,
        sentence=f"{base.ranks[0].name} is not a rank of a GPU job as far as we can see: {lacks}. "
        "A rank has RANK or SLURM_PROCID in its environment. Name a rank or its launcher (torchrun, srun)",
        decides="nccl-runbook look --pid PID   # a rank or its launcher",
    )


def _left_over(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks at whose address a newer launch runs."""
    if not base.job.endswith(LEFT_OVER):
        return None
    pids = ",".join(str(v.pid) for v in base.ranks)
    return accuse(
        base,
        "left-over",
        base.ranks,
        f"{is_are(base.ranks)} left over from an earlier launch at this address, and may still "
        "hold its port and GPUs",
        None,
        "established",
        [Evidence(f"pids {pids}, begun before the newer ranks", "/proc")],
        f"ps -o pid,ppid,lstart,stat,args -p {pids}   # end them if they are yours: "
        "the newer job needs their port and GPUs",
    )


def _launchers(base: Picture, members: Members) -> Optional[Picture]:
    """No rank, but torchrun, which has started none yet."""
    if any(
        r.rank is not None or not any(_ELASTIC in f.file for stack in main_stacks(r) for f in stack.frames)
        for r, _ in members
    ):
        return None
    return dataclasses.replace(
        base,
        decides=LOOK_THERE,
        sentence=f"torchrun has started no rank: it is in {base.ranks[0].frame}. If it "
        "waits for other hosts, all hosts need the same --rdzv-endpoint, --rdzv-id and --nnodes",
    )


def _stopped(base: Picture, members: Members) -> Optional[Picture]:
    if not (stopped := [v for v in base.ranks if v.does == "stopped"]):
        return None
    return accuse(
        base,
        "stopped",
        stopped,
        f"{is_are(stopped)} stopped (process state T) by a signal, a debugger or the batch system",
        "peer-stopped",
        "established",
        [
            Evidence(f"{v.name} is in state T in every sample", f"/proc/{v.pid}/stat on {v.host}")
            for v in stopped[:8]
        ],
        f"kill -CONT {stopped[0].pid}",
    )


def _differing_worlds(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that were started with another world size than most, and now wait."""
    sizes = collections.Counter(r.world_size for r, _ in members if r.world_size)
    if len(sizes) < 2 or not any(v.does in (*WAITING, "asleep") for v in base.ranks):
        return None
    homes = grouped((r.world_size, look.host) for r, look in members)
    shown = "WORLD_SIZE " + ", ".join(
        f"{size} in {n} of {len(members)} ranks (on {', '.join(sorted(set(homes[size]))[:4])})"
        for size, n in sizes.most_common(4)
    )
    (common, most), (_, second) = sizes.most_common(2)
    odd = [v for v in base.ranks if most > second and v.process.world_size not in (common, None)]
    why = (
        f"{is_are(odd)} started with another world size: {shown}"
        if odd
        else f"the ranks were started with different sizes: {shown}"
    )
    return accuse(
        base,
        "mismatch",
        odd,
        why,
        "rendezvous-misconfigured",
        "established",
        [Evidence(shown, "environment of the ranks")],
    )


def _missing(base: Picture, members: Members, bare: Sequence[str]) -> Optional[Picture]:
    """Ranks that should be on the hosts that were looked at, and are not there or have
    no torch yet, while others wait."""
    gone, starting = missing_ranks(members, bare), [v for v in base.ranks if v.does == "starting"]
    if not any(v.does in (*WAITING, "asleep") for v in base.ranks) or not gone and not starting:
        return None
    if not gone:
        return accuse(
            base,
            "host-busy",
            starting,
            f"{is_are(starting)} there but without torch so far",
            "start-skew",
            "likely",
        )
    views = [RankView(rank, host, None, "missing") for rank, host in gone.items()]
    base = dataclasses.replace(base, ranks=sorted(base.ranks + views, key=lambda v: (v.rank is None, v.rank)))
    port = next(
        (
            one
            for _, look in members
            for one in look.listeners
            if one.job == base.job and one.who in ("other", "unseen")
        ),
        None,
    )
    if port and 0 in gone:
        owner = f"{port.name}, pid {port.pid}" if port.pid else "a process of another user"
        seen = Evidence(
            f"the rendezvous port {port.port} is held by {owner}, which is not a rank of this job",
            "/proc/net/tcp",
        )
        return accuse(
            base,
            "dead",
            views,
            f"{is_are(views)} not there, and port {port.port} is held by {owner}",
            "rendezvous-port-in-use",
            "likely",
            [seen],
            f"ss -ltnp 'sport = :{port.port}'",
        )
    ended = list(
        {
            (look.host, e.pid): e for _, look in members for e in look.ended if look.host in gone.values()
        }.values()
    )
    in_init = all(v.where in INIT for v in base.ranks if v.does == "waits")
    how, seen, cause = (
        "ended, or never started",
        [],
        "rendezvous-misconfigured" if in_init else "peer-crashed",
    )
    if len(ended) == len(gone) == 1:  # of several nobody can tell which rank each was
        how = (
            f"its process was ended by signal {-ended[0].code}"
            if ended[0].code < 0
            else f"its process exited with {ended[0].code}"
        )
        seen, cause = (
            [Evidence(f"pid {ended[0].pid}, of the same launcher: {how}", f"/proc/{ended[0].pid}/stat")],
            "peer-crashed",
        )
    home = (
        "; they meet at localhost, so all have to be on this host"
        if in_init and " in net:" in base.job
        else ""
    )
    twice = (
        f"; rank {n} is there {m} times"
        for n, m in collections.Counter(r.rank for r, _ in members).items()
        if m > 1
    )
    return accuse(
        base,
        "dead",
        views,
        f"{is_are(views)} not there: {how}{home}{''.join(twice)}",
        cause,
        "likely",
        seen,
        "dmesg -T | grep -i -E 'oom|killed process'",
    )


def _behind(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that launched another number of collectives than most, by NCCL's RAS, while no count moved."""
    for c in (c for _, look in members for c in known(look.ras)):
        before, after = (
            {(r.rank, r.pid): r.launched for r in ranks if not r.missing} for ranks in (c.ranks, c.later)
        )
        differing = [row for row in apart(c.later) if row.usual is not None] if before == after else []
        odd = {(r.rank, r.pid): row.words(r) for row in differing for r in row.ranks}
        views = [
            v
            for v in base.ranks
            for r in by_ras(c, c.later, v.pid, v.rank, base.world_size)
            if (r.rank, r.pid) in odd
        ]
        if not views:
            continue
        seen = [Evidence(f"rank {rank} {words}", f"NCCL RAS, {c.id}") for (rank, _), words in odd.items()]
        if all(row.is_behind(r) for row in differing for r in row.ranks):
            return never_came(base, views, "established", seen)
        return accuse(
            base,
            "skipped",
            views,
            f"{seen[0].text.partition(' ')[2].partition(' ')[2]}: it made a call that the others "
            "did not make",
            "collective-on-some-ranks-only",
            "likely",
            seen,
        )
    return None


def _elsewhere(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that are in their own code while others stand still in a collective; without stacks, while
    most stand still on a lock."""
    late, still = (
        [v for v in base.ranks if v.does in ("busy", "asleep")],
        [v for v in base.ranks if v.does in WAITING],
    )
    moving, sure = [v for v in base.ranks if v.does == "moving"], any(v.does != "lock" for v in still)
    if all(
        v.does == "spins" for v in still
    ):  # each may step on at that line, held up by one that comes late or not at all
        sure = sure and not any(v.does == "busy" for v in late)
    elif moving and len(still) + 1 == len(base.ranks) and not unseen(members):
        late, moving = (
            moving,
            [],
        )  # it moves alone, so it is in no collective: it looks for something again and again
        sure = sure and any(
            v.does == "waits" for v in still
        )  # a host that waits for its GPU may step on between the samples
    went = [v for v in late if any(map(_PEER_WENT.search, known(v.process.log_tail)[-5:]))]
    if went and still and not moving and len(went) == len(late):
        return dataclasses.replace(
            base,
            decides=LOOK_THERE,
            sentence=f"{names(went)} left when the connection to a peer broke, "
            "according to "
            "the log. Which rank left first?",
        )
    before, late = stale(members), [v for v in late if v not in went]
    if not late or moving or not sure and len(still) <= len(late):
        return None
    fresh = [v for v in late if v.host not in before]  # where the others are now, nobody knows
    return never_came(base, fresh or late, "likely" if sure and fresh else "possible", [])


def never_came(base: Picture, late: List[RankView], status: str, seen: List[Evidence]) -> Picture:
    """``status``: of who it is. One that waits in another call has left this one out; of one in the job's
    own code nobody knows yet."""
    first = late[0]
    kind, cause, doing = next(
        row
        for fits, *row in (
            (
                first.does == "busy" and first.has_gil,
                "gil-held",
                "rank-busy-on-host",
                "runs there and holds the GIL",
            ),
            ("data loader" in first.helper, "host-busy", "data-stall", f"waits for {first.helper}"),
            (first.helper, "host-busy", "rank-busy-on-host", f"waits for {first.helper}"),
            (first.does == "busy", "host-busy", "rank-busy-on-host", "works there"),
            (first.does in WAITING, "skipped", "collective-on-some-ranks-only", "waits there"),
            (True, "skipped", None, "sleeps there: it is late, or skipped a call that the others made"),
        )
        if fits
    )
    where = (
        f"{'it' if len(late) == 1 else 'the first'} is in "
        f"{first.frame or 'its own code (no stack available)'}"
    )
    frames = [
        Evidence(f"{v.name} is in {v.frame or 'its own code'}", f"pid {v.pid} on {v.host}") for v in late[:8]
    ]
    picture = accuse(base, kind, late, f"never came: {where} and {doing}", cause, status, [*seen, *frames])
    return dataclasses.replace(picture, sentence=picture.sentence + "; not the network")


def _gpu_stuck(base: Picture, members: Members) -> Optional[Picture]:
    """Every GPU is busy and every rank launched the same, but one GPU draws another power than all
    others: it runs something else."""
    drawn = {
        (look.host, r.pid): gpu.power_w[-1]
        for r, look in members
        for gpu in [gpu_of(r, look)]
        if gpu and not isinstance(gpu.power_w[-1], Gap)
    }
    if len(drawn) < len(base.ranks) or any(v.does != "device" for v in base.ranks):
        return None
    middle = statistics.median(drawn.values())
    odd = [v for v in base.ranks if abs(drawn[v.host, v.pid] - middle) > ODD_POWER * middle]
    others = [watt for watt in drawn.values() if abs(watt - middle) <= ODD_POWER * middle]
    if len(odd) != 1 or max(others) - min(others) > EVEN_POWER * middle:
        return None
    shown = (
        f"{drawn[odd[0].host, odd[0].pid]:.0f} W, the others {min(others):.0f} to {max(others):.0f} W, "
        "all at 100 %"
    )
    still = Evidence("all ranks launched the same number of collectives, and none since", "NCCL RAS")
    seen = [Evidence(f"power: {shown}", "NVML"), *[still] * _stands_still(members)]
    return accuse(
        base,
        "gpu-stuck",
        odd,
        f"came, but its GPU still runs something else: it draws {shown}",
        None,
        "likely" if len(seen) > 1 else "possible",
        seen,
    )


def _stands_still(members: Members) -> bool:
    """NCCL's RAS shows that all ranks launched as many collectives, and none between the samples."""
    return len({launches(r, look) for r, look in members}) == 1 and launches(*members[0]) is not None


def _together(base: Picture, members: Members) -> Optional[Picture]:
    """Everybody waits: in different places the odd one out took another way; in one place nobody
    is missing. Ranks that all wait for their GPUs, or poll, may be stepping all the while, unless RAS tells
    that they launch nothing."""
    may_step = all(v.does in ("device", "spins") for v in base.ranks)
    if (
        any(v.does not in ("waits", "device", "spins") for v in base.ranks)
        or may_step
        and not _stands_still(members)
    ):
        return None
    spots = collections.Counter(
        (v.where, v.frame.partition(" (in ")[0] if v.where in INIT else v.frame) for v in base.ranks
    ).most_common()
    shown = "; ".join(f"{n} in {where or 'a call'}, {frame}" for (where, frame), n in spots[:4])
    if len(spots) > 1:
        odd = (
            [v for v in base.ranks if (v.where, v.frame) != spots[0][0]]
            if spots[0][1] * 2 > len(base.ranks) > 2
            else []
        )
        why = (
            f"{'waits' if len(odd) == 1 else 'wait'} elsewhere ({shown})"
            if odd
            else f"the ranks wait in different calls ({shown}): without counts of their calls nothing shows "
            "which side is wrong"
        )
        return accuse(
            base,
            "skipped" if odd else "unknown",
            odd,
            why,
            "collective-on-some-ranks-only",
            "likely" if odd else "possible",
            [Evidence(shown, "stacks")],
        )
    if unseen(members):
        return accuse(
            base,
            "unknown",
            [],
            f"{counted(len(base.ranks), 'rank')} looked at, each in the same wait ({shown}); "
            f"nothing is known of {unseen(members)}",
            None,
            "",
        )
    return accuse(
        base,
        "symmetric",
        [],
        f"{all_wait(base.ranks)} in one place ({shown}): no rank is missing, unless "
        "several process groups share that line. Check the interconnect and the GPUs",
        None,
        "possible",
    )


def _slow(base: Picture, members: Members) -> Optional[Picture]:
    """One rank waits least while all others mostly wait: they wait for it at every step."""
    waits = sorted(
        ((share(v.process, lambda what: bool(ON_A_LOCK.search(what))), v) for v in base.ranks),
        key=lambda row: row[0],
    )
    if (
        len(waits) < 2
        or waits[0][0] > WAITS_LEAST
        or waits[1][0] < WAITS_MOST
        or waits[1][0] - waits[0][0] < APART
    ):
        return None
    shown = f"it waits {waits[0][0]:.0%} of the time, the others at least {waits[1][0]:.0%}"
    return _is_slow(base, waits[0][1], "likely", Evidence(shown, "main threads, ten moments a second"))


def _is_slow(base: Picture, slowest: RankView, status: str, seen: Evidence) -> Picture:
    return accuse(
        base,
        "slow",
        [slowest],
        f"is slow: {seen.text}; last seen in {slowest.frame or 'its own code'}",
        "straggler",
        status,
        [seen],
        f"py-spy top --pid {slowest.pid}",
    )


def _slow_by_gpus(base: Picture, members: Members) -> Optional[Picture]:
    """Every rank moves, one GPU has little to do, and all others always run: NCCL's kernel, which waits
    for that rank at every step."""
    gpus = {(look.host, r.pid): gpu_of(r, look) for r, look in members}  # pids repeat on other hosts
    used = sorted(
        (
            (max(shown), min(shown), v)
            for v in base.ranks
            for gpu in [gpus[v.host, v.pid]]
            if gpu
            for shown in [[u for u in gpu.utilisation_percent if not isinstance(u, Gap)]]
            if len(shown) > 1
        ),
        key=lambda row: row[:2],
    )
    least = min((low for _, low, _ in used[1:]), default=0)
    if (
        any(v.does != "moving" for v in base.ranks)
        or len(used) < max(2, len(base.ranks))
        or (used[0][0] > IDLE_MOST or least < RUNS_LEAST)
    ):
        return None
    shown = f"its GPU is busy at most {used[0][0]} % of the time, those of the others at least {least} %"
    return _is_slow(base, used[0][2], "possible", Evidence(shown, "NVML"))


def _moving(base: Picture, members: Members) -> Picture:
    if all(polls(r) for r, _ in members):
        return dataclasses.replace(
            base,
            decides=stack_line(base.ranks),
            sentence=(
                f"{all_wait(base.ranks)} for something that did not arrive within {members[0][1].gap_s:g} s: "
                f"{base.ranks[0].name} checks for "
                f"it again and again in {base.ranks[0].frame}"
            ),
        )
    said = f"not hung: {counted(len(base.ranks), 'rank')} moved while we were looking"
    if busy := [v for v in base.ranks if v.does == "busy"]:
        said = (
            f"no rank waits in a collective: {len(busy)} of {counted(len(base.ranks), 'rank')} work on the "
            "host, the first in "
            f"{busy[0].frame or 'its own code'}"
        )
    others = unseen(members)
    return dataclasses.replace(
        base,
        kind="unknown" if others else "healthy",
        sentence=said + f"; nothing is known of {others}" * bool(others),
    )
