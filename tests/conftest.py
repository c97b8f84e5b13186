"""What several test files need: an engine with real Gloo ranks."""
from __future__ import annotations

import os
import sys

import pytest
from nccl_runbook.launch.engine import Engine
from nccl_runbook.redact import Redactor


@pytest.fixture
def engine(tmp_path):
    with Engine([sys.executable], tmp_path / "logs", Redactor(os.environ)) as running:
        yield running
