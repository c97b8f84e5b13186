"""Every rank waits: in calls that do not match, or in one and the same."""

import collections
import dataclasses
from typing import Optional

from nccl_runbook.core.facts import Evidence, counted, known
from nccl_runbook.hang.live.faults.judge_paths import Members
from nccl_runbook.hang.live.faults.judge_slow import stands_still
from nccl_runbook.hang.live.judge_hosts import LOOK_THERE, unseen
from nccl_runbook.hang.live.ranks.judge_picture import Picture, accuse, all_wait
from nccl_runbook.hang.live.ranks.judge_stacks import INIT, waits_in

# a call of torch.distributed, and the one that ends it (a send of Gloo waits, too: torch 2.13)
PARTNER = {"recv": "send", "send": "recv"}


def together(base: Picture, members: Members) -> Optional[Picture]:
    """Everybody waits: in calls that do not match, in different places, where the odd one out took another
    way, or in one place, where nobody is missing. Ranks that all wait for their GPUs, or poll, may be
    stepping all the while, unless RAS shows that they launch nothing."""
    may_step = all(v.does in ("device", "spins") for v in base.ranks)
    if any(v.does not in ("waits", "device", "spins") for v in base.ranks) or (
        may_step and not stands_still(members)
    ):
        return None
    places = [(v.where, v.frame.partition(" (in ")[0]) for v in base.ranks]
    spots = collections.Counter(places).most_common()
    shown = "; ".join(f"{n} in {where or 'a call or on a lock'}, {frame}" for (where, frame), n in spots[:4])
    if base.world_size is None and len(base.ranks) == 1:
        return dataclasses.replace(
            base,
            decides=LOOK_THERE,
            sentence=f"{base.ranks[0].name} waits ({shown}). Nothing shows which other processes belong to "
            "its job",
        )
    most, others, calls = spots[0], unseen(members), sorted({v.where for v in base.ranks})
    odd = [v for v, place in zip(base.ranks, places) if most[1] * 2 > len(places) > 2 and place != most[0]]
    uses_nccl = any(r.nccl for r, _ in members)  # then a call may end on the GPU, later than on the host
    # the arguments show which groups, ranks and tags differ; what NCCL does, only native frames show
    arguments = (
        f"py-spy dump --locals --pid {base.ranks[0].pid}   # for each rank: compare peer, tag, group, shape"
    )
    decides, evidence = "" if odd or uses_nccl else arguments, [Evidence(shown, "stacks")]
    if others and len(spots) == 1:
        why = f"{counted(len(places), 'rank')} visible, all waiting in the same call ({shown}). "
        why += f"The samples show nothing about {others}"
        return accuse(base, "unknown", [], why, cause=None, status="", observed=[], decides=decides)
    if not others and len(places) > 1 and PARTNER.keys() >= {*calls} and not _helped(members):
        decides = "" if odd else arguments
        if len(calls) > 1:
            status = "possible"
            why = (
                "the peer ranks, tags or groups of these calls may differ, or the path between them is "
                f"blocked ({shown})"
            )
        else:
            status = "likely" if uses_nccl or len(places) != base.world_size else "established"
            why = f"no rank is in the matching {PARTNER.get(calls[0])}, so the code is at fault ({shown})"
        why = f"{all_wait(base.ranks)} in {' or '.join(calls)}, and {why}"
        return accuse(
            base,
            "unmatched",
            [],
            why,
            cause="send-recv-unmatched",
            status=status,
            observed=evidence,
            decides=decides,
        )
    # work.wait() has no frame, and a lock of the program has none either
    cause = "collective-on-some-ranks-only" if all(v.where for v in odd or base.ranks) else None
    if odd:
        why = f"{'waits' if len(odd) == 1 else 'wait'} elsewhere ({shown})"
        return accuse(
            base, "skipped", odd, why, cause=cause, status="likely", observed=evidence, decides=decides
        )
    if len(spots) > 1:
        why = (
            f"the ranks wait in different calls ({shown}). The stacks do not show which of these calls "
            "is wrong"
        )
        kind, status = ("unknown", "possible") if uses_nccl or others else ("mismatch", "likely")
        return accuse(base, kind, [], why, cause=cause, status=status, observed=evidence, decides=decides)
    among = f" among the {len(places)} that were found" if base.world_size is None else ""
    why = (
        f"{all_wait(base.ranks)} in one place ({shown}). No rank is missing{among}, unless several "
        f"process groups share this line of code. {_advice(calls[0], uses_nccl)}"
    )
    return accuse(base, "symmetric", [], why, cause=None, status="possible", observed=[], decides=decides)


def _advice(call: str, uses_nccl: bool) -> str:
    if "new_group" in call:
        return "Every rank must create every group, in the same order"
    if call in INIT:
        return "Check the rendezvous address and the network interfaces"
    if uses_nccl:
        return "Check the interconnect and the GPUs"
    return "Compare the process group, the shape and the type of the tensor on all ranks"


def _helped(members: Members) -> bool:
    """Another thread of a rank is in such a call, too."""
    return any(
        waits_in(stack) in PARTNER
        for r, _ in members
        for sample in r.samples[-1:]
        for stack in known(sample.stacks)[1:]
    )
