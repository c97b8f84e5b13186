"""Experiments that a reporter describes are results: what works shows the broken path, what fails all the same rules it out."""
from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages import excerpt as reader_excerpt, read as reader
from nccl_runbook.messages.facts import Logs, Seen
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses import (
    judge_hypothesis as triage_hypothesis,
    judge_weights as triage_weights,
)
from nccl_runbook.triage.ranks import judge_experiments
from warm_cli import read_cli

LOG = "NCCL INFO NCCL version 2.28.9+cuda13.0\n"


def judged(tmp_path, context: str) -> tuple[dict[str, str], list[str]]:
    (tmp_path / "job.log").write_text(LOG)
    logs = reader.collect([str(tmp_path / "job.log")], context)
    found = triage.judge(logs)
    return {h.cause: h.status for h in found}, [c.id for c in triage_weights.fits(logs, found)]


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
    ("p2p-broken-acs-iommu", "2 GPUs hang at init; NCCL_P2P_DISABLE=1 didn't help"),
    ("p2p-broken-acs-iommu", "2 GPUs hang at init; with NCCL_P2P_DISABLE=1 it doesn’t work"),
    ("nvls-fabric-fault", "hangs at the first all_reduce; NCCL_NVLS_ENABLE=0 isn't working"),
    ("shm-too-small", "it hangs in docker; it won't start with NCCL_SHM_DISABLE=1"),
])
def test_what_fails_all_the_same_rules_its_path_out(tmp_path, cause, context):
    found, fits = judged(tmp_path, context)
    assert cause not in found and cause not in fits


@pytest.mark.parametrize(
    "outcome",
    [
        "it does not hang",
        "it no longer hangs",
        "no more crashes",
        "it never deadlocks",
        "it runs without any errors",
        "the hang disappears",
        "the error is gone",
    ],
)
def test_a_failure_that_is_denied_is_a_success(outcome):
    told = judge_experiments.experiments(f"with NCCL_P2P_DISABLE=1 {outcome}")
    assert [(p.cause, p.status) for p in told] == [("p2p-broken-acs-iommu", "likely")]


@pytest.mark.parametrize(
    "cures", ["fixes the hang", "solved the problem", "avoids the crash", "prevents this deadlock", "got rid of the error"]
)
@pytest.mark.parametrize("what, cause", [("NCCL_NVLS_ENABLE=0", "nvls-fabric-fault"), ("upgrading to NCCL 2.30.4", "nccl-bug")])
def test_a_failure_that_is_cured_is_a_success(cures, what, cause):
    assert [(p.cause, p.status) for p in judge_experiments.experiments(f"NCCL: {what} {cures}")] == [(cause, "likely")]


@pytest.mark.parametrize(
    "words",
    [
        "NCCL_P2P_DISABLE=1 doesn't fix the hang",
        "NCCL_P2P_DISABLE=1 never solved the problem",
        "NCCL_P2P_DISABLE=1 cannot fix the hang",
        "with NCCL_P2P_DISABLE=1 it hangs without an error",
    ],
)
def test_a_cure_that_is_denied_is_a_failure(words):
    assert judge_experiments.experiments(words) == [] and "p2p-broken-acs-iommu" in judge_experiments.ruled_out(words)


@pytest.mark.parametrize("words", ["I set NCCL_P2P_DISABLE=1 to avoid the hang", "NCCL_P2P_DISABLE=1 in order to get rid of the errors"])
def test_what_somebody_wants_to_reach_is_no_result(words):
    assert judge_experiments.experiments(words) == [] and judge_experiments.ruled_out(words) == set()


@pytest.mark.parametrize("status, words", [
    ("likely", "works with NVSHMEM 3.4.5, fails with NVSHMEM 3.6.2"), ("likely", "With libfabric 1.22.0 it hangs; libfabric 2.1.0 is fine"),
    ("possible", "with vLLM 0.16.1 the script works; with vLLM 0.17.0 it raises"), ("possible", "after upgrading to SGLang 0.5.9 it hangs"),
    ("possible", "timeout with NVSHMEM version >= 3.5.19"), ("possible", "TRL 1.2.0 or later hangs")])
