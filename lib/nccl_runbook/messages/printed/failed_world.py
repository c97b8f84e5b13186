"""Why a world of ranks failed: a finding with cause, evidence and remedies."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence

from nccl_runbook.causes.causes import Cause, causes, remedies
from nccl_runbook.core.facts import Identity, bus_of_message, clashes
from nccl_runbook.core.facts_world import WRONG_VALUES, RankResult, World
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.messages.clues import ECHO
from nccl_runbook.messages.printed.recognise import SHARED_GPU, own_words, recognise


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
            for rank, hello in ((rank, rank.first("hello") or {}) for rank in world.ranks)
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
    words = (
        f"ranks {' and '.join(map(str, clash.ranks))} are on PCI bus {clash.what}, but their GPUs have "
        "different UUIDs"
    )
    if clash.kind == "slices":
        return "vgpu-or-mig-unsupported", "established", f"{words}, which are MIG slices of one GPU"
    return "bus-id-collision", "established", words


def _cause_of(world: World) -> tuple[Cause | None, str, list[Evidence]]:
    """(cause, status, evidence). The ranks' own messages come first. Beside a rank that was stopped or
    killed, a message that may only echo that does not count. Before a hang, a message is likely at most.
    Wrong values have no message: what else was printed is beside them."""
    message = recognise(
        {
            f"rank {r.rank}": "\n".join([*(str(e.get("text", "")) for e in r.named("error")), *r.last_lines])
            for r in world.ranks
            if not (r.outcome == "exited" and r.code in (0, WRONG_VALUES))
        }
    )
    stopped = any(r.state.startswith("T") for r in world.ranks)
    killed = [r.code for r in world.ranks if r.outcome == "signalled"]
    if message and not (
        (stopped or killed) and (message.status == "possible" or ECHO.search(message.evidence[0].text))
    ):
        line = message.evidence[0]
        evidence = [Evidence(line.text, line.file)]
        if message.message == SHARED_GPU:
            cause_id, status, words = _duplicate(world)
            if bus := bus_of_message(line.text):
                evidence.append(
                    Evidence(
                        f"the CUDA device in NCCL's message is the GPU on PCI bus {bus}",
                        "NCCL prints the bus id in hexadecimal",
                    )
                )
            return causes()[cause_id], status, [*evidence, Evidence(words, "device map of the ranks")]
        waited = any(r.outcome == "timed-out" and line.file == f"rank {r.rank}" for r in world.ranks)
        status = "likely" if waited and message.status == "established" else message.status
        return own_words(message), status, evidence
    if not stopped and not killed:
        return None, "", []
    if signal.SIGBUS in killed and not stopped:
        return causes()["shm-too-small"], "likely", []
    return causes()["peer-stopped" if stopped else "peer-crashed"], "established", []


def explain(rule: str, what: str, world: World, again: World | None = None) -> Finding:
    """The finding for a failed world. ``what``: "2 ranks"; ``again``: its repetition in fresh processes;
    *broken* requires that the failure recurs."""
    if world.ended == "lost":
        is_stopped = any(r.state.startswith("T") for r in world.ranks)
        is_gone = is_stopped or any(r.outcome == "lost" for r in world.ranks)
        how = (
            f"the runbook's own process was {'stopped (state T)' if is_stopped else 'killed'} "
            "while the ranks ran"
            if is_gone
            else "the ranks still ran at the deadline"
        )
        return Finding(
            rule,
            Severity.UNKNOWN,
            f"{what}: {how}",
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
            [Evidence(f"every wrong value whose sender is known came from rank {sender}", "value check")]
            if sender is not None
            else []
        ),
        *messages,
        *(Evidence(line, "log") for line in _telling(world) if cause is None),
        *(Evidence(rank_line(r), r.log) for r in bad),
        *(Evidence(_wrong_line(e), "value check") for e in world.wrong[:3]),
    )
    title = (
        f"{what} {'got wrong values' if world.wrong else world.ended}"
        f"{'' if sender is None else f', sent by rank {sender}'}"
    )
    why = f": {cause.title}" if cause else ""
    if again is None or again.passed:
        said_of_repeat, runs = (
            ("The test was not repeated", 1) if again is None else ("The test passed when it was repeated", 2)
        )
        return Finding(
            rule,
            Severity.WARN,
            f"{title}, in 1 of {runs} runs{why}",
            evidence,
            (
                Remedy(
                    "you",
                    f"{said_of_repeat}. Repeat the test more often before you change anything.",
                    (world.shell_line,),
                ),
            ),
            cause=cause and cause.id,
            status=cause and (status if again is None else "possible"),
        )
    return Finding(
        rule,
        Severity.BROKEN,
        f"{title}{why}",
        evidence,
        remedies(cause, status),
        cause=cause and cause.id,
        status=cause and status,
    )


def cannot_run(error: str, prefix: Sequence[str]) -> Finding:
    """The finding that the judged interpreter (argv ``prefix``) cannot import torch, so no rank can run."""
    message = recognise({"the judged Python": error})
    repeat = Remedy(
        "you",
        "Run the failing command by hand, and repair the Python installation or the environment variables "
        "with which this command fails:",
        (shlex.join([*prefix, "-c", "import torch.distributed"]),),
    )
    return Finding(
        "no-rank-can-run",
        Severity.BROKEN,
        error,
        (Evidence(error, "the judged Python"),),
        remedies(own_words(message), message.status) if message else (repeat,),
        cause=message and message.cause,
        status=message and message.status,
    )


def _wrong_line(e: dict) -> str:
    wrong = e["wrong"]
    source = "" if wrong.get("from_rank") is None else f" from rank {wrong['from_rank']}"
    return (
        f"{e['op']} of {e['size_bytes']} B{source}: element {wrong['index']} is {wrong['got']} but "
        f"should be {wrong['expected']} (number of wrong elements: {wrong['count']})"
    )


def _telling(world: World) -> list[str]:
    """The last line of each rank that failed, and NCCL's first warning."""
    return [line for r in world.ranks for line in r.last_lines if "NCCL WARN" in line][:1] + [
        r.last_lines[-1] for r in world.died if r.last_lines
    ][:2]
