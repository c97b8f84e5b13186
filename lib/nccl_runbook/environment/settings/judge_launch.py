"""How a script starts its ranks: more of them than GPUs, and what a launcher refuses."""

from collections.abc import Iterator, Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.facts import Role


def more_ranks_than_gpus(roles: Sequence[Role]) -> Iterator[Finding]:
    """A script starts more ranks on a node than there are GPUs; only likely a fault, since ranks may share
    GPUs or use none."""
    for index, role, (ranks, gpus) in (
        (index, role, role.crowded) for index, role in enumerate(roles) if role.crowded
    ):
        yield Finding(
            "more-ranks-than-gpus",
            Severity.BROKEN,
            f"{role.name} starts {ranks} ranks on a node, but only {counted(gpus, 'GPU')} "
            f"{'is' if gpus == 1 else 'are'} available",
            (
                Evidence(
                    f"{ranks} ranks, {counted(gpus, 'GPU')}",
                    f"{role.name} {role.crowded_by}"
                    if role.crowded_by
                    else f"environment.roles[{index}].crowded",
                ),
            ),
            (
                Remedy(
                    "your launcher",
                    f"Start {counted(gpus, 'rank')} per node: --nproc-per-node of torchrun, --num_processes "
                    "of accelerate, --num_gpus of deepspeed, or --ntasks-per-node of srun. If srun starts "
                    f"torchrun, use --ntasks-per-node=1. Or make {ranks} GPUs available.",
                ),
            ),
            cause="more-ranks-than-gpus",
            status="likely",
        )


def launch_faults(roles: Sequence[Role]) -> Iterator[Finding]:
    """What scripts/launchers.toml says against how ranks are started."""
    for index, role, name in ((i, r, name) for i, r in enumerate(roles) for name in r.faults):
        row = table("scripts/launchers")["fault"][name]
        yield Finding(
            name,
            Severity(row["severity"]),
            f"{role.name}: {row['says']}",
            (Evidence(role.faults[name], f"environment.roles[{index}].faults.{name}"),),
            (Remedy("your launcher", row["advice"], row["lines"]),),
            cause=row.get("cause"),
            status=row.get("status"),
        )
