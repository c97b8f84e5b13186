"""An exception that a job survived is no fault, a later end is one; and the verdict of jobs that ended without a known cause."""
from __future__ import annotations

import json

import pytest
from nccl_runbook.core.findings import Severity
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import sources
from nccl_runbook.messages import read as reader
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer
from triage_samples import hung
from warm_cli import read_cli

OOM = (
    'Traceback (most recent call last):\n  File "fit.py", line 9, in step\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate'
    " 768.00 MiB. GPU 2 has a total capacity of 47.50 GiB of which 120.00 MiB is free.\n"
)
OWN = "Traceback (most recent call last):\nKeyError: 'weight_7'\n"


def steps(first: int, last: int) -> str:
    return "".join(f"step {n} loss {n / 7:.3f}\n" for n in range(first, last + 1))


def answer(tmp_path, text: str) -> Answer:
    (tmp_path / "job.log").write_text(text)
    return triage.answer(reader.collect([str(tmp_path / "job.log")]))


def verdict(given: Answer) -> tuple[str, bool]:
    """(first cause or empty, whether a finding is broken)."""
    return given.hypotheses[0].cause if given.hypotheses else "", any(f.severity is Severity.BROKEN for f in given.findings)


@pytest.mark.parametrize("text", [
    steps(1, 3) + OOM + steps(4, 9),
    steps(1, 3) + OOM + steps(4, 5) + "training finished\n",
    steps(1, 3) + OOM + steps(4, 9) + OOM + steps(10, 14) + "done\n",
    "".join(f"[rank1] {line}\n" for line in (steps(1, 2) + OOM + steps(3, 6)).splitlines()),
    steps(1, 3) + OWN + steps(4, 9),
])
def test_an_exception_that_a_job_survived_is_no_fault(tmp_path, text):
    given = answer(tmp_path, text)
    assert verdict(given) in [("benign", False), ("", False)] and given.logs.failed is None and given.logs.raised is None


@pytest.mark.parametrize("text", [
    steps(1, 9) + OOM,
    steps(1, 3) + OOM + steps(4, 9) + OOM,
    steps(1, 3) + OOM + steps(4, 9) + "failed (exitcode: 1) local_rank: 1 (pid: 992) of binary: python\n",
    steps(1, 3) + OOM + steps(4, 9) + "srun: error: n8: task 3: Exited with exit code 1\n",
    steps(1, 3) + OOM + steps(4, 9) + hung(1),
    "[rank1]: " + OOM.splitlines()[-1] + "\n" + "".join(f"[rank0] step {n} loss 2\n" for n in range(8)),
])
def test_the_same_exception_is_one_if_the_job_may_have_ended_by_it(tmp_path, text):
    assert verdict(answer(tmp_path, text)) == ("gpu-memory-exhausted", True)


@pytest.mark.parametrize(("text", "lead"), [
    (steps(1, 3) + OWN * 3 + steps(4, 7), ""),
    # one rank of several in a log without ranks
    (steps(1, 9) + OWN + "step 10 loss 1.4\n" * 7, "peer-crashed"),
    # what is printed when a program ends, and by the next one
    (steps(1, 9) + OOM + "wandb: train/global_step 20\nwandb: train/epoch 3\nwandb: train/loss 2.11\n", "gpu-memory-exhausted"),
    (steps(1, 9) + OOM + "Done.\n", "gpu-memory-exhausted"), (steps(1, 9) + OOM + steps(1, 4), "gpu-memory-exhausted"),
    (steps(1, 3) + "line 4: 811 Segmentation fault (core dumped) python fit.py\n" + steps(4, 9), "peer-crashed")])
def test_only_steps_with_higher_numbers_show_that_a_job_survived(tmp_path, text, lead):
    assert verdict(answer(tmp_path, text)) in ([(lead, True)] if lead else [("", False), ("benign", False)])


def test_an_exception_that_one_rank_survived_is_not_the_end_of_another(tmp_path):
    survived = "".join(f"[rank0]: {line}\n" for line in (steps(1, 3) + OOM + steps(4, 9)).splitlines())
    given = answer(tmp_path, survived + "[rank1]: KeyError: 'weight_7'\n")
    assert given.logs.failed is not None and given.logs.failed.rank == 1


def test_a_later_crash_leads_over_what_the_job_survived(tmp_path):
    given = answer(tmp_path, steps(1, 3) + OOM + steps(4, 9) + OWN)
    assert verdict(given) == ("peer-crashed", True) and "weight_7" in given.hypotheses[0].says
    assert (
        answer(
            tmp_path, steps(1, 3) + OWN + steps(4, 9) + "NVRM: Xid (PCI:0000:3b:00): 79, pid=4, name=python, GPU has fallen off the bus.\n"
        )
        .hypotheses[0]
        .cause
        == "gpu-or-link-fault"
    )


