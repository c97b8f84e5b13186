"""Limits of the host: open files, locked memory, shared memory."""

from collections.abc import Iterator, Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Host, Role
from nccl_runbook.environment.settings.judge_network import of_several_hosts

LEAST_SHM = (
    256 << 20
)  # NCCL 2.28.9 asked for 9.2 MiB a connection; Docker's default of 64 MiB ends at about seven


def judge_limits(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """Everything that this file judges: a new function is called here."""
    yield from (*limits_too_low(host, roles), *shm_too_small(roles))


def limits_too_low(host: Host, roles: Sequence[Role]) -> Iterator[Finding]:
    """Limits of roles that are too low; that of locked memory only if adapters pin it, and then as a warning
    in jobs of several hosts, since others use no adapter."""
    for index, role in enumerate(roles):
        for key, enough in table("environment/environment")["limits"].items():
            limit, pinned = getattr(role, key), key == "memlock"
            if (
                (known(host.hcas) or not pinned)
                and isinstance(limit, str)
                and limit.isdecimal()
                and int(limit) < enough["least"]
            ):
                yield Finding(
                    "limit-too-low",
                    Severity.WARN if pinned and of_several_hosts(role) else Severity.NOTE,
                    f"{role.name}: only {limit} {enough['counts']} are allowed",
                    (Evidence(f"{key} {limit}", f"environment.roles[{index}].{key}"),),
                    (Remedy("your launcher", "Raise the limit before the job starts:", (enough["line"],)),),
                    cause="ulimit-too-low",
                    status="possible",
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
            f"{name}: /dev/shm has only {free} of {size} MiB free",
            (Evidence(f"{free} MiB of {size} MiB are free", f"environment.roles[{index}].shm"),),
            (
                Remedy(
                    "your launcher",
                    "Give the container more shared memory:",
                    ("docker run --shm-size=16g IMAGE", "docker run --ipc=host IMAGE"),
                ),
            ),
            cause="shm-too-small",
            status="likely",
        )
