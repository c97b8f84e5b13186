"""A job over several hosts, looked at from each: records of real Gloo ranks in namespaces, and cases made by hand beside them."""
from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import live_samples as s
import pytest
from nccl_runbook.causes.causes import causes
from nccl_runbook.hang.live import ask_processes as live_processes
from nccl_runbook.hang.live.facts import Frame, Live, LiveRank, Socket
from nccl_runbook.hang.live.judge import Picture, judge_looks
from nccl_runbook.hang.live.judge_hosts import together
from nccl_runbook.hang.read_stacks import whole_looks
from nccl_runbook.look.live import page, record, text
from pydantic import TypeAdapter
from warm_cli import read_cli

SEEN = json.loads((Path(__file__).parent / "data" / "live-hosts.json").read_text())["seen"]
LOOK_THERE = "python3 nccl-look.pyz --live   # on each host, then: nccl-runbook look --record n1.json n2.json"


def looks_of(case: str) -> list[Live]:
    return TypeAdapter(list[Live]).validate_python(SEEN[case]["looks"])


def told(looks: list[Live]) -> Picture:
    (picture,) = judge_looks(together(looks))
    return picture


@pytest.mark.parametrize("case", SEEN)
def test_of_both_hosts_the_right_rank_kind_and_host_in_any_order(case: str) -> None:
    truth, looks = SEEN[case]["truth"], looks_of(case)
    found = told(looks)
    assert (found.kind, [v.rank for v in found.culprits]) == (truth["kind"], truth["culprits"]), found.sentence
    assert all(v.host.startswith(truth["host"]) for v in found.culprits) and truth["host"] in found.sentence
    assert told(looks[::-1]) == found and len(found.ranks) == 4
    shown = together(looks)
    assert all(
        one.rsplit(None, 1)[0] in text([found], shown) and one.split(" ")[0] in page([found], shown)
        for one in {v.host for v in found.ranks}
    )


@pytest.mark.parametrize("case", SEEN)
@pytest.mark.parametrize("host", [0, 1])
def test_of_one_host_nobody_innocent_is_accused_and_the_other_is_asked_for(case: str, host: int) -> None:
    truth = SEEN[case]["truth"]
    for found in judge_looks([looks_of(case)[host]]):
        assert {v.rank for v in found.culprits} <= set(truth["culprits"]), found.sentence
        assert found.kind != "healthy" and found.decides == LOOK_THERE
        assert any(re.match(r"\d+ of \d+ ranks, ", line) for line in found.not_seen)


