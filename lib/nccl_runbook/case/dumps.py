"""What recorder dumps and stacks among the files of a log show."""
import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding
from nccl_runbook.hang.facts import Hang
from nccl_runbook.logs.sources import READ_BY_HANG
from nccl_runbook.messages.facts import Logs


@dataclasses.dataclass(frozen=True)
class Dumps:
    """``sentence``: as `hang` says it; ``next``: what to collect next, or ""."""

    sentence: str
    finding: Finding
    tables: list[object]
    next: str = ""


def dumps_of(hang: Hang | Gap | None, logs: Logs) -> tuple[Dumps | None, Logs]:
    """What `hang` says of them, None without any, or where an old record holds none; and the logs, in which these files count as read."""
    if hang is None or isinstance(hang, Gap):
        return None, logs
    from nccl_runbook.hang.judge import hang_told, judge
    from nccl_runbook.hang.table import tables

    told = judge(hang)
    sure = f" ({told.status})" if told.status in ("possible", "likely") else ""
    dumps = Dumps(f"{told.kind}: {told.sentence}{sure}", hang_told(told, hang.logs.launcher), tables(hang, told.culprits), told.decides)
    files = [dataclasses.replace(f, kind="", problem="") if READ_BY_HANG in f.kind + f.problem else f for f in logs.files]
    return dumps, dataclasses.replace(logs, files=files)
