"""Every way of moving weights on real GPUs: all bytes compared, the refusal on one GPU, busy engines, tensor-parallel ones, the fast disk path."""
from __future__ import annotations

import pytest
from nccl_runbook.facts import Gap
from nccl_runbook.facts.sync import METHODS, SyncArm
from nccl_runbook.knowledge import models
from nccl_runbook.planning import placement
from nccl_runbook.probes import sync
from nccl_runbook.rules import sync_choice, weight_sync

pytestmark = pytest.mark.gpu
SMALL = models.find("Qwen/Qwen2.5-0.5B").spec()


def bad(runs):
    return [(a.method, a.errors, a.wrong, a.last_lines[-3:]) for a in runs.run if not a.complete or a.wrong]


def test_every_method_brings_every_byte_between_two_gpus_and_phases_add_up(on_gpus):
    runs = sync.collect(on_gpus, SMALL, [0, 1], "all", repeats=2, deadline_s=200)
    assert set(runs.arms) == set(METHODS) - {"nccl-one-gpu"} and bad(runs) == [] and all(a.compared == 4 for a in runs.run)
    for arm in runs.run:
        for told in arm.syncs:
            assert sum(told.trainer.values()) <= told.seconds * 1.05 and told.trainer.get("other", 0.0) < 0.5 * told.seconds
    assert sync_choice.topology(runs) in ("p2p", "shm", "sockets")


def test_on_one_gpu_nccl_refuses_and_ipc_and_disk_pass(on_a_gpu):
    plan = placement.place([0])
    runs = sync.collect(on_a_gpu, SMALL, plan.devices, "usual", repeats=2, deadline_s=120)
    ids = {f.id: f for f in weight_sync.judge(runs, plan)}
    assert ids["trainer-and-engine-share-gpu"].status == "established" and ": ipc-direct, " in ids["weight-sync-choice"].title
    assert [a.method for a in runs.run if a.complete and not a.wrong] == ["ipc-direct", "gloo-flat", "disk", "fast-disk"]


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


def test_tensor_parallel_engines_keep_their_rows(on_gpus):
    if on_gpus.cuda_count() < 3:
        pytest.skip("needs three GPUs: a trainer and an engine of two ranks")
    runs = sync.collect(on_gpus, SMALL, [0, 1, 2], "nccl-flat,nccl-list,ipc-direct,fast-disk-shm", repeats=2, deadline_s=120, tp=2)
    assert bad(runs) == [] and all(a.compared >= 8 for a in runs.run)
