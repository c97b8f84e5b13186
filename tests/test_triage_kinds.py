"""Kinds of logs whose answer named the wrong line, the wrong node, or a placeholder for what the log names."""
from __future__ import annotations

import pytest
from nccl_runbook.case.answer import Case, case
from nccl_runbook.case.gathered import of_logs
from nccl_runbook.case.table import text
from nccl_runbook.causes.causes import Advice
from nccl_runbook.messages import read
from nccl_runbook.triage.judge import MOST

STEPS = "".join(f"{rank}: step {step} loss 2.5\n" for step in range(8) for rank in range(4))
REFUSED = "raise ValueError(\"No available memory for the cache blocks. \"\n"
FRAME = '  File "/opt/job/load.py", line 31, in load\n'
CANCELLED = (
    "slurmstepd: error: *** STEP 881.0 ON b01 CANCELLED AT 2026-11-28T10:13:02 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
)
WAITED = (
    "[rank3]:[E1128 10:12:44.1 ProcessGroupNCCL.cpp:689] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=212,"
    " OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
ILLEGAL = "[rank1]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
TRACEBACK = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/opt/job/train.py", line 80, in main\n[rank1]:   File'
    ' "/opt/job/rows.py", line 12, in load\n[rank1]:   File "/opt/venv/lib/python3.12/site-packages/torch/_tensor.py", line 40, in'
    " wrapped\n[rank1]: {}\n"
)
ABORTED = (
    "E1128 11:01:50.0 410 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) local_rank: 1 (pid: 412) of binary:"
    " python\n"
)
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 1 has a total capacity of 79.10 GiB of which {} is free."
    " {}Including non-PyTorch memory, this process has 17.10 GiB memory in use. 19.78 GiB allowed; Of the allocated memory 16.20 GiB is"
    " allocated by PyTorch.\n"
)


def judged(tmp_path, log: str) -> Case:
    (tmp_path / "job.log").write_text(log)
    return case(of_logs(read.collect([str(tmp_path / "job.log")]), None), "triage", "", "unknown")


