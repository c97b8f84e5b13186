"""Nothing can be written, or few files opened: one sentence, an exit code, and no empty file or folder is left."""
from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINE = "n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n"
IN_USER_NAMESPACE = ["unshare", "-rm", "bash", "-c"]
FULL = "mount -t tmpfs -o size=64k none disk && mkdir disk/home && { head -c 70000 /dev/zero >disk/fill 2>/dev/null; true; }"
READ_ONLY = "mkdir home && mount -t tmpfs -o ro none disk"
LEFT = r'find . \( -size 0 -type f -o -empty -type d ! -name disk ! -name home -o -name ".*.*" \) -print'
# a command that makes a folder or a file, each with a new one in disk
MAKERS = {
    "run": "run --out disk/a/out --step 07-logs --log job.log",
    "reduce": "reduce --out disk/a/out --axis n=1 -- echo hi",
    "soak": "soak --out disk/out --runs 1 -- true",
    "gym": "dev gym --fault works-torchrun --keep disk/a/b",
    "bundle": "bundle done --out disk/b.zip --yes",
    "watch": "watch --job 99 --after 1s --wait 1s --every 0.2 --gap 0.5 --html disk/w.html",
    "look": "look --gap 0.1 --save disk/look.json",
    "loud": "reduce --out disk/a/out --axis n=1 -- sh -c 'yes | head -c 20000'",
    "ab": "ab . b.env --rounds 1 --html disk/ab.html -- true",
    "triage": "triage job.log --html disk/page.html",
    "env": "env job.log --json --html disk/page.html",
}


def ended(before: str, words: str, folder: Path, timeout: float = 90) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What a command said after ``before``, and what empty things it left."""
    (folder / "disk").mkdir()
    (folder / "job.log").write_text(LINE * 40)
    (folder / "b.env").write_text("NCCL_DEBUG=WARN\n")
    if subprocess.run([*IN_USER_NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted in a user namespace here")
    env = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    home = "disk/home" if before == FULL else "home"
    script = (
        f"{before}; cd {folder}; HOME={folder}/{home}; export HOME; {sys.executable} -m nccl_runbook {words}; code=$?; {LEFT}; exit $code"
    )
    done = subprocess.run(
        [*IN_USER_NAMESPACE, f"cd {folder}; {script}"], env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    return done, [line for line in done.stdout.splitlines() if line.startswith("./")]


def sentences(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("nccl-runbook: ")]


@pytest.mark.parametrize("name", ["run", "reduce", "soak", "look", "triage", "env"])
def test_a_full_disk_is_one_sentence(name: str, tmp_path: Path) -> None:
    done, left = ended(FULL, MAKERS[name], tmp_path)
    assert done.returncode == 1 and os.strerror(errno.ENOSPC) in done.stderr, done.stderr
    assert (len(sentences(done)), left) == (1, [])


@pytest.mark.parametrize("name", ["run", "reduce", "soak", "gym", "look", "triage", "ab"])
def test_a_folder_that_is_read_only_is_one_sentence(name: str, tmp_path: Path) -> None:
    done, left = ended(READ_ONLY, MAKERS[name], tmp_path)
    assert done.returncode in (1, 2) and os.strerror(errno.EROFS) in done.stderr, done.stderr
    assert (len(sentences(done)), left) == (1, [])


@pytest.mark.parametrize("name", ["run", "loud", "triage", "env"])
def test_a_limit_of_the_size_of_files_is_one_sentence(name: str, tmp_path: Path) -> None:
    done, left = ended("mkdir home; ulimit -f 2", MAKERS[name], tmp_path)
    assert done.returncode == 1 and os.strerror(errno.EFBIG) in done.stderr, done.stderr
    assert (len(sentences(done)), left) == (1, [])


@pytest.mark.parametrize("name", ["run", "reduce", "soak", "watch", "ab"])
def test_too_few_open_files_end_in_an_answer_or_in_one_sentence(name: str, tmp_path: Path) -> None:
    done, left = ended("mkdir home; ulimit -n 64", MAKERS[name], tmp_path)
    assert done.returncode in (0, 3, 4) or (done.returncode in (1, 2) and len(sentences(done)) == 1), done.stderr
    assert left == []


@pytest.mark.parametrize("name", ["run", "reduce", "triage"])
def test_an_answer_that_cannot_be_printed_costs_the_lines_and_leaves_nothing_empty(name: str, tmp_path: Path) -> None:
    done, left = ended("mkdir home", f"{MAKERS[name]} --budget 60s >/dev/full" if name == "run" else f"{MAKERS[name]} >/dev/full", tmp_path)
    assert done.returncode in ((1,) if name != "run" else (3, 4)), done.stderr
    assert (len(sentences(done)), left) == (1, [])


@pytest.mark.parametrize(
    ("made", "stays"),
    [
        ("open(f'{at}/_SUCCESS', 'w')", True),
        ("os.makedirs(f'{at}/logs'); open(f'{at}/logs/__init__.py', 'w')", True),
        ("os.symlink('nowhere', f'{at}/latest')", True),
        ("os.symlink('/', f'{at}/root')", True),
        ("os.makedirs(f'{at}/logs/rank0')", False),
        ("0", False),
    ],
)
def test_only_folders_without_files_are_removed_at_the_end(made: str, stays: bool, tmp_path: Path) -> None:
    code = (
        f"import os, pathlib; from nccl_runbook.core.records import new_folder; at = pathlib.Path({str(tmp_path / 'above' / 'own')!r});"
        f" new_folder(at); {made}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / "above" / "own").is_dir() == stays == (tmp_path / "above").exists()
    assert len(list((tmp_path / "above" / "own").rglob("*"))) == (code.count("logs'") + 1) * stays
