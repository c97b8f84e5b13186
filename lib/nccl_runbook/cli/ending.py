"""How every command ends: an exit code from its verdict and --fail-on; one sentence where it failed or was used wrongly."""
from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from nccl_runbook.findings import FailOn


def leave(sentence: str, code: int) -> NoReturn:
    """One sentence on standard error, and out. ``code``: 1 the runbook failed, 2 wrong usage."""
    print(f"nccl-runbook: {sentence}", file=sys.stderr)
    sys.exit(code)


def _checked(value: str) -> FailOn:
    """By hand: typer tells of a wrong choice in four lines."""
    return FailOn(value) if value in tuple(FailOn) else leave(f"--fail-on is one of {', '.join(FailOn)}", 2)


FailsOn = Annotated[
    str, typer.Option(callback=_checked, metavar="VERDICT", help=f"From which verdict on the exit code is not 0: {', '.join(FailOn)}.")]
