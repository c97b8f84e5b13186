"""Processes beside the ranks: strangers, left-over jobs, launchers; and stopped or unseen ranks."""

import dataclasses
from typing import Iterable, Optional, Sequence

from nccl_runbook.core.facts import Evidence, Gap, grouped, known
from nccl_runbook.hang.live.facts import LEFT_OVER
from nccl_runbook.hang.live.faults.judge_paths import Members
from nccl_runbook.hang.live.judge_hosts import LOOK_THERE, unseen
from nccl_runbook.hang.live.ranks.judge_picture import Picture, accuse, is_are
from nccl_runbook.hang.live.ranks.judge_stacks import main_stacks

NO_JOB = "other processes"


def not_seen_of(members: Members, bare: Sequence[str]) -> Iterable[str]:
    """What was not to be had, each reason once."""
    ended = Gap("absent", "the process ended")
    unknown = grouped(
        (f"{what}: {fact.detail or fact.reason}", str(rank.rank if rank.rank is not None else rank.pid))
        for rank, look in members
        for what, fact in (
            ("stacks", rank.samples[-1].stacks if rank.samples else ended),
            ("flight recorder", rank.recorder),
            ("log", rank.log_tail),
            ("sockets", rank.sockets),
            ("GPUs", look.gpus),
            ("NCCL RAS", look.ras),
        )
        if isinstance(fact, Gap)
    )
    for text, whose in unknown.items():
        yield text if len(whose) == len(members) else f"{text} (rank {', '.join(whose[:16])})"
    yield from filter(None, [unseen(members, bare)])


def strangers(base: Picture, members: Members) -> Optional[Picture]:
    """Processes without a rank, torch or NCCL, or without connections between them and outside any
    collective (a shell, a notebook, a server); None if some process may be a rank."""
    homes = {s.local: r.pid for r, _ in members for s in known(r.sockets)}
    together = any(homes.get(s.remote, r.pid) != r.pid for r, _ in members for s in known(r.sockets))
    bare = not any(r.has_torch or r.nccl for r, _ in members)
    if any(r.rank is not None or r.world_size for r, _ in members) or (
        not bare and (together or any(v.where or not v.frame for v in base.ranks))
    ):
        return None
    lacks = (
        "this process has loaded neither torch nor NCCL"
        if bare
        else "this process has loaded torch, but waits in no collective and is connected to no rank"
    )
    return dataclasses.replace(
        base,
        job=NO_JOB,
        sentence=f"{base.ranks[0].name} does not look like a rank of a GPU job: {lacks}. "
        "A rank has RANK or SLURM_PROCID in its environment. Name a rank or its launcher (torchrun, srun)",
        decides="nccl-runbook look   # all your ranks on this host",
    )


def left_over(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks at an address where a newer launch runs; None if there are none."""
    if not base.job.endswith(LEFT_OVER):
        return None
    pids = ",".join(str(v.pid) for v in base.ranks)
    return accuse(
        base,
        "left-over",
        base.ranks,
        f"{is_are(base.ranks)} left over from an earlier launch at this address, and may still hold "
        "the port and the GPUs",
        cause=None,
        status="established",
        observed=[Evidence(f"pids {pids} started before the newer ranks", "/proc")],
        decides=f"ps -o pid,ppid,lstart,stat,args -p {pids}   # end these processes if they are yours: the "
        "newer job needs their port and GPUs",
    )


def launchers(base: Picture, members: Members) -> Optional[Picture]:
    """torchrun runs, and no rank of it; None otherwise. Only launchers of this host can meet it at localhost,
    the default."""
    if any(
        r.rank is not None
        or not any("/torch/distributed/elastic/" in f.file for stack in main_stacks(r) for f in stack.frames)
        for r, _ in members
    ):
        return None
    rank = members[0][0]
    hosts = rank.variables.get("PET_NNODES", "1").partition(":")[0]
    place = rank.variables.get("PET_RDZV_ENDPOINT") or rank.variables.get("PET_MASTER_ADDR") or "localhost"
    if len(members) == 1 and hosts > "1" and place.startswith(("127.", "localhost", "::1", "[::1]")):
        return accuse(
            base,
            "dead",
            [],
            f"torchrun waits for {hosts} hosts (--nnodes), and has started no rank. It waits at {place}, "
            "which no other host can reach",
            cause="rendezvous-misconfigured",
            status="likely",
            observed=[Evidence(f"--nnodes {hosts}, rendezvous at {place}", f"/proc/{rank.pid}/cmdline")],
            decides=LOOK_THERE,
        )
    return dataclasses.replace(
        base,
        decides=LOOK_THERE,
        sentence=f"torchrun runs no rank, and is in {base.ranks[0].frame}. If torchrun waits for "
        "other hosts, all hosts need the same --rdzv-endpoint, --rdzv-id and --nnodes",
    )


def stopped_ranks(base: Picture, members: Members) -> Optional[Picture]:
    """Ranks that are stopped (state T); None without any."""
    if not (stopped := [v for v in base.ranks if v.does == "stopped"]):
        return None
    return accuse(
        base,
        "stopped",
        stopped,
        f"{is_are(stopped)} stopped (process state T) by a signal, a debugger or the batch system",
        cause="peer-stopped",
        status="established",
        observed=[
            Evidence(f"{v.name} is in state T in every sample", f"/proc/{v.pid}/stat on {v.host}")
            for v in stopped[:8]
        ],
        decides=f"kill -CONT {stopped[0].pid}",
    )
