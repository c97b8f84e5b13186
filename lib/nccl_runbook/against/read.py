"""How a run was set up and how long its steps took: the facts of its logs and records, to be laid beside
those of another."""

import dataclasses
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from nccl_runbook.against.facts import RunProfile
from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import to_json, values_at
from nccl_runbook.core.facts_world import World
from nccl_runbook.core.records import Record, RecordError, read
from nccl_runbook.core.redact import Redactor
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.source import Source
from nccl_runbook.logs.sources import read_each, sources
from nccl_runbook.logs.text import Said, pieces, who_says

MAX_VALUES = 16  # of one setting
MAX_TIMES = 100_000  # of one kind
MAX_KINDS = 200_000  # templates without information, skipped at once
_HEX, _DIGITS = b"0123456789abcdef", b"0123456789"
_UNIT = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_TABLE = table("against/profile")
_SETTINGS = tuple((row["kind"], re.compile(row["line"])) for row in _TABLE["setting"])
_VIA = re.compile(r" via (?P<via>[A-Za-z]\w*(?:/[\w ()]+)*)")
_COMM = re.compile(
    r"\brank (\d+) n[rR]anks (\d+) cudaDev (\d+)(?: nvmlDev \d+)? busId (\w+)(?: commId "
    r"0x([0-9a-f]+))? - Init COMPLETE"
)
_TIMES = tuple(
    (row["kind"], re.compile(row["line"].replace("<seconds>", _TABLE["number"]))) for row in _TABLE["time"]
)
_HINT = re.compile(
    rb"(?i)NCCL|torch|sync|step|iter|it/s|s/it|driver|libfabric|vllm|update_weight|weight|refit|export "
)


def collect(
    paths: list[str] | str,
    stdin: BinaryIO | None = None,
    limit: Limit | None = None,
    records: Sequence[Record] = (),
) -> RunProfile:
    """The profile of these logs and records. Never raises for their content: ``files`` says what could not
    be read."""
    reader = _Reader()
    for record in records:
        reader.take(record)
    return Redactor(os.environ).json(reader.profile(read_each(sources(paths, stdin, limit), reader.read)))


