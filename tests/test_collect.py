"""What the next run of a job should leave: the lines of its launcher and its torch, and nothing that is there or set already."""
from __future__ import annotations

import re

import pytest
from nccl_runbook.case.answer import Case, case
from nccl_runbook.case.given import Material
from nccl_runbook.case.read import gather
from nccl_runbook.causes.tables import table, version
from nccl_runbook.causes.variables import variables

HANG = (
    f"[rank{0}]:[E1] ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,"
    " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
)
INFO = (
    "n1:7:7 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 - Init START\nn1:7:7 [0] NCCL"
    " INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM\nn1:7:7 [0] NCCL INFO Using network Socket\n"
)
SAYS = {"srun": "slurmstepd: error: x\n", "torchrun": "torchrun started\n", "ray": "ray::Trainer x\n", "deepspeed": "[launch.py:12] x\n",
        "beaker": "beaker x\n", "kubernetes": "kubectl x\n", "docker": "docker x\n"}


def judged(tmp_path, log: str, script: str = "") -> Case:
    (tmp_path / "job.log").write_text(log)
    (tmp_path / "job.sh").write_text(script)
    brought = Material(logs=(str(tmp_path / "job.log"),), scripts=(str(tmp_path / "job.sh"),) if script else ())
    return case(gather(brought, None, 0, lambda pids: None), "diagnose", "", "unknown")


def collected(tmp_path, log: str, script: str = "") -> str:
    return "\n".join(judged(tmp_path, log, script).collect)


def names(text: str) -> set[str]:
    return {name for name in re.findall(r"[A-Z][A-Z0-9_]{5,}", text) if name in variables()}


@pytest.mark.parametrize("launcher", SAYS)
def test_every_launcher_gets_all_that_is_missing_with_a_folder_that_it_has(tmp_path, launcher):
    answer = judged(tmp_path, HANG + SAYS[launcher])
    lines = "\n".join(answer.collect)
    place = table("case/collect")["where"].get(launcher, table("case/collect")["where"]["any"])
    assert names(lines) >= {
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
    }
    assert (
        place["look"].partition("   #")[0] in f"{answer.test and answer.test.line}\n{lines}"
    ), "said once, as the next test or among these lines"
    assert lines.count(place["dir"]) >= 2 and lines.endswith(place["read"]) and "{dir}" not in lines
    assert "PYTHONFAULTHANDLER" in names(lines)


STARTS = {
    "srun": "#!/bin/bash\n#SBATCH --nodes=2\nsrun python job.py\n",
    "torchrun": "#!/bin/bash\n# not for docker run or srun \ntorchrun --nproc-per-node 4 job.py\n",
    "ray": "#!/bin/bash\n#SBATCH --nodes=2\nray start --head\npython job.py\n",
    "deepspeed": "#!/bin/bash\nA=1 deepspeed --num_gpus 4 job.py\n",
    "beaker": "#!/bin/bash\ngantry run --gpus 8 -- torchrun job.py\n",
    "docker": "#!/bin/bash\ndocker run --gpus all image torchrun job.py\n",
    "": "#!/bin/bash\npython job.py  # Ray\n",
}


