"""What is set where: settings against each other, between roles, and against the machine; and what
the machine itself lacks."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from nccl_runbook.causes.causes import Variable, table, variables, version
from nccl_runbook.core.facts import Gap, counted, grouped, known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Environment, Host, Role

LEAST_SHM = (
    256 << 20
)  # NCCL 2.28.9 asked for 9.2 MiB a connection; Docker's default of 64 MiB ends at about seven
LEAST_FILES = 4096  # sockets and shared memory of a rank grow with the world; 1024 has been too few
LEAST_MEMLOCK = 1 << 30  # InfiniBand pins the buffers of every connection; NCCL's guide asks for unlimited
MOST_SOCKETS = 64  # threads times sockets of each (NCCL 2.30.7, src/transport/net_socket.cc)
# Xids that a program's own fault leaves, by NVIDIA's catalogue of Xid errors (r570): the GPU goes on working
_OF_PROGRAMS = re.compile(r"Xid[^:]{0,40}\(PCI:[^)]{0,40}\): (13|31|32|43|45|68|69)\b")
_NEEDS_HCA = re.compile(r"NCCL_IB_(?!DISABLE)|NCCL_NET_GDR_|NCCL_CROSS_NIC$")
_LOOPBACK = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_ADDRESSES = (
    "MASTER_ADDR",
    "PET_MASTER_ADDR",
    "PET_RDZV_ENDPOINT",
    "VLLM_DP_MASTER_IP",
)  # of the host where all ranks of a job meet
_OWN_ADDRESS = re.compile(r"(?:localhost|127\.[\d.]+|\[?::1\]?)(?::\d+)?")
_OFF = ("", "0", "n", "no", "f", "false")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value of one variable, and who has it. ``source``: its fact path; ``where``: a line
    or a file, "" for a process's own."""

    name: str
    value: str
    role: Role
    who: tuple[str, ...]
    source: str
    where: str

    @property
    def known(self) -> Variable | None:
        return variables().get(self.name)

    @property
    def seen(self) -> Evidence:
        return Evidence(
            f"{self.name}={self.value} ({', '.join(filter(None, (self.where, *self.who)))})", self.source
        )

    @property
    def in_use(self) -> tuple[int, ...]:
        """The version that counts for this variable, () where it is not known."""
        counts = self.known.reader.version_of if self.known else ""
        running = {"torch": self.role.torch, "nccl": self.role.reported}.get(counts)
        return version(running) if isinstance(running, str) else ()

    def finding(
        self, rule: str, severity: Severity, text: str, advice: str, *lines: str, **more: str
    ) -> Finding:
        """A finding about this setting; ``lines`` are what to set instead."""
        return Finding(
            rule,
            severity,
            f"{self.name}: {text}",
            (self.seen,),
            (Remedy("your launcher", advice, tuple(filter(None, lines))),),
            **more,
        )


def settings(env: Environment) -> list[Setting]:
    """Every value that acts: the environment's, then what nccl.conf adds; roles with one value, one version
    of its reader and, where it names interfaces, the same ones of these together."""
    own = [
        Setting(name, value, role, (role.name,), f"environment.roles[{index}].{path}", where)
        for index, role in enumerate(env.roles)
        for name, (value, where, path) in effective(role).items()
    ]
    alike = grouped(
        ((s.name, s.value, s.in_use, str(s.role.interfaces) * s.name.endswith("_IFNAME")), s) for s in own
    )
    return [dataclasses.replace(same[0], who=tuple(s.role.name for s in same)) for same in alike.values()]


def effective(role: Role) -> dict[str, tuple[str, str, str]]:
    """name -> value, place where it was set, fact path. The environment wins over nccl.conf, the user's over
    /etc (NCCL 2.30.7, " "param.cc)."""
    acts = {n: (v, role.where.get(n, ""), f"variables.{n}") for n, v in role.variables.items()}
    for path, name, value in _conf_lines(role):
        acts.setdefault(name, (value, path, f"conf.{path}.{name}"))
    return acts


def _conf_lines(role: Role) -> list[tuple[str, str, str]]:
    return [(path, name, value) for path, lines in role.conf.items() for name, value in lines.items()]


