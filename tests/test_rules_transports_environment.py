"""Rules of 04 about the environment: a variable that is to blame, or that costs bandwidth; each with its near miss."""
from __future__ import annotations

import dataclasses
import re

import pytest
from environments import environment, role
from nccl_runbook.core.facts import Gap
from nccl_runbook.environment import judge
from nccl_runbook.report.verdict_sentence import same_setting
from nccl_runbook.worlds import judge_control as transports_judge_control, judge_transports as transports
from nccl_runbook.worlds.facts import Arm, Guilty, Trial
from world_samples import P2P, SHM, arms, hung, world

NAMES = [f"NCCL_X{n}" for n in range(11)]


NOT_RUN = Gap("not-run")


def with_clean(made, clean, guilty=NOT_RUN):
    arm = Arm("clean", dict.fromkeys([*NAMES, "NCCL_P2P_DISABLE"]), [], Trial("clean", clean))
    return dataclasses.replace(made, clean=arm, guilty=guilty)


def failing(**more):
    return arms(control=hung(transports=P2P), p2p=hung(), shm=hung(), both=hung(), pinned=hung(), after=hung(), **more)


def test_variable_at_fault_fires_with_the_proof_of_the_halving():
    found, = transports.judge_transports(with_clean(failing(), world(), Guilty({"NCCL_TOPO_FILE": "/t.xml"}, 12, 7)))
    assert (found.id, found.cause, found.status) == ("variable-at-fault", "topology-file-bad", "established")
    assert found.title.startswith("NCCL_TOPO_FILE=/t.xml: 2 ranks hung ") and found.remedy[0].lines == ("unset NCCL_TOPO_FILE",)
    assert re.findall(r"\d+", found.evidence[0].text) == ["1", "12", "11"], "1 of 12 variables; the other 11 are cleared"


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_SOCKET_IFNAME", "ens9"), ("NCCL_SOCKET_IFNAME", "ens9,ens8"), ("NCCL_SOCKET_IFNAME", "=ens9"), ("GLOO_SOCKET_IFNAME", "ens9")],
)
def test_the_step_that_tried_a_setting_and_the_one_that_read_it_name_it_alike(name, value):
    def tried(guilty):
        return transports.judge_transports(with_clean(failing(), world(), Guilty(guilty, 12, 7)))[0]

    read, = (f for f in judge.judge(environment(role(variables={name: value}))) if f.id == "interface-missing")
    proven = tried({name: value})
    assert proven.setting == read.setting == f"{name}={value}" and proven.cause == read.cause
    assert same_setting(proven, [proven, read]) == [read]
    assert same_setting(tried({name: "ens7"}), [read]) == same_setting(tried({name: value, "NCCL_X": "1"}), [read]) == []
    unproven, = transports.judge_transports(with_clean(failing(), world(), Guilty({name: value}, 12, 7, "unclear")))
    assert unproven.setting == "" and same_setting(unproven, [dataclasses.replace(read, cause=unproven.cause, setting="")]) == []


def test_variable_at_fault_is_only_likely_when_the_halving_did_not_end():
    found, = transports.judge_transports(with_clean(failing(), world(), Guilty({"NCCL_A": "1", "NCCL_B": "2"}, 12, 5, "unclear")))
    assert (found.cause, found.status) == ("env-conflict", "likely") and "which of 2 variables" in found.title


def test_variable_at_fault_names_what_is_left_where_the_budget_cut_the_halving():
    left = Guilty({"NCCL_A": "1", "NCCL_B": "2"}, 12, 5, "cut off by the time budget")
    found, = transports.judge_transports(with_clean(failing(), world(), left))
    assert found.status == "likely" and re.search(r"\(.*budget, with 2 .*: NCCL_A, NCCL_B\)$", found.title)
    assert re.search(r": 2 of 12 .*\b5 tests \(.*budget", found.evidence[0].text)
    assert found.remedy[0].lines == ("unset NCCL_A NCCL_B",)


