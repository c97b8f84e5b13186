"""Last week's good run beside the bad one: what became slower, what differs, and which
difference could explain it."""

import dataclasses
import statistics
from collections.abc import Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.causes.variables import variables
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.triage.facts import RunProfile

# ratio of medians that somebody would act on; the noise of one set-up on one host was
# below 5 % (4 H200, 2026-11-20)
SLOWER = 1.2
LEAST = 3  # samples on each side: with fewer nobody knows the spread
_KINDS: dict[str, str] = table("triage/profile")[
    "kind"
]  # the surest first, and why it could explain a change
_HARMLESS = {
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_TIMESTAMP_FORMAT",
    "NCCL_COMM_ID",
}
# 4 H200, torch 2.11, NCCL 2.28.9, 2026-11-20 (measured)
_LOGGING = "it only changes the log: a sync of 15.2 GB took 45.3 ms with and without NCCL_DEBUG=INFO"


@dataclasses.dataclass(frozen=True)
class TimeChange:
    """One kind of time in both runs. ``good`` and ``bad``: (n, median, least, most) in seconds,
    n 0 where none was printed."""

    kind: str
    good: tuple[int, float, float, float]
    bad: tuple[int, float, float, float]
    says: str


@dataclasses.dataclass(frozen=True)
class Difference:
    """Something that is not the same in both runs. ``could_explain``: whether it could
    be why; ``why`` in words."""

    kind: str
    name: str
    good: str
    bad: str
    could_explain: bool
    why: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``sentence`` first; then the times, and the differences, most telling first."""

    sentence: str
    times: tuple[TimeChange, ...]
    differences: tuple[Difference, ...]

    @property
    def slower(self) -> bool:
        """Whether any kind of time became slower, beyond its spread."""
        return any("slower" in t.says for t in self.times)


def compare(good: RunProfile, bad: RunProfile) -> Comparison:
    """What differs between two runs' logs. Where only one of them printed a thing,
    it is no difference: silence says nothing."""
    times = tuple(
        _time(kind, good, bad)
        for kind in ("init", "step", "sync")
        if good.times.get(kind) or bad.times.get(kind)
    )
    differences = sorted(
        [*_settings(good, bad), *_communicators(good, bad), *_devices(good, bad)],
        key=lambda d: (not d.could_explain, [*_KINDS].index(d.kind), d.name),
    )
    return Comparison(_sentence(good, bad, times, differences), times, tuple(differences))


def _time(kind: str, good: RunProfile, bad: RunProfile) -> TimeChange:
    was, now = _spread(good.times.get(kind, [])), _spread(bad.times.get(kind, []))
    if min(was[0], now[0]) < LEAST:
        return TimeChange(kind, was, now, "too few samples")
    ratio, apart = now[1] / was[1] if was[1] else float("inf"), _apart(good.times[kind], bad.times[kind])
    if ratio >= SLOWER and apart:
        return TimeChange(kind, was, now, f"{ratio:.1f} times slower")
    return TimeChange(
        kind,
        was,
        now,
        f"{1 / ratio:.1f} times faster" if ratio and 1 / ratio >= SLOWER and apart else "as before",
    )


def _spread(values: list[float]) -> tuple[int, float, float, float]:
    return (
        (len(values), statistics.median(values), min(values), max(values)) if values else (0, 0.0, 0.0, 0.0)
    )


def _apart(one: list[float], other: list[float]) -> bool:
    """The middle halves of the two do not overlap."""
    (a, _, b), (c, _, d) = (statistics.quantiles(v, n=4, method="inclusive") for v in (one, other))
    return b < c or d < a


def _settings(good: RunProfile, bad: RunProfile) -> list[Difference]:
    found = []
    for kind in ("version", "environment", "plugin", "network", "channels", "transport"):
        was, now = _of_kind(kind, good), _of_kind(kind, bad)
        # NCCL prints each variable that it reads: one that only one run names was not set in the
        # other, if that one names any
        names = sorted(
            was.keys() & now.keys() if kind != "environment" or not (was and now) else was.keys() | now.keys()
        )
        found += [
            _setting(kind, n, was.get(n, []), now.get(n, [])) for n in names if was.get(n) != now.get(n)
        ]
    return found


def _of_kind(kind: str, profile: RunProfile) -> dict[str, list[str]]:
    """Of transports only which: how many channels depends on how often communicators were opened."""
    return (
        {"transports": sorted(profile.transports)}
        if kind == "transport" and profile.transports
        else profile.settings.get(kind, {})
    )


def _setting(kind: str, name: str, was: list[str], now: list[str]) -> Difference:
    could_not = ""
    if name in _HARMLESS and kind == "environment":
        could_not = _LOGGING
    elif kind == "environment" and (name not in variables() or variables()[name].until):
        could_not = "no known library reads it"
    return Difference(
        kind, name or "channels", _many(was), _many(now), not could_not, could_not or _KINDS[kind]
    )


def _many(values: list[str]) -> str:
    return (
        " and ".join(values[:4]) + (f" and {len(values) - 4} more" if len(values) > 4 else "")
        if values
        else "not set"
    )


def _communicators(good: RunProfile, bad: RunProfile) -> list[Difference]:
    """Per sync where both timed their syncs, else in all."""
    if not (good.communicators and bad.communicators):
        return []
    per = bool(good.syncs and bad.syncs)
    was, now = (p.communicators / p.syncs if per else p.communicators for p in (good, bad))
    if max(was, now) < 2 * min(was, now):
        return []
    could = per and now > was
    harmless = (
        "fewer than before" if per else "without timed syncs in both runs, only their length may differ"
    )
    why = _KINDS["communicators"] if could else harmless
    return [
        Difference(
            "communicators",
            "communicators opened" + (" per sync" if per else ""),
            f"{was:.3g}",
            f"{now:.3g}",
            could,
            why,
        )
    ]


def _devices(good: RunProfile, bad: RunProfile) -> list[Difference]:
    apart = [
        rank
        for rank in sorted(good.devices.keys() & bad.devices.keys(), key=int)
        if good.devices[rank] != bad.devices[rank]
    ]
    why = _KINDS["devices"] + (f"; {len(apart)} ranks differ" if len(apart) > 1 else "")
    return [
        Difference("devices", f"device of rank {rank}", good.devices[rank], bad.devices[rank], True, why)
        for rank in apart[:1]
    ]


def _sentence(
    good: RunProfile, bad: RunProfile, times: tuple[TimeChange, ...], differences: list[Difference]
) -> str:
    for profile, name in ((good, "good"), (bad, "bad")):
        if not any(f.lines for f in profile.files):
            return f"Unknown: the log of the {name} run could not be read."
    slower = next((t for t in reversed(times) if "slower" in t.says), None)
    head = (
        "No time that both runs print became slower. "
        if any("few" not in t.says for t in times)
        else "Too few times are in both runs. "
    )
    if slower:
        head = f"{slower.kind}: {span(slower.good)} then, {span(slower.bad)} now, {slower.says}. "
    could = sum(d.could_explain for d in differences)
    if not differences:
        return head + "Nothing that both logs print is different."
    tail = " They changed at the same time, so this comparison proves none of them." if could > 1 else ""
    return f"{head}{counted(len(differences), 'difference')}, of which {could} could explain a change.{tail}"


def span(spread: tuple[int, float, float, float]) -> str:
    """In words: "22.5 s (n 27, 21.0 to 24.0)"."""
    n, median, least, most = spread
    return f"{median:.3g} s (n {n}, {least:.3g} to {most:.3g})" if n else "none printed"


def finding(comparison: Comparison, good: str, bad: str) -> Finding:
    """The comparison as a finding of the step. ``good`` and ``bad``: the logs' names,
    for the line that tests it."""
    evidence = tuple(
        Evidence(f"{t.kind}: {span(t.good)} then, {span(t.bad)} now: {t.says}", "both logs")
        for t in comparison.times
    )
    differs = tuple(
        Evidence(f"{d.name}: {d.good} then, {d.bad} now: {d.why}", "both logs")
        for d in comparison.differences
        if d.could_explain
    )
    remedy = Remedy(
        "you",
        "Run both set-ups in turn, and find the setting that makes the difference:",
        (f"nccl-runbook ab log:{good} log:{bad}",),
    )
    severity = (
        Severity.WARN
        if comparison.slower
        else Severity.UNKNOWN
        if comparison.sentence.startswith("Unknown")
        else Severity.NOTE
    )
    return Finding(
        "run-differs-from-good-run",
        severity,
        comparison.sentence,
        (*evidence, *differs[:8]),
        (remedy,) if differs or comparison.slower else (),
    )


def beside(told: Sequence[Finding], compared: Comparison | None, good: str, bad: str) -> list[Finding]:
    """Those of the log alone and the comparison's. Nothing is called harmless of a run that became slower."""
    harmless = ("benign", "no-cause-in-log") if compared and compared.slower else ()
    kept = [f for f in told if f.cause not in harmless and f.id not in harmless]
    return [*kept, finding(compared, good, bad)] if compared else kept


def both(good: RunProfile | Gap, bad: RunProfile | Gap) -> Comparison | None:
    """The comparison; None if no good run was named, or an old record holds none."""
    return (
        compare(good, bad)
        if isinstance(good, RunProfile) and isinstance(bad, RunProfile) and good.files
        else None
    )
