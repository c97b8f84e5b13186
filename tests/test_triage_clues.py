"""Further messages and words that point to a cause, each beside one that only looks like it. Written from the libraries' own messages."""
from __future__ import annotations

import pytest
from nccl_runbook.messages import judge as messages_judge, read as reader
from nccl_runbook.messages.clues import catalogue, says
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses import (
    judge_weights as triage_weights,
)
from nccl_runbook.triage.ranks import judge_gpus
from triage_samples import STATUS, hung

W = "node0:7:7 [0] file.cc:9 NCCL WARN "
BARRIER = (
    "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:{} (world_size=8, worker_count=1,"
    " timeout=0:30:00)\n"
)
CALL = (
    "node0:{p}:{p} [{d}] NCCL INFO {op}: opCount 0 sendbuff 0x7f recvbuff 0x7f count {n} datatype {t} op 0 root 0 comm 0x5{d} [nranks=2]"
    " stream 0x55\n"
)
FINGER = (
    "[rank{r}]:[I0102 03:04:05.6 ProcessGroupWrapper.cpp:587] [Rank {r}] Running collective: CollectiveFingerPrint(SequenceNumber={s},"
    " OpType=ALLREDUCE, TensorShape=[{n}, 1], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))\n"
)
# what no single clue finds: ranks compared, hints, and lines that only stand beside others
MORE: list[tuple[str, str, str, str]] = [
    (
        "device-not-set-per-rank",
        (
            "|    0   N/A  N/A     71201      C   .../bin/python           7121MiB |\n|    0   N/A  N/A     71202      C   .../bin/python  "
            "         969MiB |\n|    1   N/A  N/A     71202      C   .../bin/python           6155MiB |\n"
        ),
        "",
        (
            "|    0   N/A  N/A     71201      C   .../bin/python           7121MiB |\n|    1   N/A  N/A     71201      C   .../bin/python  "
            "         7121MiB |\n"
        ),
    ),
    (
        "collective-mismatch",
        FINGER.format(r=1, s=38, n=100) + FINGER.format(r=2, s=38, n=77),
        "the all_reduce raises",
        FINGER.format(r=1, s=38, n=77) + FINGER.format(r=2, s=38, n=77) + FINGER.format(r=2, s=38, n=100),
    ),
    (
        "rank-busy-on-host",
        (
            "35%|### | 738/2081 [30:01<57:14, 39.1MB/s]\n[E ProcessGroupNCCL.cpp:485] [Rank 6] Watchdog caught collective operation"
            " timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802246 milliseconds before timing out.\n"
        ),
        "",
        "35%|### | 738/2081 [03:01<57:14, 39.1MB/s]\n",
    ),
    (
        "nodes-differ",
        "a:7:7 [0] NCCL INFO Using network IB\nb:7:7 [0] NCCL INFO Using network Socket\n",
        "",
        "a:7:7 [0] NCCL INFO Using network IB\nb:7:7 [0] NCCL INFO Using network IB\n",
    ),
    (
        "collective-mismatch",
        CALL.format(p=7, d=0, op="Broadcast", n=25503912, t=6) + CALL.format(p=8, d=1, op="Broadcast", n=53, t=4),
        "",
        CALL.format(p=7, d=0, op="Broadcast", n=53, t=4) + CALL.format(p=8, d=1, op="Broadcast", n=53, t=4),
    ),
    (
        "collective-mismatch",
        CALL.format(p=7, d=0, op="AllReduce", n=9984512, t=7).replace("opCount 0", "opCount 28c")
        + CALL.format(p=8, d=1, op="AllGather", n=59205120, t=0).replace("opCount 0", "opCount 28c"),
        "",
        CALL.format(p=7, d=0, op="AllReduce", n=9984512, t=7).replace("opCount 0", "opCount 28c")
        + CALL.format(p=8, d=1, op="AllGather", n=59205120, t=0).replace("opCount 0", "opCount 28d"),
    ),
    (
        "benign",
        W + "Failed to open libibverbs.so[.1]\n" + "NCCL INFO Using network Socket\n# Out of bounds values : 0 OK\n",
        "",
        W + "Failed to open libibverbs.so[.1]\n" + hung(1),
    ),
    (
        "nodes-differ",
        "box:7:7 [0] NCCL INFO Using network Socket\nbox:9:9 [0] NCCL INFO Using network IB\n",
        "",
        "box:7:7 [0] NCCL INFO Using network IB\nbox:9:9 [0] NCCL INFO Using network IB\n",
    ),
    (
        "benign",
        W + "Cuda failure 3 'initialization error'\nstep 20 loss 9.1\n",
        "training is normal, only such warnings",
        W + "Cuda failure 3 'initialization error'\n",
    ),
    ("peer-crashed", "worker-1: FileNotFoundError: [Errno 2] No such file or directory: 'doc_idx.npy'\n", "", "worker-1: file found\n"),
]


def read(tmp_path, text: str, context: str = ""):
    (tmp_path / "job.log").write_text(text)
    return reader.collect([str(tmp_path / "job.log")], context)


def told(tmp_path, text: str, context: str = "") -> list[tuple[str, str]]:
    return [(h.cause, h.status) for h in triage.judge(read(tmp_path, text, context))]


def by_message(tmp_path, text: str) -> list[str]:
    """Causes that more than a usual word points to."""
    (tmp_path / "job.log").write_text(text)
    return [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))]


@pytest.mark.parametrize(
    "cause, log, context, miss", MORE, ids=lambda value: value if isinstance(value, str) and " " not in value and "\n" not in value else ""
)
class TestMoreOfACause:
    def test_cause_fires_when_this_is_printed_or_told(self, tmp_path, cause, log, context, miss):
        assert cause in [c for c, _ in told(tmp_path, log, context)[:3]]

    def test_cause_stays_quiet_when_it_only_looks_like_it(self, tmp_path, cause, log, context, miss):
        assert cause not in by_message(tmp_path, miss)


def test_steps_that_nobody_complains_about_are_harmless(tmp_path):
    """The near miss: the same steps, and then a failure."""
    steps = "h:1:2 [0] NCCL INFO NET/OFI Using Libfabric version 1.22\n0: [train.py:103] Batch 1 Loss: 11.6, lr: 0.0001\n"
    assert told(tmp_path, steps, "FSDP on four nodes with sbatch, the file fills with lines of NCCL") == []
    failed = steps + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert "benign" not in [c for c, _ in told(tmp_path, failed, "FSDP on four nodes with sbatch, the file fills with lines of NCCL")]


def test_sockets_on_one_node_slow_nothing_down(tmp_path):
    """The near miss: the same lines of a job on two nodes."""
    log = "n:8:8 [0] NCCL INFO Failed to open libibverbs.so[.1]\nn:8:8 [0] NCCL INFO Using network Socket\n"
    assert "net-socket-fallback" not in [
        c for c, status in told(tmp_path, log, "single-node training, the start is slow") if status == "likely"
    ]
    assert ("net-socket-fallback", "likely") in told(tmp_path, log, "training on two nodes is slow")


