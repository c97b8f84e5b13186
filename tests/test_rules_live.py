"""What live looks are taken to mean: each rule fires, and stays quiet beside it; readers of foreign answers never raise."""
from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import threading
import time
from pathlib import Path

import live_samples as s
import pytest
from hypothesis import example, given, settings, strategies as st
from nccl_runbook.case.given import Material
from nccl_runbook.case.read import gather
from nccl_runbook.cli.watch import RUNS_ON
from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.judge import hang_finding, judge_hang
from nccl_runbook.hang.judge_silence import of_picture
from nccl_runbook.hang.live import (
    ask_answers as live_answers,
    ask_proc as live_processes_ask_proc,
    ask_ras as live_answers_ask_ras,
    ask_sockets as live_processes_ask_sockets,
    ask_threads as live_processes_ask_threads,
)
from nccl_runbook.hang.live.facts import (
    Ended,
    Frame,
    GroupStatus,
    Listener,
    Live,
    LiveRank,
    RasCommunicator,
    RasRank,
    Socket,
    Stack,
)
from nccl_runbook.hang.live.faults.judge_others import NO_JOB
from nccl_runbook.hang.live.judge import Picture, judge_looks, verdict, with_command
from nccl_runbook.hang.live.judge_hosts import LOOK_THERE, missing_ranks
from nccl_runbook.look.live import first_text, page, text
from nccl_runbook.messages.facts import Logs
from processes import quickest_s
from pydantic import TypeAdapter

BUSY = {"R running": 97}


def told(*looks: Live) -> Picture:
    (picture,) = judge_looks(looks)
    page([picture], looks)
    text([picture], looks)
    return picture


def culprits(picture: Picture) -> list[int | None]:
    return [v.rank for v in picture.culprits]


def waiting(*numbers: int, **more) -> list:
    return [s.rank(n, s.IN_ALL_REDUCE, **more) for n in numbers]


# --- each rule, and its near miss

def test_the_sentence_of_a_rank_that_saves_while_31_wait() -> None:
    saving = s.rank(13, s.SAVING, "D", "folio_wait", moments={"D folio_wait": 60, "R running": 37}, world=32)
    found = told(s.look(*waiting(*(n for n in range(32) if n != 13), world=32), saving))
    assert re.fullmatch(
        r"rank 13 .* save_pretrained, train\.py:812 .*_save\b.*; 31 ranks .* all_reduce; .*network", found.sentence
    ), "the one sentence that the product is for"
    assert (found.kind, found.cause, culprits(found)) == ("host-busy", "rank-busy-on-host", [13])
    assert (len(found.victims), found.collective) == (31, "all_reduce")


def test_a_save_over_a_slow_network_is_work_too_and_a_wait_for_a_request_is_none() -> None:
    slow = s.rank(0, s.SAVING, "S", "rpc_wait_bit_killable")
    assert told(s.look(slow, *waiting(1, 2, 3))).kind == "host-busy"
    assert told(s.look(s.rank(0, s.ASLEEP, "S", "hrtimer_nanosleep"), *waiting(1, 2, 3))).kind == "skipped"


def test_of_a_rank_in_its_own_code_it_is_not_said_that_it_will_not_come() -> None:
    loads = s.rank(1, [Frame("load_data", "/home/a/train.py", 40)], "S", "hrtimer_nanosleep")
    loading, polling = told(s.look(loads, *waiting(0, 2, 3))), told(
        s.look(s.rank(1, s.ASLEEP, "S", "hrtimer_nanosleep"), *waiting(0, 2, 3))
    )
    assert (loading.kind, culprits(loading), loading.cause) == ("host-busy", [1], "rank-busy-on-host")
    assert (polling.kind, culprits(polling), polling.cause) == ("skipped", [1], None)
    ras = [s.communicator(counts, counts) for counts in [{0: 9, 1: 8, 2: 9, 3: 9}]]
    behind = told(s.look(s.rank(1, s.IN_BARRIER), *waiting(0, 2, 3), ras=ras))
    assert (culprits(behind), behind.cause) == ([1], "collective-on-some-ranks-only"), "it waits in another call, so it left this one out"


# --- each condition of judge_others by itself

def stranger(number: int, frames, torch: bool = False, nccl: str = "", remote: str = "", **more) -> LiveRank:
    """A process without a rank, at 10.0.0.1:(5000 + number)."""
    sockets = [Socket("ESTABLISHED", f"10.0.0.1:{5000 + number}", remote)] if remote else []
    made = s.rank(None, frames, "S", "hrtimer_nanosleep", world=1, has_torch=torch, nccl=nccl, sockets=sockets)
    return dataclasses.replace(made, **{"pid": 100 + number, "world_size": None, **more})


@pytest.mark.parametrize(
    ("processes", "is_stranger"),
    [
        ([stranger(0, s.ASLEEP)], True),
        ([stranger(0, s.IN_ALL_REDUCE)], True),
        ([stranger(0, None)], True),
        ([stranger(0, s.ASLEEP, torch=True)], True),
        ([stranger(0, s.IN_ALL_REDUCE, torch=True)], False),
        ([stranger(0, None, torch=True)], False),
        ([stranger(0, s.IN_ALL_REDUCE, nccl="/x/libnccl.so.2")], False),
        ([stranger(0, s.ASLEEP, rank=0)], False),
        ([stranger(0, s.ASLEEP, world_size=4)], False),
        ([stranger(0, s.ASLEEP, torch=True, remote="10.0.0.1:5001"), stranger(1, s.ASLEEP, torch=True, remote="10.0.0.1:5000")], False),
        ([stranger(0, s.ASLEEP, torch=True, remote="10.0.0.1:5000")], True),
        ([stranger(0, s.ASLEEP, torch=True, remote="10.0.0.9:443")], True),
        ([stranger(0, s.ASLEEP, remote="10.0.0.1:5001"), stranger(1, s.ASLEEP, remote="10.0.0.1:5000")], True),
    ],
)
def test_a_process_without_a_rank_is_a_stranger_unless_it_waits_or_speaks_to_another(processes: list[LiveRank], is_stranger: bool) -> None:
    found = told(s.look(*processes))
    assert (found.job == NO_JOB) is is_stranger
    assert ("neither torch nor NCCL" in found.sentence) == (is_stranger and not processes[0].has_torch)


def test_what_was_not_seen_names_the_ranks_or_pids_it_was_not_seen_of() -> None:
    hidden = {"log_tail": Gap("no-permission"), "samples": []}
    one, two = waiting(0, 1)
    known, unknown = (
        told(s.look(dataclasses.replace(one, world_size=2, **hidden, rank=n), dataclasses.replace(two, world_size=2))).not_seen
        for n in (0, None)
    )
    for lines, whose in ((known, "0"), (unknown, "100")):
        assert {f"stacks: the process ended (rank {whose})", f"log: no-permission (rank {whose})"} <= set(lines)
        assert not any(line.startswith("sockets") for line in lines)


@pytest.mark.parametrize(("rank", "file", "is_launcher"), [
    (None, "/x/torch/distributed/elastic/agent/server/api.py", True), (0, "/x/torch/distributed/elastic/agent/server/api.py", False),
    (None, "/x/torch/distributed/run.py", False)])
def test_torchrun_without_a_rank_is_told_as_that(rank: int | None, file: str, is_launcher: bool) -> None:
    agent = stranger(
        0,
        [Frame("_invoke_run", file, 860), Frame("main", "/x/torch/distributed/run.py", 900)],
        torch=True,
        nccl="/x/libnccl.so.2",
        rank=rank,
        world_size=4,
    )
    assert (told(s.look(agent)).decides == LOOK_THERE and "torchrun runs no rank" in told(s.look(agent)).sentence) is is_launcher


