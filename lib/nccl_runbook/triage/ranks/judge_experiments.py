"""Experiments that the reporter made: what passed with another setting or version."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_runbook.causes.causes import Advice, advice
from nccl_runbook.causes.tables import table
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import compiled
from nccl_runbook.messages.facts import CONTEXT
from nccl_runbook.messages.judge import Indication

# meaning of the words of a trial: [says] of the table
_SAYS = {
    name: re.compile("(?i)" + "|".join(lines).replace("<failure>", table("triage/experiments")["failure"]))
    for name, lines in table("triage/experiments")["says"].items()
}


def experiments(context: str) -> list[Indication]:
    """A trial that makes the job work locates the broken path; a single remaining cause is likely."""
    out = ruled_out(context)
    return [
        *(p for row, works, clause in _trials(context) if works for p in _broken(row, out, clause)),
        *(
            p
            for row in table("triage/experiments")["library"]
            if row["name"].lower() in context.lower() and re.search(row.get("gpu", ""), context)
            for p in _versions(row, context)
        ),
    ]


def ruled_out(context: str) -> set[str]:
    """Causes whose path was switched off while the job still failed."""
    return {
        c
        for row, works, _ in _trials(context)
        if works is False
        for c in row["causes"]
        if c not in row.get("keeps", ())
    }


def _broken(row: Mapping[str, Any], out: set[str], clause: str) -> list[Indication]:
    left = [cause for cause in row["causes"] if cause not in out]
    status = "likely" if len(left) == 1 else "possible"
    path_at_fault = Advice(f"The job works without {row['path']}.", **advice(row))
    return [
        Indication(cause, status, (LogLine(CONTEXT, 1, clause),), (), 10 + at, path_at_fault)
        for at, cause in enumerate(left)
    ]


def _trials(context: str) -> Iterator[tuple[Mapping[str, Any], bool | None, str]]:
    """Each setting that was tried, whether the job worked with it (None: unknown), and the words."""
    for clause in _SAYS["next"].split(context):
        for row in table("triage/experiments")["experiment"]:
            if setting := compiled("(?i)" + row["words"]).search(clause):
                yield row, _outcome(clause, setting), clause.strip()


def _outcome(clause: str, tried: re.Match[str]) -> bool | None:
    rest = _SAYS["settled"].sub(
        "works", _SAYS["nothing"].sub("", clause[: tried.start()] + " " + clause[tried.end() :])
    )
    works = False if _SAYS["fails"].search(rest) else True if _SAYS["works"].search(rest) else None
    return not works if works is not None and _SAYS["without"].search(clause[: tried.start()]) else works


def _versions(row: Mapping[str, str], context: str) -> list[Indication]:
    """The same job fails with one version of a library and works with another, or the reporter names the
    first failing version."""
    expression = compiled(
        r"(?i)(?<![\w.])"
        + row.get("words", row["name"] + table("triage/experiments")["number"])
        + r"(?![\w.]*\d)"
    )
    named = [
        (v, clause[: v.start()], clause)
        for clause in _SAYS["next"].split(context)
        for v in expression.finditer(clause)
        if not _SAYS["other"].search(clause[: v.start()])
    ]
    works = [
        (bool(_SAYS["not-with"].search(before)) or _outcome(clause, v), v[1], clause.strip())
        for v, before, clause in named
    ]
    bad = [
        (version, clause)
        for ok, version, clause in works
        if ok is False and re.match(row.get("older", ""), version)
    ]
    good = [(version, clause) for ok, version, clause in works if ok and version not in dict(bad)]
    begins = [
        (v[1], clause.strip())
        for v, before, clause in named
        if re.match(row.get("older", ""), v[1])
        and (_SAYS["since"].search(before + v[0][: -len(v[1])]) or _SAYS["on"].match(clause, v.end()))
    ]
    if not ((good and (bad or row["alone"])) or (begins and not good and not row["alone"])):
        return []
    lines = tuple(
        dict.fromkeys(LogLine(CONTEXT, 1, clause) for _, clause in (*(good or begins)[:1], *bad[:1]))
    )
    if not good:
        change = (
            "you",
            f"Go back to the {row['name']} version that worked, or update the libraries that use "
            f"{row['name']}.",
            (),
        )
        says = f"According to the report, this happens from {row['name']} {begins[0][0]} on."
        return [Indication(row["cause"], "possible", lines, (), 500, Advice(says, (change,)))]
    cuda = _SAYS["cuda"].search(context)
    install = row["install"].format(version=good[0][0], cuda=cuda[1] if cuda else 12)
    says = f"The job works with {row['name']} {good[0][0]}" + (
        f" and fails with {bad[0][0]}." if bad else "."
    )
    use = (
        "you",
        f"Use {row['name']} {good[0][0]}" + (":" if install else "."),
        (install,) if install else (),
    )
    return [Indication(row["cause"], row["status"], lines, (), 9, Advice(says, (use,)))]
