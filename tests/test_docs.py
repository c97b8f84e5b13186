"""README says what the tables and notebooks say. Run as a program, it rewrites README's symptom table."""
from __future__ import annotations

import re
from pathlib import Path

from nccl_runbook.knowledge.symptoms import symptoms

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


if __name__ == "__main__":
    README.write_text(BETWEEN.sub(lambda m: m.group(1) + symptom_table() + m.group(2), README.read_text()))
