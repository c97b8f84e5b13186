"""Ordinary jobs with one mistake each, looked at while they hang and after: the rank and the line, and no innocent."""
from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import live_samples as s
import live_worlds as worlds
import ordinary_jobs as ordinary
import pytest
from nccl_runbook.case.answer import case
from nccl_runbook.case.given import Material, sort
from nccl_runbook.case.read import gather
from nccl_runbook.hang import judge as after
from nccl_runbook.hang.live import (
    ask as live_ask,
    ask_proc as live_processes_ask_proc,
    ask_processes as live_processes,
    judge as rules,
)
from nccl_runbook.hang.live.facts import LEFT_OVER
from nccl_runbook.hang.live.faults import judge_others as rules_others
from nccl_runbook.hang.read import collect
from nccl_runbook.hang.read_stacks import whole_looks
from nccl_runbook.look import live as look_live
from nccl_runbook.look.live import text

GAP_S = 1.6
GROUPS = (("gather_on_main", "barrier_on_main", "early_stop", "uneven"), ("caught", "accumulation", "subset", "loader"),
          ("upload", "lock", "download", "debugger"), ("stale_lock", "healthy"))
GUILTY = [job for job, rank in ordinary.JOBS.items() if rank is not None]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each job: (look, pictures, folder with the dumps that it then wrote)."""
    found = {}
    with worlds.launcher(script=ordinary.__file__) as running:
        for group in GROUPS:
            folders = {job: tmp_path_factory.mktemp(job) for job in group}
            pids = {job: started(running, f"{folder} {job}") for job, folder in folders.items()}
            for folder in folders.values():
                worlds.wait_for(folder, ordinary.SIZE)
            time.sleep(1.0)
            with ThreadPoolExecutor(len(group)) as pool:
                looks = list(pool.map(lambda ranks: s.looked(ranks, GAP_S), pids.values()))
            for folder in folders.values():
                (folder / "go").touch()
            wait_for_dumps(folders.values())
            found.update({job: (*look, folders[job]) for job, look in zip(group, looks)})
            worlds.end(running)
    return found


def started(running: subprocess.Popen[str], line: str) -> list[int]:
    running.stdin.write(line + "\n")
    running.stdin.flush()
    return json.loads(running.stdout.readline())


def wait_for_dumps(folders: Any) -> None:
    until = time.monotonic() + 20
    while any(len(list(folder.glob("fr_rank_*"))) < ordinary.SIZE for folder in folders) and time.monotonic() < until:
        time.sleep(0.1)


def is_marked(job: str, frame: str) -> bool:
    """Whether the frame is at a line with the mark."""
    lines, first = inspect.getsourcelines(ordinary.MARKED.get(job, getattr(ordinary.Job, job)))
    here = re.search(r"ordinary_jobs\.py:(\d+)", frame)
    return here is not None and "HERE" in lines[int(here[1]) - first]


@pytest.mark.parametrize("job", GUILTY)
def test_live_the_rank_and_the_line_of_the_mistake_and_no_innocent(seen: dict[str, Any], job: str) -> None:
    look, pictures, _ = seen[job]
    (picture,) = pictures
    assert [v.rank for v in picture.culprits] == [ordinary.JOBS[job]], text(pictures, [look])
    assert is_marked(job, picture.culprits[0].frame), text(pictures, [look])
    assert len(picture.victims) == 2 and rules.verdict(pictures) == "broken"


def test_live_ranks_that_all_look_for_a_lock_again_and_again_are_not_called_healthy(seen: dict[str, Any]) -> None:
    look, pictures, _ = seen["stale_lock"]
    (picture,) = pictures
    assert (picture.kind, picture.culprits) == ("unknown", []) and is_marked("stale_lock", picture.sentence), text(pictures, [look])


def test_live_a_healthy_one_is_healthy(seen: dict[str, Any]) -> None:
    assert [p.kind for p in seen["healthy"][1]] == ["healthy"]


@pytest.mark.parametrize("job", GUILTY)
def test_from_the_dumps_the_rank_is_named_and_no_innocent(seen: dict[str, Any], job: str) -> None:
    told = after.judge_hang(collect([str(seen[job][2])]))
    assert told.culprits == (ordinary.JOBS[job],), told
    if job not in ordinary.ELSEWHERE:  # its line is that of the call that the others did not make
        assert is_marked(job, told.frame)


@pytest.mark.parametrize("job", GUILTY)
def test_diagnose_leads_with_that_rank_live_and_after(seen: dict[str, Any], job: str) -> None:
    look, _, folder = seen[job]
    rank = f"rank {ordinary.JOBS[job]} "
    for found in (gather(sort([str(folder)]), None, 0, lambda _: look), gather(Material(pids=("1",)), None, 0, lambda _: look)):
        told = case(found, "diagnose", "", "unknown")
        assert told.document.exit_code == 3 and told.lead and told.lead.id == "hang-told", told.document.sentence
        assert told.document.sentence.startswith(f"Broken: {rank}"), told.document.sentence


def test_diagnose_calls_a_healthy_job_healthy(seen: dict[str, Any]) -> None:
    told = case(gather(Material(pids=("1",)), None, 0, lambda _: seen["healthy"][0]), "diagnose", "", "unknown").document
    assert (told.verdict, told.causes) == ("healthy", [])


def test_a_rank_that_waits_for_a_process_of_its_own_is_said_to_and_what_that_process_does(seen: dict[str, Any]) -> None:
    (loader,), (upload,) = seen["loader"][1], seen["upload"][1]
    row = inspect.getsourcelines(ordinary.read_row)[1] + 1
    assert f"read_row, ordinary_jobs.py:{row}" in loader.culprits[0].helper and (loader.kind, loader.cause) == ("host-busy", "data-stall")
    assert re.search(r"process \d+ \(sleep\)$", upload.culprits[0].helper) and (upload.kind, upload.cause) == (
        "host-busy",
        "rank-busy-on-host",
    )
    assert loader.culprits[0].helper in loader.sentence and not any(v.helper for v in loader.victims)


# --- whose ranks they are

def test_a_rank_that_ends_while_it_is_looked_at_is_no_rank_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29555"}
    rank, real = subprocess.Popen(["sleep", "60"], env=env), os.readlink

    def ended_before(path: str, *rest: Any) -> str:
        if path == f"/proc/{rank.pid}/ns/net":
            rank.kill()
            rank.wait()
        return real(path, *rest)

    assert rank.pid in live_processes.processes()
    monkeypatch.setattr(os, "readlink", ended_before)
    assert rank.pid not in live_processes.processes() and rank.poll() is not None


def ranks_of(numbers: str, port: int) -> subprocess.Popen[bytes]:
    """A launcher of ranks that only sleep."""
    env = {n: v for n, v in os.environ.items() if n not in live_processes.NAMES} | {"MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    line = f"for r in {numbers}; do RANK=$r sleep 60 & done; wait"
    return subprocess.Popen(["sh", "-c", line], env=env, start_new_session=True)


@pytest.fixture
def launch() -> Iterator[Any]:
    running: list[subprocess.Popen[bytes]] = []
    port = worlds.free_port()

    def start(numbers: str) -> int:
        running.append(ranks_of(numbers, port))
        while len(below(running[-1].pid)) < len(numbers.split()):
            time.sleep(0.02)
        time.sleep(0.05)  # the next ranks begin some clock ticks later
        return running[-1].pid

    yield start
    for one in running:
        os.killpg(one.pid, 9)
        one.wait()


def below(launcher: int) -> list[int]:
    return [p for p in live_processes.processes() if launcher in live_processes_ask_proc.ancestors(p)]


def test_ranks_that_an_earlier_launch_left_are_a_job_and_a_finding_of_their_own(launch: Any) -> None:
    earlier, newer = launch("1 2"), launch("0 1 2")
    old, new = below(earlier), below(newer)
    assert {r.pid for r in live_ask.chosen([newer])[0]} == set(new), "one launcher's tree"
    assert {r.pid for r in live_ask.chosen([old[0]])[0]} == set(old)
    look = look_live.look([earlier, newer], 0.6, str)
    pictures = rules.judge_looks([look])
    left = next(p for p in pictures if p.job.endswith(LEFT_OVER))
    assert (left.kind, left.status, sorted(v.pid for v in left.culprits)) == ("left-over", "established", sorted(old))
    assert [v.pid for p in pictures if p is not left for v in p.ranks] == sorted(new)


def test_two_launchers_of_one_host_start_one_job_together_while_no_number_is_there_twice(launch: Any) -> None:
    first, second = launch("0 1"), launch("2")
    assert {r.pid for r in live_ask.chosen([second])[0]} == {*below(first), *below(second)}


def test_orphans_of_long_ago_are_left_over_though_their_numbers_are_not_there_twice(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier, newer = launch("1"), launch("0 2")
    (old,), new = below(earlier), below(newer)
    os.kill(earlier, 9)
    while live_processes_ask_proc.ancestors(old)[0] == earlier:
        time.sleep(0.02)
    if live_processes_ask_proc.ancestors(old)[0] != 1:
        pytest.skip("orphans do not go to pid 1 here")
    assert {r.pid for r in live_ask.chosen([newer])[0]} == {old, *new}, "begun together: a shell that ended"
    monkeypatch.setattr(live_processes, "TOGETHER_S", -1)
    assert {r.pid for r in live_ask.chosen([newer])[0]} == set(new)


def test_a_process_that_is_no_rank_is_said_to_be_none() -> None:
    stranger = subprocess.Popen(["sleep", "60"], env={n: v for n, v in os.environ.items() if n not in live_processes.NAMES})
    try:
        (picture,) = rules.judge_looks([look_live.look([stranger.pid], 0.6, str)])
        assert (picture.job, picture.kind) == (rules_others.NO_JOB, "unknown") and str(stranger.pid) in picture.sentence
    finally:
        stranger.kill()
        stranger.wait()


def test_without_a_hung_job_strangers_are_not_described(launch: Any) -> None:
    """A notebook with torch and a socket of its own."""
    code = "import socket, time, torch; held = socket.create_server(('127.0.0.1', 0)); print('ready', flush=True); time.sleep(60)"
    env = {n: v for n, v in os.environ.items() if n not in live_processes.NAMES}
    stranger = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    try:
        assert stranger.stdout.readline() == b"ready\n"
        alone = look_live.look([stranger.pid], 0.6, str)
        (picture,) = rules.judge_looks([alone])
        assert (picture.job, picture.kind, [v.pid for v in picture.ranks]) == (rules_others.NO_JOB, "unknown", [stranger.pid])
        both = look_live.look([stranger.pid, launch("0 1 2")], 0.6, str)
        assert rules_others.NO_JOB not in {p.job for p in rules.judge_looks([both])} and len(both.ranks) == 4
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


# --- the same from the frameworks themselves, as they were seen

SEEN = json.loads((Path(__file__).parent / "data" / "live-ordinary.json").read_text())["seen"]


@pytest.mark.parametrize("job", SEEN)
def test_what_was_seen_of_the_frameworks_jobs_names_the_rank_and_the_line(job: str) -> None:
    truth, (look,) = SEEN[job]["truth"], whole_looks([SEEN[job]["live"]])
    (picture,) = rules.judge_looks([look])
    assert [v.rank for v in picture.culprits] == [truth["culprit"]] and len(picture.victims) == len(look.ranks) - 1, text([picture], [look])
    assert truth["at"] in picture.culprits[0].frame + picture.culprits[0].helper, text([picture], [look])


def test_a_look_of_an_earlier_version_is_read_with_the_fields_that_it_had_besides() -> None:
    old = json.loads(json.dumps(SEEN["pl_loader"]["live"]))
    for rank in old["ranks"]:
        rank.update(program="train.py", helpers=[rank["pid"] + 10], handled_signals=[10])
        del rank["children"]
    (look,) = whole_looks([old])
    assert [v.rank for v in rules.judge_looks([look])[0].culprits] == [1]
