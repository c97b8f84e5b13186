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
        if s.state == "SYN-SENT" and not s.remote.endswith((":80", ":443"))
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
    """Data that waiting ranks sent is never acknowledged. With one path, either of its hosts may be at fault;
    with several, the host that all of them share. None if all data is acknowledged."""
    resting = {(v.host, v.pid) for v in base.ranks if v.does in AT_REST}
    hosts = {v.host for v in base.ranks}
    if not (paths := _paths([(rank, look) for rank, look in members if (look.host, rank.pid) in resting])):
        return None
    # no host is blamed if a path leads to a host that was not looked at
    is_certain = len(paths) > 1 and hosts.issuperset(host for path in paths for host in path)
    shared_by_all = set.intersection(*map(set, paths)) if is_certain else set()
    why = (
        f"data that ranks send between {', '.join(' and '.join(path) for path in sorted(paths)[:4])} "
        "is not acknowledged. The network path drops packets (firewall, link), or a host is down"
    )
    resent = [s for sockets in paths.values() for s in sockets[:2]]
    cut_off = [v for v in base.ranks if shared_by_all == {v.host}]
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
            for s in resent[:8]
        ],
        decides=f"ping -c 3 {shlex.quote(_address(resent[0].remote).strip('[]'))}   # from "
        f"{_address(resent[0].local)}",
    )


def _has_store(rank: LiveRank) -> bool:
    """Whether the rank is connected to the port of the store; True if it names no port."""
    return not (port := rank.variables.get("MASTER_PORT")) or any(
        s.remote.endswith(f":{port}") for s in known(rank.sockets)
    )


def _address(end: str) -> str:
    """ "10.0.0.1:29500" without the port."""
    return end.rpartition(":")[0]


def _paths(members: Members) -> Dict[Tuple[str, str], List[Socket]]:
    """Pairs of hosts, ordered, between which data is resent and never acknowledged -> their sockets; the
    address if no look knows its host. Connections to hosts outside the inner network (a tracker, a proxy) do
    not belong to the job."""
    host_of = {_address(s.local): look.host for rank, look in members for s in known(rank.sockets)}
    return grouped(
        (tuple(sorted((look.host, host_of.get(_address(s.remote), _address(s.remote))))), s)
        for rank, look in members
        for s in known(rank.sockets)
        if s.state == "ESTABLISHED" and s.repeated >= REPEATED
        if _address(s.remote) in host_of or INNER.match(s.remote)
    )
