"""A wrong value of any parameter of any notebook ends in one sentence of ours, which papermill prints last."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nccl_runbook.core.parameters import read_cell

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WRONG_TYPE = {bool: "maybe", int: "banana", float: "banana"}
NO_FILE = "/nowhere/file"
# parameter -> a wrong value, and what must be set beside it for the value to be used
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "run_dir": (f"{__file__}/run", {}),
    "record_path": (NO_FILE, {}),
    "python": ("'unclosed", {}),
    "gpus": ("banana", {}),
    "log": (NO_FILE, {}),
    "against": (NO_FILE, {}),
    "hang_path": (NO_FILE, {}),
    "script": (NO_FILE, {}),
    "records": (NO_FILE, {}),
    "arm_a": ("banana", {}),
    "arm_b": ("banana", {"arm_a": "."}),
    "command": ("'unclosed", {}),
    "figure": ("(", {}),
    "model": ("banana/banana", {}),
    "only": ("banana", {}),
    "methods": ("banana", {}),
    "directory": (NO_FILE, {"methods": "disk"}),
    "receivers_busy": ("banana", {}),
    "areal": ("banana", {"allocation": "sglang:d1+fsdp:d1"}),
    "hosts": ("-banana", {}),
    "job": ("banana banana", {}),
    "over": ("kubectl exec", {"hosts": "localhost"}),
}
ANY_TEXT = {"symptom", "allocation"}  # words of the reader; what the step judges
MORE: dict[str, list[dict[str, Any]]] = {  # of the right type, and wrong all the same
    "02-environment": [{"figure": "sync took"}, {"arm_b": "module:"}, {"python": "/nowhere/python"}],
    "03-fewer-gpus": [{"gpus": "3-1"}, {"max_ranks": -1}, {"budget_s": 0}, {"python": "/nowhere/python"}, {"banana": 1}],
    "05-weight-sync": [{"layers": 9999}, {"repeats": 0}, {"methods": "disk@x"}],
    "08-hosts": [{"port": 70000}, {"hosts": "a;b"}],
}


def wrong_values(notebook: Path) -> list[dict[str, Any]]:
    """One wrong value for each parameter of the notebook, and some more."""
    declared = read_cell(notebook)
    given = []
    for name, parameter in declared.items():
        if name not in ANY_TEXT:
            value, beside = (WRONG_TYPE[parameter.wanted], {}) if parameter.wanted in WRONG_TYPE else WRONG[name]
            given.append({name: value, **{n: v for n, v in beside.items() if n in declared}})
    return [*given, *MORE.get(notebook.stem, [])]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_each_wrong_value_ends_in_one_sentence(notebook: Path, tmp_path: Path) -> None:
    asked = wrong_values(notebook)
    env = {**os.environ, "NCCL_RUNBOOK_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run([sys.executable, ROOT / "tests" / "refused_parameters.py", notebook], input=json.dumps(asked), text=True,
                          capture_output=True, env=env, timeout=250)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    wrong = [(given, name, lines[-3:]) for given, (name, lines) in zip(asked, answers, strict=True)
             if len(lines) != 1 or not lines[0].startswith("nccl-runbook: ") or "\n" in lines[0]]
    assert not wrong


def test_no_parameter_is_forgotten() -> None:
    texts = {name for n in NOTEBOOKS for name, p in read_cell(n).items() if p.wanted is str}
    assert texts == {*WRONG} | ANY_TEXT
