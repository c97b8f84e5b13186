"""Sockets of ranks, and who listens where they meet."""

import os
import socket
import struct
from typing import Dict, Iterator, List, Optional

from nccl_runbook.hang.live.ask_proc import ancestors, own_inodes, pids, read, unless_gone
from nccl_runbook.hang.live.ask_processes import LOOPBACK, MOST_SOCKETS, TCP_STATES, Process
from nccl_runbook.hang.live.facts import Listener, Socket


def table(pid: int) -> Dict[str, Socket]:
    """inode -> TCP socket in the network namespace of a process; OSError if unreadable."""
    by_inode = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = f"/proc/{pid}/net/{name}"
        text = read(path, 1 << 24) if name == "tcp" or os.path.exists(path) else ""  # a kernel without IPv6
        for fields in map(str.split, text.splitlines()[1:]):
            if len(fields) > 9 and fields[3] in TCP_STATES:
                # its timer is that of repeating (net/ipv4/tcp_ipv4.c)
                repeated = int(fields[6], 16) if fields[5].startswith("01:") else 0
                by_inode[fields[9]] = Socket(
                    TCP_STATES[fields[3]], address(fields[1], family), address(fields[2], family), repeated
                )
    return by_inode


def address(text: str, family: int) -> str:
    """ "127.0.0.1:8080" from "0100007F:1F90": words of four bytes in the machine's order, the port in hex."""
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    shown = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)).removeprefix("::ffff:")
    return f"[{shown}]:{int(port, 16)}" if ":" in shown else f"{shown}:{int(port, 16)}"


def sockets(pid: int, whole: Dict[str, Socket]) -> List[Socket]:
    """Sockets of one process; listening, half-open and unacknowledged ones first."""
    first = ("SYN-SENT", "LISTEN", "CLOSE-WAIT")
    return sorted(
        (whole[inode] for inode in own_inodes(pid) if inode in whole),
        key=lambda s: (s.state not in first and not s.repeated, s.state, s.local, s.remote),
    )[:MOST_SOCKETS]


def listeners(ranks: List[Process], tables: Dict[int, Optional[Dict[str, Socket]]]) -> Iterator[Listener]:
    """Who listens at each MASTER_PORT, if the address belongs to this host. ``tables``: by pid; None for a
    rank that has ended."""
    for job, rank in {r.job: r for r in ranks if tables[r.pid] is not None}.items():
        port = rank.number(["MASTER_PORT"])
        here = LOOPBACK.match(rank.variables.get("MASTER_ADDR", "localhost")) or any(
            s.state == "ESTABLISHED" and s.local.rpartition(":")[0] == rank.variables["MASTER_ADDR"]
            for s in tables[rank.pid].values()
        )
        if port is not None and here:
            yield _listener(
                job,
                port,
                {
                    inode
                    for inode, s in tables[rank.pid].items()
                    if s.state == "LISTEN" and s.local.endswith(f":{port}")
                },
                [r.pid for r in ranks if r.job == job],
            )


def _listener(job: str, port: int, inodes: set, ranks: List[int]) -> Listener:
    if not inodes:
        return Listener(job, port, "nobody", None, "")
    above = {a for r in ranks for a in ancestors(r)}
    pid = next((pid for pid in [*ranks, *sorted(above), *sorted(pids())] if own_inodes(pid) & inodes), None)
    if pid is None:
        return Listener(job, port, "unseen", None, "")
    return Listener(
        job,
        port,
        "rank" if pid in ranks else "launcher" if pid in above else "other",
        pid,
        unless_gone("", read, f"/proc/{pid}/comm").strip(),
    )
