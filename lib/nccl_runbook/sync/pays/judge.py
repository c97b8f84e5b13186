"""Which of full, delta and FP8 moves these weights fastest over this link?"""

from nccl_runbook.core.facts import Evidence, Gap
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.sync.pays.facts import Comparison

# below that, gather, assembly and apply take longer than the link. TRL, one node: 0.15 s in full, 1.3
# to 27 s as a delta through a bucket (trl#5937); verl, 72B: 0.5 to 1.8 of 24 s on the wire (verl#7060)
SMALL_S = 0.15
SAME = Remedy("you", "Name two checkpoints that the same trainer saved, in the same dtype.")


def judge(comparison: Comparison | Gap) -> list[Finding]:
    """The fastest method and the price of FP8; one finding if the tensors differ; empty for a Gap."""
    if isinstance(comparison, Gap):
        return []
    if comparison.difference:
        return [
            Finding(
                "pays-different-tensors",
                Severity.BROKEN,
                f"Not the same tensors: {comparison.difference}",
                (),
                (SAME,),
            )
        ]
    return [
        Finding(*_fastest(comparison), tuple(map(Evidence, _evidence(comparison)))),
        Finding(
            "pays-fp8",
            Severity.OK,
            f"FP8 takes {comparison.on_link_s(comparison.total.fp8):.3g} s on the link. "
            "It changes the weights: use it only if the engine serves FP8",
            (
                Evidence(
                    "matrices as bytes with a float32 for 128 x 128; embeddings, lm_head, norms, routers stay"
                ),
            ),
        ),
    ]


def _fastest(comparison: Comparison) -> tuple[str, Severity, str]:
    total = comparison.total
    full, delta = comparison.on_link_s(total.size), comparison.on_link_s(total.delta)
    needed = total.size / 1e9 / max(full - delta, 1e-9)
    share = f"{percent(total.changed, total.values)} of the values changed"
    at, whole = f"{full:.3g} s at {comparison.link_gb_per_s:g} GB/s", "gather, assembly and apply take longer"
    cases = (
        (not total.changed, "nothing-changed", "Nothing changed: both checkpoints hold the same bits"),
        (delta >= full, "full", f"Full is fastest, {at}: {share}, so a delta saves no bytes"),
        (full < SMALL_S, "small", f"Full is fast enough, {at}: {whole} than the link ({share})"),
        (
            delta + comparison.find_s < full,
            "delta",
            f"Delta is fastest: {delta + comparison.find_s:.3g} s with the search for changes; full: {at} "
            f"({share})",
        ),
        (
            True,
            "full-unless-found-fast",
            f"Full is faster, {at}. A delta wins only if the changes are found at more than {needed:.3g} "
            f"GB/s ({share})",
        ),
    )
    rule, title = next((rule, title) for applies, rule, title in cases if applies)
    return f"pays-{rule}", Severity.OK if total.changed else Severity.NOTE, title


def _evidence(comparison: Comparison) -> list[str]:
    total, search = (
        comparison.total,
        f"finding the changes took {comparison.find_s:.3g} s on one CPU core here",
    )
    rate, limit = (
        total.size / max(comparison.core_s, 1e-9),
        (total.size - total.delta) / max(comparison.find_s, 1e-9),
    )
    return [
        f"full {total.size:,} bytes, delta {total.delta:,}, FP8 {total.fp8:,}",
        f"{search} ({rate / 1e9:.2g} GB/s of one checkpoint, {comparison.counter}). A GPU was not measured",
        f"so found, a delta is faster on links below {limit / 1e9:.3g} GB/s, and slower above, as on NVLink",
    ]


def percent(part: int, whole: int) -> str:
    """ "0.5 %", with three digits; "0 %" if the whole is 0."""
    return f"{100 * part / whole:.3g} %" if whole else "0 %"
