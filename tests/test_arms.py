"""The arms of 04 on real Gloo ranks: controls, budget, the arm *clean* and the variable that is to blame."""
from __future__ import annotations

import os

import pytest
from nccl_runbook.facts import Gap, to_json
from nccl_runbook.facts.experiments import Arms
from nccl_runbook.planning.halving import halve
from nccl_runbook.probes import arms
from nccl_runbook.rules import transports
from pydantic import TypeAdapter


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in arms.steering(os.environ):
        monkeypatch.delenv(name)


def test_arms_on_the_cpu_have_a_control_before_and_after(engine):
    made = arms.collect(engine, [None, None], 60, halve)
    assert made.control.passed and made.control_after.passed and made["interface pinned"].passed
    assert made.clean == Gap("not-run", "no variable here steers NCCL") and isinstance(made.guilty, Gap)
    assert TypeAdapter(Arms | Gap).validate_python(to_json(made)) == made
    assert transports.judge(made)[0].severity.value == "unknown"
    with pytest.raises(KeyError, match="run were: control, interface pinned"):
        made["P2P off"]


def test_arms_that_the_budget_does_not_reach_are_gaps(engine):
    made = arms.collect(engine, [None, None], 0.0001, halve)
    assert made.control.passed and str(made.arms[0].trial) == str(made.control_after) == "not-run: the budget was spent: raise budget_s"


POISON = {"GLOO_SOCKET_IFNAME": "nothing9", **{f"NCCL_HARMLESS_{n}": str(n) for n in range(8)}, "FI_PROVIDER": "tcp", "UCX_TLS": "tcp",
          "TORCH_NCCL_TRACE_X": "1"}


def test_one_bad_variable_among_twelve_is_named_and_proven(engine, monkeypatch):
    for name, value in POISON.items():
        monkeypatch.setenv(name, value)
    made = arms.collect(engine, [None, None], 110, halve)
    assert not made.control.passed and not made.control.again.passed and made.clean.trial.passed
    assert made.guilty.variables == {"GLOO_SOCKET_IFNAME": "nothing9"} and made.guilty.why_not == ""
    assert made.guilty.among == 12 and made.guilty.asked <= 10
    assert made["interface pinned"].passed  # it overrides the guilty one
    assert TypeAdapter(Arms | Gap).validate_python(to_json(made)) == made


def test_what_says_which_gpus_and_what_keeps_nvls_off_is_never_taken_out():
    assert arms.steering({"CUDA_VISIBLE_DEVICES": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO", "NCCL_RUNBOOK_RUN_DIR": "/x", "PATH": "/bin",
                          "LD_LIBRARY_PATH": "/usr/lib", "NCCL_P2P_DISABLE": "1"}) == {"LD_LIBRARY_PATH": "/usr/lib", "NCCL_P2P_DISABLE": "1"}


def test_one_rank_has_no_transport(engine):
    assert arms.collect(engine, [None], 10, halve) == Gap("unsupported", "one GPU: a transport needs two ranks")