HEALTHY = [
    (
        "[node01:1] MCW rank 0 bound to socket 0[core 0[hwt 0-1]], socket 0[core 1[hwt 0-1]]: [BB/BB]\n[node02:1] MCW rank 1 bound to"
        " socket 0[core 0[hwt 0-1]], socket 0[core 1[hwt 0-1]]: [BB/BB]\n"
    ),
    "INFO utils.py:1004] Found nccl from library /opt/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2\n",
    (
        "Detected VISIBLE_DEVICES=0,1 but ignoring it because one or several of --include/--exclude/--num_gpus/--num_nodes cl args were"
        " used.\n"
    ),
    "rank 0: 451 samples/s, rank 1: 449 samples/s\nNCCL_ASYNC_ERROR_HANDLING: watchdog enabled\n",
    "rank 0: num_batches=120 rank 1: num_batches=119 (Join is on)\ntimeout=1800\n",
    "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:128 to store for rank: 0\n",
    "wandb: WARNING Object of type torch.Tensor is not JSON serializable, logging it as a string\n",
    "0 pid 40211's current affinity list: 5\n",
    "HW Thermal Slowdown : Active\n",
]


@pytest.mark.parametrize("log", HEALTHY)
def test_lines_of_healthy_jobs_accuse_nobody_surely(tmp_path, log):
    start = "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nNCCL version 2.21.5+cuda12.4\n"
    assert not [told_so for told_so in told(tmp_path, start + log + "result: accuracy 0.81\n", "") if told_so[1] != "possible"]


@pytest.mark.parametrize(
    "extra",
    [
        "fsspec==2024.6.1\n",
        "Will skip the first 3 epochs then the first 120 batches in the first epoch.\n",
        "'use_dynamic_bsz': False\n",
        "EarlyStopping(patience=3) early stopping not triggered yet\n",
        "torchrun --nnodes 2 --rdzv-conf-timeout=3600 train.py\n",
        "HW Thermal Slowdown : Active\n",
    ],
)
def test_a_network_error_that_was_printed_stays_first(tmp_path, extra):
    failed = (
        "node01:1201:1301 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<47112> with status=12 opcode=0 len=0 vendor err 129"
        " (Recv)\n[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711,"
        " OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )
    assert told(tmp_path, extra + failed, "")[0][0] == told(tmp_path, failed, "")[0][0]


@pytest.mark.parametrize(
    "context",
    [
        "job died with exit code 137",
        "node reboots during training; Xid 79 in dmesg",
        "killed by the OOM killer",
        "loss is NaN with more than one GPU",
        "throughput as before, but then the job crashed",
        "no error anywhere, the results are wrong on every GPU but the first",
    ],
)
def test_steps_are_no_health_where_somebody_says_what_failed(tmp_path, context):
    steps = "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nstep 10 loss 2.31 lr 1e-4\nstep 40 loss 2.05 lr 1e-4\n"
    assert "benign" not in [cause for cause, _ in told(tmp_path, steps, context)[:1]]


def test_a_rank_of_the_job_goes_before_that_of_a_group(tmp_path):
    """PyTorch 2.13 prints both, and in a group the second is another rank."""
    (tmp_path / "job.log").write_text("[rank2]:[I1123 05:37:46.5 ProcessGroupWrapper.cpp:710] [Rank 0] Running collective: x\n[Rank 1] y\n")
    assert [r.rank for r in reader.collect([str(tmp_path / "job.log")]).ranks] == [1, 2]


def test_processes_on_two_gpus_are_told_with_their_own_advice(tmp_path):
    """The near miss: one process that uses both GPUs (DataParallel)."""
    row = "|    {g}   N/A  N/A     {p}      C   .../bin/python           969MiB |\n"
    (tmp_path / "job.log").write_text(row.format(g=0, p=71201) + row.format(g=0, p=71202) + row.format(g=1, p=71202))
    lead = triage.judge(reader.collect([str(tmp_path / "job.log")]))[0]
    assert (lead.cause, lead.status, len(lead.evidence)) == ("device-not-set-per-rank", "likely", 2)
    assert "map_location" in lead.remedy[0].lines[1] and "nvidia-smi" in lead.decides.line
    assert told(tmp_path, row.format(g=0, p=71201) + row.format(g=1, p=71201), "") == []


def test_shared_memory_that_ucx_could_not_write_is_the_fault_itself(tmp_path):
    """The near miss: another directory than /dev/shm may be meant where the sentence ends before it."""
    line = "mm_posix.c:233  UCX  ERROR Not enough memory to write total of 4292720 bytes."
    assert told(tmp_path, line + " Please check that /dev/shm or the directory you specified has more available memory.\n", "")[0] == (
        "shm-too-small",
        "established",
    )
    assert ("shm-too-small", "established") not in told(tmp_path, line + "\n", "")


def test_ranks_that_share_a_bus_id_and_not_a_uuid_share_no_gpu(tmp_path):
    """The near miss: nobody says that the cards differ."""
    line = "vm:{p}:9 [0] NCCL INFO comm 0x5591 rank {r} nranks 2 cudaDev 0 nvmlDev 0 busId 100000 commId 0x3d4f - Init START\n"
    log = (
        line.format(p=911, r=0)
        + line.format(p=905, r=1)
        + "vm:911:930 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 100000\n"
    )
    assert ("device-not-set-per-rank", "likely") in told(tmp_path, log, "two ranks on one machine")
    assert told(tmp_path, log, "two ranks on one machine; the GPUs' UUIDs are different")[0][0] == "bus-id-collision"


REFUSED = W + "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n"


@pytest.mark.parametrize("status, own", [
    ("likely", "[rank{r}] CUDA_VISIBLE_DEVICES=0,1 device=cuda:{d} torch=2.11.0\n"),
    ("likely", "[rank{r}]: CUDA_VISIBLE_DEVICES: 0, 1\n[rank{r}]: using device cuda:{d}\n"),
    ("possible", "01/02/2026 03:04:05 - WARNING - __main__ - Process rank: {r}, device: cuda:{d}, n_gpu: 1, distributed training: True\n"),
    ("possible", "#  Rank  {r} Group  0 Pid   401{r} on  node1 device  {d} [0000:3b:00] NVIDIA H200\n"),
    ("possible", "rank {r} runs on GPU {d}\n")])
def test_ranks_that_print_the_device_that_nccl_refuses_did_not_choose_their_own(tmp_path, status, own):
    """The near misses: each has its own device; NCCL refuses nothing."""
    same, apart = ("".join(own.format(r=r, d=d) for r, d in ((0, 0), (1, other))) for other in (0, 1))
    lead = triage.judge(read(tmp_path, same + REFUSED))[0]
    assert (lead.cause, lead.status) == ("device-not-set-per-rank", status) and len(lead.evidence) >= 3
    assert ("device-not-set-per-rank", "likely") not in told(tmp_path, apart + REFUSED)
    assert len(triage.judge(read(tmp_path, apart + REFUSED))[0].evidence) < 3 and ("device-not-set-per-rank", "likely") not in told(
        tmp_path, same
    )


def test_ranks_that_see_one_gpu_each_did_not_choose_it(tmp_path):
    lines = "".join(f"[rank{r}] CUDA_VISIBLE_DEVICES={r} device=cuda:0\n" for r in (0, 1))
    assert ("device-not-set-per-rank", "likely") not in told(tmp_path, lines + REFUSED)


def test_what_stands_below_the_end_that_the_scheduler_made_is_no_other_cause(tmp_path):
    """The near miss: it stands above."""
    end, killed = (
        "slurmstepd: error: *** JOB 77 ON n5 CANCELLED AT 2025-05-27T21:52:36 DUE TO TIME LIMIT ***\n",
        "[launch.py:315] Killing subprocess 8864\n",
    )
    assert told(tmp_path, end + killed) == [("scheduler-time-limit", "established")]
    assert [cause for cause, _ in told(tmp_path, killed + end)][1:] == ["peer-crashed"]


@pytest.mark.parametrize("cause, told_so", [
    ("more-ranks-than-gpus", "it works on a single GPU and hangs with two processes"),
    ("start-skew", "it fails: the GPUs run at different speeds"),
    ("benign", "nothing works despite all the variables I tried, it hangs at init"),
    ("benign", "it hangs and no rank continues despite the longer timeout"),
    ("rendezvous-misconfigured", "it hangs at the all_reduce; each rank runs on its own GPU"),
    ("rendezvous-misconfigured", "it hangs; launched by torchrun, no MPI"),
    ("visible-devices-set-too-late", "it hangs, changing CUDA_VISIBLE_DEVICES to 2,3 makes no difference"),
    ("device-not-set-per-rank", "it hangs: the workers are started, one process per node"),
    ("rank-busy-on-host", "it fails where gloo works"),
    ("cpu-affinity", "it fails, all with the same core dumped"),
    ("net-socket-fallback", "it hangs, should run with RDMA"),
    ("vgpu-or-mig-unsupported", "it hangs, no GPU sharing"),
    ("vgpu-or-mig-unsupported", "it hangs with flan-T5-3B and with DeepSeek-V2-16B"),
    ("rank-busy-on-host", "it hangs, only rank 0 prints the loss"),
    ("benign", "the training itself runs for two hours, then it hangs"),
    ("benign", "all runs go to the end, but the throughput is half of last week's"),
    ("rendezvous-misconfigured", "each rank runs the evaluation by itself, and then it hangs"),
])
def test_usual_words_put_nothing_rare_first(tmp_path, cause, told_so):
    assert cause not in [c for c, _ in told(tmp_path, "\n", told_so)[:1]]


def test_a_warning_quoted_below_last_error_is_a_warning(tmp_path):
    quoted = (
        "torch.distributed.DistBackendError: NCCL error\nLast error:\nsocketStartConnect: Connect to 172.17.0.2<50001> failed : Software"
        " caused connection abort\n"
    )
    assert told(tmp_path, quoted)[0] == ("socket-interface-wrong", "likely")
    assert ("socket-interface-wrong", "likely") not in told(tmp_path, quoted.replace("Last error:\n", "and then\n"))


def test_a_retry_timeout_of_infiniband_is_never_sure(tmp_path):
    assert {
        s for _, s in told(tmp_path, W + "NET/IB : Got completion from peer 192.0.2.1<4> with error 12, opcode 1, len 0, vendor err 129\n")
    } == {"possible"}


def test_what_was_told_as_a_hang_is_not_called_harmless(tmp_path):
    quiet = (
        "[W ProcessGroupNCCL.cpp:1569] Rank 0 using best-guess GPU 0 to perform barrier as devices used by this process are currently"
        " unknown.\n"
    )
    assert told(tmp_path, quiet)[0][0] == "benign" and told(tmp_path, quiet, "it hangs there")[0][0] == "device-binding"


def test_all_ranks_at_one_number_leave_it_open_who_was_missing(tmp_path):
    text = "".join(hung(r, 19) + STATUS.format(r=r, e=19, c=18) for r in (1, 2, 3))
    assert {s for _, s in told(tmp_path, text)} == {"possible"}


def test_an_ordinal_alone_has_several_causes_and_one_gpu_per_task_tells_which(tmp_path):
    line = "RuntimeError: CUDA error: invalid device ordinal\n"
    assert told(tmp_path, line)[0] == ("more-ranks-than-gpus", "possible") and {s for _, s in told(tmp_path, line)} == {"possible"}
    assert told(tmp_path, line, "srun --gpus-per-task=1")[0] == ("visible-devices-wrong", "likely")


def _job(tmp_path, text: str):
    (tmp_path / "job.log").write_text(text)
    return tmp_path / "job.log"


def test_memory_of_the_first_gpu_that_other_processes_hold_is_not_simply_exhausted(tmp_path):
    out = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10 GiB total capacity)\n"
    assert told(tmp_path, out)[0] == ("gpu-memory-exhausted", "likely")
    assert {s for _, s in told(tmp_path, out, "extra processes hold 700 MB each on card 0")} == {"possible"}


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([(0, 4711), (0, 4712), (1, 4712)], [2, 3]),
        ([(0, 4711), (0, 4712), (1, 4713)], []),
        ([(0, 4711), (1, 4711)], []),
        ([(0, 4711), (0, 4712)], []),
        ([(1, 4711), (1, 4712), (2, 4712)], []),
        ([(1, 4713), (0, 4711), (2, 4711), (0, 4712), (1, 4712)], [2, 3, 4, 5]),
        ([], []),
    ],
)
def test_the_first_gpu_is_held_where_a_process_of_another_one_is_listed_there_beside_its_own(tmp_path, rows, lines):
    """nvidia-smi's list of processes: (GPU, pid); the lines that are quoted."""
    logs = read(
        tmp_path, "".join(f"|    {gpu}   N/A  N/A            {pid}      C   python                  612MiB |\n" for gpu, pid in rows)
    )
    indications = judge_gpus.first_gpu_is_held(logs)
    assert [[line.line for line in p.evidence] for p in indications] == [lines] * bool(lines)
    assert {(p.cause, p.status) for p in indications} <= {("device-not-set-per-rank", "likely")}


