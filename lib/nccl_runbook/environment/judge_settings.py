"""What is set where: settings against each other, between roles, and against the machine; and what
the machine itself lacks."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Environment, Host, Role
from nccl_runbook.environment.settings.judge_effective import Setting, conf_lines, effective, settings
from nccl_runbook.environment.settings.judge_launch import launch_faults, more_ranks_than_gpus
from nccl_runbook.environment.settings.judge_limits import judge_limits
from nccl_runbook.environment.settings.judge_network import (
    NEEDS_HCA,
    OFF,
    hca_missing,
    interface_missing,
    loopback,
    name_not_resolved,
    peer_traffic_redirected,
    sockets_forced,
)

MOST_SOCKETS = 64  # threads times sockets of each (NCCL 2.30.7, src/transport/net_socket.cc)
# Xids that a program's own fault leaves, by NVIDIA's catalogue of Xid errors (r570): the GPU goes on working
_OF_PROGRAMS = re.compile(r"Xid[^:]{0,40}\(PCI:[^)]{0,40}\): (13|31|32|43|45|68|69)\b")


def judge_settings(env: Environment) -> Iterator[Finding]:
    """Conflicts within one process (once for all that have them), differences between processes, settings
    against their host, and what the host lacks."""
    by_role = [{s.name: s for s in settings(env) if role.name in s.who} for role in env.roles]
    hcas = [] if isinstance(env.host, Gap) else known(env.host.hcas)
    yield from dict.fromkeys(
        f
        for own in by_role
        for f in (*contradictions(own), *without_effect(own), *sockets_forced(own, hcas), *loopback(own))
    )
    yield from (
        *conf_overridden(env),
        *roles_differ(env),
        *more_ranks_than_gpus(env.roles),
        *launch_faults(env.roles),
    )
    if not isinstance(env.host, Gap):
        for s in settings(env):
            yield from (*interface_missing(s), *hca_missing(env.host, s), *cannot_act(env.host, s))
        yield from (
            *judge_limits(env.host, env.roles),
            *peer_traffic_redirected(env.host),
            *xids_seen(env.host),
            *name_not_resolved(env.host, env.roles),
        )


def number(value: str) -> int:
    """The whole number, 0 if the text is none."""
    return int(value) if value.isdecimal() and len(value) < 20 else 0


def _fits(how: str, value: str) -> bool:
    """One side of environment/environment.toml's ``when``."""
    word, *values = how.split()
    return {"on": value not in OFF, "set": True, "is": value in values, "not": value not in ("", *values)}[
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
    """Two settings that cancel each other, or that fail together."""
    for row in table("environment/environment")["contradiction"]:
        both = [s[name] for name in row["names"] if name in s]
        if len(both) == 2 and _contradict(row["when"], *(b.as_read for b in both)):
            yield _against(
                both[0],
                both[1],
                f": {row['says']}",
                "Choose one of the two settings, for example:",
                row["line"],
            )
    for old, new in (
        (x, s[x.known.renamed_to])
        for x in s.values()
        if x.known and x.known.renamed_to in s and s[x.known.renamed_to].value != x.value
    ):
        yield _against(
            old,
            new,
            ": these are the old and the new name of one setting, with different values",
            "Unset the old name, and keep only the new name:",
            f"unset {old.name}",
        )


def _against(a: Setting, b: Setting, says: str, advice: str, line: str) -> Finding:
    return Finding(
        "contradiction",
        Severity.WARN,
        f"{a.name}={a.value} contradicts {b.name}={b.value}{says}",
        (a.evidence, b.evidence),
        (Remedy("your launcher", advice, (line,)),),
    )


def without_effect(s: Mapping[str, Setting]) -> Iterator[Finding]:
    """A setting of NCCL's log although NCCL logs nothing."""
    logs = "NCCL_DEBUG" in s and s["NCCL_DEBUG"].value.casefold() in ("info", "trace", "warn", "version")
    for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        if not logs and name in s and s[name].value:
            yield Finding(
                "cannot-act",
                Severity.NOTE,
                f"{name} has an effect only if NCCL_DEBUG is set",
                (s[name].evidence,),
                (
                    Remedy(
                        "your launcher", "Enable NCCL's log, or remove the variable:", ("NCCL_DEBUG=INFO",)
                    ),
                ),
            )


def conf_overridden(env: Environment) -> Iterator[Finding]:
    """nccl.conf and the environment disagree; the environment wins."""
    for index, role in enumerate(env.roles):
        acts = effective(role)
        for path, name, value in (line for line in conf_lines(role) if acts[line[1]][0] != line[2]):
            wins, where, source = acts[name]
            yield Finding(
                "conf-overridden",
                Severity.NOTE,
                f"{name}: {path} sets {value}, but {where or 'the environment'} sets {wins} and takes "
                "precedence",
                (
                    Evidence(f"{path}: {name}={value}", f"environment.roles[{index}].conf.{path}.{name}"),
                    Evidence(f"{name}={wins} ({role.name})", f"environment.roles[{index}].{source}"),
                ),
                (
                    Remedy(
                        "your launcher",
                        f"To use the value from {path}, unset the environment variable:",
                        (f"unset {name}",),
                    ),
                ),
            )


def roles_differ(env: Environment) -> Iterator[Finding]:
    """Ranks or roles (trainer, engine) of one job with different settings or surroundings. With different
    /dev/shm NCCL rules out P2P and shared memory between them (shmDev in src/transport/shm.cc, NCCL 2.7.8,
    and in p2p.cc later)."""
    for name in table("environment/environment")["must_agree"]:
        yield from _differ(
            env,
            name,
            f"variables.{name}",
            [effective(role).get(name, ("not set",))[0] for role in env.roles],
            Severity.WARN,
            Remedy(
                "your launcher",
                "All processes of one communicator need the same value. Set the variable in every "
                "process, or in none.",
                (f"unset {name}",),
            ),
        )
    shared = Remedy(
        "your launcher",
        "On one host, NCCL uses P2P and shared memory only between ranks that have the same /dev/shm and "
        "the same host name (or NCCL_HOSTID). Let the containers share both:",
        ("docker run --ipc=host --uts=host IMAGE",),
    )
    network = Remedy(
        "your launcher",
        "Name an interface that each container has, or let all containers use the same network:",
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
    remedy = {"ipc_namespace": [shared], "interfaces": [network]}
    for field in (f for f in dataclasses.fields(Role) if f.metadata.get("alike")):
        yield from _differ(
            env,
            field.metadata["shown"].partition(" (")[0],
            field.name,
            [
                " ".join(v) or "none" if isinstance(v, list) else v
                for v in (getattr(r, field.name) for r in env.roles)
            ],
            Severity.NOTE,
            *remedy.get(field.name, []),
        )


def _differ(
    env: Environment, what: str, key: str, values: list[str | Gap], severity: Severity, *remedy: Remedy
) -> Iterator[Finding]:
    shown = [
        (index, env.roles[index].name, value)
        for index, value in enumerate(values)
        if not isinstance(value, Gap)
    ]
    if len({value for _, _, value in shown}) > 1:
        yield Finding(
            "roles-differ",
            severity,
            f"{what}: different values in {', '.join(f'{role} ({value})' for _, role, value in shown)}",
            tuple(
                Evidence(f"{role}: {what}={value}", f"environment.roles[{i}].{key}")
                for i, role, value in shown
            ),
            remedy,
        )


def cannot_act(host: Host, s: Setting) -> Iterator[Finding]:
    """A setting for a network that this host does not have."""
    slingshot = s.name.startswith("FI_CXI_") and not any(h.startswith("cxi") for h in known(host.hcas))
    lacks = "Slingshot" if slingshot else "RDMA" if NEEDS_HCA.match(s.name) and not known(host.hcas) else ""
    if lacks and not isinstance(host.hcas, Gap):
        yield s.finding(
            "cannot-act",
            Severity.NOTE,
            f"this host has no {lacks} adapter",
            "The setting has no effect on this host. Remove it:",
            f"unset {s.name}",
        )


def xids_seen(host: Host) -> Iterator[Finding]:
    """GPU errors (Xid) in the kernel log: a note if programs usually cause them, else a warning."""
    if not isinstance(host.xids, Gap) and host.xids:
        yield Finding(
            "xids-seen",
            Severity.NOTE if all(map(_OF_PROGRAMS.search, host.xids)) else Severity.WARN,
            f"the kernel log shows {len(host.xids)} GPU errors (Xid) since the host was started",
            tuple(Evidence(line, "environment.host.xids") for line in host.xids[-5:]),
            (
                Remedy(
                    "the administrator",
                    "Look up each Xid number in NVIDIA's list of Xid errors.",
                    ("sudo dmesg -T | grep -i xid",),
                ),
            ),
            cause="gpu-or-link-fault",
            status="possible",
        )
