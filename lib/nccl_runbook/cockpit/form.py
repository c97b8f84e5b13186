"""The form of 00-start: the answer at once, then tests that are watched, cancelled and repeated.

Everything that changes is a widget: JupyterLab restores widgets from the kernel, and no cell keeps old words.
Buttons call back in either thread of the kernel (ipykernel 7), a run in its own: shared state is locked.
"""

import dataclasses
import os
import re
import shlex
import shutil
import threading
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from nccl_runbook.case.answer import Case, case as add_up
from nccl_runbook.case.gathered import Gathered
from nccl_runbook.case.given import Brought
from nccl_runbook.case.judge import DUMPS, LOGS, plan
from nccl_runbook.case.table import card
from nccl_runbook.cockpit import arguments, command_line, notebooks_here
from nccl_runbook.cockpit.given import items, read
from nccl_runbook.cockpit.run_process import RUN, RunProcess
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.gpu_lists import gpu_ranges
from nccl_runbook.report.pictures import macros
from nccl_runbook.step import RUN_DIR_VARIABLE
from nccl_runbook.step_parameters import outputs_root
from nccl_runbook.triage.symptoms import step_texts, symptoms

PAUSE_S = 0.05  # without a key: then what was typed is answered
WARM = "ncclSystemError"  # any error text: it loads what reads and judges
TESTS = ("01-gpu-visibility", "02-environment", "03-fewer-gpus", "04-transports", "05-weight-sync")
OPTIONS = ("python", "gpus", "budget_s", "allow_busy")
_SETTINGS = re.compile(r"export ((?:[A-Z]\w*=\S+ ?)+)")

_lock = threading.RLock()
_reading = threading.Lock()  # the matcher of messages serves one thread at a time
_latest: RunProcess | None = None  # of this kernel: two at a time would disturb each other


