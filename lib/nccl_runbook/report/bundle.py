"""One run for a maintainer, with other names and without secrets: records, page, logs of ranks and job, and a
text for each issue form."""

import dataclasses
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.core import records
from nccl_runbook.core.facts import counted, to_json
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.share import learn
from nccl_runbook.logs.encoding import encoding
from nccl_runbook.report.page import render_index
from nccl_runbook.report.run import info_of, read_records
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument
from nccl_runbook.report.verdict_sentence import leading

LOG_BYTES = 1 << 20  # of one log: the first half and the last
MOST_FILES = 400  # that ranks printed: one a rank and world
TABLE_ROWS = 40
GPU_STEP = "01-gpu-visibility"
# headings of the issue forms, with what stands below each: NVIDIA/nccl ISSUE.yaml at 6ce7c07, pytorch/pytorch
# bug-report.yml at 001fe16, vllm-project/vllm 400-bug-report.yml at 2c89721; AReaL has no form (c13279a)
FORMS = {
    "NVIDIA-nccl": {
        "How is this issue impacting you?": "choose",
        "Share Your Debug Logs": "files",
        "Steps to Reproduce the Issue": "steps",
        "NCCL Version": "nccl",
        "Your platform details": "platform",
        "Error Message & Behavior": "error",
    },
    "pytorch": {"🐛 Describe the bug": "error", "To reproduce": "steps", "Versions": "platform"},
    "vllm": {"Your current environment": "platform", "🐛 Describe the bug": "error", "To reproduce": "steps"},
    "AReaL": {"Describe the bug": "error", "To reproduce": "steps", "Environment": "platform"},
}


@dataclasses.dataclass(frozen=True)
class Bundle:
    """``texts``: name in the archive -> content; ``left_out``: name -> why, in one sentence."""

    texts: dict[str, str]
    left_out: dict[str, str]


def bundle(run_dir: Path, logs: Sequence[Path]) -> Bundle:
    """Everything that a run left, and the logs of the failed job, as text with other names. All texts are
    searched for names before the first is replaced: a host that one file shows in NCCL's form is replaced
    wherever another file names it.

    RecordError if the folder holds no readable record.
    """
    step_records, left_out = read_records(run_dir)
    if not step_records:
        raise records.RecordError(
            f"{run_dir} is not the folder of a run: {'; '.join(left_out.values()) or 'it contains no record'}"
        )
    # a link could lead to any file of the reader
    printed = sorted(
        p
        for p in (run_dir / "logs").rglob("*")
        if p.is_file() and p.resolve().is_relative_to(run_dir.resolve())
    )
    if len(printed) > MOST_FILES:
        left_out["logs"] = f"{counted(len(printed) - MOST_FILES, 'file')} after the first {MOST_FILES} files"
    texts: dict[str, str] = {}
    for path, name in [
        *((p, p.relative_to(run_dir).as_posix()) for p in printed[:MOST_FILES]),
        *(
            (p, f"job/{number}-{os.fsencode(p.name).decode(errors='replace')}")
            for number, p in enumerate(logs, 1)
        ),
    ]:
        try:
            texts[name] = ends(path)
        except OSError as error:
            left_out[name] = f"the file cannot be read: {error.strerror}"
    redactor, info = Redactor(os.environ), to_json(info_of(run_dir))
    for value in (*texts.items(), *map(to_json, step_records), info):
        learn(value)
    shared: list[records.Record] = [
        records.read(records.Record, redactor.json(to_json(record))) for record in step_records
    ]
    document = verdict_document(records.read(RunInfo, redactor.json(info)), shared)
    files = {redactor.text(name): redactor.text(text) for name, text in texts.items()}
    return Bundle(
        {
            "index.html": render_index(document, shared, set()),
            "verdict.json": records.json_text(document, redactor),
            **{f"{r.step}.json": records.json_text(r, redactor) for r in shared},
            **files,
            **{f"issues/{name}.md": text for name, text in _issues(document, shared, files)},
        },
        {redactor.text(name): redactor.text(why) for name, why in left_out.items()},
    )


