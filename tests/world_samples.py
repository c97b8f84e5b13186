"""Worlds as NCCL 2.28.9 on H200 leaves them, built by hand for tests of the rules."""
from __future__ import annotations

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult, World, WorldRequest
from nccl_runbook.worlds.facts import Arm, Arms, Trial
from nccl_runbook.worlds.judge_control import outcome

P2P, SHM, NET = {"P2P/CUMEM": 24}, {"SHM/direct/direct": 4}, {"NET/Socket": 8}
TIMES = {("all_reduce", 16777216): 0.11e-3, ("all_reduce", 268435456): 1.1e-3, ("send_recv", 268435456): 0.75e-3}


def rank(number, outcome="exited", code=0, lines=(), error="", uuid=None, bus=None, begun="all_reduce", state="", wrong=None, slow=1.0):
    events = [{"event": "hello", "rank": number, "uuid": uuid or f"uuid-{number}", "pci_bus_id": bus or f"00000000:0{number}:00"},
              {"event": "begin", "what": begun, "size_bytes": 4}]
    events += [
        {"event": "op", "op": op, "size_bytes": size, "median_s": s * slow, "bus_factor": 1.0, "wrong": wrong}
        for (op, size), s in TIMES.items()
    ]
    events += [{"event": "error", "type": "DistBackendError", "text": error}] if error else []
    return RankResult(number, outcome, code, 100 + number, events, list(lines), state=state)


def world(ranks=2, devices=None, transports=None, taken=(), name="2 ranks", **of_rank):
    made = [rank(n, **of_rank) for n in range(ranks)] if isinstance(ranks, int) else ranks
    request = WorldRequest(name, "check.py", devices if devices is not None else list(range(len(made))), ["--ops", "all_reduce"])
    return World(
        request, made, 2.5, "fork", "torchrun check.py", "/venv/libnccl.so.2", P2P if transports is None else transports, list(taken)
    )


def hung(**kwargs):
    return world(outcome="timed-out", code=15, **kwargs)


def trial(first=None, again=None, name="2 ranks"):
    return Trial(name, first or world(), again)


def arm(name, env, acts_on, first, again=None):
    return Arm(name, env, acts_on, first if isinstance(first, Gap) else Trial(name, first, again))


def arms(control=None, p2p=None, shm=None, both=None, pinned=None, after=None, backend="nccl"):
    """The arms of four healthy H200: P2P carries everything, so SHM off has no effect."""
    first = control or world()
    return Arms(
        backend,
        Trial("control", first, first if not first.passed else None),
        [
            arm("P2P off", {"NCCL_P2P_DISABLE": "1"}, ["P2P"], p2p or world(transports=SHM, taken=["NCCL_P2P_DISABLE=1"], slow=13.0)),
            arm("SHM off", {"NCCL_SHM_DISABLE": "1"}, ["SHM"], shm or world(taken=["NCCL_SHM_DISABLE=1"])),
            arm(
                "P2P and SHM off",
                {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
                ["P2P", "SHM"],
                both or world(transports=NET, slow=80.0),
            ),
            arm("IB off", {"NCCL_IB_DISABLE": "1"}, ["NET/IB"], Gap("absent", "no InfiniBand or RoCE device here")),
            arm("interface pinned", {"NCCL_SOCKET_IFNAME": "lo"}, [], pinned or world(taken=["NCCL_SOCKET_IFNAME=lo"])),
        ],
        Trial("control again", after or world()),
    )


def outcomes(made: Arms) -> dict[str, str]:
    """Arm -> its outcome, in words."""
    return {a.name: outcome(a, made.control) for a in made.arms}