@pytest.mark.parametrize(
    "held, status",
    [
        (
            "(GPU 0; 15.75 GiB total capacity; 6.21 GiB already allocated; 310.44 MiB free; 6.60 GiB reserved in total by PyTorch)",
            "possible",
        ),
        (
            "(GPU 0; 15.75 GiB total capacity; 13.21 GiB already allocated; 310.44 MiB free; 13.60 GiB reserved in total by PyTorch)",
            "likely",
        ),
        ("(GPU 0; 15.75 GiB total capacity; 6.21 GiB already allocated; 8.44 GiB free; 6.60 GiB reserved in total by PyTorch)", "likely"),
        (
            (
                "GPU 0 has a total capacity of 79.15 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 15.44"
                " GiB memory in use."
            ),
            "possible",
        ),
        (
            (
                "GPU 0 has a total capacity of 79.15 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 78.90"
                " GiB memory in use."
            ),
            "likely",
        ),
        (
            (
                "GPU 0 has a total capacity of 139.80 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 15.44"
                " GiB memory in use."
            ),
            "possible",
        ),
        (
            (
                "GPU 0 has a total capacity of 139.80 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 138.44"
                " GiB memory in use."
            ),
            "likely",
        ),
        (
            "(GPU 0; 139.80 GiB total capacity; 130.00 GiB already allocated; 310.44 MiB free; 135.60 GiB reserved in total by PyTorch)",
            "likely",
        ),
        (
            "(GPU 0; 44.40 GiB total capacity; 28.00 GiB already allocated; 310.44 MiB free; 29.00 GiB reserved in total by PyTorch)",
            "likely",
        ),
    ],
)
def test_a_gpu_of_which_torch_itself_holds_the_smaller_part_is_not_simply_exhausted(tmp_path, held, status):
    assert ("gpu-memory-exhausted", status) in told(tmp_path, f"RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB. {held}\n")


