"""The grid of pairs and transports: what the engine leaves of each world, the cells that it makes, and one arm alone."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from nccl_runbook.cockpit import arguments
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.running import STATE, Running
from nccl_runbook.search.halving import halve
from nccl_runbook.worlds import ask, ask_arms
from processes import ROOT
from warm_cli import read_cli

grid = pytest.importorskip("nccl_runbook.cockpit.grid", reason="ipywidgets is not installed")


def left(folder: Path, step: str, number: int, name: str, gpus: list[int | None], ended: str, **gb_per_s: float) -> None:
    path = folder / "logs" / step / f"{number:03d}-{number}" / STATE
    path.parent.mkdir(parents=True)
    rates = {"all_reduce": None, "send_recv": None, **gb_per_s}
    path.write_text(json.dumps({"name": name, "gpus": gpus, "ended": ended, "gb_per_s": rates}))


def shown(folder: Path, at_work: bool = False) -> dict[object, tuple[str, str]]:
    return {key: grid.outcome(worlds, at_work) for key, worlds in grid.worlds_by_key(folder).items()}


# what the engine leaves


def test_each_world_of_real_ranks_leaves_how_it_ended_as_it_ends(engine, tmp_path):
    with Engine(engine.prefix, tmp_path, Redactor({})) as own:
        control = ask.request("control", [None, None], ops="all_reduce")
        requests = [control, dataclasses.replace(control, name="clean", args=[*control.args, "--fault", "exit@1"])]
        made = own.run_in_turn(requests)
    files = [json.loads(path.read_bytes()) for path in sorted(tmp_path.glob(f"*/{STATE}"))]
    assert (
        [(f["name"], f["ended"]) for f in files]
        == [("control", "passed"), ("clean", "failed")]
        == [(w.request.name, w.ended) for w in made]
    )
    assert files[0]["gpus"] == [None, None] and files[0]["gb_per_s"]["all_reduce"] == made[0].busbw_gb_per_s("all_reduce") > 0


def test_a_world_that_runs_has_not_ended_and_one_that_was_lost_is_lost(tmp_path):
    running = Running(0, ask.request("control", [None, None]), tmp_path / "000", Redactor({}))
    state = tmp_path / "000" / STATE
    assert json.loads(state.read_bytes())["ended"] == ""
    running.lose("lost")
    assert json.loads(state.read_bytes())["ended"] == "lost"


def test_a_world_whose_folder_cannot_be_made_runs_all_the_same(tmp_path):
    (tmp_path / "file").touch()
    assert Running(0, ask.request("control", [None, None]), tmp_path / "file" / "000", Redactor({})).request.name == "control"


# the cells


def test_pairs_of_both_steps_share_a_cell_and_arms_of_two_gpus_are_no_pair(tmp_path):
    left(tmp_path, "03-fewer-gpus", 1, "1 rank", [0], "passed")
    left(tmp_path, "03-fewer-gpus", 2, "2 ranks", [0, 1], "passed", send_recv=41.0)
    left(tmp_path, "03-fewer-gpus", 3, "pair 0-1", [1, 0], "passed", send_recv=42.04)
    left(tmp_path, "03-fewer-gpus", 4, "GPUs 0, 1", [0, 1], "passed")  # of the search: it takes no time
    left(tmp_path, "03-fewer-gpus", 5, "two ranks on one GPU", [1, 1], "failed")
    left(tmp_path, "04-transports", 1, "control", [0, 1], "passed", all_reduce=300.0, send_recv=40.0)
    left(tmp_path, "04-transports", 2, "only with NCCL_X", [0, 1], "failed")
    left(tmp_path, "04-transports", 3, "pair 0-2", [0, 2], "hung")
    left(tmp_path, "05-weight-sync", 1, "control", [0, 1], "failed")
    assert shown(tmp_path) == {(0, 1): ("passed 42", "ok"), (0, 2): ("hung", "broken"), "control": ("passed 300", "ok")}


@pytest.mark.parametrize(("ended", "at_work", "expected"), [
    (["passed"], False, ("passed", "ok")), (["hung"], True, ("hung", "broken")), (["lost"], False, ("lost", "unknown")),
    ([""], True, ("runs", "muted")), ([""], False, ("did not end", "muted")),
    (["failed", ""], True, ("failed", "broken")), (["failed", "passed"], False, ("failed 1 of 2", "warn")),
    (["passed", "wrong values", "passed"], False, ("wrong values 1 of 3", "warn"))])
def test_what_failed_once_is_never_shown_as_passed(ended, at_work, expected):
    assert grid.outcome([{"ended": e, "rate": None} for e in ended], at_work) == expected


def test_before_a_run_has_a_folder_there_are_no_cells(tmp_path):
    assert grid.worlds_by_key(None) == {} == grid.worlds_by_key(tmp_path)


# one again, as a person would type it


def test_the_values_of_a_repeat_are_the_options_of_the_command_line():
    made = grid.Grid(
        {"symptom": "hangs", "log": "job.log", "gpus": "0-3", "python": "", "budget_s": 300}, ROOT / "notebooks", lambda *_, **__: None
    )
    assert arguments(made._again((1, 2))) == ["--gpus", "1,2", "--step", "03-fewer-gpus"]
    assert arguments(made._again("P2P off")) == ["--gpus", "0-3", "-p", "only", "P2P off", "--step", "04-transports"]


def test_one_arm_runs_alone_beside_the_control(engine):
    for only, ran in (("interface pinned", True), ("control", False)):
        made = ask_arms.collect(engine, [None, None], 60, halve, only)
        assert made.control.passed and made.control_after.passed
        assert getattr(made.arms[0].trial, "passed", False) is ran


def test_an_unknown_arm_is_wrong_usage(engine):
    with pytest.raises(ValueError, match="P2P off"):
        ask_arms.collect(engine, [None, None], 60, halve, "P2P of")
    done = read_cli("run", "--step", "04-transports", "-p", "only", "P2P of")
    assert done.returncode == 2 and "P2P off" in done.stderr