# cause that leads, what the answer holds, what it must not hold, the log
KINDS = [
    # the line of the program that raised; a GPU's error belongs to an earlier call
    (
        "peer-crashed",
        ["/opt/job/rows.py:12"],
        ["train.py:80", "_tensor.py:40"],
        STEPS + TRACEBACK.format("KeyError: 'label'") + ABORTED.replace("-6", "1"),
    ),
    *(
        ("peer-crashed", [], ["rows.py:12"], STEPS + TRACEBACK.format(error) + ABORTED.replace("-6", "1"))
        for error in (
            "torch.AcceleratorError: CUDA error: device-side assert triggered",
            "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        )
    ),
    # the node that failed, not the one that reports it, also if ranks noticed first
    *(
        ("node-failed", ["--exclude=b07"], ["exclude=NODE", "exclude=b01"], log)
        for log in (
            STEPS + CANCELLED + "srun: error: Node failure on b07\n",
            STEPS + WAITED + "srun: error: Node failure on b07\n" + CANCELLED + "srun: error: b01: tasks 0-3: Killed\n",
        )
    ),
    ("node-failed", ["--exclude=b[07-08],c1"], ["exclude=NODE"], "srun: error: Node failure on b[07-08],c1\n"),
    ("node-failed", ["sinfo -R"], ["exclude=b01"], STEPS + CANCELLED),
    (
        "node-failed",
        ["10.4.0.7"],
        [],
        (
            "ray.exceptions.ActorDiedError: The actor died unexpectedly.\n\tpid: 4410\n\tip: 10.4.0.7\nThe actor died because its node has"
            " died. Node Id: 1f\n"
        ),
    ),
    # another actor than the one whose node died
    (
        "node-failed",
        ["10.4.0.7"],
        ["10.4.0.5"],
        (
            "\tpid: 4409\n\tip: 10.4.0.5\nThe actor is dead because `ray.kill` ended it.\n\tpid: 4410\n\tip: 10.4.0.7\nThe actor died"
            " because its node has died. Node Id: 1f\n"
        ),
    ),
    (
        "node-failed",
        ["state=DEAD"],
        ["10.4.0.5"],
        (
            "\tip: 10.4.0.5\nThe actor is dead because `ray.kill` ended it.\nThe others go on.\nThe actor died because its node has died."
            " Node Id: 1f\n"
        ),
    ),
    # of the lines of one message that which names the rank
    (
        "uneven-minibatches",
        ["Rank 5 ran out"],
        [],
        "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.\nRank 5 exhausted all inputs\n",
    ),
    # an abort follows what the kernel did
    ("peer-crashed", ["illegal memory access", "compute-sanitizer"], ["aborted itself"], ILLEGAL + ABORTED),
    (
        "peer-crashed",
        ["illegal memory access", "compute-sanitizer"],
        ["aborted itself", "core"],
        ILLEGAL + "srun: error: n4: task 1: Aborted (core dumped)\n",
    ),
    (
        "peer-crashed",
        ["CUDA_LAUNCH_BLOCKING=1", "assertion"],
        ["aborted itself"],
        ILLEGAL.replace("an illegal memory access was encountered", "device-side assert triggered") + ABORTED,
    ),
    ("peer-crashed", ["aborted itself"], ["Possible: a rank died"], ABORTED),
    # source below a frame was not printed
    *(
        (
            "peer-crashed",
            ["the checkpoint has 12 layers"],
            ["memory is left", "visible GPUs", "already in use"],
            f"Traceback (most recent call last):\n{FRAME}    {source}\nRuntimeError: the checkpoint has 12 layers\n",
        )
        for source in (
            REFUSED.strip(),
            'raise RuntimeError("CUDA error: invalid device ordinal")',
            'assert ok, "Address already in use"',
            "log.error('CUDA out of memory in it')",
        )
    ),
    *(
        (
            "gpu-memory-exhausted",
            ["job.log line 4"],
            ["raise"],
            "".join(
                prefix + line
                for line in (
                    "Traceback (most recent call last):\n",
                    FRAME,
                    "    " + REFUSED,
                    "ValueError: No available memory for the cache blocks. Try increasing it.\n",
                )
            ),
        )
        for prefix in ("", "[rank0]: ", "(EngineCore_DP0 pid=77) ERROR 11-28 09:00:01 [core.py:708] ")
    ),
    (
        "peer-crashed",
        ["No module named 'flashinfer'"],
        [],
        (
            "ERROR 11-28 09:00:01 [core.py:708] Traceback (most recent call last):\nERROR 11-28 09:00:01 [core.py:708] ModuleNotFoundError:"
            " No module named 'flashinfer'\n"
        ),
    ),
    # a logger that pads its level, or an exception below a frame, was printed
    *(
        (
            "gpu-or-link-fault",
            ["uncorrectable ECC"],
            [],
            f'{prefix}{FRAME}{head}worker ended: "CUDA error: uncorrectable ECC error encountered"\n',
        )
        for prefix in ("", "[rank1]: ")
        for head in (
            "2026-11-28 10:00:01 ERROR    job: ",
            "2026-11-28 10:00:01.250 | ERROR    | __main__:main:9 - ",
            "2026-11-28 10:00:01    ERROR job: ",
            "[rank1]: RuntimeError:     ",
            "10:00:01 WARNING     job: ",
        )
    ),
    # Ray has fewer GPUs than asked for
    *(
        ("more-ranks-than-gpus", ["ray status", wanted], ["torchrun"], line + "\n")
        for wanted, line in (
            ("8 GPUs", "ValueError: Total available GPUs 4.0 is less than total desired GPUs 8"),
            (
                "{'GPU': 8.0}",
                (
                    "(autoscaler +6s) Error: No available node types can fulfill resource requests {'GPU': 8.0}*1. Add suitable node types"
                    " to this cluster."
                ),
            ),
            ("(STRICT_PACK)", "  {'GPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups"),
            (
                "1800 seconds",
                (
                    "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}, {'GPU': 1.0}] within 1800"
                    " seconds. See `ray status`."
                ),
            ),
            (
                "32 GPUs",
                "RuntimeError: Failed to create placement group with 4 bundles (requiring 32.0 GPUs, 32.0 CPUs total) in 180 seconds.",
            ),
        )
    ),
    # how srun's tasks ended
    ("peer-crashed", ["node1", "task 3", "exit code 7"], ["dmesg"], STEPS + "srun: error: node1: task 3: Exited with exit code 7\n"),
    (
        "peer-crashed",
        ["node[1-2]", "tasks 0-7", "MaxRSS"],
        ["Possible: a rank died"],
        STEPS + "srun: error: node[1-2]: tasks 0-7: Killed\n",
    ),
    ("peer-crashed", ["node1", "137", "dmesg"], [], STEPS + "srun: error: node1: tasks 0,2-3: Exited with exit code 137\n"),
    ("peer-crashed", ["node2", "segmentation fault"], [], STEPS + "srun: error: node2: task 5: Exited with exit code 139\n"),
    ("scheduler-cancelled", ["node1", "sacct"], ["dmesg"], STEPS + "srun: error: node1: task 3: Terminated\n"),
    ("scheduler-time-limit", ["SIGUSR1"], ["dmesg"], STEPS + "srun: error: node1: task 3: User defined signal 1\n"),
    ("peer-crashed", ["133", "5 trap"], [], STEPS + "srun: error: node2: task 5: Exited with exit code 133\n"),
    ("peer-crashed", ["136", "8 floating point"], [], STEPS + "srun: error: node2: task 5: Exited with exit code 136\n"),
    # the number of a job step is no progress, and slurmstepd's line says more than srun's
    *(
        (
            "scheduler-cancelled",
            ["node1", "sacct"],
            ["went on"],
            f"[rank0]: epoch 2 loss 2.5\nsrun: error: node1: task 3: Terminated\nsrun: {line}\n",
        )
        for line in (
            "Force Terminated job step 81.0",
            "Force Terminating job step 81.0",
            "Terminating job step 81.0",
            "Job step 81.0 has ended",
        )
    ),
    (
        "scheduler-cancelled",
        ["STEP 81.0"],
        ["signal from outside"],
        (
            f"{STEPS}slurmstepd: error: *** STEP 81.0 ON node1 CANCELLED AT 2026-11-28T10:13:02 ***\nsrun: error: node1: task 3:"
            " Terminated\nsrun: Force Terminated job step 81.0\n"
        ),
    ),
    # a limit of the program's own is blamed only where memory was free
    ("gpu-memory-exhausted", ["19.78 GiB", "61.40 GiB"], [], FULL.format("6.00 GiB", "61.40 GiB", "")),
    *(
        ("gpu-memory-exhausted", [], ["limits itself", "memory_fraction"], FULL.format(*values))
        for values in (
            ("6.00 GiB", "412.00 MiB", ""),
            ("6.00 GiB", "412.00 MiB", "Process 77 has 60.20 GiB memory in use. "),
            ("6.00 GiB", "9.40 GiB", "Process 77 has 40.20 GiB memory in use. "),
            ("20.00 GiB", "1.40 GiB", ""),
            ("96.00 MiB", "12.00 MiB", ""),
        )
    ),
    # what a kernel's own check says
    *(
        (
            "peer-crashed",
            [wanted],
            ["num_embeddings"],
            "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion"
            f" `{condition}` failed.\n"
            + ILLEGAL.replace("an illegal memory access was encountered", "device-side assert triggered"),
        )
        for wanted, condition in (
            ("isfinite", "probability tensor contains either `inf`, `nan` or element < 0"),
            ("_assert_async", "input[0] != 0"),
            ("with_logits", "input_val >= zero && input_val <= one"),
            ("count > 0", "count > 0"),
            ("`inf`", "the scale is not `inf`"),
        )
    ),
    *(
        (
            "peer-crashed",
            ["num_embeddings", condition],
            [],
            f"/pytorch/aten/src/ATen/native/cuda/K.cu:9: f: block: [0,0,0], thread: [0,0,0] Assertion `{condition}` failed.\n",
        )
        for condition in (
            "srcIndex < srcSelectDimSize",
            "t >= 0 && t < n_classes",
            "idx_dim >= 0 && idx_dim < index_size",
            '-sizes[i] <= index && index < sizes[i] && "index out of bounds"',
        )
    ),
    # a device for which the group has no backend
    ("nccl-call-refused", ["cpu:gloo,cuda:nccl"], [], "RuntimeError: No backend type associated with device type cpu\n"),
    *(
        (
            "nccl-call-refused",
            [f"{device}:BACKEND"],
            ["cuda()", "cpu:gloo", "NCCL_DEBUG=INFO python"],
            f"RuntimeError: No backend type associated with device type {device}\n",
        )
        for device in ("npu", "meta", "hpu")
    ),
    ("nccl-call-refused", ["view_as_real"], [], "TypeError: Input tensor data type is not supported for NCCL process group: ComplexHalf\n"),
    # a node of the cluster is not always one of this job
    (
        "peer-crashed",
        ["shape mismatch"],
        [],
        "default  3m  Warning  NodeNotReady  node/pool-4  Node is not ready: pool-4\nRuntimeError: shape mismatch in forward\n",
    ),
    ("node-failed", ["kubectl cordon"], ["in your launcher"], "  Warning  NodeNotReady  2m  node-controller  Node is not ready\n"),
    (
        "rendezvous-misconfigured",
        ["no free resources", "10.4.0.9"],
        ["Degraded", "likely"],
        "Error: No available node types can fulfill resource request {'GPU': 1.0, 'node:10.4.0.9': 0.001}. Add more.\n",
    ),
    # the fabric is not ready
    *(
        ("fabric-manager-down", [wanted], ["does not look like"], log)
        for wanted, log in (
            (
                "In Progress",
                "    Fabric\n        State                             : In Progress\n        Status                            : N/A\n",
            ),
            ("failed", "* nvidia-fabricmanager.service - NVIDIA fabric manager service\n     Active: failed (Result: exit-code)\n"),
            (
                "570.133.20",
                (
                    "nv-fabricmanager[8]: fabric manager NVIDIA GPU driver interface version 570.124.06 don't match with driver version"
                    " 570.133.20. Please update.\n"
                ),
            ),
        )
    ),
]


@pytest.mark.parametrize("cause, holds, lacks, log", KINDS, ids=lambda value: value if isinstance(value, str) and "\n" not in value else "")
def test_the_line_that_leads_names_what_the_log_names(tmp_path, cause, holds, lacks, log):
    given = judged(tmp_path, log)
    assert given.found.logs.hypotheses[0].cause == cause
    shown = text(given).replace(str(tmp_path) + "/", "").replace(tmp_path.name + "/", "")
    assert [words for words in holds if words not in shown] == [] and [words for words in lacks if words in shown] == []


@pytest.mark.parametrize(
    "end", ["Training finished in 88 s\n", "`Trainer.fit` stopped: `max_steps=8` reached.\n", "saved the last checkpoint\n"]
)
@pytest.mark.parametrize(
    "out_of_data", ["[rank2]: dataloader exhausted after 8 batches", "ran out of batches at step 8", "no more data, ending the epoch"]
)
def test_a_job_that_ran_out_of_data_and_ended_is_not_broken(tmp_path, out_of_data, end):
    given = judged(tmp_path, f"init_process_group(timeout=0:30:00)\n{STEPS}{out_of_data}\n{end}")
    assert given.document.verdict == "unknown" and "uneven-minibatches" not in [h.cause for h in given.found.logs.hypotheses]


def test_a_surer_cause_explains_that_a_rank_died(tmp_path):
    node = (
        "(raylet) The node with node id: 1f and address: 10.4.0.7 and node name: 10.4.0.7 has been marked dead because it missed"
        " heartbeats.\n"
    )
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    assert [h.cause for h in judged(tmp_path, node + died).found.logs.hypotheses] == ["node-failed"]
    assert [h.cause for h in judged(tmp_path, died + "x\n" + node).found.logs.hypotheses] == ["node-failed", "peer-crashed"]


def test_no_cause_of_another_job_in_a_folder_is_dropped(tmp_path):
    faults = {
        "shm-too-small": "n1:7:21 [0] NCCL WARN Call to posix_fallocate failed : No space left on device\n",
        "gpu-memory-exhausted": "ValueError: No available memory for the cache blocks.\n",
        "scheduler-time-limit": "slurmstepd: error: *** JOB 4711 ON b01 CANCELLED AT 2026-11-28T10:13:02 DUE TO TIME LIMIT ***\n",
        "node-failed": "srun: error: Node failure on b07\n",
        "gpu-or-link-fault": "kernel: NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.\n",
        "driver-library-mismatch": "Error 803: system has unsupported display driver / cuda driver combination\n",
        "uneven-minibatches": "[rank3] dataloader exhausted\n" + WAITED,
    }
    assert len(faults) > MOST
    for name, log in faults.items():
        (tmp_path / f"{name}.log").write_text(log)
    given = case(of_logs(read.collect([str(tmp_path)]), None), "triage", "", "unknown")
    assert {*faults} <= {h.cause for h in given.found.logs.hypotheses}
    lead, shown = given.found.logs.hypotheses[0].cause, text(given)
    assert [name for name in faults if name != lead and f"in {tmp_path.name}/{name}.log" not in shown and f"{name}.log" not in shown] == []


def test_a_sentence_without_its_value_is_left_out():
    said = Advice(
        "It is <name>.", (("you", "Start <name>:", ("run <name>",)), ("you", "Look:", ("ps <pid>",))), ("by hand", "why", "ps <pid>")
    )
    assert said.filled({}) == Advice("", (("you", "Look:", ("ps PID",)),), ("by hand", "why", "ps PID"))
    assert said.filled({"name": "a", "pid": "7"}).remedy == (("you", "Start a:", ("run a",)), ("you", "Look:", ("ps 7",)))