@pytest.mark.parametrize("launcher", STARTS)
def test_a_script_names_the_launcher_that_the_log_does_not(tmp_path, launcher):
    lines = "\n".join(judged(tmp_path, HANG, STARTS[launcher]).collect)
    place = table("case/collect")["where"].get(launcher, table("case/collect")["where"]["any"])
    assert place["dir"] in lines and lines.endswith(place["read"])
    assert (".deepspeed_env" in lines) == (launcher == "deepspeed")
    remedies = [line for c in judged(tmp_path, HANG, STARTS[launcher]).document.causes for r in c.remedy for line in r.lines]
    assert not [line for line in remedies if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" in line], "the recipe stands once"


def test_the_log_knows_better_than_the_script_what_started_the_ranks(tmp_path):
    assert judged(tmp_path, HANG + SAYS["ray"], STARTS["srun"]).found.logs.logs.launcher == "ray"


@pytest.mark.parametrize(("torch", "expected"), [
    ("2.1.0", {"NCCL_DEBUG", "NCCL_DEBUG_FILE"}), ("2.8.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}),
    ("2.9.0", {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}), ("2.15.0", {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"})])
def test_names_are_those_of_the_torch_that_the_job_printed(tmp_path, torch, expected):
    found = names(collected(tmp_path, f"[rank0] torch version: {torch}+cu128\n[0] PyTorch version {torch}\n{HANG}"))
    recorder = {n for n in found if n.startswith("TORCH_")}
    assert expected <= found and (torch == "2.1.0") == (not recorder)


def test_every_version_reads_the_names_that_it_is_given():
    for row in table("case/collect")["row"]:
        for name in (pair.partition("=")[0] for pair in row["set"] if pair.partition("=")[0] in variables()):
            known = variables()[name]
            assert not known.since or known.reader.version_of != "torch" or version(known.since) <= version(row["since"])


def test_nothing_is_advised_that_is_there_or_set(tmp_path):
    assert "NCCL_DEBUG" in names(collected(tmp_path, HANG)) and "NCCL_DEBUG" not in names(collected(tmp_path, HANG + INFO))
    script = "export NCCL_DEBUG={} TORCH_NCCL_TRACE_BUFFER_SIZE=20 PYTHONFAULTHANDLER=1\nsrun python t.py\n"
    for level, again in (("WARN", True), ("INFO", False), ("TRACE", False)):
        found = collected(tmp_path, HANG, script.format(level))
        assert ("NCCL_DEBUG" in names(found)) == again and not {"TORCH_NCCL_TRACE_BUFFER_SIZE", "PYTHONFAULTHANDLER"} & names(found)
    new = collected(tmp_path, HANG, "export TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/d/x_ TORCH_NCCL_DUMP_ON_TIMEOUT=1\n")
    assert not {n for n in names(new) if n.startswith("TORCH")}, "the new names of what is set"


def test_nothing_is_collected_where_nothing_is_missing(tmp_path):
    dup = "n1:7:7 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000\n"  # no dump decides that
    assert not collected(tmp_path, dup)


@pytest.mark.parametrize(
    "log",
    [
        "the quick brown fox\n" * 9,  # no log of a job
        "[2026-03-01 05:02:11] building the model on 16 procs\n[2026-03-01 05:02:50] sharding with FSDP2\n",  # nor this, for the tool
        "it 4 loss 3.3\nit 5 loss nan\n",
        "",  # a job that hangs before it prints leaves an empty file
        (
            "[rank0]: UserWarning: Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n{'loss': 1.2, 'epoch':"
            " 0.4}\n"
        ),
    ],
)  # benign
def test_an_answer_without_a_cause_says_what_to_collect(tmp_path, log):
    answer = judged(tmp_path, log)
    assert answer.document.verdict == "unknown" and any(line.startswith("nccl-runbook look") for line in answer.collect)
    assert {"PYTHONFAULTHANDLER", "NCCL_DEBUG", "TORCH_NCCL_DUMP_ON_TIMEOUT"} <= names("\n".join(answer.collect))


def test_a_file_that_cannot_be_read_asks_for_no_other_run(tmp_path):
    assert not collected(tmp_path, "\0\1\2" * 999)


CRASH = "Fatal Python error: {}\n\nCurrent thread 0x00007f0000001640 (most recent call first):\n  File \"/w/t.py\", line 9 in step\n"


@pytest.mark.parametrize(("signal", "is_read"), [("Segmentation fault", False), ("Bus error", False), ("Illegal instruction", False),
                                                 ("Aborted", True)])  # the watchdog ends a rank that waits by an abort
def test_the_stack_of_a_crash_shows_no_hang_and_is_not_collected_again(tmp_path, signal, is_read):
    answer = judged(tmp_path, CRASH.format(signal))
    assert ("06-timeouts" in [r.step for r in answer.found.records]) == is_read
    assert "PYTHONFAULTHANDLER" not in names("\n".join(answer.collect))
