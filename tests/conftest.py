"""What several test files need: an engine with real Gloo ranks, and property tests that say the same of the same code.

A red suite means that a change broke something, so examples are derived from the test itself and no example has a time limit;
HYPOTHESIS_PROFILE=explore draws new ones.
"""
from __future__ import annotations

import os
import signal
import sys

import pytest
import warm_cli
from hypothesis import HealthCheck, settings
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine

settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started with "&" in a script: the tests press Ctrl-C all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def engine(tmp_path):
    with Engine([sys.executable], tmp_path / "logs", Redactor(os.environ)) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def no_warm_cli_is_left():
    yield
    warm_cli.end()
