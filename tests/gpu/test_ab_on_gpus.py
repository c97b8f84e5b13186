"""A against B on real GPUs: a planted switch is named, logging costs nothing, and a copy of libnccl in one role is seen."""
from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from nccl_runbook.compare import (
    ask as compare,
    judge as comparison,
    judge_ratio as comparison_ratio,
    read as arms,
)
from nccl_runbook.compare.lazy_ranks import LazyRanks
from nccl_runbook.core.findings import Severity
from nccl_runbook.environment import judge as environment, read as environment_probe
from nccl_runbook.environment.libraries import judge_libraries as environment_libraries
from nccl_runbook.sync import models

pytestmark = pytest.mark.gpu
HARMLESS = (
    "NCCL_DEBUG=WARN NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7 NCCL_SOCKET_NTHREADS=2 NCCL_CROSS_NIC=1 NCCL_IB_TC=106 NCCL_IB_SL=1"
    " NCCL_RAS_ENABLE=1 NCCL_UID_STAGGER_RATE=7000 TORCH_NCCL_BLOCKING_WAIT=0 TORCH_NCCL_ENABLE_MONITORING=1 TORCH_FR_BUFFER_SIZE=2000"
)


def compared(engine, b, ranks=8, **what):
    gpus = ",".join(map(str, range(min(ranks, engine.cuda_count()))))
    subject = compare.subject(compare.Wanted(**what), LazyRanks(lambda: engine, gpus))
    return compare.collect(arms.read(".", b), 120, lambda: subject, comparison.walk, 2)


def test_a_planted_switch_among_twelve_harmless_ones_is_named(on_gpus):
    seen = compared(on_gpus, f"NCCL_P2P_DISABLE=1 {HARMLESS}")
    assert len(seen.differences) == 13 and seen.walk.named == ["NCCL_P2P_DISABLE"] and len(seen.walk.tried) <= 10, seen
    by_arm = {s.arm: " ".join(s.said) for s in seen.warm_up}
    assert "via P2P" not in by_arm["B"] and "NCCL_P2P_DISABLE=1" in by_arm["B"]


def test_logging_costs_nothing_that_can_be_seen(on_gpus):
    seen = compared(on_gpus, "NCCL_DEBUG=INFO", ranks=2, spec=models.part(models.find("Qwen/Qwen2.5-7B"), 4))
    ratio = comparison_ratio.ratio(seen, "sync")
    assert (
        0.9 < ratio.value < 1.1 and [f.severity for f in comparison.judge(seen, environment_probe.Gap("absent"))][0] is not Severity.WARN
    ), ratio


def changed_copy(engine, folder):
    copy = Path(shutil.copy(engine.judged()["nccl_path"], folder / "libnccl.so.2"))
    with copy.open("ab") as file:
        file.write(b"x")
    return copy


@pytest.mark.gpu(beside=True)
def test_ab_names_a_libnccl_that_only_the_trainer_of_b_preloads(on_a_gpu, tmp_path):
    copy = changed_copy(on_a_gpu, tmp_path)
    ranks = environment_probe.of_arms(on_a_gpu, arms.read(".", f"@trainer preload:{copy}"))
    found = {f.id: f for f in environment_libraries.of_libraries(ranks)}
    assert [r.name for r in ranks.roles] == ["A", "A trainer", "B", "B trainer"] and [bool(r.preloaded) for r in ranks.roles] == [
        False,
        False,
        False,
        True,
    ]
    preload, differ = found["preload"], found["roles-libraries-differ"]
    assert preload.severity is Severity.NOTE and "B trainer" in preload.title and str(copy) in preload.title
    assert differ.severity is Severity.WARN and len({e.text.split()[-1] for e in differ.evidence}) == 2, differ


@pytest.mark.gpu(beside=True)
def test_a_copy_of_libnccl_in_the_trainer_only_is_seen(on_a_gpu, tmp_path):
    copy = changed_copy(on_a_gpu, tmp_path)
    started = [
        subprocess.Popen(
            [*on_a_gpu.prefix, "-c", "import torch, time; print('up', flush=True); time.sleep(120)"],
            stdout=subprocess.PIPE,
            env={**os.environ, "LD_PRELOAD": preload, "CUDA_VISIBLE_DEVICES": ""},
        )
        for preload in (str(copy), "")
    ]
    try:
        assert [p.stdout.readline() for p in started] == [b"up\n"] * 2
        time.sleep(0.1)
        found = {f.id: f for f in environment.judge(environment_probe.looks(p.pid for p in started))}
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert found["roles-libraries-differ"].severity is Severity.WARN and str(copy) in found["preload"].title
