"""What the user gave, read as 07-logs reads it, and what this host shows without opening a GPU."""

import os
import re
from pathlib import Path

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import Redactor
from nccl_runbook.logs.file import Limit
from nccl_runbook.messages import read
from nccl_runbook.triage.facts import Start

LIMIT_S = 5.0  # somebody waits in front of the cockpit; 07-logs takes longer


def collect(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path; "" for what was not brought. No GPU is touched.

    ``log``: a file, folder or archive, or several separated by a colon.
    """
    symptom, log = symptom.strip(), log.strip()
    logs = read.collect(log, symptom, limit=Limit(LIMIT_S)) if symptom or log else None
    secrets = Redactor(os.environ)  # the logs are without secrets already
    return Start(secrets.text(symptom), secrets.text(log), logs, devices(), driver())


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
