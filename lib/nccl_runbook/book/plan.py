"""Which notebooks a run executes, and with which parameters."""

import ast
import contextlib
import dataclasses
import io
import json
import pkgutil
import re
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from nccl_runbook.core import records
from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.parameters import Parameter, check_given, check_names, read_cell
from nccl_runbook.report.verdict import VERDICT_STEP

# decided by the runner: each has an option of its own
_SET_BY_OPTION = {"run_dir": "--out", "record_path": "--record", "python": "--python"}


@dataclasses.dataclass(frozen=True)
class Planned:
    """One notebook to run. ``parameters``: typed values of the command line; ``record``: judged instead of a
    machine."""

    name: str
    source: Path
    declared: dict[str, Parameter]
    parameters: dict[str, Any]
    record: Path | None = None

    def budget_s(self, left_s: float) -> int:
        """Whole seconds for this step: its own budget, or the rest of the run's if that is less."""
        default = self.declared["budget_s"].default if "budget_s" in self.declared else left_s
        return max(1, int(min(self.parameters.get("budget_s", default), left_s)))

    def refused(self, why: str) -> str:
        """The notebook's error about a value that the command line names, else empty."""
        error = re.fullmatch(r"the notebook stopped with an error: Unusable: (.*)", why)
        return error[1] if error and self.parameters else ""


def check_records(plan: Sequence[Planned], folder: str) -> None:
    """Judge the records of the plan in this process, as their notebooks will: only ours, since a reader's own
    may do anything. Steps write into ``folder``. RecordError if a judge stops at one."""
    for planned in (planned for planned in plan if planned.record):
        given = {**planned.parameters, "record_path": str(planned.record), "run_dir": folder}
        sources = []
        for cell in json.loads(planned.source.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                sources.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", []):
                sources += [f"{name} = {value!r}" for name, value in given.items()]
        script = Path(folder, f"{planned.name}.py")
        script.write_text("\n".join(sources), encoding="utf-8")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(str(script))
        except (Exception, SystemExit) as error:  # whatever a judge raises, the facts are to blame
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise records.RecordError(f"the facts in {planned.record} cannot be judged ({why})") from error


def notebooks_in(folder: Path) -> dict[str, Path]:
    """Step name -> notebook, in running order. Unusable if the folder has none."""
    if not (by_stem := {path.stem: path for path in sorted(folder.glob("[0-9][0-9]-*.ipynb"))}):
        raise Unusable(
            f"{folder} contains no notebooks. Run this command from a checkout, or name the folder "
            "with --notebooks"
        )
    return by_stem


def make_plan(
    folder: Path, steps: Sequence[str], given: Sequence[tuple[str, str]], replayed: Sequence[Path] = ()
) -> list[Planned]:
    """Notebooks to run, 99-verdict last; touches nothing. Unusable for what does not
    fit."""
    book = notebooks_in(folder)
    check_names(steps, book, "step")
    by_step = _records_by_step(replayed, book)
    wanted = set(steps) | set(by_step) or set(book)
    names = [n for n in book if n in wanted and n != VERDICT_STEP] + [n for n in book if n == VERDICT_STEP]
    if by_step and (missing := [n for n in steps if n != VERDICT_STEP and n not in by_step]):
        raise Unusable(f"the files of --record contain no record of {' and no record of '.join(missing)}")
    for name, _ in given:
        if name in _SET_BY_OPTION:
            raise Unusable(f"parameter {name} is set by {_SET_BY_OPTION[name]}")
    declared = {name: read_cell(book[name]) for name in names}
    values = check_given(given, declared)
    return [Planned(n, book[n], declared[n], values[n], by_step.get(n)) for n in names]


def _records_by_step(paths: Sequence[Path], book: Mapping[str, Path]) -> dict[str, Path]:
    """Each file under the steps that it holds a record of. Unusable for a record of the verdict, which has
    nothing to judge, and for one without facts that its notebook collects; RecordError for facts of other
    types."""
    by_step: dict[str, Path] = {}
    for path in paths:
        steps = {record.step: record.facts for record in records.load_all(path)}
        known = {step: probes(book[step]) for step in steps if step in book}
        if not any({*facts} & {*(known.get(step) or facts), "users"} for step, facts in steps.items()):
            raise Unusable(f"{path} contains no facts that a notebook can judge")
        for step in steps:
            if step not in book or step == VERDICT_STEP:
                raise Unusable(
                    f"{path} is a record of {step}, but no notebook in this folder judges this step"
                )
            if step in by_step:
                raise Unusable(
                    f"{by_step[step]} and {path} are both records of {step}. Name only one of the two"
                )
            for fact in known[step].keys() & steps[step].keys():
                records.read(
                    get_type_hints(known[step][fact])["return"] | Gap,
                    steps[step][fact],
                    f"{path}: {fact} of {step}: ",
                )
            by_step[step] = path.absolute()
    return by_step


def probes(notebook: Path) -> dict[str, Callable[..., Any]]:
    """Fact -> what collects it: the calls ``step.collect(FACT, PROBE, ...)`` in a notebook's code, which is
    parsed and never executed. A probe that is not imported from this package is left out, and so is a call
    that cannot be read."""
    nodes = list(_code(notebook))
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom) and str(n.module).startswith("nccl_runbook")]
    places = {alias.asname or alias.name: f"{n.module}.{alias.name}" for n in imports for alias in n.names}
    known = {}
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "step.collect" and len(node.args) > 1:
            place, dot, name = ast.unparse(node.args[1]).partition(".")
            if place in places:
                with contextlib.suppress(ValueError, TypeError, ImportError, AttributeError):
                    probe = pkgutil.resolve_name(places[place] + dot + name)
                    if "return" in get_type_hints(probe):
                        known[ast.literal_eval(node.args[0])] = probe
    return known


def _code(notebook: Path) -> Iterator[ast.AST]:
    """Every node of a notebook's code; none of a cell that is no Python."""
    for cell in json.loads(notebook.read_text("utf-8", "replace"))["cells"]:
        with contextlib.suppress(SyntaxError):
            yield from ast.walk(ast.parse("".join(cell["source"]) if cell["cell_type"] == "code" else ""))
