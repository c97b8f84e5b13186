"""What several test files need: an engine with real Gloo ranks, and a way to see that a process is gone."""
from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from nccl_runbook.launch.engine import Engine
from nccl_runbook.redact import Redactor

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def engine(tmp_path):
    with Engine([sys.executable], tmp_path / "logs", Redactor(os.environ)) as running:
        yield running


def start_time(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot, None once it is gone or a zombie: with the pid its identity."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def gone(identities: dict[int, str | None], within_s: float = 5.0) -> bool:
    """Whether every process of {pid: start time} ends within so many seconds."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if all(start_time(pid) != started for pid, started in identities.items() if started):
            return True
        time.sleep(0.02)
    return False


def children(pid: int) -> list[int]:
    """Every descendant of a process, by /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found
