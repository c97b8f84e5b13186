"""Paths between hosts that lose data, and a store that no rank reaches."""

import re
import shlex
from typing import Dict, List, Optional, Tuple

from nccl_runbook.core.facts import Evidence, Gap, counted, grouped, known
from nccl_runbook.hang.live.facts import Live, LiveRank, Socket
from nccl_runbook.hang.live.ranks.judge_picture import WAITING, Picture, accuse, names
from nccl_runbook.hang.live.ranks.judge_stacks import INIT, main_stacks, waits_in

# other peers of a rank are seldom on the inner network
INNER = re.compile(r"((?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.[\d.]+):")
# the kernel resends unacknowledged data after 0.2, 0.6, 1.4 s, ...: three in a row on a path that works
# are rare (Linux, RTO_MIN)
REPEATED = 3
_HTTP = (":80", ":443")
AT_REST = (*WAITING, "asleep", "unknown")
Members = List[Tuple[LiveRank, Live]]


def unreachable(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks whose connection is not answered while they wait; None if there are none. HTTP peers (a tracker,
    a hub) do not count."""
    asking = {
        v: s
        for v in base.ranks
        if v.does in AT_REST
        for s in known(v.process.sockets)
        if s.state == "SYN-SENT" and not s.remote.endswith(_HTTP)
    }
    if not (late := list(asking)):
        return None
    address, _, port = asking[late[0]].remote.rpartition(":")
    return accuse(
        base,
        "unreachable",
        late,
        f"{'gets' if len(late) == 1 else 'get'} no answer from {address}:{port}",
        cause="network-path-blocked",
        status="likely",
        observed=[
            Evidence(
                f"{v.name}: SYN-SENT from {asking[v].local} to {asking[v].remote}",
                f"/proc/net/tcp on {v.host}",
            )
            for v in late[:8]
        ],
        decides=f"nc -vz {shlex.quote(address.strip('[]'))} {shlex.quote(port)}",
    )


def without_store(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that try to join, as two stacks show, without a connection to where the others have met; None if
    there are none."""
    late = [
        v
        for v in base.ranks
        if v.does in AT_REST
        and not isinstance(v.process.sockets, Gap)
        and not _has_store(v.process)
        and len([s for s in main_stacks(v.process) if waits_in(s) in INIT]) > 1
    ]
    if not late or 0 in {v.rank for v in late}:
        return None
    variables, others = late[0].process.variables, sum(_has_store(r) for r, _ in members)
    address, port = variables.get("MASTER_ADDR", ""), variables["MASTER_PORT"]
    line = (
        f"getent ahosts {shlex.quote(address)}; nc -vz {shlex.quote(address)} {shlex.quote(port)}   "
        f"# on {late[0].host}"
    )
    alone = f"{'has' if len(late) == 1 else 'have'} no connection to {address}:{port}"
    if not others:
        return accuse(
            base,
            "unknown",
            [],
            f"{names(late)} {alone}, the rendezvous. Either rank 0 has not started yet, or {address} "
            "does not lead to its host",
            cause=None,
            status="",
            observed=(),
            decides=line,
        )
    evidence = [
        Evidence(f"{v.name} has no connection to port {port}", f"/proc/net/tcp on {v.host}") for v in late[:8]
    ]
    return accuse(
        base,
        "unreachable",
        late,
        f"{alone}, where {counted(others, 'other')} have connected. On its own host, {address} is not "
        "rank 0's host, or a firewall refuses the connection",
        cause="rendezvous-misconfigured",
        status="likely",
        observed=evidence,
        decides=line,
    )


def lost(base: Picture, members: Members) -> Optional[Picture]:
    """Data that waiting ranks sent is never acknowledged: between two hosts either may be at fault, of
    several the common one; None if all data is acknowledged."""
    still, known = {(v.host, v.pid) for v in base.ranks if v.does in AT_REST}, {v.host for v in base.ranks}
    if not (paths := _paths([(r, look) for r, look in members if (look.host, r.pid) in still])):
        return None
    common = set.intersection(*map(set, paths)) if len(paths) > 1 and known >= set().union(*paths) else set()
    why = (
        f"data that ranks send between {', '.join(' and '.join(path) for path in sorted(paths)[:4])} "
        "is not acknowledged. The network path drops packets (firewall, link), or a host is down"
    )
    held = [s for links in paths.values() for s in links[:2]]
    cut_off = [v for v in base.ranks if common == {v.host}]
    return accuse(
        base,
        "unreachable",
        cut_off,
        ("cannot be reached: " if cut_off else "") + why,
        cause="network-path-blocked",
        status="likely",
        observed=[
            Evidence(
                f"{s.local} to {s.remote}: data was sent again {s.repeated} times without an answer",
                "/proc/net/tcp",
            )
            for s in held[:8]
        ],
        decides=f"ping -c 3 {shlex.quote(held[0].remote.rpartition(':')[0].strip('[]'))}   # from "
        f"{held[0].local.rpartition(':')[0]}",
    )


def _has_store(rank: LiveRank) -> bool:
    return not (port := rank.variables.get("MASTER_PORT")) or any(
        s.remote.endswith(f":{port}") for s in known(rank.sockets)
    )


def _paths(members: Members) -> Dict[Tuple[str, str], List[Socket]]:
    """Pairs of hosts, ordered, between which data is resent and never acknowledged; the address if no look
    knows its host. Connections to hosts outside the inner network (a tracker, a proxy) do not belong to the
    job."""
    homes = {s.local.rpartition(":")[0]: look.host for r, look in members for s in known(r.sockets)}
    return grouped(
        (tuple(sorted((look.host, homes.get(address, address)))), s)
        for r, look in members
        for s in known(r.sockets)
        if s.state == "ESTABLISHED" and s.repeated >= REPEATED
        if (address := s.remote.rpartition(":")[0]) in homes or INNER.match(s.remote)
    )
