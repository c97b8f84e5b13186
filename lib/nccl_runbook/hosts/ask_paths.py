"""TCP between the hosts, beside any NCCL test: from each host to the first one and to its neighbour, and
from the first one back."""

import dataclasses
import secrets
from typing import Any

from nccl_runbook.core.facts import Gap, fields_in
from nccl_runbook.hosts.ask import Agents
from nccl_runbook.hosts.facts import TcpPath

WAIT_S = 3.0  # without an answer to a SYN, or to the next bytes
LISTEN_S, CONNECT_S = 5.0, 12.0
ANY_PORT = 0  # one that the kernel chooses, as for the connections of NCCL and Gloo


def pairs(hosts: list[str]) -> list[tuple[str, str]]:
    """(from, to): every host to the first, back, and around the ring; each pair once."""
    first, n = hosts[0], len(hosts)
    ring = [(h, hosts[(at + 1) % n]) for at, h in enumerate(hosts)]
    return list(
        dict.fromkeys(
            p
            for p in [*((h, first) for h in hosts[1:]), *((first, h) for h in hosts[1:]), *ring]
            if p[0] != p[1]
        )
    )


def paths(agents: Agents, port: int) -> list[TcpPath] | Gap:
    """Every path on a port that the kernel chose, and those to the first host also on ``port``, where its
    store listens. A Gap if no two hosts answer."""
    hosts = [a.host for a in agents.here]
    if len(hosts) < 2:
        return Gap("not-run", "fewer than two hosts answer")
    token = secrets.token_hex(8)
    tokens = {h: f"{token}-{at}" for at, h in enumerate(hosts)}
    wanted = {h: [ANY_PORT, *([port] if h == hosts[0] else [])] for h in hosts}
    listens = agents.ask({h: dict(do="listen", ports=wanted[h], token=tokens[h]) for h in hosts}, LISTEN_S)
    begun: list[tuple[TcpPath, int]] = []
    tried: list[TcpPath] = []
    for purpose, asked in (("rendezvous", port), ("data", ANY_PORT)):
        for source, target in pairs(hosts):
            listener = listens[target]
            number = listener if isinstance(listener, Gap) else listener["ports"].get(str(asked))
            if number is None:
                continue
            if not isinstance(number, int):
                tried.append(
                    TcpPath(
                        source, target, purpose, asked, "not-tried", f"port {asked} on {target}: {number}"
                    )
                )
                continue
            path = TcpPath(source, target, purpose, number, "no-answer")
            request = dict(name=target, port=number, token=tokens[target], wait_s=WAIT_S)
            begun.append((path, agents.agents[source].begin("connect", **request)))
    tried += [
        _answered(path, agents.agents[path.source].answer(at, agents.left(CONNECT_S))) for path, at in begun
    ]
    agents.ask({h: dict(do="hush") for h in hosts}, LISTEN_S)
    return tried


def _answered(path: TcpPath, answer: dict[str, Any] | Gap) -> TcpPath:
    if isinstance(answer, Gap):
        return dataclasses.replace(path, kind="not-tried", detail=str(answer))
    return dataclasses.replace(path, **fields_in(TcpPath, answer))
