"""The benchmark of failure reports: its samples and addresses, and what the scorer counts."""
from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent / "benchmark"
sys.path.insert(0, str(HERE))
import reports  # noqa: E402
from nccl_runbook.causes.causes import causes  # noqa: E402

# of the samples, as scored on 2026-11-30: a change that makes an answer wrong, or loses a cause, has to be seen
LEAST = {"cause first": 171, "cause among three": 181, "likely or established, and right": 125, "first remedy right": 168}
MOST = {"likely or established, and wrong": 1, "healthy runs accused": 0}


def test_every_cause_has_three_samples_and_labels_are_causes() -> None:
    cases = list(reports.samples())
    counts = Counter(case["cause"] for case in cases)
    assert {cause: counts[cause] for cause in causes() if counts[cause] < 3} == {} and counts["benign"] >= 10
    assert {name for case in cases for name in (case["cause"], *case["also"])} <= set(causes())
    assert all(case["text"].strip() and (case["fix"] or case["cause"] == "benign") and re.compile(case["fix"]) for case in cases)
    assert len({case["text"] for case in cases}) == len(cases)


def test_the_tool_does_not_fall_behind_on_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    reports.main(["--json"])
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert {q: scores[q][0] for q in LEAST if scores[q][0] < LEAST[q]} == {} and {
        q: scores[q][0] for q in MOST if scores[q][0] > MOST[q]
    } == {}


def test_addresses_are_labelled_once_and_hold_no_text() -> None:
    rows = [json.loads(line) for name in ("reports.jsonl", "drawn.jsonl") for line in (HERE / name).read_text().splitlines()]
    fields = {"sample", "id", "url", "date", "versions", "cause", "also", "established_by", "decisive", "fix", "opened", "query", "rank"}
    assert len({row["url"] for row in rows}) == len(rows) >= 200 and {name for row in rows for name in row} <= fields
    assert all(row["cause"] in causes() or row["cause"] == "undecidable" or row["cause"].startswith("other") for row in rows)
    assert {reports.half(row["url"]) for row in rows} == {"public", "held-back"}
    assert reports.half("https://github.com/NVIDIA/nccl/issues/2167") == reports.half("https://github.com/NVIDIA/nccl/issues/2167")


def test_other_taxonomies_are_mapped_to_causes() -> None:
    rows = list(csv.DictReader((HERE / "taxonomies.tsv").open(), delimiter="\t"))
    assert {row["taxonomy"] for row in rows} == {"torchcomms", "NVRx"} and len({(row["taxonomy"], row["name"]) for row in rows}) == len(
        rows
    )
    assert all(set(row["causes"].split()) <= set(causes()) and (row["causes"] or row["remark"]) for row in rows)


CASE = {"id": "1", "cause": "shm-too-small", "also": ["ulimit-too-low"], "decisive": True, "fix": "shm-size", "text": "x"}


@pytest.mark.parametrize(("answer", "hits"), [
    ([{"id": "shm-too-small", "sure": True, "remedy": "docker --shm-size=8g"}], {"first", "third", "is_sure", "is_remedy", "accused"}),
    ([{"id": "ulimit-too-low", "sure": False}], {"first", "third", "accused"}),
    ([{"id": "nccl-bug", "sure": True, "remedy": "shm-size"}], {"wrong", "is_remedy", "accused"}),
    ([{"id": "nccl-bug", "sure": False}, {"id": "shm-too-small", "sure": True}], {"third", "is_sure", "accused"}),
    ([{"id": "benign", "sure": True}], {"wrong"}),
    ([{"id": "nccl-bug", "sure": False, "fits": True}], set()),
    ([], set())])
def test_what_counts_as_a_hit(answer: list[dict[str, Any]], hits: set[str]) -> None:
    got = reports.result(CASE, answer)
    assert {name for name in ("first", "third", "is_sure", "wrong", "is_remedy", "accused") if got[name]} == hits


def test_a_healthy_run_is_no_fault_and_an_undecidable_report_only_can_be_wrong() -> None:
    healthy, open_case = {**CASE, "cause": "benign", "also": []}, {**CASE, "cause": "undecidable", "also": []}
    sure = [{"id": "nccl-bug", "sure": True}]
    assert reports.scores([reports.result(healthy, sure), reports.result(open_case, [])]) == {
        "likely or established, and wrong": [1, 2],
        "healthy runs accused": [1, 1],
    }


def test_another_command_is_scored_by_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(
        "import json, sys\ntext = open(sys.argv[-1]).read()\nprint(json.dumps({'causes': [{'id': 'peer-crashed', 'sure': 'Traceback' in"
        " text}]}))\n"
    )
    reports.main(["--tool", f"{sys.executable} {tool}", "--json"])
    document = json.loads(capsys.readouterr().out)
    first = [case["id"] for case in document["cases"] if case["first"]]
    assert [case["id"] for case in document["cases"] if case["cause"] == "peer-crashed"] == first and document["scores"]["cause first"][
        0
    ] == len(first) > 0
    with pytest.raises(SystemExit, match="no JSON"):
        reports.command("true")(tool)


def test_reports_are_read_from_a_folder_that_the_user_filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(json.loads(line) for line in (HERE / "reports.jsonl").read_text().splitlines() if "shm-too-small" in line)
    (tmp_path / f"{row['id']}.report.txt").write_text(
        "NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9 bytes, error: No space left on device (28)\n"
    )
    reports.main([str(tmp_path), "--json"])
    case, = json.loads(capsys.readouterr().out)["cases"]
    assert case["id"] == row["id"] and case["first"] and case["half"] == reports.half(row["url"])
