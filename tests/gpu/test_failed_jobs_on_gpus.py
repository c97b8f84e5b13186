"""Jobs that end in an error, on GPUs: `diagnose` gets what they printed and is told nothing else; where that leaves several causes,
`run` gets the log and the same surroundings. NCCL_RUNBOOK_TEST_RECORDS names a folder that keeps the logs."""
from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import failing_jobs
import nvml_shim
import pytest
from book_samples import run_cli
from live_worlds import free_port

pytestmark = pytest.mark.gpu(beside=True)


def surroundings(fault: str, folder: Path) -> dict[str, str]:
    env = {**os.environ, "NCCL_DEBUG": "WARN", **failing_jobs.FAULTS[fault][1]}
    if env.pop("SHIM", ""):
        env["LD_LIBRARY_PATH"] = nvml_shim.in_front(folder)
    if env.get("NCCL_TOPO_FILE") == "BROKEN_TOPOLOGY":
        env["NCCL_TOPO_FILE"] = str(folder / "topology.xml")
        (folder / "topology.xml").write_text("<system version='1'><cpu numaid='0'>")
    return env


def printed(fault: str, python: str, folder: Path) -> Path:
    """The log of that job, which has to fail."""
    ranks, env = failing_jobs.FAULTS[fault][0], surroundings(fault, folder)
    job = [failing_jobs.__file__, fault]
    with socket.create_server(("127.0.0.1", 0)) as taken, (folder / "job.log").open("wb") as log:
        if env.pop("ALONE", ""):
            port = str(taken.getsockname()[1]) if env.get("MASTER_PORT") == "TAKEN" else str(free_port())
            env |= {
                "RANK": "0",
                "WORLD_SIZE": "1",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": env.get("MASTER_ADDR", "127.0.0.1"),
                "MASTER_PORT": port,
            }
            start = [python, *job]
        else:
            start = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *job]
        ended = subprocess.run(start, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=150)
    assert ended.returncode, (folder / "job.log").read_text()
    return folder / "job.log"


def certain(answer: dict) -> set[str]:
    """The causes that this answer is sure of."""
    return {c["id"] for c in answer["causes"] if c["status"] in ("established", "likely")}


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.gpu) if f == "memory" else f for f in failing_jobs.FAULTS])
def test_the_cause_of_a_job_that_failed_comes_first(fault: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    _, around, right = failing_jobs.FAULTS[fault]
    backend = around.get("FAILING_BACKEND", os.environ.get("FAILING_BACKEND", "nccl"))
    python = (request.getfixturevalue("on_a_gpu").prefix if backend == "nccl" else request.getfixturevalue("shown")[0])[0]
    log = printed(fault, python, tmp_path)
    if where := os.environ.get("NCCL_RUNBOOK_TEST_RECORDS"):
        shutil.copy(log, Path(where, f"failed-{fault}.log"))
    answer = json.loads(run_cli("diagnose", log, "--json", "--gap", "0").stdout)
    if not certain(answer) and fault not in failing_jobs.SEVERAL:
        words = ("run", "--log", log, "--python", python, "--out", tmp_path / "run", "--json", "--budget", "2m", "--allow-busy")
        answer = json.loads(run_cli(*words, timeout=200, env=surroundings(fault, tmp_path)).stdout)
    sure = certain(answer)
    if fault in failing_jobs.SEVERAL:
        assert right & {c["id"] for c in answer["causes"]} and sure <= right and answer["next"], answer["sentence"]
    else:
        assert answer["verdict"] in ("broken", "degraded") and right & sure and sure <= right, (answer["sentence"], log.read_text()[-4000:])
