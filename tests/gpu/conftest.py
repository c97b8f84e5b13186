"""An engine on this machine's GPUs, under the interpreter that DESIGN's order finds; without any, every test here says why it is
skipped."""
from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.interpreters import InterpreterError, choose
from processes import children, gone, start_time
from turns import turn

LOCK = Path(tempfile.gettempdir(), f"nccl-runbook-gpu-tests-{os.getuid()}.lock")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """A GPU test runs alone, unless it is marked gpu(beside=True): what measures, needs idle GPUs, reads how busy they are, or fills them
    is not. Waiting does not count as the test's time."""
    if not item.get_closest_marker("gpu"):
        return (yield)
    with turn(LOCK, alone(item)):
        return (yield)


def pytest_collection_modifyitems(items):
    """Those alone come last, so that with several workers none of them waits for tests that could have run beside others."""
    items.sort(key=alone)


def alone(item) -> bool:
    mark = item.get_closest_marker("gpu")
    return mark is not None and not mark.kwargs.get("beside")


@pytest.fixture(autouse=True)
def leaves_nothing():
    """A test that leaves a variable or a process behind fails itself; the next test starts clean."""
    variables, processes = dict(os.environ), set(children(os.getpid()))
    yield
    changed = {name for name, _ in variables.items() ^ os.environ.items()} - {"PYTEST_CURRENT_TEST"}
    for name in changed:
        os.environ.pop(name, None)
        os.environ.update({name: variables[name]} if name in variables else {})
    left = {pid: start_time(pid) for pid in children(os.getpid()) if pid not in processes}
    ended = gone(left)
    for pid in () if ended else [pid for pid, started in left.items() if started and start_time(pid) == started]:
        os.kill(pid, signal.SIGKILL)
    assert ended and not changed, (left, changed)


@pytest.fixture(scope="session")
def shown(tmp_path_factory):
    """(argv prefix of the interpreter, GPUs that CUDA shows it or a Gap), asked once; skips if there is no interpreter with torch."""
    try:
        prefix = choose(os.environ.get("NCCL_RUNBOOK_TEST_PYTHON", "")).prefix
    except InterpreterError as error:
        pytest.skip(f"no GPU test: {error}")
    with Engine(prefix, tmp_path_factory.mktemp("shown"), Redactor({})) as engine:
        return prefix, engine.cuda_count()


def _engine(shown, logs, least: int):
    prefix, count = shown
    if isinstance(count, Gap) or count < least:
        pytest.skip(f"CUDA GPUs needed: {least}; CUDA shows {count}")
    with Engine(prefix, logs, Redactor({})) as engine:
        yield engine


@pytest.fixture
def on_gpus(shown, tmp_path):
    """The engine; skips where CUDA shows fewer than two GPUs."""
    yield from _engine(shown, tmp_path / "logs", 2)


@pytest.fixture
def on_a_gpu(shown, tmp_path):
    """The engine; skips where CUDA shows none."""
    yield from _engine(shown, tmp_path / "logs", 1)
