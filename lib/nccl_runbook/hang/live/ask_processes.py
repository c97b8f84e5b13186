"""Ranks as /proc shows them: which processes are ranks, what their threads do, which peers their
sockets reach. Reads only."""

import dataclasses
import os
import platform
import re
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.redact import Redactor, clipped
from nccl_runbook.hang.live.ask_proc import ancestors, own_inodes, pids, read, stat_fields, unless_gone
from nccl_runbook.hang.live.facts import LEFT_OVER, Ended
from nccl_runbook.launch.warm_link import LOADER

# values are read and kept for these names alone
NAMES = frozenset(
    (
        "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT CUDA_VISIBLE_DEVICES "
        "NODE_RANK TORCHELASTIC_RUN_ID "
        "TORCHELASTIC_RESTART_COUNT SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_STEP_ID SLURM_PROCID "
        "SLURM_NTASKS SLURM_LOCALID "
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK PMI_SIZE "
        "PMIX_NAMESPACE NCCL_RAS_ADDR NCCL_RAS_ENABLE "
        "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME TORCH_WORKER_SERVER_SOCKET TORCH_NCCL_DEBUG_INFO_PIPE_FILE "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE "
        "TORCH_FR_DUMP_TEMP_FILE PET_NNODES PET_MASTER_ADDR PET_RDZV_ENDPOINT"
    ).split()
)
# Slurm's last: whatever mpirun starts in a batch script has the script's, 0
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LOCAL_NAMES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
# include/net/tcp_states.h
TCP_STATES = {
    "01": "ESTABLISHED",
    "02": "SYN-SENT",
    "03": "SYN-RECV",
    "04": "FIN-WAIT-1",
    "05": "FIN-WAIT-2",
    "08": "CLOSE-WAIT",
    "09": "LAST-ACK",
    "0A": "LISTEN",
}
# system calls in which threads sleep, where the kernel names no wait channel
# (asm/unistd_64.h, asm-generic/unistd.h)
CALLS = {
    "x86_64": {
        0: "read",
        1: "write",
        7: "poll",
        16: "ioctl",
        20: "writev",
        23: "select",
        24: "sched_yield",
        35: "nanosleep",
        43: "accept",
        42: "connect",
        45: "recvfrom",
        47: "recvmsg",
        61: "wait4",
        74: "fsync",
        202: "futex",
        230: "clock_nanosleep",
        232: "epoll_wait",
        247: "waitid",
        270: "pselect6",
        271: "ppoll",
        281: "epoll_pwait",
    },
    "aarch64": {
        22: "epoll_pwait",
        29: "ioctl",
        63: "read",
        64: "write",
        66: "writev",
        72: "pselect6",
        73: "ppoll",
        82: "fsync",
        95: "waitid",
        98: "futex",
        101: "nanosleep",
        115: "clock_nanosleep",
        124: "sched_yield",
        202: "accept",
        203: "connect",
        207: "recvfrom",
        212: "recvmsg",
        260: "wait4",
    },
}.get(platform.machine(), {})
TICKS = os.sysconf("SC_CLK_TCK")
MOST_THREADS, MOST_SOCKETS, TAIL_BYTES, TAIL_LINES = 16, 64, 8192, 20
TOGETHER_S = 60  # in which a launcher has begun all ranks of a host
LOOPBACK = re.compile(r"127\.|localhost$|::1$")


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of this user that may be a rank. A field that ``LiveRank`` has, too, arrives there.
    ``began``: clock ticks since boot; ``rank``: None if its
    environment has none; ``launcher``: its parent, or that of wrappers around it; ``job``: where its ranks
    meet."""

    pid: int
    parent: int
    session: int
    began: int
    variables: Dict[str, str]
    has_torch: bool
    nccl: str
    redactor: Redactor
    launcher: int = 0
    job: str = ""

    def number(self, names: Iterable[str]) -> Optional[int]:
        """Value of the first of these variables that is a whole number, or None."""
        return next(
            (int(v) for v in map(self.variables.get, names) if v and v.isdecimal() and len(v) < 10), None
        )

    @property
    def rank(self) -> Optional[int]:
        """The global rank in its environment, or None. Lightning gives the ranks that it starts only the node
        and the rank there, which are the same on the first node."""
        on_first = ("LOCAL_RANK",) if self.variables.get("NODE_RANK") == "0" else ()
        return self.number([*RANK_NAMES, *on_first])


def processes(all_users: Iterable[int] = ()) -> Dict[int, Process]:
    """pid -> process: those of this user that map libtorch or have a rank in their environment, and those of
    ``all_users``. Test ranks of the runbook count only if they are in ``all_users``."""
    own = {pid: unless_gone(None, _process, pid, pid in all_users) for pid in pids() if pid != os.getpid()}
    # under srun the shell from which one looks has a rank in its environment, too
    shells = set(ancestors(os.getpid())) - set(all_users)
    return {
        pid: dataclasses.replace(p, launcher=launcher, job=job)
        for pid, p in own.items()
        if p and (p.has_torch or pid not in shells)
        if (job := unless_gone("", _job, p, launcher := _launcher(p, own)))
    }


def _launcher(process: Process, known: Dict[int, Optional[Process]]) -> int:
    """Its parent; that of a wrapper (`timeout`, `bash run.sh`) where a launcher started one
    around each rank: it has the rank's number, too, which the launcher has not, and a wrapper that
    sets RANK has that of MPI."""
    own = next((n for n in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK") if n in process.variables), "")
    above = known.get(process.parent) if own else None
    return (
        _launcher(above, known)
        if above and above.variables.get(own) == process.variables[own]
        else process.parent
    )


def _process(pid: int, asked: bool) -> Optional[Process]:
    # ranks of the runbook are forks of its warm process
    if not asked and (
        os.stat(f"/proc/{pid}").st_uid != os.getuid() or LOADER in read(f"/proc/{pid}/cmdline")
    ):
        return None
    whole = dict(pair.partition("=")[::2] for pair in read(f"/proc/{pid}/environ").split("\0") if "=" in pair)
    variables = {n: clipped(v, 256) for n, v in {**whole, **_options(pid)}.items() if n in NAMES}
    fields = stat_fields(f"/proc/{pid}/stat")
    maps = read(f"/proc/{pid}/maps", 1 << 25)
    has_torch = "/libtorch" in maps
    if not has_torch and not asked and not any(n in variables for n in RANK_NAMES):
        return None
    nccl = re.search(r"(?<!\S)/[^\n]*libnccl\.so[^\s]*", maps)
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        began=int(fields[19]),
        variables=variables,
        has_torch=has_torch,
        nccl=nccl[0] if nccl else "",
        redactor=Redactor(whole),
    )


def _options(pid: int) -> Dict[str, str]:
    """Options of the command line, by the variables that torchrun reads as well: the value of --nnodes below
    PET_NNODES. Those of its script stand behind its own."""
    options = re.findall(r"\0--?([a-z][a-z_-]*)(?=[=\0]([^\0]*))", read(f"/proc/{pid}/cmdline"))
    return {f"PET_{name.replace('-', '_').upper()}": value for name, value in reversed(options)}


def _job(process: Process, launcher: int) -> str:
    variables = process.variables
    if "MASTER_PORT" not in variables:
        if (
            "PMIX_NAMESPACE" in variables
        ):  # of one mpirun or srun --mpi=pmix, the same on all its hosts (Open MPI 4.1.4)
            return f"MPI job {variables['PMIX_NAMESPACE']}"
        step = [variables[n] for n in ("SLURM_JOB_ID", "SLURM_STEP_ID") if n in variables]
        orphan = launcher == 1 and process.session != process.pid  # pid 1 has those of all jobs
        return (
            "Slurm " + ".".join(step)
            if len(step) == 2
            else f"session {process.session}"
            if orphan
            else f"children of {launcher}"
        )
    if LOOPBACK.match(variables.get("MASTER_ADDR", "localhost")):  # 127.0.0.1, ::1 and the name are one place
        return f"localhost:{variables['MASTER_PORT']} in {os.readlink(f'/proc/{process.pid}/ns/net')}"
    return f"{variables['MASTER_ADDR']}:{variables['MASTER_PORT']}"


def ranks_among(by_pid: Dict[int, Process]) -> Tuple[List[Process], Dict[int, List[int]]]:
    """(ranks, rank's pid -> its helpers: torch processes that it started, such as data loaders). A torch
    process without a rank is a launcher if ranks descend from it, and a rank only if it has TCP sockets
    (torch.multiprocessing.spawn sets the environment in the child, where /proc does not show it)."""
    above = {pid: [a for a in ancestors(pid) if a in by_pid] for pid in by_pid}
    named = {pid: p for pid, p in by_pid.items() if p.rank is not None}
    with_torch = {(p.job, p.rank) for p in named.values() if p.has_torch}
    ranks, helpers = {}, {}
    for pid, p in sorted(by_pid.items(), key=lambda item: len(above[item[0]])):
        owner = next(
            (
                a
                for a in above[pid]
                if a in ranks and (p.rank is None or (by_pid[a].job, by_pid[a].rank) == (p.job, p.rank))
            ),
            None,
        )
        leaf = not any(pid in above[other] for other in named)
        first_of_rank = owner is None and (p.has_torch or (leaf and (p.job, p.rank) not in with_torch))
        if first_of_rank if p.rank is not None else leaf and own_inodes(pid) - own_inodes(p.parent):
            ranks[pid] = p
        elif owner is not None:
            helpers.setdefault(owner, []).append(pid)
    launchers = {a for pid in ranks for a in above[pid] if by_pid[a].rank is None}
    ranks = {pid: p for pid, p in ranks.items() if pid not in launchers}
    for p in [p for p in ranks.values() if p.parent in launchers and not p.number(RANK_NAMES) and p.rank]:
        # Lightning's rank 0 starts the others
        ranks[p.parent] = dataclasses.replace(
            by_pid[p.parent], variables={**p.variables, "LOCAL_RANK": "0"}, job=p.job
        )
    return list(_left_apart([*ranks.values()])), helpers


def _left_apart(ranks: List[Process]) -> Iterator[Process]:
    """The processes, with a separate job for ranks that an earlier launch left at the address of a newer
    one: a number occurs twice, or their launcher has ended and they began long before. Several launchers at
    one address normally start one job."""
    for job, members in grouped((r.job, r) for r in ranks).items():
        newest, *older = sorted(
            grouped((r.launcher, r) for r in members).values(), key=lambda part: -min(r.began for r in part)
        )
        for part in older:
            if {r.rank for r in newest} & {r.rank for r in part} or (
                part[0].launcher == 1
                and min(r.began for r in newest) - max(r.began for r in part) > TOGETHER_S * TICKS
            ):
                yield from (dataclasses.replace(r, job=job + LEFT_OVER) for r in part)
            else:
                newest = newest + part
        yield from newest


def ended(ranks: List[int]) -> List[Ended]:
    """Zombies with the same parent and name as a rank, begun at about the same time: below pid 1 of a
    container all processes end."""
    there = {
        pid: (fields, unless_gone("", read, f"/proc/{pid}/comm"))
        for pid in pids()
        if (fields := unless_gone([], stat_fields, f"/proc/{pid}/stat"))
    }
    kin = [(fields[1], name, int(fields[19])) for fields, name in (there[r] for r in ranks if r in there)]
    return [
        Ended(pid, os.waitstatus_to_exitcode(int(fields[49])))
        for pid, (fields, name) in there.items()
        if fields[0] == "Z"
        and any(k[:2] == (fields[1], name) and abs(int(fields[19]) - k[2]) <= TOGETHER_S * TICKS for k in kin)
    ]
