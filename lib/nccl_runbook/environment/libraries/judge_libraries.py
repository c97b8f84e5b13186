"""Which NCCL and CUDA libraries ranks load, and whether they are the intended ones."""

import posixpath
from collections.abc import Iterator

from nccl_runbook.causes.tables import version
from nccl_runbook.core.facts import Gap, known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Environment, Library, Role
from nccl_runbook.environment.libraries.judge_versions import framework_version_incompatible

_REINSTALL = (
    "python3 -m pip uninstall -y nvidia-nccl-cu12 nvidia-nccl-cu13",
    "python3 -m pip install --force-reinstall torch",
)


def nccl_paths(role: Role) -> list[str]:
    """Every libnccl that the process maps, without plugins; first the one whose functions torch calls
    (LD_PRELOAD decides)."""
    return sorted(
        [p for p in known(role.mapped) if posixpath.basename(p).startswith("libnccl.so")],
        key=lambda p: p not in role.preloaded,
    )


def by_path(env: Environment) -> dict[str, Library]:
    """Path -> library on the judged host; empty if the host was not looked at."""
    return {} if isinstance(env.host, Gap) else {lib.path: lib for lib in known(env.host.libraries)}


def _named(lib: Library) -> str:
    return f"libnccl {lib.version}" if isinstance(lib.version, str) else "a libnccl without version"


def wheel_disagrees(lib: Library) -> Finding | None:
    """A wheel's metadata name another version than the file, or two wheels claim one path (the last one
    written wins). None if neither."""
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
            "same path, so pip cannot show which version runs",
            tuple(
                Evidence(f"{w}: recorded hash {s}", f"environment.host.libraries.{lib.path}")
                for w, s in lib.wheels.items()
            ),
            (Remedy("you", "Keep only one of the wheels, and reinstall it:", _REINSTALL),),
            cause="nccl-library-conflict",
            status="likely",
        )
        if wrong
        else None
    )


def two_libraries(role: Role, libraries: dict[str, Library]) -> Finding | None:
    """One process maps several copies of libnccl; None if it maps at most one."""
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
        f"{role.name}: {len(paths)} copies of libnccl are loaded in one process: {words}"
        + ("; because of LD_PRELOAD, the first copy is called" if paths[0] in role.preloaded else ""),
        _mapped(*paths),
        (
            Remedy(
                "your launcher",
                "Load only one copy of libnccl. Decide which copy to keep. Then unset the variable "
                "(LD_PRELOAD, LD_LIBRARY_PATH or VLLM_NCCL_SO_PATH) that loads the other copy, or "
                "uninstall the wheel that contains the other copy.",
                ("unset LD_PRELOAD VLLM_NCCL_SO_PATH",),
            ),
        ),
        cause="nccl-library-conflict",
        status="likely" if differ else "possible",
    )


def _mapped(*texts: str) -> tuple[Evidence, ...]:
    return tuple(Evidence(text, "environment.roles.mapped") for text in texts)


def cuda_differs(role: Role, lib: Library) -> Finding | None:
    """NCCL and torch are built for different CUDA major versions; None if not, or if one is unknown."""
    if (
        isinstance(lib.cuda, Gap)
        or isinstance(role.torch_cuda, Gap)
        or version(lib.cuda)[:1] == version(role.torch_cuda)[:1]
    ):
        return None
    return Finding(
        "cuda-differs",
        Severity.WARN,
        f"{role.name}: {_named(lib)} is built for CUDA {lib.cuda}, but torch is built for CUDA "
        f"{role.torch_cuda}",
        _mapped(lib.path),
        (Remedy("you", "Install the NCCL built for torch's CUDA version:", _REINSTALL),),
        cause="nccl-version-mismatch",
        status="likely",
    )


def preload(role: Role) -> Finding | None:
    """LD_PRELOAD names a libnccl, used or ignored; None if it names none."""
    named = [p for p in role.variables.get("LD_PRELOAD", "").replace(":", " ").split() if "libnccl" in p]
    if not named or isinstance(role.mapped, Gap):
        return None
    first = next(iter(nccl_paths(role)), "no libnccl")
    evidence = (
        Evidence(f"LD_PRELOAD={role.variables['LD_PRELOAD']}", "environment.roles.variables.LD_PRELOAD"),
        *_mapped(*nccl_paths(role)),
    )
    if first in role.preloaded:
        return Finding(
            "preload", Severity.NOTE, f"{role.name}: LD_PRELOAD is in effect and loads {first}", evidence
        )
    return Finding(
        "preload",
        Severity.WARN,
        f"{role.name}: LD_PRELOAD names {named[0]}, but the process has loaded {first}",
        evidence,
        (
            Remedy(
                "your launcher",
                "The loader ignores a path that does not exist. Set LD_PRELOAD to the full path of a "
                "file that this process can open:",
                (f"ls -l {named[0]}",),
            ),
        ),
        cause="nccl-library-conflict",
        status="possible",
    )


def roles_differ(env: Environment) -> Finding | None:
    """Roles of one job with different libraries. One version with different contents is reported as such;
    equal contents at different paths are a note. None if all agree."""
    libraries = by_path(env)
    mapped = {role.name: libraries[p] for role in env.roles for p in nccl_paths(role)[:1] if p in libraries}
    paths, versions, contents = (
        len({str(getattr(lib, part)) for lib in mapped.values()}) for part in ("path", "version", "sha256")
    )
    if paths < 2 and contents < 2:
        return None
    same = "the same version number, but different files" if contents > 1 else "a copy with the same contents"
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
        cause="nccl-library-conflict",
        status="possible",
    )


def replaced(role: Role) -> Finding | None:
    """The file of a mapped libnccl was deleted or overwritten, so the running library is not the installed
    one. Else None."""
    gone = [p for p in nccl_paths(role) if p.endswith(" (deleted)")]
    return (
        Finding(
            "library-replaced",
            Severity.WARN,
            f"{role.name}: the loaded libnccl was replaced on disk while the process ran",
            _mapped(*gone),
            (
                Remedy(
                    "your launcher",
                    "Restart the job, because a new process would load a libnccl that differs from the one "
                    "in the running processes.",
                    (f"ls -l {gone[0].split()[0]}",),
                ),
            ),
            cause="nccl-library-conflict",
            status="possible",
        )
        if gone
        else None
    )


def library_named(role: Role, libraries: dict[str, Library]) -> Finding | None:
    """The mapped library by name; UNKNOWN for a process with libtorch and without libnccl. None if it maps
    neither."""
    if not (paths := nccl_paths(role)):
        torch_alone = not isinstance(role.mapped, Gap) and any("libtorch" in p for p in role.mapped)
        return (
            Finding(
                "library-named",
                Severity.UNKNOWN,
                f"{role.name}: no libnccl is loaded, so the NCCL version is not known",
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
        f"{role.name}: libnccl {says} is loaded from {paths[0]}",
        _mapped(f"sha256 {lib.sha256}" if lib else paths[0]),
    )


def of_libraries(env: Environment) -> Iterator[Finding]:
    """All findings about NCCL libraries, of each role and between roles."""
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
