"""`watch` beside real ranks: it looks once they stand still, and only then."""
from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import live_worlds as worlds
import pytest
from book_samples import start_cli, with_library
from nccl_runbook.look.progress import Progress
from processes import ROOT, crowded
from warm_cli import read_cli

SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/look.json").read_text())
QUICK = ("--after", "4s", "--every", "0.5", "--gap", "1.6")
STANDS = "import time\ntime.sleep(300)"
WRITES = (
    "import threading, time\nthreading.Thread(target=lambda: [(print('step', flush=True), time.sleep(0.1)) for _ in range(3000)],"
    " daemon=True).start()\n"
    + STANDS
)


@contextmanager
def rank(code: str, log: Path, **more: str) -> Iterator[int]:
    """A process that is a rank as far as its environment says."""
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", **more}
    with log.open("w") as out, subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=out, env=env) as running:
        try:
            yield running.pid
        finally:
            running.kill()


def watched(*words: object) -> tuple[int, dict, str]:
    ended = read_cli("watch", *map(str, words), "--json")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    return ended.returncode, document, ended.stderr


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """What each function below saw: all at the same time, as they mostly wait."""
    with ThreadPoolExecutor(len(SCENES)) as pool:
        yield {scene.__name__: pool.submit(scene, tmp_path_factory.mktemp(scene.__name__)) for scene in SCENES}


def hangs(folder: Path) -> tuple[int, dict, dict, list[int]]:
    with worlds.launcher() as running:
        pids = worlds.start(running, folder / "world", "skip")
        code, document, _ = watched("--pid", pids[0], *QUICK, "--html", folder / "hang.html", "--save", folder / "node1.json")
        worlds.end(running)
    assert "NCCL Runbook</title>" in (folder / "hang.html").read_text()
    joined = json.loads(read_cli("look", "--record", folder / "node1.json", "--json").stdout)
    return code, document, json.loads((folder / "world" / "truth.json").read_text()), [c["rank"] for c in joined["jobs"][0]["culprits"]]


def runs_to_its_end(folder: Path) -> tuple[int, dict, bool]:
    with worlds.launcher() as running:
        pids = worlds.start(running, folder / "world", "healthy")
        with start_cli("watch", "--pid", pids[0], *QUICK, "--html", folder / "hang.html", "--json", env=with_library()) as watching:
            line = watching.stderr.readline()
            while "`watch` continues" not in line:  # it looked, as its ranks are always seen at one line
                assert line, "it ended before its job"
                line = watching.stderr.readline()
            worlds.end(running)
            said, _ = watching.communicate(timeout=60)
    return watching.returncode, json.loads(said), (folder / "hang.html").exists()


def beside_another_job(folder: Path) -> tuple[int, dict]:
    """A rank of another Slurm job stands still longer than --after."""
    with (
        rank(STANDS, folder / "own.log", SLURM_JOB_ID="77001") as own,
        rank(STANDS, folder / "other.log", SLURM_JOB_ID="77002", MASTER_PORT="29513"),
        start_cli("watch", "--job", "77001", "--after", "4s", "--every", "0.5", "--html", folder / "hang.html", "--json") as watching,
    ):
        while " found" not in (line := watching.stderr.readline()):
            assert line, "it ended before its job"
        assert line.startswith("1 rank "), line
        os.kill(own, signal.SIGKILL)
        said, errors = watching.communicate(timeout=60)
    assert "made no progress" not in errors, errors
    return watching.returncode, json.loads(said)


def starts_again(folder: Path) -> tuple[int, dict, float]:
    """Each attempt is a rank of 4 s; 4 s lie between them."""
    again = (
        f"read; for n in 1 2; do RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29514 {sys.executable} -c 'import time;"
        " time.sleep(4)'; sleep 4; done"
    )
    return goes_on_once_watched(folder, "bash", "-c", again)


