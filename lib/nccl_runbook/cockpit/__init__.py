"""The cockpit of 00-start: fields that write the notebook's plain variables, Run, Cancel, and what a run says while it is at work.

ipywidgets is imported only where somebody looks: headless, or without it, the same call gives a plain table of steps. Buttons may call
back in either of the kernel's threads (ipykernel 7), so shared state is under a lock; the cell itself returns at once.
"""
import importlib.util
import os
import shlex
import threading
from collections.abc import Mapping, MutableMapping
from html import escape
from pathlib import Path
from typing import Any

from nccl_runbook.cockpit.run_process import RunProcess
from nccl_runbook.core.parameters import ParameterError, coerce
from nccl_runbook.report.render import macros
from nccl_runbook.step import HEADLESS_VARIABLE, injected_cells, outputs_root
from nccl_runbook.triage.facts import Start
from nccl_runbook.triage.start.judge import judge
from nccl_runbook.triage.start.read import collect
from nccl_runbook.triage.start.steps import plan, step_texts, symptoms
from nccl_runbook.triage.start.table import brought_table, plan_table

FIELDS = {"symptom": str, "log": str, "python": str, "gpus": str, "budget_s": int, "allow_busy": bool}
BUDGET_S = 300  # what `nccl-runbook run` takes without --budget
_FIRST, _LAST = "00-start", "99-verdict"

_lock = threading.RLock()
_latest: RunProcess | None = None  # of this kernel: two at a time would disturb each other


class Html(str):
    """Text that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        return str(self)


def is_interactive(namespace: Mapping[str, Any]) -> bool:
    """Whether a person looks: a kernel with a frontend that has widgets, no runner and no papermill around it.

    JPY_SESSION_NAME is set by jupyter_server 2 for a notebook that somebody opened, __vsc_ipynb_file__ by VS Code.
    """
    if HEADLESS_VARIABLE in os.environ or importlib.util.find_spec("ipywidgets") is None:
        return False
    return not injected_cells(namespace) and ("JPY_SESSION_NAME" in os.environ or "__vsc_ipynb_file__" in namespace)


def notebooks_here() -> Path:
    """The folder that a run takes its notebooks from: the one this notebook is in, else the checkout's."""
    here = Path.cwd()
    return here if (here / f"{_FIRST}.ipynb").is_file() else outputs_root().parent / "notebooks"