def test_what_an_engine_prints_of_each_flush_accuses_nobody_without_a_complaint(tmp_path):
    line = "[TP0] Cache not flushed because there are pending requests. #queue-req: 0, #running-req: 37\n"
    assert "sync-contends-with-inference" not in by_message(tmp_path, line + 'INFO: "POST /generate HTTP/1.1" 200 OK\n')


def test_a_size_that_no_gpu_has_is_no_exhausted_memory(tmp_path):
    assert told(tmp_path, "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.\n")[0][0] in (
        "collective-mismatch",
        "device-not-set-per-rank",
    )


def test_another_operation_or_size_at_one_number_is_a_mismatch(tmp_path):
    assert ("collective-mismatch", "likely") in told(tmp_path, hung(0, 7) + hung(1, 7, numel=32))
    assert told(tmp_path, hung(0, 7) + hung(1, 7, "BROADCAST"))[0] == ("collective-mismatch", "likely")  # no group is named
    assert {status for _, status in told(tmp_path, hung(0, 7) + hung(1, 7, "ELIDED"))} == {"possible"}
    group = (
        "[PG ID {g} PG GUID {g}({n}) Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=412, OpType={o}, NumelIn=64,"
        " NumelOut=64, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n"
    )
    one = group.format(g=0, n="default_pg", r=0, o="ALLREDUCE")
    assert told(tmp_path, one + group.format(g=0, n="default_pg", r=1, o="ALLGATHER"))[0] == ("collective-mismatch", "likely")
    assert ("collective-mismatch", "likely") not in told(tmp_path, one + group.format(g=3, n="tp", r=1, o="ALLGATHER"))
    for op, numel in (("_ALLGATHER_BASE", 32), ("ALLREDUCE", 1)):  # another module's weights, and a flag beside gradients: other calls
        assert {status for _, status in told(tmp_path, hung(0, 7, op) + hung(1, 7, op, numel))} == {"possible"}


def test_what_works_is_not_called_harmless_where_something_surer_is_known(tmp_path):
    assert told(tmp_path, W + "P2P is disabled between NVLINK connected GPUs 1 and 0\n", "all works")[0] == ("gpu-or-link-fault", "likely")


def test_what_is_likely_is_called_harmless_where_the_reporter_says_that_all_goes_well(tmp_path):
    lacks = (
        "WARNING custom_all_reduce.py:136] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test"
        " failed.\n"
    )
    assert told(tmp_path, lacks, "is this harmless? the server answers normally")[0] == ("benign", "possible")


def test_sockets_are_no_fault_where_they_are_wanted_and_none_is_sure_without_a_complaint(tmp_path):
    text = "node0:7:7 [0] NCCL INFO NET/IB : No device found.\nnode0:7:7 [0] NCCL INFO Using network Socket\n"
    assert told(tmp_path, text, "the InfiniBand cards are not used, 1 GB/s")[0] == ("net-socket-fallback", "likely")
    assert ("net-socket-fallback", "likely") not in told(tmp_path, text, "two hosts, sockets are what we want")
    assert ("net-socket-fallback", "likely") not in told(tmp_path, text, "two hosts")


def test_that_one_gpu_works_fine_does_not_calm_who_tells_of_a_hang_and_a_question_does(tmp_path):
    seen = "loading model\n"
    assert "benign" not in [c for c, _ in told(tmp_path, seen, "with one GPU everything works fine, with two it freezes")]


@pytest.mark.parametrize(
    "cause, text, context, open_",
    [
        (
            "rank-busy-on-host",
            "Running tokenizer on dataset:  40%|####  | 40/100\n" + hung(1, 2),
            "",
            "Running tokenizer on dataset: 100%|####| 100/100\n" + hung(1, 2),
        ),
        (
            "socket-interface-wrong",
            W + "Connect to 172.17.0.2<38847> failed : No route to host\n",
            "",
            W + "Connect to 172.17.0.2<38847> failed : Connection refused\n",
        ),
    ],
)
def test_likely_only_where_the_line_leaves_no_other_cause(tmp_path, cause, text, context, open_):
    assert (cause, "likely") in told(tmp_path, text, context) and (cause, "likely") not in told(tmp_path, open_, context)


def test_an_image_of_a_container_is_no_module_that_some_ranks_skip(tmp_path):
    text = hung(0, 40, "_ALLGATHER_BASE") + "deepspeed zero stage 3\n"
    assert {status for _, status in told(tmp_path, text, "in a docker image")} == {"possible"}


@pytest.mark.parametrize(
    ("beside", "first"),
    [("", "gdr-disabled"), ("a:1:2 [0] NCCL INFO Channel 00/0 : 8[1a000] -> 0[1a000] [receive] via NET/IB/0/GDRDMA\n", "")],
)
def test_direct_rdma_that_is_used_is_not_called_off(tmp_path, beside, first):
    got = told(
        tmp_path, "a:1:2 [0] NCCL INFO DMA-BUF is not available on GPU device 0\n" + beside, "a warning, the bandwidth is at line rate"
    )
    assert [c for c, status in got if status == "likely"] == [first] * bool(first)


def test_a_card_for_which_nvml_says_nothing_by_itself_is_its_fault_and_in_a_slice_not(tmp_path):
    line = "a:1:1 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Supported\n"
    assert told(tmp_path, line)[0] == ("nvml-call-failed", "established")
    assert told(tmp_path, line + "CUDA_VISIBLE_DEVICES=MIG-7a31c1a5-2fd4-5c0e-9b92-8a55e84f6ab2\n")[0] == (
        "vgpu-or-mig-unsupported",
        "likely",
    )


@pytest.mark.parametrize(
    "context", ["", "its service does not start", "asked whether the result is reasonable for four 200 Gb/s HDR cards"]
)
def test_what_says_itself_that_nothing_is_wrong_is_harmless_whatever_was_asked(tmp_path, context):
    assert (
        told(
            tmp_path,
            "nv-fabricmanager[4177]: request to query NVSwitch device information failed with error:WARNING Nothing to do"
            " [NV_WARN_NOTHING_TO_DO]\n",
            context,
        )[0][0]
        == "benign"
    )