HUGGING = "".join(f"{{'loss': {2 - n / 9:.2f}, 'epoch': 0.{n}}}\n" for n in range(4, 8))
TOPOLOGY = "w4:61:61 [0] graph/xml.cc:790 NCCL WARN Could not open XML topology file /opt/site.xml : No such file or directory\n"
TIME_LIMIT = "slurmstepd: error: *** JOB 4077 ON w4 CANCELLED AT 2026-04-04T04:04:04 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize(("text", "lead"), [
    # after its end by the scheduler, a job has seconds for more steps, and for errors that come of the end
    *((steps(1, 3) + TIME_LIMIT + steps(4, 7) + last, "scheduler-time-limit") for last in ("srun: error: w4: task 0: Killed\n", OWN)),
    (TOPOLOGY + steps(1, 1) + "srun: error: w5: task 9: Segmentation fault (core dumped)\n", "topology-file-bad"),
    (steps(1, 3) + TOPOLOGY + OWN, "topology-file-bad"),
    # the scheduler's reason is one of its own
    (steps(1, 3) + OOM + steps(4, 9) + TIME_LIMIT, "scheduler-time-limit"), (OOM + HUGGING + TIME_LIMIT, "scheduler-time-limit"),
    (steps(1, 3) + OOM + TIME_LIMIT, "gpu-memory-exhausted"),
])
def test_what_leads_after_steps_that_followed_a_message(tmp_path, text, lead):
    assert verdict(answer(tmp_path, text)) == (lead, True)


@pytest.mark.parametrize(
    "text",
    ["      Reason:       OOMKilled\n" + steps(4, 6), "Warning  OOMKilled  pod/w-2  restarting\n" + steps(4, 6) + "Training finished\n"],
)
def test_a_container_that_was_killed_and_started_again_is_no_fault(tmp_path, text):
    assert verdict(answer(tmp_path, steps(1, 3) + text))[1] is False
    assert verdict(answer(tmp_path, steps(1, 3) + text.splitlines()[0])) == ("peer-crashed", True)


def test_a_server_that_answers_on_survived_a_bad_request(tmp_path):
    bad = (
        'ERROR 07-07 11:00:00 [serving.py:24] Traceback (most recent call last):\nERROR 07-07 11:00:00 [serving.py:24]   File "serving.py",'
        " line 24, in f\nERROR 07-07 11:00:00 [serving.py:24] ValueError: 9001 tokens are too many\n"
    )
    served = 'INFO:     10.0.0.7:40114 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    assert verdict(answer(tmp_path, bad + served * 4))[1] is False and verdict(answer(tmp_path, served * 4 + bad))[1] is True


def test_a_bare_result_code_of_a_job_that_ended_is_broken_and_asks_for_the_warning(tmp_path):
    code = "[rank3]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error, NCCL version 2.26.2\n"
    given = answer(tmp_path, code)
    lead = given.findings[0]
    assert (given.hypotheses, lead.id, lead.severity) == ([], "no-cause-in-log", Severity.BROKEN) and "NCCL_DEBUG=WARN" in lead.remedy[
        0
    ].lines[0]
    (tmp_path / "job.log").write_text(steps(1, 3))
    words = triage.answer(reader.collect([str(tmp_path / "job.log")], "what does `unhandled cuda error` mean?"))
    assert words.findings[0].severity is not Severity.BROKEN


def test_behind_a_launchers_prefix_a_message_begins(tmp_path):
    given = answer(tmp_path, "(ActorModelRayActor pid=90311, ip=172.31.144.201) Traceback (most recent call last):\n"
                             "(ActorModelRayActor pid=90311, ip=172.31.144.201) AssertionError: loss is NaN at step 40\n")
    assert verdict(given) == ("peer-crashed", True) and "loss is NaN" in given.hypotheses[0].says and given.hypotheses[0].status == "likely"


def test_progress_bars_without_a_line_end_are_read_to_their_end(tmp_path):
    bars = b"".join(b"\r %d/900000 [00:01<00:02, 3.1it/s]" % n for n in range(550_000)) + b"\r" + OOM.splitlines()[-1].encode() + b"\r"
    (tmp_path / "bars.log").write_bytes(bars)
    [(rows, left_out)] = [(sum(map(len, text.rows())), text.left_out) for text in sources([str(tmp_path / "bars.log")], None, Limit(60))]
    assert len(bars) > 17 << 20 and rows > 550_000 and not left_out
    assert triage.answer(reader.collect([str(tmp_path / "bars.log")])).hypotheses[0].cause == "gpu-memory-exhausted"


@pytest.mark.parametrize(
    "words, command",
    [
        ("slow on 3 nodes", "hosts"),
        ("throughput halves between two hosts, slow", "hosts"),
        ("multi-node training is slow", "hosts"),
        ("weights arrive too slowly", "sync"),
        ("updating the weights of SGLang takes too long", "sync"),
        ("weight broadcast is slow", "sync"),
        ("slower since last month", "--against"),
        ("our job was faster before the upgrade", "--against"),
        ("tokens per second dropped after we changed the image", "--against"),
    ],
)
def test_words_about_slowness_lead_to_the_command_that_looks_into_them(words, command):
    told = json.loads(read_cli("diagnose", words, "--json").stdout)
    assert f" {command} " in f"{told['next']['line']} " and told["causes"] == []


