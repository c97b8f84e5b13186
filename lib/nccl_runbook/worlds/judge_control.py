"""The outcome of an arm, in words; and what is shown when the control itself fails."""

import dataclasses
import re
from collections.abc import Iterable

from nccl_runbook.causes.causes import NOT_SEEN, causes, remedies
from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.facts_world import World
from nccl_runbook.core.findings import Evidence, Finding, Remedy
from nccl_runbook.worlds.facts import Arm, Arms, Guilty, Trial
from nccl_runbook.worlds.judge_arms import Decision, Outcomes

_DID = {"wrong values": "gave wrong values", "lost": "was lost"}  # how a world ended, as a verb
# proven only by the variable's own log line: the transport has the same name with and without
_BY_LOG_LINE = ("NCCL_CUMEM_HOST_ENABLE", "NCCL_SOCKET_IFNAME")


def used(world: World, prefixes: tuple[str, ...] = ("",)) -> int | None:
    """Connections or collectives in NCCL's log whose name begins with one of ``prefixes``; None without a
    log."""
    if isinstance(world.transports, Gap):
        return None
    return sum(n for name, n in {**world.transports, **world.algorithms}.items() if name.startswith(prefixes))


def acted(arm: Arm, world: World, control: Trial) -> bool | None:
    """Whether NCCL's log of ``world`` proves that the arm acted there: what it removes was used in the
    control and is gone. None: no proof."""
    settings, acts_on = world.set_by_environment, tuple(arm.acts_on)
    if not acts_on or any(name in _BY_LOG_LINE for name in arm.env):
        return None if isinstance(settings, Gap) else all(f"{k}={v}" in settings for k, v in arm.env.items())
    before, after = used(control.world, acts_on), used(world, acts_on)
    if before is None or after is None or not used(world):
        return None
    if "NCCL_P2P_LEVEL" in arm.env:  # narrows: less of it, not none
        return after < before if used(control.world) else None
    # of a control that failed before it connected only what the arm left can be seen
    return not after and (before > 0 or not control.world.transports)


def outcome(arm: Arm, control: Trial) -> str:
    """ "pass", "no effect", "no proof", "not run", "passed 1 of 2", "passed 1 of 1" if two are needed, else
    how it failed."""
    if isinstance(arm.trial, Gap):
        return "not run"
    world, again = arm.trial.world, arm.trial.again
    if not world.passed:
        return "passed 1 of 2" if again is not None and again.passed else world.ended
    # beside a failing control a pass is run again, and timed
    proof, enough = acted(arm, world, control), control.passed or world.request.timed
    return ("pass" if enough else "passed 1 of 1") if proof else "no effect" if proof is False else "no proof"


def in_words(arms: Arms, message: bool) -> Outcomes:
    """The outcomes in the terms of the decision. ``message``: whether the control's own errors name the
    cause."""
    control, again, clean = arms.control, arms.control.again, arms.clean
    failed = "once of once" if again is None else "once of twice" if again.passed else control.world.ended
    return Outcomes(
        control="lost" if control.world.ended == "lost" else "pass" if control.passed else failed,
        after=_word(arms.control_after),
        arms={
            a.name: outcome(a, control)
            for a in arms.arms
            if not isinstance(a.trial, Gap) or a.trial.reason == "not-run"
        },
        clean="fail"
        if "no variable" in getattr(clean, "detail", "")
        else _word(clean if isinstance(clean, Gap) else clean.trial),
        settled=isinstance(arms.guilty, Guilty) and not arms.guilty.why_not,
        connected=bool(used(control.world)),
        message=message,
    )


def _word(trial: Trial | Gap) -> str:
    """How the control at the end, or *clean*, ended."""
    if isinstance(trial, Gap) or trial.world.ended == "lost":
        return "not run"
    if trial.passed:
        return "pass"
    return "once of twice" if trial.again else "fail"


def _unset(text: str, names: Iterable[str]) -> Remedy:
    return Remedy("your launcher", text, (f"unset {' '.join(names)}",))


def _price(arm: Arm, control: Trial) -> str:
    before, after = (
        t.world.busbw_gb_per_s("all_reduce") if isinstance(t, Trial) else None for t in (control, arm.trial)
    )
    slower = (
        f", {before / after:.1f} times slower than with your settings"
        if before and after and before > after
        else ""
    )
    return f"{arm.name}: {after:.1f} GB/s{slower}" if after else f"{arm.name}: passed"


def _names(guilty: Guilty) -> str:
    return ", ".join(f"{k}={v}" for k, v in guilty.variables.items())


def _proof(guilty: Guilty) -> tuple[Evidence, ...]:
    """How the variables were found."""
    n, it = len(guilty.variables), "it" if len(guilty.variables) == 1 else "them"
    how = (
        f"undecided after {guilty.asked} tests ({guilty.why_not})"
        if guilty.why_not
        else f"the test fails if only {'it is' if n == 1 else 'they are'} set, and passes without {it}"
        + (f", with the other {counted(guilty.among - n, 'variable')} set" if guilty.among > n else "")
    )
    return (
        Evidence(
            f"{_names(guilty)}: {n} of {guilty.among} variables, {how}",
            "tests with half of the variables, each in new processes",
        ),
    )


