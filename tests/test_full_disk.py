"""A disk without space, as a small file system of its own: one sentence, an exit code, and no empty file is left."""
from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = "mount -t tmpfs -o size=64k none disk && cd disk && cp ../job.log . && mkdir home && { head -c 70000 /dev/zero >fill 2>/dev/null; "
IN_USER_NAMESPACE = ["unshare", "-rm", "sh", "-c"]


@pytest.mark.parametrize("words", [("triage", "job.log", "--html", "page.html"), ("env", "job.log", "--json", "--html", "page.html"), ("look", "--gap", "0.1", "--save", "look.json"),
                                   ("reduce", "--out", "out", "--axis", "n=1", "--", "echo", "hi"), ("run", "--out", "out", "--step", "07-logs", "--log", "job.log")])
def test_a_full_disk_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "job.log").write_text("n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n")
    if subprocess.run([*IN_USER_NAMESPACE, f"cd {tmp_path}; {FULL} true; }}"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted in a user namespace here")
    script = f'{FULL} "$@"; code=$?; find . -size 0 -type f -o -name ".*.*"; exit $code; }}'
    env = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    ended = subprocess.run([*IN_USER_NAMESPACE, f"cd {tmp_path}; HOME={tmp_path}/disk/home; {script}", "-", sys.executable, "-m", "nccl_runbook", *words],
                           env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and os.strerror(errno.ENOSPC) in ended.stderr, ended.stderr
    said = [line for line in ended.stderr.splitlines() if line.startswith("nccl-runbook: ")]
    assert len(said) == 1 and "Traceback" not in ended.stderr
    left = [line for line in ended.stdout.splitlines() if line.startswith("./")]
    assert left == []
