"""The house: who may import whom, how large it may grow, and what every notebook looks like."""
from __future__ import annotations

import ast
import importlib
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import nbformat
import papermill
import pytest
from nccl_runbook.core.parameters import read_cell

ROOT = Path(__file__).resolve().parents[1]
LIB = ROOT / "lib" / "nccl_runbook"
PACKAGE = "nccl_runbook"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BELOW_CLI = {"facts", "redact", "launch", "probes", "knowledge", "evidence", "findings", "rules", "planning", "parameters", "records", "report"}
MAY_IMPORT = {
    "facts": set(), "redact": set(), "ranks": set(), "findings": set(), "knowledge": set(), "parameters": set(),
    "launch": {"facts", "redact"},
    "probes": {"facts", "launch", "redact"},
    "evidence": {"facts", "knowledge", "redact"},
    "planning": {"facts", "knowledge"},
    "rules": {"facts", "findings", "knowledge", "planning"},
    "records": {"facts", "findings", "redact"},
    "report": {"facts", "findings", "records", "knowledge", "redact"},
    "book": {"records", "report", "redact", "parameters"},
    "look": {"facts", "redact", "launch", "planning", "probes", "rules", "look_live", "look_page"},
    "look_live": {"facts", "probes", "look_page"},
    "look_page": {"facts", "rules"},
    "step": BELOW_CLI,
    "run_process": {"report"},
    "cockpit": BELOW_CLI | {"step", "run_process"},
    "cli": BELOW_CLI | {"step", "book", "look_live", "look_page"},
    "__init__": BELOW_CLI | {"step"},
}
ON_NODE = ("facts", "launch", "ranks", "probes", "redact", "look", "look_live", "look_page")
# what is settled before anything starts, and who did not come: asked where the job hangs
PURE_ON_NODE = [LIB / "planning" / "placement.py", LIB / "planning" / "guard.py", LIB / "rules" / "live.py",
                LIB / "rules" / "live_ranks.py", LIB / "rules" / "live_hosts.py", LIB / "rules" / "live_picture.py",
                LIB / "planning" / "halving.py", LIB / "planning" / "group_testing.py"]
# in rooms of the node, but not in nccl-look.pyz: it judges the interpreter that runs it, brings no log and does not ask what 02 asks
ELSEWHERE = [LIB / "launch" / "interpreters.py", LIB / "facts" / "start.py", LIB / "facts" / "run.py", LIB / "facts" / "environment.py",
             LIB / "ranks" / "environment.py", LIB / "facts" / "logs.py", LIB / "facts" / "recorder.py",
             LIB / "facts" / "comparison.py", LIB / "launch" / "command.py", LIB / "launch" / "supervised.py", LIB / "launch" / "figures.py",
             LIB / "probes" / "compare.py", LIB / "probes" / "own_sync.py"]
# the module that a probe asks in a child, and torch in ranks: imported inside functions only
FOREIGN_ON_NODE = {"torch", "pynvml", "safetensors"}
# a rank file may import another that is sent along with it
BESIDE = {"sync_ways", "sync_bytes", "fast_disk"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def sources(room: str = "") -> list[Path]:
    return [p for p in sorted(LIB.rglob("*.py")) if not room or p.relative_to(LIB).parts[0].removesuffix(".py") == room]


def room_of(path: Path) -> str:
    return path.relative_to(LIB).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names if node.module == PACKAGE}
    return found


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(LIB)))
def test_who_may_import_whom(path: Path) -> None:
    room = room_of(path)
    assert room in MAY_IMPORT, f"{room} is a room without a rule"
    named = {m.split(".")[1] for m in imports(path) if m.startswith(f"{PACKAGE}.")}
    assert named - {room} <= MAY_IMPORT[room], f"{room} imports {sorted(named - {room} - MAY_IMPORT[room])}"


