"""The arms of 04 on real Gloo ranks: controls, budget, the arm *clean* and the variable that is to blame."""
from __future__ import annotations

import dataclasses
import os
import sys
import time

import pytest
import world_samples
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.search.halving import halve
from nccl_runbook.worlds import (
    ask_arms as arms,
    judge_transports as transports,
)
from nccl_runbook.worlds.facts import Arms, Trial
from nccl_runbook.worlds.table import arms_table
from pydantic import TypeAdapter
from world_samples import outcomes


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in arms.steering(os.environ):
        monkeypatch.delenv(name)


def test_arms_on_the_cpu_have_a_control_before_and_after(engine):
    made = arms.collect(engine, [None, None], 60, halve)
    assert made.control.passed and made.control_after.passed and made["interface pinned"].passed
    assert made.clean == Gap("not-run", "no variable of your environment affects NCCL") and isinstance(made.guilty, Gap)
    assert TypeAdapter(Arms | Gap).validate_python(to_json(made)) == made
    assert transports.judge_transports(made)[0].severity.value == "unknown"
    with pytest.raises(KeyError, match="P2P off.*: control, interface pinned"):
        made["P2P off"]


def test_arms_that_the_budget_does_not_reach_are_gaps(engine):
    made = arms.collect(engine, [None, None], 0.0001, halve)
    assert made.control.passed and made.arms[0].trial == made.control_after
    assert made.control_after.reason == "not-run" and "budget_s" in made.control_after.detail


POISON = {"GLOO_SOCKET_IFNAME": "nothing9", **{f"NCCL_HARMLESS_{n}": str(n) for n in range(8)}, "FI_PROVIDER": "tcp", "UCX_TLS": "tcp",
          "TORCH_NCCL_TRACE_X": "1"}


def test_one_bad_variable_among_twelve_is_named_and_proven(own_engine, monkeypatch):
    for name, value in POISON.items():
        monkeypatch.setenv(name, value)
    made = arms.collect(own_engine, [None, None], 110, halve)
    assert not made.control.passed and not made.control.again.passed and made.clean.trial.passed
    assert made.guilty.variables == {"GLOO_SOCKET_IFNAME": "nothing9"} and made.guilty.why_not == ""
    assert made.guilty.among == 12 and made.guilty.asked <= 10
    assert made["interface pinned"].passed  # it overrides the guilty one
    assert TypeAdapter(Arms | Gap).validate_python(to_json(made)) == made


@pytest.mark.parametrize("cut", [True, False])
def test_a_halving_without_an_answer_says_whether_the_budget_cut_it(own_engine, monkeypatch, cut):
    for name, value in POISON.items():
        monkeypatch.setenv(name, value)

    began, budget_s = time.monotonic(), arms.CPU_DEADLINE_S + 12

    def halve_late(candidates, shows):
        """The budget is spent after the second test; or an interpreter does not start with that environment."""
        left = iter([1, 1])

        def asked(kept):
            if next(left, None):
                return shows(kept)
            time.sleep(cut * max(0, began + 12.1 - time.monotonic()))
            return shows(kept) if cut else None

        return halve(candidates, asked)

    made = arms.collect(own_engine, [None, None], budget_s, halve_late)
    assert ("budget" in made.guilty.why_not, made.guilty.why_not == "unclear") == (cut, not cut) and made.guilty.asked == 3
    assert "GLOO_SOCKET_IFNAME" in made.guilty.variables and len(made.guilty.variables) < 12


def test_what_says_which_gpus_and_what_keeps_nvls_off_is_never_taken_out():
    assert arms.steering(
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_RUNBOOK_RUN_DIR": "/x",
            "PATH": "/bin",
            "NCCL_VERSION": "2.28.3-1",
            "LD_LIBRARY_PATH": "/usr/lib",
            "NCCL_P2P_DISABLE": "1",
        }
    ) == {"LD_LIBRARY_PATH": "/usr/lib", "NCCL_P2P_DISABLE": "1"}


