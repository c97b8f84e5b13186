"""Whose Python runs the ranks: what a prefix may print, leave behind and start, before it is taken or refused."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch import interpreters
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.interpreters import InterpreterError, ask, choose
from nccl_runbook.launch.warm_link import EngineError, WarmLink
from processes import children, crowded, start_time

# as srun on two nodes: the same command and the same input for each, under a host name of its own
HOST = "import os, sys; os.uname = lambda u=os.uname(): type('Uname', (), {'nodename': '%s'}); exec(sys.argv.pop(2))"


@pytest.fixture
def prefix(tmp_path: Path):
    """Makes a script that stands in for a launcher."""
    def make(body: str, name: str = "launcher") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return make


def on_hosts(*hosts: str) -> str:
    starts = "\n".join(f"{sys.executable} -c \"{HOST % host}\" \"${{@: -2}}\" &" for host in hosts)
    return f"{starts}\nwait"


def refused(command: list[str], within_s: float = interpreters.ASK_S) -> str:
    with pytest.raises(InterpreterError) as error:
        ask(command, within_s)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    return str(error.value)


def test_a_prefix_that_answers_from_two_hosts_is_refused_with_the_line_for_one(prefix):
    srun = prefix(on_hosts("n2", "n1"), "srun")
    said = refused([srun, "--overlap", "--jobid", "7", "python3", "-X", "dev"])
    assert "2 hosts (n1, n2)" in said and f'"{srun} --overlap --jobid 7 -N1 -n1 -w n1 python3 -X dev"' in said
    assert "-N1 -n1 -w HOST" in refused([prefix(on_hosts("n2", "n1"), "pdsh")])


def test_answers_of_two_hosts_that_share_a_line_are_two(prefix):
    """PYTHONUNBUFFERED writes a line and its end one after the other: the other host's line may come between."""
    assert "2 hosts (n1, n2)" in refused([prefix(f"({on_hosts('n2', 'n1')}) | tr -d '\\n'")])


def test_a_prefix_that_answers_twice_from_one_host_is_refused(prefix):
    assert "2 times from n1" in refused([prefix(on_hosts("n1", "n1"))])
    assert ask([prefix(on_hosts("n1"))])["host"] == "n1"


def test_the_command_line_calls_it_wrong_usage(prefix):
    command = [sys.executable, "-m", "nccl_runbook.launch.interpreters", prefix(on_hosts("n1", "n2"), "srun")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(interpreters.__file__).parents[2])}
    )
    assert done.returncode == 2 and done.stdout == "" and "(n1, n2)" in done.stderr


@pytest.mark.parametrize("body", ["exec yes x", "exec yes x >&2", "exec tr '\\0' x < /dev/zero", "yes x"])
def test_a_prefix_that_prints_without_end_is_cut(prefix, body):
    began = time.monotonic()
    assert "64 KiB" in refused([prefix(body)])
    assert time.monotonic() - began < 5.0 * crowded()


def test_what_a_prefix_leaves_behind_is_not_waited_for(prefix, tmp_path):
    """As ssh with ControlPersist: a process in the background holds the pipe."""
    holder = prefix(f'setsid sleep 777 &\necho $! >> {tmp_path / "pids"}\nexec {sys.executable} "$@"')
    try:
        began = time.monotonic()
        choice = choose(holder)
        with Engine(choice.prefix, None, Redactor({})) as engine:
            assert engine.run(WorldRequest("1 rank", "check.py", [None], ["--ops", "all_reduce", "--sizes", "4"], {}, 60.0)).passed
            threading.Timer(1.0, engine._link({}).process.kill).start()
            world = engine.run(WorldRequest("killed", "check.py", [None] * 2, ["--fault", "skip@0"], {}, 60.0))
        assert world.ended == "lost" and time.monotonic() - began < 40
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_prefix_that_hangs_is_refused_in_time_with_all_that_it_started(prefix):
    began = time.monotonic()
    assert "1 s" in refused([prefix("echo x\nsleep 60; true")], 1.0)
    assert time.monotonic() - began < 3.0 * crowded()
    assert not [pid for pid in children(os.getpid()) if start_time(pid) and "sleep" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_a_prefix_that_is_stopped_is_named_so(prefix):
    assert "state T" in refused([prefix("kill -STOP $$")], 1.0)


def test_a_prefix_that_prints_documents_of_its_own_at_the_second_start_cannot_run_ranks(prefix):
    for said in ("[1]", '{"a": 1}', "x"):
        with pytest.raises(EngineError):
            WarmLink([prefix(f"exec yes '{said}'")], os.environ, lambda report: None, 1.0)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_an_answer_is_found_whatever_is_printed_around_it(before: bytes, after: bytes) -> None:
    said = b'{"executable": "/usr/bin/python3", "host": "n1", "distributed": true}'
    text = (before.replace(b"{", b"") + said + b"\n" + after.replace(b"}", b"")).decode("utf-8", "replace")
    assert interpreters._ANSWER.findall(text) == [said.decode()]