@pytest.mark.parametrize("path", [*PURE_ON_NODE, *(p for room in ON_NODE for p in sources(room))], ids=lambda p: str(p.relative_to(LIB)))
def test_on_the_node_there_is_only_the_standard_library(path: Path) -> None:
    outside = {m.split(".")[0] for m in imports(path)} - set(sys.stdlib_module_names) - {PACKAGE}
    assert outside <= FOREIGN_ON_NODE | (BESIDE if room_of(path) == "ranks" else set())
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(LIB)))
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def code_lines(path: Path) -> int:
    """Lines that hold code: no blanks, comments or docstrings, so that nobody saves on those."""
    text = path.read_text(encoding="utf-8")
    documented = (n.body[0] for n in ast.walk(ast.parse(text)) if isinstance(n, DOCUMENTED) and ast.get_docstring(n) is not None)
    docstrings = {line for d in documented for line in range(d.lineno, d.end_lineno + 1)}
    tokens = (t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in NO_CODE)
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - docstrings)


def test_the_library_stays_small() -> None:
    lines = {p: code_lines(p) for p in sources()}
    # the design's figures, 8,000 and 2,500, held for the first issue; the plan, hangs, live looks, A/B, group testing and the weight-sync
    # methods came on top. A bound at what is there keeps it from growing unseen: shorten before raising it
    assert sum(lines.values()) < 16_470
    on_node = [p for p in lines if p in PURE_ON_NODE or room_of(p) in (*ON_NODE[:4], *ON_NODE[5:]) and p not in ELSEWHERE]
    assert sum(lines[p] for p in on_node) < 5_065


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(LIB)))
def test_what_is_never_done(path: Path) -> None:
    """Nothing that others hand us is executed. warm.py runs the rank file that launch sends it, and nothing else."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "pickle.load", "pickle.loads", "os.system") and (called != "exec" or path.name == "warm.py"), called
            assert not any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)


def requirement_lines() -> dict[str, str]:
    lines = [re.sub(r"\s*#.*", "", line).strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    return {re.split(r"[<>=]", line)[0]: line for line in lines if line}


def test_requirements_are_those_of_pyproject_and_the_pinned_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=]", line)[0]: line for line in project["dependencies"] + project["optional-dependencies"]["lab"]}
    listed = requirement_lines()
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", listed.pop("torch"))
    assert listed == declared
    assert not {"torch", "jupyterlab", "pynvml"} & {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}


HEADINGS = ["Parameters", "Look", "Judge", "Report", "Next"]
COMMON = {"run_dir": "", "record_path": "", "python": "", "gpus": "", "budget_s": 120, "allow_busy": False}
WITHOUT_STEP = ("00-start", "99-verdict")  # one asks the reader, one sums up: neither has all six parts
FORBIDDEN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.If, ast.Lambda)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def tagged(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]


def taken(module: str, name: str) -> object:
    """What `from module import name` gives; ImportError where it does not exist."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
