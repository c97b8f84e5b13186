"""Settings that work against each other, or differ between roles that must agree."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nccl_runbook.causes.toml import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.judge_settings import Setting, effective, settings

Set = Mapping[str, Setting]
_OFF = ("", "0", "n", "no", "f", "false")
MOST_SOCKETS = 64  # threads times sockets of each (NCCL 2.30.7, src/transport/net_socket.cc)


def _number(value: str) -> int:
    return int(value) if value.isdecimal() and len(value) < 19 else 0


def _fits(how: str, value: str) -> bool:
    """One side of environment/environment.toml's ``when``."""
    word, *values = how.split()
    return {"on": value not in _OFF, "set": True, "is": value in values, "not": value not in ("", *values)}[word]


def _contradict(when: Sequence[str], one: str, other: str) -> bool:
    if when[0] == "above":
        return 0 < _number(other) < _number(one)
    return _number(one) * _number(other) > MOST_SOCKETS if when[0] == "product" else _fits(when[0], one) and _fits(when[1], other)


def contradictions(s: Set) -> Iterator[Finding]:
    """Two settings of which one undoes the other, or that fail together."""
    for row in table("environment/environment")["contradiction"]:
        both = [s[name] for name in row["names"] if name in s]
        if len(both) == 2 and _contradict(row["when"], *(b.value.casefold() for b in both)):
            yield _against(*both, f": {row['says']}", "Decide for one of them:", row["line"])
    for old in (x for x in s.values() if x.known and x.known.renamed_to in s and s[x.known.renamed_to].value != x.value):
        yield _against(old, s[old.known.renamed_to], ", the new name of the same setting", "Keep the new name only:", f"unset {old.name}")


def _against(one: Setting, other: Setting, says: str, advice: str, line: str) -> Finding:
    title = f"{one.name}={one.value} against {other.name}={other.value}{says}"
    return Finding("contradiction", Severity.WARN, title, (one.seen, other.seen), (Remedy("your launcher", advice, (line,)),))


def without_effect(s: Set) -> Iterator[Finding]:
    """A setting of NCCL's log where NCCL logs nothing."""
    if "NCCL_DEBUG" not in s or s["NCCL_DEBUG"].value.casefold() not in ("info", "trace", "warn", "version"):
        for name in ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
            if name in s and s[name].value:
                yield Finding("cannot-act", Severity.NOTE, f"{name}: acts only with NCCL_DEBUG", (s[name].seen,),
                              (Remedy("your launcher", "Switch the log on, or take it out:", ("NCCL_DEBUG=INFO",)),))


def conf_overridden(env: Environment) -> Iterator[Finding]:
    """nccl.conf says one thing, the environment another: the environment wins."""
    for index, role in enumerate(env.roles):
        acts = effective(role)
        for path, name, value in ((p, n, v) for p, lines in role.conf.items() for n, v in lines.items() if acts[n][0] != v):
            said = Evidence(f"{path}: {name}={value}", f"environment.roles[{index}].conf.{path}.{name}")
            here = Evidence(f"{name}={acts[name][0]} ({role.name})", f"environment.roles[{index}].{acts[name][2]}")
            winner = f"{acts[name][1] or 'the environment'} says {acts[name][0]} and wins"
            yield Finding("conf-overridden", Severity.NOTE, f"{name}: {path} says {value}, {winner}", (said, here),
                          (Remedy("your launcher", "If the host's setting is meant:", (f"unset {name}",)),))


def roles_differ(env: Environment) -> Iterator[Finding]:
    """Ranks or roles (trainer, engine) of one job that are set differently, or stand in other surroundings. With another /dev/shm NCCL
    rules out P2P and shared memory between them (shmDev in src/transport/shm.cc, NCCL 2.7.8, and in p2p.cc later)."""
    held = [{n: v for n, (v, _, _) in effective(role).items()} for role in env.roles]
    for name in table("environment/environment")["must_agree"]:
        agree = Remedy("your launcher", "Processes of one communicator must agree: set it alike, or nowhere.", (f"unset {name}",))
        yield from _differ(env, name, f"variables.{name}", [one.get(name, "not set") for one in held], Severity.WARN, agree)
    shared = Remedy("your launcher", "Containers of one host that talk by NCCL need one /dev/shm:", ("docker run --ipc=host IMAGE",))
    mounts = [r.shm if isinstance(r.shm, Gap) else f"{r.shm[0] >> 20} MiB, device {r.shm[2]}" for r in env.roles]
    yield from _differ(env, "/dev/shm", "shm", mounts, Severity.WARN, shared)
    network = Remedy("your launcher", "Name an interface that each has, or give them one network:", ("docker run --network=host IMAGE",))
    for what, key, *remedy in (("container", "container"), ("IPC namespace", "ipc_namespace", shared),
                               ("interfaces", "interfaces", network), ("open files", "nofile"), ("locked memory", "memlock")):
        own = [getattr(r, key) for r in env.roles]
        yield from _differ(env, what, key, [" ".join(o) or "none" if isinstance(o, list) else o for o in own], Severity.NOTE, *remedy)


def _differ(env: Environment, what: str, key: str, values: list[str | Gap], severity: Severity, *remedy: Remedy) -> Iterator[Finding]:
    known = [(index, env.roles[index].name, value) for index, value in enumerate(values) if not isinstance(value, Gap)]
    if len({value for _, _, value in known}) > 1:
        yield Finding("roles-differ", severity, f"{what}: differs between {', '.join(f'{role} ({value})' for _, role, value in known)}",
                      tuple(Evidence(f"{role}: {what}={value}", f"environment.roles[{i}].{key}") for i, role, value in known), remedy)


def judge(env: Environment) -> Iterator[Finding]:
    """What works against each other within one process, told once for all that have it, and what differs between them."""
    by_role = [{s.name: s for s in settings(env) if role.name in s.who} for role in env.roles]
    yield from dict.fromkeys(f for own in by_role for f in (*contradictions(own), *without_effect(own)))
    yield from conf_overridden(env)
    yield from roles_differ(env)
