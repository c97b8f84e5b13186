"""The gym's jobs for one GPU, as `dev gym --on gpu` runs them: each fault is explained from its log or while it hangs, and no job that
works is accused."""
from __future__ import annotations

import json
import os

import pytest
from book_samples import run_cli

pytestmark = pytest.mark.gpu  # alone: the gym refuses GPUs that somebody uses
# a test ends after 300 s; the other jobs: nccl-runbook dev gym --on gpu
ONE = (
    "gpu-memory-limit",
    "gpu-interface",
    "gpu-none-visible",
    "gpu-network",
    "gpu-topology-file",
    "gpu-index-too-high",
    "gpu-same-for-all",
    "gpu-label-out-of-range",
    "gpu-after-fork",
    "gpu-tensor-on-cpu",
    "gpu-data-stalls",
    "works-gpu-short",
    "works-gpu-ddp",
    "works-gpu-smaller-batch",
)


def test_every_fault_of_one_gpu_is_explained_and_nothing_that_works_is_accused(on_a_gpu, tmp_path):
    ended = run_cli(
        "dev",
        "gym",
        "--on",
        "gpu",
        "--python",
        on_a_gpu.prefix[0],
        "--json",
        "--keep",
        tmp_path / "kept",
        *(word for name in ONE for word in ("--fault", name)),
        timeout=280,
    )
    assert ended.stdout, ended.stderr
    rows = json.loads(ended.stdout)["faults"]
    outcomes = {row["fault"]: (row["outcome"], [a["sentence"] for a in row["answer"]]) for row in rows}
    if folder := os.environ.get("NCCL_RUNBOOK_TEST_RECORDS"):
        open(f"{folder}/gym.json", "w").write(ended.stdout)
    right = sum(outcome == "right" for outcome, _ in outcomes.values())
    assert not [name for name, (outcome, _) in outcomes.items() if outcome == "wrong"], outcomes
    assert right >= 0.95 * len(rows), {name: row for name, row in outcomes.items() if row[0] != "right"}
