"""Kinds of logs whose answer quoted a warning, a consequence or a line without a fault, or saw no error at all."""
from __future__ import annotations

import pytest
from nccl_runbook.messages import read
from nccl_runbook.triage.judge import findings, judge

TRACE = 'Traceback (most recent call last):\n  File "/job/fit.py", line 12, in main\n    read(path)\n{}\n'
STEPS = "".join(f"step {step} loss 2.5\n" for step in range(9))
COMPILES = "W1130 09:00:51.118 71 torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode\n"
BARRIER = (
    "[rank0]:[W1130 10:02:02.187 ProcessGroupNCCL.cpp:4561] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by"
    " this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.\n"
)
WAITED = (
    "[rank{0}]:[E1130 10:12:44.1 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=212,"
    " OpType=ALLREDUCE, NumelIn={1}, NumelOut={1}, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
DUPLICATE = "pod-3:61:361 [0] init.cc:871 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\n"
COMM = (
    "pod-3:6{0}:36{0} [0] NCCL INFO ncclCommInitRank comm 0x5{0} rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x8d"
    " - Init START\n"
)
NO_ANSWER = (
    "n12:7:9 [1] transport/net_ib.cc:1231 NCCL WARN NET/IB : Got completion from peer 10.4.0.8<40311> with error {}, opcode 0, len 0,"
    " vendor err 129\n"
)
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=31.0. Some of the step tasks have been OOM Killed.\n"
HOT = "        HW Slowdown                       : Active\n            HW Thermal Slowdown           : Active\n"
CANCELLED = "slurmstepd: error: *** JOB 31 ON n1 CANCELLED AT 2026-11-30T10:00:00 ***\n"


def judged(tmp_path, log: str):
    (tmp_path / "job.log").write_text(log)
    logs = read.collect([str(tmp_path / "job.log")])
    return logs, judge(logs)


@pytest.mark.parametrize(
    "error",
    [
        "pyarrow.lib.ArrowInvalid: Not a Parquet file",
        "botocore.errorfactory.NoSuchKey: An error occurred when calling the GetObject operation",
        "zarr.errors.GroupNotFound: group not found at path ''",
        "queue.Empty",
        "yaml.scanner.Unreadable: while scanning",
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank2]: ", "(Trainer pid=71) ", "web-1  | "])
def test_what_ends_a_traceback_is_an_exception_whatever_its_name(error, prefix, tmp_path):
    log = STEPS + "".join(f"{prefix}{line}\n" for line in TRACE.format(error).splitlines())
    logs, ranked = judged(tmp_path, log)
    assert logs.raised.text == error and ranked[0].cause == "peer-crashed" and ranked[0].evidence[0] == logs.raised


@pytest.mark.parametrize(
    "log",
    [
        STEPS + "pyarrow.lib.ArrowInvalid: Not a Parquet file, the next one is read\n" + STEPS,  # no traceback
        TRACE.format("KeyboardInterrupt"),
        TRACE.format("numpy.exceptions.RankWarning: Polyfit may be poorly conditioned"),
        'Current thread 0x7 (most recent call first):\n  File "/job/fit.py", line 12 in main\nLoss: 2.5\n',
        TRACE.format("INFO: goes on") + STEPS,
        "".join(f"step {step} loss 2.5\n" for step in range(4)) + TRACE.format("job.Skipped: row 7") + STEPS,  # survived
    ],
)
def test_what_is_no_exception_or_was_survived_is_no_fault(log, tmp_path):
    logs, ranked = judged(tmp_path, log)
    assert logs.raised is None and [h.cause for h in ranked if h.cause not in ("benign", "peer-crashed")] == []


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (COMPILES + STEPS + TRACE.format("RuntimeError: CUDA error: an illegal memory access was encountered"), "illegal"),
        (BARRIER + STEPS + TRACE.format("RuntimeError: The size of tensor a (64) must match the size of tensor b (65)"), "size"),
        (BARRIER + STEPS + TRACE.format("h5py.Damaged: truncated file"), "truncated"),
        (
            "n1:1:2 [0] NCCL INFO Setting affinity for GPU 0 to 01\nJob runs with cpus-per-task=1\n"
            + STEPS + TRACE.format("AssertionError: batch of 3, 4 expected"),
            "batch of 3",
        ),
    ],
)
def test_the_error_of_a_rank_leads_before_a_warning(log, words, tmp_path):
    _, ranked = judged(tmp_path, log)
    assert words in ranked[0].evidence[0].text


