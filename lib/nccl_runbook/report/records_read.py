"""What 99-verdict itself has to say: whether the records could be read. The verdict is the sum of the steps, not judged here."""
import dataclasses
from typing import Any

from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import Evidence, Finding, Severity

RESTS_ON: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """``read``: steps whose record was read; ``unreadable``: step -> why not; ``document``: the verdict document (verdict.json)."""

    name: str
    read: list[str]
    unreadable: dict[str, str]
    document: dict[str, Any]


def judge(folder: RunFolder) -> list[Finding]:
    """At least one finding: records read, a record unreadable, or none at all."""
    found = [Finding("record-unreadable", Severity.UNKNOWN, f"the record of {step} cannot be read", (Evidence(why, f"{step}.json"),))
             for step, why in folder.unreadable.items()]
    if not folder.read:
        return [*found, Finding("no-records", Severity.UNKNOWN, f"no step has left a record in {folder.name}")]
    seen = Evidence(", ".join(folder.read), folder.name)
    return [*found, Finding("records-read", Severity.OK, f"{counted(len(folder.read), 'record')} read", (seen,))]
