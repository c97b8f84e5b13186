"""Tables of planned allocations: rank to GPU of every group, and one row a file of a folder."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import verdict_of
from nccl_runbook.plan.answer import FOREIGN
from nccl_runbook.report.tables import Cell, Table, titled

MOST_GPUS, MOST_NAMES = 32, 6
# Plan.placement -> what a reader reads
PLACEMENTS = {
    "clean": "fits",
    "duplicate": "two ranks on one GPU",
    "oversubscribed": "more ranks than GPUs",
    "zero-visible": "a rank without a GPU",
    "refused": "refused by the framework",
    None: "cannot be read",
}


def groups_table(groups: Sequence[Any], of_node: int = 0) -> Table:
    """One row a GPU, one column a group, with the ranks on it: as narrow as a phone. ``of_node``: GPUs of a
    node, if there are several."""
    gpus = sorted({r.gpu for g in groups for r in g.ranks if r.gpu is not None})[:MOST_GPUS]
    apart = gpus and 0 < of_node <= gpus[-1]
    rows = [
        [
            f"node {gpu // of_node} GPU {gpu % of_node}" if apart else f"GPU {gpu}",
            *(_seats(g, gpu) for g in groups),
        ]
        for gpu in gpus
    ]
    if any(waits := [_homeless(g) for g in groups]):
        rows.insert(0, ["no GPU", *(wait or Cell("\u2013") for wait in waits)])
    return Table(
        "Which rank uses which GPU",
        ["GPU", *(f"{g.name} ({g.of})" if g.of else g.name for g in groups)],
        rows,
        "Ranks are numbered within their group. NCCL refuses to connect two ranks of one group on one GPU.",
        drawn="grid",
    )


def intended_tables(intended: Any) -> list[Table]:
    """The table of the intended allocation; empty if none was named."""
    return [] if intended is None else [intended_table(intended)]


@titled("Your allocation")
def intended_table(intended: Any) -> Table:
    """What plan.answer.intend returns, as a table."""
    if intended is None or intended.placed is None:
        return Table(
            "",
            ["group"],
            [],
            f"{intended.text} cannot be read" if intended else "the parameter allocation is empty",
        )
    return dataclasses.replace(
        groups_table(intended.placed.groups),
        caption=f": {intended.text} (AReaL {intended.rules.tag}) on {counted(intended.gpus, 'GPU')}: "
        f"{PLACEMENTS[intended.placement]}",
    )


def _seats(group: Any, gpu: int) -> Cell:
    """The ranks of the group on this GPU; broken if there are several."""
    ranks = [r for r in group.ranks if r.gpu == gpu]
    names = [
        *(f"{r.rank} {r.role}" for r in ranks[:MOST_NAMES]),
        *([f"and {len(ranks) - MOST_NAMES} more"] if len(ranks) > MOST_NAMES else []),
    ]
    return Cell(", ".join(names) or "\u2013", "broken" if len(ranks) > 1 else "ok" if ranks else "")


def _homeless(group: Any) -> Cell | None:
    """The ranks of the group that wait for a GPU; None if none does."""
    ranks = [str(r.rank) for r in group.ranks if r.gpu is None]
    return Cell(f"{len(ranks)} wait, rank {ranks[0]} first", "warn") if ranks else None


def plans_table(plans: Sequence[Any], left_out: Sequence[str] = ()) -> Table:
    """One row a plan, then files without one and the reason; files of other programs are not listed."""
    read = [
        [
            p.where or "the string",
            Cell(verdict_of(p.findings), p.finding.severity.value),
            PLACEMENTS[p.placement],
            p.text or f"{p.framework}: its flags",
            str(p.gpus),
        ]
        for p in plans
    ]
    unread = [
        (
            Cell("passed over", "muted") if line.endswith(FOREIGN) else Cell("not read", "unknown"),
            line.partition(": "),
        )
        for line in left_out
    ]
    return Table(
        "Allocations",
        ["file", "verdict", "placement", "allocation", "GPUs of a node"],
        [*read, *([file, word, "", why, ""] for word, (file, _, why) in unread)],
    )


def groups_tables(plans: Sequence[Any]) -> list[Table]:
    """The groups_table of each plan that parses, with its name as caption."""
    return [
        dataclasses.replace(groups_table(p.placed.groups, p.gpus), caption=_head(p))
        for p in plans
        if p.placed
    ]


def _head(plan: Any) -> str:
    """What is planned, for which launcher and GPUs, and whether it fits."""
    parts = [
        f"AReaL {plan.rules.tag}" if plan.rules else plan.framework,
        plan.launcher and f"launcher {plan.launcher}",
        f"{counted(plan.gpus, 'GPU')} a node",
    ]
    return f"{plan.where or plan.text}: {PLACEMENTS[plan.placement]} ({', '.join(filter(None, parts))})"
