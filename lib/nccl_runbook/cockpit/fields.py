"""The fields and buttons of the form of 00-start."""

from collections.abc import Mapping
from typing import Any

import ipywidgets as w

from nccl_runbook.triage.symptoms import symptoms

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
                ("choose, if you have no text", ""),
                *((s.words, s.id) for s in symptoms().values()),
            ],
        ),
        "python": w.Text(
            namespace["python"],
            description="Interpreter",
            continuous_update=False,
            **LOOK,
            placeholder="found automatically; or a path, or docker exec -i NAME python3",
        ),
        "gpus": w.Text(namespace["gpus"], description="GPUs", placeholder="all; or 0,1 or 0-3", **LOOK),
        "budget_s": w.IntText(namespace["budget_s"], description="Budget, seconds", **LOOK),
        "allow_busy": w.Checkbox(
            namespace["allow_busy"],
            **LOOK,
            description="Also test GPUs that others use (disturbs their jobs)",
        ),
        "node_gpus": w.BoundedIntText(0, max=64, description="GPUs per node", **LOOK),
    }


def buttons() -> dict[str, w.Button]:
    """Name -> button."""
    # no icons: their glyph would become part of the accessible name
    return {
        "run": w.Button(
            description="Run tests",
            button_style="primary",
            tooltip="Run the steps. Starts ranks on the GPUs.",
        ),
        "cancel": w.Button(description="Cancel", tooltip="Stop the run and its ranks"),
        "look": w.Button(
            description="Look at the ranks on this machine",
            layout=w.Layout(width="auto"),
            tooltip="Find the rank that never came. Only reads.",
        ),
        "try": w.Button(
            description="Try it beside a control",
            layout=w.Layout(width="auto"),
            tooltip="Run an all_reduce with and without the setting, in turn",
        ),
    }