def test_a_page_has_the_fix_of_a_cause_that_is_known_and_one_main_landmark(tmp_path: Path) -> None:
    remedy = causes()["rank-busy-on-host"].remedy[0][1]
    for case, known in (("save0", True), ("mpi2", False)):
        (tmp_path / "looks.json").write_text(json.dumps([record(look, 0.1) for look in looks_of(case)]))
        ended = read_cli("look", "--record", tmp_path / "looks.json", "--html", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert page.count("<main ") == page.count("<h1>") == page.count('id="fix"') == page.count('href="#fix"') == 1, ended.stderr
        picture = page.partition('id="picture"')[2].partition("</section>")[0]
        assert picture.count("<table>") == 1 and picture.count('<th scope="row"') == len(told(looks_of(case)).ranks)
        assert (html.escape(remedy) in page) == known and f"exit code {ended.returncode}" in page


# --- which looks belong together

def two_hosts(ranks: list[LiveRank], **more: str) -> list[Live]:
    """Two ranks a host; the second kernel is another one."""
    first, second = (
        [dataclasses.replace(r, local_rank=n, local_world_size=2, variables={"MASTER_PORT": "29500"}, **more) for n, r in enumerate(part)]
        for part in (ranks[:2], ranks[2:])
    )
    return [s.look(*first), dataclasses.replace(s.look(*second, host="node2"), boot_id="c pid:[1]")]


def test_jobs_of_two_hosts_that_each_meet_at_localhost_are_two_though_their_namespace_has_one_number() -> None:
    hung = [s.rank(0, s.IN_ALL_REDUCE, world=2), s.rank(1, s.ASLEEP, waits="hrtimer_nanosleep", world=2)]
    steps = [
        s.rank(n, s.IN_ALL_REDUCE, world=2, cpu_s=0.2, switches=30, lines=(0, 2, 0, 1), moments={"S futex": 50, "R": 50}) for n in (0, 1)
    ]
    looks = two_hosts([*hung, *steps])
    found = judge_looks(together(looks))
    assert [(p.kind, [v.rank for v in p.culprits], {v.host for v in p.ranks}) for p in found] == [
        ("skipped", [1], {"node1"}),
        ("healthy", [], {"node2"}),
    ]


def test_ranks_of_one_job_that_meet_at_localhost_on_two_hosts_are_one_job() -> None:
    (found,) = judge_looks(together(two_hosts([s.rank(n, s.IN_INIT) for n in range(4)])))
    assert len(found.ranks) == 4
    other_port = two_hosts([s.rank(n, s.IN_INIT) for n in range(4)])
    other_port[1] = dataclasses.replace(
        other_port[1], ranks=[dataclasses.replace(r, variables={"MASTER_PORT": "29501"}) for r in other_port[1].ranks]
    )
    assert len(judge_looks(together(other_port))) == 2


def test_children_of_one_pid_on_two_hosts_are_two_jobs() -> None:
    assert len(judge_looks(together(two_hosts([s.rank(n, s.IN_ALL_REDUCE) for n in range(4)], job="children of 8")))) == 2
    assert len(judge_looks(together(two_hosts([s.rank(n, s.IN_ALL_REDUCE) for n in range(4)], job="MPI job 4711")))) == 1


def test_ranks_that_a_script_numbers_are_one_job_over_hosts_if_they_are_connected() -> None:
    """mp.spawn on two hosts: neither shows its rank or its port."""
    link = Socket("ESTABLISHED", "10.0.0.1:29500", "10.0.0.2:41000")
    ends = [link, dataclasses.replace(link, local=link.remote, remote=link.local)]
    for sockets, jobs in ((ends, 1), (ends[:1] * 2, 2)):
        first, second = ([s.rank(None, s.IN_ALL_REDUCE, world=None, job="children of 8", sockets=[one])] for one in sockets)
        found = judge_looks(together([s.look(*first), dataclasses.replace(s.look(*second, host="node2"), boot_id="c pid:[1]")]))
        assert len(found) == jobs and {p.kind for p in found} == {"symmetric" if jobs == 1 else "unknown"}, found


def test_ranks_below_mpirun_have_its_job_on_every_host() -> None:
    names = {**os.environ, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "1264582657"}
    names = {name: value for name, value in names.items() if name not in ("RANK", "MASTER_PORT", "MASTER_ADDR")}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=names, stdin=subprocess.PIPE) as one:
        until = time.monotonic() + 20
        while one.pid not in (found := live_processes.processes()) and time.monotonic() < until:
            time.sleep(0.02)
        one.stdin.write(b"\n")
    assert (found[one.pid].job, found[one.pid].rank) == ("MPI job 1264582657", 3)


# --- who is missing, and where

def never_started(**more: object) -> list[Live]:
    ranks = [dataclasses.replace(s.rank(n, s.IN_INIT, job="10.0.0.1:29500", local=n), local_world_size=2, **more) for n in (0, 1)]
    return [s.look(*ranks), s.look(host="node2", gap_s=0.0)]


def test_ranks_of_a_host_that_has_none_are_missing_there_unless_the_others_speak_to_a_third_one() -> None:
    found = told(never_started())
    assert (found.kind, [(v.rank, v.host) for v in found.culprits]) == ("dead", [(2, "node2"), (3, "node2")])
    elsewhere = told(never_started(sockets=[Socket("ESTABLISHED", "10.0.0.1:29500", "10.0.0.3:40000")]))
    assert (elsewhere.kind, elsewhere.culprits, elsewhere.decides) == ("unknown", [], LOOK_THERE)
    assert "(10.0.0.3); node2 " in elsewhere.not_seen[-1]


def test_ranks_that_are_dealt_out_in_turn_accuse_none_of_another_host() -> None:
    ranks = [
        dataclasses.replace(s.rank(n, s.IN_ALL_REDUCE, job="10.0.0.1:29500", local=at), local_world_size=2) for at, n in enumerate((0, 2))
    ]
    assert not told([s.look(*ranks)]).culprits


# --- the network

