"""The options that several commands have, and what is checked when one of them is given."""

import os
import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from nccl_runbook.cli import answer
from nccl_runbook.core.findings import FAIL_ON
from nccl_runbook.core.redact import OWN_PATTERNS
from nccl_runbook.core.secret_values import own_patterns
from nccl_runbook.core.share import SHARE
from nccl_runbook.report import beside


def own_patterns_in(path: str) -> str:
    """The path unchanged, with its expressions in use from now on; exits with an error if it is unusable."""
    if path and (why := answer.never_read(path)):
        answer.leave(f"--redact (or {OWN_PATTERNS}): {why}")
    try:
        if path and own_patterns(path):
            os.environ[OWN_PATTERNS] = os.path.abspath(path)
    except (OSError, ValueError) as error:
        answer.leave(f"--redact (or {OWN_PATTERNS}) {path}: {getattr(error, 'strerror', None) or error}")
    return path


def share(wanted: bool) -> bool:
    """Replace names in all output from now on if ``wanted``, which is returned."""
    if wanted:
        os.environ.setdefault(SHARE, secrets.token_hex(16))
    return wanted


def in_a_folder(path: Path | None) -> Path | None:
    """The path unchanged; exits with an error if it is a folder, or its folder does not exist."""
    if path and (str(path).startswith("-") or path.is_dir() or not path.parent.is_dir()):
        why = "name a file" if path.parent.is_dir() else f"there is no folder {path.parent}"
        answer.leave(f"cannot write {path}: {why}")
    if path:
        beside.remember(path)
    return path


def _own_page(path: Path | None) -> Path | None:
    size = path.stat().st_size if in_a_folder(path) and path.is_file() else 0
    if size > 1 << 22 or (
        size and not (os.access(path, os.R_OK) and b"NCCL Runbook</title>" in path.read_bytes())
    ):
        answer.leave(f"cannot write {path}: the file exists, and was not written by nccl-runbook")
    return path


FailOnOption = Annotated[
    Literal[FAIL_ON],
    typer.Option(
        metavar="VERDICT",
        help="Mildest verdict that gives an exit code other than 0: broken (the most severe), "
        "degraded or unknown. With never, the exit code is 0 for every verdict.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")]
RedactOption = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        callback=own_patterns_in,
        help="Also mask text that matches the regular expressions in this file.",
    ),
]
ShareOption = Annotated[
    bool,
    typer.Option(
        "--share",
        callback=share,
        help="Replace names of hosts, users, teams, buckets and folders, IP and MAC "
        "addresses, and GPU UUIDs in the answer. The answer still contains names of "
        "files, jobs and models, so read the answer before you pass it on.",
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", callback=_own_page, help="Also write the answer as one HTML page to pass on."
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=in_a_folder,
        help="Also write what was read, such as stacks, to this file. `look --record` judges such "
        "files later, and joins the files of several hosts.",
    ),
]
PythonOption = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Python of your job: a path, or a command such as `docker exec -i areal python3`.",
    ),
]
GpusOption = Annotated[
    str, typer.Option(metavar="LIST", help="CUDA indices of the GPUs, such as 0,1. Default: all GPUs.")
]
AllowBusyOption = Annotated[
    bool, typer.Option("--allow-busy", help="Also run on GPUs that other processes use.")
]
