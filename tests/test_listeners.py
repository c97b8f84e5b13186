"""Who listens while the runbook works: nobody outside this host can connect. Each command runs in a network namespace of its own;
another namespace, joined to it by a cable, tries each port that is listened on."""
from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import ROOT, children, gone, start_time

pytestmark = pytest.mark.slow
# the other end of the cable: tries every port of the first argument's namespace, as long as that process lives
PEER = """
import os, socket, subprocess, sys, time
while "v1:" not in open("/proc/net/dev").read():
    os.stat(f"/proc/{sys.argv[1]}")
    time.sleep(0.02)
subprocess.run(["ip", "address", "add", "10.97.0.2/24", "dev", "v1"], check=True)
subprocess.run(["ip", "link", "set", "v1", "up"], check=True)
tried = set()
with open(sys.argv[2], "a") as found:
    while True:
        try:
            rows = [r.split() for name in ("tcp", "tcp6") for r in open(f"/proc/{sys.argv[1]}/net/{name}").readlines()[1:]]
        except OSError:
            break
        for port in {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"} - tried:
            tried.add(port)
            with socket.socket() as asking:
                asking.settimeout(1)
                print(port, asking.connect_ex(("10.97.0.1", port)) == 0, file=found, flush=True)
        time.sleep(0.03)
"""
JOINED = """ip link set lo up
unshare -n "$0" -c "$PEER" $$ "$REACHED" < /dev/null > /dev/null 2>&1 &
while kill -0 $! && [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link add v0 type veth peer name v1 netns $! && ip address add 10.97.0.1/24 dev v0 && ip link set v0 up && exec "$@"
"""
NAMESPACE = ["unshare", "-rn", "sh", "-c", JOINED, sys.executable]
LAB = """
import json, subprocess, sys, time, urllib.request
flags = ["--ServerApp.ip=127.0.0.1", "--no-browser", "--allow-root", "--ServerApp.port=8899", "--IdentityProvider.token=t"]
lab = subprocess.Popen([sys.executable, "-m", "jupyterlab", *flags], stdin=subprocess.DEVNULL)
asked = urllib.request.Request("http://127.0.0.1:8899/api/kernels?token=t", b"{}", {"Authorization": "token t"})
for _ in range(900):
    try:
        kernel = json.load(urllib.request.urlopen(asked, timeout=9))["id"]
        break
    except OSError:
        time.sleep(0.1)
time.sleep(3)
lab.terminate()
lab.wait(20)
print(kernel)
"""


def listeners(pid: int) -> set[str]:
    """Local addresses on which anything in the namespace of this process listens, TCP and UDP."""
    found = set()
    for name, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        try:
            rows = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:  # it has just ended
            rows = []
        for row in (r.split() for r in rows):
            if row[3] == state:
                words = bytes.fromhex(row[1].partition(":")[0])  # 32-bit words in the order of this machine's bytes
                raw = b"".join(words[at:at + 4][::-1] if sys.byteorder == "little" else words[at:at + 4] for at in range(0, len(words), 4))
                found.add(f"{name} {ipaddress.ip_address(raw)}")
    return found


@pytest.fixture(scope="module")
def namespace() -> list[str]:
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("ip or unshare is not installed")
    env = {**os.environ, "PEER": PEER, "REACHED": os.devnull}
    if subprocess.run([*NAMESPACE, "true"], env=env, capture_output=True, timeout=20).returncode:
        pytest.skip("this machine gives no network namespace of one's own")
    return NAMESPACE


def watched(command: list[str], folder: Path) -> tuple[int, set[str], dict[int, bool]]:
    """Exit code of a command, every address that was listened on while it ran, and which ports of them the other end reached."""
    reached = folder / "reached.txt"
    reached.touch()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "lib"), "HOME": str(folder), "PEER": PEER, "REACHED": str(reached)}
    running = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen: set[str] = set()
    try:
        while running.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # it ended since: the next question says so
                if os.readlink(f"/proc/{running.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                    seen |= listeners(running.pid)
            time.sleep(0.03)
    finally:
        left = {pid: start_time(pid) for pid in children(running.pid)}
        running.kill()
        running.stdout.close()
    assert gone(left, 20)
    rows = (row.split() for row in reached.read_text().splitlines())
    return running.returncode, seen, {int(port): word == "True" for port, word in rows}


def test_every_listener_is_seen(namespace: list[str], tmp_path: Path) -> None:
    code = ("import socket, time; a = socket.create_server(('', 5001)); b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
            "b.bind(('10.97.0.1', 5002)); c = socket.create_server(('::1', 5003), family=socket.AF_INET6); time.sleep(1)")
    assert watched([*namespace, sys.executable, "-c", code], tmp_path) == (
        0,
        {"tcp 0.0.0.0", "udp 10.97.0.1", "tcp6 ::1"},
        {5001: True, 5003: False},
    )


COMMANDS = {"run": (["-m", "nccl_runbook", "run", "--step", "03-fewer-gpus", "--out", "run", "--budget", "90s"], {3, 4}),
            "look": (["-m", "nccl_runbook", "look", "--gap", "1"], {0, 3, 4}), "lab": (["-c", LAB], {0})}


@pytest.fixture(scope="module")
def at_once(
    namespace: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[int, set[str], dict[int, bool]]]]]:
    """What was seen of each command; each has a namespace of its own."""
    with ThreadPoolExecutor(len(COMMANDS)) as pool:
        yield {
            name: pool.submit(watched, [*namespace, sys.executable, *words], tmp_path_factory.mktemp(name))
            for name, (words, _) in COMMANDS.items()
            if name != "lab" or find_spec("jupyterlab")
        }


@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_outside_this_host_can_connect(command: str, at_once: dict[str, Future[tuple[int, set[str], dict[int, bool]]]]) -> None:
    if command == "lab":
        pytest.importorskip("jupyterlab")
        assert "--ServerApp.ip=127.0.0.1" in (ROOT / ".ci/lab").read_text()
    code, seen, reached = at_once[command].result()
    assert code in COMMANDS[command][1] and seen <= {"tcp 127.0.0.1", "tcp6 ::1"} and not any(reached.values())
    assert bool(seen) == bool(reached) != (command == "look"), "kernels listen, a look does not"
