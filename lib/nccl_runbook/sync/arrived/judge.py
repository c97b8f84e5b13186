"""Did every tensor arrive? The first that did not is named."""

from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.sync.arrived.facts import Arrival

REMEDIES = {
    "absent": "Compare the names that your sync sends with the names that the engine loads.",
    "dtype": "Convert the tensor before you send it. If the engine converts the tensor itself, pass the "
    "engine's dtype in the trainer: digest.save(..., dtype=...).",
    "shape": "Check how the engine splits and fuses this tensor, and what its loader received.",
    "values": "Make both digests at the same point of the training: after the sync, and before the next "
    "step. If the tensor still differs, check whether your sync loads an old value, another rank's part, or "
    "the elements in a different order.",
}


def judge(arrival: Arrival) -> list[Finding]:
    """One finding, valid for the moment of the digests."""
    count, wrong = len(arrival.pairs), arrival.differing
    fused = sum(len(pair.trainer) + len(pair.engine) > 2 for pair in arrival.pairs)
    loose = sum(pair.said == "same-rows-in-any-order" for pair in arrival.pairs)
    how = Evidence(
        f"{count} tensors on {arrival.ranks} engine ranks were compared by dtype, shape and sums over "
        f"all elements; {fused} of these tensors are fused in the trainer or the engine",
        "arrived",
    )
    if not wrong:
        return [
            Finding(
                "weights-arrived",
                Severity.NOTE if loose else Severity.OK,
                f"all {sum(len(p.trainer) for p in arrival.pairs)} tensors of the trainer are in the engine"
                + (
                    f"; the order of rows was not compared for {loose} tensors of the engine"
                    if loose > 0
                    else ""
                ),
                (how,),
            )
        ]
    first, name = wrong[0], (wrong[0].engine or wrong[0].trainer)[0]
    title = f"{len(wrong)} of {count} tensors differ; the first is {name} ({first.said})"
    examples = (
        Evidence(f"{', '.join(pair.engine or pair.trainer)}: {pair.said}, {pair.detail}", "arrived")
        for pair in wrong[:5]
    )
    return [
        Finding(
            "weights-differ", Severity.BROKEN, title, (*examples, how), (Remedy("you", REMEDIES[first.said]),)
        )
    ]
