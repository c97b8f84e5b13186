"""An executed notebook that tells what happened: what never ran says so, and a banner says why. Secrets are taken out."""
import re
from pathlib import Path
from typing import Any

from nccl_runbook.core.records import write_text
from nccl_runbook.core.redact import Redactor

BANNER_ID = "runbook-banner"
NOT_RUN = "not run"


def save(notebook: Any, why: str, target: Path, redactor: Redactor) -> None:
    """Write the notebook, mended, without secrets, as a whole. ``why``: the reason that it has no result, "" if it has one."""
    import nbformat

    given = redactor.json(notebook.metadata.get("papermill", {}).get("parameters", {}))
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):  # before Python's quotes hide what a value looks like
            cell.source = "\n".join([cell.source.partition("\n")[0], *(f"{name} = {value!r}" for name, value in given.items())])
    write_text(target, nbformat.writes(nbformat.from_dict(redactor.json(mend(notebook, why)))) + "\n")


def mend(notebook: Any, why: str) -> Any:
    """papermill calls cells completed that never ran (2.7.0); only their missing start time tells."""
    notebook.cells = [c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    paths = notebook.metadata.get("papermill", {})
    paths.update({key: Path(paths[key]).name for key in ("input_path", "output_path") if paths.get(key)})
    if why:
        code = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
        started = [c for c in code if c.metadata.get("papermill", {}).get("start_time")]
        for cell in code:
            if cell not in started:
                _mark(cell, NOT_RUN, NOT_RUN)
        if started:
            _mark(started[-1], "failed", "" if started[-1].outputs else f"stopped here: {why}")
        notebook.cells.insert(0, _banner(why))
    return notebook


def _mark(cell: Any, status: str, said: str) -> None:
    import nbformat.v4

    cell.metadata.setdefault("papermill", {})["status"] = status
    if said:
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=said + "\n")]


def _banner(why: str) -> Any:
    """The reason stands in a code block: it may quote anything. Its fence is longer than any inside."""
    import nbformat.v4

    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", why)), default=0))
    text = f"**This step has no result: it is unknown.** Cells marked *{NOT_RUN}* were never reached.\n\n{fence}text\n{why}\n{fence}"
    cell = nbformat.v4.new_markdown_cell(text)
    cell.id, cell.metadata.tags = BANNER_ID, [BANNER_ID]
    return cell