def test_two_versions_of_a_library_or_the_first_bad_one_are_a_result(status, words):
    assert [(p.cause, p.status) for p in judge_experiments.experiments(words)] == [("framework-version-incompatible", status)]


@pytest.mark.parametrize(
    ("words", "lead"),
    [
        ("On GB200 it crashes with NCCL 2.21.5; with NCCL 2.28.9 it works", "nccl-older-than-gpu"),
        ("H100: NCCL 2.14.3 fails, NCCL 2.18.5 works", "nccl-older-than-gpu"),
        ("On GB200 it crashes with NCCL 2.27.3; with NCCL 2.28.9 it works", "nccl-bug"),
        ("On A100 it crashes with NCCL 2.14.3; with NCCL 2.28.9 it works", "nccl-bug"),
    ],
)
def test_a_version_before_the_gpu_is_no_defect(words, lead):
    assert judge_experiments.experiments(words)[0].cause == lead


def test_the_version_that_works_is_installed():
    told = judge_experiments.experiments("fails with vLLM 0.17.0, works with vLLM 0.16.1")
    assert told[0].advice.remedy[0][2] == ("pip install vllm==0.16.1",)


@pytest.mark.parametrize(
    "words",
    [
        "vLLM 0.20.2 hangs with TP=2",
        "vLLM 0.19.1 and torch 2.9.1 are installed",
        "upgraded to vLLM 0.17.0 and it works",
        "vLLM 0.16.1 works",
    ],
)
def test_a_version_that_is_only_named_is_no_result(words):
    assert judge_experiments.experiments(words) == []


@pytest.mark.parametrize(
    "words",
    [
        "`--disable-custom-all-reduce` fixed their case, not ours",
        "NCCL_P2P_DISABLE=1 solved another user's problem",
        "NCCL_NVLS_ENABLE=0 helped in someone else's setup",
        "NCCL_P2P_DISABLE=1 worked for the other's case",
    ],
)
def test_what_helped_somebody_else_is_no_result(words):
    assert judge_experiments.experiments(f"it hangs at init. {words}") == [] and judge_experiments.ruled_out(words) == set()


def test_several_causes_of_one_path_are_listed_and_none_is_likely(tmp_path):
    found, _ = judged(tmp_path, "two nodes hang; with NCCL_IB_DISABLE=1 it works")
    assert list(found)[:3] == ["network-path-blocked", "roce-gid-wrong", "gdr-broken-acs"] and {*found.values()} == {"possible"}
    found, _ = judged(tmp_path, "two nodes hang; with NCCL_IB_DISABLE=1 it works; NCCL_NET_GDR_LEVEL=LOC does not help")
    assert "gdr-broken-acs" not in found, "the other trial rules it out"


@pytest.mark.parametrize(
    "context",
    [
        "NCCL_P2P_DISABLE=1 is in the launch script",
        "it hangs",
        "hangs with torch 2.7.1, works with torch 2.6.0",
        "vllm 2.28 works, NCCL_DEBUG=INFO is set",
        "should I set NCCL_NVLS_ENABLE=0",
        "",
    ],
)
def test_a_setting_or_version_without_an_outcome_is_no_result(context):
    assert judge_experiments.experiments(context) == [] and judge_experiments.ruled_out(context) == set()


@pytest.mark.parametrize("line", ["via P2P/IPC", "via NET/Socket/0"])
def test_the_beginning_of_a_communicator_is_no_hang(tmp_path, line):
    start = (
        "n1:{p}:9 [{r}] NCCL INFO ncclCommInitRank comm 0x1 rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId 1000 commId 0x1 - Init START\n"
    )
    log = tmp_path / "a.log"
    log.write_text(
        "".join(
            start.format(p=7 + r, r=r) + f"n1:{7 + r}:9 [{r}] NCCL INFO Channel 00/0 : {r}[{r}] -> {1 - r}[{1 - r}] {line}\n"
            for r in (0, 1)
        )
        + "+ sysctl vm.drop_caches=3\nNVIDIA RTX A6000\n"
    )
    assert triage.judge(reader.collect([str(log)], "")) == []


