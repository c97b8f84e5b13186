"""What the arms of a failing run decide together: outcomes, cures and suspects."""

import dataclasses
from collections.abc import Mapping

from nccl_runbook.causes.tables import table

# words for outcomes and answers
_TABLE = table("worlds/transports")
REMOVES: dict[str, frozenset[str]] = {arm: frozenset(taken) for arm, taken in _TABLE["removes"].items()}
POINTS_TO: dict[str, tuple[str, str | None]] = {
    arm: (to, cause or None) for arm, (to, cause) in _TABLE["points_to"].items()
}
FAILING = ("hung", "failed", "wrong values")

# passed, and no proof: what is at fault must be in what such an arm takes away, for else nothing was, or it
# comes and goes
UNSURE = {
    "no proof": "NCCL's log shows no effect of the setting",
    "passed 1 of 2": "another run with it failed",
    "passed 1 of 1": "the run was not repeated",
}


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """Outcomes in the terms of transports.toml. ``control`` (of a repeated failure, its kind), ``after``
    (the control at the end), ``arms`` by name (without arms that cannot act here), ``clean``.
    ``settled``: clean passes and the guilty variables are proven; ``connected``: the control used a
    transport; ``message``: whether the ranks' own errors or ends name the cause."""

    control: str
    after: str = "not run"
    arms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    clean: str = "not run"
    settled: bool = False
    connected: bool = True
    message: bool = False


@dataclasses.dataclass(frozen=True)
class Decision:
    """``kind``: a row of transports.toml; ``arm``: the least restrictive setting that works (empty if none
    is proven); ``cause`` with ``status``, or None; ``why``: the reason."""

    kind: str
    why: str
    arm: str = ""
    cause: str | None = None
    status: str | None = None


def decide(outcomes: Outcomes) -> Decision:
    """One decision for every input. A transport is named only if an arm passes with proof and everything
    without it fails again."""
    unsteady = _unsteady(outcomes)
    if outcomes.control == "pass" and not unsteady:
        return Decision("healthy", "the test passes in your unchanged environment")
    if outcomes.control == "lost":
        return Decision("inconclusive", "the runbook's own process was killed while the ranks ran")
    if outcomes.settled and not unsteady:
        return Decision(
            "variable", "the test passes without these variables", "clean", "env-conflict", "established"
        )
    if outcomes.message and outcomes.control in FAILING:
        return Decision(
            "explained",
            "the ranks' messages, exit codes or signals show the cause",
            "" if unsteady else next(iter(cures(outcomes)), ""),
        )
    if unsteady:
        return Decision("inconclusive", unsteady)
    if outcomes.clean == "pass":
        return Decision(
            "variable",
            "the test passes without the variables of your environment",
            "clean",
            "env-conflict",
            "likely",
        )
    return _by_arms(outcomes)


def _unsteady(outcomes: Outcomes) -> str:
    """Why nothing can be concluded from one run beside another: the same thing both passed and failed; "" if
    it did not."""
    passes = outcomes.control == "pass"
    once = {name: REMOVES[name] for name, word in outcomes.arms.items() if word == "passed 1 of 2"}
    # else the fault may be in the way round that they share
    apart = len(once) > 1 and not frozenset.intersection(*once.values())
    same = [
        *(name for name, word in outcomes.arms.items() if word == "no effect"),
        *(["clean, once of twice"] if outcomes.clean == "once of twice" else []),
        *(["the control again"] if outcomes.after == "pass" else []),
    ]
    if outcomes.control == "once of twice":
        return "intermittent: the test in your unchanged environment failed and then passed"
    if outcomes.control == "once of once":
        return "the test in your unchanged environment failed and was not repeated"
    if passes and outcomes.after == "fail":
        return (
            "the test in your unchanged environment passed before the variants, and failed after them "
            "(1 failure in 2 runs)"
        )
    if passes and apart:
        return (
            f"the test in your unchanged environment passed, but {' and '.join(once)}, which have no "
            "transport in common, each failed in 1 of 2 runs"
        )
    return (
        f"intermittent, so no setting proves a cause; these tests passed: {', '.join(same)}"
        if same and not passes
        else ""
    )


def cures(outcomes: Outcomes) -> list[str]:
    """Arms that pass with proof, the least restrictive first."""
    return sorted(
        (name for name, word in outcomes.arms.items() if word == "pass"), key=lambda name: len(REMOVES[name])
    )


def suspects(outcomes: Outcomes) -> frozenset[str]:
    """What a single fault may affect: switched off in every arm that passed, in none that failed. If an arm
    that switches off more than a passing one fails anyway, it has a reason of its own, such as the way it
    leaves (sockets)."""
    passed = [REMOVES[name] for name, word in outcomes.arms.items() if word == "pass" or word in UNSURE]
    failed = (REMOVES[name] for name, word in outcomes.arms.items() if word in FAILING)
    kept = frozenset().union(*(f for f in failed if not any(p <= f for p in passed)))
    return frozenset.intersection(*passed) - kept if passed else frozenset()


def _by_arms(outcomes: Outcomes) -> Decision:
    proven, unproven = cures(outcomes), [name for name, word in outcomes.arms.items() if word in UNSURE]
    arm, passed = next(iter(proven), ""), [*proven, *unproven]
    if arm and not suspects(outcomes) and any(POINTS_TO[name][0] != "sockets" for name in passed):
        return Decision(
            "inconclusive", f"the results fit no single fault; these tests passed: {', '.join(passed)}"
        )
    if arm:
        kind, cause = POINTS_TO[arm]
        narrower = any(REMOVES[name] < REMOVES[arm] for name in unproven)  # it passed: it may be that
        status = (
            "likely"
            if outcomes.connected and not narrower and kind not in ("algorithm", "protocol")
            else "possible"
        )
        why = (
            f"{'no single transport: ' if kind == 'sockets' else ''}the test passes with {arm} and "
            "fails without this setting"
        )
        return Decision(kind, why, arm, cause, cause and status)
    if unproven:
        return Decision(
            "inconclusive",
            "; ".join(f"{name} passed, but {UNSURE[outcomes.arms[name]]}" for name in unproven),
        )
    # what P2P and SHM off leaves in use
    untried = {"not run", "lost"} & {
        outcomes.clean,
        *map(outcomes.arms.get, ("IB off", "P2P, SHM and IB off", "interface pinned")),
    }
    if outcomes.arms.get("P2P and SHM off") in FAILING and not untried:
        return Decision(
            "not-the-transport",
            "the test also fails when only sockets are used, and in another run without your NCCL variables",
        )
    return Decision("inconclusive", "too few tests were run")
