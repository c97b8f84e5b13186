"""01-gpu-visibility, executed by papermill: on this machine, and from the records of others."""
from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import machines as made
import papermill
import pytest
from machines import bare, change, cuda, machine
from nccl_runbook.core import records
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.redact import Redactor
from nccl_runbook.gpus import table as tables

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "01-gpu-visibility.ipynb"
NAME = "01-gpu-visibility"


def execute(folder: Path, **parameters) -> tuple[records.Record, str]:
    out = folder / "out.ipynb"
    papermill.execute_notebook(NOTEBOOK, out, parameters={"run_dir": str(folder), **parameters}, progress_bar=False, log_output=False)
    shown = "".join(
        "".join(o.get("data", {}).get("text/plain", "")) for c in json.loads(out.read_text())["cells"] for o in c.get("outputs", [])
    )
    return records.load(folder / f"{NAME}.json"), shown


def replayed(folder: Path, seen) -> records.Record:
    kept = records.Record(step=NAME, started="2026-11-20T12:00:00Z", facts={"gpus": to_json(seen)})
    records.save(kept, folder / "kept.json", Redactor({}))
    return execute(folder, record_path=str(folder / "kept.json"))[0]


def test_on_this_machine_it_ends_with_a_record_and_tables(tmp_path):
    record, shown = execute(tmp_path)
    assert (
        record.status in ("ok", "note", "warn", "broken", "unknown")
        and len(record.tables) == 4
        and all(t["caption"] in shown for t in record.tables)
    )
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        assert (record.status, record.findings[0].id) == ("unknown", "no-gpu-anywhere")


@pytest.mark.parametrize(("seen", "status", "first"), [
    (machine(), "ok", "views-agree"), (bare(), "unknown", "no-gpu-anywhere"),
    (change(machine(), "nvml", gpus=[Gap("failed", "nvmlDeviceGetHandleByIndex(0) failed: Unknown Error"), *machine().nvml.gpus[1:]]),
     "broken", "nvml-refuses-a-gpu"),
    (dataclasses.replace(machine(), cuda=Gap("timed-out", "the rank timed-out")), "unknown", "not-seen"),
    (dataclasses.replace(machine(), nvml=Gap("not-run", "no pynvml")), "unknown", "not-seen"), (Gap("failed", "x"), "unknown", "not-seen")],
    ids=["healthy", "bare", "handle", "no-cuda", "no-pynvml", "nothing"])
def test_a_record_of_another_machine_is_judged_alone(tmp_path, seen, status, first):
    record = replayed(tmp_path, seen)
    assert (record.status, record.findings[0].id) == (status, first)


def test_tables_escape_what_comes_from_outside_and_show_every_gap():
    nasty = made.change_gpu(machine(), 0, name="<script>alert(1)</script>", owners=[made.owner(name="<b>x</b>")])
    whole = "".join(t(nasty)._repr_html_() for t in (tables.gpus_table, tables.views_table, tables.topology_table, tables.users_table))
    assert "<script>" not in whole and "<b>" not in whole and "&lt;script&gt;" in whole
    for table in (tables.gpus_table, tables.views_table, tables.topology_table, tables.users_table):
        assert "timed-out" in repr(table(Gap("timed-out", "why")))


def test_the_tables_name_what_stands_out():
    odd = made.change_gpu(machine(), 1, clock_reasons=["hw_slowdown"], compute_mode="prohibited", ecc=made.m.Ecc(1, 2))
    row = next(r for r in tables.gpus_table(odd).rows if r[0].text == "1")
    assert re.fullmatch(r"ECC .*\b1\b.*\b2\b.*; hw_slowdown; .*\bprohibited", row[-1].text)
    odd = dataclasses.replace(odd, cuda=cuda([], error="first line\nsecond line"))
    assert "line. second" in repr(tables.views_table(odd)), "one line of a cell"
    assert tables.topology_table(machine()).rows[0][2].heat == 1.0