@given(
    st.lists(
        st.sampled_from(
            ["NCCL_P2P_DISABLE=1", "NCCL 2.28.9", "2.3", "not with", "works", "hangs", ";", ",", ".", "\n", "without", "\\", "2." * 50]
        ),
        max_size=12,
    )
)
def test_any_words_are_read(words):
    context = " ".join(words)
    assert all(
        p.evidence[0].text.strip() and p.cause not in judge_experiments.ruled_out(context)
        for p in judge_experiments.experiments(context)
        if p.cause != "nccl-bug"
    )


WELL = ':::MLLOG {"key": "run_stop", "value": null, "metadata": {"status": "success"}}\n'
NOISE = "n1:10:21 [2] proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 2, res=3, closed=0\n"


@pytest.mark.parametrize(
    "log",
    [
        NOISE + WELL,
        WELL + NOISE,
        WELL + "[rank1]: ValueError: bad\n",
        "[rank1]: ValueError: bad\n" + WELL,
        NOISE + "RESULT,OBJECT_DETECTION,,5805,nvidia,2026-05-01 10:00:00\n",
        NOISE + "3: RESULT,LANGUAGE_MODEL,,5805,nvidia,2026-05-01 10:00:00\n",
        NOISE + "0: " + WELL + "1: step 7 loss 2.5\n" + "1: ValueError: bad\n",
        WELL
        + ':::MLLOG {"key": "tracked_stats", "value": {"throughput": 9.5}, "metadata": {"step": 5}}\nsrun: error: n5: task 0: Exited with'
        " exit code 143\n",
        WELL + "slurmstepd: error: *** STEP 7.0 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO TIME LIMIT ***\n",
    ],
)
def test_a_job_that_said_that_it_ended_well_has_no_fault(tmp_path, log):
    (tmp_path / "job.log").write_text(log)
    assert {h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))} <= {"benign"}


def test_after_the_end_another_run_in_the_same_file_is_judged(tmp_path):
    (tmp_path / "job.log").write_text(WELL + "[rank1]: step 1 loss 2.0\n[rank1]: ValueError: bad\n")
    assert [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))] == ["peer-crashed"]


def test_wrong_values_lead_before_the_exit_code_that_they_cause(tmp_path):
    (tmp_path / "job.log").write_text(
        "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 20.1\nsrun: error: n5: tasks 0-3: Exited with exit code 1\n"
    )
    found = [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))]
    assert found[:3] == ["p2p-broken-acs-iommu", "gpu-or-link-fault", "nccl-bug"] and "peer-crashed" in found


def test_a_step_that_slurm_cancels_after_a_task_failed_stands_behind_the_failure(tmp_path):
    failed, cancelled = (
        "srun: error: n5: tasks 0-3: Exited with exit code 1\n",
        "slurmstepd: error: *** STEP 7.0 ON n5 CANCELLED AT 2026-05-27T21:52:36 ***\n",
    )
    for log, first in ((failed + cancelled, "peer-crashed"), (cancelled + failed, "scheduler-cancelled")):
        (tmp_path / "job.log").write_text("step 4 loss 2.0\n" + log)
        assert triage.judge(reader.collect([str(tmp_path / "job.log")]))[0].cause == first


def test_what_cancels_a_job_that_had_failed_is_no_cause(tmp_path):
    cancelled = "slurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 ***\n"
    for before, status in (
        ("step 4 loss 2.0\n", "established"),
        ("[rank1]: ValueError: bad\n", "possible"),
        ("srun: error: n1: task 0: Exited with exit code 1\n", "possible"),
    ):
        (tmp_path / "job.log").write_text(before + cancelled)
        found = {h.cause: h.status for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))}
        assert found["scheduler-cancelled"] == status, before


