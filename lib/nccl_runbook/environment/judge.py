"""What is set: does somebody read it, does it hold what its reader takes, and does it fit the rest, the
versions and the machine."""

import itertools
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nccl_runbook.causes.causes import Variable, family, nearest, table, unread, variables, version
from nccl_runbook.core.facts import Gap, counted, known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment import judge_settings
from nccl_runbook.environment.facts import Environment, Library, Role
from nccl_runbook.environment.judge_settings import Setting, settings

_REINSTALL = (
    "python3 -m pip uninstall -y nvidia-nccl-cu12 nvidia-nccl-cu13",
    "python3 -m pip install --force-reinstall torch",
)
_LINUX = {
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
_NEVER_READ = ("platform_release", "platform_version")


def nccl_paths(role: Role) -> list[str]:
    """Every libnccl that the process has mapped, plugins left out; first the one whose functions torch calls,
    which LD_PRELOAD decides."""
    named = [p for p in known(role.mapped) if posixpath.basename(p).startswith("libnccl.so")]
    return sorted(named, key=lambda p: p not in role.preloaded)


def by_path(env: Environment) -> dict[str, Library]:
    return {} if isinstance(env.host, Gap) else {lib.path: lib for lib in known(env.host.libraries)}


def _named(lib: Library) -> str:
    return f"libnccl {lib.version}" if isinstance(lib.version, str) else "a libnccl without a version"


def wheel_disagrees(lib: Library) -> Finding | None:
    """The wheel's metadata name another version than the file, or two wheels claim one path:
    the last one written wins."""
    wrong = [
        w
        for w, same in lib.wheels.items()
        if not isinstance(lib.version, Gap)
        and (same == "other" or version(w.rpartition(" ")[2]) != version(lib.version))
    ]
    kept = [f" of {w}" for w in lib.wheels if w not in wrong][:1]
    return (
        Finding(
            "wheel-disagrees",
            Severity.WARN,
            f"{lib.path} is {_named(lib)}{''.join(kept)}, while {', '.join(wrong)} is installed at the "
            "same path: pip does not show which one runs",
            tuple(
                Evidence(f"{w}: recorded hash {s}", f"environment.host.libraries.{lib.path}")
                for w, s in lib.wheels.items()
            ),
            (Remedy("you", "Keep one wheel, and reinstall it:", _REINSTALL),),
            "nccl-library-conflict",
            "likely",
        )
        if wrong
        else None
    )


def two_libraries(role: Role, libraries: dict[str, Library]) -> Finding | None:
    if len(paths := nccl_paths(role)) < 2:
        return None
    differ = (
        len(
            {
                libraries[p].sha256 if p in libraries and isinstance(libraries[p].sha256, str) else p
                for p in paths
            }
        )
        > 1
    )
    words = ", ".join(f"{p} ({libraries[p].version if p in libraries else 'version unknown'})" for p in paths)
    return Finding(
        "two-libraries",
        Severity.WARN if differ else Severity.NOTE,
        f"{role.name}: {len(paths)} copies of libnccl in one process: {words}"
        + "; LD_PRELOAD has the first one called" * (paths[0] in role.preloaded),
        _mapped(*paths),
        (
            Remedy(
                "your launcher",
                "Load only one: remove LD_PRELOAD, LD_LIBRARY_PATH, VLLM_NCCL_SO_PATH or the second wheel.",
                ("unset LD_PRELOAD VLLM_NCCL_SO_PATH",),
            ),
        ),
        "nccl-library-conflict",
        "likely" if differ else "possible",
    )


def _mapped(*texts: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(text, "environment.roles.mapped") for text in texts)


def cuda_differs(role: Role, lib: Library) -> Finding | None:
    if (
        isinstance(lib.cuda, Gap)
        or isinstance(role.torch_cuda, Gap)
        or version(lib.cuda)[:1] == version(role.torch_cuda)[:1]
    ):
        return None
    return Finding(
        "cuda-differs",
        Severity.WARN,
        f"{role.name}: {_named(lib)} is built for CUDA {lib.cuda}, torch for {role.torch_cuda}",
        _mapped(lib.path),
        (Remedy("you", "Install the NCCL built for torch's CUDA version:", _REINSTALL),),
        "nccl-version-mismatch",
        "likely",
    )


def preload(role: Role) -> Finding | None:
    """LD_PRELOAD names a libnccl: at work, or ignored."""
    named = [p for p in role.variables.get("LD_PRELOAD", "").replace(":", " ").split() if "libnccl" in p]
    if not named or isinstance(role.mapped, Gap):
        return None
    first = next(iter(nccl_paths(role)), "no libnccl")
    seen = (
        Evidence(f"LD_PRELOAD={role.variables['LD_PRELOAD']}", "environment.roles.variables.LD_PRELOAD"),
        *_mapped(*nccl_paths(role)),
    )
    if first in role.preloaded:
        return Finding("preload", Severity.NOTE, f"{role.name}: LD_PRELOAD is in effect: {first}", seen)
    return Finding(
        "preload",
        Severity.WARN,
        f"{role.name}: LD_PRELOAD names {named[0]}, but {first} is mapped",
        seen,
        (
            Remedy(
                "your launcher",
                "The loader ignores a path that does not exist. Give this process the full path:",
                (f"ls -l {named[0]}",),
            ),
        ),
        "nccl-library-conflict",
        "possible",
    )


def roles_differ(env: Environment) -> Finding | None:
    """Roles of one job with different libraries; one version number with different contents, and equal
    contents at different paths (a note), are told as such."""
    libraries = by_path(env)
    mapped = {role.name: libraries[p] for role in env.roles for p in nccl_paths(role)[:1] if p in libraries}
    paths, versions, contents = (
        len({str(getattr(lib, part)) for lib in mapped.values()}) for part in ("path", "version", "sha256")
    )
    if paths < 2 and contents < 2:
        return None
    same = "same version number, but different files" if contents > 1 else "a copy with the same contents"
    return Finding(
        "roles-libraries-differ",
        Severity.WARN if contents > 1 else Severity.NOTE,
        f"libnccl differs between roles, {'different versions' if versions > 1 else same}: "
        + ", ".join(f"{name}: {lib.version} ({lib.path})" for name, lib in mapped.items()),
        _mapped(*(f"{name}: sha256 {lib.sha256}" for name, lib in mapped.items())),
        (
            Remedy(
                "your launcher",
                "Use the same library in every process of one communicator.",
                ("LD_PRELOAD=/path/to/libnccl.so.2",),
            ),
        ),
        "nccl-library-conflict",
        "possible",
    )


def replaced(role: Role) -> Finding | None:
    """The file of a mapped libnccl was deleted or overwritten: what runs is not what is installed now."""
    gone = [p for p in nccl_paths(role) if p.endswith(" (deleted)")]
    return (
        Finding(
            "library-replaced",
            Severity.WARN,
            f"{role.name}: the mapped libnccl was replaced on disk while the process ran",
            _mapped(*gone),
            (
                Remedy(
                    "your launcher",
                    "Restart the job: a new process would load another file.",
                    (f"ls -l {gone[0].split()[0]}",),
                ),
            ),
            "nccl-library-conflict",
            "possible",
        )
        if gone
        else None
    )


def library_named(role: Role, libraries: dict[str, Library]) -> Finding | None:
    """What is mapped, by name. A process with torch and without libnccl leaves it undecided."""
    if not (paths := nccl_paths(role)):
        torch_alone = not isinstance(role.mapped, Gap) and any("libtorch" in p for p in role.mapped)
        return (
            Finding(
                "library-named",
                Severity.UNKNOWN,
                f"{role.name}: no libnccl is mapped, so the NCCL version is not known",
                _mapped(f"torch {role.torch} without NCCL"),
            )
            if torch_alone
            else None
        )
    lib = libraries.get(paths[0])
    says = role.reported if isinstance(role.reported, str) else str(lib.version) if lib else "version unknown"
    return Finding(
        "library-named",
        Severity.OK,
        f"{role.name}: libnccl {says} is mapped from {paths[0]}",
        _mapped(f"sha256 {lib.sha256}" if lib else paths[0]),
    )


def of_libraries(env: Environment) -> Iterator[Finding]:
    libraries = by_path(env)
    mapped = {p for role in env.roles for p in nccl_paths(role)}
    yield from filter(None, (wheel_disagrees(lib) for path, lib in libraries.items() if path in mapped))
    for role in env.roles:
        yield from filter(
            None,
            [
                two_libraries(role, libraries),
                preload(role),
                replaced(role),
                library_named(role, libraries),
                *(cuda_differs(role, libraries[p]) for p in nccl_paths(role) if p in libraries),
            ],
        )
        yield from framework_version_incompatible(role)
    yield from filter(None, [roles_differ(env)])


def applies(marker: Any, markers: Mapping[str, str]) -> bool | None:
    """Whether a requirement with this marker counts; None if that depends on something that
    is not among ``markers``.

    ``marker``: a ``packaging.markers.Marker`` or None; ``markers``: ``Role.markers``.
    Every Python and machine that is possible is tried, so a marker that asks for neither is always
    decided. Extras do not count.
    """
    pythons = (
        [markers["python_version"]]
        if "python_version" in markers
        else [f"3.{minor}" for minor in range(9, 16)]
    )
    machines = [markers["platform_machine"]] if "platform_machine" in markers else ["x86_64", "aarch64"]
    try:
        answers = {
            marker is None
            or marker.evaluate(
                {
                    **_LINUX,
                    "python_version": python,
                    "python_full_version": f"{python}.{patch}",
                    "implementation_version": f"{python}.{patch}",
                    "platform_machine": machine,
                }
            )
            for python, patch, machine in itertools.product(pythons, ("0", "99"), machines)
        }
    except ValueError:  # a name or a comparison that is not defined, no version
        return None
    return None if len(answers) > 1 or any(name in str(marker) for name in _NEVER_READ) else answers.pop()


def _distribution(line: str) -> str:
    """The distribution that a line of Requires-Dist names."""
    from packaging.utils import (
        canonicalize_name,
    )  # a script without installed packages needs none of it: 35 ms

    return canonicalize_name(re.match(r"\s*([\w.-]*)", line)[1])


def _unmet(
    line: str, there: Mapping[str, str], markers: Mapping[str, str]
) -> tuple[str, str, Severity] | None:
    """The distribution that a line of Requires-Dist asks for in another version than is installed, what
    it asks, and how bad that is: UNKNOWN if the line, the version or the marker cannot be decided."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    name = _distribution(line)
    if name not in table("environment/versions")["watched"] or name not in there:
        return None
    try:
        wanted, installed = Requirement(line), Version(there[name])
    except ValueError:  # no requirement, no version
        return name, line.strip(), Severity.UNKNOWN
    counts = applies(wanted.marker, markers)
    if counts is False or wanted.specifier.contains(installed, prereleases=True):
        return None
    # NVIDIA's containers hold 2.7.0a0 for what is nearly 2.7.0: no requirement is met by that, and most work
    nearly = wanted.specifier.contains(installed.base_version, prereleases=True)
    asked = str(wanted.specifier) if counts else f"{wanted.specifier}; {wanted.marker}"
    return (
        name,
        name + asked,
        Severity.UNKNOWN if counts is None else Severity.NOTE if nearly else Severity.WARN,
    )


def framework_version_incompatible(role: Role) -> Iterator[Finding]:
    """A framework that requires another torch, Ray or NCCL than is installed beside it, and one without a
    requirement on torch beside another torch than its release was published for.

    Another NCCL than torch's own is a note: it is often chosen, and works.
    """
    there = {
        **{package.partition(" ")[0]: package.partition(" ")[2] for package in role.requires},
        **({} if isinstance(role.torch, Gap) else {"torch": role.torch}),
    }
    for package, lines in role.requires.items():
        for other, asked, severity in filter(None, (_unmet(line, there, role.markers) for line in lines)):
            chosen = severity is Severity.WARN and package.startswith("torch ")
            how = "may require" if severity is Severity.UNKNOWN else "requires"
            yield _incompatible(
                role,
                Severity.NOTE if chosen else severity,
                f"{package} {how} {asked}, and {other} {there[other]} is installed",
                package,
                other,
            )
        name, _, release = package.partition(" ")
        made_for = table("environment/versions")["published"].get(name, {}).get(release, "")
        required = any(_distribution(line) == "torch" for line in lines)
        if made_for and not required and _unmet(f"torch=={made_for}", there, {}):
            yield _incompatible(
                role,
                Severity.NOTE,
                f"{package} was published for torch {made_for}; here, without a "
                f"requirement, it is installed with torch {there['torch']}",
                package,
                "torch",
            )


def _incompatible(role: Role, severity: Severity, says: str, package: str, other: str) -> Finding:
    lines = (
        f"python3 -m pip install --force-reinstall '{package.replace(' ', '==')}'",
        "python3 -m pip check",
    )
    cause = ("nccl-version-mismatch", "possible") if severity is Severity.WARN else (None, None)
    return Finding(
        "framework-version-incompatible",
        severity,
        f"{role.name}: {says}",
        (Evidence(says, "environment.roles.requires"),),
        (
            Remedy(
                "you", f"Install it with the {other} that it was built for, in a separate environment:", lines
            ),
        ),
        *cause,
    )


RESTS_ON = ("environment", "environment.host", "environment.roles[[]0].mapped", "environment.left_out.*")
MOST_EVENTS = (
    1_000_000  # 67,108,864 was meant as bytes; a ring of a million collectives holds hours of training
)
RUN_STILL = (2, 5)  # NCCL and PyTorch from here on may still be met in jobs
_MEANT = {
    **dict.fromkeys(("true", "yes", "on", "enable", "enabled"), 1),
    **dict.fromkeys(("false", "no", "off", "disable", "disabled"), 0),
}
_OWN_RULE = ("NCCL_CUMEM_ENABLE", "NCCL_DEBUG", "NCCL_IB_DISABLE")


def unread_variable(s: Setting, _: None) -> Iterator[Finding]:
    """Nobody reads this name: one that circulates, or a slip of the pen."""
    if s.name in unread():
        says, instead = unread()[s.name]
        yield s.finding(
            "unread-variable", Severity.WARN, says, "It has no effect. Remove it, and use instead:", instead
        )
    elif near := nearest(s.name):
        yield s.finding(
            "unread-variable",
            Severity.WARN,
            f"no known library reads it; the nearest name is {near}",
            f"It has no effect. Remove it, or, if you want what {near} does, use that name:",
            *([f"unset {s.name}"] if variables()[near].debugging else [f"{near}={s.value}"]),
        )


def wrong_value(s: Setting, v: Variable) -> Iterator[Finding]:
    """The value is none that the reader takes."""
    if not v.accepts(s.value):
        unset = "" if v.name in table("environment/environment")["needed"] else ", or remove it"
        yield s.finding(
            "wrong-value",
            Severity.WARN,
            f"{s.value!r} is not a valid value: it takes {v.values_in_words}{_what_happens(v, s.value)}",
            f"Set a valid value{unset}:",
            _right(v, s.value),
        )


def _what_happens(v: Variable, value: str) -> str:
    kind = v.values.partition(":")[0]
    if v.name in (known := table("environment/environment")["otherwise"]):
        return f"; {known[v.name]}"
    if v.reader.key == "nccl" and kind in ("bool", "int") and not value.strip(" +-").isdecimal():
        led = re.match(
            r"\s*([+-]?\d+)", value
        )  # strtoll: what follows the digits is not looked at (NCCL's misc/param.cc at 081eafa, read)
        return (
            f"; NCCL reads only the leading digits: {led[1]}"
            if led
            else "; NCCL reads anything but a number as 0"
        )
    return "; torch then ends with an error" if kind == "flag" and v.reader.key == "torch" else ""


def _right(v: Variable, value: str) -> str:
    if v.values.startswith("re:") and v.accepts(value.upper()):
        return f"{v.name}={value.upper()}"
    if v.values in ("bool", "flag") and value.casefold() in _MEANT:
        return f"{v.name}={_MEANT[value.casefold()]}"
    return table("environment/environment")["needed"].get(v.name) or (
        f"{v.name}={v.default}" if v.default else f"unset {v.name}"
    )


def _past(s: Setting, v: Variable) -> bool:
    """Whether the version in use, or any that may be, is newer than the last one that reads it."""
    return bool(v.until) and (not s.in_use or s.in_use[: len(version(v.until))] > version(v.until))


def renamed_variable(s: Setting, v: Variable) -> Iterator[Finding]:
    """An old name: still read (a note) or no longer (a warning) by the version in use."""
    if (
        v.renamed_to
        and s.role.variables.get(v.renamed_to, s.value) == s.value
        and not (s.in_use and s.in_use < version(v.renamed_in))
    ):
        since = f" since {v.reader.name} {v.renamed_in}" if v.renamed_in else ""
        # NCCL 2.30.7 (graph/connect.cc) prints no warning
        read = "still read, with a warning" if v.reader.version_of == "torch" else "still read"
        severity, says = (Severity.WARN, "no longer read") if _past(s, v) else (Severity.NOTE, read)
        value = (
            "2000"
            if v.values.startswith("count") and judge_settings.number(s.value) > MOST_EVENTS
            else s.value
        )
        yield s.finding(
            "renamed-variable",
            severity,
            f"the old name; {v.renamed_to}{since} ({says})",
            "Use the new name:",
            f"{v.renamed_to}={value}" if v.values != "bool" else v.renamed_to,
        )


def dead_variable(s: Setting, v: Variable) -> Iterator[Finding]:
    """Read up to a version that is past, without a successor."""
    if not v.renamed_to and _past(s, v):
        may_run = not s.in_use and version(v.until) >= RUN_STILL
        yield s.finding(
            "dead-variable",
            Severity.NOTE if may_run else Severity.WARN,
            f"last read by {v.reader.name} {v.until}{'; the version here is not known' if may_run else ''}",
            "Newer versions do not read it. Then remove it:" if may_run else "It has no effect. Remove it:",
            f"unset {s.name}",
        )


def not_yet_read(s: Setting, v: Variable) -> Iterator[Finding]:
    """The version in use is older than the first that reads it."""
    if v.since and s.in_use and s.in_use < version(v.since):
        old = next((o.name for o in variables().values() if o.renamed_to == s.name), "")
        yield s.finding(
            "not-yet-read",
            Severity.WARN,
            f"read from {v.reader.name} {v.since} on; {'.'.join(map(str, s.in_use))} runs here",
            "Use the name of this version:"
            if old
            else "It has no effect here. Remove it, or use a newer version:",
            f"{old}={s.value}" if old else f"unset {s.name}",
        )


def bytes_for_events(s: Setting, v: Variable) -> Iterator[Finding]:
    """A buffer of the flight recorder given in bytes: it counts events."""
    if v.values == "count" and judge_settings.number(s.value) > MOST_EVENTS:
        name = "TORCH_NCCL_TRACE_BUFFER_SIZE" if s.in_use and s.in_use < (2, 9) else "TORCH_FR_BUFFER_SIZE"
        yield s.finding(
            "bytes-for-events",
            Severity.WARN,
            f"{int(s.value):,} events are requested: this is a count, not bytes",
            "A few thousand are enough:",
            f"{name}=2000",
        )


def debugging_left_on(s: Setting, v: Variable) -> Iterator[Finding]:
    """A switch for experiments that stayed: a warning where it costs much, else a note."""
    known = table("environment/environment")
    is_set = s.value not in ("", v.default) and v.accepts(s.value)
    if is_set and s.name in known["costs"] and s.value != "0":
        yield s.finding(
            "debugging-left-on",
            Severity.WARN,
            f"is still set; {known['costs'][s.name]}",
            "An experiment, not a fix. Remove it, and find the broken transport with 04-transports:",
            f"unset {s.name}",
        )
    elif is_set and (
        s.value.casefold() in known["chatty"].get(s.name, ()) or v.debugging and s.name not in _OWN_RULE
    ):
        logs = s.name == "NCCL_DEBUG"
        yield s.finding(
            "debugging-left-on",
            Severity.NOTE,
            "its log fills the disk; it costs no bandwidth that could be measured "
            "(45.3 ms a sync with and without)"
            if logs
            else "for experiments only; do not keep it in scripts",
            "When the fault is found:",
            "NCCL_DEBUG=WARN" if logs else f"unset {s.name}",
        )


def in_two_minds(s: Setting, _: Variable) -> Iterator[Finding]:
    """Read, and right as it stands, but with a catch (environment/environment.toml:
    cumem-must-agree, ranks-share-a-gpu)."""
    row = table("environment/environment")["catch"].get(s.name)
    if row and s.value not in row["quiet"] and not (s.in_use and s.in_use < version(row["since"])):
        yield s.finding(row["id"], Severity(row["severity"]), row["says"], row["advice"], *row["lines"])


RULES: tuple[Callable[[Setting, Variable], Iterator[Finding]], ...] = (
    wrong_value,
    renamed_variable,
    dead_variable,
    not_yet_read,
    bytes_for_events,
    debugging_left_on,
    in_two_minds,
)


def unknown_names(env: Environment) -> Iterator[Finding]:
    """Names of known families that the table does not hold: not known to us, which is not dead."""
    unknown = [
        s
        for s in settings(env)
        if not s.known and s.name not in unread() and not nearest(s.name) and not s.name.startswith("NV_")
    ]  # what NVIDIA's images say of their packages; nobody acts on it
    if unknown:
        names = sorted({s.name for s in unknown})
        yield Finding(
            "unknown-names",
            Severity.NOTE,
            f"unknown here, but something else may read them: {', '.join(names[:12])}"
            f"{f' and {len(names) - 12} more' * (len(names) > 12)}"
            + "; NCCL and PyTorch do not read such a name, a plugin may"
            * any((r := family(n)) and r.is_complete for n in names),
            tuple(s.seen for s in unknown),
        )


def nothing_read(env: Environment) -> Iterator[Finding]:
    """A file in which nothing at all is set, or a process without settings, torch and NCCL: not health,
    but the wrong one perhaps."""
    bare = [
        r
        for r in env.roles
        if isinstance(r.torch, Gap) and r.torch.reason == "absent" and isinstance(r.reported, Gap)
    ]
    empty = [
        r.name
        for r in env.roles
        if not r.variables and not r.conf and (not r.others or r in bare) and not _unread_files(r)
    ]
    if empty:
        yield Finding(
            "nothing-read",
            Severity.UNKNOWN,
            f"{', '.join(empty)}: no variable of NCCL, CUDA or torch is set there",
            remedy=(
                Remedy(
                    "you",
                    "Name the file that sets them, or a process of the job:",
                    ("nccl-runbook env FILE", "nccl-runbook env --pid PID"),
                ),
            ),
        )


def _unread_files(role: Role) -> list[str]:
    return [
        f
        for f in role.sourced
        if posixpath.basename(f) not in table("environment/environment")["without_settings"]
    ]


def not_followed(env: Environment) -> Iterator[Finding]:
    """Files that a script reads as it runs: their settings are not known here, and they
    may be all that there are."""
    for index, role in enumerate(env.roles):
        if files := _unread_files(role):
            alone = not set(role.variables) - {*table("environment/environment")["rendezvous"]}
            yield Finding(
                "not-followed",
                Severity.UNKNOWN if alone else Severity.NOTE,
                f"{role.name} reads its settings from {', '.join(files)}, which was not read"
                if alone
                else f"{role.name} also reads {', '.join(files)}: its settings were not read",
                tuple(Evidence(f, f"environment.roles[{index}].sourced") for f in files),
                (Remedy("you", "Check that file too:", tuple(f"nccl-runbook env {f}" for f in files)),),
            )


def judge(env: Environment | Gap) -> list[Finding]:
    """Every finding about one environment, worst first by the caller; one that says what was
    right if nothing was wrong."""
    if isinstance(env, Gap):
        return []
    findings = [
        *(
            f
            for s in settings(env)
            for rule in (RULES if s.known else (unread_variable,))
            for f in rule(s, s.known)
        ),
        *unknown_names(env),
        *nothing_read(env),
        *not_followed(env),
        *judge_settings.judge(env),
        *of_libraries(env),
    ]
    if env.roles and all(f.severity in (Severity.NOTE, Severity.OK) for f in findings):
        findings.append(
            Finding(
                "environment-fits",
                Severity.OK,
                f"{counted(sum(1 for s in settings(env) if s.known), 'known variable')}, "
                "all with valid values",
            )
        )
    return findings
