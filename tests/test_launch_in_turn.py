"""Worlds in turn: what overlaps, what never does, and that every guarantee of a single world holds for one that waits."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from processes import ROOT, children, gone, start_time


def asked(name, fault="", deadline_s=20.0, env=None, timed=False, ranks=2, stall_s=None):
    args = ["--ops", "all_reduce", "--sizes", "4", "--repeats", "2" if timed else "0", *(["--fault", fault] if fault else [])]
    return WorldRequest(name, "check.py", [None] * ranks, args, env or {}, deadline_s, stall_s=stall_s, timed=timed)


def at(world, event, what=None):
    """When every rank of this world said so: (first, last)."""
    times = [e["t"] for r in world.ranks for e in r.named(event) if what is None or e.get("what") == what]
    assert len(times) == len(world.ranks)
    return min(times), max(times)


def test_worlds_in_turn_come_back_in_order_and_each_with_its_own_environment(engine):
    worlds = engine.run_in_turn([asked("a"), asked("b", env={"GLOO_SOCKET_IFNAME": "nothing9"}), asked("c"), asked("d", ranks=3)])
    assert [(w.request.name, w.passed) for w in worlds] == [("a", True), ("b", False), ("c", True), ("d", True)]
    assert engine.history[-4:] == worlds and all(w.started == "fork" for w in worlds)


def test_the_next_world_is_ready_before_its_turn_and_no_two_collectives_overlap(engine):
    worlds = engine.run_in_turn([asked(str(n)) for n in range(4)])
    for before, after in zip(worlds, worlds[1:]):
        assert at(before, "begin", "destroy")[1] <= at(after, "begin", "init")[0]
    assert any(at(after, "hello")[0] < at(before, "begin", "destroy")[1] for before, after in zip(worlds, worlds[1:]))


def test_beside_a_timed_world_nothing_is_set_up(engine):
    worlds = engine.run_in_turn([asked("small"), asked("timed", timed=True), asked("small"), asked("timed", timed=True)])
    for n in (1, 3):
        began, ended = at(worlds[n], "begin", "init")[0], at(worlds[n], "begin", "destroy")[1]
        for other in worlds[:n] + worlds[n + 1:]:
            hello, bye = at(other, "hello")[0], at(other, "bye")[1]
            assert bye <= began or hello >= ended


def test_a_world_that_hangs_ends_at_its_deadline_and_those_behind_it_run(engine):
    worlds = engine.run_in_turn([asked("hangs", fault="skip@1", deadline_s=2.0), asked("b"), asked("c")])
    assert [w.ended for w in worlds] == ["hung", "passed", "passed"] and worlds[0].wall_s < 2.0 + 10.0


def test_a_world_waits_for_its_turn_longer_than_its_own_deadline(engine):
    worlds = engine.run_in_turn([asked("hangs", fault="skip@1", deadline_s=8.0), asked("b", deadline_s=6.0)])
    assert [w.ended for w in worlds] == ["hung", "passed"] and worlds[1].wall_s < 6.0


def test_ranks_that_fail_before_their_turn_do_not_hold_up_the_others(engine):
    bad = WorldRequest("bad option", "check.py", [None], ["--ops", "no-such-op"], timed=False)
    assert [w.ended for w in engine.run_in_turn([asked("a"), bad, asked("c")])] == ["passed", "failed", "passed"]


def test_without_a_sign_of_life_a_world_ends_before_its_deadline(engine):
    world = engine.run(asked("stalls", fault="skip@1", deadline_s=60, stall_s=1.5))
    assert world.hung and world.wall_s < 30 and "check.py" in world.ranks[0].stack


def test_a_slow_world_that_gives_signs_of_life_is_left_alone(engine):
    slow = WorldRequest("slow", "check.py", [None, None], ["--ops", "all_reduce", "--sizes", ",".join(["1048576"] * 40), "--repeats", "5"],
                        deadline_s=60, stall_s=1.0)
    assert engine.run(slow).passed


def test_a_parent_with_threads_is_not_forked_and_holds_fresh_interpreters_at_the_gate(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Engine([sys.executable], tmp_path / "logs", Redactor({})) as engine:
        worlds = engine.run_in_turn([asked("a", deadline_s=60), asked("b", deadline_s=60)])
    assert all(w.passed and w.started.startswith("exec (2 threads") for w in worlds)


def test_cancel_ends_those_that_wait_too(own_engine):
    own_engine.software()
    def cancel() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not any(world.ready.is_set() for world in list(own_engine._running.values())):
            time.sleep(0.02)
        own_engine.cancel()

    threading.Thread(target=cancel).start()
    worlds = own_engine.run_in_turn([asked("hangs", fault="skip@0", deadline_s=60), *map(asked, "bcdef")])
    assert {r.outcome for w in worlds for r in w.ranks} == {"signalled"}
    assert 1 <= len(worlds) <= 3, "those that had not been made ready were never started"
    assert [w.passed for w in own_engine.run_in_turn([asked("g"), asked("h")])] == [True, True]


OWNER = """
import sys
from nccl_runbook.launch.engine import Engine
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
engine = Engine([sys.executable], None, Redactor({}))
engine.software()
print("ready", flush=True)
asked = [WorldRequest("w", "check.py", [None] * 2, ["--fault", "skip@0", "--repeats", "0"], {}, 300.0, timed=False) for _ in range(3)]
print([w.ended for w in engine.run_in_turn(asked)], flush=True)
"""


@pytest.mark.parametrize("who", ["owner", "warm"])
def test_nothing_that_waits_outlives_whoever_is_killed(who):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    )
    try:
        assert owner.stdout.readline() == "ready\n"
        until = time.monotonic() + 30
        while len(children(owner.pid)) < 1 + 6 and time.monotonic() < until:  # the warm process, one world at work and two that wait
            time.sleep(0.05)
        ours = {p: start_time(p) for p in children(owner.pid)}
        assert len(ours) == 7
        os.kill(owner.pid if who == "owner" else children(owner.pid)[0], signal.SIGKILL)
        assert gone(ours, within_s=5.0)
        assert who == "owner" or owner.stdout.readline() == "['lost', 'lost', 'lost']\n"
    finally:
        owner.kill()
        owner.wait()


def test_each_world_reads_sources_of_its_own(tmp_path, monkeypatch):
    """Ranks that wait for their turn read the rank file while the next world's is written."""
    monkeypatch.setenv("NCCL_RUNBOOK_SCRATCH", str(tmp_path))
    with Engine([sys.executable], tmp_path / "logs", Redactor(os.environ)) as engine:
        turns = threading.Thread(
            target=engine.run_in_turn, args=([asked("hangs", fault="skip@1", deadline_s=4.0), asked("b"), asked("c")],)
        )
        turns.start()
        most, until = 0, time.monotonic() + 60
        while turns.is_alive() and time.monotonic() < until:
            most = max(most, len(list(tmp_path.glob("nccl-runbook-*/world-*/check.py"))))
            time.sleep(0.02)
        turns.join(30)
    assert most >= 2 and [w.ended for w in engine.history[-3:]] == ["hung", "passed", "passed"]