def test_variable_at_fault_takes_out_all_of_them_where_others_than_the_one_found_do_it_too():
    found, = transports.judge_transports(with_clean(failing(), world(), Guilty({"NCCL_X3": "1"}, 12, 6, "confounded")))
    assert found.status == "likely" and "which of 12 variables" in found.title and found.evidence[0].text.startswith("NCCL_X3=1: 1 of 12")
    assert found.remedy[0].lines == (f"unset {' '.join([*NAMES, 'NCCL_P2P_DISABLE'])}",) and "do not prove" in found.remedy[0].text


def test_variable_at_fault_stays_quiet_when_clean_fails_too():
    found, = transports.judge_transports(with_clean(failing(), hung()))
    assert (found.id, found.cause) == ("control-fails", None) and found.evidence[-1].text.startswith("not the ")


def test_variable_at_fault_stays_quiet_when_the_control_passes_at_the_end():
    made = arms(control=hung(transports=P2P), p2p=hung(), shm=hung(), both=hung(), pinned=hung(), after=world())
    assert transports.judge_transports(with_clean(made, world(), Guilty({"NCCL_A": "1"}, 12, 7)))[0].cause is None


def test_environment_costs_bandwidth_fires_with_both_figures():
    slow = arms(control=world(transports=SHM, taken=["NCCL_P2P_DISABLE=1"], slow=13.0))
    found = [
        f
        for f in transports.judge_transports(with_clean(slow, world(), Guilty({"NCCL_P2P_DISABLE": "1"}, 12, 7)))
        if f.severity.value == "warn"
    ]
    assert [(f.id, f.cause, f.status) for f in found] == [("environment-costs-bandwidth", "env-conflict", "established")]
    assert "all_reduce reaches 18.8 GB/s, but 244.0 GB/s without NCCL_P2P_DISABLE=1" in found[0].title


def test_environment_costs_bandwidth_stays_quiet_when_clean_is_no_faster():
    assert [f.id for f in transports.judge_transports(with_clean(arms(), world()))] == ["transports-pass"]


def test_a_narrowed_p2p_level_acted_only_if_less_p2p_is_left():
    control = Trial("control", world(transports={"P2P/CUMEM": 24}))
    level = {"NCCL_P2P_LEVEL": "NVL"}
    for count, told in ((12, "pass"), (24, "no effect")):
        made = Arm("P2P over NVLink only", level, ["P2P"], Trial("x", world(transports={"P2P/CUMEM": count, "SHM/direct/direct": 4})))
        assert transports_judge_control.outcome(made, control) == told


def test_an_algorithm_that_was_used_before_is_no_effect():
    def using(*names):
        return Trial("x", dataclasses.replace(world(), algorithms=dict.fromkeys(names, 8)))

    ring = Arm("ring only", {"NCCL_ALGO": "Ring"}, ["algo TREE", "algo NVLS"], using("algo RING", "proto SIMPLE"))
    assert transports_judge_control.outcome(ring, using("algo RING", "proto SIMPLE")) == "no effect"
    assert transports_judge_control.outcome(ring, using("algo RING", "algo TREE")) == "pass"


@pytest.mark.parametrize(
    ("first", "again", "word"),
    [
        ({}, None, "passed 1 of 1"),
        ({"timed": True}, None, "pass"),
        (None, None, "hung"),
        (None, hung(), "hung"),
        (None, world(), "passed 1 of 2"),
    ],
)
def test_beside_a_failing_control_an_arm_passes_only_if_it_was_timed(first, again, word):
    """``first``: of the arm's request, None if it hangs."""
    ran = world(transports=SHM) if first is not None else hung()
    ran = dataclasses.replace(ran, request=dataclasses.replace(ran.request, **{"timed": False, **(first or {})}))
    arm = Arm("P2P off", {"NCCL_P2P_DISABLE": "1"}, ["P2P"], Trial("x", ran, again))
    assert transports_judge_control.outcome(arm, Trial("control", hung(transports=P2P))) == word
    assert transports_judge_control.outcome(arm, Trial("control", world())) == ("pass" if first is not None else word)