def judge(env: Environment) -> Iterator[Finding]:
    """What works against each other within one process, once for all that have it; what differs between
    processes; settings against the host that they are set on, and what the host lacks."""
    by_role = [{s.name: s for s in settings(env) if role.name in s.who} for role in env.roles]
    hcas = [] if isinstance(env.host, Gap) else known(env.host.hcas)
    yield from dict.fromkeys(
        f
        for own in by_role
        for f in (*contradictions(own), *without_effect(own), *sockets_forced(own, hcas), *loopback(own))
    )
    yield from (*conf_overridden(env), *roles_differ(env), *more_ranks_than_gpus(env.roles))
    if not isinstance(env.host, Gap):
        for s in settings(env):
            yield from (*interface_missing(s), *hca_missing(env.host, s), *cannot_act(env.host, s))
        yield from (
            *limits_too_low(env.host, env.roles),
            *shm_too_small(env.roles),
            *peer_traffic_redirected(env.host),
            *xids_seen(env.host),
            *name_not_resolved(env.host, env.roles),
        )


def number(value: str) -> int:
    return int(value) if value.isdecimal() and len(value) < 20 else 0


def _fits(how: str, value: str) -> bool:
    """One side of environment/environment.toml's ``when``."""
    word, *values = how.split()
    return {"on": value not in _OFF, "set": True, "is": value in values, "not": value not in ("", *values)}[
        word
    ]


def _contradict(when: Sequence[str], a: str, b: str) -> bool:
    if when[0] == "above":
        return 0 < number(b) < number(a)
    return (
        number(a) * number(b) > MOST_SOCKETS
        if when[0] == "product"
        else _fits(when[0], a) and _fits(when[1], b)
    )


def contradictions(s: Mapping[str, Setting]) -> Iterator[Finding]:
    """Two settings that undo each other, or that fail together."""
    for row in table("environment/environment")["contradiction"]:
        both = [s[name] for name in row["names"] if name in s]
        if len(both) == 2 and _contradict(row["when"], *(b.value.casefold() for b in both)):
            yield _against(*both, f": {row['says']}", "Choose one of them:", row["line"])
    for old in (
        x
        for x in s.values()
        if x.known and x.known.renamed_to in s and s[x.known.renamed_to].value != x.value
    ):
        yield _against(
            old,
            s[old.known.renamed_to],
            ": the old and the new name of one setting disagree",
            "Keep only the new name:",
            f"unset {old.name}",
        )


def _against(a: Setting, b: Setting, says: str, advice: str, line: str) -> Finding:
    return Finding(
        "contradiction",
        Severity.WARN,
        f"{a.name}={a.value} against {b.name}={b.value}{says}",
        (a.seen, b.seen),
        (Remedy("your launcher", advice, (line,)),),
    )


def without_effect(s: Mapping[str, Setting]) -> Iterator[Finding]:
    """A setting of NCCL's log where NCCL logs nothing."""
    logs = "NCCL_DEBUG" in s and s["NCCL_DEBUG"].value.casefold() in ("info", "trace", "warn", "version")
    for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        if not logs and name in s and s[name].value:
            yield Finding(
                "cannot-act",
                Severity.NOTE,
                f"{name}: has an effect only with NCCL_DEBUG",
                (s[name].seen,),
                (Remedy("your launcher", "Enable the log, or remove it:", ("NCCL_DEBUG=INFO",)),),
            )


def sockets_forced(s: Mapping[str, Setting], hcas: Sequence[str]) -> Iterator[Finding]:
    """NCCL_NET=Socket, or InfiniBand off where no network plugin does its work: bad if there are several
    nodes with RDMA between them."""
    net, plugin, off = (
        s[n].value.casefold() if n in s else "" for n in ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE")
    )
    plugged = (
        net not in ("", "ib", "socket")
        or plugin not in ("", "none")
        or any(n.startswith(("FI_", "OFI_NCCL_")) for n in s)
    )
    if net == "socket" or off not in _OFF and not plugged:
        forced = s["NCCL_NET" if net == "socket" else "NCCL_IB_DISABLE"]
        costs = _of_several_hosts(forced.role) and (bool(hcas) or any(map(_NEEDS_HCA.match, s)))
        yield forced.finding(
            "debugging-left-on",
            Severity.WARN if costs else Severity.NOTE,
            "between nodes all data goes through sockets; within a node it has no effect",
            "If there is InfiniBand, RoCE or a network plugin, remove it:",
            f"unset {forced.name}",
        )


