"""Two hosts of a real Slurm on one machine: each slurmd in network, pid, uts, ipc and mount namespaces of its own, joined by a bridge.

Everything that is started lies in one folder and ends with the block; every wait has a limit. Debian's slurmctld, slurmd and munge, as
root, without systemd and cgroups. ``missing()`` says why it cannot be had here.
"""
from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = ("slurmctld", "slurmd", "srun", "salloc", "munged", "ip", "unshare", "iptables")
CONF = """ClusterName=runbook
SlurmctldHost={login}({net}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=60
KillWait=5
SlurmdParameters=config_overrides
SlurmctldPort={port}
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
NodeName=n1 NodeHostname=n1 NodeAddr={net}.1 Port=17818 CPUs=4 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr={net}.2 Port=17818 CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
"""


def call(*command: str, timeout: float = 20.0, check: bool = True, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False, **options)
    assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


def missing() -> str:
    """Why two hosts cannot be made here, or ""."""
    if sys.platform != "linux" or os.geteuid():
        return "needs Linux and root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if absent:
        return f"{', '.join(absent)} not installed (.ci/setup slurm)"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--uts", "--mount", "--fork", "ip", "link", "add", "nrtest", "type", "bridge"],
        capture_output=True,
        timeout=20,
    )
    return "" if tried.returncode == 0 else "no namespaces or no bridge here"


class SlurmHosts:
    """n1 and n2 with an allocation over both; ``env`` makes Slurm's commands find it."""

    def __init__(self, folder: Path) -> None:
        number = os.getpid() % 200 + 20
        self.folder, self.net, self.names = folder, f"10.77.{number}", {1: f"nr{number}a", 2: f"nr{number}b"}
        self.bridge, self.veth = f"nrbr{number}", {1: f"nrv{number}a", 2: f"nrv{number}b"}
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.started: list[subprocess.Popen] = []
        self.job = ""

    def start(self, *command: str) -> subprocess.Popen:
        log = open(self.folder / f"started-{len(self.started)}.log", "w")  # noqa: SIM115
        self.started.append(
            subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        )
        return self.started[-1]

    def up(self) -> None:
        folder, net = self.folder, self.net
        login = os.uname().nodename
        (folder / "slurm.conf").write_text(CONF.format(folder=folder, net=net, login=login, port=17000 + os.getpid() % 800))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")  # containers mount no cgroups
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        (folder / "nsswitch.conf").write_text("hosts: files\npasswd: files\ngroup: files\n")
        hosts = f"127.0.0.1 localhost\n{net}.254 {login}\n{net}.1 n1\n{net}.2 n2\n"
        for at in (1, 2):
            (folder / f"hosts-{at}").write_text(hosts)
        self.start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={folder}/munge.key",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        )
        self.until(lambda: (folder / "munge.socket").exists(), 10)
        call("ip", "link", "add", self.bridge, "type", "bridge")
        call("ip", "addr", "add", f"{net}.254/24", "dev", self.bridge)
        call("ip", "link", "set", self.bridge, "up")
        self.start("slurmctld", "-D")
        for at, name in self.names.items():
            call("ip", "netns", "add", name)
            call("ip", "link", "add", self.veth[at], "type", "veth", "peer", "name", "eth0", "netns", name)
            call("ip", "link", "set", self.veth[at], "master", self.bridge, "up")
            call("ip", "-n", name, "addr", "add", f"{net}.{at}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                call("ip", "-n", name, "link", "set", device, "up")
            call("ip", "-n", name, "route", "add", "default", "via", f"{net}.254")
            (folder / f"spool-n{at}").mkdir()
            self.start(
                "ip",
                "netns",
                "exec",
                name,
                "unshare",
                "--uts",
                "--pid",
                "--ipc",
                "--mount",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
                "-c",
                f"hostname n{at}; mount --bind {folder}/hosts-{at} /etc/hosts; mount --bind {folder}/nsswitch.conf /etc/nsswitch.conf; "
                f"mount -t tmpfs none /dev/shm; exec slurmd -D -N n{at}",
            )
        self.until(lambda: set(call("sinfo", "-h", "-N", "-o", "%t", env=self.env, check=False).split()) == {"idle"}, 30)
        said = call("salloc", "-N2", "-n2", "--no-shell", "--oversubscribe", env=self.env, timeout=30)
        self.job = re.search(r"job allocation (\d+)", said)[1]

    def until(self, ready: object, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < ends, [p.read_text()[-500:] for p in self.folder.glob("*.log")]
            time.sleep(0.1)

    def inside(self, at: int, *command: str, check: bool = True) -> str:
        """A command in the network of n1 or n2."""
        return call("ip", "netns", "exec", self.names[at], *command, check=check)

    def pids(self, at: int, words: str) -> list[int]:
        """Processes of that host with these words in their command line, as the machine numbers them."""
        found = call("ip", "netns", "pids", self.names[at], check=False).split()
        lines = {}
        for pid in found:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                lines[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return [p for p, line in lines.items() if words in line]

    def left(self) -> list[int]:
        """Agents, warm processes and ranks of ours on both hosts."""
        return [pid for at in (1, 2) for pid in self.pids(at, "sys.stdin.buffer.readline")]

    @contextlib.contextmanager
    def rule(self, at: int, *rule: str) -> Iterator[None]:
        """An iptables rule of the INPUT chain there, for this block."""
        self.inside(at, "iptables", "-A", "INPUT", *rule)
        try:
            yield
        finally:
            self.inside(at, "iptables", "-D", "INPUT", *rule)

    @contextlib.contextmanager
    def cut(self, at: int) -> Iterator[None]:
        call("ip", "link", "set", self.veth[at], "down")
        try:
            yield
        finally:
            call("ip", "link", "set", self.veth[at], "up")

    @contextlib.contextmanager
    def resolves(self, at: int, name: str, address: str) -> Iterator[None]:
        """The name has that address on that host, for this block; the file stays the one that is mounted."""
        path = self.folder / f"hosts-{at}"
        before = path.read_text()
        path.write_text("".join(f"{address} {name}\n" if line.split()[1] == name else f"{line}\n" for line in before.splitlines()))
        try:
            yield
        finally:
            path.write_text(before)

    def down(self) -> None:
        if self.job:
            with contextlib.suppress(Exception):
                call("scancel", self.job, env=self.env, timeout=5, check=False)
        for at in (2, 1):
            for pid in call("ip", "netns", "pids", self.names[at], check=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for name in self.names.values():
            call("ip", "netns", "del", name, check=False)
        call("ip", "link", "del", self.bridge, check=False)


def wrong(found: dict[str, Any]) -> dict[str, str]:
    """id -> cause of every finding that accuses somebody or something."""
    return {f["id"]: f["cause"] for f in found["findings"] if f["severity"] in ("broken", "warn")}


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[SlurmHosts]:
    hosts = SlurmHosts(folder)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()
