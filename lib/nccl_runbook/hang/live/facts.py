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
    """One thread of a process. ``state``: as /proc/PID/stat has it (R S D T t Z X); ``waits``: the kernel
    function or system call that it sleeps in, "" if that is unknown; ``cpu_s``: user and system time since
    it began; ``switches``: how often it was put aside."""

    tid: int
    state: str
    waits: str
    cpu_s: float
    switches: int


@dataclasses.dataclass(frozen=True)
class Frame:
    """One Python frame, as py-spy names it."""

    function: str
    file: str
    line: int


@dataclasses.dataclass(frozen=True)
class Stack:
    """One Python thread, innermost frame first. ``is_active``: on a CPU; ``owns_gil``: it held the
    interpreter lock at that moment. Of a process that a rank started: its main thread by its pid and name,
    without frames if it is no Python or may not be looked at."""

    tid: int
    name: str
    is_active: bool
    owns_gil: bool
    frames: List[Frame]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A rank at one moment, ``at_s`` seconds after the look began. ``threads``: the main one, then those
    with most CPU time; ``stacks``: the main thread first; a Gap where py-spy is missing, may not look, or was
    not asked at this moment."""

    at_s: float
    threads: List[Thread]
    stacks: Union[List[Stack], Gap]


@dataclasses.dataclass(frozen=True)
class Socket:
    """One TCP socket. ``state``: LISTEN, SYN-SENT, ESTABLISHED, CLOSE-WAIT, ...; addresses
    as "10.0.0.1:29500" or "[::1]:29500"; ``repeated``: how often in a row the kernel sent data again that the
    other side has not acknowledged."""

    state: str
    local: str
    remote: str
    repeated: int = 0


@dataclasses.dataclass(frozen=True)
class GroupStatus:
    """What torch's flight recorder says of one process group: the last sequence numbers, and the
    call of its newest entry."""

    enqueued: Optional[int]
    completed: Optional[int]
    op: str


@dataclasses.dataclass(frozen=True)
class LiveRank:
    """One rank's process. ``rank``, ``local_rank`` and sizes: from its environment, None where that
    has none; ``job``: ranks that meet at the same address have the same; ``variables``: allowed names
    only; ``has_torch``: libtorch is mapped; ``nccl``: path of the mapped libnccl, "" for none;
    ``main_thread``: what the main thread did at about ten moments a second between the samples ("S futex":
    97); ``recorder``: the newest state per group; ``children``: processes that it started (data loaders,
    programs), if it waits for one."""

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
    """A process of the same parent that ended and was not yet waited for. ``code``: exit code, or minus
    the signal that ended it."""

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
    """One GPU at the first and the last moment of the look. ``pids``: as NVML lists them, which may
    be those of another namespace."""

    nvml_index: int
    utilisation_percent: List[Union[int, Gap]]
    power_w: List[Union[float, Gap]]
    pids: Union[List[int], Gap]


@dataclasses.dataclass(frozen=True)
class RasRank:
    """One rank of a communicator, as NCCL's RAS prints it. Text omits what all have in common: then
    ``rank`` is -1, ``pid`` 0, ``host`` "". ``launched``: collectives by name since the communicator began;
    ``missing``: "" or how RAS lost it ("unresponsive", "considered dead", "not heard of")."""

    rank: int
    pid: int
    host: str
    nvml_index: int
    launched: Dict[str, int]
    missing: str


@dataclasses.dataclass(frozen=True)
class RasCommunicator:
    """``ranks`` at the first and ``later`` at the last moment, empty where it was gone by then."""

    id: str
    size: int
    ranks: List[RasRank]
    later: List[RasRank]


@dataclasses.dataclass(frozen=True)
class RasAnswer:
    """One whole answer of NCCL's RAS. ``gpus``: those of the job, 0 if the answer does not show them."""

    source: str
    gpus: int
    communicators: List[RasCommunicator]


@dataclasses.dataclass(frozen=True)
class Live:
    """One look at one host. ``boot_id``: the kernel's, and the pid namespace in which pids count;
    ``first_s``: seconds until the first evidence of every rank was there; ``gap_s``: between the first and
    the last sample, 0 where there was one only: then nothing can be called hung."""

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
