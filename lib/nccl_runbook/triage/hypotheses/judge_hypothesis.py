"""A hypothesis, and the first questions about a log: platform, failing line, slow or not."""

import dataclasses
import re

from nccl_runbook.causes.causes import OF_PROCESS, Cause, Rows, once_ended
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
    """The cheapest test that settles a hypothesis: notebook or command ("next run" if the job must
    run), why, and the line to run where the job ran."""

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
    """``hypotheses``: best first; ``findings``: the same as findings of a step; ``fits``: causes that fit the
    symptom but have no line."""

    logs: Logs
    hypotheses: list[Hypothesis]
    findings: list[Finding]
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


def carried_over(hypothesis: Hypothesis) -> Hypothesis:
    """With only what holds on other vendors' GPUs, too."""
    rows = (
        (r, tuple(line for line in r.lines if not NVIDIA_WORDS.search(line)))
        for r in hypothesis.remedy
        if not NVIDIA_WORDS.search(r.text)
    )
    remedy = tuple(dataclasses.replace(r, lines=lines) for r, lines in rows if lines or not r.lines)
    return dataclasses.replace(
        hypothesis, remedy=remedy, decides=Decides(*elsewhere(tuple(vars(hypothesis.decides).values())))
    )


def after_end(hypothesis: Hypothesis) -> Hypothesis:
    """The hypothesis for a job that has ended: what needs one of its processes is for the next run."""
    decides = hypothesis.decides
    if decides.probe == "hang" or OF_PROCESS.search(decides.line):
        decides = Decides("next run", f"{decides.why}, in the next run", "")
    return dataclasses.replace(hypothesis, remedy=once_ended(hypothesis.remedy), decides=decides)


def not_done(remedy: Rows, logs: Logs) -> Rows:
    """The rows without settings that a job has by what it printed; one that differs between ranks stays."""
    printed = [
        pair for pair, message in logs.seen.items() if "=" in pair and message.lines[0].file != CONTEXT
    ]
    names = [pair.partition("=")[0] for pair in printed]
    done = {f"export {pair}" for pair, name in zip(printed, names) if names.count(name) == 1}
    if "faulthandler-stack" in logs.seen:
        done.add("export PYTHONFAULTHANDLER=1")
    kept = tuple(
        (who, text, tuple(line for line in lines if line not in done))
        for who, text, lines in remedy
        if not lines or not done.issuperset(lines)
    )
    return (
        kept
        if kept or not remedy
        else (
            (
                "you",
                "The log already shows the setting that usually helps. Check that the failed ranks "
                "have this setting. If all have it, the setting does not help in this case.",
                (),
            ),
        )
    )
