"""Which of full, delta and FP8 moves these weights fastest over this link?"""

from nccl_runbook.core.facts import Evidence, Gap
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.sync.pays.facts import Comparison

# below that, gather, assembly and apply take longer than the link. TRL, one node: 0.15 s in full, 1.3
# to 27 s as a delta through a bucket (trl#5937); verl, 72B: 0.5 to 1.8 of 24 s on the wire (verl#7060)
SMALL_S = 0.15


def judge(comparison: Comparison | Gap) -> list[Finding]:
    """The fastest method and the price of FP8; one finding if the tensors differ; empty for a Gap."""
    if isinstance(comparison, Gap):
        return []
    if comparison.difference:
        return [
            Finding(
                "pays-different-tensors",
                Severity.BROKEN,
                f"The two checkpoints do not contain the same tensors: {comparison.difference}",
                (),
                (Remedy("you", "Name two checkpoints that the same trainer saved, in the same dtype."),),
            )
        ]
    return [
        Finding(*_fastest(comparison), tuple(map(Evidence, _evidence(comparison)))),
        Finding(
            "pays-fp8",
            Severity.OK,
            f"FP8 takes {comparison.on_link_s(comparison.total.fp8):.3g} s on the link. FP8 changes "
            "the weights, so use it only if the engine serves FP8",
            (
                Evidence(
                    "FP8 sends matrices as bytes, with one float32 scale per 128 x 128 block; "
                    "embeddings, lm_head, norms and routers are sent in their own dtype"
                ),
            ),
        ),
    ]


def _fastest(comparison: Comparison) -> tuple[str, Severity, str]:
    """Id, severity and title of the finding that names the fastest of full and delta; the first case that
    applies."""
    total = comparison.total
    full, delta = comparison.on_link_s(total.size), comparison.on_link_s(total.delta)
    needed = total.size / 1e9 / max(full - delta, 1e-9)
    share = f"{percent(total.changed, total.values)} of the values changed"
    full_time = f"{full:.3g} s at {comparison.link_gb_per_s:g} GB/s"
    cases = (
        (
            not total.changed,
            "nothing-changed",
            "Nothing changed, because both checkpoints contain the same bits",
        ),
        (delta >= full, "full", f"A full sync is fastest, {full_time}. {share}, so a delta saves no bytes"),
        (
            full < SMALL_S,
            "small",
            f"A full sync is fast enough, {full_time}. Gathering, assembling and applying the weights "
            f"usually take longer than this transfer ({share})",
        ),
        (
            delta + comparison.find_s < full,
            "delta",
            f"A delta sync is fastest, with {delta + comparison.find_s:.3g} s including the search for "
            f"changes. A full sync takes {full_time} ({share})",
        ),
        (
            True,
            "full-unless-found-fast",
            f"A full sync is faster, {full_time}. A delta sync wins only if the changes are found at more "
            f"than {needed:.3g} GB/s ({share})",
        ),
    )
    rule, title = next((rule, title) for applies, rule, title in cases if applies)
    return f"pays-{rule}", Severity.OK if total.changed else Severity.NOTE, title


def _evidence(comparison: Comparison) -> list[str]:
    """What each method sends, how long the search for changes took, and for which links it pays."""
    total = comparison.total
    rate_gb_per_s = total.size / 1e9 / max(comparison.core_s, 1e-9)
    limit_gb_per_s = (total.size - total.delta) / 1e9 / max(comparison.find_s, 1e-9)
    return [
        f"a full sync sends {total.size:,} bytes, a delta sync {total.delta:,} bytes, and FP8 "
        f"{total.fp8:,} bytes",
        f"finding the changes took {comparison.find_s:.3g} s on one CPU core of this machine "
        f"({rate_gb_per_s:.2g} GB of each checkpoint per second, {comparison.counter}). "
        "The search was not measured on a GPU",
        f"at this speed of the search, a delta sync is faster than a full sync on links below "
        f"{limit_gb_per_s:.3g} GB/s, and slower on faster links",
    ]


def percent(part: int, whole: int) -> str:
    """ "0.5 %", with three digits; "0 %" if the whole is 0."""
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
