"""Faults that come from outside, while the real notebooks run: the verdict names the cause and the rank. Over Gloo here, over NCCL in
tests/gpu."""
from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nvml_shim
import pytest
from book_samples import start_cli
from fake_nvml import fake_nvml
from injector import Injector
from machines import change_gpu, machine, owner
from nccl_runbook.core import records
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.redact import Redactor
from processes import ROOT
from warm_cli import read_cli


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str, list[int]]]:
    """Each fault: exit code, what was printed, the errors, and the ranks that were hit. The runs are at work at the same time: mostly,
    they wait."""
    def start(fault: str, *more: str, **options: Any) -> subprocess.Popen[str]:
        return start_cli(
            "run",
            "--step",
            "03-fewer-gpus",
            *more,
            "--python",
            sys.executable,
            "--out",
            tmp_path_factory.mktemp(fault) / "run",
            "--json",
            cwd=ROOT,
            **options,
        )

    two = ("-p", "max_ranks", "2")
    with (
        start("stop", *two) as stopped,
        start("kill", *two) as killed,
        Injector(stopped.pid, "stop", size=2, rank=1, after_s=0.0) as stops,
        Injector(killed.pid, "kill", size=2, rank=1, after_s=0.0) as kills,
        start(
            "interface", "--step", "02-environment", "--step", "04-transports", env={**os.environ, "GLOO_SOCKET_IFNAME": "rail7"}
        ) as interface,
        start("variable", env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": "LOUD"}) as variable,
        ThreadPoolExecutor(4) as pool,
    ):
        runs = {"stop": stopped, "kill": killed, "interface": interface, "variable": variable}
        said = pool.map(lambda run: run.communicate(timeout=200), runs.values())
        hits = {"stop": stops.hit, "kill": kills.hit}
        return {fault: (run.returncode, *told, hits.get(fault, [])) for (fault, run), told in zip(runs.items(), said)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause", "says"), [("stop", "peer-stopped", "rank 1:"), ("kill", "peer-crashed", r"rank 1: .*\bsignal 9\b")]
)
def test_a_rank_that_somebody_stops_or_kills_is_named(
    ended: dict[str, tuple[int, str, str, list[int]]], fault: str, cause: str, says: str
) -> None:
    code, said, errors, hit = ended[fault]
    found = json.loads(said)["causes"][0]
    assert code == 3 and len(hit) == 2, (errors, said[:2000])
    assert (found["id"], found["status"]) == (cause, "established") and re.search(says, found["evidence"][0]["text"])


@pytest.mark.slow
def test_an_interface_that_does_not_exist_is_named_and_the_cure_is_proven(ended: dict[str, tuple[int, str, str, list[int]]]) -> None:
    code, said, errors, _ = ended["interface"]
    document = json.loads(said)
    lead, page = document["causes"][0], re.findall(r"\(exit code 3\): (\S+)", errors)[-1]
    assert code == 3 and (lead["id"], lead["status"]) == ("socket-interface-wrong", "established"), errors
    assert document["sentence"].startswith("Broken: GLOO_SOCKET_IFNAME=rail7 ") and document["sentence"] in errors
    assert re.search(r"GLOO_SOCKET_IFNAME=rail7 .*\blo\b", lead["title"]) and lead["title"] in document["sentence"]
    found = {f["id"]: (f["cause"], f["status"]) for s in document["steps"] for f in s["findings"] if f["severity"] == "broken"}
    assert found == dict.fromkeys(("interface-missing", "rehearsal-fails", "variable-at-fault"), ("socket-interface-wrong", "established"))
    assert lead["title"] in html.unescape((ROOT / page).read_text())


@pytest.mark.slow
def test_a_variable_with_which_torch_cannot_be_imported_is_broken_and_not_unknown(
    ended: dict[str, tuple[int, str, str, list[int]]],
) -> None:
    code, said, errors, _ = ended["variable"]
    document = json.loads(said)
    assert (code, document["verdict"]) == (3, "broken") and "TORCH_DISTRIBUTED_DEBUG" in document["sentence"], errors
    step, = document["steps"]
    assert [f["id"] for f in step["findings"]] == ["no-rank-can-run"]


@pytest.mark.slow
def test_exclusive_mode_is_named_from_a_record(tmp_path: Path) -> None:
    """Nobody may set a card's mode for a test: the machine comes from a record, the judgement from the real command."""
    held = change_gpu(machine(), 2, compute_mode="exclusive-process", owners=[owner()])
    record = records.Record(step="01-gpu-visibility", started="2026-01-01T00:00:00Z", facts={"gpus": to_json(held)})
    records.save(record, tmp_path / "01-gpu-visibility.json", Redactor({}))
    ended = read_cli("run", "--record", tmp_path / "01-gpu-visibility.json", "--out", tmp_path / "run", "--json", cwd=ROOT)
    found = json.loads(ended.stdout)["causes"]
    assert ended.returncode == 3 and [c["id"] for c in found] == ["gpu-exclusive-mode"], (ended.stderr, found)
    assert found[0]["remedy"] and "pid 4711" in json.dumps(found[0])


def test_the_stand_in_for_nvml_breaks_one_call_and_passes_the_others_on(tmp_path: Path) -> None:
    asked = ("import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())\n"
             "try: n.nvmlDeviceGetHandleByIndex(0)\nexcept n.NVMLError as e: print(e)")
    with fake_nvml("healthy") as folder:
        nvml_shim.build(f"{folder}/libnvidia-ml.so.1", tmp_path)
        said = subprocess.run(
            [sys.executable, "-c", asked], env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True
        )
    assert said.stdout.split("\n")[:2] == ["4", "Unknown Error"], said.stderr
