"""How a run was set up and how long its steps took: the facts of one log,
to be laid beside those of another."""

import os
import re
from collections import Counter, defaultdict
from typing import BinaryIO

from nccl_runbook.causes.tables import table
from nccl_runbook.core.redact import Redactor
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.source import Source
from nccl_runbook.logs.sources import read_each, sources
from nccl_runbook.logs.text import Said, pieces, said
from nccl_runbook.triage.facts import RunProfile

MAX_VALUES = 16  # of one setting
MAX_TIMES = 100_000  # of one kind
MAX_KINDS = 200_000  # of templates that tell nothing and are passed over at once
_HEX, _DIGITS = b"0123456789abcdef", b"0123456789"
_UNIT = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_SETTINGS = tuple((row["kind"], re.compile(row["line"])) for row in table("triage/profile")["setting"])
_VIA = re.compile(r" via (?P<via>[A-Za-z]\w*(?:/[\w ()]+)*)")
_COMM = re.compile(
    r"\brank (\d+) n[rR]anks (\d+) cudaDev (\d+)(?: nvmlDev \d+)? busId (\w+)(?: commId "
    r"0x([0-9a-f]+))? - Init COMPLETE"
)
_TIMES = tuple(
    (row["kind"], re.compile(row["line"].replace("<seconds>", table("triage/profile")["number"])))
    for row in table("triage/profile")["time"]
)
_HINT = re.compile(
    rb"(?i)NCCL|torch|sync|step|iter|it/s|s/it|driver|libfabric|vllm|update_weight|weight|refit|export "
)


def collect(paths: list[str] | str, stdin: BinaryIO | None = None, limit: Limit | None = None) -> RunProfile:
    """The profile of these logs. Never raises for what is in them: what could not
    be read says so in ``files``."""
    reader = _Reader()
    return Redactor(os.environ).json(reader.profile(read_each(sources(paths, stdin, limit), reader.read)))


class _Reader:
    """One pass over the texts of a run."""

    def __init__(self) -> None:
        self._silent: set[bytes] = set()
        self._settings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._via: Counter[str] = Counter()
        self._comms: set[str] = set()
        self._devices: dict[str, str] = {}
        self._times: dict[str, list[float]] = defaultdict(list)
        # every rank may print the time of the same sync
        self._source, self._syncs = ("", Counter[tuple[str, int | None]]())

    def read(self, source: Source) -> None:
        self._source = source.name
        for raw in (raw for rows in source.rows() for raw in rows if _HINT.search(raw)):
            key = raw.translate(None, _HEX if b"NCCL INFO" in raw else _DIGITS)
            if (
                key not in self._silent
                and not any([self._line(said(text)) for text in pieces(raw)])
                and len(self._silent) < MAX_KINDS
            ):
                self._silent.add(key)

    def _line(self, who: Said) -> bool:
        """Take in one line; whether it had a setting or a time."""
        text = who.text
        told = [
            (kind, found.groupdict())
            for kind, pattern in _SETTINGS
            for found in [pattern.search(text)]
            if found
        ]
        for kind, groups in told:
            name, value = (
                groups["name"] or groups.get("name2") or "",
                groups["value"] or groups.get("value2") or "",
            )
            values = self._settings[kind][name]
            if value not in values and len(values) < MAX_VALUES:
                values.append(value.strip())
        via = _VIA.search(text) if "Channel" in text or "Ring" in text else None
        if via:
            self._via[re.sub(r"/\d+(?:\(\d+\))?|_v\d+", "", via.group("via"))] += 1
        comm = _COMM.search(text)
        if comm and int(comm.group(2)) > 1:
            self._comms.add(comm.group(5) or text)
            self._devices.setdefault(comm.group(1), f"cudaDev {comm.group(3)} busId {comm.group(4)}")
        return bool(told or via or comm) | self._time(text, who.rank)

    def _time(self, text: str, rank: int | None) -> bool:
        for kind, pattern in _TIMES:
            found = pattern.search(text)
            seconds = _seconds(found.groupdict()) if found else None
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
            dict(self._via.most_common(50)),
            len(self._comms),
            max(self._syncs.values(), default=0),
            self._devices,
            {kind: values for kind, values in self._times.items() if values},
        )


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