def test_one_rank_has_no_transport(engine):
    assert arms.collect(engine, [None], 10, halve) == Gap("unsupported", "there is one GPU, but a transport test needs two ranks")


def test_one_rank_that_fails_is_tried_without_its_variables_and_nothing_else(own_engine, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "rail7")
    monkeypatch.setenv("NCCL_IB_TC", "106")
    made = arms.collect(own_engine, [None], 60, halve)
    found, = transports.judge_transports(made)
    assert made.arms == [] and made.guilty.variables == {"GLOO_SOCKET_IFNAME": "rail7"} and not made.control_after.passed
    assert (found.id, found.cause, found.status) == ("variable-at-fault", "socket-interface-wrong", "established")
    assert (
        found.title.startswith("GLOO_SOCKET_IFNAME=rail7: 1 rank ")
        and found.tried
        and found.remedy[0].lines == ("unset GLOO_SOCKET_IFNAME",)
    )


class Planted(Engine):
    """Gloo ranks in place of GPUs, with what NCCL's log would say of each environment; where ``fails(carried, env)`` they leave at once."""

    def __init__(self, log_dir, fails):
        super().__init__([sys.executable], log_dir, Redactor(os.environ))
        self.fails, self.names = fails, []

    def run_in_turn(self, requests, enough=lambda: False):
        self.names += [r.name for r in requests]
        made = [self._planted(r) for r in requests]
        return [self._logged(w, r) for w, r in zip(super().run_in_turn(made, enough), requests, strict=False)]

    @staticmethod
    def env_of(request):
        return {k: v for k, v in {**os.environ, **request.env}.items() if v is not None and k.startswith("NCCL_")}

    def carried(self, env):
        if env.get("NCCL_P2P_DISABLE") != "1" and env.get("NCCL_P2P_LEVEL") != "LOC":
            return "P2P/IPC" if env.get("NCCL_CUMEM_ENABLE") == "0" else "P2P/CUMEM"
        net = "NET/IB" if arms.INFINIBAND.is_dir() and env.get("NCCL_IB_DISABLE") != "1" else "NET/Socket"
        return net if env.get("NCCL_SHM_DISABLE") == "1" else "SHM/direct/direct"

    def _planted(self, request):
        env = self.env_of(request)
        bad = self.fails(self.carried(env), env)
        args = [
            "--ops",
            "no-such-op" if bad else "all_reduce",
            "--sizes",
            "4,65536",
            "--repeats",
            request.args[request.args.index("--repeats") + 1],
        ]
        steering = {k: v for k, v in request.env.items() if k.startswith("NCCL_")}
        return dataclasses.replace(request, devices=[None] * len(request.devices), args=args, env=steering, stall_s=None)

    def _logged(self, world, request):
        env = self.env_of(request)
        return dataclasses.replace(
            world,
            request=request,
            transports={self.carried(env): 4},
            set_by_environment=[f"{k}={v}" for k, v in env.items()],
            algorithms={"algo RING": 4, "proto SIMPLE": 4, **({} if env.get("NCCL_PROTO") else {"proto LL": 4})},
        )


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    with Planted(tmp_path_factory.mktemp("planted") / "logs", lambda carried, env: False) as engine:
        yield engine


def judged(planted, fails, budget_s=500):
    planted.fails, planted.names = fails, []
    made = arms.collect(planted, [0, 1], budget_s, halve)
    return made, transports.judge_transports(made), planted.names


def not_the_transport(finding):
    """Whether the decision, told last, clears the transports."""
    return finding.evidence[-1].text.startswith("not the ")


