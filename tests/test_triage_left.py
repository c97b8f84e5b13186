"""A rank that leaves with exit code 0 while others still communicate: torchrun lists every process that failed, and not this one."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nccl_runbook.messages.read import collect
from nccl_runbook.triage.judge import judge

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.1.2.3]:5515."


def failed(*ranks: tuple[int, int, int], error: dict[int, str] | None = None) -> str:
    """What ranks and torchrun print: (rank, local rank, exit code) of each process in torchrun's list."""
    lines = [f"[rank{rank}]: RuntimeError: {(error or {}).get(rank, CLOSED)}" for rank, _, code in ranks if code == 1]
    lines += ["Failures:"]
    for at, (rank, local, code) in enumerate(ranks):
        lines += [f"[{at}]:", "  time      : 2026-11-30_18:36:05", "  host      : n1", f"  rank      : {rank} (local_rank: {local})",
                  f"  exitcode  : {code} (pid: {40 + rank}){'  (SIGTERM)' if code == -15 else ''}", "  error_file: <N/A>"]
    return "\n".join(["step 3 loss 0.5", *lines]) + "\n"


def left(tmp_path: Path, log: str) -> Any:
    path = tmp_path / "job.log"
    path.write_text(log)
    return next((h for h in judge(collect([str(path)])) if "exit code 0 while" in h.says), None)


@pytest.mark.parametrize(("ranks", "name"), [
    ([(0, 0, 1), (2, 2, 1)], "Rank 1 "), ([(1, 0 + 1, 1), (2, 2, 1)], "Rank 0 "), ([(8, 0, 1), (11, 3, 1), (9, 1, -15)], "Rank 10 "),
    ([(0, 0, 1), (3, 3, 1)], "Ranks 1, 2 "), ([(0, 0, 1), (2, 2, 1), (3, 3, -15), (4, 4, -15)], "Rank 1 ")])
def test_a_rank_that_the_list_leaves_out_ended_well_and_too_early(tmp_path: Path, ranks: list[tuple[int, int, int]], name: str) -> None:
    lead = left(tmp_path, failed(*ranks))
    assert (lead.cause, lead.status) == ("collective-on-some-ranks-only", "likely") and lead.says.startswith(name)


@pytest.mark.parametrize("log", [
    failed((0, 0, 1), (1, 1, -9), (2, 2, 1)),  # killed
    failed((0, 0, 1), (1, 1, 1), (2, 2, 1)),  # everybody lost a connection: the peer is on another host
    failed((0, 0, 1), (2, 2, 1), error={0: "CUDA error: an illegal memory access was encountered"}),  # its own error
    failed((0, 0, 1), (2, 2, 7)),  # what that one printed is not in this log
    failed((0, 0, 1), (2, 2, 1)) + failed((8, 0, 1), (10, 2, 1)),  # two nodes, or two attempts
    failed((0, 0, -15), (2, 2, -15)),
    "[rank0]: RuntimeError: " + CLOSED + "\n"])
def test_nobody_left_if_the_list_may_be_read_otherwise(tmp_path: Path, log: str) -> None:
    assert left(tmp_path, log) is None
