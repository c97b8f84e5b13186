"""Wheels that need another version of torch than the installed one."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Role


def applies(marker: Any, markers: Mapping[str, str]) -> bool | None:
    """Whether a requirement with this marker counts; None if that depends on a value missing in ``markers``.
    ``marker``: a ``packaging.markers.Marker`` or None; ``markers``: ``Role.markers``. Every possible Python
    and machine is tried, so a marker that asks for neither is always decided. Extras do not count."""
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
                    **table("environment/versions")["linux"],
                    "python_version": python,
                    "python_full_version": f"{python}.{patch}",
                    "implementation_version": f"{python}.{patch}",
                    "platform_machine": machine,
                }
            )
            for python, patch, machine in itertools.product(pythons, ("0", "99"), machines)
        }
    except ValueError:  # an undefined name or comparison, or no version
        return None
    asks_kernel = "platform_release" in str(marker) or "platform_version" in str(marker)
    return None if asks_kernel or len(answers) > 1 else answers.pop()


def _distribution(line: str) -> str:
    """The distribution that a line of Requires-Dist names."""
    from packaging.utils import (
        canonicalize_name,
    )  # a script without installed packages needs none of it: 35 ms

    return canonicalize_name(re.split(r"[^\w.-]", line.lstrip(), maxsplit=1)[0])


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
    """A framework requires another torch, Ray or NCCL than is installed, or was published for another torch
    without requiring it. Another NCCL than torch's own is a note: it is a common choice, and works."""
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
                f"{package} {how} {asked}, but {other} {there[other]} is installed",
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
                f"{package} was published for torch {made_for}, but torch {there['torch']} is "
                "installed (the package declares no requirement)",
                package,
                "torch",
                f"torch=={made_for}",
            )


def _incompatible(
    role: Role, severity: Severity, says: str, package: str, other: str, wheel: str = ""
) -> Finding:
    """``wheel``: of ``other``, if the package does not require a version that pip could choose."""
    lines = (
        f"python3 -m pip install --force-reinstall '{package.replace(' ', '==')}'"
        + (f" '{wheel}'" if wheel else ""),
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
                "you",
                f"In a separate environment, install {package} together with the version of {other} for "
                "which it was built:",
                lines,
            ),
        ),
        *cause,
    )