SUSPENDED = "slurmstepd: error: *** STEP 884121.0 ON node03 SUSPENDED AT 2026-03-18T02:11:40 ***\n"


@pytest.mark.parametrize(("after", "resumed"), [
    ("[rank0]: step 2\n[rank0]: step 3\n", True),
    ("[rank0]: step 2\n[rank1]: step 2\n", False),  # each only ended the step it was in
    ("[rank0]: step 2\n[rank0]: step 3\n[rank1]: RuntimeError: the end\n", False),
    ("", False),
])
def test_a_line_of_the_scheduler_is_background_if_ranks_went_on_after_it(tmp_path, after, resumed):
    given = answer(tmp_path, "[rank0]: step 1\n[rank1]: step 1\n" + SUSPENDED + after)
    assert given.logs.seen["slurm-job-suspended"].resumed is resumed
    assert ("peer-stopped" in [h.cause for h in given.hypotheses]) is not resumed


LIMIT = "slurmstepd: error: *** JOB 7719 ON k3 CANCELLED AT 2026-02-11T06:00:09 DUE TO TIME LIMIT ***\n"
PREEMPTED = "slurmstepd: error: *** STEP 81.0 ON k3 CANCELLED AT 2026-02-11T06:00:09 DUE TO PREEMPTION ***\n"
LOW = "  Warning  Evicted  2m  kubelet  The node was low on resource: memory. Threshold quantity: 100Mi, available: 71Mi.\n"


@pytest.mark.parametrize(("ended", "cause"), [
    (LIMIT, "scheduler-time-limit"),
    (PREEMPTED, "scheduler-preempted"),
    ("srun: error: Node failure on k4\n", "node-failed"),
    (LOW, "scheduler-evicted"),
])
def test_one_late_step_does_not_show_that_a_job_survived_its_scheduler(tmp_path, ended, cause):
    assert verdict(answer(tmp_path, steps(1, 3) + ended + steps(4, 4))) == (cause, True)
    assert verdict(answer(tmp_path, steps(1, 3) + ended + steps(4, 6))) in [("", False), ("benign", False)]


FRAMES = 'Traceback (most recent call last):\n  File "/w/job.py", line 61, in __del__\n    self.close()\n'


@pytest.mark.parametrize(
    "text",
    [
        "Exception ignored in: <function Pool.__del__ at 0x7fd1>\n" + FRAMES + "AttributeError: no _pool\n",
        "Exception ignored while calling deallocator <function Pool.__del__ at 0x7fd1>:\n"
        + FRAMES
        + "OSError: [Errno 9] Bad file descriptor\n",
        "".join(f"[rank2]: {line}\n" for line in ("Exception ignored in: <function Pool.__del__>\n" + FRAMES + "KeyError: 3").splitlines()),
        *(
            "".join(
                f"{before}{line}\n" for line in ("Exception ignored in: <function Pool.__del__>\n" + FRAMES + "KeyError: 3").splitlines()
            )
            for before in ("[default2]:", "(Worker pid=4071, ip=10.0.4.9) ")
        ),
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>'>\nBrokenPipeError: [Errno 32] Broken pipe\n",
    ],
)
def test_what_a_destructor_raises_ends_no_rank(tmp_path, text):
    given = answer(tmp_path, steps(1, 3) + text)
    assert verdict(given) in [("", False), ("benign", False)] and given.logs.raised is None and given.logs.failed is None
    given = answer(tmp_path, steps(1, 3) + text + FRAMES + "ValueError: no such layer\n")
    assert verdict(given) == ("peer-crashed", True) and "ValueError" in given.logs.raised.text


@pytest.mark.parametrize(
    ("text", "cause", "broken"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n", "scheduler-refused", True),
        ("Reason:               Evicted\n", "scheduler-evicted", True),
        (
            "  what():  [TM][ERROR] CUDA runtime error: peer access is not supported between these two devices /src/turbomind\n",
            "engine-allreduce-needs-p2p",
            True,
        ),
        (
            "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED on 2 GPU NVIDIA-A100-SXM4-80GB-MIG-3g.40gb\n",
            "vgpu-or-mig-unsupported",
            True,
        ),
        (
            "[HAMI-core ERROR (pid:565 thread=140267 multiprocess_memory_limit.c:831)]: Illegal device id: 850725928\n",
            "vgpu-or-mig-unsupported",
            False,
        ),  # may go on
    ],
)
def test_a_likely_cause_is_broken_if_it_or_its_line_ends_the_job(tmp_path, text, cause, broken):
    assert verdict(answer(tmp_path, text)) == (cause, broken)
