"""Ranks end whenever they like. One that was searched for drops out; one that somebody named is refused in a sentence; what is said of
the others stays right."""
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from book_samples import with_library
from live_worlds import free_port
from nccl_runbook.cockpit import looks
from nccl_runbook.hang.live import ask
from nccl_runbook.look import live
from processes import start_time
from warm_cli import read_cli

LISTENS = (
    "import socket, sys, time; held = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('ready', flush=True); time.sleep(60)"
)


@contextlib.contextmanager
def ranks(*programs: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Each is a rank of one job as far as its environment says, and has printed "ready"; its argument is the port of the job."""
    port = str(free_port())
    env = {**os.environ, "WORLD_SIZE": str(len(programs)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [subprocess.Popen([sys.executable, "-c", code, port], env={**env, "RANK": str(number)}, stdout=subprocess.PIPE, text=True)
               for number, code in enumerate(programs)]
    try:
        for one in running:
            assert one.stdout.readline() == "ready\n"
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate()


SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"


def end(process: subprocess.Popen[str], is_awaited: bool = True) -> None:
    """``is_awaited``: else it stays as a zombie."""
    process.kill()
    until = time.monotonic() + 20
    while start_time(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    if is_awaited:
        process.wait()


def ends_when(path: str, process: subprocess.Popen[str], ask: Callable[..., Any], is_awaited: bool) -> Callable[..., Any]:
    """The call of the system, before whose answer for this path the process ends."""
    def asked(name: Any, *more: Any) -> Any:
        if name == path:
            end(process, is_awaited)
        return ask(name, *more)

    return asked


@pytest.mark.parametrize("is_awaited", [True, False], ids=["gone", "zombie"])
def test_a_named_process_that_has_ended_is_refused_in_one_sentence(is_awaited: bool) -> None:
    with ranks(SLEEPS) as (rank,):
        end(rank, is_awaited)
        for words in (("look", "--gap", "0", "--pid", rank.pid), ("diagnose", "--gap", "0", rank.pid), ("watch", "--pid", rank.pid)):
            ended = read_cli(*map(str, words))
            assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1) and f" {rank.pid} " in ended.stderr


@pytest.mark.parametrize("is_awaited", [True, False], ids=["gone", "zombie"])
def test_a_process_that_ends_during_the_look_is_refused_if_it_was_named_alone(monkeypatch: pytest.MonkeyPatch, is_awaited: bool) -> None:
    with ranks(SLEEPS) as (rank,):
        monkeypatch.setattr(os, "listdir", ends_when(f"/proc/{rank.pid}/task", rank, os.listdir, is_awaited))
        with pytest.raises(ValueError, match=rf"\b{rank.pid}\b"):
            live.look([rank.pid], 0.0, str)


@pytest.mark.parametrize("is_awaited", [True, False], ids=["gone", "zombie"])
@pytest.mark.parametrize("named", [[], [0]], ids=["searched", "job named"])
def test_a_rank_that_ends_during_the_look_drops_out_and_the_other_stays(
    monkeypatch: pytest.MonkeyPatch, named: list[int], is_awaited: bool
) -> None:
    with ranks(SLEEPS, SLEEPS) as both:
        monkeypatch.setattr(os, "listdir", ends_when(f"/proc/{both[1].pid}/task", both[1], os.listdir, is_awaited))
        found = {r.pid for r in live.look([both[n].pid for n in named], 0.1, str).ranks}
    assert both[0].pid in found and both[1].pid not in found


@pytest.mark.parametrize("is_awaited", [True, False], ids=["gone", "zombie"])
@pytest.mark.parametrize("gone", [0, 1])
def test_whoever_listens_is_named_though_a_rank_has_ended(gone: int, is_awaited: bool) -> None:
    """The port is seen from a rank that still runs; where rank 0 ended, nobody holds it."""
    with ranks(LISTENS, SLEEPS) as both:
        look = ask.Look([both[0].pid])
        end(both[gone], is_awaited)
        (listener,) = look.first().listeners
    assert (listener.who, listener.pid) == (("nobody", None) if gone == 0 else ("rank", both[0].pid))


def test_a_stranger_that_listened_and_ended_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(LISTENS, SLEEPS) as both:
        end(both[0])
        port = both[1].args[-1]
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "MASTER_PORT")}
        stranger = subprocess.Popen([sys.executable, "-c", LISTENS, port], env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert stranger.stdout.readline() == "ready\n"
            look = ask.Look([both[1].pid])
            assert [(one.who, one.pid) for one in look.first().listeners] == [("other", stranger.pid)]
            monkeypatch.setattr("builtins.open", ends_when(f"/proc/{stranger.pid}/comm", stranger, open, True))
            assert [one.name for one in look.first().listeners] == [""]
        finally:
            stranger.kill()
            stranger.communicate()


def test_the_form_drops_ranks_that_it_found_and_refuses_one_that_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "GAP_S", 0.0)
    with ranks(SLEEPS, SLEEPS) as (first, second):
        form = looks.Looks()
        named = form.with_ranks("it hangs").splitlines()
        assert {f"pid:{first.pid}", f"pid:{second.pid}"} <= set(named)
        end(second)
        assert [r.pid for r in form.at([first.pid, second.pid]).ranks] == [first.pid]
        with pytest.raises(ValueError, match=rf"\b{second.pid}\b"):
            looks.Looks().at([first.pid, second.pid])
        end(first)
        with pytest.raises(ValueError, match=rf"\b{second.pid}\b"):
            form.at([second.pid])


WATCHES = """
import os, sys
from nccl_runbook.cli.watch import watch
from nccl_runbook.hang.live.ask_proc import runs

class Ends:
    def write(self, text):
        if "made no progress" in text:
            os.kill(rank, 9)
            while runs(rank):
                pass
            print("ended")
    def flush(self):
        pass

rank, sys.stderr = int(sys.argv[1]), Ends()
watch([rank], after="1s", every=0.5, gap=0.5, html=None)
"""


def test_a_watch_survives_ranks_that_end_as_it_looks() -> None:
    """The rank ends as soon as it is said to stand."""
    with ranks(SLEEPS) as (rank,):
        watch = subprocess.run(
            [sys.executable, "-c", WATCHES, str(rank.pid)], env=with_library(), capture_output=True, text=True, timeout=120
        )
    assert watch.returncode == 4 and watch.stdout.startswith("ended\n"), watch
