"""The experiments that a reporter describes: a setting or a version, and whether the job worked with it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_runbook.causes.causes import Advice, advice
from nccl_runbook.causes.toml import table
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.triage.judge_ranks import Pointer

_CLAUSE = re.compile(r"[;,\n]|\.\s|\bbut\b|\bwhile\b|\bwhereas\b|\band (?=with|works|runs|passes|hangs|fails)")
_FAILS = re.compile(
    r"(?i)\b(?:no|without|not) (?:difference|effect|change|help|success|luck)|\bstill\b|\bsame (?:error|hang|way)|\bthe same\b|\bnothing\b|"
    r"\b(?:not|never|n.t) (?:\w+ )?(?:help|work|fix|solve|change|run|start|pass)|\b(?:hang|fail|crash|die|break|freeze|stall)\w{0,3}\b|"
    r"\berrors?\b|\bstuck\b")
_WORKS = re.compile(
    r"(?i)\b(?:works?|worked|runs?|ran|pass(?:es|ed)?|starts?|trains?|completes?|succeeds?|helps?|helped|fix(?:es|ed)|solves?|solved|"
    r"cures?|resolves?d?|fine|ok(?:ay)?|gone|goes (?:through|away)|disappears?)\b")
_NOT_WITH = re.compile(r"(?i)\bnot (?:with|under|on|in)\W+(?:NCCL )?$")
_WITHOUT = re.compile(r"(?i)\b(?:without|unless|not setting)\W+(?:\w+\W+)?$")
_VERSION = re.compile(r"(?i)(?<![\w.])(?:NCCL[ =v:]*)?(2\.\d{1,2}(?:\.\d{1,2})?)(?![\w.]*\d)")
_NOT_NCCL = re.compile(r"(?i)(?:torch|cuda|vllm|sglang|driver|python|ray)\S*[ =v:]*$")


def pointers(context: str) -> list[Pointer]:
    """A trial that makes the job work shows the broken path; if one cause is left for it, that one is likely."""
    out = ruled_out(context)
    found = [p for row, works, clause in _trials(context) if works for p in _broken(row, out, clause)]
    return [*found, *_other_version(context)]


def ruled_out(context: str) -> set[str]:
    """Causes whose path was switched off, and the job failed all the same."""
    return {c for row, works, _ in _trials(context) if works is False for c in row["causes"] if c not in row.get("keeps", ())}


def _broken(row: Mapping[str, Any], out: set[str], clause: str) -> list[Pointer]:
    left = [cause for cause in row["causes"] if cause not in out]
    status = "likely" if len(left) == 1 else "possible"
    told = Advice(f"The job works with this path switched off: {row['path']}.", **advice(row))
    return [Pointer(cause, status, (LogLine("--context", 1, clause),), (), 10 + at, told) for at, cause in enumerate(left)]


def _trials(context: str) -> Iterator[tuple[Mapping[str, Any], bool | None, str]]:
    """Each setting that was tried, whether the job worked with it (None: not told), and the words."""
    for clause in _CLAUSE.split(context):
        for row in table("triage/experiments")["experiment"]:
            if setting := re.search("(?i)" + row["words"], clause):
                yield row, _outcome(clause, setting), clause.strip()


def _outcome(clause: str, tried: re.Match[str]) -> bool | None:
    rest = clause[: tried.start()] + " " + clause[tried.end() :]
    works = False if _FAILS.search(rest) else True if _WORKS.search(rest) else None
    return not works if works is not None and _WITHOUT.search(clause[: tried.start()]) else works


def _other_version(context: str) -> list[Pointer]:
    """The same job under another NCCL: it fails with one and works with the other."""
    versions = [(v, clause[: v.start()], clause) for clause in _CLAUSE.split(context) for v in _VERSION.finditer(clause)]
    told = [(v[1], bool(_NOT_WITH.search(before)) or _outcome(clause, v)) for v, before, clause in versions if not _NOT_NCCL.search(before)]
    good, bad = [v for v, works in told if works], [v for v, works in told if works is False]
    if "nccl" not in context.lower() or not good or good[0] in bad:
        return []
    says = f"The job works with NCCL {good[0]}" + (f" and fails with {bad[0]}." if bad else ".")
    install = ("you", f"Use NCCL {good[0]}:", (f"pip install --no-deps nvidia-nccl-cu12=={good[0]}",))
    return [Pointer("nccl-bug", "likely", (LogLine("--context", 1, context[:300]),), (), 9, Advice(says, (install,)))]