def test_a_control_that_passes_runs_only_arms_that_can_act(planted):
    made, found, names = judged(planted, lambda carried, env: False, 100)
    assert [f.id for f in found] == ["transports-pass"]
    assert names == ["control", "P2P off", "P2P and SHM off", "cuMem off", "control again"]
    why = {a.name: a.trial for a in made.arms if isinstance(a.trial, Gap)}
    assert {why[name].reason for name in ("SHM off", "NVLS off", "interface pinned", "ring only")} == {"unsupported"}
    assert "SHM" in why["SHM off"].detail and "NVLS" in why["NVLS off"].detail and "network" in why["interface pinned"].detail
    assert why["simple protocol only"].reason == "not-run" and "budget_s is at least 240" in why["simple protocol only"].detail


def test_with_a_deeper_budget_the_later_arms_run_too(planted):
    made, _, names = judged(planted, lambda carried, env: False)
    assert {"P2P over NVLink only", "P2P below one host bridge", "simple protocol only"} <= set(names)
    assert outcomes(made)["simple protocol only"] == "pass" and outcomes(made)["P2P over NVLink only"] == "no effect"


def test_a_p2p_that_fails_is_named_and_its_way_round_is_repeated_and_priced(planted):
    made, found, names = judged(planted, lambda carried, env: carried.startswith("P2P"))
    assert [(f.id, f.cause, f.status) for f in found] == [("transport-at-fault", "p2p-broken-acs-iommu", "likely")], found
    assert names.count("control") == 2 and names.count("P2P off") == 2 and made["P2P off"].busbw_gb_per_s("all_reduce")
    assert "P2P below one PCIe switch" not in names  # as P2P over NVLink only fails already
    assert "P2P and SHM off" not in names and [a.trial for a in made.arms if a.name == "P2P and SHM off"] == [
        Gap("not-run", "runs only if the test P2P off fails")
    ]
    assert "GB/s" in found[0].remedy[-1].text and found[0].remedy[0].who == "the administrator"


def test_a_cumem_that_fails_is_told_from_p2p(planted):
    _, found, _ = judged(planted, lambda carried, env: carried == "P2P/CUMEM")
    assert [(f.cause, f.remedy[-1].lines) for f in found] == [("cumem-mismatch", ("export NCCL_CUMEM_ENABLE=0",))]


def test_what_fails_everywhere_is_not_the_transport(planted):
    _, found, names = judged(planted, lambda carried, env: True)
    assert [(f.id, f.cause) for f in found] == [("control-fails", None)] and not_the_transport(found[0])
    assert names.count("P2P and SHM off") == 1 and names.index("P2P and SHM off") > names.index("P2P off")


@pytest.mark.parametrize("ib_fails", [True, False])
def test_what_passes_only_with_all_of_them_off_is_no_single_transport(planted, tmp_path, monkeypatch, ib_fails):
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(arms, "INFINIBAND", tmp_path / "infiniband")  # the folder in which the kernel lists devices
    made, found, names = judged(planted, lambda carried, env: carried != "NET/Socket" and (ib_fails or carried != "NET/IB"))
    arm, wider = ("P2P, SHM and IB off", "P2P and SHM off") if ib_fails else ("P2P and SHM off", "P2P, SHM and IB off")
    assert [(f.id, f.cause) for f in found] == [("transport-at-fault", None)] and f" {arm}; " in found[0].title
    assert names.count(arm) == 2 and names.count(wider) == ib_fails, "a pass is repeated; all off is tried where less did not do"
    assert [line for r in found[0].remedy for line in r.lines if "IB" in line] == ["export NCCL_IB_DISABLE=1"] * ib_fails


def test_with_ib_what_fails_over_sockets_too_is_not_the_transport(planted, tmp_path, monkeypatch):
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(arms, "INFINIBAND", tmp_path / "infiniband")
    made, found, names = judged(planted, lambda carried, env: True)
    assert names.count("P2P, SHM and IB off") == 1 and not_the_transport(found[0])
    assert made["P2P, SHM and IB off"].transports == {"NET/Socket": 4}