BANNER = (
    "W1123 12:00:00.123000 4711 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in"
    " default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as"
    " needed.\n"
)
SET_UP = ("node1:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "node1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 17000 commId 0xab - Init COMPLETE\n")


@pytest.mark.parametrize(
    "end",
    [
        "srun: error: node2: task 5: Exited with exit code 1",
        "slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-23T12:00:00 DUE TO TIME LIMIT ***",
        "mpirun noticed that process rank 3 with PID 0 on node node2 exited on signal 9 (Killed).",
        "command terminated with exit code 137",
        "double free or corruption (!prev)",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.",
        "bash: line 1: 4711 Killed                  python train.py",
        "std::bad_alloc",
        "(EngineCore_0 pid=100) ERROR 11-23 12:00:00 [core.py:700] EngineCore encountered a fatal error.",
        "*** Aborted at 1700000000 (unix time)",
        "exit status 1",
        "ERROR:    Application startup failed. Exiting.",
        "[2023-07-20 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py']",
    ],
)
def test_a_job_that_printed_its_end_is_not_called_harmless(tmp_path, end):
    assert told(tmp_path, BANNER) == [("benign", "possible")] and "benign" not in [c for c, _ in told(tmp_path, BANNER + end + "\n")]


@pytest.mark.parametrize(
    "words",
    [
        "The job was OOMKilled.",
        "Segfault after this",
        "Got a bus error",
        "SIGKILL",
        "GPU fell off the bus.",
        "It stopped working after the driver upgrade.",
        "it breaks with 2 nodes, with 1 it works",
        "no output any more since 3 h",
        "The pod gets evicted.",
        "Ranks 4-7 are missing.",
        "Job terminated by scheduler.",
        "both processes are gone",
        "It takes 3 hours instead of 20 minutes.",
        "Der Job bleibt beim ersten all_reduce stehen",
        "le job se bloque au premier all_reduce",
        "训练卡住了,没有任何输出",
    ],
)
def test_a_complaint_in_other_words_is_one(tmp_path, words):
    assert told(tmp_path, BANNER, "What is this message?")[0][0] == "benign" and "benign" not in [
        c for c, _ in told(tmp_path, BANNER, words)
    ]


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     10.0.0.4:52222 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
        "[    0.51] iommu: Default domain type: Translated\n",
        "NVIDIA_DRIVER_CAPABILITIES is not set\n",
        "NVIDIA_DRIVER_CAPABILITIES= NCCL_DEBUG=INFO\n",
        "NVIDIA_DRIVER_CAPABILITIES=video,compute\n",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility\n",
        (
            "node1:1:2 [0] NCCL INFO DMA-BUF is not available on GPU device 0\nnode1:1:2 [0] NCCL INFO Connected all rings, use ring PXN 0"
            " GDR 0\n"
        ),
        "node1:1:1 [0] NCCL INFO TUNER/Plugin: Plugin load returned 0 : /usr/lib/libnccl-tuner.so: undefined symbol: ncclTunerPlugin_v4\n",
    ],
)
def test_what_healthy_servers_hosts_and_containers_print_beside_nccl_accuses_nobody(tmp_path, line):
    assert [c for c, _ in told(tmp_path, line + SET_UP) if c != "benign"] == []


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("Bootstrap Root : mismatch in rank count from procs 8 : -2130706432\n", ("foreign-connection", "likely")),
        (
            (
                "NVIDIA_DRIVER_CAPABILITIES=compute NVIDIA_VISIBLE_DEVICES=all\nnode1:1:1 [0] misc/nvmlwrap.cc:101 NCCL WARN Failed to open"
                " libnvidia-ml.so.1\n"
            ),
            ("container-gpu-access", "likely"),
        ),
        (
            (
                "NVIDIA_DRIVER_CAPABILITIES=compute\nn1:1:1 [0] misc/nvmlwrap.cc:200 NCCL WARN nvmlDeviceGetHandleByPciBusId(0000:1b:00.0)"
                " failed: Unknown Error\n"
            ),
            ("nvml-call-failed", "established"),
        ),
    ],
)
def test_what_stands_beside_a_message_tells_only_what_it_can(tmp_path, line, first):
    assert told(tmp_path, line)[0] == first


@pytest.mark.parametrize(("number", "status"), [(1, "likely"), (493, "possible")])
def test_a_name_that_does_not_resolve_while_the_job_runs_is_not_the_likely_cause(tmp_path, number, status):
    log = (
        "[rank0]:[E1123 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout:"
        f" WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600044 milliseconds before timing"
        " out.\n"
    )
    assert (
        dict(
            told(
                tmp_path,
                log + "The IPv6 network addresses of (node1, 29500) cannot be retrieved (gaierror: -2 - Name or service not known).\n",
            )
        )["rendezvous-name-resolution"]
        == status
    )


@pytest.mark.parametrize(
    ("line", "beside", "cause"),
    [
        (
            "a:1:2 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n",
            "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL\n",
            "visible-devices-wrong",
        ),
        (
            "could not load NVML: libnvidia-ml.so.1: cannot open shared object file: No such file or directory\n",
            "Detected non-NVML platform\n",
            "container-gpu-access",
        ),
    ],
)
def test_a_line_is_likely_only_without_what_explains_it_otherwise(tmp_path, line, beside, cause):
    assert dict(told(tmp_path, line))[cause] == "likely" and dict(told(tmp_path, beside + line)).get(cause) != "likely"


def test_long_words_of_a_reporter_are_cut_and_answered_at_once(tmp_path):
    (tmp_path / "job.log").write_text("x\n")
    seen = reader.collect([str(tmp_path / "job.log")], "hangs " + "1" * 50_000 + " joined/workers store tensors\n" * 3000)
    assert len(seen.context.splitlines()) == 1000 and max(map(len, seen.context.splitlines())) == 2000
    assert all(len(line.text) <= 1000 for found in triage.judge(seen) for line in found.evidence)


def test_a_fabric_manager_without_a_switch_has_nothing_to_do(tmp_path):
    text = (
        "nvidia-fabricmanager-start.sh[9]: request failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\nnv-fabricmanager"
        " failed! Exit code: 1\n"
    )
    assert told(tmp_path, text, "the service fails to start")[0][0] == "benign"
    assert told(tmp_path, text.replace("NV_WARN_NOTHING_TO_DO", "NV_ERR_OPERATING_SYSTEM"), "the service fails to start")[0] == (
        "fabric-manager-down",
        "likely",
    )


def test_a_message_broken_over_two_lines_is_as_harmless(tmp_path):
    text = (
        "ProcessGroupNCCL.cpp:4715] [Rank 0]  using GPU 0 as device used by this process is currently\n  unknown. This can potentially"
        " cause a hang\n"
    )
    assert told(tmp_path, text, "the run prints it and goes on")[0][0] == "benign"
    assert "benign" not in [c for c, _ in told(tmp_path, text, "it hangs there")]


def test_a_job_that_ended_is_not_called_harmless_for_what_works_otherwise(tmp_path):
    assert told(tmp_path, "Duplicate GPU detected\n", "without that import it runs normally")[0][0] != "benign"
    assert told(tmp_path, "[W x.cpp:9] TypedStorage is deprecated\n", "it runs normally")[0][0] == "benign"


def test_a_complaint_that_infiniband_is_not_used_is_no_failure(tmp_path):
    text = "[0] NCCL INFO NET/IB : No device found.\n[0] NCCL INFO Using network Socket\n"
    assert told(tmp_path, text, "two nodes are as fast as one, it always fails to use the InfiniBand ports")[0] == (
        "net-socket-fallback",
        "likely",
    )
    assert ("net-socket-fallback", "likely") not in told(tmp_path, text, "two nodes, InfiniBand: it always fails")


