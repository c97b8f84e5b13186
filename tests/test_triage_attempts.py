"""Logs of jobs whose launcher started the ranks again: what a restart survived leads no more, and what ended the last attempt does."""
from __future__ import annotations

import pytest
from nccl_runbook.messages import clues, read
from nccl_runbook.messages.judge import fires
from nccl_runbook.triage.judge import findings, judge

AGENT = "I1130 04:1{}:00.1 77 torch/distributed/elastic/agent/server/api.py:919] [default] Worker group FAILED. {}/3 attempts left;"
AGAIN = AGENT + " will restart worker group\n"
RETRY = "[FailurePolicy] Decision: FailureDecision.RETRY, Error source: worker group, Error count / maximum errors allowed: 1/3\n"
REQUEUED = "Requeued SLURM job: 5512\n"
TRACE = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/job/{1}", line 40, in step\n[rank{0}]: {2}\n'
OVER = (
    "E1130 04:11:00.1 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: {} (pid: 90{}) of binary:"
    " python\n"
)
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 39.50 GiB of which 1.10 GiB is"
    " free."
)
LOST = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def steps(first: int, last: int, who: str = "") -> str:
    return "".join(f"{who}step {step} loss 2.5\n" for step in range(first, last))


def raised(rank: int, error: str, file: str = "train.py") -> str:
    return TRACE.format(rank, file, error) + OVER.format(rank, rank)


def judged(tmp_path, log: str, name: str = "job.log"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(log)
    logs = read.collect([str(tmp_path)])
    return logs, judge(logs)


SURVIVED = {
    "torchrun, steps without a rank": steps(0, 9) + raised(3, "OSError: shard 7 ended early") + AGAIN.format(1, 3) + steps(6, 14),
    "torchrun, an error of a GPU": steps(0, 9, "[rank0]: ") + raised(2, ILLEGAL) + AGAIN.format(1, 3) + steps(8, 14, "[rank0]: "),
    "twice": steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3) + raised(2, "KeyError: 'x'") + AGAIN.format(2, 2) + steps(8, 14),
    "Ray": steps(0, 9) + raised(1, "RuntimeError: bad sample") + RETRY + steps(5, 14),
    "Slurm": steps(0, 9) + raised(1, FULL) + REQUEUED + steps(5, 14),
    "done without new steps": steps(0, 9) + raised(1, "ValueError: flush") + AGAIN.format(1, 3) + steps(8, 9) + "Training finished\n",
    "a shell's loop": steps(0, 9) + raised(1, "OSError: [Errno 5] Input/output error") + steps(5, 14),
}


@pytest.mark.parametrize("log", SURVIVED.values(), ids=SURVIVED)
def test_an_error_before_a_restart_after_which_the_job_went_further_is_no_fault(log, tmp_path):
    logs, ranked = judged(tmp_path, log)
    assert [h.cause for h in ranked if h.cause != "benign"] == []
    assert "log-points-to-cause" not in [f.id for f in findings(logs, ranked) if f.cause != "benign"]


# cause, what its first line holds, log
ENDED = {
    "went further, then another error": (
        "peer-crashed",
        "KeyError",
        steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3) + steps(8, 14) + raised(2, "KeyError: 'mask'"),
    ),
    "went further, then the same error on another rank": (
        "gpu-memory-exhausted",
        "GPU 1",
        steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3) + steps(8, 14) + raised(2, FULL),
    ),
    "another error at once": (
        "peer-crashed",
        "invalid load key",
        steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3) + raised(0, "pickle.UnpicklingError: invalid load key, 'x'."),
    ),
    "killed in the last attempt": (
        "peer-crashed",
        "OOMKilled",
        steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3) + steps(7, 8) + "      Reason:       OOMKilled\n      Exit Code:    137\n",
    ),
    "only the loss of a peer in the last attempt": (
        "gpu-memory-exhausted",
        "CUDA out of memory",
        steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3) + raised(0, LOST),
    ),
    "nothing after the restart": ("gpu-memory-exhausted", "CUDA out of memory", steps(0, 9) + raised(1, FULL) + AGAIN.format(1, 3)),
    "the hardware failed, and its ranks never came back": (
        "gpu-or-link-fault",
        "Xid",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"
        + raised(1, ILLEGAL) + AGAIN.format(1, 3) + raised(1, "RuntimeError: No CUDA GPUs are available"),
    ),
}


