"""A job over several hosts: which looks belong together, which ranks none covers, where a path drops what is sent. Python >= 3.9."""
from __future__ import annotations

import calendar
import collections
import dataclasses
import itertools
import re
import time
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

from nccl_runbook.facts import Gap, grouped
from nccl_runbook.facts.live import Live, LiveRank, Socket
from nccl_runbook.rules.live_ranks import of_ras

LOOK_THERE = "python3 nccl-look.pyz --live   # on each host, then: nccl-runbook look --record n1.json n2.json"
_INNER = re.compile(r"((?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.[\d.]+):")  # whoever else a rank speaks to is seldom on the inner network
Members = List[Tuple[LiveRank, Live]]


def told_apart(looks: Iterable[Live]) -> List[Live]:
    """The same; hosts of one name, as containers and cloned machines have it, get their address or their pid namespace beside it."""
    boots = grouped((look.host, look) for look in {(one.host, one.boot_id): one for one in looks if one.ranks}.values())
    names = {}
    for host, same in boots.items():
        places = [_address(look) for look in same]
        for look, place in zip(same, places):
            beside = place if place and places.count(place) == 1 else look.boot_id
            names[host, look.boot_id] = f"{host} ({beside})" if len(same) > 1 else host
    return [dataclasses.replace(look, host=names.get((look.host, look.boot_id), look.host)) for look in looks]


def _address(look: Live) -> str:
    found = collections.Counter(m[1] for r, _ in _members(look) for s in sockets(r) if (m := _INNER.match(s.local)))
    return found.most_common(1)[0][0] if found else ""


def _members(look: Live) -> Members:
    return [(rank, look) for rank in look.ranks]


def sockets(rank: LiveRank) -> List[Socket]:
    return [] if isinstance(rank.sockets, Gap) else rank.sockets


def joined(members: Members) -> List[Members]:
    """The ranks job by job. What is named by a pid or by localhost is of one host, unless ranks of another host meet at the same port and
    only together they are those of one job: then somebody's MASTER_ADDR is wrong, or only rank 0's host calls itself so."""
    jobs: List[Members] = []
    for part in grouped(((r.job, _place(r.job, look)), (r, look)) for r, look in members).values():
        other = next((there for there in jobs if _halves(there, part)), None)
        jobs += [part] if other is None else []
        (part if other is None else other).extend([] if other is None else part)
    return jobs


def job_of(members: Members) -> str:
    return next((r.job for r, _ in members if " in net:" not in r.job), members[0][0].job)


def _place(job: str, look: Live) -> str:
    return look.boot_id if job.startswith(("children of ", "session ")) else look.boot_id.partition(" ")[0] if " in net:" in job else ""


def _halves(some: Members, others: Members) -> bool:
    """Neither are all ranks of a job, they are different ones of as many, of different hosts, and meet at one port, some at localhost."""
    both, numbers = [*some, *others], [{r.rank for r, _ in part} for part in (some, others)]
    sizes, ports = {r.world_size for r, _ in both}, {r.variables.get("MASTER_PORT") for r, _ in both}
    return (len(sizes) == len(ports) == 1 and None not in ports and None not in sizes | numbers[0] | numbers[1] and len(both) <= min(sizes)
            and not numbers[0] & numbers[1] and not {look.host for _, look in some} & {look.host for _, look in others}
            and any(" in net:" in r.job for r, _ in both))


def missing_ranks(members: Members, bare: Sequence[str] = ()) -> Dict[int, str]:
    """Ranks without a process on a host that should have them, and that host: all where the ranks meet on loopback, else by
    LOCAL_WORLD_SIZE, as torchrun numbers them; the last of them are those of hosts that have none at all (``bare``)."""
    seen, sizes = {r.rank for r, _ in members}, {r.world_size for r, _ in members}
    if None in seen or len(sizes) != 1 or None in sizes:
        return {}
    size, hosts = min(sizes), grouped((look.host, r) for r, look in members)
    if len(hosts) == 1 and all(" in net:" in r.job and (r.local_world_size or size) >= size for r, _ in members):
        return dict.fromkeys(itertools.islice((n for n in range(size) if n not in seen), 4096), next(iter(hosts)))
    blocks = {host: {(r.rank - r.local_rank, min(r.local_world_size, 64)) for r in there if r.local_rank is not None and r.local_world_size}
              for host, there in hosts.items()}
    expected = {first + n: host for host, found in blocks.items() if len(found) == 1 for first, width in found for n in range(width)
                if first + n < size}
    widest = max((width for found in blocks.values() for _, width in found), default=0)
    if bare and not _spoken_to(members) and len(seen | set(expected)) < size <= len(seen | set(expected)) + widest * len(bare):
        expected = {**dict.fromkeys(range(min(size, 4096)), ", ".join(bare[:8])), **expected}
    return {n: host for n, host in sorted(expected.items()) if n not in seen}


def unseen(members: Members, bare: Sequence[str] = ()) -> str:
    """The ranks that no look covers, with their hosts as far as NCCL's RAS, Slurm or the sockets of the others tell; "" for none."""
    sizes = collections.Counter(r.world_size for r, _ in members if r.world_size)
    size = sizes.most_common(1)[0][0] if sizes else 0
    left = size - len(members) - len(missing_ranks(members, bare))
    if left <= 0:
        return ""
    told = [(r, c) for r, look in members if not isinstance(look.ras, Gap) for c in look.ras]
    by_ras = {x.host for _, c in told for x in c.ranks} - {x.host for r, c in told for x in of_ras(c, c.ranks, r.pid, r.rank, r.world_size)}
    by_slurm = {r.variables["SLURM_JOB_NODELIST"] for r, _ in members if "SLURM_JOB_NODELIST" in r.variables}
    hosts = sorted(by_ras or by_slurm or _spoken_to(members))
    none = f"; {', '.join(bare[:8])}: looked at, no rank of this user" * bool(bare)
    return f"{left} of {size} ranks, on hosts that were not looked at" + f" ({', '.join(hosts[:8])})" * bool(hosts) + none


def _spoken_to(members: Members) -> Set[str]:
    """Addresses of the inner network to which the ranks are connected and which are of no host that was looked at."""
    links = [s for r, _ in members for s in sockets(r) if s.state == "ESTABLISHED"]
    return {found[1] for s in links if (found := _INNER.match(s.remote))} - {s.local.rpartition(":")[0] for s in links}


def apart_s(members: Members) -> float:
    """Seconds from the end of the first look to the begin of the last, by the hosts' clocks; 0 where all overlap."""
    spans = _spans(members)
    return max(0.0, max(begun for begun, _, _ in spans) - min(ended for _, ended, _ in spans)) if spans else 0.0


def newest_hosts(members: Members) -> Set[str]:
    """Those whose look overlaps the one that began last."""
    spans = _spans(members)
    return {host for _, ended, host in spans if ended >= max(begun for begun, _, _ in spans)}


def _spans(members: Members) -> List[Tuple[float, float, str]]:
    return [(begun, begun + look.gap_s, look.host) for _, look in members for begun in [_second(look.taken)] if begun is not None]


def _second(taken: str) -> Optional[int]:
    try:
        return calendar.timegm(time.strptime(taken, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None