def causes_of(tmp_path, log: str, context: str = "") -> dict[str, str]:
    (tmp_path / "job.log").write_text(log)
    return {h.cause: h.status for h in triage.judge(reader.collect([str(tmp_path / "job.log")], context))}


TIMEOUT = (
    "[rank{r}]:[E101 10:30:00.000000000 ProcessGroupNCCL.cpp:683] [Rank {i}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum={n}, OpType={op}, NumelIn=1024, NumelOut=4096, Timeout(ms)=600000) ran for 600030 milliseconds before timing out.\n"
)


@pytest.mark.parametrize("last, busy", [
    ("[rank0] Waiting for file /shared/step_4.done", True), ("[rank0] Compiling the model", True), ("[rank0] Saving the checkpoint", True),
    ("[rank0] Unpacking the archive", True), ("[rank0] Evaluating 500 prompts", True), ("[rank0] step done", False)])
def test_the_last_line_of_the_rank_that_is_missing_says_what_it_does(tmp_path, last, busy):
    found = causes_of(tmp_path, last + "\n" + TIMEOUT.format(r=3, i=3, n=91, op="_ALLGATHER_BASE"))
    assert (list(found)[0] == "rank-busy-on-host") is busy


def test_a_tensor_that_both_sides_describe_otherwise_is_a_mismatch(tmp_path):
    line = "{who} model.layers.0.mlp.weight dtype=torch.{t} shape=({n}, 32)\n"
    hangs = TIMEOUT.format(r=0, i=0, n=3, op="SEND")
    sent = line.format(who="sending", t="float32", n=32)
    assert causes_of(tmp_path, hangs + sent + line.format(who="receiving", t="bfloat16", n=32))["collective-mismatch"] == "likely"
    assert causes_of(tmp_path, hangs + sent + line.format(who="receiving", t="float32", n=64))["collective-mismatch"] == "likely"
    assert "collective-mismatch" not in causes_of(tmp_path, hangs + sent + line.format(who="receiving", t="float32", n=32))


def test_ranks_that_wait_in_different_groups_may_use_them_in_different_orders(tmp_path):
    one, same = TIMEOUT.format(r=1, i=1, n=16, op="ALLTOALL_BASE"), TIMEOUT.format(r=3, i=3, n=7, op="ALLREDUCE")
    assert list(causes_of(tmp_path, one + same.replace("[Rank 3]", "[Rank 1]")))[0] == "communicator-order"
    assert "communicator-order" not in causes_of(tmp_path, one + same)


@pytest.mark.parametrize(
    "log, platform",
    [
        ("h1:11:11 [0] NCCL INFO RCCL version : 2.27.7-HEAD:0000000\n", "ROCm"),
        ("RuntimeError: HIP error: invalid device ordinal\nenv: HIP_VISIBLE_DEVICES=1\n", "ROCm"),
        ("HCCL function error: HcclAllReduce(), error code is 6\n", "HCCL"),
        ("[E ProcessGroupXCCL.cpp:10] timeout on xpu:0\n", "oneCCL"),
        ("HIP runtime version: N/A\nROCM used to build PyTorch: N/A\nRAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1\n", ""),
    ],
)
def test_other_vendors_are_recognised_and_get_no_advice_for_nvidia(tmp_path, log, platform):
    (tmp_path / "job.log").write_text(log + "RuntimeError: NCCL error: unhandled cuda error\nCUDA out of memory\n")
    logs = reader.collect([str(tmp_path / "job.log")], "it crashes at start")
    found = triage.judge(logs)
    assert bool(triage_hypothesis.platform(logs)) is bool(platform) and platform in triage_hypothesis.platform(logs)
    advice = [
        *(line for h in found for r in h.remedy for line in (r.text, *r.lines)),
        *(h.decides.line for h in found),
        *(c.decides[2] for c in triage_weights.fits(logs, found)),
    ]
    assert any("nvidia-smi" in line or "nccl-runbook run" in line for line in advice) is not bool(platform)


