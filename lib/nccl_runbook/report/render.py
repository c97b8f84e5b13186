"""HTML and SVG from templates/, which is where markup stands; escaped everywhere. jinja2 is loaded with the first page or cell."""
import os
from functools import cache
from pathlib import Path
from typing import Any

from nccl_runbook.report.markup import TONES, badge

TEMPLATES = Path(__file__).parent / "templates"
FOLDER = "NCCL_RUNBOOK_FOLDER"  # what stands before `nccl-runbook` in lines to copy: `make lab` sets it


@cache
def macros(name: str) -> Any:
    """The macros of a template as functions that give markup."""
    return environment().get_template(name).module


@cache
def environment() -> Any:
    """Where templates are found; in each of them ``badge`` and ``tones`` say how a status looks."""
    import jinja2

    made = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    made.globals.update(badge=badge, tones=TONES, folder=os.environ.get(FOLDER, ""))
    return made
