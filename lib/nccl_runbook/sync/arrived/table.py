"""The tensors that differ between trainer and engine."""

from nccl_runbook.report.tables import Cell, Table, titled
from nccl_runbook.sync.arrived.facts import Arrival

MOST = 64


@titled("Trainer against engine")
def arrival_table(arrival: Arrival) -> Table:
    """One row for each of the first tensors that differ."""
    return Table(
        f": {len(arrival.differing)} of {len(arrival.pairs)} tensors differ",
        ["trainer", "engine", "", "what trainer and engine have"],
        [
            [", ".join(pair.trainer[:3]), ", ".join(pair.engine[:3]), Cell(pair.said, "broken"), pair.detail]
            for pair in arrival.differing[:MOST]
        ],
    )