def speaking(number: int, repeated: int, frames=s.IN_ALL_REDUCE, to: str = "10.0.0.2", **more) -> LiveRank:
    links = [Socket("ESTABLISHED", "10.0.0.1:40000", f"{to}:41000", repeated)]
    return dataclasses.replace(s.rank(number, frames, job="10.0.0.1:29500", sockets=links, **more), local_world_size=None)


def test_what_is_sent_again_and_never_acknowledged_is_a_broken_path_from_three_times_on() -> None:
    assert told([s.look(speaking(0, 3))]).kind == "unreachable" and told([s.look(speaking(0, 2))]).kind == "unknown"
    moves = speaking(0, 3, cpu_s=0.2, switches=30, lines=(0, 2, 0, 1), moments={"S futex": 50, "R": 50})
    assert told([s.look(moves)]).kind == "unknown", "it moves, whatever one connection does"


def test_of_three_hosts_the_one_that_all_lost_paths_share_is_named() -> None:
    def host(number: int, to: dict[int, int]) -> Live:
        links = [Socket("ESTABLISHED", f"10.0.0.{number}:40000", f"10.0.0.{other}:41000", times) for other, times in to.items()]
        one = s.rank(number - 1, s.IN_ALL_REDUCE, world=3, job="10.0.0.1:29500", local=0, sockets=links)
        return dataclasses.replace(s.look(dataclasses.replace(one, local_world_size=1), host=f"node{number}"), boot_id=f"b{number}")

    looks = [host(1, {2: 5, 3: 0}), host(2, {1: 4, 3: 0}), host(3, {1: 0, 2: 6})]
    found = told(looks)
    assert [(v.rank, v.host) for v in found.culprits] == [(1, "node2")] and found.kind == "unreachable"
    assert found.decides == "ping -c 3 10.0.0.2   # from 10.0.0.1"
    assert told(looks[:1] + looks[2:]).culprits == [], "node2 was not looked at: it may be another one's fault"


def test_the_kernel_tells_how_often_it_sent_something_again() -> None:
    """A connection whose interface goes away, in a network namespace of its own."""
    code = """
import fcntl, os, socket, struct, sys, time
from nccl_runbook.hang.live.ask_sockets import sockets, table
def lo(flags):
    with socket.socket() as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", flags))  # SIOCSIFFLAGS
lo(1)
listener = socket.create_server(("127.0.0.1", 5000))
asks = socket.create_connection(("127.0.0.1", 5000))
answers, _ = listener.accept()
assert all(s.repeated == 0 for s in sockets(os.getpid(), table(os.getpid())))
lo(0)
asks.send(b"x")
until = time.monotonic() + 30
while time.monotonic() < until and not any(s.repeated >= 3 for s in sockets(os.getpid(), table(os.getpid()))):
    time.sleep(0.05)
first = sockets(os.getpid(), table(os.getpid()))[0]
print(first.state, first.remote, first.repeated >= 3)
"""
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no network namespace: unshare -rn is refused")
    ended = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.stdout == "ESTABLISHED 127.0.0.1:5000 True\n", ended.stderr


# --- looks that lie apart

def moving(number: int) -> LiveRank:
    return s.rank(
        number, s.IN_ALL_REDUCE, job="10.0.0.1:29500", cpu_s=0.2, switches=30, lines=(0, 2, 0, 1), moments={"S futex": 50, "R": 50}
    )


def waiting(number: int) -> LiveRank:
    return dataclasses.replace(s.rank(number, s.IN_ALL_REDUCE, job="10.0.0.1:29500"), local_world_size=None)


def later(look: Live) -> Live:
    return dataclasses.replace(look, host="node2", boot_id="c", taken="2026-11-21T19:00:40Z")


def test_a_host_that_was_looked_at_before_it_hung_is_no_witness() -> None:
    found = told([s.look(moving(0)), later(s.look(waiting(1), waiting(2), waiting(3)))])
    assert (found.kind, found.culprits) == ("unknown", []) and re.search(r"\bnode1\b.*\b30 s\b", found.not_seen[-1])
    assert found.decides == LOOK_THERE and [v.rank for v in found.ranks] == [1, 2, 3]
    skips = s.rank(3, s.ASLEEP, waits="hrtimer_nanosleep", job="10.0.0.1:29500")
    assert [v.rank for v in told([s.look(moving(0)), later(s.look(waiting(1), waiting(2), skips))]).culprits] == [3]
    at_once = told(
        [s.look(moving(0)), dataclasses.replace(later(s.look(waiting(1), waiting(2), waiting(3))), taken="2026-11-21T19:00:08Z")]
    )
    assert [v.rank for v in at_once.culprits] == [0], "it moves alone while all others wait"


