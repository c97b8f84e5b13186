"""A run that worked, beside what was given of one that did not."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from nccl_runbook.against import judge, read
from nccl_runbook.against.facts import Comparison, RunProfile
from nccl_runbook.case.answer import beside, case
from nccl_runbook.case.given import Material, sort
from nccl_runbook.case.read import left_by
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.records import Record, RecordError, load_all, save
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment import read_file
from nccl_runbook.logs.file import Limit
from nccl_runbook.report.run import read_records, write_run
from nccl_runbook.report.verdict_document import VerdictDocument
from nccl_runbook.report.verdict_sentence import AGAINST_STEP, START_STEP


def compared_with(given: Sequence[str], material: Material) -> Comparison | None:
    """A good run beside what was brought; None if nothing of one is ``given``. RecordError if nothing can be
    compared; otherwise as in profile_of."""
    if not given:
        return None
    bad, logs = profile_of(material), [*given, *material.logs]
    line = f"nccl-runbook ab log:{logs[0]} log:{logs[1]}" if bad.files and len(logs) == 2 else ""
    return judge.compare(good_run(given, bad.steps), bad, line)


def good_run(given: Sequence[str], steps: Iterable[str]) -> RunProfile:
    """The profile of a run that worked; RecordError if it has nothing to compare with ``steps``, otherwise
    as in profile_of."""
    worked, name = sort(given), ", ".join(given)
    profile = profile_of(worked)
    if not (profile.settings or profile.communicators or profile.times):
        raise RecordError(f"{name} contains nothing to compare (no record, version, setting or time)")
    theirs, ours = ({*names} - {START_STEP} for names in (profile.steps, steps))
    if theirs and ours and not theirs & ours:
        steps_of = [", ".join(sorted(names)) for names in (theirs, ours)]
        raise RecordError(f"{name} has {steps_of[0]}, and this run {steps_of[1]}: no step is in both")
    document = case(left_by(worked), name, "", "unknown").document
    is_bad = document.verdict in ("broken", "degraded")
    return dataclasses.replace(profile, problem=document.sentence if is_bad else "")


def profile_of(material: Material) -> RunProfile:
    """Logs, records and scripts of a run as one profile; ValueError (or its subclass RecordError) for an
    unreadable record."""
    read_roles = map(read_file.read, (*material.scripts, *material.configurations))
    roles = [to_json(role) for role in read_roles if not isinstance(role, Gap)]
    records = [record for path in material.records for record in load_all(Path(path))]
    named = Record(step="script", started="", facts={"environment": {"roles": roles}})
    logs = [p for p in material.logs if p != "-"]
    return read.collect(logs, limit=Limit(), records=[*records, *([named] if roles else [])])


def run_against(
    run_dir: Path, document: VerdictDocument, good: RunProfile, logs: list[str]
) -> tuple[VerdictDocument, Comparison]:
    """(document, comparison) of this run beside a good one; its folder gets the record of the comparison,
    and a new page and verdict.json. RecordError as in good_run; OSError if writing fails."""
    bad = read.collect(logs, records=read_records(run_dir)[0])
    compared, record = beside(judge.compare(good, bad), document)
    save(record, run_dir / f"{AGAINST_STEP}.json", Redactor(os.environ))
    return write_run(run_dir, document.run), compared
