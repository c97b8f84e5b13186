"""Facts about the environment of ranks: what is set, on which host, and which
libnccl each process has mapped."""

import dataclasses
from typing import Any

from nccl_runbook.core.facts import Gap

LIMITS = "/proc/{pid}/limits"
WHOLE = "*"  # in place of the name of a row: the file has one value alone, as those of /proc/sys


def shown(words: str, reads: str = "", row: str = "", alike: bool = False) -> Any:
    """A field that stands under these words in the table of the host; a Gap until it is asked. ``reads``: the
    file that shows it, with {pid} for the process; its text is then at hand in read_role.py. ``row``: the row
    of that file ("Max open files", or "Seccomp" of /proc/{pid}/status; WHOLE if it has one value alone) that
    begins with its value; read_role.py then has nothing to do. ``alike``: ranks of one job that differ in it
    are reported."""
    metadata = {"shown": words, "reads": reads, "row": row, "alike": alike}
    return dataclasses.field(default=Gap("not-run", "not asked"), metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Library:
    """One libnccl or plugin in a file."""

    path: str
    sha256: str | Gap
    # from the file's own text: "2.28.9", "13.0"
    version: str | Gap
    cuda: str | Gap
    # name and version of each wheel that claims this path -> "same", "other" (hashes compared) or "unknown"
    wheels: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """One process, or one file that was read in its place."""

    name: str
    # allowed names only, values scrubbed; name -> where it was set; number of further names
    variables: dict[str, str]
    where: dict[str, str]
    others: int
    # what nccl.conf files set, by path in NCCL's order
    conf: dict[str, dict[str, str]]
    torch: str | Gap
    torch_cuda: str | Gap
    # libnccl and plugins in the process
    mapped: list[str] | Gap
    # those of `mapped` that LD_PRELOAD names: their functions win over those of other libraries
    preloaded: list[str] = dataclasses.field(default_factory=list)
    # ncclGetVersion's answer, else the version in the file's own text
    reported: str | Gap
    # name and version of each framework installed beside torch -> what its metadata requires
    requires: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    # what markers of requirements ask: "python_version": "3.12", "platform_machine": "x86_64"
    markers: dict[str, str] = dataclasses.field(default_factory=dict)

    # the process's own namespaces, and limits as the kernel writes them ("unlimited")
    container: list[str] | Gap = shown("container", alike=True)
    ipc_namespace: str | Gap = shown("IPC namespace", reads="/proc/{pid}/ns/ipc", alike=True)
    interfaces: list[str] | Gap = shown("interfaces", reads="/proc/{pid}/net/dev", alike=True)
    routes: list[str] | Gap = shown("default route", reads="/proc/{pid}/net/route")
    nofile: str | Gap = shown("open files", LIMITS, row="Max open files", alike=True)
    memlock: str | Gap = shown("locked memory (bytes)", LIMITS, row="Max locked memory", alike=True)
    # size and free bytes of its /dev/shm, and the mount's device number
    shm: list[int] | Gap = shown("/dev/shm")

    # of a script: the nodes that its job uses, 0 if it does not say; where its launcher is told to meet
    nodes: int = 0
    meeting: str = ""
    # files that it reads as it runs, and that were not read here
    sourced: list[str] = dataclasses.field(default_factory=list)
    # ranks that it starts on a node, and the GPUs that are there, if those are fewer; the lines that say so
    crowded: list[int] = dataclasses.field(default_factory=list)
    crowded_by: str = ""
    # what else is wrong with how ranks are started, by its id in scripts/launchers.toml -> the command
    faults: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """What the machine of the ranks has."""

    name: str
    addresses: list[str] | Gap
    # RDMA adapters
    hcas: list[str] | Gap
    iommu: str | Gap
    # bridges whose access control redirects peer traffic
    acs: list[str] | Gap
    # lines of the kernel log
    xids: list[str] | Gap
    # every libnccl and plugin, mapped or not
    libraries: list[Library] | Gap


@dataclasses.dataclass(frozen=True)
class Environment:
    """Roles of a job and their machine."""

    roles: list[Role]
    # a Gap if only a file was read
    host: Host | Gap
    # what was named and is no role
    left_out: dict[str, Gap] = dataclasses.field(default_factory=dict)