def read_values(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The plain variables, typed; ParameterError names one of the wrong type."""
    values = {name: coerce(name, namespace[name], wanted) for name, wanted in FIELDS.items() if name in namespace}
    return {**values, "steps": [str(step) for step in namespace.get("steps", [])]}


def arguments(values: Mapping[str, Any], notebooks: Path | None = None) -> list[str]:
    """The options of `nccl-runbook run` that say the same as the plain variables; what is a default is left out."""
    log = values.get("log", "").strip()
    told = {"--log": log and os.path.abspath(os.path.expanduser(log)), "--symptom": values.get("symptom", "").strip(),
            "--python": values.get("python", "").strip(), "--gpus": values.get("gpus", "").strip(),
            "--budget": "" if values.get("budget_s", BUDGET_S) == BUDGET_S else f"{values['budget_s']}s"}
    line = [part for option, text in told.items() if text for part in (option, text)] + ["--allow-busy"] * bool(values.get("allow_busy"))
    if notebooks is not None and notebooks.resolve() != (outputs_root().parent / "notebooks").resolve():
        line += ["--notebooks", str(notebooks)]
    return line + (["--step", *values["steps"]] if values.get("steps") else [])


def command_line(values: Mapping[str, Any], notebooks: Path | None = None) -> str:
    """What to type instead of pressing Run."""
    return shlex.join(["nccl-runbook", "run", *arguments(values, notebooks)])


def steps_of(values: Mapping[str, Any], notebooks: Path) -> list[str]:
    """The steps that such a run takes, in its order."""
    book = [path.stem for path in sorted(notebooks.glob("[0-9][0-9]-*.ipynb"))]
    brought = bool(values.get("log") or values.get("symptom"))
    wanted = {*values["steps"], *([_FIRST] if brought else [])} if values.get("steps") else set(book)
    return [name for name in book if name in wanted and name != _LAST] + [_LAST]


def run_html(run: RunProcess, steps: list[str]) -> Html:
    """A run at work, or its end: the verdict's sentence, the exit code, the page. Plain HTML, which stays in the notebook."""
    return Html(macros("cells.html.j2").run(run, steps, os.path.relpath(run.page) if run.page else ""))


def show(namespace: MutableMapping[str, Any], start: Start) -> Any:
    """The cockpit under the cell, or the plan of steps as a plain table where nobody could press a button."""
    return Cockpit(namespace, start) if is_interactive(namespace) else plan_table(plan(start))


class Cockpit:
    """Fields, Run and Cancel over one namespace. A second Run beside one at work is refused, in another cell of this kernel as well."""

    def __init__(self, namespace: MutableMapping[str, Any], start: Start) -> None:
        import ipywidgets as w

        self.namespace = namespace
        self.notebooks = notebooks_here()
        self.namespace.setdefault("steps", [])
        self.start = start
        self.steps = steps_of(read_values(namespace), self.notebooks)
        self._make_fields(w)
        # no icons: their glyph would become part of the accessible name
        self.run_button = w.Button(description="Run", button_style="primary", tooltip="Run the steps. Starts ranks on the GPUs.")
        self.cancel_button = w.Button(description="Cancel", disabled=True, tooltip="Stop the run and its ranks")
        self.run_button.on_click(lambda _button: self.run())
        self.cancel_button.on_click(lambda _button: self.cancel())
        label = w.Label("Steps", layout=w.Layout(width="9.5rem", margin="2px 6px 2px 2px", display="flex", justify_content="flex-end"))
        chosen = w.HBox([label, w.HBox(list(self.boxes.values()), layout=w.Layout(flex_flow="row wrap", max_width="36rem"))])
        self.line, self.note = w.HTML(), w.HTML()
        self.box = w.VBox([self.choice, self.error, self.log, self.python, self.gpus, self.budget, chosen, self.busy, self.line,
                           w.HBox([self.run_button, self.cancel_button]), self.note])

    def _make_fields(self, w: Any) -> None:
        given = {name: self.namespace.get(name, wanted()) for name, wanted in FIELDS.items()}
        first, _, rest = given["symptom"].partition("\n")
        known, steps = first if first in symptoms() else "", self.namespace["steps"]
        look = {"layout": w.Layout(width="min(46rem, 98%)"), "style": {"description_width": "9.5rem"}}

        def text(label: str, value: str, hint: str, kind: Any = w.Text) -> Any:
            return kind(value=value, description=label, placeholder=hint, continuous_update=False, **look)

        self.choice = w.Dropdown(options=[("choose, or paste the error below", ""), *((s.words, s.id) for s in symptoms().values())],
                                 value=known, description="Symptom", **look)
        self.error = text("Error text", rest if known else given["symptom"], "a line that your job printed", w.Textarea)
        self.error.rows = 2
        self.log = text("Log file", given["log"], "path of a log of the failed job, plain or gzip")
        self.python = text("Interpreter", given["python"], "found automatically; or a path, or docker exec -i NAME python3")
        self.gpus = text("GPUs", given["gpus"], "all; or 0,1 or 0-3")
        self.budget = w.BoundedIntText(value=given["budget_s"], min=10, max=86400, step=30, description="Budget, seconds",
                                       style=look["style"], layout=w.Layout(width="16rem"))
        self.busy = w.Checkbox(value=given["allow_busy"], description="Also test GPUs that others use (disturbs their jobs)", **look)
        self.boxes = {name: w.Checkbox(value=not steps or name in steps, description=name, tooltip=step_texts()[name].answers,
                                       indent=False, layout=w.Layout(width="11rem"))
                      for name in step_texts() if (self.notebooks / f"{name}.ipynb").is_file()}
        for field in (self.choice, self.error, self.log, self.python, self.gpus, self.budget, self.busy, *self.boxes.values()):
            field.observe(lambda _change: self.changed(), "value")

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box)
        self._progress = display(Html(""), display_id=True)
        self._plan = display(self._plan_html(), display_id=True)
        self._tell_line()
        with _lock:
            if _latest is not None and _latest.at_work:
                self._attach(_latest)

    def changed(self) -> None:
        """Write every field into its plain variable, and show what they now mean."""
        ticked = [name for name, box in self.boxes.items() if box.value]
        symptom = "\n".join(filter(None, (self.choice.value, self.error.value.strip())))
        brought = (symptom, self.log.value.strip()) != (self.namespace.get("symptom"), self.namespace.get("log"))
        self.namespace.update(
            symptom=symptom, log=self.log.value.strip(), python=self.python.value.strip(), gpus=self.gpus.value.strip(),
            budget_s=self.budget.value, allow_busy=self.busy.value, steps=[] if len(ticked) == len(self.boxes) else ticked)
        self._tell_line()
        if brought:
            self.start = collect(symptom, self.log.value)
            self._plan.update(self._plan_html())

    def _plan_html(self) -> Html:
        brought = [brought_table(self.start, judge(self.start))] if self.start.logs else []
        return Html("".join(t._repr_html_() for t in [*brought, plan_table(plan(self.start))]))

    def _tell_line(self) -> None:
        try:
            line = command_line(read_values(self.namespace), self.notebooks)
        except ParameterError as error:
            self.note.value = escape(str(error))
            return
        none = not any(box.value for box in self.boxes.values())
        self.line.value = str(macros("cells.html.j2").lines("This equals:", line))
        self.note.value = "Tick at least one step." if none else ""
        with _lock:
            self.run_button.disabled = none or (_latest is not None and _latest.at_work)

    def run(self) -> str:
        """Start a run of what the plain variables say; one sentence."""
        global _latest
        with _lock:
            if _latest is not None and _latest.at_work:
                said = "A run is in progress. Cancel it, or wait until it ends."
            else:
                try:
                    values = read_values(self.namespace)
                    _latest = RunProcess(arguments(values, self.notebooks), self.notebooks.parent / "outputs")
                    self.steps = steps_of(values, self.notebooks)
                    self._attach(_latest)
                    _latest.start()
                    said = ""
                except (ParameterError, OSError) as error:
                    said = f"Not started: {error}"
            self.note.value = escape(said)
            return said

    def _attach(self, run: RunProcess) -> None:
        run.on_change = self._show_run
        self._show_run(run)

    def _show_run(self, run: RunProcess) -> None:
        with _lock:
            self.run_button.disabled = run.at_work
            self.cancel_button.disabled = not run.at_work or run.cancelled_at is not None
            self._progress.update(run_html(run, self.steps))

    def cancel(self) -> str:
        """Stop the run at work; one sentence."""
        with _lock:
            if _latest is None or not _latest.at_work:
                said = "No run is in progress."
            else:
                _latest.cancel()
                self._show_run(_latest)
                said = ""
            self.note.value = escape(said)
            return said