def test_who_was_busy_at_an_earlier_look_is_not_accused_beside_who_is_missing_now_and_only_possible_alone() -> None:
    saving = s.rank(0, s.SAVING, "D", "folio_wait", job="10.0.0.1:29500")
    both = told(
        [s.look(saving, waiting(1)), later(s.look(waiting(2), s.rank(3, s.ASLEEP, waits="hrtimer_nanosleep", job="10.0.0.1:29500")))]
    )
    assert ([v.rank for v in both.culprits], both.status) == ([3], "likely")
    alone = told([s.look(saving, waiting(1)), later(s.look(waiting(2), waiting(3)))])
    assert ([v.rank for v in alone.culprits], alone.status) == ([0], "possible")


def test_a_clock_that_nobody_can_read_takes_certainty_and_nothing_else() -> None:
    odd = dataclasses.replace(later(s.look(waiting(2), waiting(3))), taken="yesterday")
    assert told([s.look(waiting(0), s.rank(1, s.SAVING, "D", "folio_wait", job="10.0.0.1:29500")), odd]).status == "likely"


def test_a_torchrun_that_waits_for_other_hosts_is_no_rank_and_no_health() -> None:
    """It has torch and connections of its own and moves now and then; seen with two hosts of one name, which never met."""
    frames = [Frame("_delay", "/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/utils.py", 181),
              Frame("main", "/venv/lib/python3.11/site-packages/torch/distributed/run.py", 900)]
    steps = {"cpu_s": 0.2, "switches": 30, "lines": (0, 2, 0, 1), "moments": {"S futex": 50, "R": 50}}
    for one in (s.rank(None, frames), s.rank(None, frames, **steps)):
        found = told([s.look(dataclasses.replace(one, world_size=None))])
        assert (found.kind, found.decides) == ("unknown", LOOK_THERE) and re.match(r"torchrun .*\b_delay\b", found.sentence)
    assert told([s.look(dataclasses.replace(s.rank(None, s.IN_ALL_REDUCE, **steps), world_size=None))]).kind == "healthy"


def test_a_rank_that_left_because_a_peer_went_is_not_accused() -> None:
    left = dataclasses.replace(
        waiting(0), log_tail=["RuntimeError: Read error [10.0.0.2]:58028: Connection reset by peer. This is typically"]
    )
    asleep = s.rank(0, s.ASLEEP, waits="hrtimer_nanosleep", job="10.0.0.1:29500")
    found = told([s.look(dataclasses.replace(asleep, log_tail=left.log_tail, local_world_size=None), waiting(1))])
    assert (found.kind, found.culprits, found.decides) == ("unknown", [], LOOK_THERE) and re.search(
        r"\brank 0 .*\banother rank\b", found.sentence
    )
    skips = told([s.look(dataclasses.replace(asleep, local_world_size=None), waiting(1))])
    assert ([v.rank for v in skips.culprits], skips.decides) == ([0], LOOK_THERE)


# --- what a second pair of eyes broke

def test_ranks_that_two_looks_show_are_counted_once() -> None:
    """From the host and from within a container: other pids, the same ranks."""
    inside = dataclasses.replace(s.look(waiting(0), waiting(1)), boot_id="b pid:[2]")
    found = told([s.look(waiting(0), waiting(1)), inside])
    assert found.kind == "unknown" and any(line.startswith("2 of 4 ranks, ") for line in found.not_seen)
    assert told([s.look(*map(waiting, range(4)))]).kind == "symmetric"


def test_two_whole_jobs_of_one_host_each_are_not_halves_of_one_though_each_lost_another_rank() -> None:
    looks = [
        dataclasses.replace(look, ranks=look.ranks[n : n + 1])
        for n, look in enumerate(two_hosts([s.rank(n % 2, s.IN_ALL_REDUCE, world=2) for n in range(4)]))
    ]
    found = judge_looks(together(looks))
    assert sorted((p.kind, p.culprits[0].rank, p.culprits[0].host) for p in found) == [("dead", 0, "node2"), ("dead", 1, "node1")]


