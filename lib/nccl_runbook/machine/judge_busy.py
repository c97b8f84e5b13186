"""Whether GPU tests may run now: only if no other process uses the GPUs."""

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.machine.facts import GpuUsers
from nccl_runbook.machine.guard import in_the_way

ANYWAY = Remedy(
    "you",
    "Wait until the GPUs are free. Or test now, but the test may slow the job on these GPUs down or "
    "take GPU memory from that job.",
    ('make report ARGS="--allow-busy"',),
)


def gpus_busy(users: GpuUsers | Gap, allow_busy: bool) -> Finding | None:
    """The finding that forbids tests on GPUs; None if tests may run, or nothing is known (without NVML no
    GPU test runs anyway)."""
    busy = in_the_way(users, allow_busy)
    if busy is None:
        return None
    own_job = Remedy(
        "you",
        "Your own job uses the GPUs. If this job hangs, run `look` before you end the job, because "
        "the evidence disappears with the job.",
        (
            *(f"py-spy dump --pid {pid}" for pid in busy.mine),
            f"ps -o pid,stat,wchan:30,etime,cmd -p {' '.join(map(str, busy.mine))}",
        ),
    )
    return Finding(
        "gpus-busy",
        Severity.UNKNOWN,
        busy.reason,
        tuple(Evidence(w, "users") for w in busy.words),
        (own_job, ANYWAY) if busy.mine else (ANYWAY,),
    )
