"""`watch` beside real ranks: it looks once they stand still, and only then."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import live_worlds as worlds
import pytest
from book_samples import CLI, run_cli, with_library
from nccl_runbook.look.progress import Progress
from processes import ROOT

SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/look.json").read_text())
QUICK = ("--after", "4s", "--every", "0.5", "--gap", "1.6")
STANDS = "import time\ntime.sleep(300)"
WRITES = "import threading, time\nthreading.Thread(target=lambda: [(print('step', flush=True), time.sleep(0.1)) for _ in range(3000)], daemon=True).start()\n" + STANDS


@contextmanager
def rank(code: str, log: Path, **more: str) -> Iterator[int]:
    """A process that is a rank as far as its environment says."""
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", **more}
    with log.open("w") as out, subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=out, env=env) as running:
        try:
            yield running.pid
        finally:
            running.kill()


def watched(*words: object, **more: str) -> tuple[int, dict, str]:
    ended = run_cli("watch", *map(str, words), "--json", timeout=120, **more)
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    return ended.returncode, document, ended.stderr


def test_a_job_that_hangs_is_looked_at_and_leaves_its_page(tmp_path: Path) -> None:
    with worlds.launcher() as running:
        pids = worlds.start(running, tmp_path / "world", "skip")
        code, document, _ = watched("--pid", pids[0], *QUICK, "--html", tmp_path / "hang.html", "--save", tmp_path / "node1.json")
        worlds.end(running)
    truth = json.loads((tmp_path / "world" / "truth.json").read_text())
    assert (code, document["verdict"], document["jobs"][0]["kind"]) == (3, "broken", truth["kind"])
    assert [c["rank"] for c in document["jobs"][0]["culprits"]] == truth["culprits"]
    assert "NCCL Runbook</title>" in (tmp_path / "hang.html").read_text()
    joined = json.loads(run_cli("look", "--record", tmp_path / "node1.json", "--json").stdout)
    assert [c["rank"] for c in joined["jobs"][0]["culprits"]] == truth["culprits"]


def test_a_job_that_runs_to_its_end_is_left_alone(tmp_path: Path) -> None:
    with worlds.launcher() as running:
        pids = worlds.start(running, tmp_path / "world", "healthy")
        with subprocess.Popen([*CLI, "watch", "--pid", str(pids[0]), *QUICK, "--html", str(tmp_path / "hang.html"), "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=with_library()) as watching:
            time.sleep(10)  # long enough for a look, as its ranks are always seen at one line
            assert watching.poll() is None
            worlds.end(running)
            said, _ = watching.communicate(timeout=60)
    assert (watching.returncode, json.loads(said)["verdict"], json.loads(said)["jobs"]) == (4, "unknown", [])
    assert not (tmp_path / "hang.html").exists()


def test_a_rank_that_writes_its_log_moves_and_one_that_sleeps_does_not(tmp_path: Path) -> None:
    with rank(STANDS, tmp_path / "stands.log") as stands, rank(WRITES, tmp_path / "writes.log", MASTER_PORT="29512") as writes:
        time.sleep(1)
        progress = Progress()
        for _ in range(5):
            progress.ask([stands, writes])
            time.sleep(0.5)
        assert progress.still_s[stands] > 1.5 > 1.0 > progress.still_s[writes]
        progress.again([stands])
        progress.ask([stands, writes])
        assert progress.still_s[stands] < 1.0


def test_the_ranks_of_another_slurm_job_are_not_watched(tmp_path: Path) -> None:
    with rank("import time\ntime.sleep(12)", tmp_path / "own.log", SLURM_JOB_ID="77001"), rank(STANDS, tmp_path / "other.log", SLURM_JOB_ID="77002", MASTER_PORT="29513"):
        code, document, said = watched("--job", 77001, "--after", "15s", "--every", "0.5", "--html", tmp_path / "hang.html")
    assert (code, document["verdict"]) == (4, "unknown")
    assert "1 rank found" in said


def test_ranks_that_a_launcher_starts_again_are_watched_on(tmp_path: Path) -> None:
    """Each attempt is a rank of 4 s; 4 s lie between them."""
    again = f"for n in 1 2; do RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29514 {sys.executable} -c 'import time; time.sleep(4)'; sleep 4; done"
    with subprocess.Popen(["bash", "-c", again]) as launcher:
        began = time.monotonic()
        code, document, _ = watched("--pid", launcher.pid, "--after", "1m", "--every", "0.5", "--html", tmp_path / "hang.html")
    assert (code, document["verdict"]) == (4, "unknown") and time.monotonic() - began > 11


def test_a_process_that_ends_before_it_has_a_rank_is_unknown(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "3"]) as launcher:
        code, document, _ = watched("--pid", launcher.pid, "--every", "0.5", "--html", tmp_path / "hang.html")
    assert (code, document["verdict"]) == (4, "unknown")


@pytest.mark.parametrize("job", [True, False])
def test_a_job_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path, job: bool) -> None:
    # no child of this process, which may have torch and so be taken for its rank
    stranger = int(subprocess.run(["bash", "-c", "sleep 60 > /dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True).stdout)
    began = time.monotonic()
    whose = ("--job", 77003) if job else ("--pid", stranger)
    code, document, words = watched(*whose, "--wait", "3s", "--every", "0.5", "--html", tmp_path / "hang.html")
    os.kill(stranger, signal.SIGKILL)
    assert (code, document["verdict"], document["jobs"]) == (4, "unknown", []) and 3 < time.monotonic() - began < 50, words


@pytest.mark.parametrize("words", [("--after", "soon"), ("--wait", "soon"), ("--after", "0"), ("--every", "0"), ("--pid", "999999999"), ("--html", "nowhere/hang.html"), ("--save", "nowhere/x.json")])
def test_wrong_usage_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = run_cli("watch", "--html", str(tmp_path / "hang.html"), *words)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(("words", "option"), [
    (("watch", "--wait", "1x"), "--wait"), (("watch", "--after", "x"), "--after"), (("soak", "--for", "x"), "--for"), (("soak", "--run-limit", "0"), "--run-limit"),
    (("ab", ".", "A=1", "--budget", "x"), "--budget"), (("sync", "--budget", "x"), "--budget"), (("hosts", "--budget", "x", "a", "b"), "--budget"),
    (("run", "--budget", "x"), "--budget"), (("sync", "--receivers-busy", "x"), "--receivers-busy"), (("sync", "--repeats", "0"), "--repeats"),
    (("sync", "--tensor-parallel", "0"), "--tensor-parallel")])
def test_a_wrong_duration_or_number_is_refused_with_the_name_of_its_option(words: tuple[str, ...], option: str, tmp_path: Path) -> None:
    ended = run_cli(*words, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1) and option in ended.stderr


@pytest.mark.parametrize("command", [("sync",), ("ab", ".", "A=1", "--sync", "Qwen/Qwen2.5-0.5B")])
def test_more_layers_than_the_model_has_are_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = run_cli(*command, "--layers", "99", cwd=tmp_path)
    assert ended.returncode == 2 and {"99", "24"} <= set(re.findall(r"\d+", ended.stderr)), ended.stderr


def test_the_wait_for_the_first_rank_is_no_longer_than_asked(tmp_path: Path) -> None:
    began = time.monotonic()
    code, document, words = watched("--job", 77004, "--wait", "1s", "--html", tmp_path / "hang.html")
    assert (code, document["jobs"]) == (4, []) and time.monotonic() - began < 9, f"--every is 10 s: {words}"
