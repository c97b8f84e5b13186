"""What was given to 00-start and 07-logs, as facts of a step, and what this host shows without opening a GPU."""

import re
from collections.abc import Sequence
from pathlib import Path

from nccl_runbook.case.facts import Start
from nccl_runbook.core.facts import Gap
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
    return Start(logs, hang_of(logs, log.strip(), limit) if logs else None, devices(), driver())


def hang_of(logs: Logs, paths: Sequence[str] | str, limit: Limit) -> Hang | None:
    """What recorder dumps and stacks among the files of these logs hold, None without any."""
    if not any(READ_BY_HANG in f.kind + f.problem for f in logs.files):
        return None
    from nccl_runbook.hang.read import collect as collect_hang

    return collect_hang(paths, limit)


def devices(folder: Path = Path("/dev")) -> list[str]:
    """Device files of NVIDIA GPUs: they can be listed without opening a GPU."""
    return sorted(str(path) for path in folder.glob("nvidia[0-9]*"))


def driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | Gap:
    """The version of the loaded kernel module; the line reads "NVRM version: NVIDIA UNIX ... Kernel Module ... 580.159.04 ..."."""
    try:
        found = re.search(r"Kernel Module.{0,80}?\s(\d{1,9}(?:\.\d{1,9}){1,4})\s", path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return Gap("absent", f"{path}: {error.strerror}")
    return found[1] if found else Gap("failed", f"{path} has no known version")
