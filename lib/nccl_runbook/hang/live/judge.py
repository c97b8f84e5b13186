"""Who did not come, and why: what live looks at the ranks of a job mean. Standard library and Python >= 3.9:
nccl-look.pyz holds it, too.

A rank is named only if others stand still and it is seen to be elsewhere, stopped or not there. Without
a second sample nothing is called hung.
"""

import collections
import dataclasses
import re
from typing import Any, Dict, List, Optional, Sequence

from nccl_runbook.core.facts import Evidence, counted, grouped
from nccl_runbook.hang.live.facts import Live, LiveRank
from nccl_runbook.hang.live.faults.judge_cores import short_of_cores
from nccl_runbook.hang.live.faults.judge_missing import behind, rank_elsewhere, rank_missing
from nccl_runbook.hang.live.faults.judge_others import (
    NO_JOB,
    launchers,
    left_over,
    not_seen_of,
    stopped_ranks,
    strangers,
)
from nccl_runbook.hang.live.faults.judge_paths import Members, lost, unreachable, without_store
from nccl_runbook.hang.live.faults.judge_slow import (
    all_moving,
    gpu_stuck,
    loaders_wait,
    slow_by_gpus,
    slow_rank,
)
from nccl_runbook.hang.live.faults.judge_together import together
from nccl_runbook.hang.live.judge_hosts import LOOK_THERE, stale, unseen, world_size
from nccl_runbook.hang.live.judge_ranks import is_still, moved_last, view
from nccl_runbook.hang.live.ranks.judge_picture import (
    WAITING,
    Picture,
    accuse,
    all_wait,
    is_are,
    names,
    stack_line,
)
from nccl_runbook.hang.live.ranks.judge_stacks import ANSWER, asks


def judge_looks(looks: Sequence[Live]) -> List[Picture]:
    """One picture a job, worst first, over all hosts; empty if no rank was found. Of several looks at one
    host the newest counts."""
    looks = sorted({id(one): one for one in looks}.values(), key=lambda one: (one.taken, one.host))
    newest = {(look.host, look.boot_id, _launch(rank)): look for look in looks for rank in look.ranks}
    emptied = {(look.host, look.boot_id): look.taken for look in looks if not look.ranks}
    evidence = [
        (rank, look)
        for look in looks
        for rank in look.ranks
        if newest[look.host, look.boot_id, _launch(rank)] is look
        and look.taken >= emptied.get((look.host, look.boot_id), "")
    ]
    bare = sorted({look.host for look in looks if not look.ranks} - {look.host for _, look in evidence})
    pictures = sorted(
        (
            _picture(members, bare)
            for members in grouped((rank.job, (rank, look)) for rank, look in evidence).values()
        ),
        key=lambda picture: ("broken", "degraded", "unknown", "healthy").index(verdict([picture])),
    )
    return [p for p in pictures if p.job != NO_JOB] or [
        dataclasses.replace(p, ranks=[v for picture in pictures for v in picture.ranks]) for p in pictures[:1]
    ]


def _launch(rank: LiveRank) -> str:
    """One key for all attempts of one torchrun, whose ranks meet at another port each time; "none" is its
    name for an unnamed one."""
    return rank.job if (run := rank.variables.get("TORCHELASTIC_RUN_ID", "none")) == "none" else run


def verdict(pictures: Sequence[Picture]) -> str:
    """broken if a rank did not come, degraded if one is slow, unknown if nothing can be said, else
    healthy."""
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
        sentence="",
        culprits=[],
        victims=[],
        ranks=views,
        world_size=world_size(members),
        not_seen=[
            *not_seen_of(now, bare),
            *(
                f"the current state of {host}: the samples of this host are {seconds:.0f} s older than "
                "the samples of the other hosts"
                for host, seconds in sorted(before.items())
            ),
        ],
    )
    if any(look.gap_s == 0 for _, look in members):
        return strangers(base, now) or dataclasses.replace(
            base,
            sentence=f"{counted(len(views), 'rank')} sampled only once. Take a second sample to see whether "
            "the ranks move",
            decides="python3 nccl-look.pyz --live --gap 10",
        )
    rules = (
        strangers,
        left_over,
        launchers,
        stopped_ranks,
        _differing_worlds,
        lambda *_: rank_missing(base, members, bare),
        unreachable,
        without_store,
        lost,
        behind,
        rank_elsewhere,
        gpu_stuck,
        together,
        *(
            (loaders_wait, slow_rank, slow_by_gpus, all_moving)
            if all(v.does in ("moving", "busy") for v in views)
            else ()
        ),
    )
    picture = short_of_cores(
        base,
        next((p for p in (rule(base, now) for rule in rules) if p), None)
        or dataclasses.replace(base, **_undecided(base)),
    )
    return dataclasses.replace(
        picture, sentence=_attempt(members) + picture.sentence, decides=_where(picture, now, bare)
    )


