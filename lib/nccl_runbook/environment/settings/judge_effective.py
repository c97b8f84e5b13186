"""Settings as they take effect: environment first, then nccl.conf."""

import dataclasses

from nccl_runbook.causes.tables import version
from nccl_runbook.causes.variables import Variable, variables
from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Environment, Role


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value of one variable and its roles. ``source``: its fact path; ``where``: a line or file, empty
    for a process's own."""

    name: str
    value: str
    role: Role
    who: tuple[str, ...]
    source: str
    where: str

    @property
    def known(self) -> Variable | None:
        """The variable's row in the table, or None."""
        return variables().get(self.name)

    @property
    def as_read(self) -> str:
        """The value as its reader takes it, in lower case."""
        return self.known.as_read(self.value) if self.known else self.value.casefold()

    @property
    def evidence(self) -> Evidence:
        """The setting as evidence, with where it was set."""
        return Evidence(
            f"{self.name}={self.value} ({', '.join(filter(None, (self.where, *self.who)))})", self.source
        )

    @property
    def in_use(self) -> tuple[int, ...]:
        """Version of the program that reads this variable; () if unknown."""
        running = {"torch": self.role.torch, "nccl": self.role.reported}.get(
            self.known.reader.version_of if self.known else ""
        )
        return version(running) if isinstance(running, str) else ()

    def finding(
        self,
        rule: str,
        severity: Severity,
        text: str,
        advice: str,
        *lines: str,
        cause: str | None = None,
        status: str | None = None,
    ) -> Finding:
        """A finding about this setting; ``lines``: what to set instead."""
        return Finding(
            rule,
            severity,
            f"{self.name}: {text}",
            (self.evidence,),
            (Remedy("your launcher", advice, tuple(filter(None, lines))),),
            cause=cause,
            status=status,
            setting=f"{self.name}={self.value}",
        )


def settings(env: Environment) -> list[Setting]:
    """Every value that acts: the environment's, then those that nccl.conf adds. Roles with the same value,
    reader version and (for interface settings) interfaces are joined."""
    own = [
        Setting(name, value, role, (role.name,), f"environment.roles[{index}].{path}", where)
        for index, role in enumerate(env.roles)
        for name, (value, where, path) in effective(role).items()
    ]
    alike = grouped(
        ((s.name, s.value, s.in_use, str(s.role.interfaces) * s.name.endswith("_IFNAME")), s) for s in own
    )
    return [dataclasses.replace(same[0], who=tuple(s.role.name for s in same)) for same in alike.values()]


def effective(role: Role) -> dict[str, tuple[str, str, str]]:
    """Name -> (value, place where it was set, fact path). The environment wins over nccl.conf, the user's
    nccl.conf over that in /etc (NCCL 2.30.7, param.cc)."""
    acts = {n: (v, role.where.get(n, ""), f"variables.{n}") for n, v in role.variables.items()}
    for path, name, value in conf_lines(role):
        acts.setdefault(name, (value, path, f"conf.{path}.{name}"))
    return acts


def conf_lines(role: Role) -> list[tuple[str, str, str]]:
    """(path, name, value) of every line of the role's NCCL configuration files."""
    return [(path, name, value) for path, lines in role.conf.items() for name, value in lines.items()]