@pytest.mark.parametrize(("options", "cause"), [
    ({"PET_NNODES": "2"}, "rendezvous-misconfigured"),
    ({"PET_NNODES": "2:4", "PET_RDZV_ENDPOINT": "localhost:29400"}, "rendezvous-misconfigured"),
    ({"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1"}, "rendezvous-misconfigured"),
    ({"PET_NNODES": "2", "PET_MASTER_ADDR": "10.0.0.1"}, None),  # another host may still come
    ({"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "n1:29400"}, None),
    ({"PET_NNODES": "1:2"}, None), ({"PET_NNODES": "1"}, None), ({}, None)])
def test_torchrun_that_waits_for_other_hosts_at_localhost_waits_in_vain(options: dict[str, str], cause: str | None) -> None:
    frames = [Frame("next_rendezvous", "/x/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", 67)]
    agent = stranger(0, frames, torch=True, variables=options)
    found = told(s.look(agent))
    assert (found.cause, verdict([found])) == (cause, "broken" if cause else "unknown")
    beside = dataclasses.replace(agent, pid=101)  # of this host: they may meet there
    assert told(s.look(agent, beside)).cause is None


def test_one_sample_is_never_called_hung() -> None:
    found = told(s.look(s.rank(0, s.ASLEEP, "S", "hrtimer_nanosleep", lines=(0,)), *waiting(1, 2, 3, lines=(0,)), gap_s=0.0))
    assert (found.kind, found.culprits, verdict([found])) == ("unknown", [], "unknown") and "second sample" in found.sentence


def test_a_rank_is_stopped_only_where_every_sample_says_so() -> None:
    stopped = s.rank(2, s.IN_ALL_REDUCE, "T", "do_signal_stop")
    assert culprits(told(s.look(stopped, *waiting(0, 1, 3)))) == [2]
    once = dataclasses.replace(stopped, samples=[*stopped.samples[:-1], s.rank(2, s.IN_ALL_REDUCE).samples[-1]])
    assert told(s.look(once, *waiting(0, 1, 3))).kind != "stopped"


def test_gil_held_needs_the_same_line_each_time() -> None:
    held = s.rank(1, s.ASLEEP, "R", "running", gil=True, moments=BUSY, cpu_s=3.0)
    assert told(s.look(held, *waiting(0, 2, 3))).kind == "gil-held"
    loop = s.rank(1, s.ASLEEP, "R", "running", gil=True, moments=BUSY, cpu_s=3.0, lines=(0, 1, 0, 2))
    assert told(s.look(loop, *waiting(0, 2, 3))).kind == "host-busy"


@pytest.mark.parametrize(("function", "kind"), [("tokenize.<locals>.<listcomp>", "host-busy"), ("count.<locals>.<genexpr>", "host-busy"),
                                                ("tokenize.<locals>.match", "gil-held"), ("<lambda>", "gil-held")])
def test_a_comprehension_at_its_one_line_is_a_loop(function: str, kind: str) -> None:
    at = s.rank(1, [Frame(function, "/home/a/serve.py", 7)], "R", "running", gil=True, moments=BUSY, cpu_s=3.0)
    assert told(s.look(at, *waiting(0, 2, 3))).kind == kind


def test_nobody_is_accused_where_the_others_still_move() -> None:
    moving = [
        s.rank(n, s.IN_ALL_REDUCE, cpu_s=0.4, switches=50, lines=(0, 3, 1, 2), moments={"S futex": 50, "R running": 47}) for n in (0, 2, 3)
    ]
    found = told(s.look(s.rank(1, s.ASLEEP, "R", "running", cpu_s=3.0, moments=BUSY), *moving))
    assert (found.kind, found.culprits) == ("healthy", [])


def test_one_that_polls_alone_never_came_and_two_that_move_may_move_together() -> None:
    def polls(number: int):
        return s.rank(number, s.ASLEEP, "S", "hrtimer_nanosleep", switches=30)

    assert culprits(told(s.look(polls(1), *waiting(0, 2, 3)))) == [1]
    assert told(s.look(polls(1), polls(2), *waiting(0, 3))).kind == "unknown"


def test_beside_one_that_moves_nobody_is_accused_unless_all_others_wait() -> None:
    moves = s.rank(3, s.IN_ALL_REDUCE, "R", "running", cpu_s=3.0, moments=BUSY, lines=(0, 3, 0, 2))
    for other in (s.rank(0, s.ASLEEP, "S", "hrtimer_nanosleep"), s.rank(0, None, "S", "")):
        found = told(s.look(other, *waiting(1, 2), moves))
        assert (found.kind, culprits(found)) == ("unknown", [])
    left = dataclasses.replace(s.rank(0, s.ASLEEP, "S", "hrtimer_nanosleep"), log_tail=["RuntimeError: Connection reset by peer"])
    assert (
        told(s.look(left, *waiting(1, 2), moves)).decides != told(s.look(left, *waiting(1, 2, 3))).decides
    ), "who moves was not left alone"
    assert culprits(told(s.look(*waiting(0, 1, 2), moves))) == [3]
    of_eight = [dataclasses.replace(r, world_size=8, local_world_size=4) for r in (*waiting(0, 1, 2), moves)]
    assert culprits(told(s.look(*of_eight))) == [], "it may move with the four of another host"


def test_who_left_after_a_peer_is_not_the_first_one() -> None:
    def asleep(number: int, last: str):
        return dataclasses.replace(s.rank(number, s.ASLEEP, "S", "hrtimer_nanosleep"), log_tail=[last])

    reset, works = "RuntimeError: Connection reset by peer", s.rank(1, s.SAVING, "R", "running", cpu_s=3.0, moments=BUSY)
    first = told(s.look(asleep(0, reset), works, *waiting(2, 3)))
    assert (first.kind, culprits(first)) == ("host-busy", [1])
    assert told(s.look(asleep(0, reset), *waiting(1, 2, 3))).decides == LOOK_THERE


@pytest.mark.parametrize("last", ["step 4711", "RuntimeError: Connection reset by peer"])
def test_where_nobody_waits_nobody_is_late(last: str) -> None:
    ranks = [dataclasses.replace(s.rank(n, s.ASLEEP, "S", "hrtimer_nanosleep"), log_tail=[last]) for n in range(4)]
    found = told(s.look(*ranks))
    assert (found.kind, culprits(found)) == ("unknown", []) and found.decides != LOOK_THERE


def on_the_device(*watts: float | Gap, **of_first) -> Picture:
    """Ranks that wait for their GPUs, which draw so much; ``of_first``: how the first one differs."""
    ranks = [s.rank(n, [Frame("step", "/home/a/train.py", 9)], "R", "running", cpu_s=3.0, moments=BUSY, nccl="/x/libnccl.so.2",
                    world=len(watts)) for n in range(len(watts))]
    ranks[0] = dataclasses.replace(ranks[0], **of_first)
    return told(s.look(*ranks, gpus=[s.gpu(n, 100, w, 100 + n) for n, w in enumerate(watts)]))


def test_of_three_gpus_the_one_that_draws_another_power_is_stuck_and_of_two_neither() -> None:
    stuck, two = on_the_device(205.0, 206.0, 120.0), on_the_device(205.0, 120.0)
    assert (stuck.kind, culprits(stuck)) == ("gpu-stuck", [2]) and (two.kind, culprits(two)) == ("unknown", [])


def test_no_gpu_is_stuck_where_the_others_draw_different_power_or_not_all_is_known() -> None:
    assert culprits(on_the_device(205.0, 184.0, 206.0, 120.0)) == []
    assert culprits(on_the_device(205.0, 206.0, Gap("unsupported"), 120.0)) == []


def test_no_gpu_is_stuck_whose_rank_does_something_else() -> None:
    [waits] = waiting(0)
    assert on_the_device(120.0, 205.0, 206.0, samples=waits.samples, main_thread=waits.main_thread, nccl="").kind == "skipped"


def test_the_collective_has_its_number_where_the_recorder_tells_it() -> None:
    recorded = [dataclasses.replace(r, recorder=[GroupStatus(4711, 4710, "all_reduce")]) for r in waiting(0, 1, 3)]
    asleep = s.rank(2, s.ASLEEP, "S", "hrtimer_nanosleep")
    assert told(s.look(asleep, *recorded)).collective == "all_reduce 4711"
    done = [dataclasses.replace(r, recorder=[GroupStatus(4711, 4711, "all_reduce")]) for r in recorded]
    assert told(s.look(asleep, *done)).collective == "all_reduce"


def test_a_rank_that_came_to_rest_during_the_look_is_not_called_moving() -> None:
    rested = s.rank(1, s.IN_ALL_REDUCE, lines=(0, 3, 5, 5), moments={"S futex": 60, "R running": 37})
    assert told(s.look(rested, *waiting(0, 2, 3))).kind == "unknown"


def test_a_missing_rank_is_dead_where_it_should_be_on_this_host() -> None:
    found = told(s.look(*waiting(0, 1, 3), ended=[Ended(50, -9)]))
    assert (found.kind, culprits(found), found.cause) == ("dead", [2], "peer-crashed") and "signal 9" in found.sentence
    several = told(s.look(*waiting(0, 1, 3), ended=[Ended(50, -9), Ended(51, 0)]))
    assert "signal" not in several.sentence, "which of the two was rank 2 nobody knows"
    left = told(s.look(*waiting(0, 1, 3), ended=[Ended(50, 0)]))
    assert (left.kind, culprits(left), left.cause) == ("dead", [2], "collective-on-some-ranks-only")
    both = told(s.look(*waiting(0, 3), ended=[Ended(50, 0), Ended(51, 0)]))
    assert (culprits(both), both.cause, len([e for e in both.evidence if "started by" in e.text])) == ([1, 2], left.cause, 2)


@pytest.mark.parametrize(("who", "variables", "line", "frames", "cause"), [
    ("launcher", {"TORCHELASTIC_RUN_ID": "none"}, "step 3", s.IN_ALL_REDUCE, "collective-on-some-ranks-only"),
    ("launcher", {"TORCHELASTIC_RUN_ID": "none"}, "step 3", s.IN_INIT, "collective-on-some-ranks-only"),
    ("launcher", {"TORCHELASTIC_RUN_ID": "none"}, "W1201 api.py:1028] Sending process 7 closing signal SIGTERM", s.IN_ALL_REDUCE,
     "peer-crashed"),
    ("rank", {"TORCHELASTIC_RUN_ID": "none"}, "step 3", s.IN_ALL_REDUCE, "peer-crashed"),  # torchrun may be gone
    ("launcher", {}, "step 3", s.IN_ALL_REDUCE, "peer-crashed"),  # a launcher that ends nobody
    ("launcher", {}, "step 3", s.IN_INIT, "rendezvous-misconfigured")])
def test_a_rank_that_is_missing_while_torchrun_goes_on_exited_with_0(
    who: str, variables: dict[str, str], line: str, frames: list[Frame], cause: str
) -> None:
    ranks = [dataclasses.replace(s.rank(n, frames), variables=variables, log_tail=[line]) for n in (0, 1, 3)]
    found = told(s.look(*ranks, listeners=[Listener(ranks[0].job, 29500, who, 9, "python3")]))
    assert (found.kind, culprits(found), found.cause) == ("dead", [2], cause)
    elsewhere = told(s.look(*ranks, listeners=[Listener("localhost:1 in net:[1]", 1, who, 9, "python3")]))
    assert elsewhere.cause != "collective-on-some-ranks-only", "the launcher of another job"
    for n in (0, 2):  # one of them in a pipe, whatever the others show
        pipe = dataclasses.replace(ranks[n], log_tail=Gap("unsupported", "not files"))
        unread = told(s.look(*ranks[:n], pipe, *ranks[n + 1 :], listeners=[Listener(ranks[0].job, 29500, who, 9, "python3")]))
        assert unread.cause != "collective-on-some-ranks-only", "torchrun may have ended the others, unseen"


def gone(*looks: Live, bare: tuple[str, ...] = ()) -> dict[int, str]:
    return missing_ranks([(r, look) for look in looks for r in look.ranks], bare)


def test_where_ranks_meet_on_loopback_all_others_should_be_on_that_host() -> None:
    there = [dataclasses.replace(r, local_world_size=None) for r in waiting(0, 1, 3)]
    assert gone(s.look(*there)) == {2: "node1"} and gone(s.look(*waiting(0, 1, 3))) == {2: "node1"}
    assert gone(s.look(*there[:2]), s.look(there[2], host="node2")) == {}, "nothing tells on which of two"


@pytest.mark.parametrize("change", [{"rank": None}, {"world_size": 8}, {"world_size": None}])
def test_no_rank_is_missing_where_numbers_or_sizes_are_unknown_or_differ(change: dict) -> None:
    first, second, third = waiting(0, 1, 3)
    assert gone(s.look(first, second, dataclasses.replace(third, **change))) == {}
    assert gone(s.look(*(dataclasses.replace(r, **change) for r in (first, second, third)))) == (
        {2: "node1"} if change == {"world_size": 8} else {}
    )


def test_a_host_has_one_block_of_ranks_within_the_world() -> None:
    def on_one_host(*places: tuple[int, int], width: int) -> Live:
        return s.look(
            *(
                dataclasses.replace(s.rank(n, s.IN_ALL_REDUCE, local=local, world=8), job="10.0.0.1:29500", local_world_size=width)
                for n, local in places
            )
        )

    assert gone(on_one_host((0, 0), (3, 1), width=2)) == {}, "two numberings"
    assert gone(on_one_host((6, 0), width=4)) == {7: "node1"} and gone(on_one_host((1, 2), width=4)) == {0: "node1", 2: "node1"}


def test_hosts_without_a_rank_have_the_last_ones_if_they_are_as_many_as_needed() -> None:
    there = [dataclasses.replace(r, job="10.0.0.1:29500", world_size=8, local_world_size=2) for r in waiting(0, 1)]
    assert gone(s.look(*there), bare=("n2", "n3", "n4")) == dict.fromkeys(range(2, 8), "n2, n3, n4")
    assert gone(s.look(*there), bare=("n2", "n3")) == gone(s.look(*there)) == {}


def test_ranks_of_hosts_that_were_not_looked_at_are_not_missing() -> None:
    here = [dataclasses.replace(r, job="10.0.0.1:29500", local_world_size=2) for r in waiting(0, 1)]
    found = told(s.look(*here))
    assert (found.kind, found.culprits) == ("unknown", []) and any(line.startswith("2 of 4 ranks, ") for line in found.not_seen)
    there = [dataclasses.replace(s.rank(n, f, "S", w, local=n - 2), job="10.0.0.1:29500", local_world_size=2)
             for n, f, w in ((2, s.IN_ALL_REDUCE, "futex"), (3, s.ASLEEP, "hrtimer_nanosleep"))]
    joined = told(s.look(*here), s.look(*there, host="node2"))
    assert (culprits(joined), len(joined.victims)) == ([3], 3) and joined.culprits[0].host == "node2"
    lost = told(s.look(*here), s.look(there[0], host="node2"))
    assert (lost.kind, culprits(lost)) == ("dead", [3])


def moving(*numbers: int, **more) -> list:
    return [dataclasses.replace(s.rank(n, s.IN_ALL_REDUCE, "R", "", 1.0, lines=(0, 1, 2, 3), moments={"R": 60, "S futex": 40}, switches=50),
                                job="10.0.0.1:29500", local_world_size=2, **more) for n in numbers]


def test_who_moves_here_tells_nothing_of_hosts_that_were_not_looked_at() -> None:
    """Partial is unknown, with the hosts as far as RAS, Slurm or the sockets of the others tell; all hosts together are healthy."""
    found = told(s.look(*moving(0, 1)))
    assert found.kind == "unknown" and "2 of 4 ranks" in found.sentence and "each host" in found.decides
    links = [Socket("ESTABLISHED", "10.0.0.1:41000", "10.0.0.2:5000"), Socket("ESTABLISHED", "10.0.0.1:41001", "93.184.215.14:443"),
             Socket("ESTABLISHED", "10.0.0.1:29500", "10.0.0.1:41002")]
    assert told(s.look(*moving(0, 1, sockets=links))).sentence.endswith(" (10.0.0.2)")
    assert told(s.look(*moving(0, 1, variables={"SLURM_JOB_NODELIST": "n[1-2]"}))).sentence.endswith(" (n[1-2])")
    ras = [s.communicator({0: 5, 1: 5}, {0: 9, 1: 9})]
    there = [dataclasses.replace(r, host="10.0.0.2", rank=r.rank + 2) for r in ras[0].ranks]
    both = [dataclasses.replace(ras[0], size=4, ranks=ras[0].ranks + there, later=ras[0].later + there)]
    assert told(s.look(*moving(0, 1), ras=both)).sentence.endswith(" (10.0.0.2)")
    rest = [dataclasses.replace(r, local_rank=r.rank - 2) for r in moving(2, 3)]
    assert told(s.look(*moving(0, 1)), s.look(*rest, host="node2")).kind == "healthy"


def test_who_holds_the_port_counts_only_while_rank_0_is_missing() -> None:
    other = [Listener("localhost:29500 in net:[1]", 29500, "other", 77, "nc")]
    in_init = [s.rank(n, s.IN_INIT) for n in (1, 2, 3)]
    assert told(s.look(*in_init, listeners=other)).cause == "rendezvous-port-in-use"
    assert told(s.look(s.rank(0, s.IN_INIT), *in_init, listeners=other)).kind == "symmetric"
    assert told(s.look(*in_init, listeners=[dataclasses.replace(other[0], who="launcher")])).cause == "rendezvous-misconfigured"


def test_a_rank_without_torch_is_starting() -> None:
    found = told(s.look(*[s.rank(n, s.IN_INIT) for n in (0, 1, 2)], s.rank(3, s.ASLEEP, "S", "nfs", has_torch=False)))
    assert (found.kind, culprits(found), found.cause) == ("host-busy", [3], "start-skew")


def test_world_sizes_that_differ_and_a_tie_accuses_nobody() -> None:
    odd = told(s.look(*waiting(0, 1, 2), s.rank(3, s.IN_ALL_REDUCE, world=5)))
    assert (odd.kind, culprits(odd)) == ("mismatch", [3])
    tie = told(s.look(*waiting(0, 1), *waiting(2, 3, world=5)))
    assert (tie.kind, tie.culprits) == ("mismatch", [])


def test_an_unanswered_connection_and_one_that_is_established() -> None:
    asking = s.rank(1, s.IN_INIT, sockets=[Socket("SYN-SENT", "10.0.0.2:40000", "10.0.0.1:29500")])
    found = told(s.look(asking, *[s.rank(n, s.IN_INIT) for n in (0, 2, 3)]))
    assert (found.kind, culprits(found), found.cause, found.decides) == (
        "unreachable",
        [1],
        "network-path-blocked",
        "nc -vz 10.0.0.1 29500",
    )
    tracker = dataclasses.replace(asking, sockets=[dataclasses.replace(asking.sockets[0], remote="203.0.113.9:443")])
    assert (
        told(s.look(tracker, *[s.rank(n, s.IN_INIT) for n in (0, 2, 3)])).kind == "symmetric"
    )  # a hub that a proxy hides is not the job's
    joined = dataclasses.replace(asking, sockets=[dataclasses.replace(asking.sockets[0], state="ESTABLISHED")])
    assert told(s.look(joined, *[s.rank(n, s.IN_INIT) for n in (0, 2, 3)])).kind == "symmetric"


STDLIB, SERVE = "/usr/lib/python3.11/", Frame("serve", "/home/a/serve.py", 9)
GET = Frame("get", STDLIB + "multiprocessing/queues.py", 103)


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([Frame("wait", STDLIB + "threading.py", 327), Frame("get", STDLIB + "queue.py", 171), SERVE], "unknown"),
        ([GET, SERVE], "unknown"),
        ([Frame("select", STDLIB + "selectors.py", 468), Frame("_run_once", STDLIB + "asyncio/base_events.py", 1890), SERVE], "unknown"),
        ([Frame("select", STDLIB + "selectors.py", 415), Frame("serve_forever", STDLIB + "socketserver.py", 233), SERVE], "unknown"),
        ([SERVE], "skipped"),
        ([Frame("wait", STDLIB + "threading.py", 327), SERVE], "skipped"),
        ([Frame("accept", STDLIB + "socket.py", 294), SERVE], "skipped"),
    ],
)
def test_a_rank_that_waits_for_work_may_be_idle(frames: list[Frame], kind: str) -> None:
    picture = told(s.look(s.rank(0, frames, "S", "hrtimer_nanosleep"), *waiting(1, 2, 3)))
    assert (picture.kind, picture.cause, culprits(picture)) == (kind, None, [0]) and (picture.status == "likely") is (kind == "skipped")
    loader = [GET, Frame("_try_get_data", "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1200), *frames]
    assert told(s.look(s.rank(0, loader, "S", "hrtimer_nanosleep"), *waiting(1, 2, 3))).kind == "host-busy"


SELECT = Frame("select", STDLIB + "selectors.py", 415)
SERVER = [Frame("process_request", STDLIB + "socketserver.py", 347), Frame("serve_forever", STDLIB + "socketserver.py", 240), SERVE]
VLLM = "/opt/venv/lib/python3.11/site-packages/vllm/"


@pytest.mark.parametrize(
    "frames",
    [
        [Frame("take_lock", "/home/a/serve.py", 3), Frame("handle", "/home/a/serve.py", 30), *SERVER],
        [Frame("sleep", VLLM + "lock.py", 3), Frame("handle", VLLM + "server.py", 30), *SERVER],  # an installed package is no wait either
        [Frame("wait", STDLIB + "threading.py", 327), Frame("handle", "/home/a/serve.py", 30), *SERVER],
        [Frame("fetch", "/home/a/rows.py", 8), Frame("get", STDLIB + "queue.py", 171), SERVE],
        [SELECT, Frame("_communicate", STDLIB + "subprocess.py", 2021), Frame("run", STDLIB + "subprocess.py", 550), SERVE],
        [
            SELECT,
            Frame("wait", STDLIB + "multiprocessing/connection.py", 930),
            Frame("wait", STDLIB + "multiprocessing/popen_fork.py", 40),
            Frame("join", STDLIB + "multiprocessing/process.py", 149),
            SERVE,
        ],
    ],
)
def test_a_rank_in_a_handler_or_beside_a_child_is_not_idle(frames: list[Frame]) -> None:
    """`watch` reports it: only an idle rank may go on."""
    picture = told(s.look(s.rank(0, frames, "S", "hrtimer_nanosleep"), *waiting(1, 2, 3)))
    assert (picture.kind, picture.status, culprits(picture)) == ("skipped", "likely", [0]) and picture.kind not in RUNS_ON


@pytest.mark.parametrize(
    "frames",
    [
        [
            SELECT,
            Frame("wait", STDLIB + "multiprocessing/connection.py", 930),
            Frame("poll", STDLIB + "multiprocessing/connection.py", 260),
            SERVE,
        ],
        [Frame("get", "/usr/lib64/python3.12/queue.py", 171), SERVE],
        [
            Frame("wait", STDLIB + "threading.py", 327),
            Frame("get", STDLIB + "queue.py", 171),
            Frame("busy_loop", VLLM + "engine.py", 9),
            SERVE,
        ],
    ],
)
def test_a_wait_that_a_library_or_another_python_makes_may_be_idle(frames: list[Frame]) -> None:
    assert told(s.look(s.rank(0, frames, "S", "hrtimer_nanosleep"), *waiting(1, 2, 3))).kind == "unknown"


LOCKED = [Frame("cache", "/home/a/train.py", 96)]


@pytest.mark.parametrize(
    ("frames", "names"),
    [
        ((s.IN_ALL_REDUCE, s.IN_ALL_REDUCE, LOCKED), [2]),
        ((LOCKED, s.IN_ALL_REDUCE, s.IN_ALL_REDUCE, s.IN_ALL_REDUCE), [0]),
        ((s.IN_ALL_REDUCE, LOCKED), []),
        ((s.IN_BARRIER, s.IN_BARRIER, LOCKED), [2]),
    ],
)
def test_a_rank_on_a_lock_of_its_program_is_named_without_a_cause(frames: tuple[list[Frame], ...], names: list[int]) -> None:
    """A lock and work.wait() look the same; a call of torch.distributed has a frame."""
    picture = told(s.look(*[s.rank(n, f, world=len(frames)) for n, f in enumerate(frames)]))
    assert picture.cause is None and culprits(picture) == names


def test_the_odd_one_out_waits_elsewhere_and_of_two_neither_is_odd() -> None:
    assert culprits(told(s.look(*waiting(0, 1, 2), s.rank(3, s.IN_BARRIER)))) == [3]
    pair, on_gpus = (told(s.look(s.rank(0, s.IN_ALL_REDUCE, world=2, nccl=nccl), s.rank(1, s.IN_BARRIER, world=2, nccl=nccl)))
                     for nccl in ("", "/usr/lib/libnccl.so.2"))
    assert (pair.kind, pair.culprits, pair.status) == ("mismatch", [], "likely")
    assert (on_gpus.kind, on_gpus.culprits, on_gpus.status) == ("unknown", [], "possible")  # a host may run ahead of its GPU


def call(name: str) -> list[Frame]:
    return [dataclasses.replace(s.IN_ALL_REDUCE[0], function=name), *s.IN_ALL_REDUCE[1:]]


@pytest.mark.parametrize(
    ("calls", "nccl", "world", "kind", "status"),
    [
        (["recv", "recv"], "", 2, "unmatched", "established"),
        (["send", "send", "send"], "", 3, "unmatched", "established"),
        (["recv", "recv"], "/usr/lib/libnccl.so.2", 2, "unmatched", "likely"),
        (["send", "recv"], "", 2, "unmatched", "possible"),
        (["recv", "recv"], "", 4, "unknown", ""),
        (["recv"], "", 1, "symmetric", "possible"),
        (["barrier", "barrier"], "", 2, "symmetric", "possible"),
    ],
)
def test_ranks_that_all_receive_or_all_send_are_a_fault_of_the_code(
    calls: list[str], nccl: str, world: int, kind: str, status: str
) -> None:
    picture = told(s.look(*(s.rank(n, call(name), world=world, nccl=nccl, job="node1:29500", local=n) for n, name in enumerate(calls))))
    if kind == "unknown":  # two of four, the others on another host
        ranks = [dataclasses.replace(r.process, local_world_size=2) for r in picture.ranks if r.process]
        picture = told(s.look(*ranks))
    assert (picture.kind, picture.status) == (kind, status)
    assert (picture.cause == "send-recv-unmatched") == (kind == "unmatched") and not picture.culprits


def test_a_thread_that_sends_beside_the_main_one_that_receives_matches_it() -> None:
    def rank(number: int) -> LiveRank:
        one = s.rank(number, call("recv"), world=2)
        sends = Stack(7, "sender", False, False, call("send"))
        return dataclasses.replace(one, samples=[dataclasses.replace(sample, stacks=[*sample.stacks, sends]) for sample in one.samples])

    assert told(s.look(rank(0), rank(1))).kind == "symmetric"


@pytest.mark.parametrize(("frames", "nccl", "words"), [
    (s.IN_ALL_REDUCE, "", ()), (s.IN_ALL_REDUCE, "/usr/lib/libnccl.so.2", ("interconnect", "GPU")),
    ([Frame("new_group", s.TORCH, 5), *s.IN_ALL_REDUCE[1:]], "/usr/lib/libnccl.so.2", ("same order",)), (s.IN_INIT, "", ("rendezvous",))])
def test_ranks_without_nccl_are_not_sent_to_their_gpus(frames: list[Frame], nccl: str, words: tuple[str, ...]) -> None:
    sentence = told(s.look(*(s.rank(n, frames, world=2, nccl=nccl) for n in range(2)))).sentence
    assert all(word in sentence for word in words) and ("GPU" in sentence) == ("GPU" in words)


def test_ranks_that_launched_less_by_ras_while_no_count_moves() -> None:
    ranks = [
        s.rank(n, [Frame("step", "/home/a/train.py", 9)], "R", "running", cpu_s=3.0, moments=BUSY, nccl="/x/libnccl.so.2") for n in range(4)
    ]
    gpus = [s.gpu(n, 0 if n == 2 else 100, 120.0, 100 + n) for n in range(4)]
    stuck = s.communicator({0: 9, 1: 9, 2: 8, 3: 9}, {0: 9, 1: 9, 2: 8, 3: 9})
    found = told(s.look(*ranks, gpus=gpus, ras=[stuck]))
    assert (culprits(found), found.status, len(found.victims)) == ([2], "established", 3)
    moves = s.communicator({0: 9, 1: 9, 2: 8, 3: 9}, {0: 12, 1: 12, 2: 11, 3: 12})
    assert told(s.look(*ranks, gpus=gpus, ras=[moves])).status != "established"


def test_a_straggler_waits_least_and_a_busy_step_is_none() -> None:
    def stepping(number: int, waits: int, cpu_s: float = 0.2, switches: int = 30, at: float = 3.0):
        one = s.rank(number, s.IN_ALL_REDUCE, cpu_s=cpu_s, switches=switches, lines=(0, 2, 0, 1, 0, 2, 0),
                     moments={"S futex": waits, "S hrtimer_nanosleep": 100 - waits})
        return dataclasses.replace(one, samples=[dataclasses.replace(seen, at_s=n * at) for n, seen in enumerate(one.samples)])

    slow = told(s.look(stepping(0, 90), stepping(1, 10), stepping(2, 88), stepping(3, 95)))
    assert (slow.kind, culprits(slow), slow.cause, verdict([slow])) == ("slow", [1], "straggler", "degraded")
    close = told(s.look(stepping(0, 90), stepping(1, 10, 0.0, 2, 0.27), stepping(2, 88), stepping(3, 95)))
    assert (close.kind, culprits(close)) == ("slow", [1]), "samples closer together than its steps"
    even = told(s.look(stepping(0, 60), stepping(1, 45), stepping(2, 62), stepping(3, 70)))
    assert (even.kind, verdict([even])) == ("healthy", "healthy")


def test_without_stacks_the_kernel_still_tells_who_sleeps_elsewhere() -> None:
    bare = [s.rank(n, None) for n in (0, 1, 3)]
    found = told(s.look(s.rank(2, None, "S", "hrtimer_nanosleep"), *bare))
    assert (found.kind, culprits(found), found.status) == ("skipped", [2], "possible")
    even = told(s.look(*[s.rank(n, None, "S", "hrtimer_nanosleep") for n in (1, 2)], *[s.rank(n, None) for n in (0, 3)]))
    assert (even.kind, even.culprits) == ("unknown", []), "two on a lock are not known to wait in a collective"
    assert told(s.look(*[s.rank(n, None) for n in range(4)])).kind == "unknown"
    assert any(n.startswith("stacks: py-spy ") for n in found.not_seen) and found.decides.startswith("py-spy dump")


def test_no_rank_is_no_health() -> None:
    nothing = s.look()
    assert verdict(judge_looks([nothing])) == "unknown" and "--pid" in first_text(nothing)


def test_of_several_jobs_the_hung_one_is_told_first() -> None:
    """A colleague's healthy job with lower pids must not give the page its title."""
    fine = [s.rank(n, None, "R", moments=BUSY, cpu_s=3.0, job="localhost:1 in net:[1]", world=2) for n in range(2)]
    one = s.look(*fine, s.rank(0, s.ASLEEP, "S", "hrtimer_nanosleep"), *waiting(1, 2, 3))
    found = judge_looks([one])
    assert [p.job.split()[0] for p in found] == ["localhost:29500", "localhost:1"] and verdict(found) == "broken"
    assert re.search(
        "<title>Broken: job at localhost:29500: rank 0 never reached.*<h1>Broken: job at localhost:29500: rank 0", page(found, [one]), re.S
    )
    assert "<h1>Healthy: " in page(found[1:], [one]) and "<h1>Unknown: " in page([], [one]), "the word of the verdict, as on every page"


def test_what_others_named_is_escaped_on_the_page() -> None:
    evil = s.rank(1, [Frame("<script>alert(1)</script>", "/a/<img src=x>.py", 3)], "S", "hrtimer_nanosleep")
    one = s.look(evil, *waiting(0, 2, 3), host="<b>host</b>")
    shown = page(judge_looks([one]), [one])
    assert "<script" not in shown and "<img" not in shown and "<b>host" not in shown and "&lt;script&gt;" in shown


# --- readers

def test_addresses_as_the_kernel_writes_them() -> None:
    assert live_processes_ask_sockets.address("0100007F:1F90", socket.AF_INET) == "127.0.0.1:8080"
    assert live_processes_ask_sockets.address("0000000000000000FFFF00000100007F:1F90", socket.AF_INET6) == "127.0.0.1:8080"
    assert live_processes_ask_sockets.address("00000000000000000000000001000000:0016", socket.AF_INET6) == "[::1]:22"


# as src/ras/client_support.cc of NCCL 2.28.9 writes it, the comma behind "nvml_dev" of the missing rank forgotten
RAS_2_28_9 = """{
  "nccl_version": "2.28.9",
  "communicators": [
    {
      "hash": "0x5f", "secondary_hash": "0x1:0x2", "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
      "ranks": [
        { "rank": 0, "host": "10.0.0.1", "pid": 11, "cuda_dev": 0, "nvml_dev": 0,
          "status": { "init_state": 0, "abort_flag": false }, "collective_counts": { "Broadcast": 1, "AllReduce": 4711 } }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "10.0.0.1",
          "pid": 12,
          "cuda_dev": 1,
          "nvml_dev": 1
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": { "collection_time_sec": 0.001, "timeouts_count": 0 }
}
"""


class RasServer:
    """Answers as NCCL's RAS thread does, once; ``answers``: of the lines before the status."""

    def __init__(self, body: str, answers: tuple[str, ...] = ("SERVER PROTOCOL 2", "OK", "OK")) -> None:
        self.listener, self.heard = socket.create_server(("127.0.0.1", 0)), []
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, args=(body, answers), daemon=True)
        self.thread.start()

    def _serve(self, body: str, answers: tuple[str, ...]) -> None:
        link, _ = self.listener.accept()
        with link, link.makefile("r") as lines:
            for answer in (*(a + "\n" for a in answers), body):
                self.heard.append(lines.readline().strip())
                link.sendall(answer.encode())
        self.listener.close()


def test_ras_is_asked_as_its_own_client_asks_and_its_forgotten_comma_is_mended() -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(RAS_2_28_9)
    server = RasServer(RAS_2_28_9)
    (told_,) = live_answers_ask_ras.ras([server.address])
    assert server.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]  # the protocol, not prose
    assert [(r.rank, r.launched.get("AllReduce"), r.missing) for r in told_.ranks] == [(0, 4711, ""), (1, None, "unresponsive")]


