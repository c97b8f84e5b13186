"""Real GPUs: healthy ones raise no alarm, and injected faults are named. One command: make test ARGS=tests/gpu."""
from __future__ import annotations

import os
import subprocess
import time

import nvml_shim
import pytest
from nccl_runbook import placement
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.findings import Severity
from nccl_runbook.environment import judge as environment, read as environment_probe
from nccl_runbook.gpus import ask as gpus, judge as gpu_visibility
from nccl_runbook.machine import ask_nvml as nvml, judge_busy as busy
from nccl_runbook.messages.printed.failed_world import explain
from nccl_runbook.search.halving import halve
from nccl_runbook.sync import ask as sync, judge as weight_sync, models
from nccl_runbook.worlds import (
    ask as worlds,
    ask_arms as arms_probe,
    judge as fewer_gpus,
    judge_control as transports_judge_control,
    judge_transports as transports,
)

pytestmark = pytest.mark.gpu
FINE = {Severity.OK, Severity.NOTE}


def every(engine):
    return list(range(engine.cuda_count()))


def pair(engine, fault, deadline_s=15.0, ops="all_reduce"):
    args = ["--ops", ops, "--sizes", "4,16777216", "--repeats", "2", "--backend", "nccl", "--fault", fault]
    return engine.run(WorldRequest(fault, "check.py", [0, 1], args, {}, deadline_s))


def severities(findings):
    return {f.severity for f in findings}


def test_healthy_gpus_raise_no_alarm(on_gpus):
    devices = every(on_gpus)
    assert severities(gpu_visibility.judge_gpus(gpus.collect(on_gpus))) <= FINE
    ladder = worlds.ladder(on_gpus, devices, 120)
    singles = worlds.singles(on_gpus, devices, 120)
    found = fewer_gpus.judge_worlds(ladder, singles, worlds.pairs(on_gpus, devices, singles, 120))
    assert severities(found) == {Severity.OK}, found


def test_healthy_transports_raise_no_alarm_and_the_log_proves_each_switch(on_gpus):
    arms = arms_probe.collect(on_gpus, every(on_gpus), 200, halve)
    assert severities(transports.judge_transports(arms)) == {Severity.OK}
    outcomes = {a.name: transports_judge_control.outcome(a, arms.control) for a in arms.arms}
    assert outcomes["P2P and SHM off"] == "pass" and set(arms["P2P and SHM off"].transports) <= {"NET/Socket", "NET/Socket/Shared"}
    if any(name.startswith("P2P") for name in arms["control"].transports):
        assert (outcomes["P2P off"], outcomes["SHM off"]) == ("pass", "not run")  # the control uses no SHM


@pytest.mark.gpu(beside=True)
def test_the_mapped_libnccl_is_named_and_agrees_with_its_wheel(on_gpus):
    seen = environment_probe.collect(on_gpus)
    found = environment.judge(seen)
    mapped = [lib for lib in seen.host.libraries if lib.path in seen.roles[0].mapped and "libnccl.so" in lib.path]
    assert mapped and mapped[0].version == seen.roles[0].reported
    assert any(f.id == "library-named" and f.severity is Severity.OK for f in found)
    assert not [f for f in found if f.id in ("wheel-disagrees", "two-libraries", "cuda-differs")]


@pytest.mark.gpu(beside=True)
def test_two_ranks_on_one_gpu_are_named(on_a_gpu):
    found = fewer_gpus.judge_worlds(worlds.ladder(on_a_gpu, [0, 0], 120), Gap("not-run"), Gap("not-run"))
    assert [(f.cause, f.status) for f in found] == [("device-not-set-per-rank", "established")]


def test_a_hidden_gpu_is_named_with_its_variable(on_gpus, monkeypatch):
    on_gpus.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = [f for f in gpu_visibility.judge_gpus(gpus.collect(on_gpus)) if f.severity is Severity.WARN]
    assert [f.cause for f in found] == ["visible-devices-wrong"] and "CUDA_VISIBLE_DEVICES=0 hides" in found[0].title