def write(bundled: Bundle, path: Path) -> int:
    """Write the archive and return its size in bytes. OSError if that fails (no part remains), or if the
    file exists."""
    with path.open("xb") as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, text in bundled.texts.items():
                    archive.writestr(name, text.encode(errors="replace"))
        except BaseException:
            path.unlink()
            raise
    return path.stat().st_size


def ends(path: Path) -> str:
    """Text of a log; of a long one the first and last lines, as nobody recognises half of a secret, with the
    size of what is missing between. OSError if unreadable."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(LOG_BYTES if size <= LOG_BYTES else LOG_BYTES // 2)
        file.seek(max(file.tell(), size - LOG_BYTES // 2))
        last = file.read(LOG_BYTES // 2)
    written = encoding(first) or "utf-8"
    if not last:
        return first.decode(written, "replace")
    above = first.decode(written, "replace").rpartition("\n")[0]
    # the second half has no mark of its own
    below = last.decode(encoding(last) or written, "replace").partition("\n")[2]
    return f"{above}\n... about {size - len(first) - len(last)} bytes are left out here ...\n{below}"


def _issues(
    document: VerdictDocument, step_records: Sequence[records.Record], files: Iterable[str]
) -> Iterable[tuple[str, str]]:
    """A text for each issue form, by the form's name."""
    lead = leading(document.steps, document.causes)
    judged = next((r.judged for r in step_records if r.judged.torch), records.Judged())
    commands = [c for r in step_records if r.status in ("broken", "warn") for c in r.commands]
    parts = {
        "choose": "Choose the impact in the form: lower performance, crash, data corruption, or hang.",
        "files": "\n".join(f"- `{name}`" for name in files) or "This report contains no log.",
        "nccl": judged.nccl or "unknown",
        "error": "\n".join(
            [
                document.sentence,
                "",
                *_fenced(e.text for e in (lead.evidence if lead else ()) if e.source != "next"),
            ]
        ),
        "steps": "\n".join(
            [
                "These commands repeat the tests that found the fault, without the job. The "
                "attached page shows which tests failed:"
                if commands
                else "This run found the fault:",
                *_fenced([c.line for c in commands] or [document.run.command]),
            ]
        ),
        "platform": "\n".join(
            [
                *_fenced(
                    f"{name}: {text or 'unknown'}"
                    for name, text in (
                        ("torch", judged.torch),
                        ("CUDA of torch", judged.cuda),
                        ("NCCL", judged.nccl),
                        ("GPUs", ", ".join(judged.gpus)),
                    )
                ),
                *(
                    row
                    for r in step_records
                    if r.step == GPU_STEP
                    for table in r.tables
                    for row in _table(table)
                ),
            ]
        ),
    }
    for name, form in FORMS.items():
        yield name, "\n\n".join(f"### {heading}\n\n{parts[part]}" for heading, part in form.items()) + "\n"


def _fenced(lines: Iterable[str]) -> list[str]:
    """Lines of a log, or to copy, that are shown verbatim in Markdown."""
    inside = [line.replace("```", "'''") for line in lines]
    return ["```text", *inside, "```"] if inside else []


def _table(table: dict[str, Any]) -> list[str]:
    """A table of a record as Markdown."""
    rows = [[cell if isinstance(cell, str) else cell["text"] for cell in row] for row in table["rows"]]
    if not rows:
        return []
    return [
        "",
        f"**{table['caption']}**",
        "",
        *(
            "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |"
            for row in [table["columns"], ["---"] * len(table["columns"]), *rows[:TABLE_ROWS]]
        ),
        *([f"\n... and {counted(len(rows) - TABLE_ROWS, 'row')}"] if len(rows) > TABLE_ROWS else []),
    ]
