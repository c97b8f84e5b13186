"""Ranks that never came to the collective, as live looks show them: missing, behind or elsewhere."""

import collections
import dataclasses
import re
from typing import List, Optional, Sequence

from nccl_runbook.core.facts import Evidence, known
from nccl_runbook.hang.live.faults.judge_paths import Members
from nccl_runbook.hang.live.judge_hosts import LOOK_THERE, missing_ranks, stale, unseen
from nccl_runbook.hang.live.ranks.judge_calls import apart, by_ras
from nccl_runbook.hang.live.ranks.judge_picture import WAITING, Picture, RankView, accuse, is_are, names
from nccl_runbook.hang.live.ranks.judge_stacks import ANSWER, INIT, asks, awaits_work

# last lines of a rank whose peer ended first: Gloo 2.13, NCCL 2.28, torch's store
_PEER_WENT = re.compile(r"(?:closed|reset) by peer|remote process exited|Broken pipe")


def rank_missing(base: Picture, members: Members, bare: Sequence[str]) -> Optional[Picture]:
    """Ranks that should be on the hosts that were looked at, and are not there or have
    no torch yet, while others wait."""
    gone, starting = missing_ranks(members, bare), [v for v in base.ranks if v.does == "starting"]
    if not any(v.does in (*WAITING, "asleep") for v in base.ranks) or (not gone and not starting):
        return None
    if not gone:
        return accuse(
            base,
            "host-busy",
            starting,
            f"{is_are(starting)} running, but {is_are(starting)} still without torch",
            cause="start-skew",
            status="likely",
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
        return accuse(
            base,
            "dead",
            views,
            f"{is_are(views)} missing, and {owner} holds port {port.port}",
            cause="rendezvous-port-in-use",
            status="likely",
            observed=[
                Evidence(
                    f"{owner}, which is not a rank of this job, holds the rendezvous port {port.port}",
                    "/proc/net/tcp",
                )
            ],
            decides=f"ss -ltnp 'sport = :{port.port}'",
        )
    ended = list(
        {
            (look.host, e.pid): e for _, look in members for e in look.ended if look.host in gone.values()
        }.values()
    )
    wait = [v for v in base.ranks if v.does == "waits"]  # not those whose GPU waits: they have met
    in_init = bool(wait) and all(v.where in INIT for v in wait)
    how, evidence = "the process ended or never started", []
    cause = "rendezvous-misconfigured" if in_init else "peer-crashed"
    # hosts on which it holds the store, and ends no rank, as the log shows: that takes up to 30 s
    torchrun = {
        look.host
        for rank, look in members
        for one in look.listeners
        if (one.who, one.job) == ("launcher", rank.job) and "TORCHELASTIC_RUN_ID" in rank.variables
    } - {
        look.host
        for rank, look in members
        if not known(rank.log_tail) or any("closing signal" in line for line in rank.log_tail)
    }
    codes = [one.code for one in ended] or [0 for host in gone.values() if host in torchrun]
    if len(codes) == len(gone) and len(set(codes)) == 1:  # else it is unknown which rank each was
        ended_by = f"was ended by signal {-codes[0]}" if codes[0] < 0 else f"exited with {codes[0]}"
        how = f"its process {ended_by}" + ("" if ended else " (torchrun ends all ranks if one fails)")
        cause = "peer-crashed" if codes[0] else "collective-on-some-ranks-only"
        evidence = [
            Evidence(f"pid {one.pid}, started by the same launcher, {ended_by}", f"/proc/{one.pid}/stat")
            for one in ended
        ]
    home = (
        "; the ranks meet at localhost, so all ranks must be on this host"
        if cause == "rendezvous-misconfigured" and " in net:" in base.job
        else ""
    )
    twice = (
        f"; rank {n} was started {m} times"
        for n, m in collections.Counter(r.rank for r, _ in members).items()
        if m > 1
    )
    return accuse(
        base,
        "dead",
        views,
        f"{is_are(views)} missing: {how}{home}{''.join(twice)}",
        cause=cause,
        status="likely",
        observed=evidence,
        decides="dmesg -T | grep -i -E 'oom|killed process'" if cause == "peer-crashed" else LOOK_THERE,
    )


def behind(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that launched a different number of collectives than most, by NCCL's RAS, while no count moved;
    None if there are none."""
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
        evidence = [Evidence(f"rank {rank} {words}", f"NCCL RAS, {c.id}") for (rank, _), words in odd.items()]
        if all(row.is_behind(r) for row in differing for r in row.ranks):
            return never_came(base, views, "established", evidence)
        return accuse(
            base,
            "skipped",
            views,
            f"{evidence[0].text.partition(' ')[2].partition(' ')[2]}, so this rank made a call that "
            "the other ranks did not make",
            cause="collective-on-some-ranks-only",
            status="likely",
            observed=evidence,
        )
    return None


def rank_elsewhere(base: Picture, members: Members) -> Optional[Picture]:
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
        # it moves alone, so it is in no collective: it looks for something again and again
        late, moving = (moving, [])
        # a host that waits for its GPU may step on between the samples
        sure = any(v.does == "waits" for v in still)
    went = [v for v in late if any(map(_PEER_WENT.search, known(v.process.log_tail)[-5:]))]
    if went and still and not moving and len(went) == len(late):
        return dataclasses.replace(
            base,
            decides=LOOK_THERE,
            sentence=f"{names(went)} ended when the connection to another rank broke, according to "
            "the log. Which rank ended first?",
        )
    before, late = stale(members), [v for v in late if v not in went]
    if not late or moving or (not sure and len(still) <= len(late)):
        return None
    fresh = [v for v in late if v.host not in before]  # where the others are now is unknown
    return never_came(base, fresh or late, "likely" if sure and fresh else "possible", [])


def never_came(base: Picture, late: List[RankView], status: str, evidence: List[Evidence]) -> Picture:
    """The picture of ranks that never came. ``status``: how certain. A rank in another call skipped this
    one; a rank in the job's own code may still come."""
    first = late[0]
    kind, cause, doing = next(
        row
        for fits, *row in (
            (first.does == "busy" and first.has_gil, "gil-held", "rank-busy-on-host", "holds the GIL in"),
            ("data loader" in first.helper, "host-busy", "data-stall", f"waits for {first.helper} in"),
            (first.helper, "host-busy", "rank-busy-on-host", f"waits for {first.helper} in"),
            (first.does == "busy", "host-busy", "rank-busy-on-host", "works in"),
            (first.does in WAITING, "skipped", "collective-on-some-ranks-only", "waits in"),
            (
                first.process and awaits_work(first.process),
                "unknown",
                None,
                "may be an idle engine, because it waits for a queue or a client in",
            ),
            (first.process and asks(first.process), "skipped", None, f"waits for {ANSWER} in"),
            (True, "skipped", None, "is late, or skipped a call, and sleeps in"),
        )
        if fits
    )
    frames = [
        Evidence(f"{v.name} is in {v.frame or 'its own code'}", f"pid {v.pid} on {v.host}") for v in late[:8]
    ]
    picture = accuse(
        base,
        kind,
        late,
        f"never reached the collective: {'it' if len(late) == 1 else 'the first'} {doing} "
        f"{first.frame or 'its own code (no stack available)'}",
        cause=cause,
        status="possible" if kind == "unknown" else status,
        observed=[*evidence, *frames],
    )
    return dataclasses.replace(
        picture,
        sentence=picture.sentence + ("" if kind == "unknown" else "; the cause is not the network"),
    )