def ends_without_a_rank(folder: Path) -> tuple[int, dict, float]:
    return goes_on_once_watched(folder, "cat")


def goes_on_once_watched(folder: Path, *launcher: str) -> tuple[int, dict, float]:
    """A launcher that waits for the end of its input, and how long it was watched after that."""
    with (
        subprocess.Popen(launcher, stdin=subprocess.PIPE) as running,
        start_cli(
            "watch", "--pid", running.pid, "--after", "1m", "--every", "0.5", "--html", folder / "hang.html", "--json", env=with_library()
        ) as watching,
    ):
        assert watching.stderr.readline().startswith("watching")
        running.stdin.close()
        began = time.monotonic()
        said, _ = watching.communicate(timeout=120)
    return watching.returncode, json.loads(said), time.monotonic() - began


def never_comes(folder: Path, whose: tuple[object, ...]) -> tuple[int, dict, float]:
    began = time.monotonic()
    code, document, _ = watched(*whose, "--wait", "3s", "--every", "0.5", "--html", folder / "hang.html")
    return code, document, time.monotonic() - began


def job_never_comes(folder: Path) -> tuple[int, dict, float]:
    return never_comes(folder, ("--job", 77003))


def rank_never_comes(folder: Path) -> tuple[int, dict, float]:
    # no child of this process, which may have torch and so be taken for its rank
    stranger = int(subprocess.run(["bash", "-c", "sleep 60 > /dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True).stdout)
    try:
        return never_comes(folder, ("--pid", stranger))
    finally:
        os.kill(stranger, signal.SIGKILL)


SCENES: tuple[Callable[[Path], Any], ...] = (
    hangs,
    runs_to_its_end,
    beside_another_job,
    starts_again,
    ends_without_a_rank,
    job_never_comes,
    rank_never_comes,
)


def test_a_job_that_hangs_is_looked_at_and_leaves_its_page(at_once: dict[str, Future[Any]]) -> None:
    code, document, truth, joined = at_once["hangs"].result()
    assert (code, document["verdict"], document["jobs"][0]["kind"]) == (3, "broken", truth["kind"])
    assert [c["rank"] for c in document["jobs"][0]["culprits"]] == joined == truth["culprits"]


def test_a_job_that_runs_to_its_end_is_left_alone(at_once: dict[str, Future[Any]]) -> None:
    code, document, has_page = at_once["runs_to_its_end"].result()
    assert (code, document["verdict"], document["jobs"], has_page) == (4, "unknown", [], False)


def test_a_rank_that_writes_its_log_moves_and_one_that_sleeps_does_not(tmp_path: Path) -> None:
    with rank(STANDS, tmp_path / "stands.log") as stands, rank(WRITES, tmp_path / "writes.log", MASTER_PORT="29512") as writes:
        time.sleep(1)
        progress = Progress()
        for _ in range(5):
            progress.ask([stands, writes])
            time.sleep(0.5)
        stood_s = progress.still_s[stands]  # on a crowded machine longer
        assert stood_s > 1.5 and progress.still_s[writes] < stood_s / 1.5
        progress.again([stands])
        progress.ask([stands, writes])
        assert progress.still_s[stands] < stood_s / 1.5


def test_a_rank_that_is_process_1_of_its_container_is_examined(tmp_path: Path) -> None:
    """As in a pod whose command is the training script; `watch` comes in from outside, as `kubectl exec` does."""
    room = ["unshare", "-rpf", "--kill-child", "--mount-proc"]
    if not shutil.which("nsenter") or subprocess.run([*room, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no namespace of processes: unshare -rpf is refused")
    env = {**with_library(), "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29515"}
    with subprocess.Popen([*room, sys.executable, "-c", "print(flush=True)\n" + STANDS], stdout=subprocess.PIPE, env=env) as outer:
        try:
            outer.stdout.readline()
            own = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0]
            os.kill(int(own), signal.SIGSTOP)
            inside = ["nsenter", "-U", "--preserve-credentials", "-p", "-m", "-t", own, sys.executable, "-m", "nccl_runbook"]
            ended = subprocess.run(
                [*inside, "watch", "--after", "1s", "--every", "0.5", "--gap", "1", "--json", "--html", tmp_path / "hang.html"],
                capture_output=True,
                text=True,
                env=with_library(),
                timeout=30 * crowded(),
            )
        finally:
            outer.kill()
    job, = json.loads(ended.stdout)["jobs"]
    assert (ended.returncode, job["kind"], [c["pid"] for c in job["culprits"]]) == (3, "stopped", [1]), ended.stderr


def test_the_ranks_of_another_slurm_job_are_not_watched(at_once: dict[str, Future[Any]]) -> None:
    code, document = at_once["beside_another_job"].result()
    assert (code, document["verdict"], document["jobs"]) == (4, "unknown", [])


def test_ranks_that_a_launcher_starts_again_are_watched_on(at_once: dict[str, Future[Any]]) -> None:
    code, document, took_s = at_once["starts_again"].result()
    assert (code, document["verdict"]) == (4, "unknown") and took_s > 11


def test_a_process_that_ends_before_it_has_a_rank_is_unknown(at_once: dict[str, Future[Any]]) -> None:
    code, document, _ = at_once["ends_without_a_rank"].result()
    assert (code, document["verdict"]) == (4, "unknown")


@pytest.mark.parametrize("whose", ["job_never_comes", "rank_never_comes"])
def test_a_job_that_never_comes_is_not_waited_for_for_ever(whose: str, at_once: dict[str, Future[Any]]) -> None:
    code, document, took_s = at_once[whose].result()
    assert (code, document["verdict"], document["jobs"]) == (4, "unknown", []) and 3 < took_s < 50 * crowded()


@pytest.mark.parametrize(
    "words",
    [
        ("--after", "soon"),
        ("--wait", "soon"),
        ("--after", "0"),
        ("--every", "0"),
        ("--pid", "999999999"),
        ("--html", "nowhere/hang.html"),
        ("--save", "nowhere/x.json"),
    ],
)
def test_wrong_usage_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = read_cli("watch", "--html", str(tmp_path / "hang.html"), *words)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("watch", "--wait", "1x"), "--wait"),
        (("watch", "--after", "x"), "--after"),
        (("soak", "--for", "x"), "--for"),
        (("soak", "--run-limit", "0"), "--run-limit"),
        (("ab", ".", "A=1", "--budget", "x"), "--budget"),
        (("sync", "--budget", "x"), "--budget"),
        (("hosts", "--budget", "x", "a", "b"), "--budget"),
        (("run", "--budget", "x"), "--budget"),
        (("sync", "--receivers-busy", "x"), "--receivers-busy"),
        (("sync", "--repeats", "0"), "--repeats"),
        (("sync", "--tensor-parallel", "0"), "--tensor-parallel"),
    ],
)
def test_a_wrong_duration_or_number_is_refused_with_the_name_of_its_option(words: tuple[str, ...], option: str, tmp_path: Path) -> None:
    ended = read_cli(*words, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1) and option in ended.stderr


@pytest.mark.parametrize("command", [("sync",), ("ab", ".", "A=1", "--sync", "Qwen/Qwen2.5-0.5B")])
def test_more_layers_than_the_model_has_are_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = read_cli(*command, "--layers", "99", cwd=tmp_path)
    assert ended.returncode == 2 and {"99", "24"} <= set(re.findall(r"\d+", ended.stderr)), ended.stderr


def test_the_wait_for_the_first_rank_is_no_longer_than_asked(tmp_path: Path) -> None:
    """Else it would come after ``--every``, for which `read_cli` does not wait."""
    code, document, _ = watched("--job", 77004, "--wait", "1s", "--every", "600", "--html", tmp_path / "hang.html")
    assert (code, document["jobs"]) == (4, [])
