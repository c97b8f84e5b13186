"""README and the reference say what the code says. `make knowledge` writes the pages that follow from it."""
from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import reference
import scorecard
from nccl_runbook.__main__ import COMMANDS
from nccl_runbook.core.findings import EXIT_CODES

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
READ = [README, *sorted(reference.FOLDER.glob("*.md"))]


def headings(path: Path) -> set[str]:
    """The anchors that a page has, as GitHub and JupyterLab make them."""
    found = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^ *```.*?^ *```", "", path.read_text()))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in found}


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_written_page_is_that_of_the_code(name: str) -> None:
    text = (reference.FOLDER / name).read_text()
    assert text.count("\n") > 20 and text == reference.page(name), "run: make knowledge"
    assert not re.search(r"(?m)^\| --- .*\n(?!\|)", text), "a table without rows"


def test_every_page_quotes_the_same_figures_of_accuracy() -> None:
    """README, the page for assistants and the page that explains the figures; no written page has others."""
    said = scorecard.in_short(scorecard.evidence())
    assert [n for n in ("README.md", "SKILL.md", "accuracy.md") if said not in {p.name: p.read_text() for p in READ}[n]] == []
    figure = re.compile(r"\d+ (?:right|wrong|undecided|of \d+ (?:faults|reports))\b")
    others = {p.name: figure.findall(p.read_text().replace(said, "")) for p in READ}
    assert {name: figures for name, figures in others.items() if figures and name not in reference.PAGES} == {}


def test_readme_and_the_glossary_define_the_verdicts_in_the_same_words() -> None:
    rows = {word: meaning for word, meaning in re.findall(r"(?m)^\| (\w+) \| \d \| (.+?) \|$", README.read_text())}
    assert rows == reference.VERDICTS and set(rows) == {*EXIT_CODES}


def test_each_planted_fault_is_described_where_the_figures_are() -> None:
    live = {fault for subject, fault, _ in scorecard.tally(scorecard.evidence()) if subject == "live"}
    text = reference.accuracy_page()
    assert live == {*scorecard.PLANTED} and [words for words in scorecard.PLANTED.values() if words not in text] == []
    rows = scorecard.planted_table(scorecard.evidence()).rows
    assert all(str(sum(int(row[at]) for row in rows)) in scorecard.in_short(scorecard.evidence()) for at in (1, 2, 3))


@pytest.mark.parametrize("path", READ, ids=lambda p: p.name)
def test_links_exist(path: Path) -> None:
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", path.read_text()) if not t.startswith("http")]
    lost = [t for t in targets for file, _, anchor in [t.partition("#")]
            if not (whole := path.parent / file if file else path).exists() or (anchor and anchor not in headings(whole))]
    assert lost == [] and (path != README or len(targets) > 20)


def test_readme_begins_with_the_command_for_a_hung_job_and_stays_short() -> None:
    before, command, _ = README.read_text().partition("nccl-runbook look")
    assert command and len(before.split()) <= 150 and before.count("\n") < 20
    assert len(README.read_text().split()) <= 1500


def test_readme_names_every_notebook_and_contributing_every_room():
    text = README.read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    rooms = [p.name for p in (ROOT / "lib/nccl_runbook").iterdir() if p.is_dir() and (p / "__init__.py").exists()]
    assert [n.stem for n in (ROOT / "notebooks").glob("*.ipynb") if f"notebooks/{n.name}" not in text] == []
    assert [r for r in rooms if f"{r}/" not in text] == []


def test_every_page_of_the_reference_can_be_reached_from_readme() -> None:
    assert [p.name for p in READ[1:] if f"notebooks/reference/{p.name}" not in README.read_text()] == []


@pytest.mark.parametrize("path", READ, ids=lambda p: p.name)
def test_commands_and_options_that_pages_show_exist(path: Path) -> None:
    """A program's options are those of its help; what stands behind `--` is the reader's own command."""
    parser = reference.typer.main.get_command(reference.app())
    known = {name: {o for p in command.params for o in p.opts} | {"--help"} for name, command in parser.commands.items()}
    for name, rest in re.findall(r"nccl-runbook ([a-z]+)((?:[^\n`|\"'#]|\"[^\"\n]*\"|'[^'\n]*')*)", path.read_text()):
        assert name in COMMANDS, f"nccl-runbook {name}"
        unquoted = re.sub(r"\"[^\"]*\"|'[^']*'", "", rest).partition(" -- ")[0]
        used = re.findall(r"(?<!\S)--?[a-z][\w-]*", unquoted)
        assert not {*used} - known[name], f"{name}: {used}"


def test_the_page_for_assistants_is_short_and_links_every_schema() -> None:
    text = (reference.FOLDER / "SKILL.md").read_text()
    assert text.count("\n") <= 100 and {"triage", "hang", "look", "env", "plan", "run"} <= set(re.findall(r"nccl-runbook (\w+)", text))
    assert [p.name for p in reference.SCHEMAS.rglob("*.json") if f"schemas/{p.relative_to(reference.SCHEMAS)}" not in text] == []


def test_06_has_a_line_to_paste_for_each_step_of_the_hunt_for_a_time_out() -> None:
    """Device map, minibatches, pauses of the weight sync, stacks, a verbose run, a smaller form, a soak: guards and options that there
    are."""
    text = "".join("".join(cell["source"]) for cell in json.loads((ROOT / "notebooks/06-timeouts.ipynb").read_text())["cells"])
    guards = {node.name for node in ast.parse((ROOT / "lib/nccl_guards.py").read_text()).body if isinstance(node, ast.FunctionDef)}
    named = set(re.findall(r"guard\.(\w+)\(", text))
    assert (
        named
        == {"enable_flight_recorder", "check_device_map", "init_process_group_checked", "check_minibatches", "pause_trace", "sync_clock"}
        <= guards
    )
    assert {"look", "reduce", "sync", "env", "triage"} <= set(re.findall(r"nccl-runbook (\w+)", text)) and "NCCL_GUARD_DEVICE_ID" in text
