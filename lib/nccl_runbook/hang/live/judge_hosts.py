"""A job over several hosts: which looks belong together, which ranks none covers, and which path
drops data. Python >= 3.9."""

import calendar
import collections
import contextlib
import dataclasses
import itertools
import re
import time
from typing import Dict, Iterable, List, Optional, Pattern, Sequence, Set

from nccl_runbook.core.facts import grouped, known
from nccl_runbook.hang.live.facts import BY_CONNECTION, Live
from nccl_runbook.hang.live.faults.judge_paths import INNER, Members
from nccl_runbook.hang.live.launched.judge_joined import connected
from nccl_runbook.hang.live.ranks.judge_calls import by_ras

LOOK_THERE = "python3 nccl-look.pyz --live   # on each host, then: nccl-runbook look --record n1.json n2.json"
_ELSEWHERE = re.compile(r"(?!127\.|\[::1\])(.+):")  # any host but this one


def world_size(members: Members) -> Optional[int]:
    """The world size that most ranks have in their environment; None if no rank has one."""
    return next(
        (n for n, _ in collections.Counter(r.world_size for r, _ in members if r.world_size).most_common(1)),
        None,
    )


def missing_ranks(members: Members, bare: Sequence[str] = ()) -> Dict[int, str]:
    """Rank without a process -> host that should have it: all if ranks meet on loopback, else by
    LOCAL_WORLD_SIZE in torchrun's numbering; the last ranks belong to hosts without any (``bare``)."""
    present, sizes = {r.rank for r, _ in members}, {r.world_size for r, _ in members}
    if None in present or len(sizes) != 1 or None in sizes:
        return {}
    size, hosts = min(sizes), grouped((look.host, r) for r, look in members)
    if len(hosts) == 1 and all(
        " in net:" in r.job and (r.local_world_size or size) >= size for r, _ in members
    ):
        return dict.fromkeys(
            itertools.islice((n for n in range(size) if n not in present), 4096), next(iter(hosts))
        )
    blocks = {
        host: {
            (r.rank - r.local_rank, min(r.local_world_size, 64))
            for r in there
            if r.local_rank is not None and r.local_world_size
        }
        for host, there in hosts.items()
    }
    expected = {
        first + n: host
        for host, block in blocks.items()
        if len(block) == 1
        for first, width in block
        for n in range(width)
        if 0 <= first + n < size
    }
    widest = max((width for block in blocks.values() for _, width in block), default=0)
    if not _spoken_to(members, _ELSEWHERE) and len(present | set(expected)) < size <= len(
        present | set(expected)
    ) + widest * len(bare):
        expected = {**dict.fromkeys(range(min(size, 4096)), ", ".join(bare[:8])), **expected}
    return {n: host for n, host in sorted(expected.items()) if n not in present}


def unseen(members: Members, bare: Sequence[str] = ()) -> str:
    """Ranks that no look covers, with their hosts as far as RAS, Slurm or sockets show them; empty if all
    are covered."""
    size = world_size(members) or 0
    left = (
        size
        - len({r.rank for r, _ in members} - {None})
        - sum(r.rank is None for r, _ in members)
        - len(missing_ranks(members, bare))
    )
    if left <= 0:
        return ""
    joined = [(r, c) for r, look in members for c in known(look.ras)]
    looked_at = {x.host for r, c in joined for x in by_ras(c, c.ranks, r.pid, r.rank, r.world_size)}
    by_slurm = {r.variables["SLURM_JOB_NODELIST"] for r, _ in members if "SLURM_JOB_NODELIST" in r.variables}
    hosts = sorted(
        {x.host for _, c in joined for x in c.ranks} - looked_at or by_slurm or _spoken_to(members)
    )
    return (
        f"{left} of {size} ranks, on hosts that were not examined"
        + (f" ({', '.join(hosts[:8])})" if hosts else "")
        + (f"; {', '.join(bare[:8])} showed no rank of this user" if bare else "")
    )


