"""08-hosts run by the runner: hosts that are named, records of several, the allocation around it, and its record judged again."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_hosts import SlurmHosts
from test_hosts import write_records
from warm_cli import read_cli

STEP = "08-hosts"
HERE = "env HOST={host}"  # starts a program on this machine, under whatever name


def run(out: Path, *words: object, **options: Any) -> dict[str, Any]:
    """The step of that run, as verdict.json has it."""
    ended = read_cli("run", "--json", "--out", out, *words, **options)
    assert ended.stdout, ended.stderr
    return next(s for s in json.loads(ended.stdout)["steps"] if s["notebook"] == STEP)


def ids(step: dict[str, Any]) -> list[str]:
    return [f["id"] for f in step["findings"]]


def test_without_a_host_the_step_is_skipped(tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--step", STEP)["status"] == "skipped"


def test_named_hosts_are_asked_and_the_record_is_judged_alike(tmp_path: Path) -> None:
    step = run(tmp_path / "run", "--step", STEP, "-p", "hosts", "localhost, 127.0.0.1", "-p", "over", HERE, "--python", sys.executable)
    record = json.loads((tmp_path / "run" / f"{STEP}.json").read_text())
    assert [h["host"] for h in record["facts"]["hosts"]["hosts"].values()] == ["localhost", "127.0.0.1"]
    assert {w["name"] for w in record["facts"]["hosts"]["worlds"]}
    again = run(tmp_path / "again", "--record", tmp_path / "run" / f"{STEP}.json")
    assert (again["status"], ids(again)) == (step["status"], ids(step)) and step["status"] != "skipped"


def test_records_of_several_hosts_are_compared(tmp_path: Path) -> None:
    paths = write_records(tmp_path, 3, n1={"reported": "2.21.5"})
    step = run(tmp_path / "run", "--step", STEP, "-p", "records", ":".join(map(str, paths)))
    assert step["status"] == "warn" and "hosts-differ" in ids(step)


def test_values_that_cannot_be_used_are_refused_in_one_sentence(tmp_path: Path) -> None:
    ended = read_cli("run", "--json", "--out", tmp_path / "run", "--step", STEP, "-p", "hosts", "a", "-p", "over", "ssh a")
    assert ended.returncode == 2 and not ended.stdout and "{host}" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(("target", "status"), [("", "ok"), ("DROP", "broken")])
def test_in_an_allocation_of_two_hosts_no_name_is_needed(cluster: SlurmHosts, tmp_path: Path, target: str, status: str) -> None:
    """Ranks are started with --allow-busy only."""
    env = {**cluster.env, "SLURM_JOB_ID": cluster.job, "SLURM_JOB_NUM_NODES": "2"}
    words = ("--step", STEP, "--python", sys.executable, *["--allow-busy"] * bool(target))
    if not target:
        assert run(tmp_path / "run", *words, env=env)["status"] == status
        return
    with cluster.rule(1, "-p", "tcp", "--dport", "29500", "-j", target):
        step = run(tmp_path / "run", *words, env=env)
    assert step["status"] == status and "tcp-dropped" in ids(step)