def control_fails(arms: Arms, decision: Decision, fault: Finding) -> Finding:
    """The finding for a control that fails, with the evidence that the arms add: a proven change, what the
    ranks reported themselves, or that it is not the transport or nothing can be concluded."""
    tried = {
        a.name: Evidence(f"{a.name}: {outcome(a, arms.control)}", "table below")
        for a in arms.arms
        if isinstance(a.trial, Trial)
    }
    decisive = [tried.pop(decision.arm)] if decision.arm in tried else []
    evidence = (
        *(_proof(arms.guilty) if isinstance(arms.guilty, Guilty) else ()),
        *decisive,
        *fault.evidence,
        *tried.values(),
        *(
            []
            if arms.arms
            else [
                Evidence("transports were not compared, because a comparison needs two ranks", "table below")
            ]
        ),
        *(
            [NOT_SEEN]
            # the first four were planted or met on GPUs (tests/evidence.jsonl): NCCL 2.28.9, 4 H200
            if decision.kind
            not in ("healthy", "explained", "variable", "p2p", "inconclusive", "not-the-transport")
            else []
        ),
    )
    if decision.kind == "variable":
        return _variable(arms, decision, fault, evidence)
    cure = next((a for a in arms.arms if a.name == decision.arm), None)
    workaround = (_meanwhile(cure, arms),) if cure else ()
    if decision.kind == "explained" or cure is None:
        kind = {"explained": "", "not-the-transport": "not the transport: "}.get(
            decision.kind, "inconclusive: "
        )
        words = f"{kind}{decision.why}".replace("inconclusive: intermittent", "intermittent")
        evidence = (*evidence, Evidence(words, "table below"))
        return dataclasses.replace(fault, evidence=evidence, remedy=(*fault.remedy, *workaround))
    title = (
        f"the test {_DID.get(arms.control.world.ended, arms.control.world.ended)} with your settings, "
        f"and passed with {cure.name}"
        f"{'; no single transport explains the failure' if decision.kind == 'sockets' else ''}"
    )
    remedy = (*remedies(causes().get(decision.cause or ""), decision.status), *workaround)
    return Finding(
        "transport-at-fault",
        fault.severity,
        title,
        evidence,
        remedy,
        cause=decision.cause,
        status=decision.status,
    )


def _meanwhile(arm: Arm, arms: Arms) -> Remedy:
    # lo reaches no other host
    here = ", on this host only:" if arm.env.get("NCCL_SOCKET_IFNAME") == "lo" else ":"
    return Remedy(
        "you",
        f"Workaround until the cause is fixed{here} run with {arm.name} ({_price(arm, arms.control)}):",
        tuple(f"export {k}={v}" for k, v in arm.env.items()),
    )


def _variable(arms: Arms, decision: Decision, fault: Finding, evidence: tuple[Evidence, ...]) -> Finding:
    """A variable of the environment is to blame: proven by halving, or at least that the same passes without
    all of them."""
    guilty = arms.guilty if isinstance(arms.guilty, Guilty) else Guilty({}, 0, 0, "not tried")
    settled = decision.status == "established"
    # confounded: others do it too
    names = (
        arms.clean.env
        if isinstance(arms.clean, Arm) and guilty.why_not in ("confounded", "not tried")
        else guilty.variables
    )
    named = [
        cause
        for k in names
        for pattern, cause in table("environment/environment")["causes"].items()
        if re.fullmatch(pattern, k)
    ]
    by_message = [fault.cause] if fault.status == "established" else []
    cause_id = (by_message or named or [decision.cause])[0] if settled else decision.cause
    left = (
        f"{guilty.why_not}, with {len(names)} possible variables: {', '.join(names)}"
        if "budget" in guilty.why_not
        else f"which of {len(names)} variables is at fault is not known: {guilty.why_not}"
    )
    world, it = arms.control.world, "it" if len(names) == 1 else "them"
    effect = _DID.get(world.ended, world.ended)
    ranks = counted(world.request.world_size, "rank") + (" on the CPU" if arms.backend == "gloo" else "")
    title = (
        f"{_names(guilty)}: {ranks} {effect} with {it}, and passed without {it}"
        if settled
        else f"the test {effect} with your settings, and passed without the variables of your environment "
        f"that may affect NCCL ({left})"
    )
    unset = _unset(
        f"Remove {' and '.join(names)}, or set a value that works:"
        if settled
        else (
            "The tests do not prove which of these variables is at fault. Without all these "
            "variables, the test passes:"
        ),
        names,
    )
    return Finding(
        "variable-at-fault",
        fault.severity,
        title,
        evidence,
        (unset,),
        cause=cause_id,
        status=decision.status,
        setting=_names(guilty) if settled else "",
    )
