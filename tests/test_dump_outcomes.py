"""Dumps read by several processes: in order, all of them, whatever becomes of a process, and nothing of them is left behind."""
from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time

import psutil
import pytest
import warm_cli
from bench_hang import make
from nccl_runbook.hang.dumps import file as dump_outcomes

RANKS = 12


@pytest.fixture
def names(tmp_path):
    make(tmp_path, RANKS, 40)
    return [str(tmp_path / f"nccl_trace_rank_{rank}") for rank in range(RANKS)]


def read(outcomes):
    return [None if reading is None else reading.entries for reading, _, _ in outcomes]


EXPECTED = [39 if rank == RANKS // 3 else 40 for rank in range(RANKS)]


@pytest.fixture(autouse=True, scope="module")
def no_warm_process():
    """These tests count the processes that this one started; other files keep one that answers commands."""
    warm_cli.end()


@pytest.mark.parametrize("workers", [1, 2, 5, 40])
def test_they_come_in_order_and_no_process_stays(names, workers):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as a program that calls this may have it
    try:
        assert read(dump_outcomes.of_files(names, workers)) == EXPECTED
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGTERM}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert multiprocessing.active_children() == [] == psutil.Process().children()


def test_whoever_stops_asking_leaves_no_process_and_no_blocked_signal(names):
    outcomes = dump_outcomes.of_files(names * 50, 3)
    next(outcomes)
    readers = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        outcomes.throw(KeyboardInterrupt)
    assert len(readers) == 3 and psutil.Process().children() == [] and not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_signal_that_comes_while_processes_start_is_delivered_after_that(names, monkeypatch):
    """It would be lost in a hook of the fork, or leave a process behind: here it comes right before each one."""
    came, fork = [], os.fork

    def signalled() -> int:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert came == []
        return fork()

    monkeypatch.setattr(os, "fork", signalled)
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(1))
    try:
        outcomes = dump_outcomes.of_files(names, 2)
        next(outcomes)
        assert came == [1]
        outcomes.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_that_is_killed_costs_one_dump(names):
    outcomes = dump_outcomes.of_files(names, 2)
    next(outcomes)
    deadline = time.monotonic() + 20  # until both have sent what they had to: a pipe holds it
    os.kill(psutil.Process().children()[0].pid, signal.SIGKILL)
    rest = list(outcomes)
    assert time.monotonic() < deadline and len(rest) == RANKS - 1
    lost = [problem for reading, _, problem in rest if reading is None]
    assert len(lost) <= 1 and all("process" in problem for problem in lost)


def test_a_process_that_ends_before_it_has_read_anything_costs_one_dump(names, monkeypatch):
    """The near miss: the files of the others are read, and the rest of its own, too."""
    fork, begun = os.fork, []

    def short_lived() -> int:
        begun.append(1)
        pid = fork()
        return pid if pid or len(begun) > 1 else os._exit(9)

    monkeypatch.setattr(os, "fork", short_lived)
    told = list(dump_outcomes.of_files(names, 2))
    assert read(told) == [None, *EXPECTED[1:]] and "process" in told[0][2]


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_no_process_can_be_started_this_one_reads(names, monkeypatch, allowed):
    fork, begun = os.fork, []

    def limited() -> int:
        if len(begun) >= allowed:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    assert read(dump_outcomes.of_files(names, 4)) == EXPECTED and len(begun) == allowed
