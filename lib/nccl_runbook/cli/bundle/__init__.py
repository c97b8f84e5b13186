"""`nccl-runbook bundle`: one archive of a run for the maintainers of NCCL, torch or a framework.

Example: nccl-runbook bundle outputs/latest train.log --out bundle.zip --yes
"""

from pathlib import Path
from typing import Annotated

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import counted
from nccl_runbook.core.records import RecordError
from nccl_runbook.core.redact import masked
from nccl_runbook.core.share import replaced
from nccl_runbook.report import bundle as bundles

MOST_BYTES = 25_000_000  # what an issue on github.com takes (GitHub Docs, "Attaching files")


def bundle(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a `make report` run, such as outputs/latest.")
    ],
    log: Annotated[list[Path] | None, typer.Argument(metavar="[LOG]...", help="Logs of the job.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File name of the archive.")] = Path("bundle.zip"),
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Write the archive. Without --yes, only list the files that would go into it."
        ),
    ] = False,
    redact: options.RedactOption = "",
) -> None:
    """Collect the files for a bug report: page, records, logs, and texts for issue forms. Names of
    hosts, users and folders, addresses, UUIDs and secrets are replaced. Read the printed list, then
    run the command again with --yes."""
    answer.named([str(path) for path in (run, *(log or ()))])
    options.in_a_folder(out)
    options.share(True)
    try:
        made = bundles.bundle(run, log or ())
        size = bundles.write(made, out) if yes else 0
    except RecordError as error:
        answer.leave(error)
    except OSError as error:
        answer.leave(f"cannot write {out}: {error.strerror or error}", 1 if error.errno in answer.FULL else 2)
    answer.end(_text(made, out, size), 0)


def _text(made: bundles.Bundle, out: Path, size: int) -> str:
    """What the archive holds, a line a file, then what was replaced and what to do next."""
    whole = "\n".join(made.texts.values())
    large = f": more than the {MOST_BYTES / 1e6:.0f} MB that an issue on github.com takes"
    return "\n".join(
        [
            *(f"{len(text.encode(errors='replace')):>9,}  {name}" for name, text in made.texts.items()),
            *(f"left out: {name}: {why}" for name, why in made.left_out.items()),
            f"Masked: {masked(whole) or 'nothing'}. {replaced(whole)}",
            f"Written: {out}, {size:,} bytes" + (large if size > MOST_BYTES else "")
            if size
            else f"Nothing was written. With --yes, {counted(len(made.texts), 'file')} would go into {out}.",
        ]
    )