@pytest.mark.gpu(beside=True)
def test_a_stopped_rank_is_named(on_gpus):
    world = pair(on_gpus, "stop@1")
    found = explain("rank", "2 ranks", world, world)
    assert found.cause == "peer-stopped" and found.evidence[0].text.startswith("rank 1:")
    assert "all_reduce" in world.ranks[0].stack


@pytest.mark.gpu(beside=True)
def test_a_killed_rank_is_named(on_gpus):
    world = pair(on_gpus, "kill@1")
    found = explain("rank", "2 ranks", world, world)
    assert found.cause == "peer-crashed" and found.evidence[0].text.startswith("rank 1: killed by signal 9")


@pytest.mark.gpu(beside=True)
def test_corrupted_data_names_its_rank(on_gpus):
    world = pair(on_gpus, "corrupt@1", ops="send_recv")
    assert world.ended == "wrong values" and {e["wrong"]["from_rank"] for e in world.wrong} == {1}


@pytest.mark.gpu(beside=True)
def test_nvml_that_refuses_a_gpu_is_named(on_gpus, monkeypatch, tmp_path):
    on_gpus.close()
    monkeypatch.setenv("LD_LIBRARY_PATH", nvml_shim.in_front(tmp_path))
    world = on_gpus.run(worlds.request("2 ranks", [0, 1]))
    found = explain("rank", "2 ranks", world, world)
    assert found.cause == "nvml-call-failed", world.log
    assert "nvmlDeviceGetHandleByIndex(0) failed: Unknown Error" in found.evidence[0].text


HOLD = (
    "import os, sys, time, torch; t = torch.zeros(2 << 30, dtype=torch.uint8, device='cuda:1'); print('holding', flush=True);"
    " time.sleep(60)"
)


def test_somebody_elses_process_keeps_the_guard_shut(on_gpus):
    assert busy.gpus_busy(nvml.users(), False) is None
    # a process that is no descendant of ours: its parent has gone
    line = f'({on_gpus.prefix[0]} -c "{HOLD}" & echo $!) '
    shell = subprocess.Popen(["setsid", "bash", "-c", line], stdout=subprocess.PIPE, text=True)
    pid = int(shell.stdout.readline())
    try:
        assert shell.stdout.readline() == "holding\n"
        found = busy.gpus_busy(nvml.users(), False)
        assert found is not None and "MiB on GPU 1" in found.title
        assert busy.gpus_busy(nvml.users(), True) is None
    finally:
        os.kill(pid, 9)
    time.sleep(2)
    assert busy.gpus_busy(nvml.users(), False) is None


@pytest.mark.gpu(beside=True)
def test_weight_sync_verifies_every_byte_on_two_gpus(on_gpus):
    spec = models.part(models.find("Qwen/Qwen2.5-0.5B"), 24)
    runs = sync.collect(on_gpus, spec, [0, 1], repeats=2)
    assert severities(weight_sync.judge(runs, placement.place([0, 1]))) <= FINE
    assert {a.method for a in runs.run if a.complete and not a.wrong} == {
        "nccl-flat", "nccl-per-tensor", "gloo-flat", "disk", "fast-disk"}


@pytest.mark.gpu(beside=True)
def test_one_gpu_shows_the_refusal_as_a_note_and_disk_passes(on_a_gpu):
    plan = placement.place([0])
    runs = sync.collect(on_a_gpu, models.part(models.find("Qwen/Qwen2.5-0.5B"), 6), plan.devices, repeats=2)
    found = weight_sync.judge(runs, plan)
    assert severities(found) <= FINE and "trainer-and-engine-share-gpu" in {f.cause for f in found}, [
        (f.severity.value, f.title, f.evidence) for f in found
    ]


@pytest.mark.gpu(beside=True)
def test_nothing_of_ours_is_left_on_the_gpus(on_gpus):
    assert pair(on_gpus, "ignore-term@0", deadline_s=10.0).hung
    seen = nvml.users()
    assert not isinstance(seen, Gap)
    assert [o for u in seen.gpus if not isinstance(u, Gap) and not isinstance(u.owners, Gap) for o in u.owners if o.is_ours] == []
