"""Settings that work against each other, or differ between roles that must agree."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nccl_runbook.facts.environment import Environment
from nccl_runbook.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.rules.settings import Setting, effective, settings

Set = Mapping[str, Setting]
# what every process of one communicator must have alike, else it hangs, fails, or goes another way
MUST_AGREE = ("NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE",
              "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_BUFFSIZE", "NCCL_MAX_CTAS",
              "NCCL_MIN_CTAS",
              "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NTHREADS", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_MAGIC",
              "NCCL_MNNVL_ENABLE", "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_HOSTID", "NCCL_OOB_NET_ENABLE", "NCCL_COLLNET_ENABLE")


def _on(s: Set, name: str) -> bool:
    return name in s and s[name].value.casefold() not in ("", "0", "n", "no", "f", "false")


def _number(s: Set, name: str, default: int = 0) -> int:
    return int(s[name].value) if name in s and s[name].value.isdecimal() and len(s[name].value) < 19 else default


def _is(s: Set, name: str, *values: str) -> bool:
    return name in s and s[name].value.casefold() in values


# (the names that contradict, when, what comes of it, what to do)
_PAIRS: tuple[tuple[tuple[str, str], Callable[[Set], bool], str, str], ...] = (
    (("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"), lambda s: _on(s, "NCCL_P2P_DISABLE") and "NCCL_P2P_LEVEL" in s,
     "P2P is off, so the level never counts", "unset NCCL_P2P_DISABLE"),
    (("NCCL_IB_DISABLE", "NCCL_IB_HCA"), lambda s: _on(s, "NCCL_IB_DISABLE") and "NCCL_IB_HCA" in s,
     "InfiniBand is off, so no adapter is used", "unset NCCL_IB_DISABLE"),
    (("NCCL_IB_DISABLE", "NCCL_NET"), lambda s: _on(s, "NCCL_IB_DISABLE") and _is(s, "NCCL_NET", "ib"),
     "InfiniBand is demanded and off: NCCL finds no network and fails", "unset NCCL_IB_DISABLE"),
    (("NCCL_NET_PLUGIN", "NCCL_NET"), lambda s: _is(s, "NCCL_NET_PLUGIN", "none") and "NCCL_NET" in s
     and not _is(s, "NCCL_NET", "", "ib", "socket"), "a plugin is demanded with plugins off: NCCL fails", "unset NCCL_NET_PLUGIN"),
    (("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), lambda s: 0 < _number(s, "NCCL_MAX_CTAS") < _number(s, "NCCL_MIN_CTAS"),
     "the lower limit is above the upper one", "unset NCCL_MIN_CTAS"),
    (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), lambda s: 0 < _number(s, "NCCL_MAX_NCHANNELS") < _number(s, "NCCL_MIN_NCHANNELS"),
     "the lower limit is above the upper one", "unset NCCL_MIN_NCHANNELS"),
    (("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"), lambda s: _is(s, "NCCL_CUMEM_ENABLE", "0") and _is(s, "NCCL_NVLS_ENABLE", "1"),
     "NVLink SHARP needs cuMem", "unset NCCL_CUMEM_ENABLE"),
    (("NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE"), lambda s: _is(s, "NCCL_CUMEM_ENABLE", "0") and _is(s, "NCCL_MNNVL_ENABLE", "1"),
     "NVLink between hosts needs cuMem: init fails", "unset NCCL_CUMEM_ENABLE"),
    (("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE"), lambda s: _on(s, "NCCL_MULTI_RANK_GPU_ENABLE") and _is(s, "NCCL_NVLS_ENABLE", "1"),
     "NVLink SHARP does not go with ranks that share a GPU: init fails", "NCCL_NVLS_ENABLE=0"),
    (("NCCL_GRAPH_STREAM_ORDERING", "NCCL_GRAPH_MIXING_SUPPORT"), lambda s: _is(s, "NCCL_GRAPH_STREAM_ORDERING", "0")
     and _is(s, "NCCL_GRAPH_MIXING_SUPPORT", "1"), "graph mixing needs stream ordering", "NCCL_GRAPH_MIXING_SUPPORT=0"),
    (("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), lambda s: _number(s, "NCCL_SOCKET_NTHREADS")
     * _number(s, "NCCL_NSOCKS_PERTHREAD") > 64, "threads times sockets may be 64 at most", "unset NCCL_NSOCKS_PERTHREAD"),
    (("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_BUFFER_SIZE"), lambda s: _on(s, "TORCH_NCCL_DUMP_ON_TIMEOUT")
     and _is(s, "TORCH_FR_BUFFER_SIZE", "0"), "the flight recorder is off: nothing to dump", "TORCH_FR_BUFFER_SIZE=2000"),
    (("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE"), lambda s: _on(s, "TORCH_NCCL_DUMP_ON_TIMEOUT")
     and _is(s, "TORCH_NCCL_TRACE_BUFFER_SIZE", "0"), "the flight recorder is off: nothing to dump", "TORCH_FR_BUFFER_SIZE=2000"),
)


def contradictions(s: Set) -> Iterator[Finding]:
    """Two settings of which one undoes the other, or that fail together."""
    for (one, other), holds, outcome, line in _PAIRS:
        if one in s and other in s and holds(s):
            yield Finding("contradiction", Severity.WARN, f"{one}={s[one].value} against {other}={s[other].value}: {outcome}",
                          (s[one].seen, s[other].seen), (Remedy("your launcher", "Decide for one of them:", (line,)),))
    for old in (x for x in s.values() if x.known and x.known.renamed_to in s and s[x.known.renamed_to].value != x.value):
        new = s[old.known.renamed_to]
        yield Finding("contradiction", Severity.WARN, f"{old.name}={old.value} against its new name {new.name}={new.value}",
                      (old.seen, new.seen), (Remedy("your launcher", "Keep the new name only:", (f"unset {old.name}",)),))


def without_effect(s: Set) -> Iterator[Finding]:
    """A setting of NCCL's log where NCCL logs nothing."""
    if not _is(s, "NCCL_DEBUG", "info", "trace", "warn", "version"):
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
    """Ranks or roles (trainer, engine) of one job that are set differently."""
    if len(env.roles) < 2:
        return
    held = [{n: v for n, (v, _, _) in effective(role).items()} for role in env.roles]
    for name in MUST_AGREE:
        values = {role.name: one.get(name, "not set") for role, one in zip(env.roles, held)}
        if len(set(values.values())) > 1:
            seen = (Evidence(f"{r}: {name}={v}", f"environment.roles[{i}].variables.{name}") for i, (r, v) in enumerate(values.items()))
            yield Finding("roles-differ", Severity.WARN, f"{name}: differs between {', '.join(f'{r} ({v})' for r, v in values.items())}",
                          tuple(seen), (Remedy("your launcher", "Processes of one communicator must agree: set it alike, or nowhere.",
                                               (f"unset {name}",)),))


def judge(env: Environment) -> Iterator[Finding]:
    """What works against each other within one process, told once for all that have it, and what differs between them."""
    by_role = [{s.name: s for s in settings(env) if role.name in s.who} for role in env.roles]
    yield from dict.fromkeys(f for own in by_role for f in (*contradictions(own), *without_effect(own)))
    yield from conf_overridden(env)
    yield from roles_differ(env)
