"""The fix of a finding as a change of the user's own script: only what the remedy says, and nothing where that is not sure."""
from __future__ import annotations

import difflib
import json
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.causes.causes import causes
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.environment.change import changed, fix_of
from nccl_runbook.environment.read_file import assigned
from test_env import FORMS, ROOT

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
# export NCCL_P2P_DISABLE=1
export API_TOKEN=0123456789abcdef0123456789abcdef01234567
export NCCL_SOCKET_IFNAME=lo
if [ "$X" = 1 ]; then
  export NCCL_IB_DISABLE=1
fi
echo "NCCL_NVLS_ENABLE=1"
srun \\
  torchrun --nnodes 2 --nproc-per-node 8 train.py
"""
DOCKER = "docker run --gpus all --shm-size=64m \\\n  -e NCCL_P2P_DISABLE=1 \\\n  image torchrun train.py \\\n  -e NCCL_DEBUG=INFO\n"


def edits(old: str, new: str) -> list[str]:
    return [row for row in difflib.ndiff(old.splitlines(), new.splitlines()) if row[0] in "+-"]


@pytest.mark.parametrize(("text", "line", "expected"), [
    (SCRIPT, "unset NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME", ["- export NCCL_SOCKET_IFNAME=lo"]),
    (SCRIPT, "unset NCCL_IB_DISABLE", ["-   export NCCL_IB_DISABLE=1", "+   unset NCCL_IB_DISABLE"]),  # an empty block is an error
    (SCRIPT, "unset NCCL_IB_DISABLE  # on every machine, then: accelerate launch ...", ["-   export NCCL_IB_DISABLE=1", "+   unset NCCL_IB_DISABLE"]),
    (SCRIPT, "export NCCL_NVLS_ENABLE=0  # in the batch script, before srun", ["+ export NCCL_NVLS_ENABLE=0"]),
    (SCRIPT, "ulimit -n 65536", ["+ ulimit -n 65536"]),
    (SCRIPT, "NCCL_IB_DISABLE=0", ["-   export NCCL_IB_DISABLE=1", "+   export NCCL_IB_DISABLE=0"]),
    (SCRIPT, "unset NCCL_P2P_DISABLE", []),  # only a comment
    (SCRIPT, "export NCCL_SOCKET_IFNAME=ib0", []),  # a name of some other machine
    (SCRIPT, "docker run --shm-size=8g ...", []),
    ("export NCCL_SOCKET_IFNAME=eth0,eth1 A=1\n", "unset NCCL_SOCKET_IFNAME", ["- export NCCL_SOCKET_IFNAME=eth0,eth1 A=1", "+ export A=1"]),
    ("declare -x NCCL_DEBUG=INFO\nA=1\n", "unset NCCL_DEBUG", ["- declare -x NCCL_DEBUG=INFO"]),
    (DOCKER, "unset NCCL_P2P_DISABLE", ["-   -e NCCL_P2P_DISABLE=1 \\"]),
    (DOCKER, "unset NCCL_DEBUG", ["-   image torchrun train.py \\", "-   -e NCCL_DEBUG=INFO", "+   image torchrun train.py"]),
    (DOCKER, "docker run --shm-size=8g ...", ["- docker run --gpus all --shm-size=64m \\", "+ docker run --gpus all --shm-size=8g \\"]),
    (DOCKER, "ulimit -n 65536", []),  # of the host, not of the container
    ("docker run --ulimit nofile=1024 image\n", "docker run --ulimit nofile=65536:65536 ...",
     ["- docker run --ulimit nofile=1024 image", "+ docker run --ulimit nofile=65536:65536 image"]),
    ("docker run --cap-add=SYS_PTRACE image\n", "docker run --cap-add=IPC_LOCK ...",
     ["- docker run --cap-add=SYS_PTRACE image", "+ docker run --cap-add=IPC_LOCK --cap-add=SYS_PTRACE image"]),
    ("torchrun train.py\n", "torchrun --master-port 29501 --nproc-per-node N train.py", ["- torchrun train.py", "+ torchrun --master-port 29501 train.py"]),
    ("torchrun train.py\n", "torchrun --nproc-per-node N train.py", []),
    ("gantry run -- torchrun t.py\n", "export NCCL_NVLS_ENABLE=0", ["- gantry run -- torchrun t.py", "+ gantry run --env NCCL_NVLS_ENABLE=0 -- torchrun t.py"]),
    ("mpirun -np 4 ./all_reduce\n", "export NCCL_NVLS_ENABLE=0", ["- mpirun -np 4 ./all_reduce", "+ mpirun -x NCCL_NVLS_ENABLE=0 -np 4 ./all_reduce"]),
    ('{"A": "1",\n "NCCL_DEBUG": "INFO"}\n', "unset NCCL_DEBUG", []),  # a comma would be left
])
def test_only_what_the_remedy_says_is_changed(text, line, expected):
    new = changed(text, line)
    assert sorted(edits(text, new) if new else []) == sorted(expected)


def test_a_line_is_added_before_the_whole_launch_and_not_into_it():
    rows = changed(SCRIPT, "export NCCL_NVLS_ENABLE=0").splitlines()
    assert rows[rows.index("export NCCL_NVLS_ENABLE=0") + 1] == "srun \\"


def test_a_renamed_variable_keeps_its_place():
    assert changed("export NCCL_LL_BUFFSIZE=1 A=2\n", "NCCL_BUFFSIZE=1", "NCCL_LL_BUFFSIZE") == "export NCCL_BUFFSIZE=1 A=2\n"


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_setting_is_changed_or_left_as_it_is(form):
    """Read again, the text sets what the remedy says, and everything else as before."""
    text = f"{FORMS[form]}\nNCCL_ALGO=Ring\n"
    for line, wanted in (("NCCL_DEBUG=WARN", "WARN"), ("unset NCCL_DEBUG", None)):
        if new := changed(text, line):
            before, after = ({n: v for n, (v, _) in assigned(t).items() if n.isupper()} for t in (text, new))
            assert after.pop("NCCL_DEBUG", None) == wanted
            assert {**before, "NCCL_DEBUG": ""} == {**after, "NCCL_DEBUG": ""}
    assert form.startswith("toml") or changed(text, "NCCL_DEBUG=WARN")  # with that last line the text is no TOML


ROWS = st.lists(st.sampled_from([*FORMS.values(), "# NCCL_DEBUG=INFO", "echo NCCL_DEBUG=INFO", "  ", "torchrun t.py \\", "é\r"]), max_size=6)


@settings(max_examples=150, deadline=None)
@given(rows=ROWS, line=st.sampled_from(["unset NCCL_DEBUG", "export NCCL_DEBUG=WARN", "docker run --ipc=host ...", "ulimit -n 65536"]))
def test_a_change_never_sets_anything_else(rows, line):
    text = "\n".join(rows)
    if new := changed(text, line):
        before, after = ({n: v for n, (v, _) in assigned(t).items() if n.isupper() and n != "NCCL_DEBUG"} for t in (text, new))
        assert before == after and new != text


def finding(*lines: str, status: str | None = "likely") -> Finding:
    return Finding("x", Severity.BROKEN, "x", (Evidence("x", "logs"),), (Remedy("you", "x", lines),), "nvls-fabric-fault" if status else None, status)


def test_what_is_to_be_run_first_or_is_only_possible_changes_nothing(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    assert fix_of(finding("show_gids", "export NCCL_NVLS_ENABLE=0"), [str(script)]) is None
    assert fix_of(finding("export NCCL_NVLS_ENABLE=0", status="possible"), [str(script)]) is None
    assert fix_of(finding("export NCCL_NVLS_ENABLE=0"), [str(tmp_path / "none"), str(script)]).path == str(script)
    assert fix_of(None, [str(script)]) is None


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nccl_runbook", *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          cwd=ROOT / "lib")


@pytest.mark.parametrize("command", ["diagnose", "env"])
def test_the_changed_script_is_written_only_where_asked(tmp_path, command):
    script, out, page = tmp_path / "train.sbatch", tmp_path / "new.sbatch", tmp_path / "page.html"
    script.write_bytes(SCRIPT.replace("\n", "\r\n").encode() + b"# \xff\n")
    script.chmod(0o755)
    done = run(command, script, "--json", "--html", page, "--out", out)
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads((ROOT / f"lib/nccl_runbook/schemas/{command}.json").read_text()))
    assert "-export NCCL_SOCKET_IFNAME=lo" in document["fix_diff"] and "-export NCCL_SOCKET_IFNAME=lo" in page.read_text()
    assert b"\xff" in out.read_bytes() and out.stat().st_mode & 0o777 == 0o755
    assert script.read_bytes().replace(b"export NCCL_SOCKET_IFNAME=lo\r\n", b"") == out.read_bytes()
    for said in (done.stdout, page.read_text(), run(command, script).stdout):
        assert "0123456789abcdef" not in said


def test_out_never_replaces_what_was_given(tmp_path):
    script, link = tmp_path / "train.sbatch", tmp_path / "link"
    script.write_text(SCRIPT)
    link.symlink_to(script)
    for out in (script, link, tmp_path / "none/new"):
        assert run("env", script, "--out", out).returncode == 2
    assert script.read_text() == SCRIPT
    fine = tmp_path / "fine.sh"
    fine.write_text("export NCCL_DEBUG=WARN\n")
    assert run("env", fine, "--out", tmp_path / "new").returncode == 0 and not (tmp_path / "new").exists()


@pytest.mark.parametrize("piece", [" ", "\t", "\\\n", "a ", "a=b ", "'", "docker run ", "-e ", "NCCL_DEBUG=", "NCCL_DEBUG=a ", "- name: NCCL_DEBUG\n", "exec ", "[", "${"])
def test_no_text_takes_long(piece):
    begun = time.monotonic()
    text = piece * ((1 << 15) // len(piece))
    for line in ("NCCL_DEBUG=WARN", "unset NCCL_DEBUG", "export NCCL_ALGO=Ring", "docker run --shm-size=8g ...", "ulimit -n 65536"):
        changed(text, line)
    assert time.monotonic() - begun < 4.0


def test_a_fix_says_how_to_see_that_it_acts(tmp_path):
    script, page = tmp_path / "train.sbatch", tmp_path / "page.html"
    script.write_text(SCRIPT)
    said = run("diagnose", script, "--html", page).stdout
    verify = causes()["socket-interface-wrong"].verify
    assert verify in said and verify.split("`")[1] in page.read_text()
    of_variables = [c for c in causes().values() for _, _, lines in c.remedy for line in lines[:1] if line.startswith(("export NCCL", "unset"))]
    assert {c.id for c in of_variables if not c.verify} <= {"foreign-connection", "collective-on-some-ranks-only"}
