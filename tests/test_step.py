"""One notebook at work: parameters, the guard, replay, trials by hand, and the notebooks under plain papermill."""
from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nccl_runbook.core import records
from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.step import Step, open_step
from nccl_runbook.worlds import ask as worlds, judge as fewer_gpus
from nccl_runbook.worlds.facts import Ladder
from processes import ROOT

BUSY = Finding("gpus-busy", Severity.UNKNOWN, "not run: busy (pid 4711, alice, 40213 MiB on GPU 2)")
FOUND = [Finding("fine", Severity.OK, "fine")]


def nobody(within_s: float) -> int | Gap:
    return 0


def somebody(within_s: float) -> int | Gap:
    return 1


def rule(users: int, allow_busy: bool) -> Finding | None:
    return BUSY if users and not allow_busy else None


@pytest.fixture
def step(tmp_path):
    made = Step("03-fewer-gpus", {"run_dir": str(tmp_path), "python": sys.executable, "gpus": "", "max_ranks": 2, "budget_s": 60})
    yield made
    if made._engine:
        made._engine.close()


@pytest.fixture
def ready_step(step, engine):
    """Its ranks need no start; worlds of other tests are in the engine's history."""
    step._engine = engine
    yield step
    step._engine = None


def read(step: Step) -> records.Record:
    return records.load(step.run_dir / "03-fewer-gpus.json")


@pytest.mark.parametrize(("gpus", "fires"), [("9", True), ("0,0,0", True), ("", False), ("all", False)])
def test_gpus_that_were_named_where_there_is_none_are_said_to_have_been_left_out(step, gpus, fires):
    step.parameters["gpus"] = step.record.parameters["gpus"] = gpus
    assert step.devices == [None, None]  # whatever was named
    step.finish(FOUND)
    kept = read(step)
    assert (f"GPUs {gpus}" in kept.reason) == fires and kept.status == ("unknown" if fires else "ok")
    assert [f"GPUs {gpus}," in f.title for f in kept.findings if f.id == "gpus-not-here"] == [True] * fires
    again = Step(
        "03-fewer-gpus", {"run_dir": str(step.run_dir / "again"), "record_path": str(step.run_dir / "03-fewer-gpus.json"), "gpus": ""}
    )
    again.finish(FOUND)
    assert [f.id for f in again.record.findings] == ["gpus-not-here"] * fires + ["fine"], "a replay of it says so too"


def test_gpus_that_are_here_or_of_which_nothing_was_asked_are_not_said_to_be_missing(step):
    step.parameters["gpus"] = "9"
    step.finish(FOUND)  # no interpreter was asked
    assert read(step).status == "ok"
    step.record.judged = records.Judged(torch="2.9.0", gpus=["NVIDIA H200"] * 10)
    step.finish(FOUND)
    assert read(step).status == "ok"


def test_a_trial_joins_the_record_as_tried_by_hand(step):
    step.guard(nobody, rule)
    step.finish(FOUND)
    world = step.trial(env={"GLOO_SOCKET_IFNAME": "lo"}, repeats=1, sizes=(4,))
    tried = read(step).tried_by_hand
    assert world.passed and [(t["env"], t["passed"], t["line"]) for t in tried] == [({"GLOO_SOCKET_IFNAME": "lo"}, True, world.shell_line)]
    assert read(step).status == "ok"
    assert re.fullmatch(r".*: passed .*[\d.]+ s, .*2, all_reduce [\d.e-]+ GB/s; .*", repr(world)), "a line, not all fields"
    failed = dataclasses.replace(world, ranks=[dataclasses.replace(r, code=1, last_lines=["boom"]) for r in world.ranks])
    assert ": failed" in repr(failed).splitlines()[0] and repr(failed).endswith("\n[rank0] boom\n[rank1] boom")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"gpus": [9]}, "GPU 9"),
        ({"gpus": ["a"]}, "gpus: 'a'"),
        ({"gpus": []}, "gpus: "),
        ({"gpus": "0,b"}, "gpus: 'b'"),
        ({"env": {"A=B": "1"}}, "A=B"),
        ({"env": {"A": "x\0y"}}, "env: "),
        ({"sizes": ()}, "sizes"),
        ({"sizes": (-4,)}, "below 0"),
        ({"repeats": -1}, "below 0"),
        ({"deadline_s": 0}, "above 0"),
    ],
)
def test_a_trial_that_cannot_be_run_is_refused_in_a_sentence(ready_step, asked, told):
    ready_step.guard(nobody, rule)
    with pytest.raises(ValueError, match=re.escape(told)):
        ready_step.trial(**asked)
    assert ready_step.record.tried_by_hand == []


def test_a_trial_takes_texts_as_parameters_are(step):
    step.guard(nobody, rule)
    world = step.trial(ops="all_reduce, broadcast", repeats=0, sizes=(4,))
    assert world.passed and {e["op"] for r in world.ranks for e in r.named("op")} == {"all_reduce", "broadcast"}


def test_a_value_that_no_page_may_hold_is_not_in_the_lines_that_repeat_a_world(step):
    """Two set-ups may differ in anything; only what the table of variables knows is shown."""
    world = step.engine.run(WorldRequest("b", "check.py", [None], ["--ops", "barrier", "--repeats", "0"], {"NCCL_ALGO": "Ring"}, 60.0))
    asked = dataclasses.replace(world.request, env={"MY_DB": "canary4471", "NCCL_ALGO": "Ring"})
    step.engine.history.append(dataclasses.replace(world, request=asked, shell_line="MY_DB=canary4471 NCCL_ALGO=Ring timeout 90 python"))
    step.finish(FOUND)
    assert "canary4471" not in (step.run_dir / "03-fewer-gpus.json").read_text()
    assert any("MY_DB=... NCCL_ALGO=Ring" in c.line for c in read(step).commands)
    own = dataclasses.replace(asked, env={}, of_ranks={0: {"MY_DB": "canary4471", "NCCL_ALGO": None}})
    line = step._line(dataclasses.replace(world, request=own))
    assert "0) export MY_DB=...; unset NCCL_ALGO;;" in line and "canary4471" not in line