@pytest.mark.parametrize("address", ["100.64.0.7", "203.0.113.9", "[2001:db8::9]"])
def test_no_rank_is_missing_on_a_host_without_any_while_the_others_speak_to_another_host(address: str) -> None:
    found = told(never_started(sockets=[Socket("ESTABLISHED", "100.64.0.1:29500", f"{address}:40000")]))
    assert (found.kind, found.culprits) == ("unknown", [])
    assert told(never_started(sockets=[Socket("ESTABLISHED", "127.0.0.1:29500", "127.0.0.1:40000")])).kind == "dead"


def test_a_tracker_out_of_reach_does_not_hide_who_did_not_come() -> None:
    def of(address: str) -> Picture:
        asleep = dataclasses.replace(s.rank(3, s.ASLEEP, waits="hrtimer_nanosleep", job="10.0.0.1:29500"), local_world_size=None)
        return told([s.look(speaking(0, 5, to=address), waiting(1), waiting(2), asleep)])

    assert (of("203.0.113.9").kind, [v.rank for v in of("203.0.113.9").culprits]) == ("skipped", [3])
    assert of("10.0.0.2").kind == "unreachable"


def test_a_host_that_has_no_rank_any_more_is_no_witness_of_ranks_that_wait() -> None:
    links = [Socket("ESTABLISHED", "10.0.0.1:29500", "10.0.0.1:40000")]
    first, second = (
        [
            dataclasses.replace(s.rank(n, s.IN_ALL_REDUCE, job="10.0.0.1:29500", local=n % 2, sockets=links), local_world_size=2)
            for n in part
        ]
        for part in ((0, 1), (2, 3))
    )
    both = [s.look(*first), later(s.look(*second))]
    assert told(both).kind == "symmetric"
    ended = [dataclasses.replace(s.look(), taken="2026-11-21T19:00:40Z")]
    assert [(v.rank, v.host) for v in told(both + ended).culprits] == [(0, "node1"), (1, "node1")]
    assert told([dataclasses.replace(ended[0], taken="2026-11-21T18:00:00Z"), *both]).kind == "symmetric"


def test_a_line_to_paste_is_one_line_and_runs_nothing_that_a_record_holds() -> None:
    odd = dataclasses.replace(later(s.look(waiting(1))), host="node2\nreboot")
    sleeps = s.rank(3, s.ASLEEP, waits="hrtimer_nanosleep", job="10.0.0.1:29500")
    lines = [told([s.look(waiting(0), waiting(2)), dataclasses.replace(odd, ranks=[*odd.ranks, sleeps])]).decides]
    for state, to in (("ESTABLISHED", "10.0.0.2;reboot"), ("SYN-SENT", "10.0.0.2;reboot"), ("SYN-SENT", "[::1];reboot")):
        links = [Socket(state, "10.0.0.1:4000", f"{to}:41000", 5), Socket("ESTABLISHED", f"{to}:41000", "10.0.0.1:4000")]
        lines.append(told([s.look(*(dataclasses.replace(waiting(n), sockets=links) for n in range(4)))]).decides)
    assert all(line.isprintable() for line in lines)
    assert lines[1:] == ["ping -c 3 '10.0.0.2;reboot'   # from 10.0.0.1", "nc -vz '10.0.0.2;reboot' 41000", "nc -vz '::1];reboot' 41000"]
    fine = [Socket("SYN-SENT", "[::1]:4000", "[fd00::2]:29500")]
    assert told([s.look(*(dataclasses.replace(waiting(n), sockets=fine) for n in range(4)))]).decides == "nc -vz fd00::2 29500"


def test_ranks_below_zero_are_missing_nowhere() -> None:
    one = dataclasses.replace(s.rank(0, s.IN_ALL_REDUCE, job="10.0.0.1:29500", local=1), local_world_size=2)
    assert not told([s.look(one)]).culprits


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_a_look_whose_times_are_no_seconds_is_none_as_no_json_can_hold_them(seconds: float) -> None:
    look = TypeAdapter(Live).dump_python(s.look(waiting(0)))
    assert whole_looks([look]) and not whole_looks([{**look, "gap_s": seconds}]) and not whole_looks([{**look, "first_s": seconds}])