@pytest.mark.parametrize(
    "cause, line, context",
    [
        ("nccl-library-conflict", "NCCL INFO NET/Plugin: libnccl-net.so: undefined symbol: ncclNetPlugin_v8\n", ""),
        (
            "engine-allreduce-needs-p2p",
            (
                "WARNING custom_all_reduce.py:143] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test"
                " failed.\n"
            ),
            "",
        ),
        (
            "visible-devices-set-too-late",
            (
                "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES"
                " after program start.\n"
            ),
            "import torch",
        ),
        ("rendezvous-misconfigured", "group = stateless_init_process_group(master_address, master_port, 0, 2, device)\n", ""),
        ("socket-interface-wrong", W + "Connect to 172.31.20.4<43287> failed : Connection timed out\n", ""),
        (
            "more-ranks-than-gpus",
            "ValueError: World size (2) is larger than the number of available GPUs (1) in this node.\nMIG 2g.20gb Device 0\n",
            "",
        ),
        ("gpu-or-link-fault", "NCCL INFO P2P is disabled between NVLINK connected GPUs 2 and 1.\nA100 MIG 1g.10gb\n", ""),
        ("rank-busy-on-host", "Saving checkpoint ...\n" + hung(1, 40), ""),
        ("rendezvous-port-in-use", "nv-fabricmanager: failed to bind to port 6666: Address already in use\n", ""),
        ("gpu-memory-exhausted", "CUDA error: out of memory\nRuntimeError: CUDA error: invalid device ordinal\n", ""),
        (
            "more-ranks-than-gpus",
            "[WARN] CUDA IPC is not usable: cudaErrorInvalidDevice: 101. Custom all-reduce kernels are disabled, falling back to NCCL.\n",
            "",
        ),
    ],
)
def test_what_has_another_explanation_is_not_sure(tmp_path, cause, line, context):
    assert not {(cause, "likely"), (cause, "established")} & set(told(tmp_path, line, context))


@pytest.mark.parametrize("device, status", [("cuda:0", "likely"), ("cuda:1", "possible")])
def test_a_local_process_that_accelerate_gave_the_first_gpu_had_no_other(tmp_path, device, status):
    refused = "Last error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000\n"
    printed = f"Local process index: 0\nDevice: cuda:0\nLocal process index: 1\nDevice: {device}\n{refused}"
    assert ("more-ranks-than-gpus", status) in told(tmp_path, printed, "")


@pytest.mark.parametrize("where, status", [("Detected 1 nodes in the distributed environment", "possible"), ("node1 is there", "likely")])
def test_loopback_is_a_fault_only_between_hosts(tmp_path, where, status):
    printed = f"{where}\npod:820:820 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>\n"
    assert (("socket-interface-wrong", "likely") in told(tmp_path, printed, "hangs at start on the machines")) == (status == "likely")


@pytest.mark.parametrize(("after", "status"), [("", "possible"), ("RuntimeError: the store timed out\n", "likely")])
def test_a_name_that_is_looked_up_again_is_a_fault_only_where_something_fails(tmp_path, after, status):
    line = (
        "[W socket.cpp:558] [c10d] The IPv6 network addresses of (w-0.w, 3389) cannot be retrieved (gai error: -2 - Name or service not"
        " known).\n"
    )
    assert ("rendezvous-name-resolution", status) in told(tmp_path, line + after)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("sys.exit(main())", "pcie-topology-limit"),
        ("warmup_steps 8000, warmup iters: 5", "start-skew"),
        ("srun --gpus-per-node=4", "container-gpu-access"),
        ("no problem with a small corpus", "benign"),
    ],
)
def test_arguments_and_half_sentences_speak_for_nothing(tmp_path, words, cause):
    assert cause not in dict(told(tmp_path, f"RuntimeError: NCCL error\n{words}\n", words))


@pytest.mark.parametrize(
    ("after", "first"), [("GPU:0 | Epoch: 0 | Steps: 32\nGPU:0 | Epoch: 1 | Steps: 32\n", "benign"), ("", "no-route-between-hosts")]
)
def test_what_was_retried_before_steps_is_called_harmless(tmp_path, after, first):
    line = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:12345 (errno: 101 - Network is unreachable).\n"
    assert told(tmp_path, line + after, "a warning at the start")[0] == (first, "possible")


def test_a_loader_without_shared_memory_is_not_merely_slow(tmp_path):
    worker = "RuntimeError: DataLoader worker (pid 52) is killed by signal: Bus error. "
    assert told(tmp_path, worker, "it hangs") == [("shm-too-small", "likely")]  # it was killed, and did not stall
    assert told(tmp_path, worker + "It is possible that dataloader's workers are out of shared memory.\n", "it hangs")[0] == (
        "shm-too-small",
        "likely",
    )


def test_the_last_work_of_a_rank_is_read_without_its_words(tmp_path):
    (tmp_path / "a.log").write_text(
        "[Rank 9]  last enqueued: 10, last completed: 9\n[Rank 8] last enqueued NCCL work: 11, last completed NCCL work: 10\n"
    )
    rows = {r.rank: (list(r.enqueued.values()), list(r.completed.values())) for r in reader.collect([str(tmp_path / "a.log")]).ranks}
    assert rows == {9: ([10], [9]), 8: ([11], [10])}


def test_the_heading_of_nccl_tests_is_no_progress(tmp_path):
    heading = "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    (tmp_path / "job.log").write_text("a:1:1 [0] NCCL INFO Using network Socket\n" + heading)
    seen = reader.collect([str(tmp_path / "job.log")]).seen
    assert seen and not any(found.resumed for found in seen.values())
    (tmp_path / "job.log").write_text("a:1:1 [0] NCCL INFO Using network Socket\niters: 20 loss: 0.5\n")
    assert all(found.resumed for e, found in reader.collect([str(tmp_path / "job.log")]).seen.items() if "Socket" in e)


@pytest.mark.parametrize(
    "after, sure", [("", True), ("node0:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>\n", False)]
)
def test_an_address_of_infiniband_is_a_fallback_only_where_verbs_are_not_used_beside_it(tmp_path, after, sure):
    """NCCL 2.4 lists its sockets in front of the network that it then uses."""
    printed = "node0:7:7 [0] NCCL INFO NET/Socket : Using [0]ib0:192.168.11.1<0>\n" + after
    assert (("net-socket-fallback", "likely") in told(tmp_path, printed, "")) == sure


@pytest.mark.parametrize("before", ["", "517 ", "517:", "  517: "])
def test_an_exception_below_line_numbers_of_an_editor_is_one(tmp_path, before):
    shutdown = (
        "[rank0]:[W306 20:20:52.622856896 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before"
        " program exit\n"
    )
    raised = "[rank0]: mlflow.exceptions.MlflowException: API request failed: the security token is expired\n"
    assert told(tmp_path, before + raised + before + shutdown, "")[0][0] == "peer-crashed"
    assert told(tmp_path, before + shutdown, "")[0][0] == "benign"


def test_silent_corruption_is_a_complaint_and_the_name_of_a_model_is_none(tmp_path):
    """ "with no error" beside wrong data, and SlowFast beside a harmless warning."""
    logs = read(
        tmp_path, "x.to(1)\n", "Moving a tensor from one GPU to another results in data corruption, silently, with no warning or error"
    )
    assert [fit.id for fit in triage_weights.fits(logs, triage.judge(logs))][0] == "p2p-broken-acs-iommu"
    warning = (
        "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:9999 (errno: 97 - Address family not supported by"
        " protocol).\n"
    )
    assert told(tmp_path, warning, "SlowFast on 2 GPUs; the training continues")[0][0] == "benign"
    assert told(tmp_path, warning, "very slow on 2 GPUs; the training continues")[:1] != [("benign", "possible")]