class Cockpit:
    """The form over one namespace. A second run beside one at work is refused, in another cell as well."""

    def __init__(self, namespace: MutableMapping[str, Any]) -> None:
        self.namespace = namespace
        self.notebooks = notebooks_here()
        self.brought, self.found = Brought(), Gathered([])
        self.asked, self.wrong = ("", ""), ""  # the symptom and what was given; why it cannot be read
        wanted = namespace.get("steps", ())
        first, _, rest = namespace["symptom"].partition("\n")
        known = first if first in symptoms() else ""
        given = [*namespace["log"].split(":"), rest if known else namespace["symptom"]]
        look = {"layout": w.Layout(width="98%"), "style": {"description_width": "9.5rem"}}
        self.fields = {
            "given": w.Textarea(
                "\n".join(filter(None, given)),
                description="What do you have?",
                rows=3,
                **look,
                placeholder=(
                    "Paste a path (log, folder of dumps, launch script), "
                    "the pid of a rank that hangs, or an error text"
                ),
            ),
            "symptom": w.Dropdown(
                description="Symptom",
                value=known,
                **look,
                options=[
                    ("choose, if you have no text", ""),
                    *((s.words, s.id) for s in symptoms().values()),
                ],
            ),
            "python": w.Text(
                namespace["python"],
                description="Interpreter",
                continuous_update=False,
                **look,
                placeholder="found automatically; or a path, or docker exec -i NAME python3",
            ),
            "gpus": w.Text(namespace["gpus"], description="GPUs", placeholder="all; or 0,1 or 0-3", **look),
            "budget_s": w.BoundedIntText(
                namespace["budget_s"], min=10, max=86400, description="Budget, seconds", **look
            ),
            "allow_busy": w.Checkbox(
                namespace["allow_busy"],
                **look,
                description="Also test GPUs that others use (disturbs their jobs)",
            ),
        }
        self.boxes = {
            name: w.Checkbox(
                not wanted or name in wanted,
                indent=False,
                layout=look["layout"],
                description=f"{name} ({step_texts()[name].about_s} s): {step_texts()[name].answers}",
            )
            for name in TESTS
            if (self.notebooks / f"{name}.ipynb").is_file()
        }
        # no icons: their glyph would become part of the accessible name
        self.buttons = {
            "run": w.Button(
                description="Run tests",
                button_style="primary",
                tooltip="Run the steps. Starts ranks on the GPUs.",
            ),
            "cancel": w.Button(description="Cancel", tooltip="Stop the run and its ranks"),
            "try": w.Button(
                description="Try it beside a control",
                layout=w.Layout(width="auto"),
                tooltip="Run an all_reduce with and without the setting, in turn",
            ),
        }
        self.setting = w.Text(
            description="Setting to try",
            placeholder="NAME=VALUE",
            layout=w.Layout(width="60%"),
            style=look["style"],
        )
        self.texts = {name: w.HTML() for name in ("refused", "price", "status", "line", "said")}
        self.card = w.Output()
        self.fix = w.HBox([self.setting, self.buttons["try"]], layout=w.Layout(display="none"))
        self.plan = w.VBox(list(self.boxes.values()))
        options = w.Accordion(
            [w.VBox([self.fields[name] for name in OPTIONS])], titles=["Options: interpreter, GPUs, time"]
        )
        run = w.HBox([self.buttons["run"], self.buttons["cancel"], self.texts["status"]])
        self.box = w.VBox(
            [
                self.fields["given"],
                self.fields["symptom"],
                self.texts["refused"],
                self.card,
                self.fix,
                self.texts["price"],
                run,
                self.plan,
                options,
                self.texts["line"],
                self.texts["said"],
            ],
            layout=w.Layout(max_width="64rem"),
        )
        for field in (*self.fields.values(), *self.boxes.values()):
            field.observe(lambda _change: self.changed(), "value")
        for name, action in (("run", self.run), ("cancel", self.cancel), ("try", self.try_setting)):
            self.buttons[name].on_click(lambda _button, action=action: action())
        read([WARM])
        self.changed()
        if _latest is not None:
            _latest.on_change = lambda _run: self.draw()

    def changed(self) -> None:
        """Write every field into its plain variable, and have what was given read."""
        ticked = self._ticked()
        self.namespace.update(
            {name: self.fields[name].value for name in OPTIONS},
            steps=[] if len(ticked) == len(self.boxes) else ticked,
        )
        asked = self._symptom(), self.fields["given"].value.strip()
        if asked != self.asked:
            self.asked = asked
            timer = threading.Timer(PAUSE_S, self.read, [asked])
            timer.daemon = True
            timer.start()
        self.draw()

    def _ticked(self) -> list[str]:
        return [name for name, box in self.boxes.items() if box.value]

    def _symptom(self) -> str:
        chosen = self.fields["symptom"].value
        return symptoms()[chosen].words if chosen else ""

    def read(self, asked: tuple[str, str]) -> None:
        """Answer it, unless something else was typed meanwhile."""
        with _reading:
            if asked != self.asked:
                return
            brought, found, wrong = Brought(), Gathered([]), ""
            try:
                folder = Path(os.environ.get(RUN_DIR_VARIABLE) or outputs_root())
                brought, found = read(
                    [*filter(None, asked[:1]), *items(asked[1], outputs_root().parent, folder / "pasted.log")]
                )
            except (ValueError, OSError) as error:
                wrong = str(error)
        with _lock:
            if asked == self.asked:
                words = [self.fields["symptom"].value, *(x for x in brought.words if x != self._symptom())]
                self.namespace.update(log=":".join(brought.logs), symptom="\n".join(filter(None, words)))
                self.brought, self.found, self.wrong = brought, found, wrong
                if not wrong:
                    self._propose()
                self.draw()

    def case(self, run: RunProcess | None) -> Case | None:
        """The answer to what was given, and to what a run tested that is over."""
        known = {r.step for r in self.found.records}
        records = run.records if run and not run.interrupted else []
        tested = [r for r in records if r.step in TESTS and r.step not in known]
        found = dataclasses.replace(self.found, records=[*self.found.records, *tested])
        return add_up(found, "00-start", "", "unknown") if found.records and not self.wrong else None

    def _propose(self) -> None:
        """Tests that decide come first, and only they are ticked if the answer names
        them; so is the fix's setting."""
        answer = self.case(None)
        test = answer.test if answer else None
        asked = test.steps if test else []
        lead = answer.lead if answer else None
        self.plan.children = [
            self.boxes[step.name] for step, _ in plan(test, self.found.steps) if step.name in self.boxes
        ]
        for name, box in self.boxes.items():
            box.value = name in asked if asked else lead is None
        lines = [line for remedy in (lead.remedy if lead else ()) for line in remedy.lines]
        self.setting.value = " ".join(m[1] for line in lines for m in [_SETTINGS.fullmatch(line)] if m)
        self.fix.layout.display = "" if self.setting.value else "none"

    def values(self) -> dict[str, Any]:
        """What a run gets: the plain variables, and the steps that read what was given: its
        page holds the answer, too."""
        read = [r.step for r in self.found.records if r.step in (DUMPS, LOGS)] if self.brought.logs else []
        return {**self.namespace, "steps": [*self._ticked(), *read] if self.namespace["steps"] else []}

    def _refused(self) -> str:
        """Why the fields cannot be used as they are; "" if they can."""
        try:
            gpu_ranges(self.fields["gpus"].value)
            command = shlex.split(self.fields["python"].value)
        except ValueError as error:
            return str(error)
        if command and shutil.which(os.path.expanduser(command[0])) is None:
            return f"Interpreter: there is no program {command[0]}"
        return self.wrong

    def draw(self) -> None:
        """Show everything that follows from the fields, the answer and the run."""
        with _lock:
            refused = self._refused()
            at_work = _latest is not None and _latest.at_work
            # no answer to another question
            run = _latest if at_work or _latest is None or _latest.about == self.asked else None
            self.buttons["try"].disabled = bool(refused) or at_work
            self.buttons["run"].disabled = bool(refused) or at_work or not self._ticked()
            self.buttons["cancel"].disabled = not at_work or _latest.cancelled_at is not None
            line = "" if refused or not self._ticked() else command_line(self.values(), self.notebooks)
            seconds = sum(step_texts()[name].about_s for name in self._ticked())
            state = {
                "refused": refused,
                "line": line,
                "seconds": seconds,
                "run": run or _latest,
                "other": run is not _latest,
                # what is ticked now is not what runs
                "expected": seconds if run and run.about == self.asked else 0,
            }
            cells = macros("cells.html.j2")
            for name, shown in self.texts.items():
                shown.value = str(getattr(cells, f"form_{name}")(state))
            answer = self.case(None if at_work else run)
            page = os.path.relpath(run.page) if run and run.page else ""
            data = {"text/html": Redactor(os.environ).text(card(answer, run, page))}
            self.card.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)

    def run(self) -> str:
        """Start a run of what the plain variables say; one sentence if one is at work."""
        return self._start(self.values())

    def try_setting(self) -> str:
        """The setting of the fix against the environment as it is."""
        values = {**self.namespace, "symptom": "", "log": "", "steps": []}
        return self._start(values, ("ab", ".", self.setting.value.strip(), "--json"))

    def _start(self, values: dict[str, Any], command: Sequence[str] = RUN) -> str:
        global _latest
        with _lock:
            if _latest is not None and _latest.at_work:
                return "A run is in progress. Cancel it, or wait until it ends."
            line = arguments(values, self.notebooks if command == RUN else None)
            _latest = RunProcess(line, self.notebooks.parent / "outputs", lambda _run: self.draw(), command)
            _latest.about = self.asked
            return ""

    def cancel(self) -> str:
        """Stop the run at work; one sentence if there is none."""
        with _lock:
            if _latest is None or not _latest.at_work:
                return "No run is in progress."
            _latest.cancel()
            self.draw()
            return ""