@pytest.mark.parametrize(("cause", "words", "log"), ENDED.values(), ids=ENDED)
def test_what_ended_the_last_attempt_leads(cause, words, log, tmp_path):
    logs, ranked = judged(tmp_path, log)
    assert ranked[0].cause == cause and words in " ".join(e.text for e in ranked[0].evidence)
    assert ranked[0].status in ("likely", "established") or logs.raised


def test_the_first_attempt_is_possible_behind_the_last_one(tmp_path):
    _, ranked = judged(tmp_path, ENDED["another error at once"][2])
    assert [(h.cause, h.status) for h in ranked][1] == ("gpu-memory-exhausted", "possible")


def test_a_container_of_compose_is_no_part_of_its_lines(tmp_path):
    logs, ranked = judged(tmp_path, "".join(f"train-2  | {line}\n" for line in (steps(0, 3) + raised(5, "KeyError: 'mask'")).splitlines()))
    assert (logs.raised.rank, logs.raised.text, ranked[0].cause) == (5, "KeyError: 'mask'", "peer-crashed")


SLOWLY = (
    "n1:1:2 [0] NCCL INFO NCCL_IB_HCA set to mlx5\nn1:1:2 [0] NCCL INFO NET/IB : No device found.\n"
    "n1:1:2 [0] NCCL INFO Using network Socket\n"
)


@pytest.mark.parametrize(
    "end",
    [
        "      Reason:       OOMKilled\n      Exit Code:    137\n",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=31.0. Some of the step tasks have been OOM Killed.\n",
        "slurmstepd: error: *** JOB 31 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO TIME LIMIT ***\n",
        raised(1, FULL),
    ],
)
def test_what_makes_a_job_slow_does_not_lead_before_what_ended_it(end, tmp_path):
    logs, ranked = judged(tmp_path, SLOWLY + steps(0, 9) + end)
    assert ranked[0].cause != "net-socket-fallback" and ranked[0].status != "possible"
    shown = [f for f in findings(logs, ranked) if f.cause == "net-socket-fallback"]
    assert [f.severity.value for f in shown] in ([], ["note"])


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("ray.exceptions.OutOfMemoryError: 2 worker(s) were killed due to the node running low on memory.\n", "peer-crashed"),
        (
            "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Learner.run() (pid=12, ip=10.1.1.4)\n"
            '  File "/job/learn.py", line 8, in run\n'
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
            "peer-crashed",
        ),
        (
            "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons\n"
            "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Learner.run() (pid=12, ip=10.1.1.4)\n",
            "peer-crashed",
        ),
        (
            "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Learner.run() (pid=12, ip=10.1.1.4)\n"
            f'  File "/job/learn.py", line 8, in run\n{FULL}\n',
            "gpu-memory-exhausted",
        ),
    ],
)
def test_memory_of_the_host_and_of_the_gpu_under_ray(log, cause, tmp_path):
    _, ranked = judged(tmp_path, "Traceback (most recent call last):\n" + log)
    assert (ranked[0].cause, ranked[0].status) == (cause, "likely")
    assert cause != "peer-crashed" or "gpu-memory-exhausted" not in [h.cause for h in ranked]


