"""A command, a collective or a weight sync, run again and again: what is counted, what is kept, and how it ends."""
from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
from book_samples import start_cli
from hypothesis import given, strategies as st
from nccl_runbook.compare.facts import Difference
from nccl_runbook.compare.soak import judge, table
from nccl_runbook.compare.soak.facts import Run, Soak
from nccl_runbook.core.facts import Gap
from warm_cli import read_cli

NO_GPU = Gap("absent", "no NVML")
# fails at every third call unless SAFE is set, and prints a figure
FLAKY = """n=$(cat count 2>/dev/null || echo 0); n=$((n + 1)); echo $n > count
if [ "$SAFE" != 1 ] && [ $((n % 3)) = 0 ]; then echo "RuntimeError: batch $n"; exit 7; fi
echo "sync took 0.25 s"
"""


def soak(a: str, b: str = "", **more: object) -> Soak:
    """``a``, ``b``: one letter a run, p for passed."""
    runs = [
        Run(arm, 1.0 * n, "passed" if letter == "p" else "exit code 1", 0.5, {"s": [0.1]})
        for arm, letters in (("A", a), ("B", b))
        for n, letter in enumerate(letters)
    ]
    differences = [Difference("NCCL_X", "not set", "1")] if b else []
    fields = {"before": NO_GPU, "after": NO_GPU, **more}
    return Soak("your command: x", "s", differences, runs, "60 s are over", 60.0, **fields)  # type: ignore[arg-type]


def ids(of: Soak) -> list[str]:
    return [finding.id for finding in judge.judge(of)]


@pytest.mark.parametrize(("a", "b", "expected"), [
    ("", "", ["soak-no-run"]), ("ppppp", "", ["soak-passed"]), ("ppfpp", "", ["soak-failed"]),
    ("p" * 20, "p" * 20, ["soak-passed", "soak-same-rate"]), ("pf" * 10, "p" * 20, ["soak-failed", "soak-rates-differ"]),
    ("pf" * 2, "p" * 4, ["soak-failed", "soak-same-rate"]),
    ("p" * 20, "f" * 20, ["soak-passed", "soak-rates-differ"])])
def test_failures_and_the_difference_of_two_settings(a: str, b: str, expected: list[str]) -> None:
    assert ids(soak(a, b)) == expected


@pytest.mark.parametrize(("a", "b", "intervals"), [("ppf", "", 1), ("pf", "ff", 0)])
def test_the_first_line_of_a_failure_counts_and_its_evidence_has_the_interval_once(a: str, b: str, intervals: int) -> None:
    failed, *compared = judge.judge(soak(a, b))
    assert "%" not in failed.title and sum("%" in e.text for e in failed.evidence) == intervals
    assert sum("%" in e.text for f in compared for e in f.evidence) == 2 * bool(b)


def test_without_other_settings_no_set_up_is_shown() -> None:
    alone, both = (table.tables(soak(*arms)) for arms in (("ppf",), ("ppf", "ppp")))
    assert [[t.columns[at] for at in t.filled].count("set-up") for t in (*alone, *both)] == [0, 0, 1, 1]
    assert "set-up" not in repr(alone[0]).split() and "A (" not in judge.judge(soak("ppf"))[0].title


# two-sided, as scipy.stats.fisher_exact 1.17.1 gives them
@pytest.mark.parametrize(
    ("counts", "p"), [((1, 10, 8, 10), 0.005477), ((3, 20, 5, 20), 0.6948), ((10, 30, 0, 30), 0.0007970), ((0, 5, 0, 5), 1.0)]
)
def test_the_probability_is_that_of_fishers_exact_test(counts: tuple[int, int, int, int], p: float) -> None:
    assert judge.fisher(*counts) == pytest.approx(p, rel=1e-3)


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_the_probability_does_not_depend_on_which_arm_comes_first(runs_a: int, runs_b: int, data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, runs_a)), data.draw(st.integers(0, runs_b))
    p = judge.fisher(a, runs_a, b, runs_b)
    assert 0 < p <= 1 and math.isclose(p, judge.fisher(b, runs_b, a, runs_a), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ({0: {"uncorrected ECC errors": 0}}, {0: {"uncorrected ECC errors": 2}}, 1),
        ({0: {"NVLinks up": 18}}, {0: {"NVLinks up": 17}}, 1),
        ({0: {"NVLinks up": 17}}, {0: {"NVLinks up": 18}}, 0),
        ({0: {"remapped rows": 1}}, {0: {"remapped rows": 1}}, 0),
        ({0: {"PCIe lanes": 16}}, {}, 0),
        (NO_GPU, {0: {"PCIe lanes": 8}}, 0),
    ],
)
def test_a_counter_that_gets_worse_is_named(before: object, after: object, moved: int) -> None:
    assert ids(soak("pp", before=before, after=after)).count("gpu-counter-moved") == moved


