"""Last week's good run beside the bad one: what became slower, what differs, and which
difference could explain it."""

import dataclasses
import re
import statistics
from collections.abc import Sequence

from nccl_runbook.against.facts import Comparison, Difference, RunProfile, TimeChange
from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.tables import table
from nccl_runbook.causes.variables import variables
from nccl_runbook.core.facts import Gap, counted, grouped, listed
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.report.verdict_sentence import CHANGED

# ratio of medians that somebody would act on; the noise of one set-up on one host was
# below 5 % (4 H200, 2026-11-20)
SLOWER = 1.2
# samples on each side: fewer show no spread; a bandwidth is already a median of repeats
LEAST = {"s": 3, "GB/s": 2}
_TABLE = table("against/profile")
_KINDS: dict[str, str] = _TABLE["kind"]  # the surest first, and why it could explain a change


def compare(good: RunProfile | Gap, bad: RunProfile | Gap, line: str = "") -> Comparison:
    """What differs between two runs. A setting that only one run shows is no difference. ``line``: command
    that runs both set-ups in turn."""
    read = [
        p for p in (good, bad) if isinstance(p, RunProfile) and (p.steps or any(f.lines for f in p.files))
    ]
    if len(read) < 2:
        return Comparison(f"Unknown: the {'bad' if good in read else 'good'} run could not be read.", (), ())
    was, now = read
    kinds = dict.fromkeys([*("init", "step", "sync"), *sorted({*was.times, *now.times})])
    times = [_time(kind, was.times.get(kind, []), now.times.get(kind, [])) for kind in kinds]
    changed = [*_settings(was, now), *_communicators(was, now)]
    # of equal differences on many GPUs or ranks only the first is kept
    alike = grouped(((d.kind, re.sub(r" \d+", "", d.name)), d) for d in changed).values()
    differences = tuple(
        dataclasses.replace(
            same[0], why=same[0].why + (f"; {len(same)} such values differ" if len(same) > 1 else "")
        )
        for same in alike
    )
    shown = tuple(t for t in times if "few" not in t.says or (t.unit == "s" and t.good[0] + t.bad[0]))
    both = [was.settings[kind].keys() & now.settings[kind] for kind in was.settings.keys() & now.settings]
    return _in_order(Comparison("", shown, differences, sum(map(len, both)), good_is=was.problem, line=line))


def explained(compared: Comparison, lead: Finding | None) -> Comparison:
    """The comparison judged for the leading finding of the bad run: a difference could explain it if the
    finding names it, or if its cause depends on it. An established cause excludes the others; otherwise they
    are untested."""
    if not (lead and compared.differences) or (compared.slower and lead.severity is not Severity.BROKEN):
        return compared  # the change of speed is what to explain
    fix = (line for r in lead.remedy for line in (r.text, *r.lines))
    proof = "\n".join([lead.title, *(e.text for e in lead.evidence), *fix])
    touches = next((row["kinds"] for row in _TABLE["touch"] if lead.cause in row["causes"]), None)
    is_sure = lead.status == "established" and touches is not None
    what, name = ("cause", causes()[lead.cause].title) if lead.cause in causes() else ("finding", lead.id)

    def judged(d: Difference) -> Difference:
        if not d.could_explain:
            return d
        if d.kind == "environment" and re.search(rf"\b{re.escape(d.name)}\b", proof):
            return dataclasses.replace(d, why=f"the evidence for the {what}, or its fix, names this setting")
        if f"{d.kind} {d.name}".startswith(touches or ("\n",)):
            return dataclasses.replace(d, why=f"{d.why}, and the {what} depends on this difference")
        why = (
            f"the {what} does not depend on this difference"
            if is_sure
            else f"no evidence links this difference to the {what}"
        )
        return dataclasses.replace(d, could_explain=False, is_tested=is_sure, why=why)

    differences = tuple(map(judged, compared.differences))
    return _in_order(dataclasses.replace(compared, differences=differences, of=f"the {what} ({name})"))


def _time(kind: str, good: list[float], bad: list[float]) -> TimeChange:
    """How one time or bandwidth changed. It became slower or faster only if the medians differ by the factor
    SLOWER and the middle halves of the samples do not overlap."""
    was, now, unit = _spread(good), _spread(bad), "GB/s" if kind.endswith("GB/s") else "s"
    if min(was[0], now[0]) < LEAST[unit]:
        return TimeChange(kind, was, now, "too few samples", unit)
    less, more = (was[1], now[1]) if unit == "s" else (now[1], was[1])
    ratio = more / less if less else float("inf")
    factor, word = (ratio, "slower") if ratio >= 1 or not ratio else (1 / ratio, "faster")
    is_other = factor >= SLOWER and _apart(good, bad)
    return TimeChange(kind, was, now, f"{factor:.1f} times {word}" if is_other else "as before", unit)


def _spread(values: list[float]) -> tuple[int, float, float, float]:
    """(number, median, least, most); zeros without a value."""
    return (
        (len(values), statistics.median(values), min(values), max(values)) if values else (0, 0.0, 0.0, 0.0)
    )


def _apart(one: list[float], other: list[float]) -> bool:  # the middle halves of the two do not overlap
    """Whether the middle halves of the two samples do not overlap."""
    (a, _, b), (c, _, d) = (statistics.quantiles(v, n=4, method="inclusive") for v in (one, other))
    return b < c or d < a


