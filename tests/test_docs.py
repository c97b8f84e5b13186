"""README says what the tables and notebooks say. Run as a program, it rewrites README's symptom table, and literals.json and tables.json of
knowledge."""
from __future__ import annotations

import ast
import json
import re
import shutil
import tomllib
import zlib
from pathlib import Path

import pytest
from literals import branches
from nccl_runbook.causes import toml as knowledge
from nccl_runbook.causes.causes import causes
<<<<<<< HEAD
from nccl_runbook.causes.toml import clues, table
from nccl_runbook.messages import templates as log_templates
from nccl_runbook.messages.read_ranks import LAUNCHERS
from nccl_runbook.triage.symptoms import symptoms
=======
from nccl_runbook.causes.toml import table
from nccl_runbook.evidence import log_templates
from nccl_runbook.evidence.log_events import LAUNCHERS
from nccl_runbook.knowledge import clues
from nccl_runbook.knowledge.symptoms import symptoms
>>>>>>> main

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BETWEEN = re.compile(r"(<!-- symptoms:[^\n]*-->\n).*?(<!-- /symptoms -->)", re.S)
LONGEST_ERROR = 110
KNOWLEDGE = ROOT / "lib/nccl_runbook/knowledge"
LITERALS, TABLES = KNOWLEDGE / "literals.json", KNOWLEDGE / "tables.json"
READ_BY_TRIAGE = ("causes", "clues", "hints", "launchers", "symptoms")


def symptom_table() -> str:
    """One row a symptom: what people see with the message verbatim, the usual cause and first move, the notebooks that decide it."""
    rows = ["| you see | usually, and first | notebooks |", "|---|---|---|"]
    for s in symptoms().values():
        error = f"<br>`{s.error[:LONGEST_ERROR].replace('|', '&#124;')}{'...' if len(s.error) > LONGEST_ERROR else ''}`" if s.error else ""
        links = ", ".join(f"[{name[:2]}](notebooks/{name}.ipynb)" for name in s.steps)
        rows.append(f"| **{s.words}**{error} | {s.says} | {links} |")
    return "\n".join(rows) + "\n"


def test_the_symptom_table_of_readme_is_that_of_the_knowledge():
    assert BETWEEN.search(README.read_text()).group(0).count("\n") > 10
    assert symptom_table() in README.read_text(), "run: python tests/test_docs.py"


def literals() -> str:
    """What every expression of the tables needs, one a line."""
    beside = (e for c in clues.clues() for e in (*c.also, *c.without))
    signatures = (s for row in (*causes().values(), *symptoms().values()) for s in row.signatures)
    every = sorted({*clues.printed(), *clues.spoken(), *beside, *signatures, *log_templates._OWN, *LAUNCHERS})
    rows = ((e, [[sorted(literals) for literals in branch] for branch in branches(e)]) for e in every)
    return "{\n" + ",\n".join(f"{json.dumps(e)}: {json.dumps(worked_out)}" for e, worked_out in rows) + "\n}\n"


def test_literals_worked_out_ahead_are_those_of_the_tables():
    assert LITERALS.read_text() == literals(), "run: python tests/test_docs.py"
    assert knowledge.worked_out("literals").keys() >= {c.line for c in clues.clues()}
    assert branches("no (?:table|row) has it") == [[frozenset(["no table has it", "no row has it"])]]
    assert clues.apart("no (?:table|row) has it") == [()], "what no table has is asked of every line"


def tables() -> str:
    """The tables that triage reads, with a checksum of the text that was parsed: where that was changed since, it is parsed again."""
    raws = {name: (KNOWLEDGE / f"{name}.toml").read_bytes() for name in READ_BY_TRIAGE}
    rows = (f"{json.dumps(name)}: {json.dumps([zlib.crc32(raw), tomllib.loads(raw.decode())], ensure_ascii=False)}" for name, raw in raws.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def test_tables_parsed_ahead_are_those_of_toml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert TABLES.read_text() == tables(), "run: python tests/test_docs.py"
    shutil.copy(TABLES, tmp_path)
    for name in READ_BY_TRIAGE:
        shutil.copy(KNOWLEDGE / f"{name}.toml", tmp_path)
    (tmp_path / "clues.toml").write_text('words = {"<x>" = "of this minute"}\nclue = []\n')
    monkeypatch.setattr(knowledge, "HERE", tmp_path)
    assert table.__wrapped__("hints") == table("knowledge/hints")
    assert table.__wrapped__("clues") == {"words": {"<x>": "of this minute"}, "clue": ()}, "a table that was changed is parsed, not taken as it was"


def test_readme_links_exist():
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", README.read_text()) if not t.startswith("http")]
    assert len(targets) > 20 and [t for t in targets if not (ROOT / t).exists()] == []


def test_readme_names_every_notebook_and_room():
    text = README.read_text()
    rooms = [p.name for p in (ROOT / "lib/nccl_runbook").iterdir() if p.is_dir() and (p / "__init__.py").exists()]
    assert [n.stem for n in (ROOT / "notebooks").glob("*.ipynb") if f"notebooks/{n.name}" not in text] == []
    assert [r for r in rooms if f"{r}/" not in text] == []


def test_06_has_a_line_to_paste_for_each_step_of_the_hunt_for_a_time_out() -> None:
    """Device map, minibatches, pauses of the weight sync, stacks, a verbose run, a smaller form, a soak: guards and options that there are."""
    text = "".join("".join(cell["source"]) for cell in json.loads((ROOT / "notebooks/06-timeouts.ipynb").read_text())["cells"])
    guards = {node.name for node in ast.parse((ROOT / "lib/nccl_guards.py").read_text()).body if isinstance(node, ast.FunctionDef)}
    named = set(re.findall(r"guard\.(\w+)\(", text))
    assert named == {"enable_flight_recorder", "check_device_map", "init_process_group_checked", "check_minibatches", "pause_trace", "sync_clock"} <= guards
    assert {"look", "reduce", "sync", "env", "triage"} <= set(re.findall(r"nccl-runbook (\w+)", text)) and "NCCL_GUARD_DEVICE_ID" in text


if __name__ == "__main__":
    README.write_text(BETWEEN.sub(lambda m: m.group(1) + symptom_table() + m.group(2), README.read_text()))
    LITERALS.write_text(literals())
    TABLES.write_text(tables())