def test_a_port_in_use_is_not_the_fault_itself_where_srun_starts_one_node_rank_twice(tmp_path):
    srun = "srun python -m torch.distributed.launch --nnodes=2 --node_rank=0 main.py"
    assert ("rendezvous-port-in-use", "likely") in told(
        tmp_path, "RuntimeError: Address already in use\n", srun.replace("--node_rank=0 ", "")
    )
    assert all(status == "possible" for _, status in told(tmp_path, "RuntimeError: Address already in use\n", srun))


PERF = (
    "#  Rank  0 Group  0 Pid 1530412 on {0:>10} device  0 [0000:0f:00] NVIDIA H20\n#  Rank  1 Group  0 Pid 1530412 on {1:>10} device  0"
    " [0000:0f:00] NVIDIA H20\n"
)


def test_two_jobs_that_each_have_a_first_rank_never_met(tmp_path):
    """nccl-tests made without MPI; one job over the same two hosts is a near miss, and so are two runs on one host."""
    apart = ("rendezvous-misconfigured", "likely")
    assert told(tmp_path, PERF.format("node3", "node3") + PERF.format("node2", "node2"))[0] == apart
    assert apart not in told(tmp_path, PERF.format("node3", "node2"))
    assert apart not in told(tmp_path, PERF.format("node3", "node3") * 2)


def test_ranks_with_other_numbers_of_channels_run_with_other_settings(tmp_path):
    line = (
        "[rank{}]: a:1:2 [0] NCCL INFO {} coll channels, {} collnet channels, 16 nvls channels, {} p2p channels, 2 p2p channels per peer\n"
    )
    assert told(tmp_path, line.format(0, 24, 24, 32) + line.format(1, 8, 8, 8), "it fails")[0] == ("nodes-differ", "possible")
    assert "nodes-differ" not in by_message(tmp_path, line.format(0, 24, 24, 32) + line.format(1, 24, 24, 32))


WARNED = (
    "[rank4]:[W203 09:19:41.4 ProcessGroupNCCL.cpp:4561] using GPU 0 to perform barrier as devices used by this process are currently"
    " unknown.\n"
)


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("Every rank prints a warning of a possible hang. Will the job hang later?", "benign"),
        ("Is NCCL stuck? The log speaks of a hang.", "benign"),
        ("Users ask whether their jobs will hang.", "benign"),
        ("Why does the job hang?", "device-binding"),
        ("The job hangs. Is NCCL stuck?", "device-binding"),
    ],
)
def test_who_only_asks_whether_it_will_hang_tells_of_no_hang(tmp_path, asked, first):
    assert told(tmp_path, WARNED, asked)[0][0] == first


@pytest.mark.parametrize(
    ("after", "resumed"),
    [
        ("step=1 loss=12.2\nstep=2 loss=11.9\n", True),
        ("", False),
        ("step=1 loss=12.2\n", False),
        ("step=1 loss=12.2\nRuntimeError: the end\n", False),
    ],
)
def test_steps_of_nobody_in_the_same_file_make_a_message_background(tmp_path, after, resumed):
    (tmp_path / "job.log").write_text(WARNED + after)
    seen = reader.collect([str(tmp_path / "job.log")]).seen
    assert {found.resumed for name, found in seen.items() if "to perform barrier" in catalogue()["printed"].get(name, "")} == {resumed}


def test_steps_in_another_file_say_nothing_of_a_message(tmp_path):
    (tmp_path / "a.log").write_text(WARNED)
    (tmp_path / "b.log").write_text("step=1 loss=12.2\nstep=2 loss=11.9\n")
    seen = reader.collect([str(tmp_path)]).seen
    assert not any(found.resumed for e, found in seen.items() if "to perform barrier" in e)


def test_a_busy_port_of_the_diagnostic_service_is_no_busy_port_of_the_job(tmp_path):
    """NCCL >= 2.24 listens on 28028 for its client of RAS; the job goes on without."""
    ras = "A800:1:2 [1] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use\n"
    assert told(tmp_path, ras) == [("benign", "possible")]
    assert ("rendezvous-port-in-use", "possible") in told(tmp_path, ras.replace("ras/client_support.cc", "misc/socket.cc"))


@pytest.mark.parametrize(
    ("log", "words", "first"),
    [
        (
            "UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited'\n",
            "the numbers come out as usual",
            "benign",
        ),
        (
            "UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited'\n",
            "the numbers come out wrong",
            "ulimit-too-low",
        ),
        (
            "Traceback (most recent call last):\npynvml.NVMLError_InvalidArgument: Invalid Argument\n",
            "CI of mocked GPUs; the tests go on and pass",
            "nvml-call-failed",
        ),
        (
            "Traceback (most recent call last):\npynvml.NVMLError_InvalidArgument: Invalid Argument\n",
            "CI of mocked GPUs; the tests go on and pass, the job crashes",
            "nvml-call-failed",
        ),
        (
            "CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n",
            "printed while the parts are loaded, then the 28-step forward pass completes",
            "benign",
        ),
        ("CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n", "printed while the parts are loaded", "net-plugin-failed"),
        (
            "CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n",
            "an error in every other start and no run completes",
            "net-plugin-failed",
        ),
        (
            "CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n",
            "two nodes are bad; then only the benchmark passes",
            "net-plugin-failed",
        ),
        (
            "E0331 CtranIb.cc:101] CTRAN-IB: Found 0 InfiniBand device(s) but 1 required.\n[Rank 0/2] After AllReduce: 3.0 [PASS]\n",
            "an E line is printed",
            "benign",
        ),
    ],
)
def test_an_error_beside_results_that_are_right_is_noise(tmp_path, log, words, first):
    assert told(tmp_path, log, words)[0][0] == first


@pytest.mark.parametrize(
    "before, line, cause",
    [
        ("exits with return code = -6", "exits with return code = -9", "peer-crashed"),
        (
            "The client socket has timed out after 900s while trying to connect to (10.0.1.9, 29500).",
            "The client socket has timed out after 1800s while trying to connect to (172.17.0.2, 44737).",
            "socket-interface-wrong",
        ),
        ("frozen 0", "frozen 1", "peer-stopped"),
        ("nr_throttled 3", "nr_throttled 88214", "cpu-affinity"),
        (
            "n1:7:7 [0] NCCL INFO bootstrap.cc:701 -> 2",
            (
                "n1:7:9 [0] NCCL WARN socketProgress: Connection closed by remote peer 192.0.2.3<36138>\nn1:7:9 [0] NCCL INFO"
                " bootstrap.cc:701 -> 6"
            ),
            "foreign-connection",
        ),
    ],
)
def test_the_same_line_with_other_numbers_hides_no_message(tmp_path, before, line, cause):
    for number, text in enumerate((line, f"{before}\n{line}")):
        (tmp_path / "job.log").write_text(text + "\n")
        found = [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")], "all ranks hang")) if h.cause == cause]
        assert found and any(e.text in line and e.line > number for e in found[0].evidence), found


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("pytorch_lightning.utilities.exceptions.MisconfigurationException:\n", True),
        ("pynvml.NVMLError_InvalidArgument: Invalid Argument\n", True),
        ("the MisconfigurationException: class\n", False),
        ("NVMLErrors are counted\n", False),
    ],
)
def test_an_exception_may_end_with_its_colon_or_have_a_suffix(tmp_path, line, failed):
    (tmp_path / "job.log").write_text("Traceback (most recent call last):\n" + line)
    assert (messages_judge.failed_line(reader.collect([str(tmp_path / "job.log")])) is not None) == failed