XID = "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, name=python, GPU has fallen off the bus.\n"
ECC = "[rank1]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
WAITED = (
    "[rank0]:[E304 08:40:32.123 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80,"
    " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)
GUARD = '[rank3]: NCCL_GUARD {"schema":1,"guard":"sums","ok":false,"says":"wrong sums","cause":"gpu-or-link-fault"}\n'
NOTICE = "the ranks went on after the restart"


@pytest.mark.parametrize("fault", [XID, ECC, GUARD])
@pytest.mark.parametrize(
    ("end", "lead"),
    [
        ("", "gpu-or-link-fault"),
        ("Training finished\n", "gpu-or-link-fault"),
        (OVER.format(0, 0), "gpu-or-link-fault"),
        (WAITED, "gpu-or-link-fault"),
        (raised(0, FULL), "gpu-memory-exhausted"),
        (raised(0, "KeyError: 'mask'"), "peer-crashed"),
        ("      Reason:       OOMKilled\n      Exit Code:    137\n", "peer-crashed"),
    ],
)
def test_no_restart_undoes_a_fault_of_the_hardware(fault, end, lead, tmp_path):
    logs, ranked = judged(tmp_path, steps(0, 9) + fault + OVER.format(1, 1) + AGAIN.format(1, 3) + steps(8, 14) + end)
    status = {h.cause: h.status for h in ranked}
    assert (ranked[0].cause, status["gpu-or-link-fault"]) == (lead, "established" if lead == "gpu-or-link-fault" else "likely")
    notes = [f.title for f in findings(logs, ranked) if f.id == "started-again"]
    assert len(notes) == 1 and (NOTICE in notes[0]) is (lead == "gpu-or-link-fault")


@pytest.mark.parametrize("end", [WAITED, f"[rank0]: {LOST}\n"])
def test_evidence_of_two_attempts_does_not_meet(end, tmp_path):
    """The rank that waited in the second attempt did not wait for the one that raised in the first."""
    log = steps(0, 3, "[rank0]: ") + raised(1, "KeyError: 'mask'") + AGAIN.format(1, 3) + steps(1, 2, "[rank0]: ") + end
    logs, ranked = judged(tmp_path, log)
    again = logs.again[0].line
    assert ranked[0].cause == "peer-crashed" and "KeyError" in ranked[0].evidence[0].text
    assert [h.cause for h in ranked if len({line.line > again for line in h.evidence}) > 1] == []


def test_what_must_stand_beside_a_message_is_no_error_of_another_attempt(tmp_path):
    first = "IndexError: list index out of range\n"
    second = "    physical_device_id = device_ids[device_id]\n"
    clue = next(c for c in clues.clues() if c.id == "torchrun-physical-device-id-ids")
    one, _ = judged(tmp_path / "a", first + second)
    two, _ = judged(tmp_path / "b", first + OVER.format(1, 1) + AGAIN.format(1, 3) + second)
    assert clue.also[0] in one.seen and clue.also[0] in two.seen
    assert fires(clue, one) and not fires(clue, two)


KILLED = [
    "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\n",
    "kernel: Memory cgroup out of memory: Killed process 4711 (python) total-vm:99kB\n",
]


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize(("after", "survived"), [(0, False), (1, False), (2, True), (9, True)])
def test_one_late_step_is_no_sign_that_a_killed_process_was_not_needed(killed, after, survived, tmp_path):
    _, ranked = judged(tmp_path, steps(0, 4) + killed + steps(4, 4 + after))
    assert ([h.cause for h in ranked if h.cause != "benign"] == []) is survived


@pytest.mark.parametrize("why", ["DUE TO TIME LIMIT ***", "DUE TO PREEMPTION ***"])
@pytest.mark.parametrize("error", ["KeyError: 'mask'", "ZeroDivisionError: division by zero", "OSError: shard 7 ended early"])
def test_the_scheduler_ends_what_an_error_of_a_rank_had_stopped(error, why, tmp_path):
    end = f"slurmstepd: error: *** JOB 31 ON n1 CANCELLED AT 2026-11-30T10:00:00 {why}\n"
    _, ranked = judged(tmp_path / "a", steps(0, 3) + raised(1, error) + end)
    assert (ranked[0].cause, ranked[0].status) == ("peer-crashed", "likely") and error in ranked[0].evidence[0].text
    _, ranked = judged(tmp_path / "b", steps(0, 3) + end + raised(1, error))
    assert ranked[0].cause in ("scheduler-time-limit", "scheduler-preempted")
