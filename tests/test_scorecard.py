"""The scorecard: what it counts, and what becomes of an answer of the gym."""
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scorecard
from nccl_runbook.causes.causes import causes
from nccl_runbook.gym.facts import jobs


def gym(*rows: tuple[str, str, str | None]) -> dict[str, Any]:
    """What `dev gym --json` prints for (job, outcome, cause that was named)."""
    return {
        "on": "cpu",
        "sentence": "",
        "faults": [
            {
                "fault": name,
                "outcome": outcome,
                "expected": {"causes": list(jobs()[name].causes)},
                "answer": [{"outcome": outcome, "cause": cause, "took_s": 1.5}],
            }
            for name, outcome, cause in rows
        ],
    }


def added(*rows: tuple[str, str, str | None]) -> dict[str, Any]:
    return scorecard.of_gym(gym(*rows), "1 H200", "2026-12-01", "abc")


def test_an_answer_of_the_gym_becomes_one_row() -> None:
    row = added(
        ("stopped", "right", "peer-stopped"),
        ("raises", "wrong", "data-stall"),
        ("works-short", "wrong", "peer-crashed"),
        ("works-spawn", "right", None),
    )
    assert row["faults"] == {"stopped": [1, 0, 0], "raises": [0, 0, 1]} and row["works"] == [2, 1]
    assert row["answered"] == {"stopped": "peer-stopped", "raises": "data-stall"} and set(row["took_s"].values()) == {1.5}


def test_outcomes_add_up_over_runs_and_stay_apart_by_hardware() -> None:
    first, second = added(("stopped", "right", "peer-stopped")), added(("stopped", "undecided", None))
    elsewhere = {**first, "hardware": "CPU"}
    counts = scorecard.tally([first, second, elsewhere])
    assert (
        counts[("gym", "stopped", "1 H200")] == Counter(right=1, undecided=1, wrong=0) and counts[("gym", "stopped", "CPU")]["right"] == 1
    )
    line, = (row for row in scorecard.summary_table([first, second]).rows)
    assert list(line[2:5]) == [1, 1, 0]


def test_a_wrong_cause_is_shown_beside_the_one_that_was_planted() -> None:
    rows = [added(("stopped", "wrong", "data-stall")), added(("stopped", "right", "peer-stopped"))]
    assert [list(row) for row in scorecard.confusion_table(rows).rows] == [["peer-stopped", 1, 0, 1, "data-stall: 1"]]


@pytest.mark.parametrize(
    ("runs", "alarms", "words"), [(17, 0, "below 18%"), (1, 0, "below 100%"), (100, 0, "below 3%"), (10, 1, "1.8% to 40.4%")]
)
def test_the_bound_of_false_alarms(runs: int, alarms: int, words: str) -> None:
    assert scorecard.bound(runs, alarms) == words


def test_a_fault_on_the_cpu_is_not_one_that_was_seen_on_hardware() -> None:
    on_cpu, on_gpu = {**added(("gpu-network", "right", "net-plugin-failed")), "hardware": "CPU"}, added(
        ("gpu-network", "right", "net-plugin-failed")
    )
    never = ["gpu-network" in str(scorecard.unseen_table(rows).rows[1][2]) for rows in ([on_cpu], [on_gpu])]
    assert never == [True, False]


def test_each_row_of_evidence_can_be_counted() -> None:
    for row in scorecard.evidence():
        assert {"date", "subject", "what"} <= set(row) and (row["subject"] == "remark" or row["command"]), row
        assert not {"faults", "works", "took_s", "seconds"} & set(row) or (row["subject"] in scorecard.SUBJECTS and row["hardware"]), row
        assert all(len(counts) == 3 and sum(counts) for counts in row.get("faults", {}).values()) and set(row.get("answered", {})) <= set(
            row.get("faults", {})
        ), row
        assert all(0 <= hits <= of for hits, of in row.get("scores", {}).values()), row
    assert set(scorecard.CAUSE) <= set(causes())


def test_the_command_adds_the_row_and_writes_page_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "evidence.jsonl"
    kept.write_text(scorecard.EVIDENCE.read_text())
    monkeypatch.setattr(scorecard, "EVIDENCE", kept)
    before = len(scorecard.evidence())
    (tmp_path / "gym.json").write_text(json.dumps(gym(("stopped", "wrong", "data-stall"))))
    for words, rows in ((["--hardware", "8 B200"], before), (["--hardware", "8 B200", "--add"], before + 1)):
        scorecard.main([str(tmp_path / "gym.json"), *words, "--out", str(tmp_path / "out")])
        document = json.loads((tmp_path / "out" / "scorecard.json").read_text())
        assert len(scorecard.evidence()) == rows and len(document["runs"]) == before + 1
        assert [row["wrong"] for row in document["summary"] if row["hardware"] == "8 B200"] == [1] and "8 B200" in (
            tmp_path / "out" / "index.html"
        ).read_text()


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ("right", "right", 0),
        ("right", "undecided", 1),
        ("right", "wrong", 1),
        ("undecided", "undecided", 0),
        ("undecided", "wrong", 1),
        (None, "undecided", 0),
        (None, "wrong", 1),
    ],
)
def test_the_gym_fails_on_what_was_right_and_is_not(before: str | None, now: str, lost: int) -> None:
    older = [added(("stopped", "right", "peer-stopped"))] * (before == "undecided")  # the last run counts
    rows = [*older, *([added(("stopped", before, None))] if before else [])]
    assert len(scorecard.worse(rows, [added(("stopped", now, None))])) == lost


@pytest.mark.parametrize(("on_cpu", "on_gpus", "lost"), [("right", "undecided", 1), ("undecided", "right", 0), (None, "right", 0)])
def test_a_run_is_compared_with_the_last_one_on_its_hardware(on_cpu: str | None, on_gpus: str, lost: int) -> None:
    rows = [{**added(("stopped", on_cpu, None)), "hardware": "CPU"}] if on_cpu else []
    now = {**added(("stopped", "undecided", None)), "hardware": "CPU"}
    assert len(scorecard.worse([*rows, added(("stopped", on_gpus, None))], [now])) == lost


def test_the_gym_fails_on_a_false_alarm() -> None:
    assert [len(scorecard.worse([], [added(("works-short", outcome, None))])) for outcome in ("right", "wrong")] == [0, 1]