@pytest.mark.parametrize(
    ("log", "words", "advice"),
    [
        (PERF.format("node3", "node3") + PERF.format("node2", "node2"), "", "MPI=1"),
        ("it is slow\n", "NCCL_NET_GDR_LEVEL=SYS mpirun -np 2 --host n13,n14 gather_perf fails", "mpirun -x"),
        ("error: unrecognized arguments: --local-rank=1\n", "", "LOCAL_RANK"),
        ("ValueError: the world size is 2 and 1 clients joined\n1/2 clients joined\n", "", "MASTER_"),
        ("CUDA error: invalid device ordinal\n", "srun --gpus-per-task=1 python train.py", "--gpu-bind=none"),
        (
            "CUDA error: invalid device ordinal\n",
            "CUDA_VISIBLE_DEVICES=0 srun --gpu-bind=none --gpus-per-node=8 python train.py",
            "nvidia-smi -L",
        ),
        ("ValueError: Port could not be cast to integer value as 'fd00::1:29500'\n", "", "brackets"),
        ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5570')\n", "", "VLLM_PORT"),
        (
            "RuntimeError: The server socket has failed to listen: [Errno 98] Address already in use, port 29500\n",
            "",
            "torchrun --master-port",
        ),
        ("CUDA error 803: system has unsupported display driver / cuda driver combination\n", "", "compat"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "", "sudo reboot"),
        ("n1:803:803 [0] NCCL WARN nvmlInit failed: Driver/library version mismatch\n", "", "sudo reboot"),
        (
            W + "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1\n",
            "InfiniBand between two nodes, the path is blocked",
            "ibstat",
        ),
        (
            W + "NET/OFI Request completed with error. RC: 2\n",
            "EFA on two nodes; the port is blocked by a firewall and it hangs",
            "security group",
        ),
        (W + "socketStartConnect: Connect to 10.0.0.2<41235> failed : No route to host\n", "", "ip route get 10.0.0.2"),
    ],
)
def test_advice_is_that_for_the_message_seen(tmp_path, log, words, advice):
    (tmp_path / "job.log").write_text(log)
    lead = triage.judge(reader.collect([str(tmp_path / "job.log")], words))[0]
    assert any(advice in line for remedy in lead.remedy for line in (remedy.text, *remedy.lines)), lead


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("(RayWorkerWrapper pid=812, ip=10.0.0.3) NCCL WARN error\n", "ray"),
        ("(Worker pid=812, ip=10.0.0.3) NCCL WARN error\n", "ray"),
        ("(Worker_TP1 pid=812) NCCL WARN error\n", ""),
        ("(EngineCore_DP1 pid=812) NCCL WARN error\n", ""),
        ("(VllmWorkerProcess pid=812) NCCL WARN error\n", ""),
    ],
)
def test_an_engines_own_workers_are_no_sign_of_ray(tmp_path, line, launcher):
    (tmp_path / "job.log").write_text(line)
    assert reader.collect([str(tmp_path / "job.log")]).launcher == launcher


def test_single_words_accuse_nobody_beside_a_known_message_where_nobody_complains(tmp_path):
    (tmp_path / "job.log").write_text(
        "n1:7:7 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\nView the dashboard at"
        " 127.0.0.1:8265\n"
    )
    assert [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))] == ["benign"]


@pytest.mark.parametrize("words", ["is this normal?", "with NCCL 2.18 all tests pass", "on one GPU the results come out right", ""])
@pytest.mark.parametrize(
    "log",
    [
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
    ],
)
def test_a_job_that_failed_is_never_called_harmless(tmp_path, log, words):
    assert told(tmp_path, log, words)[0][0] != "benign"


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "fault",
    [
        "[rank3]: what():  CUDA error: uncorrectable ECC error encountered\n",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n",
    ],
)
def test_steps_do_not_clear_what_is_the_fault_itself(tmp_path, fault, steps):
    assert told(tmp_path, fault + "".join(f"step {n} loss 2.3\n" for n in range(steps)))[0] == ("gpu-or-link-fault", "established")


def test_a_preflight_that_passed_is_no_end_of_a_rank(tmp_path):
    (tmp_path / "job.log").write_text("".join(f"[rank{n}]: [PASS] preflight gpu {n}\n" for n in range(4)))
    assert not any(row.ended for row in reader.collect([str(tmp_path / "job.log")]).ranks)


@pytest.mark.parametrize("between", ["# Avg bus bandwidth    : 180.3\n", "# Out of bounds values : 0 OK\n"])
def test_runs_on_one_host_after_the_other_are_no_jobs_that_never_met(tmp_path, between):
    log = PERF.format("node3", "node3") + between + PERF.format("node2", "node2")
    assert not any(cause == "rendezvous-misconfigured" for cause, _ in told(tmp_path, log))
    (tmp_path / "b.log").write_text(PERF.format("node2", "node2"))
    (tmp_path / "a.log").write_text(PERF.format("node3", "node3"))
    (tmp_path / "job.log").unlink()
    assert not triage.judge(reader.collect([str(tmp_path)]))
    assert not told(tmp_path, PERF.format("n1", "n1") + PERF.format("n1.example.com", "n1"))


@pytest.mark.parametrize("line", [
    "torchrun --nnodes 2 --master_addr n1 --master_port 29500 train.py", "zmq binding tcp://:5555",
    "srun --nodes=1 -w host-1 torchrun --nnodes 2 --node-rank 1 train.py", "NCCL_ALGO=Ring mpirun -H localhost:8 -np 8 ./all_reduce_perf"])
def test_usual_lines_of_launchers_accuse_nobody(tmp_path, line):
    assert not by_message(tmp_path, line + "\n")


@pytest.mark.parametrize(
    "words",
    [
        "Do you know why the job hangs on 2 nodes?",
        "Is it a bug that all_reduce hangs with 4 GPUs?",
        "Could this be why the run crashes every night?",
        "Is my GPU broken, the job always hangs on node 3?",
        "If I use 8 GPUs it will hang at the first allreduce",
        "We found a possible hang in our training",
    ],
)
def test_a_question_with_a_complaint_in_it_is_one(words):
    assert says(words, "<complaint>")


@pytest.mark.parametrize("ops", [("SEND", "RECV"), ("ALLREDUCE", "SEND"), ("ALLREDUCE", "COALESCED")])
def test_calls_that_torch_counts_apart_are_no_mismatch_for_sure(tmp_path, ops):
    text = "".join(hung(rank, seq=12, op=op) for rank, op in enumerate(ops))
    (tmp_path / "job.log").write_text(text)
    found = {h.cause: h.status for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))}
    assert found.get("collective-mismatch", "possible") == "possible", found
