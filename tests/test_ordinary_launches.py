"""Launch scripts and configurations as they are usual, all of them right: nothing in them may be called a fault."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.judge import judge
from nccl_runbook.environment.read_file import read
from warm_cli import read_cli

ROOT = Path(__file__).resolve().parents[1]
LAUNCHES = sorted((ROOT / "tests/data/launches").iterdir())
PLANNED = [p for p in LAUNCHES if p.name.startswith(("verl", "openrlhf", "trl", "open-instruct", "areal"))]


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda p: p.name)
def test_env_finds_no_fault(path: Path) -> None:
    role = read(str(path))
    assert {f.severity.value for f in judge(Environment([role], role.mapped))} <= {"ok", "note", "unknown"}


@pytest.mark.parametrize("path", PLANNED, ids=lambda p: p.name)
def test_plan_finds_a_gpu_for_every_rank(path: Path) -> None:
    done = read_cli("plan", path, "--gpus", "8", "--json", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "lib")})
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "clean"), done.stderr
