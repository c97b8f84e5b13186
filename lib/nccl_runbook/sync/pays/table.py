"""Bytes and seconds of each method, and which tensors changed."""

from nccl_runbook.report.tables import Table, titled
from nccl_runbook.sync.pays.facts import Comparison
from nccl_runbook.sync.pays.judge import percent

MOST_ROWS = 25
DELTA = (
    "lossless; for each tensor the smallest of three forms: positions and values, bit mask and "
    "values, or the whole tensor"
)


@titled("What each method sends")
def methods_table(comparison: Comparison) -> Table:
    """One row a method: GB (1e9 bytes), share of the full weights, and seconds on the link."""
    total = comparison.total
    rows = [
        [name, f"{size / 1e9:.4g}", percent(size, total.size), f"{comparison.on_link_s(size):.3g} s", *more]
        for name, size, *more in (
            ("full", total.size, "", "every byte"),
            ("delta", total.delta, f"{comparison.on_link_s(total.delta) + comparison.find_s:.3g} s", DELTA),
            ("FP8", total.fp8, "", "FP8 changes the weights; the time of the conversion was not measured"),
        )
    ]
    columns = ["method", "GB", "of full", "on the link", "with the search on one core", "note"]
    return Table(f" at {comparison.link_gb_per_s:g} GB/s", columns, rows)


@titled("What changed")
def kinds_table(comparison: Comparison) -> Table:
    """One row a kind of tensor, the first MOST_ROWS, and the total: how much changed."""
    rest = len(comparison.kinds) - MOST_ROWS
    rows = [
        [
            k.name,
            str(k.count),
            f"{k.size / 1e9:.4g}",
            percent(k.changed, k.values),
            percent(k.changed_bytes, k.size),
        ]
        for k in [*comparison.kinds[:MOST_ROWS], comparison.total]
    ]
    return Table(
        "",
        ["tensors", "count", "GB", "values changed", "bytes changed"],
        rows,
        (f"{rest} more kinds are in the JSON." if rest > 0 else ""),
    )
