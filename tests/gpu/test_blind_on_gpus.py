"""Blind: a fault is injected, the real command runs from end to end, and its verdict has to name the cause. make test ARGS=tests/gpu."""
from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nvml_shim
import p2p_hangs
import pytest
from book_samples import CLI, Running
from injector import Injector
from processes import ROOT

pytestmark = pytest.mark.gpu
HOLD = "import torch, time; t = torch.zeros(2 << 30, dtype=torch.uint8, device='cuda:1'); print('holding', flush=True); time.sleep(300)"


def run(prefix, out: Path, *arguments: str, before=(), env=None, injected=None) -> dict:
    """The verdict document of one whole run under ``prefix``."""
    command = [*before, *CLI, "run", "--python", shlex.join(prefix), "--out", str(out), "--json", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with Running(command, **options, env={**os.environ, **(env or {})}) as started:
        with Injector(started.pid, *injected) if injected else contextlib.nullcontext():
            said, errors = started.communicate(timeout=280)
    assert said, errors
    return json.loads(said)


def first(document: dict) -> tuple[str, str]:
    return (document["causes"][0]["id"], document["causes"][0]["status"]) if document["causes"] else ("none", document["sentence"])


ANYWAY = "--allow-busy"  # to each of these the tests beside it are somebody else's
LADDER = ("--step", "03-fewer-gpus", "--gpus", "0,1")


@pytest.mark.gpu(beside=True)
def test_two_ranks_on_one_gpu(on_gpus, tmp_path):
    assert first(run(on_gpus.prefix, tmp_path / "run", "--step", "03-fewer-gpus", "--gpus", "0,0", ANYWAY)) == (
        "device-not-set-per-rank",
        "established",
    )


def test_a_gpu_that_is_hidden(on_gpus, tmp_path):
    document = run(on_gpus.prefix, tmp_path / "run", "--step", "01-gpu-visibility", env={"CUDA_VISIBLE_DEVICES": "0"})
    assert first(document)[0] == "visible-devices-wrong" and document["verdict"] == "degraded"


@pytest.mark.gpu(beside=True)
def test_an_interface_that_names_nothing(on_gpus, tmp_path):
    document = run(
        on_gpus.prefix, tmp_path / "run", "--step", "04-transports", "--gpus", "0,1", ANYWAY, env={"NCCL_SOCKET_IFNAME": "eth99"}
    )
    assert first(document) == ("socket-interface-wrong", "established")


@pytest.mark.gpu(beside=True)
@pytest.mark.parametrize(("name", "value", "cause"), [
    ("NCCL_SOCKET_IFNAME", "eth99", "socket-interface-wrong"), ("NCCL_NET", "nosuchnet", "net-plugin-failed")])
def test_a_setting_that_breaks_one_rank_is_proven_with_one_gpu(on_a_gpu, tmp_path, name, value, cause):
    document = run(on_a_gpu.prefix, tmp_path / "run", "--gpus", "0", ANYWAY, env={name: value})
    steps = {s["notebook"]: s for s in document["steps"]}
    proven, = (f for f in steps["04-transports"]["findings"] if f["severity"] == "broken")
    assert (proven["id"], proven["cause"], proven["status"], proven["remedy"][0]["lines"]) == (
        "variable-at-fault",
        cause,
        "established",
        [f"unset {name}"],
    )
    assert proven["tried"] and any("not compared" in e["text"] for e in proven["evidence"])
    assert first(document) == (cause, "established") and document["sentence"].startswith(f"Broken: {name}={value}")
    assert document["causes"][0]["title"].startswith(f"{name}={value}")
    assert [f["cause"] for f in steps["03-fewer-gpus"]["findings"] if f["severity"] == "broken"][:1] == [cause]
    synced = {f["id"]: f["cause"] for f in steps["05-weight-sync"]["findings"]}
    assert synced.get("weight-sync-failed") == cause and not synced.keys() & {"weight-sync-hangs", "failed-on-one-gpu"}, synced


@pytest.mark.gpu(beside=True)
def test_one_gpu_that_works_has_no_transport(on_a_gpu, tmp_path):
    document = run(on_a_gpu.prefix, tmp_path / "run", "--step", "04-transports", "--gpus", "0", ANYWAY)
    assert [(s["status"], [f["id"] for f in s["findings"]]) for s in document["steps"]] == [("skipped", ["transports-not-run"])]


@pytest.mark.gpu(beside=True)
def test_nvml_that_answers_unknown_error(on_gpus, tmp_path):
    broken = {"LD_LIBRARY_PATH": nvml_shim.in_front(tmp_path)}
    document = run(on_gpus.prefix, tmp_path / "run", *LADDER, ANYWAY, env=broken)
    assert first(document)[0] == "nvml-call-failed"


@pytest.mark.gpu(beside=True)
def test_a_shared_memory_too_small_for_nccl(on_gpus, tmp_path):
    mounts = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*mounts, "true"], capture_output=True).returncode:
        pytest.skip("a private mount namespace is not permitted here")
    document = run(on_gpus.prefix, tmp_path / "run", *LADDER, ANYWAY, before=mounts,
                   env={"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"})
    assert first(document)[0] == "shm-too-small"


