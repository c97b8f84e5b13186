"""A hypothesis, and the first questions about a log: platform, failing line, slow or not."""

import dataclasses
import re

from nccl_runbook.causes.causes import Cause
from nccl_runbook.core.findings import Finding, Remedy
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.facts import CONTEXT, Logs

PLATFORMS = {
    "platform-rocm": "AMD GPUs (ROCm, RCCL)",
    "platform-ascend": "Ascend NPUs (HCCL)",
    "platform-xpu": "Intel GPUs (oneCCL)",
}

NVIDIA_WORDS = re.compile(
    r"(?i)nvidia|nvml|nvlink|nvswitch|fabric ?manager|libnccl|\bdcgm|nccl-runbook (?:run|ab)|\bXid\b|nccl\.so"
)


@dataclasses.dataclass(frozen=True)
class Decides:
    """The cheapest test that settles a hypothesis: notebook or command, why, and the line to run where the
    job ran."""

    probe: str
    why: str
    line: str


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One possible first cause. ``against``: evidence against it, in words."""

    cause: str
    status: str
    title: str
    says: str
    evidence: tuple[LogLine, ...]
    remedy: tuple[Remedy, ...]
    decides: Decides
    against: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """``hypotheses``: best first; ``findings``: the same as findings of a step; ``hosts``, ``there``: other
    hosts, and (line, what it separates, seconds) to run there; ``fits``: causes that fit the symptom but
    have no line."""

    logs: Logs
    hypotheses: list[Hypothesis]
    findings: list[Finding]
    hosts: list[str]
    there: list[tuple[str, str, str]]
    fits: tuple[Cause, ...] = ()


def platform(logs: Logs) -> str:
    """Vendor of the GPUs, if a line shows that it is not NVIDIA; else empty."""
    return next((words for message, words in PLATFORMS.items() if message in logs.seen), "")


def elsewhere(decides: tuple[str, ...]) -> tuple[str, ...]:
    """A deciding test for a library other than NCCL: a step that needs NVIDIA tools is replaced by that
    library's own test."""
    return (
        decides
        if not NVIDIA_WORDS.search(" ".join(decides))
        else (
            "by hand",
            "whether the same collective fails in the test program of the library that the job uses "
            "(rccl-tests for RCCL, hccl_test for HCCL)",
            "",
        )
    )


def where(line: LogLine) -> str:
    """Place of a line in words: "train.log line 812, rank 3"."""
    printed = "/".join(line.file.split("/")[-2:]) + (f" line {line.line}" if line.line else "")
    return ("your description" if line.file == CONTEXT else printed) + (
        f", rank {line.rank}" if line.rank is not None else ""
    )
