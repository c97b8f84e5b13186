"""The settings: whether they are read, hold an accepted value, and fit each other, the versions and the
machine."""

import posixpath
from collections.abc import Callable, Iterator

from nccl_runbook.causes.tables import table
from nccl_runbook.causes.variables import Variable, family, nearest, unread
from nccl_runbook.core.facts import Gap, counted, listed
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment import judge_settings
from nccl_runbook.environment.facts import Environment, Role
from nccl_runbook.environment.libraries.judge_libraries import of_libraries
from nccl_runbook.environment.settings.judge_effective import Setting, settings
from nccl_runbook.environment.settings.judge_variables import (
    bytes_for_events,
    dead_variable,
    debugging_left_on,
    has_a_side_effect,
    not_yet_read,
    renamed_variable,
    unread_variable,
    wrong_value,
)

RESTS_ON = ("environment", "environment.host", "environment.roles[[]0].mapped", "environment.left_out.*")

RULES: tuple[Callable[[Setting, Variable], Iterator[Finding]], ...] = (
    debugging_left_on,  # it costs the job more than a wrong value
    wrong_value,
    renamed_variable,
    dead_variable,
    not_yet_read,
    bytes_for_events,
    has_a_side_effect,
)


def unknown_names(env: Environment) -> Iterator[Finding]:
    """Names of known families that are not in the table: unknown to us, perhaps read by a newer version."""
    unknown = [
        s
        for s in settings(env)
        if not s.known and s.name not in unread() and not nearest(s.name) and not s.name.startswith("NV_")
    ]  # versions that NVIDIA's images record of their packages; no program reads them
    if unknown:
        names = sorted({s.name for s in unknown})
        yield Finding(
            "unknown-names",
            Severity.NOTE,
            "nccl-runbook does not know these names, but another program may read them: "
            + listed(names, 12)
            + (
                "; NCCL and PyTorch do not read these names, but a plugin may"
                if any((r := family(n)) and r.is_complete for n in names)
                else ""
            ),
            tuple(s.evidence for s in unknown),
        )


def nothing_read(env: Environment) -> Iterator[Finding]:
    """A file without any setting, or a process without settings, torch and NCCL: perhaps the wrong one,
    never healthy."""
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
            f"no variable of NCCL, CUDA or torch is set in {', '.join(empty)}",
            remedy=(
                Remedy(
                    "you",
                    "Name the file that sets these variables, or a process of the job:",
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
    """Files that a script reads as it runs; their settings are unknown here, and may be all there are."""
    for index, role in enumerate(env.roles):
        if files := _unread_files(role):
            alone = not set(role.variables) - {*table("environment/environment")["rendezvous"]}
            yield Finding(
                "not-followed",
                Severity.UNKNOWN if alone else Severity.NOTE,
                f"{role.name} takes its settings from {', '.join(files)}, which this check did not read"
                if alone
                else (
                    f"{role.name} also takes settings from {', '.join(files)}, which this check did not read"
                ),
                tuple(Evidence(f, f"environment.roles[{index}].sourced") for f in files),
                (Remedy("you", "Also check this file:", tuple(f"nccl-runbook env {f}" for f in files)),),
            )


def judge(env: Environment | Gap) -> list[Finding]:
    """All findings about one environment (the caller sorts them); one about what is right if nothing is
    wrong."""
    if isinstance(env, Gap):
        return []
    findings = [
        # a wrong value before a name that nobody reads
        *(f for rule in RULES for s in settings(env) if s.known for f in rule(s, s.known)),
        *(f for s in settings(env) if not s.known for f in unread_variable(s)),
        *unknown_names(env),
        *judge_settings.judge_settings(env),
        *nothing_read(env),
        *not_followed(env),
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
