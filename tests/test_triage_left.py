"""A rank that exits with code 0 while others still communicate: torchrun neither lists it nor sent it SIGTERM."""
from __future__ import annotations

import time
from pathlib import Path

import pytest
from nccl_runbook.messages.lines import matcher
from nccl_runbook.messages.read import collect
from nccl_runbook.triage.judge import judge

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5515."
TRACEBACK = ["Traceback (most recent call last):", "    return launch_agent(", "           ^^^^^^^^^^^^^"]


def log(*ranks: tuple[int, int, int], sent: tuple[int, ...] = (), error: str = CLOSED, launcher: list[str] = TRACEBACK) -> str:
    """What ranks and torchrun print: (rank, local rank, exit code) of each process in torchrun's list, whose pids are 40 + rank;
    ``sent``: ranks to which it sent SIGTERM."""
    lines = ["step 3 loss 0.5", *(f"[rank{rank}]: RuntimeError: {error}" for rank, _, code in ranks if code == 1)]
    lines += [f"W1201 02:42:29.227000 4 torch/elastic/api.py:1028] Sending process {40 + rank} closing signal SIGTERM" for rank in sent]
    lines += [*launcher, "Failures:"]
    for at, (rank, local, code) in enumerate(ranks):
        lines += [f"[{at}]:", "  host      : n1", f"  rank      : {rank} (local_rank: {local})",
                  f"  exitcode  : {code} (pid: {40 + rank}){'  (SIGTERM)' if code == -15 else ''}", "  error_file: <N/A>"]
    return "\n".join(lines) + "\n"


def left(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "job.log"
    path.write_text(text)
    found = judge(collect([str(path)]))
    return [h.says for h in found if (h.cause, h.status) == ("collective-on-some-ranks-only", "likely")]


@pytest.mark.parametrize(("text", "name"), [
    (log((0, 0, 1), (2, 2, 1), sent=(0,)), "Rank 1 "),
    (log((0, 0, 1), (2, 2, 1)), "Rank 1 "),
    (log((1, 1, 1), (2, 2, -15), sent=(2,)), "Rank 0 "),
    (log((0, 0, 1), (3, 3, 1)), "Ranks 1, 2 ")])
def test_a_rank_that_is_neither_listed_nor_sent_a_signal_left(tmp_path: Path, text: str, name: str) -> None:
    (says,) = left(tmp_path, text)
    assert says.startswith(name)


@pytest.mark.parametrize("text", [
    log((0, 0, 1), (2, 2, 1), sent=(1,)),  # torch 2.0 does not list whom it ended
    log((0, 0, 1), (1, 1, 1), (2, 2, 1)),  # each rank is listed
    log((0, 0, 1), (1, 1, -9), (3, 3, 1)),  # one was killed
    log((0, 0, 1), (2, 2, 1), error="CUDA error: an illegal memory access was encountered"),
    log((0, 0, 1), (2, 2, 7)),  # what that one printed is not in this log
    log((0, 0, 1), (2, 2, 1), launcher=[]),  # a part of a log: a line to rank 1 may be missing
    log((0, 0, 1), (2, 2, 1)) + log((8, 0, 1), (10, 2, 1)),  # two nodes, or two attempts
    log(*((n, n, 1) for n in range(12) if n != 3)),  # more than is kept of one message
    log((0, 0, -15), (2, 2, -15), sent=(0, 2)),
    log((8, 0, 1), (11, 3, 1), (9, 1, -15), sent=(9,)),  # the second of two nodes: who ended on the first one?
    "[rank5]: step 3 loss 0.5\n" + log((0, 0, 1), (2, 2, 1)),  # the first of two nodes
    "n1:7:9 [0] NCCL INFO comm 0x5a rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 5e000 - Init COMPLETE\n" + log((0, 0, 1), (2, 2, 1)),
    f"[rank1]: RuntimeError: {CLOSED}\n" + log((0, 0, 1), (2, 2, 1)),  # rank 1 lost a peer, too
    "[rank1]: ValueError: no such layer\n" + log((0, 0, 1), (2, 2, 1))])
def test_nobody_left_if_the_lines_may_be_read_otherwise(tmp_path: Path, text: str) -> None:
    assert left(tmp_path, text) == []


@pytest.mark.parametrize("clue", [
    "n1:7:9 [1] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error",
    "kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=9, name=python, GPU has fallen off the bus.",
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.00 GiB"])
def test_what_else_explains_the_end_leads(tmp_path: Path, clue: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"{clue}\n" + log((0, 0, 1), (2, 2, 1)))
    assert judge(collect([str(path)]))[0].cause != "collective-on-some-ranks-only"
    path.write_text(log((0, 0, 1), (2, 2, 1)))
    assert judge(collect([str(path)]))[0].cause == "collective-on-some-ranks-only"


@pytest.mark.parametrize("rows", [
    [(99999999999, 0, -15), (3, 99, 1)], [(99999999999, 99999999999, 1)], [(30000000, 0, -15), (3, 3, 1)],
    [(0, 0, 1), (99999, 99999, 1)]])
def test_ranks_that_no_job_has_take_no_time(tmp_path: Path, rows: list[tuple[int, int, int]]) -> None:
    began = time.monotonic()
    assert left(tmp_path, log(*rows)) == [] and time.monotonic() - began < 10


@pytest.mark.parametrize(("text", "is_odd"), [("Last error:", False), ("Last error: strange", True), ("fatal error:", True)])
def test_the_head_of_a_quoted_warning_does_not_look_like_an_error(text: str, is_odd: bool) -> None:
    assert bool(matcher().pattern("looks-odd").search(text)) == is_odd