def test_an_older_ras_and_one_elsewhere_are_gaps() -> None:
    older = RasServer("", ("SERVER PROTOCOL 2", "OK", "ERROR: Unknown command"))
    until = time.monotonic() + 20.0
    assert live_answers_ask_ras._ras_at(*older.address.split(":"), until).reason == "failed", "text without its table"
    assert live_answers_ask_ras._ras_at("10.0.0.1", "28028", until).reason == "not-run"


@pytest.mark.parametrize("answers", [(), ("SERVER PROTOCOL 2", "OK", "OK")])
def test_one_who_answers_a_little_now_and_then_is_not_waited_for(answers: tuple[str, ...]) -> None:
    """Each byte comes within any deadline of a read; all of them never come."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        trickle = threading.Thread(target=_trickle, args=(listener, answers, over), daemon=True)
        trickle.start()
        told_ = live_answers_ask_ras._ras_at("127.0.0.1", str(listener.getsockname()[1]), time.monotonic() + 0.5)
        stopped = over.is_set()
        over.set()
        trickle.join(20.0)
    assert told_.reason == "timed-out" and not stopped


def _trickle(listener: socket.socket, answers: tuple[str, ...], over: threading.Event) -> None:
    """Ends by itself after 10 s, so that a reader without a limit fails the test and does not hang it."""
    link, _ = listener.accept()
    with link, link.makefile("r") as lines, contextlib.suppress(OSError):
        for answer in answers:
            lines.readline()
            link.sendall(answer.encode() + b"\n")
        for _ in range(200):
            link.sendall(b"{")
            if over.wait(0.05):
                return
    over.set()


@settings(max_examples=60, deadline=None)
@example(b'{"communicators": [{"hash": 1, "size": "x", "ranks": [], "missing_ranks": []}]}')
@example(
    b'[{"os_thread_id": 1, "thread_name": null, "active": true, "owns_gil": 1, "frames": [{"name": "f", "filename": "x", "line": "y"}]}]'
)
@example(b'{"entries": [{"process_group": []}], "pg_status": []}')
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["entries", "pg_status", "process_group", "communicators", "ranks", "missing_ranks", "frames", "size", "hash"]
                ),
                inner,
                max_size=4,
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_readers_give_facts_or_a_gap_for_any_bytes(data: bytes) -> None:
    for reader in (
        lambda data_: live_answers_ask_ras.read_ras("x", data_.decode("utf-8", "replace")),
        live_answers.statuses_of,
        lambda text_: live_answers.stacks_of(text_, 1),
    ):
        assert isinstance(reader(data), (list, Gap))


def test_a_process_that_ends_meanwhile_is_no_error(tmp_path: Path) -> None:
    assert live_processes_ask_proc.own_inodes(999999999) == set()
    with pytest.raises(OSError, match=re.escape("999999999")):
        live_processes_ask_threads.threads(999999999)


# --- as it was seen on four H200

CAPTURED = json.loads((Path(__file__).parent / "data" / "live-h200.json").read_text())["seen"]


@pytest.mark.parametrize("fault", CAPTURED)
def test_what_was_seen_on_four_h200_names_the_right_rank_and_kind(fault: str) -> None:
    one = TypeAdapter(Live).validate_python(CAPTURED[fault]["live"])
    found = told(one)
    assert (found.kind, culprits(found)) == (CAPTURED[fault]["truth"]["kind"], CAPTURED[fault]["truth"]["culprits"]), found.sentence
    if fault == "spin":
        bare = told(dataclasses.replace(one, ras=Gap("absent", "switched off")))
        assert (bare.kind, bare.status, found.status) == ("gpu-stuck", "possible", "likely")


def test_gpus_that_all_draw_the_same_in_one_wait_are_symmetric_and_without_ras_unknown() -> None:
    spinning = [
        s.rank(n, [Frame("step", "/home/a/train.py", 9)], "R", "running", cpu_s=3.0, moments=BUSY, nccl="/x/libnccl.so.2") for n in range(4)
    ]
    even = [s.gpu(n, 100, 200.0 + 3 * n, 100 + n) for n in range(4)]
    still = s.communicator(dict.fromkeys(range(4), 9), dict.fromkeys(range(4), 9))
    assert told(s.look(*spinning, gpus=even, ras=[still])).kind == "symmetric"
    assert told(s.look(*spinning, gpus=even)).kind == "unknown", "they may step all the while"
    steps = s.communicator(dict.fromkeys(range(4), 9), dict.fromkeys(range(4), 700))
    assert told(s.look(*spinning, gpus=even, ras=[steps])).kind == "healthy"


def on_gpus(slow: int, others: int) -> tuple[list, list]:
    """Four ranks at one line, of which rank 2 sleeps there; the GPU of rank 2 and those of the others are busy so many percent."""
    ranks = [
        s.rank(n, [Frame("step", "/home/a/train.py", 9)], "R", "running", cpu_s=3.0, moments=BUSY, nccl="/x/libnccl.so.2")
        for n in (0, 1, 3)
    ]
    ranks.append(s.rank(2, s.ASLEEP, switches=12, nccl="/x/libnccl.so.2"))
    return ranks, [s.gpu(n, slow if n == 2 else others, 200.0, 100 + n) for n in range(4)]


def test_the_rank_whose_gpu_idles_while_all_others_wait_on_theirs_is_slow() -> None:
    steps = s.communicator(dict.fromkeys(range(4), 9), dict.fromkeys(range(4), 40))
    for slow, others, kind in ((1, 100, "slow"), (30, 75, "slow"), (31, 75, "healthy"), (30, 74, "healthy"), (95, 100, "healthy")):
        ranks, gpus = on_gpus(slow, others)
        found = told(s.look(*ranks, gpus=gpus, ras=[steps]))
        assert (found.kind, culprits(found)) == (kind, [2] if kind == "slow" else []), (slow, others)
    ranks, gpus = on_gpus(1, 100)
    assert told(s.look(*ranks, gpus=gpus[:3], ras=[steps])).kind == "healthy", "of one GPU nothing is known"


def test_of_a_rank_that_works_or_a_gpu_that_was_read_once_nothing_is_said_to_be_slow() -> None:
    steps = s.communicator(dict.fromkeys(range(4), 9), dict.fromkeys(range(4), 40))
    ranks, gpus = on_gpus(1, 100)
    once = dataclasses.replace(gpus[2], utilisation_percent=[Gap("unsupported"), 1])
    assert told(s.look(*ranks, gpus=[*gpus[:2], once, gpus[3]], ras=[steps])).kind == "healthy"
    works = s.rank(2, s.SAVING, "R", "running", cpu_s=3.0, moments=BUSY, nccl="/x/libnccl.so.2")
    still = s.communicator({0: 9, 1: 9, 2: 9, 3: 9}, {0: 40, 1: 40, 2: 9, 3: 40})
    assert told(s.look(*ranks[:3], works, gpus=gpus, ras=[still])).kind == "healthy"


def test_a_straggler_is_told_though_pids_repeat_on_another_host() -> None:
    def host(name: str, numbers: tuple[int, int], busy: int):
        ranks = [
            dataclasses.replace(s.rank(n, s.ASLEEP, switches=12, job="10.0.0.1:29500", nccl="/x/libnccl.so.2"), pid=100 + at)
            for at, n in enumerate(numbers)
        ]
        return s.look(*ranks, host=name, gpus=[s.gpu(0, busy, 200.0, 100), s.gpu(1, 100, 200.0, 101)])

    ranks = {r.rank: r for look in (host("node1", (0, 1), 100), host("node2", (2, 3), 1)) for r in look.ranks}
    assert len({r.pid for r in ranks.values()}) == 2
    steps = RasCommunicator(
        "0xabc", 4, *([RasRank(n, r.pid, "10.0.0.1", n % 2, {"AllReduce": count}, "") for n, r in ranks.items()] for count in (9, 40))
    )
    looks = [dataclasses.replace(host(*one), ras=[steps]) for one in (("node1", (0, 1), 100), ("node2", (2, 3), 1))]
    found = told(*looks)
    assert (found.kind, culprits(found)) == ("slow", [2]), found.sentence


def on_two_hosts(*ranks: LiveRank, **more) -> list[Live]:
    """The first half of the ranks on one host, the others on another, where the same pids come again: each has its own container."""
    half = len(ranks) // 2
    hosts = [
        [dataclasses.replace(r, pid=100 + at, job="10.0.0.1:29500") for at, r in enumerate(part)] for part in (ranks[:half], ranks[half:])
    ]
    return [s.look(*part, host=name, **more) for name, part in zip(("node1", "node2"), hosts, strict=True)]


def test_where_pids_repeat_on_another_host_only_the_one_at_fault_is_accused() -> None:
    def stepping(number: int, waits: int):
        return s.rank(
            number,
            s.IN_ALL_REDUCE,
            cpu_s=0.2,
            switches=30,
            lines=(0, 2, 0, 1, 0, 2, 0),
            moments={"S futex": waits, "S hrtimer_nanosleep": 100 - waits},
        )

    slow = told(*on_two_hosts(stepping(0, 90), stepping(1, 91), stepping(2, 88), stepping(3, 10)))
    assert (slow.kind, culprits(slow)) == ("slow", [3])
    other = told(*on_two_hosts(*waiting(0, 1, 2), *waiting(3, world=5)))
    assert (other.kind, culprits(other)) == ("mismatch", [3])
    assert not any("(rank" in line for line in other.not_seen), "what nobody has is told of all"
    looks = on_two_hosts(*(s.rank(n, s.IN_ALL_REDUCE, nccl="/x/libnccl.so.2") for n in range(4)))
    watts = [[205.0, 207.0], [206.0, 122.0]]
    stuck = told(
        *(
            dataclasses.replace(look, gpus=[s.gpu(at, 100, w, 100 + at) for at, w in enumerate(drawn)])
            for look, drawn in zip(looks, watts, strict=True)
        )
    )
    assert (stuck.kind, culprits(stuck)) == ("gpu-stuck", [3])


def test_a_rank_that_ends_within_the_look_is_told_as_that_and_nobody_is_accused() -> None:
    gone = s.rank(2, s.SAVING, moments={"S futex_do_wait": 40, "gone": 57}, lines=(0, 0))
    dead = s.rank(2, s.SAVING)
    dead = dataclasses.replace(dead, samples=[*dead.samples[:-1], s.rank(2, s.SAVING, "Z").samples[-1]])
    for one in (gone, dead):
        found = told(s.look(*waiting(0, 1, 3), one))
        assert (found.kind, found.culprits) == ("unknown", []) and found.sentence.startswith("rank 2 ")
    assert culprits(told(s.look(*waiting(0, 1, 3), s.rank(2, s.SAVING)))) == [2]


def test_two_processes_of_one_rank_are_told_beside_the_one_that_is_missing() -> None:
    twice = dataclasses.replace(s.rank(1, s.IN_INIT), pid=999)
    found = told(s.look(*(s.rank(n, s.IN_INIT) for n in (0, 1, 3)), twice))
    assert (culprits(found), len(found.victims)) == ([2], 4) and re.search(r"\brank 1 .*\b2 times\b", found.sentence)
    assert "rank 1" not in told(s.look(*(s.rank(n, s.IN_INIT) for n in (0, 1, 3)))).sentence


def threaded(number: int, frames: list[Frame], cpu_s: float = 0.0) -> LiveRank:
    """A rank whose main thread only waits for the one that trains."""
    joins = [Frame("join", "/usr/lib/python3.11/threading.py", 1119), Frame("<module>", "/home/a/train.py", 90)]
    one = s.rank(number, joins)
    def sample(seen, at):
        second = dataclasses.replace(seen.threads[0], tid=7000 + number, cpu_s=5.0 + at * cpu_s, switches=at * round(100 * cpu_s))
        return dataclasses.replace(
            seen, threads=[*seen.threads, second], stacks=[*seen.stacks, Stack(second.tid, "train", False, False, frames)]
        )
    return dataclasses.replace(one, samples=[sample(seen, at) for at, seen in enumerate(one.samples)])


def test_a_rank_that_trains_in_a_thread_of_its_own_waits_where_that_thread_waits() -> None:
    saving = s.rank(2, s.SAVING)
    found = told(s.look(threaded(0, s.IN_ALL_REDUCE), *waiting(1, 3), saving))
    assert (found.kind, culprits(found), len(found.victims)) == ("host-busy", [2], 3), found.sentence
    all_so = s.look(threaded(0, s.IN_ALL_REDUCE), threaded(1, s.ASLEEP), threaded(2, s.IN_ALL_REDUCE))
    found = told(dataclasses.replace(all_so, ranks=[dataclasses.replace(r, world_size=3) for r in all_so.ranks]))
    assert culprits(found) == [1] and "train, train.py:30" in text([found], [all_so])
    listens = threaded(2, s.IN_BARRIER)
    sleeps = dataclasses.replace(
        listens,
        samples=[
            dataclasses.replace(one, stacks=[dataclasses.replace(one.stacks[0], frames=s.ASLEEP), *one.stacks[1:]])
            for one in listens.samples
        ],
    )
    assert culprits(told(s.look(*waiting(0, 1, 3), sleeps))) == [
        2
    ], "its main thread sleeps in its own code, whatever another one listens to"
    stepping = told(s.look(*(threaded(n, s.IN_ALL_REDUCE, cpu_s=0.5) for n in range(4))))
    assert not stepping.culprits and stepping.kind in ("unknown", "healthy"), stepping.sentence


def test_a_host_that_waits_for_its_gpu_may_step_on_unless_ras_tells() -> None:
    ranks, gpus = on_gpus(1, 100)
    assert told(s.look(*ranks, gpus=gpus)).status == "possible"
    still = s.communicator(dict.fromkeys(range(4), 9), {0: 9, 1: 9, 2: 8, 3: 9})
    assert told(s.look(*ranks, gpus=gpus, ras=[dataclasses.replace(still, ranks=still.later)])).status == "established"
    assert told(s.look(*waiting(0, 1, 3), s.rank(2, s.ASLEEP, switches=12))).status == "likely"


def test_ranks_that_poll_in_one_call_all_the_while_are_not_called_moving() -> None:
    """Four H200, NCCL 2.28.9, 2026-11-22: while its communicator is made each host polls inside all_reduce, on a CPU all the time."""
    polling = [s.rank(n, s.IN_ALL_REDUCE, "R", "running", cpu_s=3.0, moments=BUSY, nccl="/x/libnccl.so.2") for n in (0, 1, 3)]
    found = told(s.look(*polling, s.rank(2, s.ASLEEP, "S", "hrtimer_nanosleep", nccl="/x/libnccl.so.2")))
    assert (found.kind, culprits(found), len(found.victims)) == ("skipped", [2], 3)
    everybody = [*polling, s.rank(2, s.IN_ALL_REDUCE, "R", "running", cpu_s=3.0, moments=BUSY)]
    assert told(s.look(*everybody)).kind == "unknown", "they may step all the while"
    still = s.communicator(dict.fromkeys(range(4), 9), dict.fromkeys(range(4), 9))
    assert told(s.look(*everybody, ras=[still])).kind == "symmetric"
    stepping = [s.rank(n, s.IN_ALL_REDUCE, "R", "running", cpu_s=3.0, moments=BUSY, lines=(0, 3, 0, 2)) for n in range(4)]
    assert told(s.look(*stepping)).kind == "healthy"


def test_ranks_that_may_step_in_the_call_in_which_they_poll_prove_nobody_absent() -> None:
    polling = [s.rank(n, s.IN_ALL_REDUCE, "R", "running", cpu_s=3.0, moments=BUSY) for n in (0, 1, 3)]
    logs = s.rank(2, [Frame("step", "/home/a/train.py", 9)], "S", "futex", cpu_s=0.5, switches=20, lines=(0, 2, 5, 1))
    assert told(s.look(*polling, logs)).kind == "unknown"
    found = told(s.look(*polling, s.rank(2, s.SAVING, "R", "running", cpu_s=3.0, moments=BUSY)))
    assert (found.status, culprits(found)) == ("possible", [2])
    assert culprits(told(s.look(*waiting(0, 1, 3), logs))) == [2]


def test_a_connection_that_is_not_answered_is_that_of_its_own_host() -> None:
    """Pids repeat from container to container."""
    asks = s.rank(0, s.IN_INIT, sockets=[Socket("SYN-SENT", "10.0.0.1:40000", "10.0.0.9:29500")], job="a", world=2)
    other = dataclasses.replace(s.rank(1, s.IN_INIT, job="a", world=2), pid=asks.pid)
    (picture,) = judge_looks([s.look(asks), dataclasses.replace(s.look(other, host="node2"), boot_id="c")])
    assert (picture.kind, culprits(picture)) == ("unreachable", [0])


def test_who_came_to_rest_only_within_the_look_is_looked_at_again() -> None:
    def resting(number: int, early: float):
        one = s.rank(number, s.IN_INIT)
        samples = [dataclasses.replace(x, threads=[dataclasses.replace(x.threads[0], cpu_s=x.threads[0].cpu_s + early * min(at, 2))])
                   for at, x in enumerate(one.samples)]
        return dataclasses.replace(
            one, samples=[dataclasses.replace(samples[0], stacks=[Stack(1, "MainThread", True, False, s.ASLEEP)]), *samples[1:]]
        )

    found = told(s.look(*(resting(n, 0.5) for n in range(3))))
    assert (found.kind, found.culprits) == ("unknown", []) and found.sentence.startswith("3 ranks ")
    assert found.decides.endswith("--live --gap 10") and "--gap" not in told(s.look(*waiting(0, 1, 2, 3))).decides, "a longer look"


def test_ranks_that_ended_within_the_look_are_not_looked_at_again() -> None:
    def gone(number: int):
        return s.rank(number, s.IN_ALL_REDUCE, world=2, moments={"S futex_do_wait": 40, "gone": 57})

    every, some = told(s.look(gone(0), gone(1))), told(s.look(gone(0), s.rank(1, s.ASLEEP, "S", "hrtimer_nanosleep", world=2)))
    assert (every.kind, every.decides, {v.does for v in every.ranks}) == ("unknown", "", {"missing"})
    assert (some.kind, some.decides) == ("unknown", "python3 nccl-look.pyz --live --gap 10")
    line, = {p.decides for p in with_command([some], [100, 101])}
    assert line == "nccl-runbook look --pid 101 --gap 10", "who has ended cannot be looked at"


def test_the_process_of_the_one_rank_at_fault_is_in_the_lines_to_copy() -> None:
    stopped = told(s.look(s.rank(1, s.IN_ALL_REDUCE, "T", "do_signal_stop"), *waiting(0, 2, 3)))
    finding = hang_finding(of_picture(stopped), still=True, now=True)
    assert finding.cause == "peer-stopped" and [line for r in finding.remedy for line in r.lines][0] == "kill -CONT 101"
    assert not any("PID" in line for r in finding.remedy for line in r.lines) and not any(e.source == "next" for e in finding.evidence)


STOPPED = [*waiting(0, 2, 3), s.rank(1, s.IN_ALL_REDUCE, "T", "do_signal_stop")]


def test_the_pid_of_a_recorded_look_is_in_no_line_to_copy() -> None:
    """Another process may have it by now, here or on the host that pastes the line."""
    looks = [s.look(*STOPPED)]
    (old,) = with_command(judge_looks(looks), None)
    saved = judge_hang(Hang([], [], [], [], [], Logs([], "", {}, []), looks=looks))
    assert old.decides == saved.decides == "kill -CONT PID" and saved.pid == 101
    finding = hang_finding(of_picture(old), still=True)
    assert [line for r in finding.remedy for line in r.lines] == ["kill -CONT PID", "grep -E 'State|TracerPid' /proc/PID/status"]
    assert not any(e.source == "next" for e in finding.evidence), "it is the remedy"
    busy = with_command(judge_looks([s.look(*waiting(0, 1, 2), s.rank(3, [], "D", "folio_wait"))]), None)
    assert [p.decides for p in busy] == ["py-spy dump --native --pid PID"]


def test_with_several_hosts_a_line_about_one_process_names_its_host() -> None:
    looks = on_two_hosts(*STOPPED[:3], STOPPED[3])
    (old,) = with_command(judge_looks(looks), None)
    assert old.decides == "kill -CONT PID   # on node2" and of_picture(old).host == "node2"
    lines = [line for r in hang_finding(of_picture(old), still=True).remedy for line in r.lines]
    assert all(line.endswith("   # on node2") for line in lines) and old.decides in lines
    assert of_picture(told(s.look(*STOPPED))).host == ""


@pytest.mark.parametrize(
    ("cause", "filled"), [("peer-stopped", True), ("data-stall", True), ("communicator-order", False), ("engine-deadlock", False)]
)
def test_whether_a_line_is_about_one_process_stands_in_the_table(cause: str, filled: bool) -> None:
    """And not in the words around it."""
    stopped = dataclasses.replace(of_picture(told(s.look(*STOPPED))), cause=cause)
    lines = [line for r in hang_finding(stopped, now=True).remedy for line in r.lines if "101" in line or "PID" in line]
    assert lines and all(("101" in line) == filled and ("EACH_PID" in line) != filled for line in lines), lines


def test_of_two_looks_at_a_host_the_newest_counts() -> None:
    old = s.look(*waiting(0, 1, 2), s.rank(3, s.SAVING, "D", "folio_wait"), taken="2026-11-21T18:00:00Z")
    new = s.look(*waiting(1, 2, 3), s.rank(0, s.SAVING, "D", "folio_wait"))
    for looks in ((old, new), (new, old), (new, new, old)):
        found = told(*looks)
        assert culprits(found) == [0] and len(found.ranks) == 4


def attempt(number: int, run: str, *ranks: LiveRank) -> list[LiveRank]:
    names = {"TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": str(number)}
    return [dataclasses.replace(rank, variables=names) for rank in ranks]


def test_of_two_attempts_of_one_torchrun_the_last_is_judged_and_named() -> None:
    """Its ranks meet at another port each time (torch 2.13, --standalone, seen); run "none" is what every torchrun without a name has."""
    before = s.look(
        *attempt(0, "9f-1", *waiting(0, 2, 3, job="localhost:41001 in net:[1]"), s.rank(1, s.SAVING, job="localhost:41001 in net:[1]"))
    )
    after = [*waiting(0, 1, 3), s.rank(2, s.ASLEEP, waits="hrtimer_nanosleep")]
    found = told(before, s.look(*attempt(1, "9f-1", *after), taken="2026-11-21T19:09:00Z"))
    assert culprits(found) == [2] and found.sentence.startswith("attempt 1: rank 2 ")
    assert culprits(told(before)) == [1] and not told(before).sentence.startswith("attempt")
    assert (
        len(
            judge_looks(
                [
                    dataclasses.replace(before, ranks=attempt(0, "none", *before.ranks)),
                    s.look(*attempt(0, "none", *after), taken="2026-11-21T19:09:00Z"),
                ]
            )
        )
        == 2
    )


def test_a_world_size_of_a_billion_takes_no_memory() -> None:
    look = s.look(*waiting(0, 1, world=10**9 - 1))
    assert culprits(told(look))[:2] == [2, 3] and quickest_s(lambda: told(look), 2) < 2


def test_equal_pids_on_two_hosts_accuse_no_innocent_by_ras() -> None:
    """Containers of one image: rank 0 here and rank 2 there both have pid 100; rank 2 launched less."""
    def rows(late: int) -> list:
        return [RasRank(r, 100 + r % 2, f"10.0.0.{1 + r // 2}", r % 2, {"AllReduce": 90 if r == late else 100}, "") for r in range(4)]

    for late, others in ((2, 0), (0, 2)):
        told_by = RasCommunicator("0xabc", 4, rows(late), rows(late))
        ranks = [dataclasses.replace(r, pid=100 + r.rank % 2, job="10.0.0.1:29500", local_world_size=2) for r in waiting(0, 1, 2, 3)]
        found = told(*(s.look(*ranks[at:at + 2], host=f"node{at}", ras=[told_by]) for at in (0, 2)))
        assert (culprits(found), found.status) == ([late], "established") and others not in culprits(found)
    part = RasCommunicator("0xdef", 3, rows(2)[:3], rows(2)[:3])
    found = told(*(s.look(*ranks[at:at + 2], host=f"node{at}", ras=[part]) for at in (0, 2)))
    assert not culprits(found), "in a part of the job pid 100 may be either"


def test_ranks_that_burn_the_cpu_in_one_place_are_not_said_to_have_moved() -> None:
    found = told(s.look(*(s.rank(n, s.ASLEEP, "R", "", cpu_s=3.0, moments=BUSY) for n in range(4))))
    assert not culprits(found) and "moved" not in found.sentence and "4 of 4 ranks" in found.sentence


def test_one_rank_ahead_of_all_others_is_the_odd_one_and_of_two_halves_nobody_is_by_counts() -> None:
    """It made an extra call, which NCCL paired with the next one of the others."""
    def asked(counts: dict[int, int]) -> Picture:
        rows = [RasRank(r, 100 + r, "10.0.0.1", r, {"AllGather": n}, "") for r, n in counts.items()]
        return told(s.look(*waiting(0, 1, 2, 3), ras=[RasCommunicator("0xabc", 4, rows, rows)]))

    ahead = asked({0: 8, 1: 7, 2: 7, 3: 7})
    assert (culprits(ahead), ahead.kind, ahead.status) == ([0], "skipped", "likely")
    assert culprits(asked({0: 7, 1: 7, 2: 6, 3: 7})) == [2]
    assert not culprits(asked({0: 8, 1: 8, 2: 7, 3: 7}))


def test_every_job_that_hangs_here_is_named() -> None:
    """The worst leads; that is no reason to be silent about another one."""
    ranks = [s.rank(n, s.SAVING if n == 3 else s.IN_ALL_REDUCE, "R" if n == 3 else "S", cpu_s=3.0 * (n == 3)) for n in range(4)]
    other = [dataclasses.replace(one, job="localhost:29501 in net:[1]", pid=one.pid + 1000) for one in ranks]
    alone, both = (gather(Material(), None, 0, lambda _, here=here: s.look(*here)).records[0].findings
                   for here in (ranks, ranks + other))
    assert [f.id for f in alone] == ["hang-told"] and [f.id for f in both] == ["hang-told", "another-job-hangs"]
    assert both[1].remedy[0].lines[0].split()[-1] in {str(one.pid) for one in ranks + other}


LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/"


def waiting_for_its_loader(number: int, child: list[Frame]) -> LiveRank:
    frames = [Frame("select", "/usr/lib/python3.11/selectors.py", 415), Frame("_next_data", LOADER + "dataloader.py", 1490),
              Frame("train", "/home/a/train.py", 20)]
    return dataclasses.replace(
        s.rank(number, frames, waits="do_sys_poll"), children=[Stack(900 + number, "pt_data_worker", False, False, child)]
    )


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_that_all_wait_for_their_data_loaders_are_not_healthy(ranks: int) -> None:
    reading = [
        Frame("read_row", "/home/a/rows.py", 12),
        Frame("fetch", LOADER + "_utils/fetch.py", 54),
        Frame("_worker_loop", LOADER + "_utils/worker.py", 349),
    ]
    found = told(s.look(*[waiting_for_its_loader(r, reading) for r in range(ranks)]))
    assert (found.kind, found.cause, found.status, verdict([found])) == ("slow", "data-stall", "likely", "degraded")
    assert {v.rank for v in found.culprits} == ({0} if ranks == 1 else set())


def test_a_loader_that_works_or_a_short_look_is_no_stall() -> None:
    reading = [
        Frame("encode", "/home/a/rows.py", 12),
        Frame("fetch", LOADER + "_utils/fetch.py", 54),
        Frame("_worker_loop", LOADER + "_utils/worker.py", 349),
    ]
    waits = waiting_for_its_loader(0, reading)
    works = dataclasses.replace(waits, children=[dataclasses.replace(waits.children[0], is_active=True)])
    assert all(
        told(s.look(dataclasses.replace(one, world_size=1), gap_s=gap_s)).kind == "unknown" for one, gap_s in ((works, 10.0), (waits, 0.5))
    )
    assert told(s.look(dataclasses.replace(waits, world_size=1))).kind == "slow"


def test_loaders_of_a_part_of_the_job_decide_nothing() -> None:
    reading = [Frame("fetch", LOADER + "_utils/fetch.py", 54), Frame("_worker_loop", LOADER + "_utils/worker.py", 349)]
    part = [
        dataclasses.replace(waiting_for_its_loader(r, reading), world_size=8, local_world_size=4, local_rank=r, job="10.0.0.1:29500")
        for r in range(4)
    ]
    found = told(s.look(*part))
    assert (found.kind, found.status, verdict([found])) == ("unknown", "possible", "unknown")


def test_one_rank_that_moves_makes_no_stall_of_the_others_loaders() -> None:
    reading = [Frame("fetch", LOADER + "_utils/fetch.py", 54), Frame("_worker_loop", LOADER + "_utils/worker.py", 349)]
    moving = s.rank(1, [Frame("train", "/home/a/train.py", 30)], state="R", waits="", cpu_s=2.0, lines=(0, 1, 2, 3))
    found = told(s.look(waiting_for_its_loader(0, reading), moving))
    assert found.kind != "slow" and not found.culprits


def test_ranks_that_stand_still_in_host_work_are_unknown() -> None:
    found = told(s.look(*[s.rank(r, s.SAVING, waits="wait_on_page") for r in range(2)]))
    assert (found.kind, verdict([found])) == ("unknown", "unknown") and found.decides


def test_a_rank_that_left_while_another_works_is_neither_healthy_nor_accused() -> None:
    works = s.rank(0, s.SAVING, state="R", waits="running", cpu_s=3.0, moments=BUSY, world=2, lines=(0, 1, 0, 2))
    found = told(s.look(works))
    assert (found.kind, found.culprits, found.cause) == ("unknown", [], None) and "rank 1" in found.sentence


@pytest.mark.parametrize(("where", "cause"), [(s.IN_INIT, "rendezvous-misconfigured"), (s.IN_ALL_REDUCE, "peer-crashed")])
def test_who_left_before_the_ranks_met_is_told_from_who_left_later(where: list[Frame], cause: str) -> None:
    assert told(s.look(s.rank(0, where, world=2))).cause == cause


def test_ranks_whose_gpus_wait_have_met() -> None:
    waits = s.rank(0, [Frame("train", "/home/a/train.py", 30)], nccl="/x/libnccl.so.2", world=2)
    found = told(s.look(waits, gpus=[s.gpu(0, 100, 120.0, waits.pid)]))
    assert (found.cause, [v.rank for v in found.culprits]) == ("peer-crashed", [1])


# --- ranks that wait for a CPU core

def crowded(number: int, frames: list[Frame], ready_s: float, **more) -> LiveRank:
    """A rank that used 0.3 s of the 3 s between two samples, and was ready to run without a core for ``ready_s`` of them."""
    return s.rank(number, frames, "R", "running", cpu_s=0.3, ready_s=ready_s, moments=BUSY, **more)


@pytest.mark.parametrize("late", [
    lambda ready_s: crowded(3, s.SAVING, ready_s), lambda ready_s: crowded(3, [Frame("tokens", "/home/a/train.py", 7)], ready_s, gil=True),
    lambda ready_s: crowded(3, s.IN_ALL_REDUCE, ready_s, lines=(0, 3, 0, 2)), lambda ready_s: crowded(3, [], ready_s, has_torch=False)])
def test_a_rank_that_has_no_core_is_accused_of_nothing(late) -> None:
    without, with_core = told(s.look(*waiting(0, 1, 2), late(2.7))), told(s.look(*waiting(0, 1, 2), late(0.2)))
    assert (without.kind, without.cause, without.status, culprits(without)) == ("unknown", "cpu-affinity", "possible", [])
    assert verdict([without]) == "unknown" and "rank 3" in without.sentence and "90%" in without.evidence[0].text
    assert culprits(with_core) == [3] and with_core.cause != "cpu-affinity"


def test_what_does_not_depend_on_cores_is_named_on_a_crowded_host_too() -> None:
    stopped = s.rank(1, s.IN_ALL_REDUCE, "T", "do_signal_stop")
    asleep = s.rank(1, s.ASLEEP, "S", "hrtimer_nanosleep")
    for rank, kind in ((stopped, "stopped"), (asleep, "skipped")):
        found = told(s.look(*[s.rank(n, s.IN_ALL_REDUCE, ready_s=0.01) for n in (0, 2, 3)], rank))
        assert (found.kind, culprits(found)) == (kind, [1])
    odd = dataclasses.replace(crowded(1, s.IN_INIT, 2.7), world_size=5)
    assert (told(s.look(*waiting(0, 2, 3), odd)).kind, culprits(told(s.look(*waiting(0, 2, 3), odd)))) == ("mismatch", [1])


def in_steps(number: int, in_lock: int, moments: int = 100, ready_s: float = 0.0) -> LiveRank:
    return s.rank(number, s.IN_ALL_REDUCE, cpu_s=0.2, switches=30, lines=(0, 2, 0, 1), ready_s=ready_s,
                  moments={"S futex": in_lock, "R running": moments - in_lock})


def test_a_slow_rank_is_not_one_that_waits_for_a_core() -> None:
    others = [in_steps(n, 90, ready_s=0.1) for n in (0, 1, 2)]
    assert (told(s.look(*others, in_steps(3, 30, ready_s=0.9))).kind, culprits(told(s.look(*others, in_steps(3, 30, ready_s=0.9))))) == (
        "slow",
        [3],
    )
    found = told(s.look(*others, in_steps(3, 30, ready_s=1.2)))  # of the 2.1 s in which it did not wait for others
    assert (found.kind, culprits(found), found.cause) == ("unknown", [], "cpu-affinity")


def test_few_moments_make_no_rank_slow_and_no_job_healthy() -> None:
    few = told(s.look(*[in_steps(n, 4, 5) for n in (0, 1, 2)], in_steps(3, 1, 5)))
    assert (few.kind, culprits(few), few.cause) == ("unknown", [], None) and few.decides
    many = told(s.look(*[in_steps(n, 48, 60) for n in (0, 1, 2)], in_steps(3, 12, 60)))
    assert (many.kind, culprits(many)) == ("slow", [3])


def test_a_healthy_job_stays_healthy_and_its_want_of_cores_is_shown() -> None:
    short = told(s.look(*[in_steps(n, 20, ready_s=2.0) for n in range(4)]))
    assert (short.kind, short.cause, short.status) == ("healthy", None, "") and "67%" in short.evidence[-1].text
    assert told(s.look(*[in_steps(n, 20, ready_s=1.0) for n in range(4)])).evidence == []
    alike = told(s.look(*[crowded(n, s.IN_ALL_REDUCE, 2.7) for n in range(4)]))
    assert (alike.kind, culprits(alike), alike.cause, alike.status) == ("unknown", [], "cpu-affinity", "possible")
    assert "-pc PID" in with_command([alike], None)[0].decides, "another process may have this pid by now"
