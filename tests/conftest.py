"""What several test files need: an engine with real Gloo ranks, and property tests that say the same of the same code.

A red suite means that a change broke something, so examples are derived from the test itself and no example has a time limit;
HYPOTHESIS_PROFILE=explore draws new ones.
"""
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
import slurm_hosts
import warm_cli
from hypothesis import HealthCheck, settings
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine

settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
# some containers set it, and hundreds of interpreters that the tests start would compile the same files
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
sys.modules.setdefault("rfc3987_syntax", None)  # as in book/visit.py: each worker imports nbformat, and starts 1 s earlier
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started with "&" in a script: the tests press Ctrl-C all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests or with worlds of ranks come first, so that at the end no worker waits for one."""
    slow = {
        item.path
        for item in items
        if item.get_closest_marker("slow") or item.get_closest_marker("browser") or "engine" in item.fixturenames
    }
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """One for the tests of a file: its warm process imports torch once."""
    with Engine([sys.executable], tmp_path_factory.mktemp("engine") / "logs", Redactor(os.environ)) as running:
        yield running


@pytest.fixture
def own_engine(tmp_path):
    """For a test that harms it, counts its processes or changes the variables."""
    with Engine([sys.executable], tmp_path / "logs", Redactor(os.environ)) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def no_warm_cli_is_left():
    yield
    warm_cli.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_hosts.SlurmHosts]:
    """Two hosts of a real Slurm, with an allocation."""
    why = slurm_hosts.missing()
    if why:
        pytest.skip(why)
    with slurm_hosts.two_hosts(tmp_path_factory.mktemp("slurm")) as hosts:
        yield hosts
