"""How pairs of GPUs and transports ended, as cells of the form of 00-start: filled as they end, and a click
runs one of them again."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as w

from nccl_runbook.cockpit import command_line
from nccl_runbook.cockpit.run_process import RunProcess
from nccl_runbook.core.facts import grouped
from nccl_runbook.launch.running import STATE
from nccl_runbook.report.markup import TONES
from nccl_runbook.report.pictures import macros
from nccl_runbook.worlds.ask_arms import TESTS

PAIRS, ARMS = "03-fewer-gpus", "04-transports"

Key = tuple[int, ...] | str  # two GPUs, or the name of an arm


@dataclasses.dataclass(eq=False)
class Grid:
    """The cells of a run and of the parts of it that ran again.

    ``namespace``: the notebook's plain variables; ``start``: takes the values of a run, starts it unless one
    is at work, and lists it with ``parts``.
    """

    namespace: Mapping[str, Any]
    notebooks: Path
    start: Callable[..., None]
    _cells: dict[Key, w.Button] = dataclasses.field(default_factory=dict)
    _parts: list[RunProcess] = dataclasses.field(default_factory=list)
    _pairs: w.GridBox = dataclasses.field(
        default_factory=lambda: w.GridBox(
            layout=w.Layout(grid_gap="2px", justify_content="flex-start", overflow="auto")
        )
    )
    _arms: w.HBox = dataclasses.field(default_factory=lambda: w.HBox(layout=w.Layout(flex_flow="row wrap")))
    _above: w.HTML = dataclasses.field(default_factory=w.HTML)
    _below: w.HTML = dataclasses.field(default_factory=w.HTML)

    def __post_init__(self) -> None:
        self.box = w.VBox([self._above, self._pairs, self._arms, self._below])

    def draw(self, run: RunProcess | None, disabled: bool) -> None:
        """Show how each pair and arm of this run ended, and before that in the run whose part it repeats."""
        self._parts = run.parts if run else []
        outcomes = grouped(
            (key, outcome(worlds, part.at_work))
            for part in self._parts
            for key, worlds in worlds_by_key(part.folder).items()
        )
        self._cells = {key: self._cells.get(key) or self._cell(key) for key in outcomes}
        for key, cell in self._cells.items():
            tones = {tone for _, tone in outcomes[key]}
            name = key if isinstance(key, str) else f"{key[0]}, {key[1]}"
            cell.description = f"{name}: {' → '.join(words for words, _ in outcomes[key])}"
            cell.style.button_color = TONES[tones.pop() if len(tones) == 1 else "warn"]
            cell.tooltip = f"Run it again: {command_line(self._again(key), self.notebooks)}"
            cell.disabled = disabled
        self._pairs.children = [cell for key, cell in self._cells.items() if isinstance(key, tuple)]
        self._arms.children = [cell for key, cell in self._cells.items() if isinstance(key, str)]
        cells = macros("cells.html.j2")
        self._above.value = str(cells.form_grid(run, bool(self._pairs.children), bool(self._arms.children)))
        self._below.value = str(cells.form_again(run, os.path.relpath))

    def _cell(self, key: Key) -> w.Button:
        """A button; that of a pair in the row of its first GPU and the column of its second."""
        # not grid_row and grid_column: ipywidgets (8.1) takes both away with an empty grid_area
        area = f"{key[0] + 1} / {key[1]}" if isinstance(key, tuple) else None
        cell = w.Button(layout=w.Layout(width="auto", grid_area=area))
        cell.add_class("nccl-cell")
        cell.on_click(lambda _button: self.start(self._again(key), parts=self._parts))
        return cell

    def _again(self, key: Key) -> dict[str, Any]:
        """The values of a run of this pair or arm."""
        part = (
            {"steps": [ARMS], "only": key}
            if isinstance(key, str)
            else {"steps": [PAIRS], "gpus": f"{key[0]},{key[1]}"}
        )
        return {**self.namespace, "symptom": "", "log": "", **part}


def worlds_by_key(folder: Path | None) -> dict[Key, list[dict[str, Any]]]:
    """How each world of the two steps stands, in order, by pair or arm; ``rate``: GB/s or None. ``folder``:
    of the run; None before it has one."""
    by_key: dict[Key, list[dict[str, Any]]] = {}
    for step in (PAIRS, ARMS) if folder else ():
        for path in sorted((folder / "logs" / step).glob(f"*/{STATE}")):
            world = json.loads(path.read_bytes())
            is_arm = step == ARMS and world["name"] in TESTS
            key = world["name"] if is_arm else tuple(sorted({*world["gpus"]}))
            if is_arm or (len(key) == 2 and (step == PAIRS or world["name"].startswith("pair "))):
                rate = world["gb_per_s"]["all_reduce" if is_arm else "send_recv"]
                by_key.setdefault(key, []).append({**world, "rate": rate})
    return by_key


def outcome(worlds: list[dict[str, Any]], at_work: bool) -> tuple[str, str]:
    """How these worlds of one pair or arm ended, in words and as a tone of TONES. One that failed and passed
    in one run failed. ``at_work``: whether their run is."""
    failed = [world["ended"] for world in worlds if world["ended"] not in ("passed", "")]
    passed = [world for world in worlds if world["ended"] == "passed"]
    if failed and passed:
        return f"{failed[-1]} {len(failed)} of {len(failed) + len(passed)}", "warn"
    if failed:
        return failed[-1], "unknown" if failed[-1] == "lost" else "broken"
    if not passed:
        return "runs" if at_work else "did not end", "muted"
    rates = [f" {world['rate']:.3g}" for world in passed if world["rate"]]
    return f"passed{''.join(rates[-1:])}", "ok"