@pytest.mark.parametrize(
    "line",
    [
        "+ GRAPH_SHARDING_PARTITION=node",
        "0: + NUM_SAMPLING_THREADS=1",
        "Namespace(nodes=2, timeout=1800, gloo=False, hang_check=True, firewall='none')",
        "(W pid=11) {'NCCL_DEBUG': 'INFO', 'CUDA_VISIBLE_DEVICES': '0', 'NCCL_TIMEOUT': '1800', 'PARTITION': 'gpu'}",
        "    Partition Assigned                         : N/A",
        "    Idle                                           : Active",
        ':::SYSJSON {"number_of_nodes":"1","host_networking":"8x InfiniBand 400Gb"}',
        "- **GPU 0:** NVIDIA GeForce RTX 5090",
        "LD_LIBRARY_PATH=/opt/slurm/lib:/usr/local/nccl/lib",
    ],
)
def test_normal_values_are_no_evidence(tmp_path, line):
    for context in ("", "it crashes in ncclCommInitRank"):
        assert causes_of(tmp_path, line + "\nNCCL INFO NCCL version 2.28.9+cuda13.0\n", context) == {}


def test_our_own_answer_is_no_evidence(tmp_path):
    (tmp_path / "job.log").write_text(
        "n1:1:2 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n"
    )
    ours = read_cli("triage", tmp_path / "job.log").stdout
    (tmp_path / "job.log").write_text(ours)
    assert "Duplicate GPU" in ours and "nccl-duplicate-gpu-detected" not in reader.collect([str(tmp_path / "job.log")]).seen


@pytest.mark.parametrize("log, line", [
    ("OSError: [Errno 24] Too many open files\n", "ulimit -n 65536"), ("RuntimeError: can't start new thread\n", "ulimit -u unlimited"),
    ("OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64: Resource temporarily unavailable\n", "ulimit -u unlimited"),
    ("mlx5_0: ibv_create_cq() failed: Cannot allocate memory\n", "ulimit -l unlimited")])
def test_a_limit_is_raised_by_its_own_command(tmp_path, log, line):
    (tmp_path / "job.log").write_text(log)
    lead = triage.judge(reader.collect([str(tmp_path / "job.log")]))[0]
    lines = [x for r in lead.remedy for x in r.lines]
    assert lead.cause == "ulimit-too-low" and [x for x in lines if x.startswith("ulimit")] == [line]


def test_the_agent_of_rays_dashboard_takes_another_port(tmp_path):
    assert "rendezvous-port-in-use" not in causes_of(
        tmp_path, "(raylet) OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 52365): address already in use\n"
    )
    assert causes_of(tmp_path, "RuntimeError: [Errno 98] Address already in use\n")["rendezvous-port-in-use"] == "possible"


FRAMES = 'Traceback (most recent call last):\n  File "/job/main.py", line 40, in main\n  File "{}", line 189, in {}\n{}\n'


@pytest.mark.parametrize("word", ["", "INFO api_server.py:32] version 0.9\n", "gunicorn 20.1 installed\n", "import gradio\n"])
@pytest.mark.parametrize(
    ("frame", "call", "line", "status"),
    [
        ("/opt/py/site-packages/deepspeed/comm/comm.py", "initialize", "OSError: [Errno 98] Address already in use", "established"),
        ("/opt/torch/distributed/rendezvous.py", "_create_c10d_store", "RuntimeError: Address already in use", "established"),
        ("/opt/torch/distributed/distributed_c10d.py", "init_process_group", "OSError: [Errno 98] Address already in use", "established"),
        ("/job/boot.py", "start", "RuntimeError: Address already in use", "likely"),
        ("/job/boot.py", "start", "OSError: [Errno 98] Address already in use", "possible"),
        ("/usr/lib/python3.12/socketserver.py", "server_bind", "OSError: [Errno 98] Address already in use", None),
        ("/opt/site-packages/prometheus_client/exposition.py", "start_wsgi_server", "OSError: [Errno 98] Address already in use", None),
        ("/opt/site-packages/uvicorn/config.py", "bind_socket", "OSError: [Errno 98] Address already in use", None),
    ],
)
def test_a_port_in_use_is_that_of_the_rendezvous_only_if_the_log_shows_it(tmp_path, frame, call, line, status, word):
    """What opens the port is in the lines just above; the name of a server elsewhere says nothing."""
    assert causes_of(tmp_path, word + FRAMES.format(frame, call, line)).get("rendezvous-port-in-use") == status
    assert causes_of(tmp_path, FRAMES.format(frame, call, line) + word).get("rendezvous-port-in-use") == status