def loopback(s: Mapping[str, Setting]) -> Iterator[Finding]:
    """Ranks that may meet over the loopback only: fine on one node, and an end to a job of several."""
    for only in (s[n] for n in _LOOPBACK if n in s and s[n].value.removeprefix("=") == "lo"):
        several = _of_several_hosts(only.role)
        yield only.finding(
            "cannot-act",
            Severity.BROKEN if several else Severity.NOTE,
            "the loopback interface connects only ranks of one node" + ", and this job has several" * several,
            "For several nodes, name the interface between them, or remove the variable:",
            f"unset {only.name}",
            **({"cause": "socket-interface-wrong", "status": "likely"} if several else {}),
        )
    for own in (
        s[n]
        for n in _ADDRESSES
        if n in s
        and _OWN_ADDRESS.fullmatch(s[n].value)
        and _OWN_ADDRESS.fullmatch(s[n].role.meeting or s[n].value)
        and _of_several_hosts(s[n].role)
    ):
        yield own.finding(
            "cannot-act",
            Severity.BROKEN,
            "each node looks for rank 0 on itself, and this job has several nodes",
            "Name the first node of the job. With Slurm:",
            f'export {own.name}=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            cause="rendezvous-misconfigured",
            status="likely",
        )


def more_ranks_than_gpus(roles: Sequence[Role]) -> Iterator[Finding]:
    """A script whose launcher starts more ranks on a node than there are GPUs; likely, as ranks
    may share one or use none."""
    for index, role, (ranks, gpus) in (
        (index, role, role.crowded) for index, role in enumerate(roles) if role.crowded
    ):
        yield Finding(
            "more-ranks-than-gpus",
            Severity.BROKEN,
            f"{role.name} starts {ranks} ranks on a node, where {counted(gpus, 'GPU')} "
            f"{'is' if gpus == 1 else 'are'} available",
            (Evidence(f"{ranks} ranks, {counted(gpus, 'GPU')}", f"environment.roles[{index}].crowded"),),
            (
                Remedy(
                    "your launcher",
                    f"Start {gpus} on a node (--nproc-per-node of torchrun, "
                    "--num_processes of accelerate, --num_gpus of "
                    f"deepspeed), or make {ranks} GPUs available.",
                ),
            ),
            "more-ranks-than-gpus",
            "likely",
        )


def conf_overridden(env: Environment) -> Iterator[Finding]:
    """nccl.conf says one thing, the environment another: the environment wins."""
    for index, role in enumerate(env.roles):
        acts = effective(role)
        for path, name, value in (line for line in _conf_lines(role) if acts[line[1]][0] != line[2]):
            wins, where, source = acts[name]
            yield Finding(
                "conf-overridden",
                Severity.NOTE,
                f"{name}: {path} says {value}, {where or 'the environment'} says {wins} and wins",
                (
                    Evidence(f"{path}: {name}={value}", f"environment.roles[{index}].conf.{path}.{name}"),
                    Evidence(f"{name}={wins} ({role.name})", f"environment.roles[{index}].{source}"),
                ),
                (Remedy("your launcher", "To use the host's setting:", (f"unset {name}",)),),
            )


def roles_differ(env: Environment) -> Iterator[Finding]:
    """Ranks or roles (trainer, engine) of one job that are set differently, or stand in other surroundings.
    With another /dev/shm NCCL rules out P2P and shared memory between them (shmDev in src/transport/shm.cc,
    NCCL 2.7.8, and in p2p.cc later)."""
    for name in table("environment/environment")["must_agree"]:
        yield from _differ(
            env,
            name,
            f"variables.{name}",
            [effective(role).get(name, ("not set",))[0] for role in env.roles],
            Severity.WARN,
            Remedy(
                "your launcher",
                "All processes of one communicator must agree: set the same value everywhere, or nowhere.",
                (f"unset {name}",),
            ),
        )
    shared = Remedy(
        "your launcher",
        "Containers of one host that communicate through NCCL must share /dev/shm:",
        ("docker run --ipc=host IMAGE",),
    )
    network = Remedy(
        "your launcher",
        "Name an interface that each container has, or use one network for all:",
        ("docker run --network=host IMAGE",),
    )
    yield from _differ(
        env,
        "/dev/shm",
        "shm",
        [r.shm if isinstance(r.shm, Gap) else f"{r.shm[0] >> 20} MiB, device {r.shm[2]}" for r in env.roles],
        Severity.WARN,
        shared,
    )
    for what, key, *remedy in (
        ("container", "container"),
        ("IPC namespace", "ipc_namespace", shared),
        ("interfaces", "interfaces", network),
        ("open files", "nofile"),
        ("locked memory", "memlock"),
    ):
        yield from _differ(
            env,
            what,
            key,
            [
                " ".join(v) or "none" if isinstance(v, list) else v
                for v in (getattr(r, key) for r in env.roles)
            ],
            Severity.NOTE,
            *remedy,
        )


