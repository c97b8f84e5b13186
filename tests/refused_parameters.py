"""What a notebook shows for each wrong value of its parameters: python refused_parameters.py NOTEBOOK, one JSON list of
[values, last error] pairs on standard input. The cells run in a shell of IPython, as papermill's kernel runs them; one JSON list of
[name of the error, lines that are shown] comes out, [None, []] if the notebook ran to its end."""
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell


class Shell(InteractiveShell):
    """Keeps what a kernel would send as the traceback."""

    shown: list[str]

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.shown = [etype.__name__, *stb]


def shown(notebook: Path, given: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The first error of a notebook with these values, as papermill gives them."""
    shell = Shell.instance(colors="nocolor")
    shell.reset()
    shell.shown = []
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"]), store_history=True)
        if "parameters" in cell["metadata"].get("tags", []):
            lines = [f"{name} = {value!r}" for name, value in given.items()]
            shell.run_cell("\n".join(["# Parameters", *lines, ""]), store_history=True)
        if shell.shown:
            return shell.shown[0], shell.shown[1:]
    return None, []


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, open(os.devnull, "w")
    asked = json.load(sys.stdin)
    os.chdir(Path(sys.argv[1]).parent)
    json.dump([shown(Path(sys.argv[1]), given) for given in asked], out)
