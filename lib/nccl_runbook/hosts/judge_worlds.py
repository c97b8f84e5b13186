"""Worlds over hosts: which host fails, or only a path between hosts that work alone."""

import re
from collections.abc import Sequence

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.core.facts import Evidence, Gap, grouped, known
from nccl_runbook.core.facts_world import RankResult
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.hosts.facts import HostWorld
from nccl_runbook.hosts.judge import names

EXCLUDE = Remedy("you", "Exclude these hosts from the next run. For sbatch and srun:")


def failing(worlds: Sequence[HostWorld] | Gap) -> dict[str, list[str]]:
    """Host -> evidence against it: it failed alone, its agent was lost, a rank died there, or a rank never
    reached the operation in which all others wait. A world in which all ranks wait or fail alike blames no
    host."""
    return grouped(pair for world in known(worlds) for pair in _at_fault(world))


def _at_fault(world: HostWorld) -> list[tuple[str, str]]:
    """(host, what happened) of one world: of the lost hosts, if any."""
    if world.lost or world.passed or world.not_run:
        return [*world.lost.items()]
    return culprits(world)


def culprits(world: HostWorld) -> list[tuple[str, str]]:
    """(host, what happened) of the ranks that failed first; the others of the failed world followed."""
    at = list(zip(world.ranks, world.hosts, strict=True))
    ended = [(r, h) for r, h in at if r.outcome != "exited" or r.code]
    if any(r.outcome == "late" for r, _ in at) or any(_shared(r) for r, _ in at):
        return [] if not (own := _died(ended)) else [(h, f"rank {r.rank}: {_end_of(r)}") for r, h in own]
    if len(set(world.hosts)) == 1:
        hung = all(r.outcome == "timed-out" for r, _ in ended)
        return [(world.hosts[0], f"its ranks {'hang' if hung else 'fail'} without any other host")]
    died = _died(ended)
    if died and len({h for _, h in died}) < len(set(world.hosts)):
        return [(h, f"rank {r.rank}: {_end_of(r)}") for r, h in died]
    most = max(at, key=lambda of: _began(of[0]))[0]
    behind = [  # one that waits in an operation has begun it; one that idles before the others' never did
        (r, h)
        for r, h in at
        if not died
        and (any(_began(r) < _finished(o) for o in world.ranks) or _finished(r) == _began(r) < _began(most))
    ]
    if (
        not behind
        or len({h for _, h in behind}) == len(set(world.hosts))
        or not all(r.named("init") for r, _ in at)
    ):
        return []
    return [(h, f"rank {r.rank} never began {_operations(most)[_began(r)]}") for r, h in behind]


def _died(ended: list[tuple[RankResult, str]]) -> list[tuple[RankResult, str]]:
    """Ranks that ended by themselves, not by another rank, the path, or somebody who uses the GPU."""
    return [
        (r, h)
        for r, h in ended
        if r.outcome in ("exited", "signalled") and r.code and not _network(r) and not _shared(r)
    ]


def _operations(rank: RankResult) -> list[str]:
    return [str(e["what"]) for e in rank.named("begin") if e.get("what") not in ("init", "destroy")]


def _began(rank: RankResult) -> int:
    return len(_operations(rank))


def _finished(rank: RankResult) -> int:
    return len(rank.named("op"))


def _error_of(rank: RankResult) -> str:
    """The rank's own error, else its last lines without NCCL's routine ones."""
    errors = [str(e.get("text")) for e in rank.named("error")]
    return " ".join(errors or [line for line in rank.last_lines if "NCCL INFO" not in line]).lower()


_NETWORK = re.compile(
    r"connect|timed out|timeout|socket|store\b|reset by peer|broken pipe|remote process|remoteerror|"
    r"network error|peer (closed|gone|process)"
)
_SHARED = re.compile(
    r"out of memory|invalid device ordinal|busy or unavailable|devices? (is|are) busy|no cuda-capable"
)
FAULT_SIGNALS = (4, 7, 8, 11)  # SIGILL, SIGBUS, SIGFPE, SIGSEGV: nothing that another rank does


def _network(rank: RankResult) -> bool:
    """Whether the rank's own error is about a connection: another rank, or the path, ended it."""
    if rank.outcome == "signalled" and rank.code in FAULT_SIGNALS:
        return False
    text = _error_of(rank)
    return "cuda error" not in text and bool(_NETWORK.search(text))


def _shared(rank: RankResult) -> bool:
    # somebody else on the GPU, or how the job was started, can be the reason
    return bool(rank.code) and bool(_SHARED.search(_error_of(rank)))


