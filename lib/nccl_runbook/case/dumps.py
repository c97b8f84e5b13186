"""What recorder dumps and stacks among the files of a log show."""
import dataclasses

from nccl_runbook.core.findings import Finding
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import READ_BY_HANG
from nccl_runbook.messages.facts import Logs


@dataclasses.dataclass(frozen=True)
class Dumps:
    """``sentence``: as `hang` says it; ``next``: what to collect next, or ""."""

    sentence: str
    finding: Finding
    tables: list[object]
    next: str = ""


def dumps_of(logs: Logs, paths: list[str], limit: Limit) -> tuple[Dumps | None, Logs]:
    """What `hang` says of them, None without any; and the logs, in which these files count as read."""
    theirs = [f for f in logs.files if READ_BY_HANG in f.kind + f.problem]
    if not theirs:
        return None, logs
    from nccl_runbook.hang import read
    from nccl_runbook.hang.judge import hang_told, judge
    from nccl_runbook.hang.table import tables

    seen = read.collect([p for p in paths if p != "-"], limit)
    told = judge(seen)
    sure = f" ({told.status})" if told.status in ("possible", "likely") else ""
    dumps = Dumps(f"{told.kind}: {told.sentence}{sure}", hang_told(told, seen.logs.launcher), tables(seen, told.culprits), told.decides)
    files = [dataclasses.replace(f, kind="", problem="") if f in theirs else f for f in logs.files]
    return dumps, dataclasses.replace(logs, files=files)
