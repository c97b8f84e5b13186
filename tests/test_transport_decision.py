"""The decision of 04: case by case, and over its whole input space."""
from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.tables import table
from nccl_runbook.worlds import judge_arms as d_arms
from nccl_runbook.worlds.ask_arms import ARMS
from nccl_runbook.worlds.judge_arms import Outcomes, cures, decide

CONTROL, AGAIN, ARM, CLEAN, KINDS = (table("worlds/transports")["words"][name] for name in ("control", "again", "arm", "clean", "kinds"))
FAIL = {name: "hung" for name in ("P2P off", "P2P and SHM off", "SHM off", "cuMem off", "interface pinned")}


def seen(control="hung", after="fail", clean="fail", settled=False, connected=True, message=False, **arms):
    named = {a.replace("_", " "): word for a, word in arms.items()}
    return Outcomes(control, after, {**FAIL, **named}, clean, settled, connected, message)


CASES = {
    "healthy": (seen("pass", "pass", P2P_off="pass", SHM_off="no effect", cuMem_off="pass"), "healthy", "", None, None),
    "P2P hangs": (seen("hung", P2P_off="pass", P2P_and_SHM_off="pass"), "p2p", "P2P off", "p2p-broken-acs-iommu", "likely"),
    "P2P raises": (seen("failed", P2P_off="pass", P2P_and_SHM_off="pass"), "p2p", "P2P off", "p2p-broken-acs-iommu", "likely"),
    "P2P corrupts": (seen("wrong values", P2P_off="pass", P2P_and_SHM_off="pass"), "p2p", "P2P off", "p2p-broken-acs-iommu", "likely"),
    "only P2P over PCIe": (
        seen(P2P_off="pass", P2P_and_SHM_off="pass", P2P_over_NVLink_only="pass"),
        "p2p-path",
        "P2P over NVLink only",
        "p2p-broken-acs-iommu",
        "likely",
    ),
    "only P2P over the far side": (
        seen(P2P_off="pass", P2P_over_NVLink_only="pass", P2P_below_one_PCIe_switch="pass", P2P_below_one_host_bridge="pass"),
        "p2p-path",
        "P2P below one host bridge",
        "p2p-broken-acs-iommu",
        "likely",
    ),
    "SHM": (seen(SHM_off="pass", P2P_and_SHM_off="pass"), "shm", "SHM off", "shm-too-small", "likely"),
    "SHM, before it connected": (
        seen(SHM_off="pass", P2P_and_SHM_off="pass", connected=False),
        "shm",
        "SHM off",
        "shm-too-small",
        "possible",
    ),
    "cuMem host": (
        seen(SHM_off="pass", cuMem_off="pass", cuMem_host_off="pass"),
        "cumem-host",
        "cuMem host off",
        "cumem-mismatch",
        "likely",
    ),
    "IB": (seen(IB_off="pass"), "ib", "IB off", "network-path-blocked", "likely"),
    "GDR": (seen(IB_off="pass", GDR_off="pass"), "gdr", "GDR off", "gdr-broken-acs", "likely"),
    "NVLS": (seen(NVLS_off="pass", cuMem_off="pass", P2P_off="pass", ring_only="pass"), "nvls", "NVLS off", "nvls-fabric-fault", "likely"),
    "cuMem": (seen(cuMem_off="pass", P2P_off="pass", P2P_and_SHM_off="pass"), "cumem", "cuMem off", "cumem-mismatch", "likely"),
    "P2P and SHM both": (seen(P2P_and_SHM_off="pass"), "sockets", "P2P and SHM off", None, None),
    "P2P, and sockets fail too": (seen(P2P_off="pass", P2P_and_SHM_off="failed"), "p2p", "P2P off", "p2p-broken-acs-iommu", "likely"),
    "interface": (seen("failed", interface_pinned="pass"), "interface", "interface pinned", "socket-interface-wrong", "likely"),
    "a variable, proven": (seen(clean="pass", settled=True, interface_pinned="pass"), "variable", "clean", "env-conflict", "established"),
    "a variable, not proven": (seen(clean="pass"), "variable", "clean", "env-conflict", "likely"),
    "only sockets": (seen(P2P_and_SHM_off="pass"), "sockets", "P2P and SHM off", None, None),
    "P2P, SHM and IB": (seen(IB_off="hung", **{"P2P,_SHM_and_IB_off": "pass"}), "sockets", "P2P, SHM and IB off", None, None),
    "P2P, SHM and IB, without proof": (seen(IB_off="hung", **{"P2P,_SHM_and_IB_off": "no proof"}), "inconclusive", "", None, None),
    "P2P and SHM, and with IB off too": (
        seen(P2P_and_SHM_off="pass", IB_off="hung", **{"P2P,_SHM_and_IB_off": "pass"}),
        "sockets",
        "P2P and SHM off",
        None,
        None,
    ),
    "all off passes, and IB off alone too": (
        seen(IB_off="pass", **{"P2P,_SHM_and_IB_off": "pass"}),
        "ib",
        "IB off",
        "network-path-blocked",
        "likely",
    ),
    "all off passes, and an unrelated switch": (
        seen(IB_off="hung", interface_pinned="pass", **{"P2P,_SHM_and_IB_off": "pass"}),
        "inconclusive",
        "",
        None,
        None,
    ),
    "over IB it fails, all off not tried": (seen(IB_off="hung", **{"P2P,_SHM_and_IB_off": "not run"}), "inconclusive", "", None, None),
    "not the transport, beside IB": (seen(IB_off="hung", **{"P2P,_SHM_and_IB_off": "hung"}), "not-the-transport", "", None, None),
    "not the transport": (seen(), "not-the-transport", "", None, None),
    "not the transport, clean not run": (seen(clean="not run"), "inconclusive", "", None, None),
    "over sockets it fails, the interface not tried": (seen(interface_pinned="not run"), "inconclusive", "", None, None),
    "over what is left it fails, IB not tried": (seen(IB_off="not run"), "inconclusive", "", None, None),
    "P2P off passes, and so does cuMem off without proof": (
        seen(P2P_off="pass", cuMem_off="no proof", NVLS_off="no proof"),
        "p2p",
        "P2P off",
        "p2p-broken-acs-iommu",
        "possible",
    ),
    "IB off passes, and so does GDR off without proof": (
        seen(IB_off="pass", GDR_off="no proof"),
        "ib",
        "IB off",
        "network-path-blocked",
        "possible",
    ),
    "one protocol": (seen(simple_protocol_only="pass"), "protocol", "simple protocol only", "nccl-bug", "possible"),
    "the message says it": (seen("failed", message=True, SHM_off="pass"), "explained", "SHM off", None, None),
    "it comes and goes": (seen("once of twice", P2P_off="pass"), "inconclusive", "", None, None),
    "not repeated": (seen("once of once", "not run"), "inconclusive", "", None, None),
    "passes at the end": (seen("hung", "pass", P2P_off="pass"), "inconclusive", "", None, None),
    "an arm without effect passes": (seen("hung", SHM_off="no effect", P2P_off="pass"), "inconclusive", "", None, None),
    "fails at the end": (seen("pass", "fail"), "inconclusive", "", None, None),
    "two unrelated switches": (seen(P2P_off="pass", interface_pinned="pass"), "inconclusive", "", None, None),
    "no proof": (seen(P2P_off="no proof"), "inconclusive", "", None, None),
    "P2P off passes, and so does an unrelated switch without proof": (
        seen(P2P_off="pass", interface_pinned="no proof"),
        "inconclusive",
        "",
        None,
        None,
    ),
    "sockets pass, and so does an unrelated switch without proof": (
        seen(P2P_and_SHM_off="pass", interface_pinned="no proof"),
        "inconclusive",
        "",
        None,
        None,
    ),
    "P2P off passes once of twice": (seen(P2P_off="passed 1 of 2"), "inconclusive", "", None, None),
    "P2P off passes and is not repeated": (seen(P2P_off="passed 1 of 1"), "inconclusive", "", None, None),
    "P2P off passes, and less than it once of twice": (
        seen(P2P_off="pass", P2P_over_NVLink_only="passed 1 of 2"),
        "p2p",
        "P2P off",
        "p2p-broken-acs-iommu",
        "possible",
    ),
    "P2P off passes, and something else once of twice": (seen(P2P_off="pass", SHM_off="passed 1 of 2"), "inconclusive", "", None, None),
    "clean passes once of twice": (seen(clean="once of twice", P2P_off="pass"), "inconclusive", "", None, None),
    "over sockets it fails, the interface was lost": (seen(interface_pinned="lost"), "inconclusive", "", None, None),
    "the control passes, two arms that share nothing fail once": (
        seen("pass", "pass", P2P_off="passed 1 of 2", interface_pinned="passed 1 of 2"),
        "inconclusive",
        "",
        None,
        None,
    ),
    "the control passes, two arms that share a way round fail once": (
        seen("pass", "pass", P2P_off="passed 1 of 2", P2P_and_SHM_off="passed 1 of 2"),
        "healthy",
        "",
        None,
        None,
    ),
    "the control passes, one arm fails once": (seen("pass", "pass", P2P_off="passed 1 of 2"), "healthy", "", None, None),
    "killed": (seen("lost"), "inconclusive", "", None, None),
    "nothing was run": (Outcomes("hung"), "inconclusive", "", None, None),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    given, kind, arm, cause, status = CASES[name]
    told = decide(given)
    assert (told.kind, told.arm, told.cause, told.status) == (kind, arm, cause, status), told
    assert (told.kind == "sockets") == told.why.startswith("no single ")


def test_arms_without_proof_are_named_one_by_one():
    why = decide(Outcomes("hung", "fail", {"P2P off": "no proof", "SHM off": "passed 1 of 1"}, "fail")).why
    assert [part.partition(" passed, but ")[::2] for part in why.split("; ")] == [
        ("P2P off", d_arms.UNSURE["no proof"]), ("SHM off", d_arms.UNSURE["passed 1 of 1"])]


def test_every_arm_that_is_run_is_known_to_the_decision():
    assert set(ARMS) == set(d_arms.REMOVES) == set(d_arms.POINTS_TO)
    assert {kind for kind, _ in d_arms.POINTS_TO.values()} < set(KINDS)
    assert {cause for _, cause in d_arms.POINTS_TO.values() if cause} <= set(causes())


NAMES = ("P2P off", "P2P and SHM off", "SHM off", "NVLS off", "interface pinned")
WORDS = ("pass", "no effect", "hung", "not run")


def every_input():
    for control, after, clean, flags in itertools.product(CONTROL, AGAIN, CLEAN, itertools.product((False, True), repeat=2)):
        for words in itertools.product(WORDS, repeat=len(NAMES)):
            yield Outcomes(control, after, dict(zip(NAMES, words, strict=True)), clean, flags[0], True, flags[1])


def test_the_whole_input_space_has_one_answer_and_none_claims_more_than_was_seen():
    kinds = set()
    for s in every_input():
        told = decide(s)
        kinds.add(told.kind)
        assert told.kind in KINDS and told.why
        if told.kind == "healthy":
            assert s.control == "pass" and s.after != "fail"
        if s.control in ("lost", "once of twice", "once of once"):
            assert told.kind == "inconclusive"
        if told.cause:
            assert s.control in d_arms.FAILING and s.after != "pass" and "no effect" not in s.arms.values()
        if told.arm and told.arm != "clean":
            assert s.arms[told.arm] == "pass" and not any(d_arms.REMOVES[c] < d_arms.REMOVES[told.arm] for c in cures(s))
        if told.kind == "not-the-transport":
            assert "pass" not in s.arms.values() and s.arms["P2P and SHM off"] == "hung" and s.clean == "fail"
            assert s.arms["interface pinned"] == "hung"
    assert kinds == {"healthy", "explained", "variable", "p2p", "shm", "nvls", "interface", "sockets", "not-the-transport", "inconclusive"}


SEVERAL = {"P2P and SHM off", "P2P, SHM and IB off"}


def test_what_only_several_switches_together_cure_is_never_not_the_transport_and_no_single_one():
    names = ("P2P off", "SHM off", "IB off", "P2P and SHM off", "P2P, SHM and IB off", "interface pinned")
    kinds = set()
    for words in itertools.product(WORDS, repeat=len(names)):
        s = Outcomes("hung", "fail", dict(zip(names, words, strict=True)), "fail")
        told, passed = decide(s), {n for n, word in s.arms.items() if word == "pass"}
        kinds.add(told.kind)
        assert (told.kind == "sockets") == told.why.startswith("no single ")
        if passed and passed <= SEVERAL and "no effect" not in words:
            assert told.kind == "sockets" and told.arm in passed and told.cause is None
        if told.kind == "sockets":
            assert passed <= SEVERAL
        if told.kind == "not-the-transport":
            assert not passed and {s.arms[n] for n in names[2:]} == {"hung"}
    assert kinds == {"p2p", "shm", "ib", "interface", "sockets", "not-the-transport", "inconclusive"}


@given(
    st.sampled_from(d_arms.FAILING),
    st.sampled_from(AGAIN),
    st.dictionaries(st.sampled_from(list(ARMS)), st.sampled_from(ARM)),
    st.sampled_from(CLEAN),
)
def test_no_transport_is_named_beside_an_arm_that_passed_and_left_it_alone(control, after, arms, clean):
    told = decide(Outcomes(control, after, arms, clean))
    passed = [name for name, word in arms.items() if word in ("pass", "no effect", *d_arms.UNSURE)]
    if told.arm not in ("", "clean"):
        assert arms[told.arm] == "pass" and "no effect" not in arms.values()
        assert set(passed) <= SEVERAL or frozenset.intersection(*(d_arms.REMOVES[name] for name in passed))
    assert told.kind != "not-the-transport" or not passed


@pytest.mark.parametrize("arm", list(ARMS))
@pytest.mark.parametrize("word", ARM)
def test_each_arm_by_itself(arm, word):
    told = decide(Outcomes("hung", "fail", {arm: word}, "fail"))
    wanted = {"pass": d_arms.POINTS_TO[arm][0], "no effect": "inconclusive", "no proof": "inconclusive"}.get(word)
    assert told.kind == (wanted or ("not-the-transport" if arm == "P2P and SHM off" and word in d_arms.FAILING else "inconclusive"))
