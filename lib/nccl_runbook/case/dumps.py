"""What recorder dumps and stacks among the files of a log show. No pydantic here, as triage starts with this file."""
from nccl_runbook.logs.file import Limit
from nccl_runbook.messages.facts import Logs
from nccl_runbook.triage.judge import HANG_READS, Dumps


def dumps_of(logs: Logs, paths: list[str], limit: Limit) -> tuple[Dumps | None, list[object]]:
    """What `hang` says of the recorder dumps and stacks among the files, with its tables; None without any."""
    if not any(HANG_READS in f.kind + f.problem for f in logs.files):
        return None, []
    from nccl_runbook.hang import read
    from nccl_runbook.hang.judge import hang_told, judge
    from nccl_runbook.hang.table import tables

    seen = read.collect([p for p in paths if p != "-"], limit)
    told = judge(seen)
    sure = f" ({told.status})" if told.status in ("possible", "likely") else ""
    return Dumps(f"{told.kind}: {told.sentence}{sure}", hang_told(told, seen.logs.launcher), told.decides), tables(seen, told.culprits)
