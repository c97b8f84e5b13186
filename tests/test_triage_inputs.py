"""What else is handed over: stacks, variables, records and dumps are named, with who reads them; guards in the job speak for themselves."""
from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.logs import kind as log_sources_source_kind
from nccl_runbook.messages import read as reader
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.judge import answer
from processes import ROOT
from triage_samples import DUPLICATE, hung
from warm_cli import read_cli

PYSPY = (
    'Process 4711: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread 4711 (idle): "MainThread"\n    wait (threading.py:320)\n'
)
ENV = "# of the job\nNCCL_DEBUG=INFO\nexport NCCL_IB_HCA=mlx5\nHOME=/home/u\nPATH=/bin\n"
RECORD = json.dumps({"schema": "nccl-runbook/record/1", "step": "07-logs", "findings": [{"title": DUPLICATE}]})
DUMP = json.dumps({"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [{"record_id": 0}]})


@pytest.mark.parametrize(
    "text, words, is_log",
    [
        (PYSPY, "stacks of py-spy", True),
        ('Thread 0x00007f1 (most recent call first):\n  File "a.py", line 3 in f\n', "stacks of faulthandler", True),
        (ENV, "variables", True),
        (RECORD, "a record", False),
        (json.dumps({"schema": "nccl-runbook/triage/1"}), "an answer", False),
        (DUMP, "a flight-recorder dump", False),
    ],
)
def test_what_is_no_log_is_named_with_its_reader(tmp_path, text, words, is_log):
    (tmp_path / "x").write_text(text)
    logs = reader.collect([str(tmp_path / "x")])
    assert logs.files[0].kind.startswith(words) and bool(logs.files[0].problem) is not is_log
    assert is_log or triage.judge(logs) == []


@pytest.mark.parametrize(
    "text",
    [
        hung(0),
        "step 1 loss 2\nstep 2 loss 1\n",
        "NCCL_DEBUG=INFO torchrun t.py\nstarting\nstep 1\n",
        '{"loss": 1.5, "step": 3}\n',
        "",
        'the record_id is "schema"\n',
        DUPLICATE,
    ],
)
def test_a_log_is_taken_as_one(tmp_path, text):
    (tmp_path / "x").write_text(text)
    assert reader.collect([str(tmp_path / "x")]).files[0].kind == ""


@given(head=st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
@settings(max_examples=100, deadline=None)
def test_any_beginning_is_named_or_read(head):
    words, is_log = log_sources_source_kind.kind(head)
    assert is_log or words


def guard(name: str, ok: str, says: str, cause: str, rank: int = 0) -> str:
    """A line as nccl_guards.py prints it."""
    cause = f'"{cause}"' if cause else "null"
    return (
        "NCCL_GUARD"
        f' {{"schema":1,"guard":"{name}","ok":{ok},"rank":{rank},"world_size":8,"local_rank":{rank},"host":"n1","pid":7'
        f',"time":1.5,"offset_s":null,"wall_s":0.1,"says":"{says}","cause":{cause},"bad_ranks":[7],"data":{{}}}}\n'
    )


@pytest.mark.parametrize(
    "name, says, cause",
    [
        ("check_minibatches", "rank 7: minibatches = 5 // 8 = 0", "uneven-minibatches"),
        ("check_device_map", "ranks 0, 1 are on one GPU: GPU-ab (n1)", "device-not-set-per-rank"),
        ("check_agreement", "rank 1: all_reduce float16 [4]; most have all_reduce float32 [4]", "collective-mismatch"),
    ],
)
def test_a_guard_that_failed_names_the_cause(tmp_path, name, says, cause):
    (tmp_path / "job.log").write_text(guard(name, "false", says, cause) + "[rank7]: nccl_guards.GuardError: " + says + "\n" + hung(1))
    told = triage.judge(reader.collect([str(tmp_path / "job.log")]))
    assert says in told[0].says, "in words, not only as the line of JSON"
    assert (
        (told[0].cause, told[0].status) == (cause, "established")
        and says in told[0].evidence[0].text
        and "peer-crashed" not in [h.cause for h in told if h.status != "possible"]
    )


@pytest.mark.parametrize(
    "line",
    [
        guard("check_minibatches", "true", "all ranks have 5", ""),
        guard("pause_trace", "null", "weight sync took 3 s", ""),
        guard("check_device_map", "false", "x", "no-such-cause"),
        "the NCCL_GUARD line says ok:false\n",
    ],
)
def test_a_guard_that_passed_names_none(tmp_path, line):
    (tmp_path / "job.log").write_text(line)
    assert [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")])) if h.status != "possible"] == []


@pytest.mark.parametrize(("ok", "causes"), [("false", {"collective-mismatch", "p2p-broken-acs-iommu"}), ("null", set()), ("true", set())])
def test_weights_that_differ_prove_no_one_cause_but_are_not_passed_over(tmp_path, ok, causes):
    (tmp_path / "job.log").write_text("step 1 loss 2.5\n" + guard("weights_digest", ok, "1 of 2 tensors differ, the first is a", ""))
    told = [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")])) if any("weights_digest" in e.text for e in h.evidence)]
    assert {h.cause for h in told} == causes and {h.status for h in told} <= {"possible"}


PASSED = [
    guard("check_device_map", "null", "no rank has a GPU: nothing to map", ""),
    guard("init_process_group_checked", "true", "2 ranks over gloo, this one on cpu", "").replace(
        '"data":{}', '"data":{"backend":"gloo","device":"cpu","device_id":false,"timeout_s":{"0 cpu":60.0}}'
    ),
    guard("weights_digest", "null", "6 tensors, 115 bytes: 9a", ""),
]


def test_a_job_with_guards_that_passed_raises_no_cause(tmp_path):
    """The words of their own lines once gave "the GPU of a rank was guessed", as `device_id` stands in them."""
    (tmp_path / "job.log").write_text(
        "".join(PASSED) * 3 + "step 1 loss 2.5\nUserWarning: Failed to initialize NumPy: No module named 'numpy'\n"
    )
    told = {h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))}
    assert not told & {"device-binding", "bus-id-collision", "gloo-carries-traffic", "per-parameter-sync"}, told


def test_the_command_says_what_each_file_is(tmp_path):
    (tmp_path / "job.env").write_text(ENV)
    (tmp_path / "fr.json").write_text(DUMP)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(json.loads(DUMP), protocol=2))
    (tmp_path / "weights.pt").write_bytes(pickle.dumps([1.0], protocol=4))
    told = read_cli("triage", tmp_path, "--fail-on", "never").stdout
    assert "job.env is variables: `nccl-runbook env` judges them" in told and "weights.pt: is a binary file" in told
    assert "`nccl-runbook hang` reads it" not in told, "hang has read them"
    assert json.loads(read_cli("triage", tmp_path, "--json").stdout)["dumps"]


@pytest.mark.parametrize(("folder", "verdict", "code", "rank"), [
    ("skip", "broken", 3, "rank 2"), ("slow", "degraded", 3, "rank 3"), ("none", "healthy", 0, "4 ranks")])
def test_dumps_alone_lead_whatever_they_show(folder: str, verdict: str, code: int, rank: str) -> None:
    """As `hang` and `diagnose` judge them; what `hang` has read is not unread."""
    told = read_cli("triage", ROOT / "tests/data/hang" / folder, "--json")
    answer = json.loads(told.stdout)
    assert (answer["verdict"], answer["exit_code"], told.returncode) == (verdict, code, code) and rank in answer["sentence"]
    assert [read_cli(door, ROOT / "tests/data/hang" / folder).returncode for door in ("hang", "diagnose")] == [code, code]
    assert not [f for f in answer["files"] if f["problem"]] and "nccl-runbook hang" not in told.stdout


def test_what_the_shell_gives_for_a_command_is_read_once_as_standard_input_is(tmp_path):
    (tmp_path / "a.log").write_text(DUPLICATE)
    (tmp_path / "b.log").write_text(hung(1))

    def asked(arguments):
        return subprocess.run(
            ["bash", "-c", f"{sys.executable} -m nccl_runbook triage {arguments}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
            timeout=60,
        )

    told = json.loads(asked("<(cat a.log) <(cat b.log) --json").stdout)
    assert [f["lines"] > 0 and not f["problem"] for f in told["files"]] == [True, True] and "Duplicate GPU" in told["hypotheses"][0][
        "evidence"
    ][0]["text"]
    twice = asked("<(cat a.log) --against b.log")
    assert twice.returncode == 2 and "is a pipe, a socket or a device" in twice.stderr, "the two profiles need it a second time"


def test_a_folder_without_a_file_was_named_and_is_not_taken_for_no_log(tmp_path):
    (tmp_path / "run" / "rank0").mkdir(parents=True)
    (tmp_path / "run" / "rank0" / ".hidden").write_text("x")
    empty = answer(reader.collect([str(tmp_path / "run")])).findings[-1]
    assert empty.id == "log-not-read" and "run: contains no readable file" in empty.title
    (tmp_path / "run" / "out.log").write_text("KeyError: 'labels'\n")
    assert not [f for f in answer(reader.collect([str(tmp_path / "run")])).findings if f.id == "log-not-read"]


def test_the_fuzzers_documented_line_works_from_anywhere(tmp_path):
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fuzz_triage.py"), "0.1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=plain,
        timeout=120,
    )
    assert told.returncode == 0 and "none crashed" in told.stdout, told.stderr
