"""Saved stacks alone, in one round or two: who is named, and who must not be."""

import itertools
import json

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.hang import judge as rules
from nccl_runbook.hang.facts import Hang, Stack
from nccl_runbook.hang.read import collect
from nccl_runbook.messages.facts import Logs

LOOP = ["step (llm/loop.py:140)", "run (llm/loop.py:88)", "<module> (pretrain.py:31)"]
C10D = "torch/distributed/distributed_c10d.py"
COLLECTIVE = [f"all_gather ({C10D}:3201)", "wrapper (torch/distributed/c10d_logger.py:83)", "norm (llm/clip.py:19)", *LOOP]
SYNCS = ["synchronize (torch/cuda/__init__.py:985)", *COLLECTIVE]
BACKWARD = ["_engine_run_backward (torch/autograd/graph.py:824)", "backward (torch/_tensor.py:626)", *LOOP]
DEVICE = ["synchronize (torch/cuda/__init__.py:985)", *LOOP]
WRITES = ["write (torch/distributed/checkpoint/filesystem.py:400)", "dump (llm/store.py:52)", *LOOP]
EVALUATES = ["decode (tokenizers/base.py:7)", "evaluate (llm/metrics.py:77)", *LOOP]
LOADER = ["select (selectors.py:415)", "wait (multiprocessing/connection.py:1136)", "poll (multiprocessing/connection.py:257)",
          "get (multiprocessing/queues.py:113)", "_try_get_data (torch/utils/data/dataloader.py:1275)",
          "__next__ (torch/utils/data/dataloader.py:708)", *LOOP]
JOINS = ["join (threading.py:1119)", "run (llm/loop.py:90)", "<module> (pretrain.py:31)"]
STORE = [
    "_store_based_barrier (torch/distributed/distributed_c10d.py:980)",
    "init_process_group (torch/distributed/distributed_c10d.py:1700)",
    "setup (llm/loop.py:20)",
    "<module> (pretrain.py:31)",
]
RECEIVES = [f"recv ({C10D}:2350)", "wrapper (torch/distributed/c10d_logger.py:83)", "stage (llm/pipe.py:61)", *LOOP]
FORWARD = ["forward (llm/model.py:205)", *LOOP]
PIN_MEMORY = ['Thread 900 (idle): "Thread-2 (_pin_memory_loop)"', "    select (selectors.py:415)",
              "    _pin_memory_loop (torch/utils/data/_utils/pin_memory.py:59)"]


def folder(path, frames, state="active"):
    path.mkdir(parents=True, exist_ok=True)
    for rank, of_rank in enumerate(frames):
        pid = 7000 + rank
        (path / f"rank{rank}.txt").write_text("\n".join([
            f"Process {pid}: python3 pretrain.py", "Python v3.12.3 (/usr/bin/python3.12)", "",
            f'Thread {pid} ({state}): "MainThread"', *(f"    {frame}" for frame in of_rank), *PIN_MEMORY, ""]))
    return path


@pytest.mark.parametrize("waits", [COLLECTIVE, SYNCS, ["wait (ProcessGroupNCCL.cpp:700)", *COLLECTIVE], STORE])
@pytest.mark.parametrize(("works", "place"), [(WRITES, "dump, store.py:52"), (EVALUATES, "evaluate, metrics.py:77")])
def test_one_round_names_who_is_elsewhere_as_possible(tmp_path, waits, works, place):
    told = rules.judge_hang(collect([str(folder(tmp_path, [waits, waits, works, waits]))]))
    assert (told.kind, told.culprits, told.victims, told.status) == ("host-busy", (2,), (0, 1, 3), "possible")
    assert told.frame.startswith(place.partition(" ")[0]) or "decode" in told.frame
    assert told.collective in ("all_gather", "init_process_group")


