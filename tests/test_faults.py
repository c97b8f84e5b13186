"""The faults of tests/faults.py whose jobs end within a second or two, told by their log alone; all of them, and the live looks: python tests/faults.py."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from live_worlds import free_port
from nccl_runbook.causes.causes import causes
from training import Training
from warm_cli import read_cli

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
# of FAULTS: what its ranks are given besides; "" takes a variable away
QUICK: dict[str, dict[str, str]] = {
    "raises-shell": {}, "raises-spawn": {}, "loss-is-nan": {}, "wrong-argument": {}, "host-memory": {}, "open-files": {}, "shapes-differ": {}, "shapes-differ-detail": DETAIL, "types-differ": {},
    "interface": {"GLOO_SOCKET_IFNAME": "eth99"}, "no-address": {"MASTER_ADDR": ""}, "no-rank": {"RANK": ""}}
UNDECIDED = {"exits-early": {}}  # only its victims print a word
WORKS = ("short", "caught_once")


@pytest.fixture(scope="module")
def launcher() -> Iterator[subprocess.Popen[str]]:
    """It has imported torch, and forks the ranks of each job."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, faults.TRAINING, "--serve"], stdin=pipe, stdout=pipe, text=True, start_new_session=True) as running:
        yield running
        os.killpg(running.pid, signal.SIGKILL)


def ended(launcher: subprocess.Popen[str], folder: Path, does: str, variables: dict[str, str]) -> tuple[list[int], dict[str, Any]]:
    """The ends of the ranks, and what `diagnose` answers to their log."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1", "JOB_TIMEOUT_S": "10"}
    print(json.dumps({"job": does, "folder": str(folder), "variables": {**meeting, **variables}, "size": 3}), file=launcher.stdin, flush=True)
    codes = json.loads(launcher.stdout.readline())
    return codes, json.loads(read_cli("diagnose", folder / "job.log", "--json").stdout)


@pytest.mark.parametrize("name", QUICK)
def test_a_job_that_ends_by_itself_is_explained_by_its_log(launcher: subprocess.Popen[str], tmp_path: Path, name: str) -> None:
    job = faults.FAULTS[name]
    codes, told = ended(launcher, tmp_path, job.does, QUICK[name])
    assert any(codes) and faults.outcome(job, told) == "right", (codes, told["sentence"], (tmp_path / "job.log").read_text()[-3000:])


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_no_line_shows_is_left_undecided(launcher: subprocess.Popen[str], tmp_path: Path, name: str) -> None:
    job = faults.FAULTS[name]
    codes, told = ended(launcher, tmp_path, job.does, UNDECIDED[name])
    assert any(codes) and told["verdict"] == "unknown" and faults.outcome(job, told) == "undecided", told["sentence"]


@pytest.mark.parametrize("does", WORKS)
def test_a_job_that_works_raises_no_alarm(launcher: subprocess.Popen[str], tmp_path: Path, does: str) -> None:
    codes, told = ended(launcher, tmp_path, does, {})
    assert codes == [0, 0, 0] and faults.outcome(faults.Job("", does), told) == "right", told["sentence"]


# --- the judgement of the gym itself

def told(sentence: str, cause: str | None, status: str | None, verdict: str = "broken") -> dict[str, Any]:
    lead = {"cause": cause, "status": status, "evidence": [{"text": sentence, "source": ""}]} if status else None
    return {"sentence": sentence, "verdict": verdict, "lead": lead}


STOPPED = faults.Job("", "", frozenset({"peer-stopped"}), 1)


@pytest.mark.parametrize(("answer", "outcome"), [
    (told("Broken: rank 1 is stopped; 2 ranks wait for it in all_reduce.", "peer-stopped", "established"), "right"),
    (told("Broken: rank 2 is stopped; rank 1 waits for it in all_reduce.", "peer-stopped", "established"), "wrong"),
    (told("Broken: rank 1 died.", "peer-crashed", "likely"), "wrong"),
    (told("Unknown: rank 1 may be stopped.", "peer-stopped", "possible"), "undecided"),
    (told("Broken: a rank is stopped.", "peer-stopped", "likely"), "undecided"),
    (told("Broken: rank (pid 77) is stopped.", "peer-stopped", "likely"), "right"),
    (told("Unknown: nothing.", None, None, "unknown"), "undecided"),
])
def test_only_the_cause_with_its_rank_counts_as_right(answer: dict[str, Any], outcome: str) -> None:
    assert faults.outcome(STOPPED, answer, "77") == outcome


@pytest.mark.parametrize(("verdict", "outcome"), [("healthy", "right"), ("unknown", "right"), ("degraded", "wrong"), ("broken", "wrong")])
def test_any_alarm_of_a_job_that_works_is_wrong(verdict: str, outcome: str) -> None:
    assert faults.outcome(faults.Job("", ""), told("", None, None, verdict)) == outcome


def test_one_wrong_door_makes_a_fault_wrong_and_one_right_door_is_enough() -> None:
    right, wrong, undecided = ({"outcome": word} for word in ("right", "wrong", "undecided"))
    assert [faults.together(doors) for doors in ({"live": right, "log": undecided}, {"live": right, "log": wrong}, {"log": undecided})] == [
        "right", "wrong", "undecided"]


def test_every_job_is_something_that_a_rank_does_and_every_cause_is_in_the_table() -> None:
    assert all(callable(getattr(Training, job.does)) for job in faults.JOBS.values())
    assert {cause for job in faults.FAULTS.values() for cause in job.causes} <= set(causes()) and all(job.causes for job in faults.FAULTS.values())
    assert len(faults.FAULTS) >= 24 and len(faults.WORKS) >= 20
