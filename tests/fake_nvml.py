"""The stand-in for NVML (a foreign library), built once a session; tests/data/fake_nvml.c has the scenarios."""
from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("data") / "fake_nvml.c"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    folder = tempfile.TemporaryDirectory(prefix="fake-nvml-")
    library = Path(folder.name) / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(library), str(SOURCE)], check=True)
    return folder


@contextmanager
def fake_nvml(scenario: str, pid: int = 0) -> Iterator[str]:
    """NVML as the scenario has it, for children started inside; skips without gcc. ``pid``: the process that the busy scenario lists."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc to build the NVML stand-in with")
    wanted = {"LD_LIBRARY_PATH": _folder().name, "FAKE_NVML": scenario, "FAKE_NVML_PID": str(pid)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield wanted["LD_LIBRARY_PATH"]
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
