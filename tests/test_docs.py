"""README says what the tables and notebooks say. Run as a program, it rewrites README's symptom table."""
from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from nccl_runbook.triage.start.steps import symptoms

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BETWEEN = re.compile(r"(<!-- symptoms:[^\n]*-->\n).*?(<!-- /symptoms -->)", re.S)
LONGEST_ERROR = 110


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
