"""Frameworks against the torch, NCCL and Ray beside them, by their own metadata; nothing is imported."""
import itertools
import re
from collections.abc import Iterator, Mapping

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nccl_runbook.causes.toml import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Role

_LINUX = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux",
          "implementation_name": "cpython", "platform_python_implementation": "CPython"}
_MACHINES = ("x86_64", "aarch64")
_PYTHONS = [f"3.{minor}" for minor in range(9, 16)]
_NEVER_READ = ("platform_release", "platform_version")


def applies(marker: Marker | None, known: Mapping[str, str]) -> bool | None:
    """Whether a requirement with this marker counts; None if that depends on something that is not ``known``.

    ``known``: ``Role.markers``. Every Python and machine that is possible is tried, so a marker that asks for
    neither is always decided. Extras do not count.
    """
    pythons = [known["python_version"]] if "python_version" in known else _PYTHONS
    machines = [known["platform_machine"]] if "platform_machine" in known else _MACHINES
    try:
        answers = {marker is None or marker.evaluate(_environment(python, patch, machine))
                   for python, patch, machine in itertools.product(pythons, ("0", "99"), machines)}
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion):
        return None
    return None if len(answers) > 1 or any(name in str(marker) for name in _NEVER_READ) else answers.pop()


def _environment(python: str, patch: str, machine: str) -> dict[str, str]:
    full = f"{python}.{patch}"
    return {**_LINUX, "python_version": python, "python_full_version": full, "implementation_version": full,
            "platform_machine": machine}


def _name(line: str) -> str:
    """The distribution that a line of Requires-Dist names."""
    return canonicalize_name(re.match(r"\s*([\w.-]*)", line)[1])


def _unmet(line: str, there: Mapping[str, str], known: Mapping[str, str]) -> tuple[str, str, Severity] | None:
    """The distribution that a line of Requires-Dist asks for in another version than is installed, what it asks,
    and how bad that is: UNKNOWN if the line, the version or the marker cannot be decided."""
    name = _name(line)
    if name not in table("environment/versions")["watched"] or name not in there:
        return None
    try:
        wanted, installed = Requirement(line), Version(there[name])
    except (InvalidRequirement, InvalidVersion):
        return name, line.strip(), Severity.UNKNOWN
    counts = applies(wanted.marker, known)
    if counts is False or wanted.specifier.contains(installed, prereleases=True):
        return None
    # NVIDIA's containers hold 2.7.0a0 for what is nearly 2.7.0: no requirement is met by that, and most work
    nearly = wanted.specifier.contains(installed.base_version, prereleases=True)
    asked = str(wanted.specifier) if counts else f"{wanted.specifier}; {wanted.marker}"
    return name, name + asked, Severity.UNKNOWN if counts is None else Severity.NOTE if nearly else Severity.WARN


def framework_version_incompatible(role: Role) -> Iterator[Finding]:
    """A framework that requires another torch, Ray or NCCL than is installed beside it, and one without a
    requirement on torch beside another torch than its release was published for.

    Another NCCL than torch's own is a note: it is often chosen, and works.
    """
    there = {p.partition(" ")[0]: p.partition(" ")[2] for p in role.requires}
    there |= {} if isinstance(role.torch, Gap) else {"torch": role.torch}
    for package, lines in role.requires.items():
        for other, asked, severity in filter(None, (_unmet(line, there, role.markers) for line in lines)):
            severity = Severity.NOTE if severity is Severity.WARN and package.startswith("torch ") else severity
            how = "may require" if severity is Severity.UNKNOWN else "requires"
            says = f"{package} {how} {asked}, and {other} {there[other]} is installed"
            yield _finding(role, severity, says, package, other)
        name, _, release = package.partition(" ")
        made_for = table("environment/versions")["published"].get(name, {}).get(release, "")
        required = any(_name(line) == "torch" for line in lines)
        if made_for and not required and _unmet(f"torch=={made_for}", there, {}):
            says = f"{package} was published for torch {made_for}; here, without a requirement, it stands beside torch {there['torch']}"
            yield _finding(role, Severity.NOTE, says, package, "torch")


def _finding(role: Role, severity: Severity, says: str, package: str, other: str) -> Finding:
    lines = (f"python3 -m pip install --force-reinstall '{package.replace(' ', '==')}'", "python3 -m pip check")
    cause = ("nccl-version-mismatch", "possible") if severity is Severity.WARN else (None, None)
    return Finding("framework-version-incompatible", severity, f"{role.name}: {says}", (Evidence(says, "environment.roles.requires"),),
                   (Remedy("you", f"Install it with the {other} that it was built for, in an environment of its own:", lines),), *cause)
