"""GPU tests that may run beside one another do; one that has to be alone begins once all others are gone."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from book_samples import Running
from processes import ROOT

HOLD = ("import sys; sys.path.insert(0, {tests!r}); from pathlib import Path; from turns import turn\n"
        "with turn(Path({lock!r}), {alone}):\n    print('in', flush=True); sys.stdin.readline()")


@pytest.fixture
def begins(tmp_path: Path) -> Callable[[bool], subprocess.Popen[str]]:
    def start(alone: bool) -> subprocess.Popen[str]:
        source = HOLD.format(tests=str(ROOT / "tests"), lock=str(tmp_path / "lock"), alone=alone)
        return Running([sys.executable, "-I", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    return start


def ended(holder: subprocess.Popen[str]) -> None:
    assert holder.communicate("\n", timeout=20) is not None and holder.returncode == 0


def waits(holder: subprocess.Popen[str]) -> bool:
    """Whether it stands in flock, by the kernel's list of locks, within ten seconds."""
    for _ in range(200):
        lines = Path("/proc/locks").read_text().splitlines()
        if any("->" in line and f" {holder.pid} " in line for line in lines):
            return True
        if holder.poll() is not None:
            return False
        subprocess.run(["sleep", "0.05"], check=True)
    return False


def test_beside_one_another_and_alone_only_after_both(begins: Callable[[bool], subprocess.Popen[str]]) -> None:
    with begins(False) as first, begins(False) as second:
        assert [first.stdout.readline(), second.stdout.readline()] == ["in\n"] * 2
        with begins(True) as last:
            assert waits(last)
            ended(first)
            assert waits(last)
            ended(second)
            assert last.stdout.readline() == "in\n"
            with begins(False) as late:
                assert waits(late)
                ended(last)
                assert late.stdout.readline() == "in\n"
                ended(late)


def test_those_alone_are_collected_last() -> None:
    command = [sys.executable, "-m", "pytest", "tests/gpu", "--collect-only", "-p", "no:cacheprovider"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120).stdout.splitlines()
    order = [line.rpartition("::")[2] for line in said if "::" in line]
    beside = ["test_two_ranks_on_one_gpu", "test_fault_is_given_to_the_right_rank[skip]"]
    alone = ["test_healthy_gpus", "test_fault_is_given_to_the_right_rank[slow]"]
    assert max(map(order.index, beside)) < min(map(order.index, alone)) and len(order) > 100
