"""`read_cli` says what the installed command says, and no call leaves anything to the next."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from book_samples import run_cli
from processes import ROOT
from warm_cli import read_cli

HANG = ROOT / "tests" / "data" / "hang" / "skip"
LOG = "canaryhost:1:1 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n"


@pytest.mark.parametrize(
    "words",
    [
        ["triage", "job.log", "--json"],
        ["triage", "job.log"],
        ["diagnose", HANG, "--json"],
        ["hang", HANG, "--html", "page.html"],
        ["env", "job.sh"],
        ["plan", "sglang:d1+fsdp:d1", "--gpus", "1"],
        ["plan", "x"],
        ["ab", ".", "'"],
        ["run", "--step", "nope"],
        ["look", "--record", "none"],
        ["sync", "--trace", "none"],
        ["reduce"],
        ["hang", "--help"],
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_it_answers_as_a_new_interpreter_does(words: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.log").write_text(LOG)
    (tmp_path / "job.sh").write_text("export NCCL_DEBUG=ERROR\n")
    monkeypatch.chdir(tmp_path)
    new, warm = run_cli(*words), read_cli(*words)
    assert (warm.returncode, warm.stdout, warm.stderr) == (new.returncode, new.stdout, new.stderr)
    assert warm.cpu_s > 0 and warm.peak_bytes > 10 << 20


def test_a_call_changes_nothing_for_the_next(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(LOG)
    said = [read_cli("triage", log, "--json", *more, env={**os.environ, "HOME": str(tmp_path)}).stdout for more in ((), ("--share",), ())]
    assert ["canaryhost" in text for text in said] == [True, False, True] and said[0] == said[2]


def test_a_call_that_takes_too_long_ends_and_the_next_is_answered(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("true\n")
    with pytest.raises(subprocess.TimeoutExpired):
        read_cli("ab", ".", "A=1", "--rounds", "1", "--", "sleep", "60", timeout=1.0)
    assert read_cli("env", tmp_path / "run.sh").returncode in (0, 4)
