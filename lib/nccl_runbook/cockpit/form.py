"""The form of 00-start: what somebody has, the answer at once, then a test of the hardware that is watched, cancelled and repeated.

Everything that changes is a widget: JupyterLab restores widgets from the kernel, and no cell keeps words that are no longer true. Buttons
may call back in either of the kernel's threads (ipykernel 7) and a run in its own, so shared state is under a lock.
"""
import os
import re
import shlex
import shutil
import threading
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.case.answer import DUMPS, LOGS
from nccl_runbook.case.read import Brought
from nccl_runbook.cockpit import FIELDS, arguments, command_line, notebooks_here, read_values
from nccl_runbook.cockpit.given import Answer, ask, items, with_run
from nccl_runbook.cockpit.run_process import RUN, RunProcess, WorldSeen
from nccl_runbook.core.parameters import ParameterError
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.devices import gpu_ranges
from nccl_runbook.report.render import macros
from nccl_runbook.step import RUN_DIR_VARIABLE, outputs_root
from nccl_runbook.triage.start.steps import step_texts, symptoms

WARM = "ncclSystemError"  # any error text
PAUSE_S = 0.1  # without a key: then what was typed is answered
TESTS = ("01-gpu-visibility", "02-environment", "03-fewer-gpus", "04-transports", "05-weight-sync")
STYLES = {"passed": "success", "": "info", "lost": "warning"}  # of a world's button, by how it ended; "": it runs
_SETTINGS = re.compile(r"export ((?:[A-Z]\w*=\S+ ?)+)")

_lock = threading.RLock()
_reading = threading.Lock()  # the matcher of messages serves one thread at a time
_latest: RunProcess | None = None  # of this kernel: two at a time would disturb each other


