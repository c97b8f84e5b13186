"""Limits of the host: open files, locked memory, shared memory."""

from collections.abc import Iterator, Sequence

from nccl_runbook.core.facts import known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Host, Role
from nccl_runbook.environment.settings.judge_network import of_several_hosts

LEAST_SHM = (
    256 << 20
)  # NCCL 2.28.9 asked for 9.2 MiB a connection; Docker's default of 64 MiB ends at about seven
# a limit of `Role` -> the least that is enough, its unit, and the line that raises it
LIMITS = {
    # sockets and shared memory of a rank grow with the world; 1024 has been too few
    "nofile": (4096, "open files", "ulimit -n 1048576"),
    # InfiniBand pins the buffers of every connection; NCCL's guide asks for unlimited
    "memlock": (1 << 30, "bytes of locked memory", "ulimit -l unlimited"),
}


def limits_too_low(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """Limits of roles that are too low; that of locked memory only if adapters pin it, and then as a warning
    in jobs of several hosts, since others use no adapter."""
    for index, role in enumerate(roles):
        for key, (least, words, line) in LIMITS.items():
            limit, pinned = getattr(role, key), key == "memlock"
            if pinned and not known(host.hcas):
                continue
            if isinstance(limit, str) and limit.isdecimal() and int(limit) < least:
                yield Finding(
                    "limit-too-low",
                    Severity.WARN if pinned and of_several_hosts(role) else Severity.NOTE,
                    f"{role.name}: only {limit} {words} are allowed",
                    (Evidence(f"{key} {limit}", f"environment.roles[{index}].{key}"),),
                    (Remedy("your launcher", "Raise the limit before the job starts:", (line,)),),
                    "ulimit-too-low",
                    "possible",
                )


def shm_too_small(roles: Sequence[Role]) -> Iterator[Finding]:
    """/dev/shm is too small; one finding for each mount."""
    mounts = {
        role.shm[2]: (index, role.name, role.shm)
        for index, role in reversed([*enumerate(roles)])
        if isinstance(role.shm, list)
    }
    for index, name, shm in (m for m in mounts.values() if m[2][1] < LEAST_SHM):
        size, free = (n >> 20 for n in shm[:2])
        yield Finding(
            "shm-too-small",
            Severity.WARN,
            f"{name}: /dev/shm: {free} MiB free of {size} MiB",
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
