"""Hosts over ssh, and the nodes of a real Ray cluster: two hosts in namespaces of their own. What does not need them runs everywhere."""
from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import slurm_hosts
from hypothesis import given, strategies as st
from nccl_runbook.cli.hosts import carriers
from nccl_runbook.core.facts import Unusable
from nccl_runbook.hosts import ask
from slurm_hosts import SlurmHosts, wrong
from warm_cli import read_cli

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "lib" / "nccl_runbook" / "schemas" / "hosts.json").read_text())
RAY_PYTHON = os.environ.get("NCCL_RUNBOOK_TEST_RAY", "")  # an interpreter that has Ray; Ray is no dependency
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--over", "ssh x", "n1"),
        ("--", "-oProxyCommand=touch x"),
        ("--ray", "n1"),
        ("--job", "1", "n1"),
        ("n1", "--ray", "--job", "1"),
        ("n1;id",),
        ("n1 n2",),
        ("",),
    ],
    ids=str,
)
def test_what_names_no_hosts_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert read_cli("hosts", *arguments).returncode == 2


def test_a_cluster_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    """As an interpreter without Ray, and one that does not exist."""
    for python in (sys.executable, str(tmp_path / "none")):
        ended = read_cli("hosts", "--ray", "--python", python)
        assert ended.returncode == 2 and len(ended.stderr.strip().splitlines()) == 1


@given(st.text(max_size=30))
def test_a_host_stays_one_word_or_is_refused(name: str) -> None:
    try:
        prefix = carriers.over("ssh -p 2222 {host}", [name], ["python3"])(name)
    except Unusable:
        return
    assert prefix == ["ssh", "-p", "2222", name, "python3"] and not name.startswith("-") and shlex.quote(name) == name


def test_any_program_that_starts_others_carries_however_slowly() -> None:
    """Here a shell, on this machine under two names, that takes longer than an agent may be silent."""
    slow = f"sh -c 'sleep {ask.SILENT_S + 1}; exec \"$@\"' {{host}}"
    ended = read_cli("hosts", "localhost", "127.0.0.1", "--over", slow, "--python", sys.executable, "--no-ranks", "--json")
    found = json.loads(ended.stdout)
    jsonschema.validate(found, SCHEMA)
    assert [(h["host"], h["why"]) for h in found["hosts"]] == [("localhost", ""), ("127.0.0.1", "")]


def test_pods_are_chosen_by_a_label_and_reached_by_kubectl(tmp_path: Path) -> None:
    """As the page says it, with a stand-in for kubectl that starts in a pod what it runs here. The third pod is gone."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("""#!/bin/sh
case "$*" in
  "get pods -l app=train -o jsonpath={.items[*].status.podIP}") echo 127.0.0.1 127.0.0.2 127.0.0.3 ;;
  "get pods --field-selector status.podIP=127.0.0."*" -o name") echo "pod/train-${4##*.}" ;;
  "exec -i pod/train-3 -- "*) echo 'Error from server (NotFound): pods "train-3" not found' >&2; exit 1 ;;
  "exec -i pod/train-"[12]" -- "*) shift 4; exec "$@" ;;
  *) exit 9 ;;
