"""The cockpit of 00-start: what it writes into the notebook's plain variables, and the
command line that says the same.

ipywidgets is imported only where somebody looks: headless, or without it, the same call gives
tables and the command line.
"""

import importlib.util
import os
import shlex
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from nccl_runbook.case.answer import Case
from nccl_runbook.case.table import Answer, plan_table
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.gpu_lists import present
from nccl_runbook.report.pictures import FOLDER
from nccl_runbook.report.tables import Line
from nccl_runbook.report.verdict_sentence import START_STEP
from nccl_runbook.step import HEADLESS_VARIABLE
from nccl_runbook.step.parameters import injected_cells, outputs_root

BUDGET_S = 300  # what `nccl-runbook run` takes without --budget


def is_interactive(namespace: Mapping[str, Any]) -> bool:
    """Whether a person looks: a kernel with a frontend that has widgets, without runner or papermill.
    JPY_SESSION_NAME is set by jupyter_server 2 for an open notebook, __vsc_ipynb_file__ by VS Code."""
    return (
        HEADLESS_VARIABLE not in os.environ
        and importlib.util.find_spec("ipywidgets") is not None
        and not injected_cells(namespace)
        and ("JPY_SESSION_NAME" in os.environ or "__vsc_ipynb_file__" in namespace)
    )


def notebooks_here() -> Path:
    """Folder from which a run takes its notebooks: that of this notebook, unless it is a session's copy."""
    here = Path.cwd()
    is_book = (here / f"{START_STEP}.ipynb").is_file() and not here.is_relative_to(outputs_root())
    return here if is_book else outputs_root().parent / "notebooks"


def arguments(values: Mapping[str, Any], notebooks: Path | None = None) -> list[str]:
    """Options of `nccl-runbook run` that equal the plain variables; defaults are left out."""
    options = {
        "--log": values.get("log", "").strip(),
        "--symptom": values.get("symptom", "").strip(),
        "--python": values.get("python", "").strip(),
        "--gpus": values.get("gpus", "").strip(),
        "--budget": "" if values.get("budget_s", BUDGET_S) == BUDGET_S else f"{values['budget_s']}s",
    }
    line = [part for option, text in options.items() if text for part in (option, text)] + (
        ["--allow-busy"] if values.get("allow_busy") else []
    )
    if notebooks is not None and notebooks.resolve() != (outputs_root().parent / "notebooks").resolve():
        line += ["--notebooks", str(notebooks)]
    line += ["-p", "only", values["only"]] if values.get("only") else []
    return line + (["--step", *values["steps"]] if values.get("steps") else [])


def command_line(values: Mapping[str, Any], notebooks: Path | None = None) -> str:
    """The command that equals pressing Run, redacted word by word before quoting."""
    return shlex.join(
        [
            os.environ.get(FOLDER, "") + "nccl-runbook",
            "run",
            *map(Redactor(os.environ).text, arguments(values, notebooks)),
        ]
    )


def show(namespace: MutableMapping[str, Any], case: Case) -> Any:
    """The form; without a frontend the answer, the plan of steps and the command line."""
    if is_interactive(namespace):
        from nccl_runbook.cockpit.form import Cockpit

        return Cockpit(namespace).box
    gpus = present(namespace["python"])
    return Answer(
        case,
        (
            plan_table(case, 4 if gpus is None else gpus),
            Line(
                "To read your files, run nccl-runbook diagnose PATH. To test this machine, run "
                f"{command_line(namespace)}"
            ),
        ),
    )
