"""A record with the right names and other content is refused before anything starts: real records, changed at random."""
from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from book_samples import GOOD, make_book
from hang_samples import Job
from hypothesis import HealthCheck, given, settings, strategies as st
from nccl_runbook.book.plan import check_records, make_plan, probes
from nccl_runbook.case.read import collect_start
from nccl_runbook.core.facts import Unusable, to_json
from nccl_runbook.core.records import RecordError
from nccl_runbook.hang import read as hang_read
from nccl_runbook.messages import read as messages_read
from warm_cli import read_cli

BOOK = Path(__file__).parents[1] / "notebooks"
LOG = """n1:10:12 [0] NCCL INFO ncclCommInitRankConfig comm 0x55d1c2a0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 9b000 commId \
0x9f1c2b3a4d5e6f70 - Init COMPLETE
[rank1]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, \
OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.
[rank0]: RuntimeError: NCCL error: unhandled cuda error
"""
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -(2**63), 1e308, 99_999, "x" * 5000, "\u202e\x1b[2J"]),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.log").write_text(LOG)
    (folder / "dumps").mkdir()
    Job(3, world=4).write(folder / "dumps")
    log = str(folder / "job.log")
    facts = {
        "00-start": {"start": collect_start("it hangs", log)},
        "06-timeouts": {"hang": hang_read.collect(str(folder / "dumps"))},
        "07-logs": {"logs": messages_read.collect(log, "")},
    }
    return {
        step: {"schema": "nccl-runbook/record/2", "step": step, "status": "ok", "started": "2026-11-30T00:00:00Z", "facts": to_json(of)}
        for step, of in facts.items()
    }


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [place for key, one in inner for place in places(one, (*at, key))]


def within(facts: Any, place: tuple[Any, ...]) -> tuple[Any, Any]:
    """The dict or list that holds the value at this place, and its key there."""
    for key in place[:-1]:
        facts = facts[key]
    return facts, place[-1]


