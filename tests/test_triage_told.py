"""Experiments that a reporter describes are results: what works shows the broken path, what fails all the same rules it out."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_runbook.messages import read as reader
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage import judge_told

LOG = "NCCL INFO NCCL version 2.28.9+cuda13.0\n"


def judged(tmp_path, context: str) -> tuple[dict[str, str], list[str]]:
    (tmp_path / "job.log").write_text(LOG)
    logs = reader.collect([str(tmp_path / "job.log")], context)
    found = triage.judge(logs)
    return {h.cause: h.status for h in found}, [c.id for c in triage.fits(logs, found)]


@pytest.mark.parametrize("cause, context", [
    ("p2p-broken-acs-iommu", "hangs at init; with NCCL_P2P_DISABLE=1 it starts and runs"),
    ("p2p-broken-acs-iommu", "it hangs unless NCCL_P2P_DISABLE=1 is set"),
    ("p2p-broken-acs-iommu", "all_reduce hangs, NCCL_P2P_LEVEL=LOC fixes it"),
    ("p2p-broken-acs-iommu", "without NCCL_P2P_DISABLE=1 it hangs"),
    ("nvls-fabric-fault", "8 H100, the first all_reduce fails. Setting NCCL_NVLS_ENABLE=0 solved it."),
    ("cumem-mismatch", "crashes in init but NCCL_CUMEM_ENABLE=0 works"),
    ("gdr-broken-acs", "two nodes hang; NCCL_NET_GDR_LEVEL=LOC helps"),
    ("engine-allreduce-needs-p2p", "vLLM hangs while --disable-custom-all-reduce is fine"),
    ("topology-file-bad", "internal error; it works without NCCL_TOPO_FILE"),
    ("nccl-bug", "hangs with NCCL 2.27.3 and works with NCCL 2.28.9"),
    ("nccl-bug", "with NCCL 2.30.4 it hangs, not with 2.28.9"),
])
def test_what_works_with_a_path_off_makes_its_one_cause_likely(tmp_path, cause, context):
    assert judged(tmp_path, context)[0][cause] == "likely"


@pytest.mark.parametrize("cause, context", [
    ("p2p-broken-acs-iommu", "2 GPUs hang at init; NCCL_P2P_DISABLE=1 makes no difference"),
    ("p2p-broken-acs-iommu", "2 GPUs hang at init; with NCCL_P2P_DISABLE=1 it still hangs"),
    ("p2p-broken-acs-iommu", "2 GPUs hang at init; setting NCCL_P2P_DISABLE=1 does not help"),
    ("nvls-fabric-fault", "hangs at the first all_reduce; NCCL_NVLS_ENABLE=0 has no effect"),
    ("shm-too-small", "it hangs in docker; the same error with NCCL_SHM_DISABLE=1"),
])
def test_what_fails_all_the_same_rules_its_path_out(tmp_path, cause, context):
    found, fits = judged(tmp_path, context)
    assert cause not in found and cause not in fits


def test_several_causes_of_one_path_are_listed_and_none_is_likely(tmp_path):
    found, _ = judged(tmp_path, "two nodes hang; with NCCL_IB_DISABLE=1 it works")
    assert list(found)[:3] == ["network-path-blocked", "roce-gid-wrong", "gdr-broken-acs"] and {*found.values()} == {"possible"}
    found, _ = judged(tmp_path, "two nodes hang; with NCCL_IB_DISABLE=1 it works; NCCL_NET_GDR_LEVEL=LOC does not help")
    assert "gdr-broken-acs" not in found, "the other trial rules it out"


@pytest.mark.parametrize("context", ["NCCL_P2P_DISABLE=1 is in the launch script", "it hangs", "hangs with torch 2.7.1, works with torch 2.6.0", "vllm 2.28 works, NCCL_DEBUG=INFO is set",
                                     "should I set NCCL_NVLS_ENABLE=0", ""])
def test_a_setting_or_version_without_an_outcome_is_no_result(context):
    assert judge_told.pointers(context) == [] and judge_told.ruled_out(context) == set()


@given(st.lists(st.sampled_from(["NCCL_P2P_DISABLE=1", "NCCL 2.28.9", "2.3", "not with", "works", "hangs", ";", ",", ".", "\n", "without", "\\", "2." * 50]), max_size=12))
def test_any_words_are_read(words):
    context = " ".join(words)
    assert all(p.evidence[0].text.strip() and p.cause not in judge_told.ruled_out(context) for p in judge_told.pointers(context) if p.cause != "nccl-bug")


WELL = ':::MLLOG {"key": "run_stop", "value": null, "metadata": {"status": "success"}}\n'
NOISE = "n1:10:21 [2] proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 2, res=3, closed=0\n"


@pytest.mark.parametrize("log", [NOISE + WELL, WELL + NOISE, WELL + "[rank1]: ValueError: bad\n", "[rank1]: ValueError: bad\n" + WELL,
                                 NOISE + "RESULT,OBJECT_DETECTION,,5805,nvidia,2026-05-01 10:00:00\n",
                                 WELL + "slurmstepd: error: *** STEP 7.0 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO TIME LIMIT ***\n"])
def test_a_job_that_said_that_it_ended_well_has_no_fault(tmp_path, log):
    (tmp_path / "job.log").write_text(log)
    assert {h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))} <= {"benign"}


def test_after_the_end_another_run_in_the_same_file_is_judged(tmp_path):
    (tmp_path / "job.log").write_text(WELL + "[rank1]: step 1 loss 2.0\n[rank1]: ValueError: bad\n")
    assert [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))] == ["peer-crashed"]


def test_what_cancels_a_job_that_had_failed_is_no_cause(tmp_path):
    cancelled = "slurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 ***\n"
    for before, status in (("step 4 loss 2.0\n", "established"), ("[rank1]: ValueError: bad\n", "possible"), ("srun: error: n1: task 0: Exited with exit code 1\n", "possible")):
        (tmp_path / "job.log").write_text(before + cancelled)
        found = {h.cause: h.status for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))}
        assert found["scheduler-cancelled"] == status, before
