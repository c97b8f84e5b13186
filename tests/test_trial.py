"""The reader's own experiment: it runs, joins the record, and never goes round the busy guard."""
from __future__ import annotations

import sys

import pytest
from nccl_runbook import records
from nccl_runbook.findings import Finding, Severity
from nccl_runbook.step import Step

BUSY = Finding("gpus-busy", Severity.UNKNOWN, "not run: busy (pid 4711, alice, 40213 MiB on GPU 2)")


@pytest.fixture
def step(tmp_path):
    made = Step("03-fewer-gpus", {"run_dir": str(tmp_path), "python": sys.executable, "gpus": "", "max_ranks": 2, "budget_s": 60})
    yield made
    if made._engine:
        made._engine.close()


def test_a_trial_joins_the_record_and_a_later_one_is_added(step, tmp_path):
    assert step.trial(repeats=2).passed
    failed = step.trial(env={"GLOO_SOCKET_IFNAME": "nothing9"})
    kept = records.load(tmp_path / "03-fewer-gpus.json").tried_by_hand
    assert [(t["passed"], t["env"]) for t in kept] == [(True, {}), (False, {"GLOO_SOCKET_IFNAME": "nothing9"})]
    assert not failed.passed and "GLOO_SOCKET_IFNAME=nothing9" in kept[1]["line"]


def test_a_trial_is_refused_while_the_gpus_are_busy(step):
    step.collect("ladder", lambda: None, unless=BUSY)
    with pytest.raises(RuntimeError, match=r"pid 4711.*allow_busy = True"):
        step.trial()
    assert step.record.tried_by_hand == []
