"""Records and raw answers of hosts as flat facts: dotted path -> value as text."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.records import Record, RecordError, load_all
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hosts.facts import HostFacts, Hosts

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
        return "unknown", record.reason or "the look was ended before it saw anything"
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


def read(paths: Iterable[Path], judged: Callable[[Record], tuple[str, str]]) -> Hosts:
    """The records of several hosts. A file that is no record is a Gap; of two records of one step and host
    the later one counts. ``judged``: function that gives a record's status and reason."""
    facts: dict[str, dict[str, str | Gap]] = {}
    sources: dict[str, str] = {}
    machines: dict[str, set[str]] = {}  # host -> its GPUs, which distinguish another machine of that name
    started: dict[tuple[str, str], str] = {}
    unread: dict[str, Gap] = {}
    statuses: dict[str, dict[str, tuple[str, str]]] = {}
    for path in paths:
        try:
            records = load_all(path)
        except RecordError as error:
            unread[str(path)] = Gap("failed", str(error))
            continue
        if not records:
            unread[str(path)] = Gap(
                "absent", f"{path} contains no record: the look ended before its first step"
            )
        for record in records:
            host = host_of(record) or Redactor(os.environ).text(path.stem)
            shown = dict(flat(record.facts, record.step))
            ids = {str(v) for p, v in shown.items() if p.endswith("uuid")}
            other = ids and machines.get(host) and not ids & machines[host]
            if other or host in NO_NAME and sources.get(host, str(path)) != str(path):
                host = f"{host} ({path.name})"
            machines.setdefault(host, set()).update(ids)
            sources.setdefault(host, str(path))
            status = judged(record)
            if started.get((host, record.step), "") <= record.started:
                started[host, record.step] = record.started
                statuses.setdefault(host, {})[record.step] = status
                own = facts.setdefault(host, {})
                for name in [n for n in own if n.startswith(f"{record.step}.")]:
                    del own[name]
                own.update(shown)
    return Hosts({h: HostFacts(h, sources[h], own) for h, own in facts.items()}, unread, judged=statuses)


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
