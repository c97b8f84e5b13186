"""The form of 00-start: the answer at once, then tests that are watched, cancelled and repeated.

Everything that changes is a widget: JupyterLab restores widgets from the kernel, and no cell keeps old words.
Buttons call back in either thread of the kernel (ipykernel 7), a run in its own: shared state is locked.
"""

import dataclasses
import os
import re
import threading
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from nccl_runbook.case.answer import Case, case as add_up
from nccl_runbook.case.gathered import Gathered
from nccl_runbook.case.given import Material
from nccl_runbook.case.judge import DUMPS, LOGS, plan
from nccl_runbook.case.table import card
from nccl_runbook.cockpit import arguments, command_line, notebooks_here
from nccl_runbook.cockpit.fields import LOOK, OPTIONS, buttons, fields, laid_out, refusals
from nccl_runbook.cockpit.given import items, read
from nccl_runbook.cockpit.grid import Grid
from nccl_runbook.cockpit.looks import Looks, has_ended
from nccl_runbook.cockpit.run_process import RUN, RunProcess
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.gpu_lists import gpu_ranges, present
from nccl_runbook.report.pictures import macros
from nccl_runbook.step import RUN_DIR_VARIABLE
from nccl_runbook.step.parameters import outputs_root
from nccl_runbook.triage.symptoms import step_texts, symptoms

PAUSE_S = 0.05  # without a key: then what was typed is answered
ENDED_S = 1.0  # between two questions whether the ranks still run
PASTED, NOTHING = "pasted.log", ("", "", 0)
TESTS = ("01-gpu-visibility", "02-environment", "03-fewer-gpus", "04-transports", "05-weight-sync")
_SETTINGS = re.compile(r"export ((?:[A-Z]\w*=\S+ ?)+)")

_lock = threading.RLock()
_reading = threading.Lock()  # the matcher of messages serves one thread at a time
_latest: RunProcess | None = None  # of this kernel: two at a time would disturb each other


