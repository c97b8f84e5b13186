"""What is set where: one value of one variable with everybody who has it, and the finding that is told about it."""
from __future__ import annotations

import dataclasses

from nccl_runbook.causes.variables import Variable, variables, version
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Environment, Role


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value of one variable, and who has it. ``source``: its fact path; ``where``: a line or a file, "" for a process's own."""

    name: str
    value: str
    role: Role
    who: tuple[str, ...]
    source: str
    where: str

    @property
    def known(self) -> Variable | None:
        return variables().get(self.name)

    @property
    def seen(self) -> Evidence:
        return Evidence(f"{self.name}={self.value} ({', '.join(filter(None, (self.where, *self.who)))})", self.source)

    @property
    def in_use(self) -> tuple[int, ...]:
        """The version that counts for this variable, () where it is not known."""
        return version_in_use(self.role, self.known.reader.version_of if self.known else "")


def version_in_use(role: Role, of: str) -> tuple[int, ...]:
    said = role.torch if of == "torch" else role.reported if of == "nccl" else ""
    return version(said) if isinstance(said, str) else ()


def settings(env: Environment) -> list[Setting]:
    """Every value that acts: the environment's, then what nccl.conf adds; roles with one value, one version of its reader and, where it
    names interfaces, the same ones of these together."""
    found: dict[tuple[object, ...], Setting] = {}
    for index, role in enumerate(env.roles):
        for name, (value, where, path) in effective(role).items():
            one = Setting(name, value, role, (role.name,), f"environment.roles[{index}].{path}", where)
            before = found.get(key := (name, value, one.in_use, str(role.interfaces) * name.endswith("_IFNAME")))
            found[key] = dataclasses.replace(before, who=(*before.who, role.name)) if before else one
    return list(found.values())


def effective(role: Role) -> dict[str, tuple[str, str, str]]:
    """name -> value, where it was set, fact path. The environment wins over nccl.conf, the user's over /etc (NCCL 2.30.7, param.cc)."""
    acts = {n: (v, role.where.get(n, ""), f"variables.{n}") for n, v in role.variables.items()}
    for path, lines in role.conf.items():
        for name, value in lines.items():
            acts.setdefault(name, (value, path, f"conf.{path}.{name}"))
    return acts


def told(rule: str, severity: Severity, s: Setting, text: str, advice: str, *lines: str, who: str = "your launcher",
         **more: object) -> Finding:
    """A finding about one setting; ``lines`` are what to set instead."""
    return Finding(rule, severity, f"{s.name}: {text}", (s.seen,), (Remedy(who, advice, tuple(line for line in lines if line)),), **more)