def test_a_p2p_that_fails_beside_ib_needs_no_test_with_all_off(planted, tmp_path, monkeypatch):
    (tmp_path / "infiniband" / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(arms, "INFINIBAND", tmp_path / "infiniband")
    made, found, names = judged(planted, lambda carried, env: carried.startswith("P2P"))
    assert found[0].cause == "p2p-broken-acs-iommu" and not {"P2P and SHM off", "P2P, SHM and IB off"} & set(names)


def test_a_variable_that_fails_is_named_before_any_transport(planted, monkeypatch):
    monkeypatch.setenv("NCCL_BAD", "1")
    monkeypatch.setenv("NCCL_FINE", "1")
    _, found, names = judged(planted, lambda carried, env: "NCCL_BAD" in env)
    assert [(f.id, f.cause, f.status) for f in found] == [("variable-at-fault", "env-conflict", "established")]
    assert (
        "NCCL_BAD=1" in found[0].title
        and "NCCL_FINE" not in found[0].title
        and "simple protocol only" not in names
        and names.count("clean") == 2
    )


def test_a_variable_without_which_it_passes_only_once_is_not_accused(planted, monkeypatch):
    """One pass beside three failures is what a fault that comes two times of three shows in one run of ten."""
    monkeypatch.setenv("NCCL_INNOCENT", "1")
    without = []
    made, found, names = judged(planted, lambda carried, env: "NCCL_INNOCENT" in env or bool(without.append(env) or len(without) > 1))
    assert names.count("clean") == 2 and not made.clean.trial.passed and made.clean.trial.again.passed and isinstance(made.guilty, Gap)
    assert (
        [(f.id, f.cause) for f in found] == [("control-fails", None)]
        and "clean" in found[0].evidence[-1].text
        and "NCCL_INNOCENT" not in found[0].title
    )


def test_an_arm_that_passes_once_of_twice_beside_a_failing_control_is_no_cure_and_no_failure(planted):
    tried = []
    made, found, _ = judged(planted, lambda carried, env: env.get("NCCL_CUMEM_ENABLE") != "0" or bool(tried.append(env) or len(tried) > 1))
    assert outcomes(made)["cuMem off"] == "passed 1 of 2" and ("passed 1 of 2", "warn") in [
        (c.text, c.tone) for row in arms_table(made).rows for c in row]
    assert (
        (found[0].id, found[0].cause) == ("control-fails", None)
        and "cuMem off" in found[0].evidence[-1].text
        and not not_the_transport(found[0])
    )


def test_the_user_s_own_switch_is_not_tried_again(planted, monkeypatch):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    made, found, _ = judged(planted, lambda carried, env: False, 100)
    assert {a.name: a.trial for a in made.arms}["P2P off"] == Gap("unsupported", arms.SET_ALREADY)
    # on the CPU the way round is as fast, but for noise: then its price is told instead
    assert {"switched-off-already", "environment-costs-bandwidth"} & {f.id for f in found}


def test_clean_keeps_the_library_path_where_nothing_runs_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_BAD", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    with Planted(tmp_path / "logs", lambda carried, env: "NCCL_BAD" in env) as engine:
        asked = engine._planted
        engine._planted = lambda r: dataclasses.replace(asked(r), args=["--ops", "no-such-op"]) if "LD_LIBRARY_PATH" in r.env else asked(r)
        made = arms.collect(engine, [0, 1], 500, halve)
    assert list(made.clean.env) == ["NCCL_BAD"] and made.guilty.variables == {"NCCL_BAD": "1"}


def test_the_table_says_how_to_read_two_controls_that_differ():
    """A rehearsal on the CPU: 0.15 and 0.39 GB/s of the same broadcast, and both were green."""
    twice = world_samples.arms()
    assert isinstance(twice.control_after, Trial)
    once = dataclasses.replace(twice, control_after=Gap("not-run", "no time"))
    assert ["control again" in arms_table(made).note for made in (twice, once)] == [True, False]
