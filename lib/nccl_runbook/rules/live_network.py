"""Ranks that wait for the network: no answer, no way to the meeting place, a path that drops what is sent. Python >= 3.9."""
from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Tuple

from nccl_runbook.facts import Gap, counted, grouped
from nccl_runbook.facts.live import LiveRank, Socket
from nccl_runbook.rules.live_hosts import Members, apart_s, sockets
from nccl_runbook.rules.live_picture import Picture, Seen, names, told_of
from nccl_runbook.rules.live_ranks import INIT, WAITING, main_stacks, waits_in

TOGETHER = "python3 nccl-look.pyz --live   # on all hosts within the same ten seconds, then: nccl-runbook look --record n1.json n2.json"
# the kernel repeats what nobody acknowledges after 0.2, 0.6, 1.4 s, ...: three in a row on a path that works are rare (Linux, RTO_MIN)
REPEATED = 3
AT_REST = (*WAITING, "asleep", "unknown")


def unreachable(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks whose connection is not answered while they wait."""
    asking = {(look.host, r.pid): s for r, look in members for s in sockets(r) if s.state == "SYN-SENT"}
    accused = [v for v in base.ranks if (v.host, v.pid) in asking and v.does in AT_REST]
    if not accused:
        return None
    seen = [Seen(f"{v.name}: SYN-SENT from {s.local} to {s.remote}", f"/proc/net/tcp on {v.host}")
            for v in accused[:8] for s in [asking[v.host, v.pid]]]
    remote = asking[accused[0].host, accused[0].pid].remote
    why = f"{'gets' if len(accused) == 1 else 'get'} no answer from {remote}"
    return told_of(base, "unreachable", accused, why, "network-path-blocked", "likely", seen, f"nc -vz {remote.replace(':', ' ')}")


def without_store(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that try to join and have no connection to where the others have met."""
    lone = {(look.host, r.pid): r for r, look in _lone(members)}
    accused = [v for v in base.ranks if (v.host, v.pid) in lone and v.does in AT_REST]
    if not accused or 0 in {v.rank for v in accused}:
        return None
    address, port = (lone[accused[0].host, accused[0].pid].variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    others, line = sum(_has_store(r) for r, _ in members), f"getent ahosts {address}; nc -vz {address} {port}   # on {accused[0].host}"
    told = f"{'has' if len(accused) == 1 else 'have'} no connection to {address}:{port}, where the ranks should meet"
    if not others:
        why = f"{names(accused)} {told}: rank 0 is not there yet, or {address} is not its host here"
        return told_of(base, "unknown", [], why, None, "", (), line)
    seen = [Seen(f"{v.name} has no connection to port {port}", f"/proc/net/tcp on {v.host}") for v in accused[:8]]
    why = f"{told} and {counted(others, 'other')} did: {address} is another host there, or a firewall refuses it"
    return told_of(base, "unreachable", accused, why, "rendezvous-misconfigured", "likely", seen, line)


def lost(base: Picture, members: Members) -> Optional[Picture]:
    """What waiting ranks sent is never acknowledged: between two hosts nobody knows whose fault it is, of several the one in common."""
    still = {(v.host, v.pid) for v in base.ranks if v.does in AT_REST}
    paths = _paths([(r, look) for r, look in members if (look.host, r.pid) in still])
    if not paths:
        return None
    hosts = {host for path in paths for host in path}
    common = set.intersection(*map(set, paths)) if len(paths) > 1 and hosts <= {v.host for v in base.ranks} else set()
    told = ", ".join(" and ".join(path) for path in sorted(paths)[:4])
    why = f"what ranks send between {told} is not acknowledged: the path drops it (firewall, link), or a host is down"
    held = [s for one in paths.values() for s in one[:2]]
    seen = [Seen(f"{s.local} to {s.remote}: sent again {s.repeated} times, no answer", "/proc/net/tcp") for s in held[:8]]
    cut_off = [v for v in base.ranks if common == {v.host}]
    return told_of(base, "unreachable", cut_off, "cannot be reached: " * bool(cut_off) + why, "network-path-blocked", "likely", seen,
                   f"ping -c 3 {held[0].remote.rpartition(':')[0]}")


def at_other_times(base: Picture, members: Members) -> Optional[Picture]:
    """Some moved when they were looked at, others stood still when they were, later or earlier: no one can be held against the other."""
    apart, does = apart_s(members), {v.does for v in base.ranks}
    if not apart or "moving" not in does or not does & {*WAITING, "asleep"}:
        return None
    return dataclasses.replace(base, decides=TOGETHER, sentence=f"the hosts were looked at {apart:.0f} s apart: some ranks still moved at "
                               "one time and some stood still at the other; look at all of them at once")


def _lone(members: Members) -> Members:
    """Ranks that have been joining the job, as two stacks show, without a connection to the port where it meets."""
    return [(r, look) for r, look in members if not isinstance(r.sockets, Gap) and not _has_store(r)
            and len([s for s in main_stacks(r) if waits_in(s) in INIT]) > 1]


def _has_store(rank: LiveRank) -> bool:
    port = rank.variables.get("MASTER_PORT", "")
    return not port or any(s.state != "LISTEN" and s.remote.endswith(f":{port}") for s in sockets(rank))


def _paths(members: Members) -> Dict[Tuple[str, str], List[Socket]]:
    """Between which two hosts, ordered, what was sent is repeated and never acknowledged; the address where no look tells its host."""
    homes = {s.local.rpartition(":")[0]: look.host for r, look in members for s in sockets(r)}
    return grouped((tuple(sorted((look.host, homes.get(address, address)))), s) for r, look in members for s in sockets(r)
                   if s.state == "ESTABLISHED" and s.repeated >= REPEATED for address in [s.remote.rpartition(":")[0]])