def test_what_was_seen_before_a_cell_fails_is_in_the_record_already(step):
    step.collect("users", nobody, 60.0)
    with pytest.raises(ValueError, match="bad parameter"):
        step.collect("ladder", bad_parameter)
    assert (read(step).status, read(step).facts) == ("running", {"users": 0})


def bad_parameter() -> int | Gap:
    raise ValueError("bad parameter")


def test_a_trial_takes_a_number_for_a_value(step):
    step.guard(nobody, rule)
    assert step.trial(env={"NCCL_MAX_CTAS": 8, "NCCL_DEBUG": None}, repeats=1, sizes=(4,)).passed
    assert step.record.tried_by_hand[0]["env"] == {"NCCL_MAX_CTAS": "8", "NCCL_DEBUG": None}
    assert "NCCL_MAX_CTAS" in step.record.tried_by_hand[0]["note"], "Gloo does not read it"
    step.trial(env={"OMP_NUM_THREADS": 1}, repeats=1, sizes=(4,))
    assert step.record.tried_by_hand[1]["note"] == ""


def test_a_trial_is_refused_while_somebody_uses_the_gpus(step):
    assert step.guard(somebody, rule) is BUSY
    with pytest.raises(RuntimeError, match="busy .pid 4711"):
        step.trial()
    assert step._engine is None  # nothing was started


def test_a_trial_asks_every_guard_again(step):
    step.guard(somebody, rule)
    step.guard(nobody, rule)
    with pytest.raises(RuntimeError, match=re.escape(BUSY.title)):
        step.trial()
    assert step._engine is None


def test_the_guard_lets_go_where_the_user_allows_it(step):
    step.parameters["allow_busy"] = True
    assert step.guard(somebody, rule) is None


def test_what_the_guard_forbids_is_a_gap_that_says_why(step):
    ladder = step.collect("ladder", worlds.ladder, lambda: step.engine, unless=step.guard(somebody, rule))
    assert ladder == Gap("not-run", BUSY.title) and step._engine is None


def test_a_replay_gives_the_same_findings_and_touches_no_machine(step, tmp_path):
    ladder = step.collect("ladder", worlds.ladder, lambda: step.engine, lambda: step.devices, lambda: step.left_s)
    step.finish(fewer_gpus.judge_worlds(ladder, Gap("not-run"), Gap("not-run")))
    again = Step("03-fewer-gpus", {"run_dir": str(tmp_path / "again"), "record_path": str(tmp_path / "03-fewer-gpus.json")})
    replayed = again.collect("ladder", worlds.ladder, lambda: again.engine, lambda: again.devices, lambda: again.left_s)
    assert isinstance(replayed, Ladder) and replayed == ladder
    again.finish(fewer_gpus.judge_worlds(replayed, Gap("not-run"), Gap("not-run")))
    assert read(again).findings == read(step).findings and read(again).judged == read(step).judged
    with pytest.raises(RuntimeError, match="record"):
        again.trial()


def test_the_judged_software_is_in_the_record(step):
    assert step.engine.cuda_count() == 0
    step.finish(FOUND)
    assert read(step).judged.torch.startswith("2.") and read(step).judged.python
    assert read(step).judged.own == (Path(sys.prefix) == ROOT / ".venv")  # `make test` runs in the runbook's own


def test_no_findings_at_all_are_unknown(step):
    step.finish([])
    assert read(step).status == "unknown" and read(step).reason


def test_only_injected_cells_are_checked_for_names():
    typed = {"run_dir": str, "budget_s": int}
    mine = {"__annotations__": typed, "run_dir": "x", "budget_s": "7", "my_own": 1, "In": ["my_own = 1", "# Parameters\nbudget_s = '7'"]}
    assert open_step("03-fewer-gpus", mine).parameters == {"run_dir": "x", "budget_s": 7}
    with pytest.raises(Unusable, match="budgets.*budget_s"):
        open_step("03-fewer-gpus", {**mine, "In": ["# Parameters\nbudgets = 7\n"]})


def papermill(tmp_path, *parameters):
    command = [sys.executable, "-m", "papermill", "notebooks/03-fewer-gpus.ipynb", str(tmp_path / "out.ipynb"), "-k", "python3",
               "-p", "run_dir", str(tmp_path / "run"), "-p", "python", sys.executable, *parameters]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_notebook_runs_under_plain_papermill(tmp_path):
    done = papermill(tmp_path, "-p", "max_ranks", "1")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run/03-fewer-gpus.json").read_text())
    assert [r["name"] for r in record["facts"]["ladder"]["rungs"]] == ["1 rank"] and record["status"] == "unknown"


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [("max_rank", "2", r"max_rank: .*max_ranks\?"), ("max_ranks", "two", r"max_ranks: 'two' is not a whole number")],
)
def test_plain_papermill_refuses_a_wrong_parameter(tmp_path, name, value, data):
    done = papermill(tmp_path, "-p", name, value)
    assert done.returncode == 1 and re.search(data, done.stderr)
