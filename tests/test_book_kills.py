"""kill -9 and SIGTERM under a notebook whose ranks are at work: nothing of ours is left, and the report claims nothing."""
from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from book_samples import GOOD, make_book, start_cli, with_library
from nccl_runbook.core.records import read
from nccl_runbook.report.verdict_document import VerdictDocument
from processes import children, gone, start_time

RANKS = 3
BUSY = """from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.step import open_step
step = open_step("{name}", globals())
arguments = ["--ops", "all_reduce", "--sizes", "4", "--repeats", "100000000"]
answer = step.engine.run(WorldRequest("busy", "check.py", [None] * RANKS, arguments, {}, 60))
step.finish([Finding("seen", Severity.OK, "it came back")])""".replace("RANKS", str(RANKS))


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def at_work(runner: int) -> dict[str, list[int]]:
    """The processes below the runner once all ranks are there: kernel, warm process and ranks (they are its forks)."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        below = {pid: command(pid) for pid in children(runner)}
        forks = [pid for pid, line in below.items() if "warm.py" in line]
        if len(forks) == 1 + RANKS:
            return {"kernel": [pid for pid, line in below.items() if "ipykernel" in line], "warm": forks[:1], "all": list(below)}
        time.sleep(0.02)
    raise AssertionError("the ranks did not start")


@pytest.mark.parametrize(("who", "number", "code"), [("runner", signal.SIGTERM, 143), ("runner", signal.SIGKILL, -9),
                                                      ("kernel", signal.SIGKILL, 4), ("warm", signal.SIGKILL, 0)])
def test_whoever_is_killed_no_process_of_ours_is_left(who: str, number: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    book = make_book(tmp_path / "notebooks", n01_good=GOOD, n03_ranks=BUSY, n99_verdict=GOOD)
    runner = start_cli("run", "--notebooks", book, "--out", tmp_path / "out", "--python", sys.executable,
                       env={**with_library(), "TMPDIR": str(tmp_path / "tmp")})
    seen = at_work(runner.pid)
    assert len(seen["kernel"]) == 1
    identities = {pid: start_time(pid) for pid in seen["all"]}
    ranks = {pid: start for pid, start in identities.items() if pid not in seen["kernel"]}
    os.kill({"runner": runner.pid, "kernel": seen["kernel"][0], "warm": seen["warm"][0]}[who], number)
    assert gone(ranks, within_s=15 if (who, number) == ("runner", signal.SIGKILL) else 5.0), "ranks outlive what started them"
    runner.communicate(timeout=60)
    assert runner.returncode == code and gone(identities)
    assert not list((tmp_path / "tmp").iterdir()), "not even a warm process that was killed leaves its folder"
    document = read(VerdictDocument, (tmp_path / "out" / "verdict.json").read_bytes())
    steps = {s.notebook: (s.status, s.reason) for s in document.steps}
    assert steps["01-good"] == ("ok", "all well")
    # the notebook itself survives its warm process, and judges what it saw: here it asks nothing of the world
    assert steps["03-ranks"][0] == ("ok" if who == "warm" else "unknown")
    if who == "runner":
        assert (document.verdict, document.exit_code, document.run.interrupted) == ("unknown", max(code, 4), number == signal.SIGTERM)
        assert "<html" in (tmp_path / "out" / "index.html").read_text()
        said = "interrupted (SIGTERM)" if number == signal.SIGTERM else "still at work"
        assert steps["03-ranks"][1] == said