@pytest.mark.parametrize("argument", ["timeout=timeout", "timeout=30", "on_timeout=None"])
def test_an_argument_in_the_source_of_a_traceback_is_no_message(argument, tmp_path):
    log = f'Traceback (most recent call last):\n  File "/job/fit.py", line 9, in get\n    take(refs, {argument})\n{{}}'
    _, ranked = judged(tmp_path, log.format("ValueError: 3 columns\nsrun: error: n1: task 1: Exited with exit code 1\n"))
    assert (ranked[0].cause, ranked[0].status) == ("peer-crashed", "likely")


@pytest.mark.parametrize(
    "line",
    [
        "plugins: xdist-3.6.1, timeout-2.3.1",
        "  warnings.warn(",
        "    warnings.warn(  # once",
        "eval top5-error 11.25%",
        "test error: 0.183",
        "timeout: 60.0s",
        "wandb: Network error (ReadTimeout), entering retry loop.",
        "store: connection refused, retry 2",
        "upload failed, retrying in 5 s",
        "Exception raised from recvBytes at Utils.hpp:678 (most recent call first):",
    ],
)
def test_a_name_a_figure_source_or_a_retry_shows_no_fault(line, tmp_path):
    assert judged(tmp_path, f"torch 2.13 starts\n{line}\n")[0].unknown == []


def test_a_line_in_unknown_words_shows_a_fault_only_if_the_job_did_not_go_on(tmp_path):
    odd = "loader 3: checksum error in shard 7\n"
    assert [t.first.text for t in judged(tmp_path, STEPS + odd)[0].unknown] == [odd.strip()]
    assert judged(tmp_path, "torch 2.13 starts\n" + odd + STEPS)[0].unknown == []


@pytest.mark.parametrize("status", [5, 10, 12, 13])
@pytest.mark.parametrize("end", ["Aborted (core dumped)", "Exited with exit code 134"])
def test_a_rank_that_aborts_after_an_error_of_the_network_is_not_the_likely_cause(status, end, tmp_path):
    _, ranked = judged(tmp_path, STEPS + NO_ANSWER.format(status) + f"srun: error: n12: task 1: {end}\n")
    assert "Got completion" in ranked[0].evidence[0].text
    assert [h.cause for h in ranked if h.status != "possible"] == []


@pytest.mark.parametrize("end", ["Segmentation fault", "Aborted (core dumped)", "Exited with exit code 134"])
def test_a_rank_that_ends_by_a_signal_alone_is_the_likely_cause(end, tmp_path):
    _, ranked = judged(tmp_path, STEPS + f"srun: error: n12: task 1: {end}\n")
    assert (ranked[0].cause, ranked[0].status) == ("peer-crashed", "likely")
    assert "cpu-affinity" not in [h.cause for h in ranked]


@pytest.mark.parametrize(
    "device", ["  MIG 2g.20gb     Device  1: (UUID: MIG-11f09c3e-70aa)", "CUDA_VISIBLE_DEVICES=MIG-11f09c3e-70aa-5d0c"]
)
def test_two_ranks_on_mig_devices_of_one_gpu(device, tmp_path):
    _, ranked = judged(tmp_path, f"{device}\n" + COMM.format(0) + COMM.format(1) + DUPLICATE)
    assert (ranked[0].cause, ranked[0].status) == ("vgpu-or-mig-unsupported", "likely")
    assert [h.cause for h in ranked if h.status != "possible"] == ["vgpu-or-mig-unsupported"]


def test_two_ranks_on_a_whole_gpu(tmp_path):
    _, ranked = judged(tmp_path, COMM.format(0) + COMM.format(1) + DUPLICATE)
    assert ranked[0].cause == "device-not-set-per-rank"