@dataclasses.dataclass(eq=False)
class _Reader:
    """One pass over the records and the texts of a run."""

    _silent: set[bytes] = dataclasses.field(default_factory=set)
    _settings: dict[str, dict[str, list[str]]] = dataclasses.field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _comms: set[str] = dataclasses.field(default_factory=set)
    _times: dict[str, list[float]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    _steps: list[str] = dataclasses.field(default_factory=list)
    _variables_from: set[str] = dataclasses.field(default_factory=set)
    _source: str = ""
    # every rank may print the time of the same sync
    _syncs: Counter[tuple[str, int | None]] = dataclasses.field(default_factory=Counter)

    def take(self, record: Record) -> None:
        """Take in the facts of a record; without a GPU its figures are those of a rehearsal."""
        facts, on_gpus = {"judged": to_json(record.judged), **record.facts}, bool(record.judged.gpus)
        for row in _TABLE["fact"]:
            for beside, value in values_at(facts, row["path"].split(".")):
                name = " ".join(
                    filter(None, [row.get("name"), *(_text(beside.get(k)) for k in row.get("by", ()))])
                )
                if row["kind"] != "time":
                    self._add(row["kind"], name, _text(value))
                elif on_gpus and isinstance(value, float):
                    self._times[name].append(value)
        self._steps.append(record.step)
        if any(values_at(facts, ["environment", "roles", "*", "variables"])):
            self._variables_from.add("script" if record.step == "script" else "record")
        for world in _worlds(record.facts if on_gpus else {}):
            name = world.request.name.removesuffix(" again")  # the control, before and after the others
            for op in {event["op"] for rank in world.ranks for event in rank.named("op")}:
                self._times[f"{op}, {name}, GB/s"].extend(filter(None, [world.busbw_gb_per_s(op)]))
            if isinstance(world.transports, dict):
                self._add("transport", name, ", ".join(sorted(world.transports)))

    def _add(self, kind: str, name: str, value: str) -> None:
        values = self._settings[kind][name] if value else []
        if value not in values and len(values) < MAX_VALUES:
            values.append(value)

    def read(self, source: Source) -> None:
        self._source = source.name
        for raw in (raw for rows in source.rows() for raw in rows if _HINT.search(raw)):
            key = raw.translate(None, _HEX if b"NCCL INFO" in raw else _DIGITS)
            if (
                key not in self._silent
                and not any([self._line(who_says(text)) for text in pieces(raw)])
                and len(self._silent) < MAX_KINDS
            ):
                self._silent.add(key)

    def _line(self, who: Said) -> bool:
        """Take in one line; whether it had a setting or a time."""
        text = who.text
        settings = [
            (kind, match.groupdict()) for kind, pattern in _SETTINGS if (match := pattern.search(text))
        ]
        for kind, groups in settings:
            name, value = (
                groups["name"] or groups.get("name2") or "",
                groups["value"] or groups.get("value2") or "",
            )
            self._add(kind, name, value.strip())
            self._variables_from.update(["log"] if kind == "environment" else [])
        via = _VIA.search(text) if "Channel" in text or "Ring" in text else None
        if via:
            self._add("transport", "transports", re.sub(r"/\d+(?:\(\d+\))?|_v\d+", "", via.group("via")))
        comm = _COMM.search(text)
        if comm and int(comm.group(2)) > 1:
            self._comms.add(comm.group(5) or text)
            self._add(
                "devices", f"device of rank {comm.group(1)}", f"cudaDev {comm.group(3)} busId {comm.group(4)}"
            )
        return self._time(text, who.rank) or bool(settings or via or comm)

    def _time(self, text: str, rank: int | None) -> bool:
        for kind, pattern in _TIMES:
            match = pattern.search(text)
            seconds = _seconds(match.groupdict()) if match else None
            if seconds is not None and len(self._times[kind]) < MAX_TIMES:
                self._times[kind].append(seconds)
                self._syncs[self._source, rank] += kind == "sync"
                return True
        return False

    def profile(self, files: list) -> RunProfile:
        """Everything together."""
        return RunProfile(
            files,
            {
                kind: {name: sorted(values) for name, values in sorted(by.items())}
                for kind, by in self._settings.items()
            },
            communicators=len(self._comms),
            syncs=max(self._syncs.values(), default=0),
            times={kind: values for kind, values in self._times.items() if values},
            steps=sorted(set(self._steps)),
            variables_from=sorted(self._variables_from),
        )


# a value as it is shown; "" for what could not be seen, and for objects
def _text(value: Any) -> str:
    if not isinstance(value, list):
        return "" if value is None or isinstance(value, dict) else str(value)
    up = f"{sum(part is True for part in value)} of {len(value)} up"
    return up if value and isinstance(value[0], bool) else ", ".join(sorted(map(_text, value))) or "none"


def _worlds(facts: Any) -> Iterator[World]:
    """The worlds among these facts that can be read, and whose figures can be computed."""
    if isinstance(facts, dict) and facts.keys() >= {"request", "ranks", "transports"}:
        try:
            world = read(World, facts)
            # only to see whether a figure raises
            [world.busbw_by_size(event["op"]) for rank in world.ranks for event in rank.named("op")]
        except (RecordError, LookupError, TypeError, ValueError, ArithmeticError):
            return  # a record from elsewhere: what is no world has nothing to compare
        yield world
    elif isinstance(facts, (dict, list)):
        for part in facts.values() if isinstance(facts, dict) else facts:
            yield from _worlds(part)


def _seconds(groups: dict[str, str | None]) -> float | None:
    if groups.get("per"):
        return 1 / float(groups["per"]) if float(groups["per"]) else None
    unit = groups.get("unit") or groups.get("paren") or groups.get("paren2") or "s"
    number = groups.get("number") or groups.get("number2")
    return (
        float(number) * _UNIT.get("ms" if unit.lower() == "ms" else unit[0].lower(), 1.0)
        if number and number.count(".") < 2
        else None
    )
