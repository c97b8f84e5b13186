"""Real NCCL dumps of jobs with one injected fault, on two GPUs or more: judged blind, the culprit compared."""
from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from nccl_runbook.hang import judge as rules, read as reader
from nccl_runbook.launch.interpreters import choose

pytestmark = pytest.mark.gpu(beside=True)
JOB = Path(__file__).resolve().parents[1] / "hang_job.py"
# without it a GPU that spins looks like all the others: one of them is in the collective, and of none torch tells
TIMED = {"spin": {"TORCH_NCCL_ENABLE_TIMING": "1"}}
# here the watchdog fires, and it writes the dumps
BY_WATCHDOG = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}
# fault -> kinds that are right for it: with several groups the record of a call left out may look like one made too early
KINDS = {
    "none": {"healthy"},
    "skip": {"skipped", "order", "mismatch"},
    "op": {"mismatch"},
    "swap": {"order", "mismatch", "skipped"},
    "stall": {"skipped", "host-busy"},
    "spin": {"gpu-stuck", "skipped"},
    "slow": {"slow"},
    "recv": {"unmatched", "skipped"},
    "size": {"mismatch"},
    "kill": {"dead", "unknown"},
    "stop": {"stopped", "unknown"},
    "exception": {"dead", "skipped"},
    "send": {"unmatched", "skipped"},
    "dtype": {"mismatch"},
    "minibatch": {"skipped", "order", "mismatch"},
}
SEEN: list[dict] = []


# how long a rank was in collectives tells who is slow
@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.gpu) if f == "slow" else f for f in KINDS])
def test_fault_is_given_to_the_right_rank(on_gpus, tmp_path, fault):
    world = min(4, on_gpus.cuda_count())
    culprit = random.Random(fault).randrange(world)
    python = choose(os.environ.get("NCCL_RUNBOOK_TEST_PYTHON", "")).prefix
    dumps = {name: f"{tmp_path}/fr_rank_" for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")}
    env = {**os.environ, **TIMED.get(fault, {}), **({**BY_WATCHDOG, **dumps} if fault == "minibatch" else {})}
    subprocess.run([*python, str(JOB), str(tmp_path), "nccl", str(world), fault, str(culprit), "4"], timeout=90, check=False, env=env)
    told = rules.judge_hang(reader.collect([str(tmp_path)]))
    row = {"fault": fault, "culprit": culprit, "told": list(told.culprits), "kind": told.kind, "sentence": told.sentence[:300]}
    SEEN.append(row)
    print(json.dumps(row))
    wanted = () if fault == "none" else (culprit,)
    assert told.culprits == wanted or (fault in ("kill", "stop") and told.culprits == ()), row
    assert told.kind in KINDS[fault], row
