"""Every way of moving weights on real GPUs: all bytes compared, the refusal on one GPU, busy engines, tensor-parallel ones, the fast
disk path."""
from __future__ import annotations

import html
import json
import shlex
import subprocess

import pytest
from book_samples import CLI
from nccl_runbook import placement
from nccl_runbook.core.facts import Gap
from nccl_runbook.sync import ask as sync, judge as weight_sync, models
from nccl_runbook.sync.facts import SyncArm
from nccl_runbook.sync.methods import METHODS
from nccl_runbook.sync.reshard.facts import resharded
from test_own_sync import check_phases, watched

pytestmark = pytest.mark.gpu
SMALL = models.find("Qwen/Qwen2.5-0.5B")


def bad(runs):
    return [(a.method, a.errors, a.wrong, a.last_lines[-3:]) for a in runs.run if not a.complete or a.wrong]


def test_every_method_brings_every_byte_between_two_gpus_and_phases_add_up(on_gpus):
    runs = sync.collect(on_gpus, SMALL, [0, 1], "all", repeats=2, deadline_s=200)
    assert set(runs.arms) == set(METHODS) - {"nccl-one-gpu", "gloo-reshard", "gloo-gather"} and bad(runs) == []
    assert all(a.compared == (8 if resharded(a.method) else 4 - a.method.endswith("per-tensor")) for a in runs.run), (
        "two syncs, and as many of a part; one where each tensor is told; on both ranks where both are engines")
    for arm, told in ((a, s) for a in runs.run for s in a.syncs):
        for phases in (told.trainer, told.engine):  # a sync of 1 GB takes 4 ms at the least: 2 ms of gaps are more than 5 % of that
            assert sum(phases.values()) <= told.seconds * 1.001 and phases.get("other", 0.0) < 0.05 * told.seconds + 0.002, (
                arm.method,
                told,
            )
        assert max(sum(told.trainer.values()), sum(told.engine.values())) == pytest.approx(told.seconds, rel=0.05), (arm.method, told)
    assert weight_sync.topology(runs) in ("p2p", "shm", "sockets")


@pytest.mark.gpu(beside=True)
def test_on_one_gpu_nccl_refuses_and_ipc_and_disk_pass(on_a_gpu):
    plan = placement.place([0])
    runs = sync.collect(on_a_gpu, SMALL, plan.devices, "usual", repeats=2, deadline_s=120)
    ids = {f.id: f for f in weight_sync.judge(runs, plan)}
    assert ids["trainer-and-engine-share-gpu"].status == "established" and ": ipc-direct, " in ids["weight-sync-choice"].title
    assert [a.method for a in runs.run if a.complete and not a.wrong] == ["ipc-direct", "gloo-flat", "disk", "fast-disk"]


@pytest.mark.gpu(beside=True)
def test_two_ranks_on_one_gpu_are_tried_only_where_nccl_allows_it(on_a_gpu):
    arm = sync.collect(on_a_gpu, SMALL, [0, 0], "nccl-one-gpu", repeats=1, deadline_s=30).arms["nccl-one-gpu"]
    new = tuple(map(int, on_a_gpu.judged()["nccl"].split(".")[:2])) >= (2, 30)
    assert isinstance(arm, SyncArm) if new else isinstance(arm, Gap) and arm.reason == "unsupported"


def test_busy_engines_slow_the_sync_and_every_byte_still_arrives(on_gpus):
    runs = sync.collect(on_gpus, SMALL, [0, 1], "nccl-flat", repeats=3, deadline_s=60, busy="16384")
    assert bad(runs) == []
    arm = runs.arms["nccl-flat"]
    busy = next(v for v in arm.variants if v.busy)
    assert busy.seconds > arm.steady_s


@pytest.mark.parametrize("tp", [1, 2], ids=["two engines", "one engine of two ranks"])
def test_every_engine_and_every_rank_of_one_gets_its_rows(on_gpus, tp):
    if on_gpus.cuda_count() < 3:
        pytest.skip("needs three GPUs: a trainer, and engines on two")
    methods = "nccl-flat,nccl-list,nccl-per-tensor,ipc-direct,fast-disk-shm"
    runs = sync.collect(on_gpus, SMALL, [0, 1, 2], methods, repeats=2, deadline_s=120, tp=tp)
    assert bad(runs) == [] and [a.compared for a in runs.run] == [8, 8, 6, 8, 8]  # two syncs and two of a part, on two ranks


@pytest.mark.gpu(beside=True)
def test_rl_on_one_gpu_is_one_page_from_the_string_to_the_ways_that_work(on_a_gpu, tmp_path):
    page = tmp_path / "one.html"
    done = subprocess.run(
        [
            *CLI,
            "sync",
            "--allocation",
            "sglang:d1+fsdp:d1",
            "--areal",
            "v0.4.0",
            "--gpus",
            "0",
            "--allow-busy",
            "--layers",
            "4",
            "--repeats",
            "2",
            "--json",
            "--html",
            str(page),
            "--python",
            shlex.join(on_a_gpu.prefix),
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    findings, shown = json.loads(done.stdout)["findings"], html.unescape(page.read_text())
    ids = [f["id"] for f in findings]
    assert done.returncode == 3 and ids[:3] == ["allocation-duplicate", "trainer-and-engine-share-gpu", "weight-sync-choice"], done.stderr
    assert "weight-sync-verified" in ids and findings[0]["title"] in shown and "ipc-direct" in shown, findings[0]


def test_phases_of_a_real_sync_over_nccl_are_those_that_its_own_clock_tells(on_gpus):
    seen, said = watched(on_gpus.prefix, "nccl")
    print([(s.who, s.phases) for s in seen.syncs], said)
    check_phases(seen, said)
