"""Why a world of ranks failed: a finding with cause, evidence and remedies."""

from __future__ import annotations

import signal

from nccl_runbook.causes.causes import Cause, causes, recognise, remedies
from nccl_runbook.core.facts import Identity, bus_of_message, clashes
from nccl_runbook.core.facts_world import WRONG_VALUES, RankResult, World
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity


def last_begun(rank: RankResult) -> str:
    """What the rank was doing at its end: "at the start", "in init", "after init", "in all_reduce of
    16777216 B"."""
    last = rank.events[-1] if rank.events else {}
    begun = [e for e in rank.events if e.get("event") == "begin"]
    if last.get("event") == "init" or not begun:
        return "after init" if begun else "at the start"
    size = begun[-1].get("size_bytes")
    return f"in {begun[-1]['what']} of {size} B" if size else f"in {begun[-1]['what']}"


def rank_line(rank: RankResult) -> str:
    """One line: how the rank ended, and where."""
    ended = {
        "exited": f"exit code {rank.code}",
        "signalled": f"killed by signal {rank.code}",
        "timed-out": "still running at the deadline",
        "lost": "lost when the runbook's own process ended",
        "late": "end not reported",
    }[rank.outcome]
    return f"rank {rank.rank}: {ended}{f', state {rank.state}' if rank.state else ''}, {last_begun(rank)}"


def _duplicate(world: World) -> tuple[str, str, str]:
    """(cause id, status, the device map in words) behind a duplicate-GPU refusal: UUIDs
    first, then what was asked for."""
    same_gpus = clashes(
        [
            Identity(rank.rank, str(hello.get("uuid") or ""), str(hello.get("pci_bus_id") or ""))
            for rank in world.ranks
            for hello in [rank.first("hello") or {}]
        ]
    )
    if not same_gpus:
        return "device-not-set-per-rank", "possible", "the ranks' UUIDs were not seen"
    clash = same_gpus[0]
    if clash.kind == "shared":
        words = "; ".join(
            f"ranks {' and '.join(map(str, one.ranks))} on {one.what} (asked for: GPU "
            f"{' and '.join(str(world.request.devices[n]) for n in one.ranks)})"
            for one in same_gpus
            if one.kind == "shared"
        )
        same_asked = len(set(world.request.devices)) < len(world.request.devices)
        return "device-not-set-per-rank" if same_asked else "scheduler-shares-gpu", "established", words
    words = f"ranks {' and '.join(map(str, clash.ranks))} on bus {clash.what}, and their UUIDs differ"
    if clash.kind == "slices":
        return "vgpu-or-mig-unsupported", "established", f"{words}: MIG slices of one card"
    return "bus-id-collision", "established", words


def _known(rank: RankResult) -> tuple[Cause, str] | None:
    """The message of one rank that failed, if the tables know it. Wrong values have no message: what else
    was printed is beside them."""
    if rank.outcome == "exited" and rank.code in (0, WRONG_VALUES):
        return None
    return recognise(
        [
            *(line for e in rank.named("error") for line in str(e.get("text", "")).splitlines()),
            *rank.last_lines,
        ]
    )


def _message(world: World) -> tuple[Cause, str, list[Evidence]] | None:
    """The hardest message of all ranks, in the order of the table. What a rank only printed before
    it hung is likely at most."""
    recognised = [(rank, known) for rank in world.ranks for known in [_known(rank)] if known]
    if not recognised:
        return None
    rank, (cause, line) = min(recognised, key=lambda s: list(causes()).index(s[1][0].id))
    if cause.id == "duplicate-gpu":
        cause_id, status, words = _duplicate(world)
        named = [
            Evidence(f"this CUDA device is the GPU on PCI bus {bus}", "NCCL prints the bus id in hexadecimal")
            for bus in [bus_of_message(line)]
            if bus
        ]
        return (
            causes()[cause_id],
            status,
            [Evidence(line, f"rank {rank.rank}"), *named, Evidence(words, "device map of the ranks")],
        )
    return (
        cause,
        "likely" if rank.outcome == "timed-out" else cause.by_message,
        [Evidence(line, f"rank {rank.rank}")],
    )