class Cockpit:
    """The form over one namespace. A second run beside one at work is refused, in another cell of this kernel as well."""

    def __init__(self, namespace: MutableMapping[str, Any]) -> None:
        import ipywidgets as w

        self.w, self.namespace, self.notebooks = w, namespace, notebooks_here()
        self.namespace.setdefault("steps", [])
        self.folder = Path(os.environ.get(RUN_DIR_VARIABLE) or outputs_root())
        self.answer: Answer | None = None
        self.wrong = ""  # why what was given cannot be read
        self._asked = ""
        self._make_fields()
        self._make_tests()
        buttons = w.HBox([self.run_button, self.cancel_button, self.status], layout=w.Layout(align_items="center"))
        rows = [self.given, self.choice, self.note, self.card, self.fix, self.heading, buttons, self.worlds, self.plan, self.options,
                self.line, self.log]
        self.box = w.VBox(rows, layout=w.Layout(max_width="64rem"))
        self.changed()
        threading.Thread(target=self._warm, daemon=True).start()
        with _lock:
            if _latest is not None:
                self._attach(_latest)

    def _warm(self) -> None:
        """Load what reads and judges, so that the first answer comes as quickly as the next."""
        with _reading:
            ask([WARM])

    def _make_fields(self) -> None:
        w, values = self.w, {name: self.namespace.get(name, wanted()) for name, wanted in FIELDS.items()}
        look = {"layout": w.Layout(width="98%"), "style": {"description_width": "9.5rem"}}
        first, _, rest = values["symptom"].partition("\n")
        known = first if first in symptoms() else ""
        brought = [*filter(None, values["log"].split(":")), rest if known else values["symptom"]]
        self.given = w.Textarea(value="\n".join(filter(None, brought)), description="What do you have?", rows=3, **look,
                                placeholder="Paste a path (log, folder of dumps, launch script), the text of a log, or one error line")
        self.choice = w.Dropdown(options=[("choose, if you have no text", ""), *((s.words, s.id) for s in symptoms().values())],
                                 value=known, description="Symptom", **look)
        self.note, self.card = w.HTML(), w.Output()
        self.python = w.Text(value=values["python"], description="Interpreter", continuous_update=False, **look,
                             placeholder="found automatically; or a path, or docker exec -i NAME python3")
        self.gpus = w.Text(value=values["gpus"], description="GPUs", placeholder="all; or 0,1 or 0-3", **look)
        self.budget = w.BoundedIntText(value=values["budget_s"], min=10, max=86400, step=30, description="Budget, seconds",
                                       style=look["style"], layout=w.Layout(width="16rem"))
        self.busy = w.Checkbox(value=values["allow_busy"], description="Also test GPUs that others use (disturbs their jobs)", **look)
        self.options = w.Accordion([w.VBox([self.python, self.gpus, self.budget, self.busy])], titles=["Options: interpreter, GPUs, time"])
        for field in (self.given, self.choice, self.python, self.gpus, self.budget, self.busy):
            field.observe(lambda _change: self.changed(), "value")

    def _make_tests(self) -> None:
        w, wanted = self.w, self.namespace["steps"]
        self.boxes = {name: w.Checkbox(value=not wanted or name in wanted, indent=False, layout=w.Layout(width="98%"),
                                       description=f"{name}: {step_texts()[name].answers} About {step_texts()[name].about_s} s.")
                      for name in TESTS if (self.notebooks / f"{name}.ipynb").is_file()}
        for box in self.boxes.values():
            box.observe(lambda _change: self.changed(), "value")
        self.plan = w.VBox(list(self.boxes.values()))
        self.heading, self.line, self.status, self.log = w.HTML(), w.HTML(), w.HTML(), w.HTML()
        # no icons: their glyph would become part of the accessible name
        self.run_button = w.Button(description="Run", button_style="primary", tooltip="Run the steps. Starts ranks on the GPUs.")
        self.cancel_button = w.Button(description="Cancel", disabled=True, tooltip="Stop the run and its ranks")
        self.setting = w.Text(description="Setting to try", placeholder="NAME=VALUE", style={"description_width": "9.5rem"})
        self.try_button = w.Button(description="Try it beside a control", layout=w.Layout(width="auto"),
                                   tooltip="Run an all_reduce with and without the setting, in turn")
        self.fix = w.HBox([self.setting, self.try_button], layout=w.Layout(display="none"))
        self.worlds = w.HBox(layout=w.Layout(flex_flow="row wrap"))
        self.run_button.on_click(lambda _button: self.run())
        self.cancel_button.on_click(lambda _button: self.cancel())
        self.try_button.on_click(lambda _button: self.try_setting())

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box)

    def changed(self) -> None:
        """Write every field into its plain variable, check it, and have what was given read."""
        ticked = [name for name, box in self.boxes.items() if box.value]
        self.namespace.update(python=self.python.value.strip(), gpus=self.gpus.value.strip(), budget_s=self.budget.value,
                              allow_busy=self.busy.value, steps=[] if len(ticked) == len(self.boxes) else ticked)
        words = self.choice.value and symptoms()[self.choice.value].words
        asked = "\n".join(filter(None, (words, self.given.value.strip())))
        if asked != self._asked:
            self._asked = asked
            timer = threading.Timer(PAUSE_S, self._read, [asked])
            timer.daemon = True
            timer.start()
        self._draw()

    def _read(self, asked: str) -> None:
        """Answer it, unless something else was typed meanwhile."""
        with _reading:
            if asked != self._asked:
                return
            answer, wrong = None, ""
            try:
                given = items(asked, outputs_root().parent, self.folder / "pasted.log")
                answer = ask(given) if given else None
            except (ValueError, OSError) as error:
                wrong = str(error)
        with _lock:
            if asked == self._asked:
                self.answer, self.wrong = answer, wrong
                brought = answer.brought if answer else Brought()
                chosen = symptoms()[self.choice.value].words if self.choice.value else ""
                words = [self.choice.value, *(word for word in brought.words if word != chosen)]
                self.namespace.update(log=":".join(brought.logs), symptom="\n".join(filter(None, words)))
                if not wrong:
                    self._propose()
                self._draw()

    def _propose(self) -> None:
        """The tests that decide come first, and only they are ticked where the answer names them; a setting of the fix is offered."""
        answer = self.answer
        asked = re.findall(r"--step (\S+)", answer.test.line) if answer and answer.test else []
        order = dict.fromkeys([*asked, *(answer.found.steps if answer else ()), *self.boxes])
        self.plan.children = [self.boxes[name] for name in order if name in self.boxes]
        for name, box in self.boxes.items():
            box.value = name in asked if asked else not (answer and answer.lead)
        remedies = answer.lead.remedy if answer and answer.lead else ()
        self.setting.value = " ".join(m[1] for r in remedies for line in r.lines for m in [_SETTINGS.fullmatch(line)] if m)
        self.fix.layout.display = "" if self.setting.value else "none"

    def _values(self) -> dict[str, Any]:
        """What a run gets: the plain variables, and the steps that read what was given, so that its page holds the same answer."""
        values, answer = read_values(self.namespace), self.answer
        read = [r.step for r in answer.found.records if r.step in (DUMPS, LOGS)] if answer and answer.brought.logs else []
        if DUMPS in read:
            values["hang_path"] = values["log"]
            values["log"] = values["log"] if LOGS in read else ""
        ticked = [name for name, box in self.boxes.items() if box.value]
        return {**values, "steps": [*ticked, *read] if values["steps"] or DUMPS in read else []}

    def _refused(self) -> str:
        """Why the fields cannot be used as they are; "" if they can."""
        try:
            gpu_ranges(self.gpus.value)
            command = shlex.split(self.python.value)
            read_values(self.namespace)
        except (ValueError, ParameterError) as error:
            return str(error)
        if command and shutil.which(os.path.expanduser(command[0])) is None:
            return f"Interpreter: there is no program {command[0]}"
        return self.wrong

    def _draw(self) -> None:
        """Everything that follows from the fields, the answer and the run."""
        with _lock:
            cells, refused, run = macros("cells.html.j2"), self._refused(), _latest
            at_work = run is not None and run.at_work
            self.note.value = str(cells.refused(refused)) if refused else ""
            self.line.value = "" if refused else str(cells.lines("This equals:", command_line(self._values(), self.notebooks)))
            ticked = [name for name, box in self.boxes.items() if box.value]
            self.heading.value = str(cells.price(sum(step_texts()[name].about_s for name in ticked), self.answer))
            self.try_button.disabled = bool(refused) or at_work
            self.run_button.disabled = self.try_button.disabled or not ticked
            self.cancel_button.disabled = not at_work or run.cancelled_at is not None
            self.status.value = str(cells.status(run)) if run else ""
            self.log.value = str(cells.said(run)) if run else ""
            shown, page = self.answer, run.page if run else None
            if run and not at_work and run.document and not run.document.run.interrupted:
                shown = with_run(self.answer, run.records)
            html = cells.answer(shown, run, page and os.path.relpath(page))
            data = {"text/html": Redactor(os.environ).text(str(html)), "text/plain": shown.document.sentence if shown else ""}
            self.card.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
            self._draw_worlds(run.worlds if run else ())

    def _draw_worlds(self, worlds: Any) -> None:
        """A button for each world of ranks, as it started and as it ended; a click repeats it."""
        known = {button.tooltip: button for button in self.worlds.children}
        buttons = []
        for world in worlds:
            key = f"Run {world.name} of {world.step} again"
            button = known.get(key)
            if button is None:
                button = self.w.Button(tooltip=key, layout=self.w.Layout(width="auto"))
                button.on_click(lambda _button, world=world: self.repeat(world))
            button.description, button.button_style = world.text, STYLES.get(world.ended, "danger")
            buttons.append(button)
        if buttons != list(self.worlds.children):
            self.worlds.children = buttons

    def run(self) -> str:
        """Start a run of what the plain variables say; one sentence if it cannot."""
        return self._start(self._values())

    def repeat(self, world: WorldSeen) -> str:
        """Run one world again, by its step and on its GPUs."""
        values = {**read_values(self.namespace), "steps": [world.step], "gpus": world.gpus, "symptom": "", "log": ""}
        return self._start(values, "-p", "max_ranks", str(world.ranks))

    def try_setting(self) -> str:
        """The setting of the fix against the environment as it is."""
        values = {**read_values(self.namespace), "symptom": "", "log": "", "steps": []}
        return self._start(values, command=("ab", ".", self.setting.value.strip(), "--json"))

    def _start(self, values: dict[str, Any], *more: str, command: Sequence[str] = RUN) -> str:
        global _latest
        with _lock:
            if _latest is not None and _latest.at_work:
                return "A run is in progress. Cancel it, or wait until it ends."
            line = arguments(values, self.notebooks if command == RUN else None)
            _latest = RunProcess([*line, *more], self.notebooks.parent / "outputs", command)
            self._attach(_latest)
            _latest.start()
            return ""

    def _attach(self, run: RunProcess) -> None:
        run.on_change = lambda _run: self._draw()
        self._draw()

    def cancel(self) -> str:
        """Stop the run at work; one sentence if there is none."""
        with _lock:
            if _latest is None or not _latest.at_work:
                return "No run is in progress."
            _latest.cancel()
            self._draw()
            return ""