def test_two_rounds_in_which_it_stays_make_it_likely(tmp_path):
    rounds = [COLLECTIVE, COLLECTIVE, COLLECTIVE, WRITES]
    one, two = folder(tmp_path / "1", rounds), folder(tmp_path / "2", rounds)
    told = rules.judge_hang(collect([str(one), str(two)]))
    assert (told.culprits, told.status, told.cause) == ((3,), "likely", "rank-busy-on-host")
    assert told.decides == "open store.py:52"


def test_who_went_on_between_two_rounds_is_possible_at_most_and_who_came_is_not_named(tmp_path):
    one, elsewhere = folder(tmp_path / "1", [COLLECTIVE] * 3 + [WRITES]), folder(tmp_path / "2", [COLLECTIVE] * 3 + [FORWARD])
    came = folder(tmp_path / "3", [COLLECTIVE] * 4)
    assert [(t.culprits, t.status) for t in (rules.judge_hang(collect([str(one), str(two)])) for two in (elsewhere, came))] == [
        ((3,), "possible"), ((), None)]


def test_waiters_that_moved_between_two_rounds_wait_for_nobody(tmp_path):
    one, two = folder(tmp_path / "1", [COLLECTIVE] * 3 + [WRITES]), folder(tmp_path / "2", [FORWARD] * 3 + [WRITES])
    assert rules.judge_hang(collect([str(one), str(two)])).culprits == ()


@pytest.mark.parametrize("frames", [
    [COLLECTIVE] * 4, [FORWARD] * 4, [BACKWARD, BACKWARD, BACKWARD, FORWARD], [RECEIVES, RECEIVES, RECEIVES, FORWARD],
    *([COLLECTIVE, COLLECTIVE, COLLECTIVE, innocent] for innocent in (DEVICE, BACKWARD, LOADER, JOINS, STORE, RECEIVES)),
    [COLLECTIVE, FORWARD, FORWARD, FORWARD]])
def test_nobody_is_named_who_only_waits_or_for_whom_nobody_waits(tmp_path, frames):
    told = rules.judge_hang(collect([str(folder(tmp_path, frames, "idle"))]))
    assert (told.kind, told.culprits, told.frame) == ("unknown", (), "")


def test_a_stay_in_one_wait_for_the_gpu_over_two_rounds_counts_as_waiting(tmp_path):
    rounds = [BACKWARD, BACKWARD, BACKWARD, WRITES]
    told = rules.judge_hang(collect([str(folder(tmp_path / "1", rounds)), str(folder(tmp_path / "2", rounds))]))
    assert (told.culprits, told.status) == ((3,), "likely")


def watchdog(rank):
    return (
        f"[rank{rank}]:[E1129 03:10:00.5 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=90, OpType=ALLGATHER, NumelIn=4, NumelOut=16, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
    )


def test_the_stack_says_what_a_silent_rank_was_in(tmp_path):
    (tmp_path / "job.log").write_text("".join(map(watchdog, (0, 1, 3))))
    only = folder(tmp_path / "s", [COLLECTIVE, COLLECTIVE, WRITES, COLLECTIVE])
    told = rules.judge_hang(collect([str(tmp_path / "job.log"), str(only)]))
    assert (told.kind, told.culprits, told.victims, told.status) == ("host-busy", (2,), (0, 1, 3), "likely")
    assert told.frame == "dump, store.py:52"
    in_it = folder(tmp_path / "t", [COLLECTIVE] * 4)
    assert rules.judge_hang(collect([str(tmp_path / "job.log"), str(in_it)])).culprits == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.text(max_size=30), max_size=5), st.text(max_size=6)), max_size=8))
def test_any_stacks_give_the_same_answer_in_any_order(rows):
    stacks = [Stack(rank, f"{at}", frames, state) for at, (rank, frames, state) in enumerate(rows)]
    told = {json.dumps([t.kind, t.culprits, t.victims, t.status]) for order in itertools.islice(itertools.permutations(stacks), 4)
            for t in [rules.judge_hang(Hang([], [], [], [], sorted(order, key=lambda s: (s.rank, s.source)), Logs([], "", {}, [])))]}
    assert len(told) == 1
