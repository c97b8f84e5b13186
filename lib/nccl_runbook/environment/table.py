"""Tables of an environment: what is set and who reads it, and which libnccl each process has."""

import dataclasses

from nccl_runbook.causes.variables import unread, variables
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.environment.facts import Environment, Role
from nccl_runbook.report.tables import Cell, Table, titled

LONG = 120


@titled("What is set")
def variables_table(env: Environment) -> Table:
    """One row a variable that is set, with its reader and meaning."""
    roles, others = env.roles, sum(r.others for r in env.roles)
    names = sorted(
        {n for r in roles for n in r.variables}
        | {n for r in roles for lines in r.conf.values() for n in lines}
    )
    rows = [[name, *(Cell(_value(r, name)) for r in roles), *_about(name, roles)] for name in names]
    return Table(
        "",
        ["variable", *(r.name for r in roles), "read by", "what it does"],
        rows,
        (f"Not checked: {counted(others, 'further variable')}. " if others > 0 else "")
        + "A plugin may read names that are not in our table.",
    )


def _value(role, name: str) -> str:
    """What the role has, a long one (NVIDIA_REQUIRE_CUDA has a page of versions) up to LONG characters."""
    value = role.variables.get(name) or next(
        iter([f"{lines[name]} ({path})" for path, lines in role.conf.items() if name in lines]),
        "set, empty" if name in role.variables else "",
    )
    return value if len(value) <= LONG else f"{value[:LONG]} ... ({len(value)} characters)"


def _about(name: str, roles: list[Role]) -> tuple[Cell, str]:
    """Who reads it, and what it does."""
    if known := variables().get(name):
        given = (r.variables.get(name, "") for r in roles)
        other = [f"{v!r} is read as {known.as_read(v)}" for v in given if known.as_read(v) != v.casefold()]
        return Cell(known.reader.name), "; ".join(dict.fromkeys(other)) or known.means
    return (
        (Cell("nobody", "warn"), unread()[name][0])
        if name in unread()
        else (Cell("not in our table", "muted"), "")
    )


@titled("Which libnccl", "host", "libraries")
def libraries_table(env: Environment) -> Table:
    """One row a libnccl or plugin: roles that map it, version, and what wheels record."""
    users = {
        lib.path: ", ".join(
            r.name for r in env.roles if not isinstance(r.mapped, Gap) and lib.path in r.mapped
        )
        for lib in env.host.libraries
    }
    rows = [
        [
            lib.path,
            Cell(users[lib.path], "ok") if users[lib.path] else Cell("nobody", "muted"),
            str(lib.version),
            str(lib.cuda),
            str(lib.sha256)[:16],
            "; ".join(f"{name} (hash {same})" for name, same in lib.wheels.items()) or "no wheel",
        ]
        for lib in env.host.libraries
    ]
    return Table(
        "",
        ["library", "mapped by", "version", "built for CUDA", "sha256", "installed as"],
        rows or [[Cell("none found", "muted"), "", "", "", "", ""]],
    )


@titled("The host", "host")
def host_table(env: Environment) -> Table:
    """Facts about the host of the ranks."""
    host = env.host
    own = [
        (
            f"{field.metadata['shown']}, {role.name}",
            _room(role.shm) if field.name == "shm" else getattr(role, field.name),
        )
        for role in env.roles
        for field in dataclasses.fields(role)
        if "shown" in field.metadata
    ]
    facts = [
        ("name", host.name),
        ("addresses of its name", host.addresses),
        ("RDMA adapters", host.hcas),
        ("IOMMU", host.iommu),
        ("bridges that redirect peer traffic (ACS)", host.acs),
        ("GPU errors in the kernel log", host.xids),
        *own,
    ]
    return Table("", ["what", "seen"], [[what, _cell(value)] for what, value in facts])


def _room(shm: list[int] | Gap) -> str | Gap:
    return shm if isinstance(shm, Gap) else f"{shm[1] >> 20} MiB free of {shm[0] >> 20} MiB"


def _cell(value: object) -> Cell:
    if isinstance(value, Gap):
        return Cell(str(value), "unknown")
    return Cell(", ".join(value) or "none" if isinstance(value, list) else str(value))


def tables(env: Environment) -> list[Table]:
    """The tables of an environment, as the page shows them."""
    return [variables_table(env), libraries_table(env), host_table(env)]
