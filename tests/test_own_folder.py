"""Temporary folders of killed runs go with the next start; those of the living, of others and of unknown origin stay."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from book_samples import GOOD, make_book, run_cli, with_library
from nccl_runbook.book.kernels import Kernels
from nccl_runbook.launch.stop import MARK, own_folder, sweep
from processes import gone, start_time

OWNER = """
import sys, time
from nccl_runbook.launch.stop import own_folder
with own_folder("nr-", sys.argv[1], sys.argv[2]) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def start_owner(parent: Path, note: str = "") -> tuple[subprocess.Popen, Path]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(parent), note], stdout=subprocess.PIPE, text=True, env=with_library())
    return owner, Path(owner.stdout.readline().strip())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_folder_goes_if_its_owner_was_killed_and_stays_if_it_was_only_stopped(tmp_path: Path, number: int) -> None:
    owner, folder = start_owner(tmp_path, "what it wrote")
    (folder / "below").mkdir()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700 and sweep([str(tmp_path)]) == [] and folder.exists()
        owner.send_signal(number)
        if number == signal.SIGKILL:
            owner.wait()
        assert (sweep([str(tmp_path)]), folder.exists()) == ((["what it wrote"], False) if number == signal.SIGKILL else ([], True))
    finally:
        owner.kill()
        owner.wait()


def test_what_bears_no_mark_another_name_or_is_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "nr-unmarked" / "x").mkdir(parents=True)
    os.utime(tmp_path / "nr-unmarked", (1, 1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MARK).touch()
    (tmp_path / "nr-link").symlink_to(tmp_path / "other")
    before = sorted(tmp_path.iterdir())
    assert sweep([str(tmp_path), str(tmp_path / "nowhere")]) == [] and sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "other" / MARK).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_stays_even_for_root(tmp_path: Path) -> None:
    theirs = tmp_path / "nr-theirs"
    theirs.mkdir()
    (theirs / MARK).touch()
    os.chown(theirs, 12345, 12345)
    assert sweep([str(tmp_path)]) == [] and theirs.exists()


def test_without_room_for_the_mark_the_folder_works_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
    with own_folder("nr-", str(tmp_path)) as folder:
        assert not (Path(folder) / MARK).exists()
        monkeypatch.undo()
        assert sweep([str(tmp_path)]) == [] and Path(folder).exists()
    assert not Path(folder).exists()


def test_a_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in (".verdict.json.abcdefgh", ".index.html.abcdefgh", ".03-fewer-gpus.json.abcdefgh", ".bashrc", "verdict.json"):
        (killed / name).touch()
    temporary = tmp_path / "tmp"  # another run may sweep /tmp at any time
    temporary.mkdir()
    owner, folder = start_owner(temporary, str(killed))
    owner.kill()
    owner.wait()
    book = make_book(tmp_path / "notebooks", n01_good=GOOD)
    assert run_cli("run", "--notebooks", book, "--out", tmp_path / "out",
                   env={**with_library(), "TMPDIR": str(temporary)}).returncode == 0
    assert not folder.exists() and sorted(p.name for p in killed.iterdir()) == [".bashrc", "verdict.json"]


def test_kernels_know_whose_run_they_belong_to() -> None:
    with Kernels(run_dir="/somewhere") as kernels:
        assert (kernels.path / MARK).read_text() == "/somewhere"
    assert not kernels.path.exists()


BY_HAND = """
import sys, time
from nccl_runbook.step import Step
step = Step("03-fewer-gpus", {"python": sys.executable, "run_dir": sys.argv[1], "budget_s": 60})
step.engine
print(step.engine._link({}).process.pid, flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("whom", ["kernel", "warm process"])
def test_the_next_start_removes_what_a_notebook_run_by_hand_left(tmp_path: Path, whom: str) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {**with_library(), "TMPDIR": str(temporary)}
    killed = subprocess.Popen([sys.executable, "-c", BY_HAND, tmp_path / "run", "600"], stdout=subprocess.PIPE, text=True, env=env)
    warm = int(killed.stdout.readline())
    left = list(temporary.glob(f"*/{MARK}"))
    assert len(left) == 1 and sweep([str(temporary)]) == [] and left[0].exists()
    os.kill(killed.pid if whom == "kernel" else warm, signal.SIGKILL)
    assert gone({warm: start_time(warm)}, within_s=10)
    killed.kill()
    killed.wait()
    assert left[0].parent.exists()
    subprocess.run([sys.executable, "-c", BY_HAND, tmp_path / "run", "0"], env=env, check=True, capture_output=True)
    assert not left[0].parent.exists()