@dataclasses.dataclass(eq=False)
class Cockpit:
    """The form over one namespace. It refuses a second run while one is at work. ``asked``, ``answered``:
    symptom, what was given, and GPUs per node; ``wrong``: why they cannot be read; ``gpus``: of a run."""

    namespace: MutableMapping[str, Any]
    notebooks: Path = dataclasses.field(default_factory=notebooks_here)
    looks: Looks = dataclasses.field(default_factory=Looks)
    material: Material = dataclasses.field(default_factory=Material)
    gathered: Gathered = dataclasses.field(default_factory=lambda: Gathered([]))
    asked: tuple[str, str, int] = NOTHING
    answered: tuple[str, str, int] = NOTHING
    wrong: str = ""
    none_here: bool = False
    gpus: int | None = None
    buttons: dict[str, w.Button] = dataclasses.field(default_factory=buttons)
    card: w.Output = dataclasses.field(default_factory=w.Output)

    def __post_init__(self) -> None:
        wanted = self.namespace.get("steps", ())
        first, _, rest = self.namespace["symptom"].partition("\n")
        known = first if first in symptoms() else ""
        given = [*self.namespace["log"].split(":"), rest if known else self.namespace["symptom"]]
        self.fields = fields(self.namespace, "\n".join(filter(None, given)), known)
        self.rows = {name: w.VBox([field, w.HTML()]) for name, field in self.fields.items()}
        self.boxes = {
            name: w.Checkbox(not wanted or name in wanted, indent=False, layout=LOOK["layout"])
            for name in TESTS
            if (self.notebooks / f"{name}.ipynb").is_file()
        }
        self.texts = {name: w.HTML() for name in ("look", "price", "status", "line", "said", "fix")}
        self.rows["setting"].layout.width = "60%"
        self.fix = w.HBox(
            [self.rows["setting"], self.buttons["try"], self.texts["fix"]], layout=w.Layout(display="none")
        )
        self.plan = w.VBox(list(self.boxes.values()))
        self.grid = Grid(self.namespace, self.notebooks, self._start)
        tests = w.VBox([self.grid.box, self.plan])
        self.box = laid_out(self.rows, self.buttons, self.texts, [self.card, self.fix], tests)
        for field in (*self.fields.values(), *self.boxes.values()):
            field.observe(lambda _change: self.changed(), "value")
        actions = {"run": self.run, "cancel": self.cancel, "try": self.try_setting, "look": self.look}
        for name, action in actions.items():
            self.buttons[name].on_click(lambda _button, action=action: action())
        read(["ncclSystemError"], 0, self.looks)  # any error text: it loads what reads and judges
        self.changed()
        if _latest is not None:
            _latest.on_change = lambda _run: self.draw()

    def changed(self) -> None:
        """Copy every field to its plain variable, and start reading what was given."""
        ticked = self._ticked()
        self.namespace.update(
            {name: self.fields[name].value for name in OPTIONS},
            steps=[] if len(ticked) == len(self.boxes) else ticked,
        )
        asked = self._symptom(), self.fields["given"].value.strip(), self.fields["node_gpus"].value
        if asked != self.asked:
            self.asked, self.none_here = asked, False
            timer = threading.Timer(PAUSE_S, self._answer, [asked])
            timer.daemon = True
            timer.start()
        self.draw()

    def _answer(self, asked: tuple[str, str, int]) -> None:
        """Read what was given; once the processes that were looked at have ended, show that, too."""
        self.read(asked)
        if self.material.pids:
            while asked == self.asked and not has_ended(self.material):
                time.sleep(ENDED_S)
            self.draw()

    def _ticked(self) -> list[str]:
        return [name for name, box in self.boxes.items() if box.value]

    def _symptom(self) -> str:
        chosen = self.fields["symptom"].value
        return symptoms()[chosen].words if chosen else ""

    def look(self) -> None:
        """Name the ranks that run here, and look at them; they are read like any other pid."""
        self.fields["given"].value = self.looks.with_ranks(self.fields["given"].value)
        self.none_here = "pid:" not in self.fields["given"].value
        if self.looks.last is None and not self.none_here:
            self.asked = NOTHING  # the same ranks are looked at again
            self.changed()
        self.draw()

    def read(self, asked: tuple[str, str, int]) -> None:
        """Answer what was given, unless something else was typed meanwhile."""
        with _reading:
            if asked != self.asked:
                return
            material, gathered, wrong = Material(), Gathered([]), ""
            try:
                folder = Path(os.environ.get(RUN_DIR_VARIABLE) or outputs_root())
                material, gathered = read(
                    [*filter(None, asked[:1]), *items(asked[1], outputs_root().parent, folder / PASTED)],
                    asked[2],
                    self.looks,
                )
            except (ValueError, OSError) as error:
                wrong = str(error)
        with _lock:
            if asked == self.asked:
                words = (x for x in material.words if x != self._symptom())
                self.namespace.update(
                    log=":".join(material.logs),
                    symptom="\n".join(filter(None, [self.fields["symptom"].value, *words])),
                )
                self.material, self.gathered, self.wrong = material, gathered, wrong
                self.answered = asked
                if not wrong:
                    self._propose()
                self.draw()

    def case(self, run: RunProcess | None) -> Case | None:
        """The answer to what was given and to what a finished run tested; None if nothing was given, or it
        could not be read."""
        known = {r.step for r in self.gathered.records}
        tested = [
            r
            for r in (run.records if run and not run.interrupted else [])
            if r.step in TESTS and r.step not in known
        ]
        gathered = dataclasses.replace(self.gathered, records=[*self.gathered.records, *tested])
        if not gathered.records or self.wrong:
            return None
        answer = add_up(gathered, "00-start", "", "unknown")
        if answer.test is None:
            return answer
        here = dataclasses.replace(answer.test, about_s=self._seconds(answer.test.steps))
        is_gone = has_ended(self.material) and not here.steps  # a process that is gone cannot be asked
        return dataclasses.replace(answer, test=None if is_gone else here)

    def _seconds(self, steps: Sequence[str]) -> int:
        """What these steps take here, about."""
        gpus = 4 if self.gpus is None else self.gpus
        return sum(step_texts()[name].seconds(gpus) for name in steps if name in step_texts())

    def _propose(self) -> None:
        """Tests that decide come first, and only they are ticked if the answer names
        them; so is the fix's setting."""
        answer = self.case(None)
        test, lead = (answer.test, answer.lead) if answer else (None, None)
        self.plan.children = [
            self.boxes[step.name] for step, _ in plan(test, self.gathered.steps) if step.name in self.boxes
        ]
        for name, box in self.boxes.items():
            box.value = name in test.steps if test else lead is None
        lines = (line for remedy in (lead.remedy if lead else ()) for line in remedy.lines)
        setting = " ".join(match[1] for match in map(_SETTINGS.fullmatch, lines) if match)
        self.fields["setting"].value = setting
        self.fix.layout.display = "" if setting else "none"

    def values(self) -> dict[str, Any]:
        """The values for a run: plain variables, and the steps that read what was given, so that its page
        holds the answer."""
        log_steps = (
            [r.step for r in self.gathered.records if r.step in (DUMPS, LOGS)] if self.material.logs else []
        )
        return {**self.namespace, "steps": [*self._ticked(), *log_steps] if self.namespace["steps"] else []}

    def draw(self) -> None:
        """Show everything that depends on the fields, the answer and the run."""
        with _lock:
            refused = refusals(self.fields, self.wrong)
            if not refused:
                self.gpus = sum(
                    last - first + 1 for first, last in gpu_ranges(self.fields["gpus"].value)
                ) or present(self.fields["python"].value)
            at_work = _latest is not None and _latest.at_work
            # no answer to another question
            run = _latest if at_work or _latest is None or _latest.about == self.asked else None
            is_blocked = bool(refused) or at_work
            self.buttons["try"].disabled = is_blocked or not self.fields["setting"].value.strip()
            self.buttons["try"].layout.display = "none" if self.gpus == 0 else ""
            self.buttons["run"].disabled = is_blocked or not self._ticked()
            self.buttons["cancel"].disabled = not at_work or _latest.cancelled_at is not None
            for name, box in self.boxes.items():
                box.description = f"{name} (about {self._seconds([name])} s): {step_texts()[name].answers}"
            # a part that runs again does not replace the answer of the whole
            tested = run.parts[0] if run and run.about == self.asked else None
            answer = self.case(tested)
            self.grid.draw(run, is_blocked)
            # one button at most is the next thing to do; none if that is a line of the answer
            test = answer.test if answer else None
            hangs = not answer and self.fields["symptom"].value.startswith("hangs")
            first = "run" if not test or test.steps else ""
            if hangs or (test and test.line.startswith("nccl-runbook look")):
                first = "look"
            for name in ("look", "run"):
                self.buttons[name].button_style = "primary" if name == first else ""
            asks = answer and any("--gpus" in f.title for s in answer.document.steps for f in s.findings)
            self.rows["node_gpus"].layout.display = "" if asks or self.asked[2] else "none"
            state = {
                "refused": [self.fields[name].description.rstrip("?") for name in refused],
                "first": first,
                "is_read": self.answered == self.asked,
                "names_pids": "pid:" in self.asked[1],
                "is_looked_at": bool(self.material.pids),
                "has_ended": has_ended(self.material),
                "has_no_ranks": self.none_here or (self.material.pids and not self.gathered.records),
                "taken": self.looks.last.taken[11:19] if self.looks.last else "",
                "line": "" if refused or not self._ticked() else command_line(self.values(), self.notebooks),
                "seconds": self._seconds(self._ticked()),
                "budget": self.fields["budget_s"].value,
                "gpus": self.gpus,
                "run": run,
            }
            cells = macros("cells.html.j2")
            for name, row in self.rows.items():
                row.children[1].value = str(
                    cells.form_refused(self.fields[name].description, refused.get(name))
                )
            for name, shown in self.texts.items():
                shown.value = str(getattr(cells, f"form_{name}")(state))
            html = card(answer, tested, os.path.relpath(tested.page) if tested and tested.page else "")
            html = re.sub(rf"[^\s/(]+/{PASTED}", "pasted text", html).replace(
                ": --gpus N", " in the field above"
            )
            data = {"text/html": Redactor(os.environ).text(html)}
            self.card.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)

    def run(self) -> None:
        """Start a run with the plain variables, unless one is at work."""
        self._start(self.values())

    def try_setting(self) -> None:
        """Start a comparison of the fix's setting with the environment as it is."""
        self._start(
            {**self.namespace, "symptom": "", "log": "", "steps": []},
            ("ab", ".", self.fields["setting"].value.strip(), "--json"),
        )

    def _start(self, values: dict[str, Any], command: Sequence[str] = RUN, parts: Sequence[Any] = ()) -> None:
        global _latest
        with _lock:
            if _latest is None or not _latest.at_work:
                _latest = RunProcess(
                    arguments(values, self.notebooks if command == RUN else None),
                    self.notebooks.parent / "outputs",
                    lambda _run: self.draw(),
                    command,
                )
                _latest.about, _latest.parts = self.asked, [*parts, _latest]
                _latest.line = command_line(values, self.notebooks)

    def cancel(self) -> None:
        """Stop the run at work."""
        with _lock:
            if _latest is not None and _latest.at_work:
                _latest.cancel()
                self.draw()