def _differ(
    env: Environment, what: str, key: str, values: list[str | Gap], severity: Severity, *remedy: Remedy
) -> Iterator[Finding]:
    known = [
        (index, env.roles[index].name, value)
        for index, value in enumerate(values)
        if not isinstance(value, Gap)
    ]
    if len({value for _, _, value in known}) > 1:
        yield Finding(
            "roles-differ",
            severity,
            f"{what}: differs between {', '.join(f'{role} ({value})' for _, role, value in known)}",
            tuple(
                Evidence(f"{role}: {what}={value}", f"environment.roles[{i}].{key}")
                for i, role, value in known
            ),
            remedy,
        )


def _matches(value: str, names: Sequence[str], exact: bool) -> tuple[list[str], list[str]]:
    """Which entries of a list of names or prefixes fit a name that is there, and which fit none; nothing
    of a list that excludes, or that the shell has yet to fill in."""
    exact = exact or value.startswith("=")
    entries = (
        []
        if value.startswith(("^", "$"))
        else [e.split(":")[0] for e in value.removeprefix("=").split(",") if e]
    )
    hit = [e for e in entries if any(n == e if exact else n.startswith(e) for n in names)]
    return hit, [e for e in entries if e not in hit]


def interface_missing(s: Setting) -> Iterator[Finding]:
    """An interface is named that the process does not have. None of those named: NCCL and Gloo fail."""
    kind = s.known.values if s.known else ""
    here = known(s.role.interfaces)
    hit, missed = _matches(s.value, here, kind == "interfaces_exact")
    if kind in ("interfaces", "interfaces_exact") and missed and not isinstance(s.role.interfaces, Gap):
        usable = known(s.role.routes) or [n for n in here if n != "lo"]
        yield s.finding(
            "interface-missing",
            Severity.NOTE if hit else Severity.BROKEN,
            f"no interface here matches {', '.join(missed)}; there are {', '.join(here)}",
            "Name an interface that every host has, or remove the variable:",
            f"{s.name}={usable[0]}" if usable else f"unset {s.name}",
            **({} if hit else {"cause": "socket-interface-wrong", "status": "established"}),
        )


def hca_missing(host: Host, s: Setting) -> Iterator[Finding]:
    """An adapter is named that this host does not have: NCCL goes on with what is left, or with sockets."""
    hit, missed = _matches(s.value, known(host.hcas), False)
    if s.name == "NCCL_IB_HCA" and known(host.hcas) and missed:
        left = f"only {', '.join(hit)} is used" if hit else "NCCL then uses sockets"
        yield s.finding(
            "hca-missing",
            Severity.NOTE if hit else Severity.WARN,
            f"no adapter here matches {', '.join(missed)}: {left}",
            "Adapters of this host:",
            f"NCCL_IB_HCA={','.join(host.hcas)}",
        )


def cannot_act(host: Host, s: Setting) -> Iterator[Finding]:
    """A setting of a network that this host does not have."""
    slingshot = s.name.startswith("FI_CXI_") and not any(h.startswith("cxi") for h in known(host.hcas))
    lacks = "Slingshot" if slingshot else "RDMA" if _NEEDS_HCA.match(s.name) and not known(host.hcas) else ""
    if lacks and not isinstance(host.hcas, Gap):
        yield s.finding(
            "cannot-act",
            Severity.NOTE,
            f"this host has no {lacks} adapter",
            "It has no effect here:",
            f"unset {s.name}",
        )


