"""A run's folder: read its records, write verdict.json and index.html."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from nccl_runbook.core import records
from nccl_runbook.core.facts import counted, to_json, utc_now
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.core.redact import Redactor
from nccl_runbook.report.tables import Line
from nccl_runbook.report.verdict import VERDICT_STEP, verdict_document
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument

RECORDS = "[0-9][0-9]-*.json"  # of a run, in its folder


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run's folder. ``read``: steps whose record was read; ``unreadable``: step -> why not; ``document``:
    verdict.json."""

    name: str
    read: list[str]
    unreadable: dict[str, str]
    document: dict[str, Any]


def read_records(run_dir: Path) -> tuple[list[records.Record], dict[str, str]]:
    """(every NN-*.json of the folder in order of names, step -> why its file is not a record of it,
    99-verdict left out). Never raises for a bad file."""
    good: list[records.Record] = []
    bad: dict[str, str] = {}
    for path in sorted(run_dir.glob(RECORDS)):
        try:
            record = records.load(path)
            if record.step != path.stem:
                raise records.RecordError(f"{path.name} is a record of a different step, {record.step}")
            good.append(record)
        except records.RecordError as error:
            bad[path.stem] = str(error).replace(f"{path.parent}{os.sep}", "")
    return good, {step: why for step, why in bad.items() if step != VERDICT_STEP}


def build(run_dir: Path, run: RunInfo) -> tuple[VerdictDocument, list[records.Record], dict[str, str]]:
    """(document of a folder, its records, step -> why its record cannot be read); such steps are unknown."""
    good, bad = read_records(run_dir)
    run = dataclasses.replace(
        run, planned=list(dict.fromkeys([*run.planned, *bad])), not_run={**run.not_run, **bad}
    )
    return verdict_document(records.read(RunInfo, Redactor(os.environ).json(to_json(run))), good), good, bad


def write_run(run_dir: Path, run: RunInfo) -> VerdictDocument:
    """Write verdict.json and index.html of the folder, each atomically and redacted, and return the
    document. OSError if writing fails."""
    from nccl_runbook.report.page import render_index  # jinja2 only where a page is made

    document, good, _ = build(run_dir, run)
    document.written = utc_now()
    files = {p.name for p in run_dir.glob("[0-9][0-9]-*") if p.suffix in (".html", ".ipynb", ".json")}
    records.write_texts(
        {
            run_dir / "verdict.json": records.json_text(document, Redactor(os.environ)),
            run_dir / "index.html": render_index(document, good, files),
        }
    )
    return document


def info_of(run_dir: Path) -> RunInfo:
    """What the folder's verdict.json says about its run; notebooks run by hand have no plan."""
    try:
        run = records.read(VerdictDocument, (run_dir / "verdict.json").read_bytes()).run
        return run if run.command else dataclasses.replace(run, planned=[], not_run={})
    except (OSError, records.RecordError):
        return RunInfo(
            id=run_dir.name, started=min((r.started for r in read_records(run_dir)[0]), default=utc_now())
        )


def collect(run_dir: Path) -> RunFolder:
    """The folder's verdict as a fact, for 99-verdict; writes nothing."""
    document, good, unreadable = build(run_dir, info_of(run_dir))
    return RunFolder(
        run_dir.name, [r.step for r in good if r.step != VERDICT_STEP], unreadable, to_json(document)
    )


def judge(folder: RunFolder) -> list[Finding]:
    """At least one finding: records read, a record unreadable, or none at all. The verdict itself sums up
    the steps."""
    unreadable = [
        Finding(
            "record-unreadable",
            Severity.UNKNOWN,
            f"the record of {step} cannot be read",
            (Evidence(why, f"{step}.json"),),
        )
        for step, why in folder.unreadable.items()
    ]
    read = (
        Finding(
            "records-read",
            Severity.OK,
            f"{counted(len(folder.read), 'record')} read",
            (Evidence(", ".join(folder.read), folder.name),),
        )
        if folder.read
        else Finding("no-records", Severity.UNKNOWN, f"no step left a record in {folder.name}")
    )
    return [*unreadable, read]


def write_by_hand(run_dir: Path, by_hand: bool) -> Line:
    """Write the folder's page if no runner does (``by_hand``); returns one sentence for the reader."""
    if not by_hand:
        return Line("`make report` writes the page of this run.")
    write_run(run_dir, info_of(run_dir))
    return Line(f"Written: {run_dir.name}/index.html and {run_dir.name}/verdict.json")
