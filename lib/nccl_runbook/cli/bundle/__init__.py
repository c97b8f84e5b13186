"""`nccl-runbook bundle`: one archive of a run for the maintainers of NCCL, torch or a framework."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer
from nccl_runbook.core.facts import counted
from nccl_runbook.core.records import RecordError
from nccl_runbook.core.redact import masked
from nccl_runbook.core.share import replaced

EPILOG = (
    "Example: nccl-runbook bundle outputs/latest train.log --out bundle.zip, read the list, then add --yes"
)
MOST_BYTES = 25_000_000  # what an issue on github.com takes (GitHub Docs, "Attaching files")


def bundle(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as outputs/latest.")],
    log: Annotated[list[Path] | None, typer.Argument(metavar="[LOG]...", help="Logs of the job.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The archive.")] = Path("bundle.zip"),
    yes: Annotated[
        bool, typer.Option("--yes", help="Write it. Without it, only list what it holds.")
    ] = False,
    json: answer.JsonOption = False,
    redact: answer.RedactOption = "",
) -> None:
    """Collect what a maintainer needs: page, records, logs, and texts for issue forms. Names of hosts, users
    and folders, addresses, UUIDs and secrets are replaced. Lists everything first, writes with --yes."""
    from nccl_runbook.report import bundle as bundles

    answer.named([str(path) for path in (run, *(log or ()))])
    answer.in_a_folder(out)
    answer.share(True)
    try:
        made = bundles.bundle(run, log or ())
        size = bundles.write(made, out) if yes else 0
    except RecordError as error:
        answer.leave(error)
    except OSError as error:
        answer.leave(f"cannot write {out}: {error.strerror or error}", 1 if error.errno in answer.FULL else 2)
    whole = "\n".join(made.texts.values())
    document = {
        "schema": "nccl-runbook/bundle/1",
        "written": str(out) if yes else "",
        "bytes": size,
        "files": {name: len(text.encode(errors="replace")) for name, text in made.texts.items()},
        "left_out": made.left_out,
        "masked": masked(whole),
        "replaced": replaced(whole),
    }
    answer.end(document if json else _text(document, out), 0)


def _text(document: dict[str, Any], out: Path) -> str:
    """What the archive holds, a line a file, then what was replaced and what to do next."""
    files = document["files"]
    large = f": more than the {MOST_BYTES / 1e6:.0f} MB that an issue on github.com takes"
    return "\n".join(
        [
            *(f"{size:>9,}  {name}" for name, size in files.items()),
            *(f"left out: {name}: {why}" for name, why in document["left_out"].items()),
            f"Masked: {document['masked'] or 'nothing'}. {document['replaced']}",
            f"Written: {out}, {document['bytes']:,} bytes" + large * (document["bytes"] > MOST_BYTES)
            if document["written"]
            else f"Nothing was written. {counted(len(files), 'file')} would go into {out}: add --yes.",
        ]
    )