esac
""")
    kubectl.chmod(0o755)
    page = (ROOT / "notebooks" / "reference" / "ray.md").read_text().partition("## Kubernetes")[2]
    lines = page.partition("```bash\n")[2].partition("```")[0].strip().replace("nccl-runbook", "$PYTHON -m nccl_runbook")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "lib"), "PYTHON": sys.executable}
    ended = subprocess.run(
        ["bash", "-c", f"{lines} --python $PYTHON --no-ranks --json --budget 40s"],
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
        stdin=subprocess.DEVNULL,
    )
    assert ended.stdout, ended.stderr
    found = json.loads(ended.stdout)
    jsonschema.validate(found, SCHEMA)
    hosts = {h["host"]: h for h in found["hosts"]}
    assert [h["answered"] for h in hosts.values()] == [True, True, False] and "not found" in hosts["127.0.0.3"]["why"]
    assert {p["kind"] for p in found["paths"]} == {"passes"} and found["failing"] == []


# --- real ones

def inside(cluster: SlurmHosts, at: int) -> tuple[str, ...]:
    """Before a command: in all namespaces of n1 or n2. Of its processes the first is the one that made the namespaces, outside."""
    return ("nsenter", "--target", str(cluster.pids(at, "slurmd -D")[-1]), "--all", f"--wd={ROOT}")


def asked(*arguments: str, prefix: tuple[str, ...] = (), **env: str) -> dict[str, Any]:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "nccl_runbook", "hosts", "--json", *arguments],
        env={**os.environ, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


@pytest.fixture(scope="module")
def ssh(cluster: SlurmHosts) -> str:
    """A line that starts a program on a host by ssh."""
    if not (SSHD and shutil.which("ssh") and shutil.which("ssh-keygen")):
        pytest.skip("openssh is not installed")
    folder = cluster.folder
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host_key", "user_key"):
        slurm_hosts.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\nStrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile"
        " none\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\nIdentityFile {folder}/user_key\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\nStrictHostKeyChecking"
        " accept-new\nUser root\n"
    )
    for at in (1, 2):
        cluster.start(*inside(cluster, at), SSHD, "-D", "-e", "-f", f"{folder}/sshd_config")
    line = f"ssh -F {folder}/ssh_config -o BatchMode=yes {{host}}"
    for at in (1, 2):
        cluster.until(
            lambda at=at: "Linux" in slurm_hosts.call(*shlex.split(line.replace("{host}", f"{cluster.net}.{at}")), "uname", check=False), 20
        )
    return line


@pytest.mark.slow
def test_two_hosts_over_ssh(cluster: SlurmHosts, ssh: str) -> None:
    hosts = [f"{cluster.net}.1", f"{cluster.net}.2"]
    found = asked(*hosts, "--over", ssh, "--python", sys.executable)
    assert (wrong(found), found["failing"]) == ({}, [])
    assert [w["passed"] for w in found["worlds"]] == [True] * 3 and not cluster.left()
    with cluster.rule(1, "-p", "tcp", "--dport", "29500", "-j", "DROP"):
        assert "tcp-dropped" in wrong(asked(*hosts, "--over", ssh, "--python", sys.executable, "--no-ranks"))


@pytest.mark.slow
def test_a_host_that_ssh_does_not_reach_is_named_with_its_words(cluster: SlurmHosts, ssh: str) -> None:
    found = asked(f"{cluster.net}.1", f"{cluster.net}.77", "--over", ssh, "--python", sys.executable, "--no-ranks", "--budget", "30s")
    hosts = {h["host"]: h for h in found["hosts"]}
    assert [h["answered"] for h in hosts.values()] == [True, False] and "ssh" in hosts[f"{cluster.net}.77"]["why"]


@pytest.fixture(scope="module")
def ray(cluster: SlurmHosts) -> str:
    """Address of a Ray cluster whose head is n1."""
    if not RAY_PYTHON:
        pytest.skip("NCCL_RUNBOOK_TEST_RAY names no interpreter that has Ray")
    start = [
        RAY_PYTHON,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--num-cpus=1",
        "--object-store-memory=80000000",
        "--disable-usage-stats",
    ]
    head = f"{cluster.net}.1:6379"
    cluster.start(
        *inside(cluster, 1),
        *start,
        "--head",
        f"--node-ip-address={cluster.net}.1",
        "--port=6379",
        "--include-dashboard=false",
        f"--temp-dir={cluster.folder}/ray1",
    )
    cluster.until(lambda: cluster.pids(1, "raylet/raylet"), 60)
    cluster.start(*inside(cluster, 2), *start, f"--address={head}", f"--node-ip-address={cluster.net}.2")
    cluster.until(lambda: cluster.pids(2, "raylet/raylet"), 60)
    nodes = (*inside(cluster, 1), "env", f"RAY_ADDRESS={head}", RAY_PYTHON, str(Path(carriers.__file__).with_name("over_ray.py")))
    cluster.until(lambda: f"{cluster.net}.2" in slurm_hosts.call(*nodes, timeout=60), 60)
    return head


@pytest.mark.slow
def test_the_nodes_of_a_ray_cluster(cluster: SlurmHosts, ray: str) -> None:
    there = inside(cluster, 1)
    found = asked("--ray", "--python", RAY_PYTHON, "--no-ranks", prefix=there, RAY_ADDRESS=ray)
    assert [(h["host"], h["why"]) for h in found["hosts"]] == [(f"{cluster.net}.1", ""), (f"{cluster.net}.2", "")]
    assert all(p["kind"] == "passes" for p in found["paths"]) and not cluster.left()
    with cluster.rule(1, "-p", "tcp", "--dport", "29500", "-j", "REJECT"):
        found = asked("--ray", "--python", RAY_PYTHON, "--no-ranks", prefix=there, RAY_ADDRESS=ray)
    assert "tcp-refused" in wrong(found)


@pytest.mark.slow
def test_ranks_over_the_nodes_of_a_ray_cluster(cluster: SlurmHosts, ray: str) -> None:
    found = asked("--ray", "--python", RAY_PYTHON, prefix=inside(cluster, 1), RAY_ADDRESS=ray)
    assert (wrong(found), found["failing"], found["exclude"]) == ({}, [], "")
    assert [w["passed"] for w in found["worlds"]] == [True] * 3 and not cluster.left()
    assert {r["host"] for r in found["worlds"][-1]["ranks"]} == {f"{cluster.net}.{at}" for at in (1, 2)}


@pytest.mark.slow
def test_killed_over_ray_it_leaves_nothing(cluster: SlurmHosts, ray: str) -> None:
    """The command alone, and the command with all that it started on its own host."""
    for words in ("nccl_runbook hosts", "hosts.py"):
        environment = {**os.environ, "RAY_ADDRESS": ray}
        command = [*inside(cluster, 1), sys.executable, "-m", "nccl_runbook", "hosts", "--ray", "--python", RAY_PYTHON, "--budget", "80s"]
        with subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ):
            cluster.until(lambda: cluster.pids(2, "sys.stdin.buffer.readline"), 60)
            time.sleep(2)
            for pid in cluster.pids(1, words):
                os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            cluster.until(lambda: not cluster.left(), 30)
            print(f"nothing left {time.monotonic() - began:.1f} s after kill -9")