def with_command(pictures: Sequence[Picture], pids: Optional[Sequence[int]]) -> List[Picture]:
    """The pictures. A further look is that of `nccl-runbook`, at these processes; with None (looks that were
    recorded, perhaps elsewhere) that of nccl-look.pyz, and PID stands for a process: another one may have
    its number by now."""
    if pids is None:
        return [
            dataclasses.replace(p, decides=re.sub(r"(kill -CONT|--pid|-pc) \d+", r"\1 PID", p.decides))
            for p in pictures
        ]
    ended = {v.pid for p in pictures for v in p.ranks if v.does == "missing"}
    line = " ".join(["nccl-runbook look", *(f"--pid {pid}" for pid in pids if pid not in ended), "--gap"])
    return [
        dataclasses.replace(p, decides=p.decides.replace("python3 nccl-look.pyz --live --gap", line))
        for p in pictures
    ]


def _where(picture: Picture, members: Members, bare: Sequence[str]) -> str:
    """The line to paste, with its host; without certainty, a look at the hosts that are missing."""
    if picture.status != "established" and picture.kind != "healthy" and unseen(members, bare):
        return LOOK_THERE
    more = len({v.host for v in picture.ranks}) > 1 and picture.decides and "#" not in picture.decides
    line = picture.decides + (
        f"   # on {(picture.culprits or picture.victims or picture.ranks)[0].host}" if more else ""
    )
    return "".join(filter(str.isprintable, line))  # one line, whatever a record calls its host


def _attempt(members: Members) -> str:
    """ "attempt 1: ", as torchrun counts, from 0, if torchrun restarted the ranks; else ""."""
    counts = (r.variables.get("TORCHELASTIC_RESTART_COUNT", "0") for r, _ in members)
    return next((f"attempt {count}: " for count in counts if count.strip("0").isdecimal()), "")


def _undecided(base: Picture) -> Dict[str, Any]:
    unclear = [v.process for v in base.ranks if v.does == "unknown"]
    rested = [r for r in unclear if r.samples and not is_still(r) and not moved_last(r)]
    ended = [v for v in base.ranks if v.does == "missing"]
    places = ", ".join(sorted({v.frame for v in base.ranks})[:4])
    return next(
        {"sentence": sentence, "decides": decides}
        for fits, sentence, decides in (
            (
                len(ended) == len(base.ranks),
                f"{names(ended)} ended while we were looking, so nothing hangs now. The log or the "
                "dumps of the job show how it ended",
                "",
            ),
            (
                ended,
                f"{names(ended)} ended while we were looking. Run `look` again for the processes "
                "that are still running",
                "python3 nccl-look.pyz --live --gap 10",
            ),
            (
                rested,
                f"{counted(len(rested), 'rank')} stopped moving only while we were looking. "
                "Run `look` again to see whether they hang",
                "python3 nccl-look.pyz --live --gap 10",
            ),
            (
                all(v.does == "asleep" and asks(v.process) for v in base.ranks),
                f"{all_wait(base.ranks)} in {places} for {ANSWER}. The interconnect is not the cause",
                stack_line(base.ranks),
            ),
            (True, "the samples do not show which rank waits for which", stack_line(base.ranks)),
        )
        if fits
    )


# --- the rules, in the order in which they are asked; the last three only if every rank moves or works


def _differing_worlds(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that were started with a different world size than most, and now wait."""
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
        f"{is_are(odd)} started with a different world size: {shown}"
        if odd
        else f"the ranks were started with different world sizes: {shown}"
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
