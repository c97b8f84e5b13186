"""The plan against real GPUs: NVML names them, and what is said to be clean has a GPU of its own for each rank."""
from __future__ import annotations

import json

import pytest
from book_samples import run_cli, with_library
from nccl_runbook.core.facts import Gap
from nccl_runbook.machine import ask_nvml as nvml


@pytest.mark.gpu
def test_each_planned_rank_has_a_gpu_that_nvml_tells_apart():
    view = nvml.view()
    if isinstance(view, Gap) or len(view.gpus) < 2:
        pytest.skip(f"needs two GPUs: {view if isinstance(view, Gap) else len(view.gpus)}")
    for seen, count, verdict in (("0", 1, "duplicate"), ("0,1", 2, "clean")):
        done = run_cli("plan", "sglang:d1+fsdp:d1", "--check-devices", "--json", env={**with_library(), "CUDA_VISIBLE_DEVICES": seen})
        found = json.loads(done.stdout)
        assert (found["gpus"], found["verdict"]) == (count, verdict), done.stderr
        assert bool(found["devices"]) == (count == 1)  # both ranks on one UUID
