"""A against B: how large the difference is and how sure, and which setting carries it."""

import dataclasses
import shlex
from collections.abc import Callable, Collection, Sequence

from nccl_runbook.causes.variables import ignored_by_gloo
from nccl_runbook.compare.facts import HIDDEN, NOT_SET, Comparison, Difference, Sample, Tried, Walk
from nccl_runbook.compare.judge_ratio import (
    LEAST_EFFECT,
    Ratio,
    carried,
    median_of,
    names,
    of_arm,
    one_fails,
    ratio,
    share,
)
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity, worst_first
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.libraries import judge_libraries
from nccl_runbook.search.halving import halve

TELLING = 1.25  # an interval that reaches further does not show that there is no difference
UNCLEAR = (0.3, 0.7)  # shares of the effect that are measured again
MOST_REPEATS = 3
ENOUGH_PAIRS = 3  # with two, Student's t has one degree of freedom: its interval says nothing


def walk(c: Comparison, ask: Callable[[Collection[str]], Sample | None]) -> Walk | Gap:
    """From A to B by halving their differences, or a Gap without a measurable effect. ``ask(keys)`` runs A
    with these settings of B and returns None once the budget is spent."""
    name, keys = carried(c), [d.setting for d in c.differences]
    if name is None:
        return Gap("not-run", "no difference to test")
    tried: list[Tried] = []

    def shows(subset: Sequence[str]) -> bool | None:
        runs: list[Sample] = []
        part: float | Gap = Gap("not-run", "budget spent")
        for sample in iter(lambda: ask(subset), None):
            runs.append(sample)
            part = share(c, runs, name)
            if isinstance(part, Gap) or not UNCLEAR[0] < part < UNCLEAR[1] or len(runs) == MOST_REPEATS:
                break
        tried.append(Tried(sorted(subset), part))
        return None if isinstance(part, Gap) else part > 0.5

    if len(keys) == 1:
        return Walk(keys, "", [])
    done = halve(keys, shows)
    last = tried[-1].share if tried else 0.0
    return Walk(
        list(done.guilty),
        last.detail if done.why_not == "unclear" and isinstance(last, Gap) else done.why_not,
        tried,
    )


def judge(c: Comparison | Gap, ranks: Environment | Gap) -> list[Finding]:
    """Findings of one comparison, at least one; empty if none was asked for. ``ranks``: a fresh rank of each
    arm."""
    if isinstance(c, Gap):
        return (
            []
            if c.reason == "absent"
            else [Finding("not-compared", Severity.UNKNOWN, f"A and B were not compared: {c.detail}")]
        )
    ended = (
        [Finding("interrupted", Severity.UNKNOWN, f"{c.stopped} after {len(c.samples)} of {c.wanted} runs")]
        if c.stopped
        else []
    )
    left = (
        [
            Finding(
                "left-as-it-is",
                Severity.NOTE,
                f"not compared: {', '.join(c.left_out)}",
                tuple(Evidence(why, name) for name, why in c.left_out.items()),
            )
        ]
        if c.left_out
        else []
    )
    nothing = ignored_by_gloo(d.setting.rpartition(":")[2] for d in c.differences if c.backend == "gloo")
    return [
        *([Finding("gloo-reads-no-nccl-variable", Severity.UNKNOWN, nothing)] if nothing else []),
        *_settled(c),
        *ended,
        *left,
        *([] if isinstance(ranks, Gap) else _libraries(ranks)),
    ]


def _libraries(ranks: Environment) -> list[Finding]:
    """What is wrong with libnccl within an arm. That A and B have different ones may
    be what is compared: a note."""
    arms = [
        dataclasses.replace(ranks, roles=[r for r in ranks.roles if r.name.split()[0] == arm]) for arm in "AB"
    ]
    faults = [
        f for f in judge_libraries.of_libraries(ranks) if f.severity not in (Severity.OK, Severity.UNKNOWN)
    ]
    meant = () if any(map(judge_libraries.roles_differ, arms)) else (judge_libraries.roles_differ(ranks),)
    return [dataclasses.replace(f, severity=Severity.NOTE, remedy=()) if f in meant else f for f in faults]


def _settled(c: Comparison) -> list[Finding]:
    if not c.differences:
        return [
            Finding("nothing-differs", Severity.UNKNOWN, "A and B have the same settings, so nothing was run")
        ]
    failing = one_fails(c)
    if not failing and not all(s.passed for s in c.samples):
        return [_inconclusive(c)]
    findings = (
        [_of_figure(c, name, r) for name in names(c) if (r := ratio(c, name))]
        if not failing
        else [_failing(c, failing)]
    )
    if not findings and (
        flat := [n for n in names(c) if any(v <= 0 for s in c.samples for v in s.figures.get(n, ()))]
    ):
        return [
            Finding(
                "no-ratio",
                Severity.UNKNOWN,
                f"{', '.join(flat)}: some figures are 0 or less, so no ratio can be computed. Choose a "
                "figure that is above 0",
            )
        ]
    if not findings:
        return [
            Finding(
                "too-few-runs",
                Severity.UNKNOWN,
                f"only {len(c.samples)} of {c.wanted} runs "
                f"{'were done' if c.stopped else 'fitted into the budget'}, which is too few to compare",
            )
        ]
    walked = _walked(c, worst_first(findings)[0].severity)
    fix = next((f.remedy for f in findings if f.remedy), ())
    if fix == (_use("A"),):  # the settings that carry the difference, if they are known
        fix = next((f.remedy for f in walked if f.remedy), fix)
    return [dataclasses.replace(f, remedy=fix if f.remedy else ()) for f in [*findings, *walked]]