@pytest.mark.gpu(beside=True)
@pytest.mark.parametrize(
    ("fault", "cause", "says"), [("stop", "peer-stopped", "rank 1:"), ("kill", "peer-crashed", "rank 1: killed by signal 9")]
)
def test_a_rank_that_somebody_stops_or_kills(on_gpus, tmp_path, fault, cause, says):
    document = run(on_gpus.prefix, tmp_path / "run", *LADDER, ANYWAY, injected=(fault, 2, 1, 0.8))
    assert first(document) == (cause, "established") and says in document["causes"][0]["evidence"][0]["text"]


def test_gpus_that_somebody_uses(on_gpus, tmp_path):
    # its parent is gone: no descendant of ours
    line = f"{shlex.join(on_gpus.prefix)} -c {shlex.quote(HOLD)} & echo $!"
    shell = subprocess.Popen(["setsid", "bash", "-c", line], stdout=subprocess.PIPE, text=True)
    pid = int(shell.stdout.readline())
    try:
        assert shell.stdout.readline() == "holding\n"
        document = run(on_gpus.prefix, tmp_path / "run", *LADDER)
    finally:
        os.kill(pid, 9)
    assert (
        document["verdict"] == "unknown"
        and f"pid {pid}" in json.dumps(document["steps"])
        and "MiB on GPU 1" in json.dumps(document["steps"])
    )


@pytest.mark.gpu(beside=True)
def test_p2p_that_hangs_is_named_within_three_minutes(on_gpus, tmp_path):
    began, planted = time.monotonic(), p2p_hangs.planted(tmp_path / "plant")
    document = run(on_gpus.prefix, tmp_path / "run", "--step", "03-fewer-gpus", "--step", "04-transports", ANYWAY, env=planted)
    took = time.monotonic() - began
    print(f"{took:.1f} s", [(s["notebook"], s["wall_s"], s["reason"]) for s in document["steps"]])
    assert (first(document)[0], document["verdict"]) == ("p2p-broken-acs-iommu", "broken") and took < 180


def test_healthy_gpus(on_gpus, tmp_path):
    document = run(on_gpus.prefix, tmp_path / "run", "--step", "03-fewer-gpus", "--step", "04-transports", "--gpus", "0,1")
    assert (document["verdict"], document["causes"], document["exit_code"]) == ("healthy", [], 0)


def test_one_file_judged_elsewhere_is_healthy_too(on_gpus, tmp_path):
    pyz, record = tmp_path / "nccl-look.pyz", tmp_path / "look.json"
    subprocess.run([sys.executable, ROOT / ".ci" / "look", pyz], check=True)
    looked = subprocess.run([*on_gpus.prefix, pyz, "--json", record, "--gpus", "0,1"], capture_output=True, text=True, timeout=280)
    assert looked.returncode == 0, looked.stderr
    said = subprocess.run(
        [*CLI, "run", "--record", record, "--out", tmp_path / "run", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    ).stdout
    assert json.loads(said)["verdict"] == "healthy", said[:2000]