def limits_too_low(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """Open files, and locked memory where adapters pin it: a warning in a job of several hosts only,
    as others use no adapter."""
    for index, role in enumerate(roles):
        for key, least, words, line, severity in (
            ("nofile", LEAST_FILES, "open files", "ulimit -n 1048576", Severity.NOTE),
            (
                "memlock",
                LEAST_MEMLOCK,
                "bytes of locked memory",
                "ulimit -l unlimited",
                Severity.WARN if _of_several_hosts(role) else Severity.NOTE,
            ),
        )[: 1 if isinstance(host.hcas, Gap) or not host.hcas else 2]:
            limit = getattr(role, key)
            if isinstance(limit, str) and limit.isdecimal() and int(limit) < least:
                yield Finding(
                    "limit-too-low",
                    severity,
                    f"{role.name}: only {limit} {words} are allowed",
                    (Evidence(f"{key} {limit}", f"environment.roles[{index}].{key}"),),
                    (Remedy("your launcher", "Raise the limit before the job starts:", (line,)),),
                    "ulimit-too-low",
                    "possible",
                )


def _of_several_hosts(role: Role) -> bool:
    world, local = (role.variables.get(n, "") for n in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return role.nodes > 1 or world.isdecimal() and local.isdecimal() and world != local


def shm_too_small(roles: Sequence[Role]) -> Iterator[Finding]:
    """Once for each mount, as several processes may share one."""
    mounts = {
        role.shm[2]: (index, role)
        for index, role in reversed([*enumerate(roles)])
        if isinstance(role.shm, list)
    }
    for index, role in (m for m in mounts.values() if m[1].shm[1] < LEAST_SHM):
        size, free = (n >> 20 for n in role.shm[:2])
        yield Finding(
            "shm-too-small",
            Severity.WARN,
            f"{role.name}: /dev/shm: {free} MiB free of {size} MiB",
            (Evidence(f"{free} MiB of {size} MiB are free", f"environment.roles[{index}].shm"),),
            (
                Remedy(
                    "your launcher",
                    "Give the container more shared memory:",
                    ("docker run --shm-size=16g IMAGE", "docker run --ipc=host IMAGE"),
                ),
            ),
            "shm-too-small",
            "likely",
        )


def name_not_resolved(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """The host's own name. MASTER_ADDR=$(hostname) needs it; without, it is a note: one host goes on by its
    loopback (torch 2.11, Gloo)."""
    if isinstance(host.addresses, Gap) and host.addresses.reason != "not-run":
        yield Finding(
            "name-not-resolved",
            Severity.WARN
            if any(r.variables.get("MASTER_ADDR") == host.name for r in roles)
            else Severity.NOTE,
            f"the host's own name, {host.name}, does not resolve",
            (Evidence(host.addresses.detail, "environment.host.addresses"),),
            (
                Remedy(
                    "the administrator", "Add the name to DNS or /etc/hosts.", (f"getent hosts {host.name}",)
                ),
                Remedy(
                    "your launcher",
                    "Workaround until it is fixed: name an address and an interface:",
                    ("GLOO_SOCKET_IFNAME=eth0",),
                ),
            ),
            "rendezvous-name-resolution",
            "possible",
        )


def peer_traffic_redirected(host: Host) -> Iterator[Finding]:
    """PCI access control sends traffic between GPUs through the root: slow, or hanging with an IOMMU. A note:
    it is usual where an IOMMU is on, and does nothing to NVLink; 03 and 04 show whether it does harm."""
    if known(host.acs):
        yield Finding(
            "peer-traffic-redirected",
            Severity.NOTE,
            f"PCI access control redirects peer traffic at {len(host.acs)} bridges",
            (
                Evidence(", ".join(host.acs[:8]), "environment.host.acs"),
                Evidence(f"IOMMU {host.iommu}", "environment.host.iommu"),
            ),
            (
                Remedy(
                    "the administrator",
                    "On bare metal, disable ACS on these bridges. In a virtual machine, "
                    "ask the host's administrator to do so.",
                    tuple(f"sudo setpci -s {b} ECAP_ACS+6.w=0000" for b in host.acs[:8]),
                ),
            ),
            "p2p-broken-acs-iommu",
            "possible",
        )


def xids_seen(host: Host) -> Iterator[Finding]:
    if known(host.xids):
        yield Finding(
            "xids-seen",
            Severity.NOTE if all(map(_OF_PROGRAMS.search, host.xids)) else Severity.WARN,
            f"the kernel log names {len(host.xids)} GPU errors (Xid) since it was started",
            tuple(Evidence(line, "environment.host.xids") for line in host.xids[-5:]),
            (
                Remedy(
                    "the administrator",
                    "Look up the number in NVIDIA's list of Xids.",
                    ("sudo dmesg -T | grep -i xid",),
                ),
            ),
            "gpu-or-link-fault",
            "possible",
        )
