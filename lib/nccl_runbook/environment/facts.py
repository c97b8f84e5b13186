"""Facts about the environment of ranks: what is set, on which host, and which
libnccl each process has mapped."""

import dataclasses

from nccl_runbook.core.facts import Gap


@dataclasses.dataclass(frozen=True)
class Library:
    """One file. ``version``, ``cuda``: from its own text ("2.28.9", "13.0"); ``wheels``: name and version of
    each wheel that claims this path -> "same", "other" (hashes compared) or "unknown"."""

    path: str
    sha256: str | Gap
    version: str | Gap
    cuda: str | Gap
    wheels: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Role:
    """One process or file. ``variables``: allowed names only, values scrubbed; ``where``: name -> where
    it was set; ``others``: how many further names there are; ``conf``: what nccl.conf files set, by path
    in NCCL's order; ``mapped``: libnccl and plugins in the process; ``reported``: ncclGetVersion's answer,
    else the file's own text; ``nofile``, ``memlock``: soft limits of open files and of locked memory
    in bytes, as the kernel writes them ("unlimited"); ``requires``: name and version of each framework
    installed beside torch -> what its metadata requires; ``markers``: what markers of requirements ask,
    as far as it was read ("python_version": "3.12", "platform_machine": "x86_64"); ``preloaded``: those
    of ``mapped`` that LD_PRELOAD names: their functions are called where another library has the same ones;
    ``shm``: size and free bytes of the process's own /dev/shm, and the mount's device number; ``container``,
    ``ipc_namespace``, ``interfaces``, ``routes``: signs of a container, and what the process's own namespaces
    show: network interfaces, and those with a default route; ``nodes``: that a script spreads its job over,
    0 if it does not say; ``sourced``: files that a script reads as it runs, and that were not read here;
    ``meeting``: where its launcher is told to meet; ``crowded``: ranks that it starts on a node, and the GPUs
    that are there, if those are fewer; ``crowded_by``: the lines that say so; ``faults``: what else is wrong
    with how ranks are started, by its id in scripts/launchers.toml, and the command."""

    name: str
    variables: dict[str, str]
    where: dict[str, str]
    others: int
    conf: dict[str, dict[str, str]]
    torch: str | Gap
    torch_cuda: str | Gap
    mapped: list[str] | Gap
    reported: str | Gap
    nofile: str | Gap
    memlock: str | Gap
    requires: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    preloaded: list[str] = dataclasses.field(default_factory=list)
    shm: list[int] | Gap = Gap("not-run", "not asked")
    container: list[str] | Gap = Gap("not-run", "not asked")
    ipc_namespace: str | Gap = Gap("not-run", "not asked")
    interfaces: list[str] | Gap = Gap("not-run", "not asked")
    routes: list[str] | Gap = Gap("not-run", "not asked")
    markers: dict[str, str] = dataclasses.field(default_factory=dict)
    nodes: int = 0
    sourced: list[str] = dataclasses.field(default_factory=list)
    meeting: str = ""
    crowded: list[int] = dataclasses.field(default_factory=list)
    crowded_by: str = ""
    faults: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Host:
    """``libraries``: every libnccl and plugin on it, mapped or not; ``xids``: lines of the kernel log;
    ``acs``: bridges whose access control redirects peer traffic."""

    name: str
    addresses: list[str] | Gap
    hcas: list[str] | Gap
    iommu: str | Gap
    acs: list[str] | Gap
    xids: list[str] | Gap
    libraries: list[Library] | Gap


@dataclasses.dataclass(frozen=True)
class Environment:
    """``host``: a Gap if only a file was read; ``left_out``: what was named and is no role."""

    roles: list[Role]
    host: Host | Gap
    left_out: dict[str, Gap] = dataclasses.field(default_factory=dict)