def _cause_of(world: World) -> tuple[Cause | None, str, list[Evidence]]:
    """(cause, status, evidence). The ranks' own messages first, then how the processes ended,
    as peers only echo a death."""
    if message := _message(world):
        return message
    if any(r.state.startswith("T") for r in world.ranks):
        return causes()["peer-stopped"], "established", []
    if killed := [r.code for r in world.ranks if r.outcome == "signalled"]:
        return (
            (causes()["shm-too-small"], "likely", [])
            if signal.SIGBUS in killed
            else (causes()["peer-crashed"], "established", [])
        )
    return None, "", []


def explain(rule: str, what: str, world: World, again: World | None = None) -> Finding:
    """The finding for a failed world. ``what``: "2 ranks"; ``again``: its repetition in fresh processes;
    *broken* requires that the failure recurs."""
    if world.ended == "lost":
        is_stopped = any(r.state.startswith("T") for r in world.ranks)
        is_gone = is_stopped or any(r.outcome == "lost" for r in world.ranks)
        ended = (
            f"the runbook's own process was {'stopped (state T)' if is_stopped else 'killed'} "
            "while the ranks ran"
        )
        why = ended if is_gone else "the ranks still ran at the deadline"
        return Finding(
            rule,
            Severity.UNKNOWN,
            f"{what}: {why}",
            (
                *(Evidence(rank_line(r), r.log) for r in world.ranks if r.outcome in ("lost", "late")),
                Evidence(world.log),
            ),
        )
    again = again if again and again.ended != "lost" else None
    cause, status, messages = _cause_of(world)
    # whose data arrived wrong, wherever a sender is known: not in an all_reduce, which adds all up
    senders = {e["wrong"].get("from_rank") for e in world.wrong} - {None}
    sender = senders.pop() if len(senders) == 1 else None
    # those first that show most: stopped or killed, then those that raised, then those that only waited
    bad = sorted(
        (r for r in world.ranks if not (r.outcome == "exited" and r.code == 0)),
        key=lambda r: (
            not (r.state.startswith("T") or r.outcome == "signalled"),
            r.outcome == "timed-out",
            r.rank,
        ),
    )
    evidence = (
        *(
            [Evidence(f"every wrong value that has one sender came from rank {sender}", "value check")]
            if sender is not None
            else []
        ),
        *messages,
        *(Evidence(rank_line(r), r.log) for r in bad),
        *(Evidence(_wrong_line(e), "value check") for e in world.wrong[:3]),
        *(Evidence(line, "log") for line in _telling(world) if cause is None),
    )
    title = (
        f"{what} {'got wrong values' if world.wrong else world.ended}"
        f"{'' if sender is None else f', sent by rank {sender}'}"
    )
    why = f": {cause.title}" if cause else ""
    if again is None or again.passed:
        said_of_repeat, runs = (
            ("The test was not repeated", 1) if again is None else ("The test passed the other time", 2)
        )
        return Finding(
            rule,
            Severity.WARN,
            f"{title}, seen 1 of {runs}{why}",
            evidence,
            (
                Remedy(
                    "you",
                    f"{said_of_repeat}. Repeat the test more often before you change anything.",
                    (world.shell_line,),
                ),
            ),
            cause and cause.id,
            cause and (status if again is None else "possible"),
        )
    return Finding(
        rule,
        Severity.BROKEN,
        f"{title}{why}",
        evidence,
        remedies(cause, status),
        cause and cause.id,
        cause and status,
    )


def _wrong_line(e: dict) -> str:
    wrong = e["wrong"]
    source = "" if wrong.get("from_rank") is None else f" from rank {wrong['from_rank']}"
    return (
        f"{e['op']} of {e['size_bytes']} B{source}: element {wrong['index']} is {wrong['got']}, "
        f"should be {wrong['expected']} ({wrong['count']} wrong)"
    )


def _telling(world: World) -> list[str]:
    """The last line of each rank that failed, and NCCL's first warning."""
    return [line for r in world.ranks for line in r.last_lines if "NCCL WARN" in line][:1] + [
        r.last_lines[-1] for r in world.died if r.last_lines
    ][:2]