def _inconclusive(c: Comparison) -> Finding:
    failed = [s for s in c.samples if not s.passed]
    counts = ", ".join(f"{arm}: {sum(s.arm == arm for s in failed)} of {len(of_arm(c, arm))}" for arm in "AB")
    return Finding(
        "comparison-inconclusive",
        Severity.UNKNOWN,
        f"inconclusive, because some runs failed ({counts})",
        tuple(Evidence(line, f"{failed[0].arm}: {failed[0].ended}") for line in failed[0].last_lines[-4:]),
    )


def _failing(c: Comparison, arm: str) -> Finding:
    other, sample = "B" if arm == "A" else "A", of_arm(c, arm)[0]
    return Finding(
        "arm-fails",
        Severity.WARN,
        f"{arm} fails ({sample.ended}) in all of its {len(of_arm(c, arm))} runs, and {other} passes in "
        f"all of its {len(of_arm(c, other))} runs",
        tuple(Evidence(line, f"{arm}: {sample.ended}") for line in sample.last_lines[-4:]),
        (_use(other),),
    )


def _of_figure(c: Comparison, name: str, r: Ratio) -> Finding:
    medians = " against ".join(f"{median_of(of_arm(c, arm), name):.4g} {c.unit}".strip() for arm in "BA")
    says = f"{name}: the figure of B is {r} times that of A ({medians})"
    missed = max(r.high, 1 / r.low)
    if r.n < ENOUGH_PAIRS and not r.is_sure and not (r.holds_one and missed <= TELLING):
        more = "use --rounds 3" if len(c.samples) == c.wanted else "give the runs more time with --budget"
        return Finding(
            "too-few-runs",
            Severity.UNKNOWN,
            f"too few runs to compare, so {more} ({name}, B against A: {medians})",
        )
    if r.holds_one and missed > TELLING:
        return Finding(
            "no-difference",
            Severity.UNKNOWN,
            "no difference between A and B seen, but with so few runs, a difference by a factor of "
            f"{'more than 100' if missed > 100 else f'up to {missed:.2g}'} could go unnoticed. Use more "
            f"rounds. {says}",
        )
    if r.holds_one:
        return Finding("no-difference", Severity.OK, f"no difference between A and B seen. {says}", _said(c))
    if not r.is_sure:
        return Finding(
            "no-difference",
            Severity.UNKNOWN,
            f"the difference may be due to chance. Use more rounds. {says}",
        )
    worse = (r.value < 1) is c.more_is_better
    if not worse or max(r.value, 1 / r.value) < LEAST_EFFECT:
        return Finding(
            "arms-differ", Severity.NOTE, f"{says}, which is {'slightly worse' if worse else 'better'}"
        )
    return Finding(
        "arms-differ",
        Severity.WARN,
        f"{says}, which is worse",
        _said(c) or (Evidence(c.what, "comparison.samples"),),
        (_use("A"),),
    )


def _said(c: Comparison) -> tuple[Evidence, ...]:
    """What NCCL's log shows of each arm: whether a setting acted."""
    return tuple(Evidence(f"{s.arm}: {', '.join(s.said)}", "NCCL's log") for s in c.warm_up if s.said)


def _use(arm: str) -> Remedy:
    return Remedy(
        "you", f"Use set-up {arm}. The table of differences shows its value of each setting that differs."
    )


def _walked(c: Comparison, severity: Severity) -> list[Finding]:
    if isinstance(c.walk, Gap):
        return []
    rows = [d for d in c.differences if d.setting in c.walk.named]
    shares = [
        str(t.share) if isinstance(t.share, Gap) else f"{t.share:.0%} of the effect" for t in c.walk.tried
    ]
    evidence = tuple(
        Evidence(f"with {', '.join(t.keys)} as in B: {s}", "comparison.walk")
        for t, s in zip(c.walk.tried, shares)
    )
    if c.walk.why_not:
        return [
            Finding(
                "effect-not-named",
                Severity.UNKNOWN,
                f"{c.walk.why_not}: after {len(c.walk.tried)} tested combinations, one or more of "
                f"these settings make the difference: {', '.join(c.walk.named)}",
                evidence,
            )
        ]
    says = " and ".join(f"{d.setting} ({d.a} in A, {d.b} in B)" for d in rows)
    also = (
        f"; the {len(c.differences) - len(rows)} other differences had no effect in this test"
        if len(c.differences) > len(rows)
        else ""
    )
    carry = "makes" if len(rows) == 1 else "together make"
    how = (
        f"{carry} the difference, as {len(c.walk.tried)} tests with some of the settings showed"
        if c.walk.tried
        else "is the only setting that differs"
    )
    return [
        Finding(
            "effect-named",
            severity,
            f"{says} {how}{also}",
            evidence,
            (Remedy("your launcher", "Use the value from set-up A:", tuple(map(_as_in_a, rows))),),
        )
    ]


def _as_in_a(d: Difference) -> str:
    role, _, name = d.setting.rpartition(":")
    line = (
        f"unset {name}"
        if d.a == NOT_SET
        else f"# {name}: its value in A"
        if d.a == HIDDEN
        else f"export {name}={shlex.quote(d.a)}"
    )
    return f"{line}  # {role} only" if role else line