REPORT = """# Training hangs on two GPUs
### What happened
{words}

```
n1:11:21 [0] NCCL INFO NCCL version 2.26.2+cuda12.8
{log}
```
"""


def of_report(tmp_path, words: str, log: str = "") -> dict[str, str]:
    return causes_of(tmp_path, REPORT.format(words=words, log=log))


@pytest.mark.parametrize("cause, words", [
    ("p2p-broken-acs-iommu", "It hangs at the first all_reduce unless NCCL_P2P_DISABLE=1"),
    ("p2p-broken-acs-iommu", "The same script completes once P2P is disabled"),
    ("nccl-bug", "| NCCL | result |\n|---|---|\n| 2.26.2 | hangs |\n| 2.28.9 | works |"),
    ("nccl-bug", "- Failing NCCL: 2.26.2+cuda12.8\n- Working NCCL: 2.28.9"),
    ("nccl-bug", "It hangs with NCCL 2.26.2, and is not reproducible with 2.28.9"),
])
def test_a_report_saved_as_markdown_tells_its_experiments(tmp_path, cause, words):
    assert of_report(tmp_path, words)[cause] == "likely"


@pytest.mark.parametrize("text", ["Two GPUs hang at the first all_reduce of the job.\nWith NCCL_P2P_DISABLE=1 the same script completes.\n",
                                  "# 4x RTX 5090: wrong loss\nThe loss is fine with NCCL_P2P_DISABLE=1, else it hangs.\n"])
def test_a_report_in_plain_sentences_tells_its_experiments(tmp_path, text):
    assert causes_of(tmp_path, text)["p2p-broken-acs-iommu"] == "likely"


def test_what_works_fine_only_with_another_version_is_not_called_harmless(tmp_path):
    found = of_report(
        tmp_path, "It works fine with vLLM 0.19, and I get an error with vLLM 0.22.", "RuntimeError: NCCL error: invalid usage"
    )
    assert next(iter(found)) == "framework-version-incompatible" and "benign" not in found


def test_a_row_that_fails_all_the_same_rules_its_path_out(tmp_path):
    log = "n1:11:21 [0] NCCL WARN NVLS multicast: cuMulticastCreate failed"
    assert "nvls-fabric-fault" in of_report(tmp_path, "It hangs.", log)
    assert "nvls-fabric-fault" not in of_report(tmp_path, "| NCCL_NVLS_ENABLE=0 | still fails |", log)


@pytest.mark.parametrize(
    "log",
    [
        "## Step 1\nNCCL 2.26.2 hangs\n## Step 2\nNCCL 2.28.9 works\n",
        "sample:\n```\nNCCL 2.26.2 hangs, 2.28.9 works\n```\n",
        "# nThread 1 nGpus 2 minBytes 8\n# Using devices\n",
    ],
)
def test_a_log_is_not_taken_for_somebodys_words(tmp_path, log):
    (tmp_path / "job.log").write_text("[rank0] starting\n" * (not log.startswith("# ")) + log)
    assert reader.collect([str(tmp_path / "job.log")]).context == ""


@given(st.lists(st.sampled_from([b"# A", b"## B", b"```", b"~~~", b"**C**:", b"words", b"NCCL INFO x", b"", b"\xff", b"#"]), max_size=30))
def test_of_a_report_only_what_stands_outside_its_fences_is_words(rows):
    assert set(reader_excerpt.written(rows)) <= {row.decode("utf-8", "replace") for row in rows} - {"```", "~~~", "NCCL INFO x"}


