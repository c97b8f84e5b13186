"""The guards to paste, on four real Gloo ranks: each passes, each fires, each prints one line of the documented shape."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import live_worlds as worlds
import pytest
from nccl_runbook.look.members import BESIDE
from processes import ROOT

GUARDS = ROOT / "lib" / "nccl_guards.py"
SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/guard.json").read_text())
PREFIX = "NCCL_GUARD "


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return four_ranks(tmp_path_factory.mktemp("guards"))


def four_ranks(folder: Path) -> list[list[str]]:
    """Lines by rank, from a folder that holds the one file and the script: nothing else of ours is on the path."""
    for source in (GUARDS, ROOT / "tests" / "guarded_rank.py"):
        shutil.copy(source, folder)
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env = {**clean, "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(worlds.free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, "guarded_rank.py"], cwd=folder, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for r in range(4)]
    return [r.communicate(timeout=120)[0].splitlines() for r in ranks]


def lines(said: list[list[str]], guard: str, rank: int = 0) -> list[dict]:
    found = [json.loads(line.removeprefix(PREFIX)) for line in said[rank] if line.startswith(PREFIX)]
    return [one for one in found if one["guard"] == guard]


def outcome(said: list[list[str]], name: str) -> list[str]:
    return [line.removeprefix(f"TRIED {name} ") for rank in said for line in rank if line.startswith(f"TRIED {name} ")]


def test_every_line_has_the_documented_shape(said: list[list[str]]) -> None:
    every = [line for rank in said for line in rank if line.startswith(PREFIX)]
    for line in every:
        jsonschema.validate(json.loads(line.removeprefix(PREFIX)), SCHEMA)
    assert {json.loads(line.removeprefix(PREFIX))["guard"] for line in every} == set(SCHEMA["properties"]["guard"]["enum"])
    assert max(map(len, every)) < 4096, "one write to a pipe, so that ranks do not mix"


@pytest.mark.parametrize(("name", "message"), [
    ("none", r"check_minibatches: rank 3: minibatches = 5 // 8 = 0"), ("uneven", r"check_minibatches: rank 0: steps = 11"),
    ("dtype", r"check_agreement: rank 2: all_reduce float16 \[1000\] .*; .* all_reduce float32 \[1000\].*"),
    ("size", r"check_agreement: rank 1: all_reduce float32 \[999\] .*; .* all_reduce float32 \[1000\].*"),
    ("op", r"check_agreement: rank 3: broadcast float32 \[1000\] .*; .* all_reduce float32 \[1000\].*"),
    ("weights", r"weights_digest: 1 of 2 .* a")])
def test_what_differs_raises_on_every_rank_and_names_the_one_at_fault(said: list[list[str]], name: str, message: str) -> None:
    assert [bool(re.fullmatch(f"raised {message}", one)) for one in outcome(said, name)] == [True] * 4


def test_the_line_of_a_failure_is_printed_by_rank_0_and_by_the_rank_at_fault(said: list[list[str]]) -> None:
    by_rank = [[one["bad_ranks"] for one in lines(said, "check_agreement", rank) if one["ok"] is False] for rank in range(4)]
    assert by_rank == [[[2], [1], [3], [1]], [[1]], [[2]], [[3]]]
    (zero,) = [one for one in lines(said, "check_minibatches", 3) if one["bad_ranks"] == [3]]
    assert zero["data"] == {"minibatches": {"0": 2, "1": 2, "2": 2, "3": 0}} and zero["cause"] == "uneven-minibatches"


def test_what_agrees_passes_and_is_printed_once(said: list[list[str]]) -> None:
    assert outcome(said, "same") == outcome(said, "digest") == ["passed"] * 4
    assert [one["says"] for one in lines(said, "check_agreement") if one["ok"]] == ["all ranks: all_reduce float32 [1000] on cpu"]
    assert len([one for one in lines(said, "check_minibatches") if one["ok"]]) == 1 and not lines(said, "check_minibatches", 1)[:1][0]["ok"]


def test_nobody_has_work_and_nobody_is_singled_out(said: list[list[str]]) -> None:
    assert (
        all("rank 0: steps = 0; rank 1: steps = 0" in one for one in outcome(said, "zero everywhere"))
        and len(outcome(said, "zero everywhere")) == 4
    )


def test_a_rank_that_is_elsewhere_or_absent_is_named_within_the_limit(said: list[list[str]]) -> None:
    assert all("different guards" in one for one in outcome(said, "elsewhere"))
    assert len(outcome(said, "absent")) == 3 and all(re.search(r"\brank 2 .*\b2 s\b", one) for one in outcome(said, "absent"))
    assert lines(said, "check_minibatches")[-1]["cause"] == "collective-on-some-ranks-only"


def test_the_recorder_gets_its_names_before_the_group_and_none_after(said: list[list[str]]) -> None:
    first, late = lines(said, "enable_flight_recorder")
    assert first["ok"] and set(first["data"]) == {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
    assert late["ok"] is False and all("process group" in one for one in outcome(said, "late"))


def test_the_group_has_its_timeout_and_the_clock_its_bound(said: list[list[str]]) -> None:
    (group,) = lines(said, "init_process_group_checked")
    assert set(group["data"]["timeout_s"].values()) == {123.0} and group["data"]["device"] == "cpu" and group["data"]["device_id"] is False
    for rank in (1, 2, 3):
        (clock,) = lines(said, "sync_clock", rank)
        assert abs(clock["data"]["offset_s"]) <= clock["data"]["uncertainty_s"] + 0.001, "one host has one clock"
    pause, whole = lines(said, "pause_trace", 2)
    assert list(whole["data"]) == ["other"] and re.match(
        r"a framework's own sync .*\b0\.\d+ s", whole["says"]
    ), "where no phase is named none is told"
    assert list(pause["data"]) == ["pause", "gather", "wire"] and pause["data"]["gather"] >= 0.02 and "gather" in pause["says"]


def test_a_call_costs_at_most_a_hundredth_of_a_step_of_50_ms(said: list[list[str]], tmp_path: Path) -> None:
    """At p50, of the rank that was disturbed least, in the best of up to three worlds. The calling thread's own time, which a neighbour
    on the machine hardly lengthens; by the clock the exchange itself comes on top, and ranks that share few cores stand in each other's way
    there, so that is held beside a bare exchange of the same run."""
    tries = [cheapest(said)]
    while len(tries) < 3 and max(tries[-1].values()) >= 0.0005:
        tries.append(cheapest(four_ranks(tmp_path)))
    assert max(tries[-1].values()) < 0.0005, tries


def cheapest(said: list[list[str]]) -> dict[str, float]:
    """The least of four ranks' medians: seconds."""
    costs = [json.loads(line.removeprefix("COST ")) for rank in said for line in rank if line.startswith("COST ")]
    assert len(costs) == 4
    return {
        **{way: min(c[way] for c in costs) for way in ("plain", "beside")},
        "by the clock": min(c["wall"] - 2 * c["bare"] for c in costs),
    }