def test_every_fact_of_every_notebook_has_its_probe() -> None:
    for notebook in BOOK.glob("[0-9]*.ipynb"):
        cells = ["".join(c["source"]) for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
        assert len(probes(notebook)) == sum(cell.count("step.collect(") for cell in cells) > 0


@pytest.mark.parametrize("step", ["00-start", "06-timeouts", "07-logs"])
def test_a_changed_record_is_taken_or_refused_in_one_sentence(step: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    path, results = tmp_path / "r.json", set()

    @given(st.data())
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def changed(data: st.DataObject) -> None:
        record = copy.deepcopy(recorded[step])
        held, key = within(record["facts"], data.draw(st.sampled_from(places(record["facts"]))))
        if data.draw(st.booleans()):
            del held[key]
        else:
            held[key] = data.draw(VALUES)
        path.write_text(json.dumps(record))
        try:
            results.add(bool(make_plan(BOOK, [], [], [path])))
        except Unusable as error:
            results.add(False)
            assert "r.json" in str(error) and "\n" not in str(error)

    path.write_text(json.dumps(recorded[step]))
    assert [p.name for p in make_plan(BOOK, [], [], [path])] == [step, "99-verdict"]
    changed()
    assert results == {True, False}


@pytest.mark.parametrize(
    ("fact", "value"),
    [("logs", 5), ("logs", {"ranks": []}), ("logs", [[]]), ("ranks", [{"rank": "first"}]), ("files", 1e308), ("ranks", {})],
)
def test_facts_of_other_types_start_nothing(fact: str, value: Any, recorded: dict[str, Any], tmp_path: Path) -> None:
    record = copy.deepcopy(recorded["07-logs"])
    (record["facts"] if fact == "logs" else record["facts"]["logs"])[fact] = value
    (tmp_path / "r.json").write_text(json.dumps(record))
    ended = read_cli("run", "--record", tmp_path / "r.json", "--out", tmp_path / "out")
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and "r.json" in ended.stderr and "07-logs" in ended.stderr
    assert ended.stdout == "" and not (tmp_path / "out").exists()


def test_facts_that_fit_and_cannot_be_judged_are_wrong_usage_with_the_file(recorded: dict[str, Any], tmp_path: Path) -> None:
    record = {**recorded["00-start"], "facts": {"start": {"reason": "absent", "detail": "somebody else wrote this"}}}
    (tmp_path / "r.json").write_text(json.dumps(record))
    ended = read_cli("run", "--record", tmp_path / "r.json", "--out", tmp_path / "out")
    assert (
        (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
        and "r.json" in ended.stderr
        and not (tmp_path / "out").exists()
    )


@pytest.mark.parametrize("step", ["00-start", "06-timeouts", "07-logs"])
def test_a_changed_record_that_is_taken_is_judged_or_refused_before_anything_is_made(
    step: str, recorded: dict[str, Any], tmp_path: Path
) -> None:
    path, outcomes = tmp_path / "r.json", set()

    @given(st.data())
    @settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    def changed(data: st.DataObject) -> None:
        record = copy.deepcopy(recorded[step])
        for _ in range(data.draw(st.integers(1, 3))):
            held, key = within(record["facts"], data.draw(st.sampled_from(places(record["facts"]))))
            held[key] = data.draw(st.sampled_from([None, [], {}, "", -1, 10**9, {"reason": "absent", "detail": "x"}]))
        path.write_text(json.dumps(record))
        try:
            plan = make_plan(BOOK, [], [], [path])
        except Unusable:
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                check_records(plan, folder)
                outcomes.add("judged")
            except RecordError as error:
                outcomes.add("refused")
                assert "r.json" in str(error) and "\n" not in str(error)

    path.write_text(json.dumps(recorded[step]))
    with tempfile.TemporaryDirectory() as folder:
        check_records(make_plan(BOOK, [], [], [path]), folder)
        assert json.loads((Path(folder) / f"{step}.json").read_text())["status"] != "running"
    changed()
    assert "judged" in outcomes


@pytest.mark.parametrize("cell", ["import sys\nsys.exit()", "display('x')", "print('seen')"])
def test_a_notebook_of_the_readers_own_runs_only_in_its_kernel(cell: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(recorded["07-logs"]))
    once = f"import os\nopen({str(tmp_path / 'ran')!r}, 'a').write('x')\n"
    book = make_book(tmp_path / "book", n07_logs=[once + cell, GOOD])
    ended = read_cli("run", "--notebooks", book, "--record", tmp_path / "r.json", "--out", tmp_path / "out", "--json")
    assert json.loads(ended.stdout)["exit_code"] == ended.returncode and (tmp_path / "ran").read_text() == "x", ended.stderr


@pytest.mark.parametrize(
    "call",
    [
        "step.collect('x', probe=p)",
        "step.collect(name, p)",
        "step.collect('x', q)",
        "step.collect(*both)",
        "step.collect('x', Job)",
        "step.collect('x', p.nothing)",
    ],
)
def test_a_call_that_cannot_be_read_has_no_probe(call: str, recorded: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(recorded["07-logs"]))
    imports = (
        "from nccl_runbook.messages.read import collect as p\nfrom nccl_runbook.nowhere import q\nfrom nccl_runbook.core.records import"
        " Record as Job\n"
    )
    book = make_book(tmp_path / "book", n07_logs=imports + call, n99_verdict=GOOD)
    assert probes(book / "07-logs.ipynb") == {}
    assert [p.name for p in make_plan(book, [], [], [tmp_path / "r.json"])] == ["07-logs", "99-verdict"]


@pytest.mark.parametrize(
    ("cell", "is_refused"), [("assert record_path and run_dir", False), ("import sys\nsys.exit()", True), ("assert not record_path", True)]
)
def test_values_stand_behind_the_parameters_wherever_these_are(
    cell: str, is_refused: bool, recorded: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(recorded["07-logs"]))
    book = make_book(tmp_path / "book", n07_logs="print('seen')\n" + cell)
    notebook = json.loads((book / "07-logs.ipynb").read_text())
    notebook["cells"].insert(0, {**notebook["cells"][-1], "id": "first", "source": "import os"})
    (book / "07-logs.ipynb").write_text(json.dumps(notebook))
    plan = make_plan(book, [], [], [tmp_path / "r.json"])
    if is_refused:
        with pytest.raises(RecordError, match="r.json"):
            check_records(plan, str(tmp_path))
    else:
        check_records(plan, str(tmp_path))
    assert capfd.readouterr().out == ""