@pytest.mark.parametrize(
    "message, denied",
    [
        ("GPU has fallen off the bus", "* No `GPU has fallen off the bus` in dmesg"),
        ("CUDA out of memory", "we saw no CUDA out of memory"),
        ("CUDA out of memory", "it dies without any CUDA out of memory"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1", "did not see `NVRM: Xid (PCI:0000:3b:00): 79, pid=1`"),
    ],
)
def test_a_message_that_was_not_seen_is_no_evidence(tmp_path, message, denied):
    assert causes_of(tmp_path, message + "\n") and message in denied
    assert causes_of(tmp_path, denied + "\n") == {} == causes_of(tmp_path, "step 1\n", denied)


def test_the_other_version_is_installed_for_the_cuda_that_the_reporter_names(tmp_path):
    told = judge_experiments.experiments("CUDA 13.0: hangs with NCCL 2.30.4 and works with NCCL 2.30.3")
    assert told[0].advice.remedy[0][2] == ("pip install --no-deps nvidia-nccl-cu13==2.30.3",)
    assert [line.text for line in told[0].evidence] == ["works with NCCL 2.30.3", "CUDA 13.0: hangs with NCCL 2.30.4"]


@pytest.mark.parametrize("log", ["export NCCL_CUMEM_ENABLE=0\nvllm serve\nthe engine crashed, and not only once\n"])
def test_a_setting_alone_is_no_evidence(tmp_path, log):
    assert "cumem-mismatch" not in causes_of(tmp_path, log)


FULL_NVLS = (
    "n1:11:21 [0] transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401\n"
)


@pytest.mark.parametrize(
    "before, advised",
    [
        ("", True),
        ("export NCCL_NVLS_ENABLE=0\n", False),
        ("n1:11:21 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n", False),
        ("env: {'NCCL_NVLS_ENABLE': '0'}\n", False),
        ("Disable NVLS (NCCL_NVLS_ENABLE=0) if you wish to avoid this error in the future.\n", True),
        ("NCCL INFO HINT: To confirm, set NCCL_NVLS_ENABLE=0 to disable NVLS.\n", True),
        ("export NCCL_NVLS_ENABLE=1\n", True),
        ("export NCCL_NVLS_ENABLE=01\n", True),
    ],
)
def test_a_setting_that_is_on_is_not_advised(tmp_path, before, advised):
    (tmp_path / "job.log").write_text(before + FULL_NVLS)
    told = [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")])) if h.cause == "nvls-fabric-fault"]
    lines = [line for h in told for r in h.remedy for line in r.lines]
    assert told and all(h.remedy for h in told) and ("export NCCL_NVLS_ENABLE=0" in lines) is advised


def test_if_only_settings_are_advised_and_all_are_on_something_else_is_said(tmp_path):
    line = LogLine(str(tmp_path / "job.log"), 1, "export NCCL_CUMEM_ENABLE=0")
    logs = Logs([], "", {"NCCL_CUMEM_ENABLE=0": Seen([line], 1)}, [])
    only = (("you", "Set it:", ("export NCCL_CUMEM_ENABLE=0",)),)
    assert [lines for _, _, lines in triage.not_done(only, logs)] == [()] and triage.not_done((), logs) == ()
    assert triage.not_done((*only, ("you", "Or this:", ("export NCCL_NVLS_ENABLE=0",))), logs)[0][1] == "Or this:"
    other = LogLine(str(tmp_path / "job.log"), 2, "NCCL_CUMEM_ENABLE set by environment to 1.")
    differ = Logs([], "", {"NCCL_CUMEM_ENABLE=0": Seen([line], 1), "NCCL_CUMEM_ENABLE=1": Seen([other], 1)}, [])
    assert triage.not_done(only, differ) == only  # one rank has the other value