@pytest.mark.parametrize(
    ("b", "line"), [("a b;c", "export NCCL_X='a b;c'"), ("not set", "unset NCCL_X"), ("set, not shown", "export NCCL_X=   # your value")]
)
def test_a_workaround_is_a_line_for_a_shell(b: str, line: str) -> None:
    better = dataclasses.replace(soak("pf" * 10, "p" * 20), differences=[Difference("NCCL_X", "1", b)])
    assert judge.judge(better)[0].remedy[0].lines == (line,)


def test_the_bound_an_hour_counts_the_time_of_the_users_settings_alone() -> None:
    runs = [Run("A", 0.0, "passed", 1.0, {}), Run("B", 1.0, "passed", 3599.0, {})]
    bounds = [e.text for e in judge.judge(dataclasses.replace(soak("p", "p"), runs=runs, wall_s=3600.0))[0].evidence]
    assert any("11,000 failures per hour" in text for text in bounds)


def test_failed_runs_have_a_table_of_their_own_and_no_figures() -> None:
    figures, failed = table.tables(soak("ppfp"))
    assert figures.rows[0][2].text == "3" and [row[0].text for row in failed.rows] == ["3"]
    assert len(table.tables(soak("pppp"))) == 1


def test_a_command_that_fails_now_and_then_is_compared_with_a_setting_that_cures_it(tmp_path: Path) -> None:
    (tmp_path / "flaky.sh").write_text(FLAKY)
    ended = read_cli(
        "soak",
        "--for",
        "60s",
        "--runs",
        "48",
        "--failures",
        "99",
        "--against",
        "SAFE=1",
        "--figure",
        "took ([0-9.]+)",
        "--json",
        "--out",
        tmp_path / "kept",
        "--html",
        tmp_path / "soak.html",
        "--",
        "bash",
        "flaky.sh",
        cwd=tmp_path,
        timeout=120,
    )
    document = json.loads(ended.stdout)
    rows = [json.loads(line) for line in (tmp_path / "kept" / "runs.jsonl").read_text().splitlines()]
    assert ended.returncode == 3 and document["verdict"] == "broken" and len(rows) == 48, ended.stderr
    assert document["arms"]["A"]["failed"] == sum(r["ended"] == "exit code 7" for r in rows) > 5 and document["arms"]["B"]["failed"] == 0
    assert [f["id"] for f in document["findings"]] == ["soak-failed", "soak-rates-differ"]
    assert document["findings"][0]["replacement"].splitlines()[0] == "export SAFE=1"
    assert (
        "RuntimeError: batch" in (tmp_path / "kept" / "failed.log").read_text() and "NCCL Runbook" in (tmp_path / "soak.html").read_text()
    )


def test_it_ends_at_the_first_failure_unless_more_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "flaky.sh").write_text(FLAKY)
    document = json.loads(read_cli("soak", "--for", "60s", "--json", "--out", "kept", "--", "bash", "flaky.sh", cwd=tmp_path).stdout)
    assert document["arms"]["A"]["runs"] == 3 and document["arms"]["A"]["failed"] == 1


def test_a_collective_of_real_ranks(tmp_path: Path) -> None:
    document = json.loads(read_cli("soak", "--runs", "3", "--json", "--out", tmp_path / "kept", timeout=150).stdout)
    assert document["verdict"] == "unknown" and [f["id"] for f in document["findings"]] == ["soak-rehearsed"], "over Gloo"
    assert document["exit_code"] == 4 and len(document["arms"]["A"]["figures"]["all_reduce"]) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_what_was_run_is_kept_when_it_is_ended(tmp_path: Path, number: int, code: int) -> None:
    runs = tmp_path / "kept" / "runs.jsonl"
    with start_cli("soak", "--for", "5m", "--json", "--out", tmp_path / "kept", "--", "sleep", "0.3", cwd=tmp_path) as running:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (runs.exists() and runs.read_text().count("\n") >= 2):
            time.sleep(0.1)
        os.kill(running.pid, number)
        said, errors = running.communicate(timeout=30)
    assert running.returncode == code and len([json.loads(line) for line in runs.read_text().splitlines()]) >= 2, errors
    assert number == signal.SIGKILL or json.loads(said)["arms"]["A"]["failed"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--for", "soon"],
        ["--failures", "0"],
        ["--", "no-such-program-here"],
        ["--figure", "x"],
        ["--against", "no-such-file.env"],
        ["--sync", "no/such-model"],
        ["--collective", "all_to_none"],
        ["--size", "-5"],
        ["--against", "HOME=" + os.environ.get("HOME", "")],
        ["--out", "/no/such/folder/kept"],
    ],
)
def test_wrong_words_are_refused_in_one_sentence(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = read_cli("soak", *([] if "--out" in words else ["--out", "kept"]), *words)
    assert ended.returncode == 2 and len(ended.stderr.strip().splitlines()) == 1 and not ended.stdout, ended.stderr


def test_a_folder_that_is_there_is_not_written_into(tmp_path: Path) -> None:
    ended = read_cli("soak", "--out", tmp_path, "--", "true")
    assert ended.returncode == 2 and not list(tmp_path.iterdir())
