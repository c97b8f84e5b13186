"""Whether an answer about a job of the gym is right."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nccl_runbook.gym.facts import Job, Outcome

_RANKS = re.compile(r"\b[Rr]ank[s:]{0,2} ?:? ?(\d+(?:(?:, | and )\d+)*)")
_PRINTED_BY = re.compile(r"\([^()]* line \d+, rank \d+\)")
_WAITS = re.compile(r"(?:rank )?\d+(?: ranks)? waits? ")


def outcome(job: Job, document: Mapping[str, Any], pid: str = "") -> Outcome:
    """Judge the JSON answer of `diagnose`: every alarm about a job that works is wrong; a fault needs its
    cause, likely or established, and its rank. ``pid``: of the rank at fault, which names it as well."""
    if not job.is_fault:
        return "wrong" if document["verdict"] in ("broken", "degraded") else "right"
    lead, sentence = document["lead"] or {}, document["sentence"]
    names_it = bool(job.says) and job.says in sentence and document["verdict"] == "broken"
    if lead.get("status") not in ("established", "likely") and not names_it:
        return "undecided"
    if lead.get("cause") not in job.causes and not names_it:
        return "wrong"
    if job.rank is None:
        return "right"
    blamed = accused(sentence)
    if blamed and job.rank not in blamed:
        return "wrong"
    shown = [sentence, *(part for e in lead.get("evidence", []) for part in (e["text"], e["source"]))]
    is_named = any(job.rank in ranks_in(text) or f"pid {pid})" in text for text in shown)
    return "right" if is_named else "undecided"


def accused(sentence: str) -> set[int]:
    """The ranks that the sentence names, except those that wait for them. If it names none, the rank that
    printed the line that it quotes."""
    first, *others = sentence.partition(": ")[2].split("; ")
    blaming = [first.partition(": it ")[0], *(clause for clause in others if not _WAITS.match(clause))]
    blame = "; ".join(blaming)
    return ranks_in(_PRINTED_BY.sub("", blame)) or ranks_in(blame)


def ranks_in(text: str) -> set[int]:
    """Every rank that the text names: "rank 1", "ranks 1 and 2", "[rank1]"."""
    return {int(number) for match in _RANKS.findall(text) for number in re.findall(r"\d+", match)}


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Of the answers about one job: wrong if one is wrong, otherwise right if one is right."""
    worst_first: tuple[Outcome, ...] = ("wrong", "right", "undecided")
    return next((word for word in worst_first if word in outcomes), "undecided")


def exit_code(outcomes: Collection[Outcome]) -> int:
    """0 if all are right, 3 if one is wrong, 4 if one is undecided or there is none."""
    return 3 if "wrong" in outcomes else 0 if set(outcomes) == {"right"} else 4
