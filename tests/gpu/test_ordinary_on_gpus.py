"""Ordinary jobs with one mistake each, on GPUs with NCCL: no innocent is named, live or from the dumps. NCCL_RUNBOOK_TEST_RECORDS names a
folder that keeps what was seen."""
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live_samples as s
import live_worlds as worlds
import ordinary_jobs as ordinary
import pytest
from nccl_runbook.hang import judge as after
from nccl_runbook.hang.live import judge as rules
from nccl_runbook.hang.read import collect
from nccl_runbook.look import live as look_live
from test_ordinary_jobs import is_marked, started, wait_for_dumps

pytestmark = pytest.mark.gpu
GAP_S = 3.0


@pytest.fixture(scope="module")
def running(shown: Any) -> Iterator[Any]:
    prefix, count = shown
    if not isinstance(count, int) or count < ordinary.SIZE:
        pytest.skip(f"needs {ordinary.SIZE} GPUs; CUDA shows {count}")
    python = os.environ.get("NCCL_RUNBOOK_TEST_PYTHON", sys.executable)
    with worlds.launcher(python, ordinary.__file__, ORDINARY_BACKEND="nccl", TORCH_FR_BUFFER_SIZE="2000") as launcher:
        yield launcher


@pytest.mark.parametrize("job", ordinary.JOBS)
def test_the_rank_of_the_mistake_and_no_innocent(running: Any, job: str, tmp_path: Path) -> None:
    pids = started(running, f"{tmp_path} {job}")
    try:
        worlds.wait_for(tmp_path, ordinary.SIZE)
        time.sleep(2.0)
        look, pictures = s.looked(pids, GAP_S)
        (tmp_path / "go").touch()
        wait_for_dumps([tmp_path])
    finally:
        worlds.end(running)
    found = after.judge_hang(collect([str(tmp_path)]))
    keep(job, look, pictures, found, tmp_path)
    guilty = [] if ordinary.JOBS[job] is None else [ordinary.JOBS[job]]
    live = [v.rank for p in pictures for v in p.culprits]
    assert {*live, *found.culprits} <= set(guilty), (live, found)
    if job == "healthy":
        assert rules.verdict(pictures) == "healthy"
    else:
        assert guilty in (live, list(found.culprits)), (pictures, found)
    if live and job in ordinary.ELSEWHERE:
        assert is_marked(job, pictures[0].culprits[0].frame), pictures


def keep(job: str, look: Any, pictures: Any, found: Any, folder: Path) -> None:
    where = os.environ.get("NCCL_RUNBOOK_TEST_RECORDS")
    if where:
        dumps = {p.name: p.read_bytes().hex() for p in folder.glob("fr_rank_*")}
        document = {**look_live.record(look, 0.0), "guilty": ordinary.JOBS[job], "after": str(found), "dumps": dumps,
                    "live": [(p.kind, [v.rank for v in p.culprits], p.sentence) for p in pictures],
                    "logs": {p.name: p.read_text(errors="replace")[-2000:] for p in folder.glob("*.log")}}
        Path(where, f"ordinary-{job}.json").write_text(json.dumps(document, indent=1))
