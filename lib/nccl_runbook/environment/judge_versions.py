"""Frameworks against the torch, NCCL and Ray beside them, by their own metadata; nothing is imported."""
from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_runbook.causes.variables import version
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Role
from nccl_runbook.environment.versions import published, watched

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?")
_CLAUSE = re.compile(r"(===|==|!=|>=|<=|~=|>|<)\s*([0-9][\w.+*!-]*)")
_ELSEWHERE = re.compile(r"extra\b|darwin|win32|windows|aarch64|arm64|python_version|sys_platform\s*!=", re.I)


def satisfied(have: str, specifier: str) -> bool:
    """Whether a version fits every clause that is understood (PEP 440, releases only: what follows the numbers does not count)."""
    return all(_holds(version(have), operator, wanted) for operator, wanted in _CLAUSE.findall(specifier))


def _holds(have: tuple[int, ...], operator: str, wanted: str) -> bool:
    parts = version(wanted)
    if operator in ("==", "!=", "==="):
        short = have[:len(parts)] if "*" in wanted else have + (0,) * (3 - len(have))
        return (short == (parts if "*" in wanted else parts + (0,) * (3 - len(parts)))) is (operator != "!=")
    if operator == "~=":
        return have >= parts and have[:len(parts) - 1] == parts[:-1]
    return {">=": have >= parts, "<=": have <= parts, ">": have > parts, "<": have < parts}[operator]


def requirements(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Name and specifier of each that counts on Linux x86_64 without extras."""
    for line in lines:
        match = _REQUIREMENT.fullmatch(line.strip())
        if match and match[1].lower() in watched() and not _ELSEWHERE.search(match[3] or ""):
            yield match[1].lower().replace("_", "-"), match[2].strip()


def framework_version_incompatible(role: Role) -> Iterator[Finding]:
    """A framework that requires another torch, Ray or NCCL than is installed beside it. Another NCCL than torch's own is a note: it is
    often chosen, and works."""
    there = {p.partition(" ")[0]: p.partition(" ")[2] for p in role.requires}
    there |= {} if isinstance(role.torch, Gap) else {"torch": role.torch}
    for package, lines in role.requires.items():
        name, _, release = package.partition(" ")
        wanted = dict(requirements(lines))
        for other, specifier in wanted.items():
            if other in there and not satisfied(there[other], specifier):
                severity = Severity.NOTE if name == "torch" else Severity.WARN
                says = f"{package} requires {other}{specifier}, and {other} {there[other]} is installed"
                yield _finding(role, severity, says, package, other)
        made_for = published(name, release)
        if made_for and "torch" not in wanted and "torch" in there and not satisfied(there["torch"], f"=={made_for}"):
            says = f"{package} was published for torch {made_for}; here, without a requirement, it stands beside torch {there['torch']}"
            yield _finding(role, Severity.NOTE, says, package, "torch")


def _finding(role: Role, severity: Severity, says: str, package: str, other: str) -> Finding:
    lines = (f"python3 -m pip install --force-reinstall '{package.replace(' ', '==')}'", "python3 -m pip check")
    cause = ("nccl-version-mismatch", "possible") if severity is Severity.WARN else (None, None)
    return Finding("framework-version-incompatible", severity, f"{role.name}: {says}", (Evidence(says, "environment.roles.requires"),),
                   (Remedy("you", f"Install it with the {other} that it was built for, in an environment of its own:", lines),), *cause)
