"""Records and raw answers of hosts as flat facts: dotted path -> value as text."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nccl_runbook.core.facts import Gap, grouped
from nccl_runbook.core.records import Record, RecordError, load_all
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hosts.facts import Ended, HostFacts, Hosts

NO_NAME = ("localhost", "localhost.localdomain")
MOST_CHARACTERS = 400  # of one value; a stack or a log is no fact to compare


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str | Gap]]:
    """(path, value) of every scalar in ``value``. A world becomes whether it passed, a list of scalars one
    text."""
    if isinstance(value, Gap):
        yield path, value
    elif isinstance(value, dict):
        if {*value} == {"reason", "detail"}:
            yield path, Gap(value["reason"], str(value["detail"]))
        elif "ranks" in value and "request" in value:
            name = str(value["request"].get("name", "")) if isinstance(value["request"], dict) else ""
            ends = [(r.get("outcome"), r.get("code")) if isinstance(r, dict) else "" for r in value["ranks"]]
            yield f"world.{name}", "passed" if all(end == ("exited", 0) for end in ends) else "failed"
        else:
            for key, part in value.items():
                yield from flat(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        yield from _listed(value, path)
    else:
        yield path, sys.intern(str(value)[:MOST_CHARACTERS])


def _listed(value: list[Any], path: str) -> Iterator[tuple[str, str | Gap]]:
    if all(not isinstance(part, (dict, list)) for part in value):
        yield path, sys.intern(", ".join(sorted(map(str, value)))[:MOST_CHARACTERS])
        return
    yield f"{path}.count", str(len(value))
    # roles have no order
    roles = [p["name"] for p in value if isinstance(p, dict) and p.get("name")] * path.endswith("roles")
    for number, part in enumerate(value):
        name = part.get("path") if isinstance(part, dict) else None
        number = roles[number] if len({*roles}) == len(value) else number
        yield from flat(part, f"{path}.{str(name).replace('.', '_')}" if name else f"{path}[{number}]")


def unjudged(record: Record) -> tuple[str, str]:
    """(status, reason) of a record without a judgement: broken if a world failed, unknown if nothing was
    seen, else ok."""
    facts = dict(flat(record.facts))
    wrong = [
        p for p, v in facts.items() if p.endswith(".outcome") and v in ("wrong values", "hung", "failed")
    ]
    if wrong:
        return "broken", f"{wrong[0]}: {facts[wrong[0]]}"
    if all(isinstance(v, Gap) for v in facts.values()):
        return "unknown", record.reason or "nccl-look was stopped before it recorded anything"
    return "ok", ""


def host_of(record: Record) -> str:
    """Host that the record comes from, empty if unknown."""
    for part in ("environment", "live"):
        fact = record.facts.get(part)
        if isinstance(fact, dict):
            inner = fact.get("host")
            name = inner.get("name") if isinstance(inner, dict) else inner
            if isinstance(name, str) and name and not record.judged.host:
                return name
    return record.judged.host


@dataclasses.dataclass
class _Machine:
    """One of the machines of a name: ``host``, what it is called; ``gpus``: their UUIDs."""

    host: str
    gpus: set[str]
    files: set[Path]


def read(paths: Iterable[Path], judged: Callable[[Record], tuple[str, str]]) -> Hosts:
    """The records of several hosts. A file that is no record is a Gap; of two records of one step and host
    the later one counts. ``judged``: function that gives a record's status and reason."""
    facts: dict[str, dict[str, str | Gap]] = {}
    machines: dict[str, list[_Machine]] = {}
    sources: dict[str, str] = {}
    ended: dict[tuple[str, str], list[Ended]] = {}
    unread: dict[str, Gap] = {}
    for path in paths:
        try:
            records = load_all(path)
        except RecordError as error:
            unread[str(path)] = Gap("failed", str(error))
            continue
        if not records:
            unread[str(path)] = Gap(
                "absent", f"{path} contains no record, because nccl-look ended before its first step"
            )
        for record in records:
            name = host_of(record) or Redactor(os.environ).text(path.stem)
            shown = dict(flat(record.facts, record.step))
            gpus = {str(v) for p, v in shown.items() if p.endswith("uuid")}
            host = _machine(machines.setdefault(name, []), name, path, gpus).host
            sources.setdefault(host, str(path))
            own = ended.setdefault((host, record.step), [])
            own.append(Ended(record.started, *judged(record), str(path)))
            own.sort(key=lambda one: one.started)
            if own[-1].path == str(path):
                theirs = facts.setdefault(host, {})
                for fact in [fact for fact in theirs if fact.startswith(f"{record.step}.")]:
                    del theirs[fact]
                theirs.update(shown)
    by_host = grouped((host, (step, own[-1])) for (host, step), own in ended.items())
    statuses = {
        host: {step: (last.status, last.reason) for step, last in steps} for host, steps in by_host.items()
    }
    answered = {host: HostFacts(host, sources[host], own) for host, own in facts.items()}
    return Hosts(answered, unread, judged=statuses, records=ended)


def _machine(known: list[_Machine], name: str, path: Path, gpus: set[str]) -> _Machine:
    """The machine of this name that left a record, which is added to ``known`` if it is new. Machines of one
    name have different GPUs; records without GPUs belong to that of their folder. Under a name that is
    nobody's, each file is a machine."""
    same = [
        one
        for one in known
        if not (gpus and one.gpus and not gpus & one.gpus) and (name not in NO_NAME or path in one.files)
    ]
    near = [one for one in same if path.parent in {file.parent for file in one.files}]
    if same:
        machine = (near or same)[0]
    else:
        machine = _Machine(_free(known, name, path), set(), set())
        known.append(machine)
    machine.gpus.update(gpus)
    machine.files.add(path)
    return machine


def _free(known: list[_Machine], name: str, path: Path) -> str:
    """The name, or with as much of the path as no other machine of this name has."""
    ends = ["/".join(path.parts[-depth:]) for depth in range(1, len(path.parts) + 1)]
    names = [name, *(f"{name} ({end})" for end in [*ends, f"{path}, {len(known) + 1}"])]
    taken = {one.host for one in known}
    return next(free for free in names if free not in taken)


def several_hosts(paths: Iterable[Path]) -> bool:
    """Whether these files hold records of one step from several hosts (`run` judges one machine). Unreadable
    files do not count."""
    hosts: dict[str, set[str]] = {}
    for path in paths:
        try:
            for record in load_all(path):
                hosts.setdefault(record.step, set()).add(host_of(record))
        except RecordError:  # `run` and `hosts` each report it in their own way
            continue
    return any(len(names) > 1 for names in hosts.values())