def test_the_names_of_an_older_torch(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    import nccl_guards

    monkeypatch.setattr(torch, "__version__", "2.8.0+cu128")
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"):
        monkeypatch.setenv(name, "")  # put back afterwards
    nccl_guards.enable_flight_recorder(entries=77)
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "77" and "TORCH_FR_BUFFER_SIZE" not in capfd.readouterr().err


def row(rank: int, uuid: str, bus: str, boot: str = "b") -> dict:
    return {"rank": rank, "host": "n1", "boot_id": boot, "uuid": uuid, "pci_bus_id": bus}


def test_a_shared_gpu_by_uuid_a_bus_id_twice_and_neither() -> None:
    pytest.importorskip("torch")
    from nccl_guards import map_says

    assert map_says([row(0, "GPU-1", "60"), row(1, "GPU-1", "60"), row(2, "GPU-2", "70")])[2:] == ("device-not-set-per-rank", [0, 1])
    assert map_says([row(0, "GPU-1", "60"), row(1, "GPU-2", "60")])[2:] == ("bus-id-collision", [0, 1])
    assert map_says([row(0, "GPU-1", "60"), row(1, "GPU-2", "60", "another host")])[0] is True
    assert map_says([row(0, "GPU-1", "60"), row(1, "", "")])[0] is None


def test_the_one_file_is_installed_beside_the_package() -> None:
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert packaging["py-modules"] == sorted([GUARDS.stem, *(Path(p).stem for p in BESIDE)]) and packaging["package-dir"] == {"": "lib"}
    assert "nccl_runbook" not in GUARDS.read_text().replace("NCCL_RUNBOOK", "")


@pytest.mark.parametrize("path", [GUARDS, *(GUARDS.with_name(name) for name in BESIDE)], ids=lambda p: p.name)
def test_a_file_to_copy_parses_under_python_3_9_and_imports_torch_alone(path: Path) -> None:
    import test_structure as house

    outside = {m.split(".")[0] for m in house.imports(path)} - set(sys.stdlib_module_names)
    assert outside == {"torch"} and len(path.read_text().splitlines()) <= 400
    import ast

    ast.parse(path.read_text(), feature_version=(3, 9))
