"""The fields and buttons of the form of 00-start."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as w

from nccl_runbook.launch.gpu_lists import check_present
from nccl_runbook.triage.symptoms import symptoms

OPTIONS = ("python", "gpus", "budget_s", "allow_busy")
LOOK = {"layout": {"width": "98%"}, "style": {"description_width": "9.5rem"}}


def fields(namespace: Mapping[str, Any], given: str, symptom: str) -> dict[str, Any]:
    """Variable of the notebook -> its widget; ``given`` and ``symptom`` replace log and symptom."""
    return {
        "given": w.Textarea(
            given,
            description="What do you have?",
            rows=3,
            **LOOK,
            placeholder=(
                "Paste a path (log, folder of dumps, launch script), "
                "the pid of a rank that hangs, or an error text"
            ),
        ),
        "symptom": w.Dropdown(
            description="Symptom",
            value=symptom,
            **LOOK,
            options=[
                ("choose a symptom if you have no text", ""),
                *((s.words, s.id) for s in symptoms().values()),
            ],
        ),
        "python": w.Text(
            namespace["python"],
            description="Interpreter",
            continuous_update=False,
            **LOOK,
            placeholder="empty: found automatically; a path; or docker exec -i NAME python3",
        ),
        "gpus": w.Text(
            namespace["gpus"], description="GPUs", placeholder="empty: all GPUs; 0,1; or 0-3", **LOOK
        ),
        "budget_s": w.IntText(namespace["budget_s"], description="Budget, seconds", **LOOK),
        "allow_busy": w.Checkbox(
            namespace["allow_busy"],
            **LOOK,
            description="Also test GPUs that other processes use (disturbs these processes)",
        ),
        "node_gpus": w.BoundedIntText(0, max=64, description="GPUs per node", **LOOK),
        "setting": w.Text(description="Setting to try", placeholder="NAME=VALUE", **LOOK),
    }


def buttons() -> dict[str, w.Button]:
    """Name -> button."""
    # no icons: their glyph would become part of the accessible name
    return {
        "run": w.Button(description="Run tests", tooltip="Run the steps. The steps start ranks on the GPUs."),
        "cancel": w.Button(description="Cancel", tooltip="Stop the run and its ranks"),
        "look": w.Button(
            description="Look at the ranks on this machine",
            layout=w.Layout(width="auto"),
            tooltip="Find the rank that never reached the collective. This only reads.",
        ),
        "try": w.Button(
            description="Try the setting beside a control",
            layout=w.Layout(width="auto"),
            tooltip="Run an all_reduce with and without this setting in turn",
        ),
    }


def laid_out(
    rows: Mapping[str, w.Widget],
    buttons: Mapping[str, w.Widget],
    texts: Mapping[str, w.Widget],
    answer: Sequence[w.Widget],
    plan: w.Widget,
) -> w.VBox:
    """The form: what was given, the ``answer`` to it, and the tests that may follow."""
    return w.VBox(
        [
            rows["given"],
            rows["symptom"],
            rows["node_gpus"],
            w.HBox([buttons["look"], texts["look"]], layout=w.Layout(margin="0 0 0 9.5rem")),
            *answer,
            texts["price"],
            w.HBox([buttons["run"], buttons["cancel"], texts["status"]]),
            plan,
            w.Accordion(
                [w.VBox([rows[name] for name in OPTIONS])], titles=["Options: interpreter, GPUs, time"]
            ),
            texts["line"],
            texts["said"],
        ],
        layout=w.Layout(max_width="64rem"),
    )


def refusals(asked: Mapping[str, Any], unreadable: str) -> dict[str, str]:
    """Each field that cannot be used as it is -> why. ``unreadable``: why what was given cannot be read."""
    refused = {"given": unreadable} if unreadable else {}
    if not 10 <= asked["budget_s"].value <= 86400:
        refused["budget_s"] = "write a number of seconds from 10 to 86400"
    if not all(re.match(r"[A-Za-z_]\w*=", word) for word in asked["setting"].value.split()):
        refused["setting"] = "write NAME=VALUE, such as NCCL_P2P_DISABLE=1"
    try:
        check_present(asked["gpus"].value, asked["python"].value)
    except ValueError as error:
        refused["gpus"] = str(error).removeprefix("gpus: ")
    try:
        command = shlex.split(asked["python"].value)
        if command and shutil.which(os.path.expanduser(command[0])) is None:
            refused["python"] = f"the program {command[0]} does not exist"
    except ValueError:
        refused["python"] = "a quotation mark is missing"
    return refused