def _spoken_to(members: Members, whom: Pattern[str] = INNER) -> Set[str]:
    """Addresses, of the inner network as a rule, to which the ranks are connected and which are
    of no host that was looked at."""
    links = [s for r, _ in members for s in known(r.sockets) if s.state == "ESTABLISHED"]
    return {address[1] for s in links if (address := whom.match(s.remote))} - {
        s.local.rpartition(":")[0] for s in links
    }


def stale(members: Members) -> Dict[str, float]:
    """Host -> seconds by which its look ended before the last one began, by the hosts' clocks."""
    spans = {look.host: (_second(look.taken), _second(look.taken) + look.gap_s) for _, look in members}
    last = max(begun for begun, _ in spans.values())
    return {host: last - ended for host, (_, ended) in spans.items() if ended < last}


def _second(taken: str) -> int:
    with contextlib.suppress(ValueError):
        return calendar.timegm(time.strptime(taken, "%Y-%m-%dT%H:%M:%SZ"))
    return 0


# --- ranks that wait for the network


# --- looks at several hosts made one


def together(looks: Iterable[Live]) -> List[Live]:
    """The looks, with host names made unique: hosts of one name (containers, clones) get address and pid
    namespace. Jobs named by a pid or localhost stay on one host, unless ranks of another host are connected,
    or meet at the same port and only together make up the job: then MASTER_ADDR is wrong somewhere, or only
    rank 0's host uses that name."""
    looks = _told_apart(sorted(looks, key=lambda look: (look.host, look.boot_id, look.taken)))
    jobs: List[Members] = []
    for part in grouped(
        (
            (
                r.job,
                r.job.startswith(("children of ", "session ", BY_CONNECTION)) and look.boot_id,
                " in net:" in r.job and look.boot_id.partition(" ")[0],
            ),
            (r, look),
        )
        for look in looks
        for r in look.ranks
    ).values():
        if whole := next((job for job in jobs if connected(job, part) or _halves(job, part)), None):
            whole += part
        else:
            jobs.append(part)
    titles = [next((r.job for r, _ in job if " in net:" not in r.job), job[0][0].job) for job in jobs]
    own = {
        id(r): f"{title} on {job[0][1].host}" if titles.count(title) > 1 else title
        for title, job in zip(titles, jobs)
        for r, _ in job
    }
    return [
        dataclasses.replace(look, ranks=[dataclasses.replace(r, job=own[id(r)]) for r in look.ranks])
        for look in looks
    ]


def _told_apart(looks: List[Live]) -> List[Live]:
    boots = grouped((look.host, look.boot_id) for look in looks if look.ranks)
    return [
        dataclasses.replace(
            look,
            host=f"{look.host} ({_address(look)}pid namespace {look.boot_id.rpartition('[')[2].rstrip(']')})",
        )
        if len(set(boots.get(look.host, ()))) > 1
        else look
        for look in looks
    ]


def _address(look: Live) -> str:
    own = {
        s.local.rpartition(":")[0] for r in look.ranks for s in known(r.sockets) if s.state == "ESTABLISHED"
    }
    return next((f"{address}, " for address in sorted(own) if not address.startswith(("127.", "[::1]"))), "")


def _halves(some: Members, others: Members) -> bool:
    """They are different ranks of as many, more than a host was to have, of different hosts, and meet
    at one port, some at localhost."""
    both, numbers = [*some, *others], [{r.rank for r, _ in part} for part in (some, others)]
    sizes, ports = {r.world_size for r, _ in both}, {r.variables.get("MASTER_PORT") for r, _ in both}
    return (
        len(sizes) == len(ports) == 1
        and None not in sizes | ports | numbers[0] | numbers[1]
        and not numbers[0] & numbers[1]
        and all((r.local_world_size or 0) < (r.world_size or 0) for r, _ in both)
        and not {look.host for _, look in some} & {look.host for _, look in others}
        and any(" in net:" in r.job for r, _ in both)
    )
