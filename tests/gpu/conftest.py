"""An engine on this machine's GPUs, under the interpreter that DESIGN's order finds; without any, every test here says why it is skipped."""
from __future__ import annotations

import os

import pytest
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.interpreters import InterpreterError, choose


def _engine(logs, least: int):
    try:
        prefix = choose(os.environ.get("NCCL_RUNBOOK_TEST_PYTHON", "")).prefix
    except InterpreterError as error:
        pytest.skip(f"no GPU test: {error}")
    with Engine(prefix, logs, Redactor({})) as engine:
        count = engine.cuda_count()
        if isinstance(count, Gap) or count < least:
            pytest.skip(f"CUDA GPUs needed: {least}; CUDA shows {count}")
        yield engine


@pytest.fixture
def on_gpus(tmp_path):
    """The engine; skips where CUDA shows fewer than two GPUs."""
    yield from _engine(tmp_path / "logs", 2)


@pytest.fixture
def on_a_gpu(tmp_path):
    """The engine; skips where CUDA shows none."""
    yield from _engine(tmp_path / "logs", 1)