def _end_of(rank: RankResult) -> str:
    """How it ended: its error's first line, else its signal or exit code."""
    error = rank.first("error")
    if error:
        return f"{error.get('type')}: {str(error.get('text')).splitlines()[0] if error.get('text') else ''}"[
            :160
        ]
    return f"signal {rank.code}" if rank.outcome == "signalled" else f"exit code {rank.code}"


def judge_host_worlds(worlds: Sequence[HostWorld] | Gap) -> list[Finding]:
    """Findings: lost agents, dead or late ranks; the path if every host works alone and no rank is to
    blame."""
    if isinstance(worlds, Gap):
        return (
            []
            if worlds.reason == "not-run"
            else [
                Finding(
                    "hosts-world-not-run", Severity.UNKNOWN, f"No ranks ran over the hosts: {worlds.detail}"
                )
            ]
        )
    findings = [_finding(world) for world in worlds if not world.passed]
    if findings or not worlds:
        return findings
    backends = sorted({w.backend for w in worlds})
    together = names(list(dict.fromkeys(worlds[-1].hosts)))
    text = f"The test ranks pass on each host alone, and on {together} together ({', '.join(backends)})."
    if len(set(worlds[-1].hosts)) < 2:
        text = f"The test ranks pass on {together}. One host alone cannot test the path between hosts."
    rehearsal = (
        [
            Finding(
                "hosts-rehearsed",
                Severity.UNKNOWN,
                "The test ranks ran on the CPU over Gloo, so GPUs and NCCL were not tested.",
            )
        ]
        if "gloo" in backends
        else []
    )
    return [Finding("hosts-world-passes", Severity.OK, text), *rehearsal]


def _finding(world: HostWorld) -> Finding:
    if world.not_run:
        where = names(list(dict.fromkeys(world.hosts)))
        title = f"Not tested: {world.name} ({where}): {world.not_run}"
        return Finding("hosts-world-not-run", Severity.UNKNOWN, title)
    if world.lost:
        host, why = next(iter(world.lost.items()))
        title = (
            f"The connection to the agent on {names(list(world.lost))} was lost during the test "
            f"({why}). No rank is at fault."
        )
        lines = (f"--exclude={','.join(world.lost)}",)
        return Finding(
            "host-agent-lost",
            Severity.BROKEN,
            title,
            (Evidence(why, host),),
            (Remedy(EXCLUDE.who, EXCLUDE.text, lines),),
            cause="node-failed",
            status="likely",
        )
    evidence = tuple(
        Evidence(
            f"rank {r.rank} on {h}: {r.outcome} {'' if r.code is None else r.code}; the last operation "
            f"that this rank began: {world.last_begun(r) or 'none'}. {_last(r)}",
            world.name,
        )
        for r, h in zip(world.ranks, world.hosts, strict=True)
    )[:8]
    guilty = culprits(world)
    if guilty:
        hosts = list(dict.fromkeys(h for h, _ in guilty))
        title = f"{names(hosts)}: {guilty[0][1]} in the test {world.name}."
        hung = "never began" in guilty[0][1]
        cause = None if "ranks hang" in guilty[0][1] else "rank-busy-on-host" if hung else "peer-crashed"
        remedy = (
            Remedy(EXCLUDE.who, EXCLUDE.text, (f"--exclude={','.join(hosts)}",)),
            *(
                remedies_for(cause)
                if cause
                else (
                    Remedy(
                        "you",
                        "Run the single-host test on the failing host, which finds the GPU or the transport:",
                        ("nccl-runbook run",),
                    ),
                )
            ),
        )
        return Finding(
            "host-rank-stuck" if hung else "host-rank-failed",
            Severity.BROKEN,
            title,
            evidence,
            remedy,
            cause=cause,
            status="likely" if cause else None,
        )
    hosts = list(dict.fromkeys(world.hosts))
    unclear = [r for r in world.ranks if r.outcome == "late" or _shared(r)]
    if unclear:
        title = (
            f"The test {world.name} does not show which host is at fault: "
            f"{_last(unclear[0]) or unclear[0].outcome}"
        )
        return Finding("hosts-world-unclear", Severity.UNKNOWN, title, evidence)
    title = (
        f"The test ranks pass on each of {names(hosts)} alone, but fail if they run on these hosts "
        "together. Suspect the path between the hosts."
    )
    return Finding(
        "hosts-path-fails",
        Severity.BROKEN,
        title,
        evidence,
        tuple(remedies_for("network-path-blocked")),
        cause="network-path-blocked",
        status="possible",
    )


def _last(rank: RankResult) -> str:
    error = rank.first("error")
    return (
        str(error.get("text", "")).splitlines()[0][:300]
        if error and error.get("text")
        else " | ".join(rank.last_lines[-1:])[:300]
    )