@pytest.mark.parametrize("beside", ["", OOM, "a timeout of the loader is set\n", "n1: kernel: Out of memory: Killed process 71 (python)\n"])
def test_a_killed_worker_of_a_loader_is_no_loader_that_stalls(beside, tmp_path):
    _, ranked = judged(tmp_path, TRACE.format("RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.") + beside)
    assert ranked[0].cause == "peer-crashed" and "data-stall" not in [h.cause for h in ranked]


@pytest.mark.parametrize(
    ("last", "status"),
    [("10:13:20 upload 910/2000 parts", "likely"), ("10:13:20 downloading shard 3", "likely"), ("10:13:20 7/90 files copied", "likely")],
)
def test_a_rank_at_work_after_the_others_gave_up_is_busy(last, status, tmp_path):
    log = "[rank0] 10:02:00 step 9 loss 2.5\n" + "".join(WAITED.format(rank, 8) for rank in (1, 2, 3)) + f"[rank0] {last}\n"
    _, ranked = judged(tmp_path, log)
    assert (ranked[0].cause, ranked[0].status) == ("rank-busy-on-host", status)


def test_a_rank_at_work_before_the_others_gave_up_may_be_busy(tmp_path):
    log = "[rank0] 10:02:00 upload 910/2000 parts\n" + "".join(WAITED.format(rank, 8) for rank in (1, 2, 3))
    _, ranked = judged(tmp_path, log)
    assert (ranked[0].cause, ranked[0].status) == ("rank-busy-on-host", "possible")


def test_a_rank_that_left_its_loop_while_others_reduce_gradients(tmp_path):
    log = "[rank1] epoch 0 done after 88 steps\n[rank0] epoch 0 step 88/89 loss 2.5\n" + WAITED.format(0, 7000) + WAITED.format(1, 1)
    assert "uneven-minibatches" in [h.cause for h in judged(tmp_path, log)[1]]
    log = log.replace("done after 88 steps", "step 88/89 loss 2.5")
    assert "uneven-minibatches" not in [h.cause for h in judged(tmp_path, log)[1]]


@pytest.mark.parametrize("complaint", ["WARNING straggler: rank 5 is 3.1x the median\n", HOT, "rank 5 straggles\n" + HOT])
def test_a_slow_gpu_is_named_beside_the_cancellation(complaint, tmp_path):
    logs, ranked = judged(tmp_path, STEPS + complaint + CANCELLED)
    assert [h.cause for h in ranked][:2] == ["scheduler-cancelled", "straggler"]
    assert findings(logs, ranked)[0].cause == "scheduler-cancelled"


@pytest.mark.parametrize(
    "error",
    [
        "OSError: We couldn't connect to 'https://hub.example' to load this file, couldn't find it in the cached files",
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded with url: /api/models",
        "ERROR: No matching distribution found for einops",
    ],
)
def test_no_way_to_a_hub_is_no_missing_route_between_hosts(error, tmp_path):
    log = "NCCL version 2.27.3\n" + TRACE.format("OSError: [Errno 101] Network is unreachable") + "\n" + TRACE.format(error)
    _, ranked = judged(tmp_path, log)
    assert "no-route-between-hosts" not in [h.cause for h in ranked] and ranked[0].cause == "peer-crashed"


@pytest.mark.parametrize("progress", ["Epoch: 3", "Validation: loss 3.2", "Iteration: 40 loss: 2.1", "Finished"])
def test_what_another_rank_prints_between_the_frames_is_no_exception(progress, tmp_path):
    lines = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/job/fit.py", line 88, in main',
        f"[rank0]: {progress}",
        "[rank2]:     batch = queue[9]",
        "[rank2]: IndexError: list index out of range",
    ]
    logs, _ = judged(tmp_path, f"[rank0]: {progress}\n{STEPS}" + "\n".join(lines) + "\n")
    assert (logs.raised.rank, logs.raised.text.partition(":")[0]) == (2, "IndexError")


@pytest.mark.parametrize("last", ["Step: 5", "Finished", "Done: 3 files"])
def test_a_stack_that_no_exception_ended_accuses_nothing(last, tmp_path):
    logs, _ = judged(tmp_path, f'  File "/job/fit.py", line 88, in main\n    log(step)\n{last}\n{STEPS}')
    assert logs.raised is None