class TestNotebook:
    def test_is_valid_and_without_outputs(self, path: Path) -> None:
        raw = json.loads(path.read_text())
        assert (raw["nbformat"], raw["nbformat_minor"]) == (4, 5)
        notebook = read(path)
        nbformat.validate(notebook)
        code = [c for c in notebook.cells if c.cell_type == "code"]
        assert all(not c.outputs and c.execution_count is None for c in code)
        assert all(re.fullmatch(r"[a-z0-9-]{2,40}", c.id) for c in notebook.cells), "cell ids are short words"
        assert len({c.id for c in notebook.cells}) == len(notebook.cells)
        assert set(notebook.metadata) <= {"kernelspec", "language_info", "nccl_runbook"}

    def test_begins_with_its_question(self, path: Path) -> None:
        first = read(path).cells[0]
        assert first.cell_type == "markdown" and first.source.startswith("# ") and first.source.count("\n# ") == 0
        if path.stem not in WITHOUT_STEP:
            assert "?" in first.source and re.search(r"disturbs running jobs: (yes|no)", first.source, re.I)

    def test_has_its_parts_in_order(self, path: Path) -> None:
        found = [line[3:].strip() for c in read(path).cells if c.cell_type == "markdown" for line in c.source.splitlines() if line.startswith("## ")]
        expected = [h for h in HEADINGS if h in found] if path.stem in WITHOUT_STEP else HEADINGS
        assert [h for h in found if h in HEADINGS] == expected

    def test_parameters_are_those_that_papermill_sees(self, path: Path) -> None:
        cells, declared = tagged(read(path)), read_cell(path)
        assert len(cells) == 1
        seen = papermill.inspect_notebook(path)
        assert set(seen) == set(declared) and all(p["help"] for p in seen.values())
        for line in cells[0].source.splitlines():
            _, _, rest = line.partition("=")
            assert "=" not in rest and rest.count("#") == 1, line
        if path.stem not in WITHOUT_STEP:
            assert {n: declared[n].default for n in COMMON if n != "budget_s"} == {n: v for n, v in COMMON.items() if n != "budget_s"}
            assert declared["budget_s"].wanted is int
        if path.stem[:2] in ("03", "04", "05"):
            assert declared["max_ranks"].default == 0

    def test_names_that_it_takes_from_the_library_exist(self, path: Path) -> None:
        """A module that was moved breaks a notebook whose cells no other test here may run, as they need a machine."""
        tree = ast.parse("\n".join(c.source for c in read(path).cells if c.cell_type == "code"))
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and str(n.module).startswith("nccl_runbook")]
        known = {a.asname or a.name: taken(n.module, a.name) for n in imports for a in n.names}
        used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        missing = [f"{n.value.id}.{n.attr}" for n in used if n.value.id in known and not hasattr(known[n.value.id], n.attr)]
        loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        assert known and not missing and not set(known) - loaded, "an import that no cell uses hides what was lost"

    def test_the_suggested_experiment_runs_on_any_machine(self, path: Path) -> None:
        """Without gpus it takes those that are there, or the CPU."""
        suggested = [line[2:] for c in read(path).cells for line in c.source.splitlines() if line.startswith("# step.trial(")]
        assert bool(suggested) == (path.stem[:2] in ("03", "04", "05"))
        assert all("gpus" not in {k.arg for k in ast.parse(line).body[0].value.keywords} for line in suggested)

    def test_cells_are_short_and_plain(self, path: Path) -> None:
        for cell in (c for c in read(path).cells if c.cell_type == "code"):
            # papermill wants all parameters in one cell, a line each
            assert len(cell.source.splitlines()) <= (16 if "parameters" in cell.metadata.get("tags", []) else 12)
            assert not re.search(r"^\s*[!%]|os\.environ|\bprint\(", cell.source, re.M), cell.source
            nodes = list(ast.walk(ast.parse(cell.source)))
            bad = [type(n).__name__ for n in nodes if isinstance(n, FORBIDDEN)]
            assert not [b for b in bad if b != "Lambda"], bad

    def test_a_sentence_stands_before_every_code_cell(self, path: Path) -> None:
        cells = read(path).cells
        for before, cell in zip(cells, cells[1:], strict=False):
            if cell.cell_type == "code":
                assert before.cell_type == "markdown" and re.search(r"[a-z]{2}.*[.:]", before.source), cell.source[:60]

    def test_imports_nothing_that_touches_a_gpu(self, path: Path) -> None:
        text = "\n".join(c.source for c in read(path).cells if c.cell_type == "code")
        assert not re.search(r"^\s*(import|from)\s+(torch|pynvml|cupy|numba|nccl\b)", text, re.M)

    def test_links_lead_to_notebooks_that_exist(self, path: Path) -> None:
        for cell in (c for c in read(path).cells if c.cell_type == "markdown"):
            for target in re.findall(r"\]\(([^)#\s]+\.ipynb)", cell.source):
                assert (path.parent / target).exists(), target


def test_the_linter_has_nothing_to_say() -> None:
    """pyproject.toml holds what runs on the node to Python 3.9."""
    said = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "lib", "tests"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout
