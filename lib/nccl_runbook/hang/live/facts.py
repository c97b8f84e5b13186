"""Facts about a job that is looked at while it runs: each rank's process at a few moments, and what
its host, GPUs and NCCL say."""

import dataclasses
from typing import Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap

# the end of ``LiveRank.job`` of ranks at whose address a newer launch runs
LEFT_OVER = ", left over from an earlier launch"
BY_CONNECTION = "ranks connected to process "  # its beginning, of ranks that only TCP connections join


@dataclasses.dataclass(frozen=True)
class Thread:
    """One thread of a process. ``state``: as in /proc/PID/stat (R S D T t Z X); ``waits``: the kernel
    function or system call in which it sleeps, empty if unknown; ``cpu_s``: seconds of user and system time;
    ``switches``: context switches; ``ready_s``: seconds in which it was ready to run and had no CPU core, 0
    if the kernel does not count them."""

    tid: int
    state: str
    waits: str
    cpu_s: float
    switches: int
    ready_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Frame:
    """One Python frame, as py-spy reports it."""

    function: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class Stack:
    """One Python thread, innermost frame first. ``is_active``: on a CPU; ``owns_gil``: held the interpreter
    lock. For a process that a rank started: its main thread by pid and name, without frames if it is no
    Python or not readable."""

    tid: int
    name: str
    is_active: bool
    owns_gil: bool
    frames: List[Frame]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A rank ``at_s`` seconds after the look began. ``threads``: main thread, then those with the most CPU
    time; ``stacks``: main thread first; a Gap if py-spy is missing, has no permission, or was not asked."""

    at_s: float
    threads: List[Thread]
    stacks: Union[List[Stack], Gap]


@dataclasses.dataclass(frozen=True)
class Socket:
    """One TCP socket. ``state``: LISTEN, SYN-SENT, ESTABLISHED, CLOSE-WAIT, ...; addresses as
    "10.0.0.1:29500" or "[::1]:29500"; ``repeated``: retransmissions in a row of unacknowledged data."""

    state: str
    local: str
    remote: str
    repeated: int = 0


@dataclasses.dataclass(frozen=True)
class GroupStatus:
    """torch's flight recorder on one process group: last sequence numbers, and the call of the newest
    entry."""

    enqueued: Optional[int]
    completed: Optional[int]
    op: str


@dataclasses.dataclass(frozen=True)
class LiveRank:
    """One rank's process. ``rank``, ``local_rank`` and sizes: from its environment, or None; ``job``: equal
    for ranks that meet at one address; ``variables``: allowed names only; ``has_torch``: libtorch is mapped;
    ``nccl``: path of the mapped libnccl, or empty; ``main_thread``: its states, sampled about ten times a
    second ("S futex": 97); ``recorder``: newest state of each group; ``children``: processes that it
    started, if it waits for one."""

    pid: int
    job: str
    rank: Optional[int]
    local_rank: Optional[int]
    world_size: Optional[int]
    local_world_size: Optional[int]
    variables: Dict[str, str]
    has_torch: bool
    nccl: str
    sockets: Union[List[Socket], Gap]
    log_tail: Union[List[str], Gap]
    recorder: Union[List[GroupStatus], Gap]
    samples: List[Sample]
    main_thread: Dict[str, int]
    children: List[Stack] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A zombie with the same parent as a rank. ``code``: exit code, or minus the signal."""

    pid: int
    code: int


@dataclasses.dataclass(frozen=True)
class Listener:
    """Who listens where the ranks of ``job`` should meet. ``who``: rank, launcher, other; nobody; unseen
    (another user's process)."""

    job: str
    port: int
    who: str
    pid: Optional[int]
    name: str


@dataclasses.dataclass(frozen=True)
class LiveGpu:
    """One GPU at the first and last moment of the look. ``pids``: as NVML lists them, possibly of another
    namespace."""

    nvml_index: int
    utilisation_percent: List[Union[int, Gap]]
    power_w: List[Union[float, Gap]]
    pids: Union[List[int], Gap]


@dataclasses.dataclass(frozen=True)
class RasRank:
    """One rank of a communicator, as NCCL's RAS prints it. Text omits common values: then ``rank`` is -1,
    ``pid`` 0, ``host`` empty. ``launched``: collectives by name since the communicator began; ``missing``:
    empty, or how RAS lost the rank ("unresponsive", "considered dead", "not heard of")."""

    rank: int
    pid: int
    host: str
    nvml_index: int
    launched: Dict[str, int]
    missing: str


@dataclasses.dataclass(frozen=True)
class RasCommunicator:
    """``ranks`` at the first moment, ``later`` at the last one (empty if the communicator was gone)."""

    id: str
    size: int
    ranks: List[RasRank]
    later: List[RasRank]


@dataclasses.dataclass(frozen=True)
class RasAnswer:
    """One whole answer of NCCL's RAS. ``gpus``: of the job, 0 if not shown."""

    source: str
    gpus: int
    communicators: List[RasCommunicator]


@dataclasses.dataclass(frozen=True)
class Live:
    """One look at one host. ``boot_id``: of the kernel, with the pid namespace; ``first_s``: seconds until
    all ranks' first evidence; ``gap_s``: seconds between the first and last sample, 0 for a single one: then
    nothing can be called hung."""

    host: str
    boot_id: str
    taken: str
    first_s: float
    gap_s: float
    ranks: List[LiveRank]
    ended: List[Ended]
    listeners: List[Listener]
    gpus: Union[List[LiveGpu], Gap]
    ras: Union[List[RasCommunicator], Gap]