def _settings(good: RunProfile, bad: RunProfile) -> list[Difference]:
    """Every version and setting that differs. A name that only one run shows differs only if the other run
    shows all names of that kind."""
    # who shows every variable that is set leaves out those that were not: records, and logs or scripts
    # beside others of their kind; any other silence is no difference
    alike, changed = good.variables_from == bad.variables_from != [], list[Difference]()
    for kind in _KINDS:
        was, now = good.settings.get(kind, {}), bad.settings.get(kind, {})
        whole = [kind == "environment" and (alike or "record" in p.variables_from) for p in (good, bad)]
        names = [n for n in {**was, **now} if (n in was and n in now) or whole[0 if n in now else 1]]
        changed += [
            _setting(kind, n, was.get(n, []), now.get(n, []))
            for n in sorted(names, key=lambda name: (len(name), name))
            if _differ(was.get(n), now.get(n))
        ]
    return changed


def _differ(was: list[str] | None, now: list[str] | None) -> bool:
    """Whether the values differ. A log names the CUDA of a build (2.27.5+cuda12.9), and a record may not:
    then the part behind + does not count."""
    if not was or not now or all("+" in version for version in (*was, *now)):
        return was != now
    return {version.partition("+")[0] for version in was} != {version.partition("+")[0] for version in now}


def _setting(kind: str, name: str, was: list[str], now: list[str]) -> Difference:
    """The difference, with the reason why it could or could not explain a change."""
    harmless = [
        row["why"] for row in _TABLE["harmless"] if row["kind"] == kind and re.fullmatch(row["name"], name)
    ]
    if kind == "environment" and (name not in variables() or variables()[name].until):
        harmless.append("no known library reads this variable")
    return Difference(
        kind,
        name or "channels",
        _many(was),
        _many(now),
        not harmless,
        harmless[0] if harmless else _KINDS[kind],
    )


def _many(values: list[str]) -> str:
    """The first four values, and the number of the others; "not set" without a value."""
    return listed(values, 4, separator=" and ") or "not set"


def _communicators(good: RunProfile, bad: RunProfile) -> list[Difference]:
    """The number of communicators if one run opened at least twice as many as the other: for each sync if
    both runs timed their syncs, else in all."""
    if not (good.communicators and bad.communicators):
        return []
    per = bool(good.syncs and bad.syncs)
    was, now = (p.communicators / p.syncs if per else p.communicators for p in (good, bad))
    if max(was, now) < 2 * min(was, now):
        return []
    could, name = per and now > was, "communicators opened" + (" per sync" if per else "")
    few = (
        "the bad run opened fewer communicators than the good run"
        if per
        else "no weight sync was timed, so these are totals; perhaps one run only lasted longer"
    )
    return [
        Difference(
            "communicators",
            name,
            f"{was:.3g}",
            f"{now:.3g}",
            could,
            (could and _KINDS["communicators"]) or few,
        )
    ]


def _in_order(compared: Comparison) -> Comparison:
    """The same with its sentence, and with the differences that could explain most first."""
    differences = sorted(
        compared.differences,
        key=lambda d: (not d.could_explain, d.is_tested, [*_KINDS].index(d.kind), d.name),
    )
    return dataclasses.replace(
        compared, differences=tuple(differences), sentence=_sentence(compared, differences)
    )


def _sentence(compared: Comparison, differences: Sequence[Difference]) -> str:
    """What became slower, how many differences could explain it, and whether the good run had a fault."""
    slower = next((t for t in reversed(compared.times) if "slower" in t.says), None)
    head = "The two runs print too few timings to compare. " if compared.times else ""
    if slower:
        head = "{}: {} in the good run, {} in the bad run, {}. ".format(
            slower.kind, *slower.spans, slower.says
        )
    elif any("few" not in t.says for t in compared.times):
        head = "No timing that both runs print became longer. "
    could, many = sum(d.could_explain for d in differences), counted(len(differences), "difference")
    verdict = f"{many} between the two runs; {could} could explain {compared.of or 'a change'}."
    verdict += (
        " Several differences appeared together, so this comparison does not prove which one is the cause."
        if could > 1
        else ""
    )
    if all(d.is_tested and not d.could_explain for d in differences):
        cannot = f" ({many} without an effect)" if differences else ""
        verdict = (
            f"The two runs have {counted(compared.settings, 'setting')} in common, and no difference "
            f"between the runs can explain a change{cannot}."
        )
    if not differences and not compared.settings:
        verdict = "The two runs have no version and no setting in common to compare."
    return (
        head + verdict + (f" The good run itself had a fault: {compared.good_is}" if compared.good_is else "")
    )


def findings(compared: Comparison | None) -> list[Finding]:
    """The comparison as a finding of the step; empty without a comparison."""
    if compared is None:
        return []
    could = [d for d in compared.differences if d.could_explain]
    more = (
        f", and {counted(len(could) - 1, 'other difference')} could also explain the change"
        if len(could) > 1
        else ""
    )
    rows = [
        *(
            (f"{d.name} changed (was {d.good}, now {d.bad}){more}", CHANGED)
            for d in (could[:1] if compared.of else [])
        ),
        *(
            ("{}: {} in the good run, {} in the bad run ({})".format(t.kind, *t.spans, t.says), "both runs")
            for t in compared.times
        ),
        *(
            (f"{d.name}: {d.good} in the good run, {d.bad} in the bad run ({d.why})", "both runs")
            for d in could[:8]
        ),
    ]
    return [
        Finding(
            "run-differs-from-good-run",
            Severity.WARN
            if compared.slower
            else Severity.UNKNOWN
            if compared.sentence.startswith("Unknown")
            else Severity.NOTE,
            compared.sentence,
            tuple(Evidence(*row) for row in rows),
            (
                Remedy(
                    "you",
                    "Run both set-ups alternately to find the setting that makes the difference:",
                    (compared.line,),
                ),
            )
            if compared.line and (could or compared.slower)
            else (),
        )
    ]
