"""What was given to 00-start and 07-logs, as facts of a step."""

from collections.abc import Sequence

from nccl_runbook.case.facts import Start
from nccl_runbook.hang.facts import Hang
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import READ_BY_HANG
from nccl_runbook.messages import read
from nccl_runbook.messages.facts import Logs

LIMIT_S = 5.0  # somebody waits for the first answer; 07-logs takes longer


def collect(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path; "" for what was not given. No GPU is touched.

    ``log``: a file, folder or archive, or several separated by a colon.
    """
    limit = Limit(LIMIT_S)
    logs = read.collect(log.strip(), symptom.strip(), limit=limit) if symptom.strip() or log.strip() else None
    return Start(logs, hang_of(logs, log.strip(), limit) if logs else None)


def hang_of(logs: Logs, paths: Sequence[str] | str, limit: Limit) -> Hang | None:
    """What recorder dumps and stacks among the files of these logs hold, None without any."""
    if not any(READ_BY_HANG in f.kind + f.problem for f in logs.files):
        return None
    from nccl_runbook.hang.read import collect as collect_hang

    return collect_hang(paths, limit)
