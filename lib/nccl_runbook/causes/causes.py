"""The causes by id: title, explanation, remedies; and a line that sets a variable, by launcher."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.core.findings import NOTHING_KNOWN, Evidence, Remedy

_FIELD = re.compile(r"<([a-z_]+)>")  # a value of the message in an advice
# a line about a process of the job; Windows writes /PID before the number of any process
OF_PROCESS = re.compile(r"(?<! /)\b(?:EACH_)?PID\b")
Rows = Sequence[tuple[str, str, Sequence[str]]]  # of a remedy: who, text, lines to copy


@dataclasses.dataclass(frozen=True)
class Advice:
    """What one message says about its cause, instead of the general text; empty parts keep the general text.
    ``decides``: the cheapest test that settles it, as (probe, why, line)."""

    says: str = ""
    remedy: Rows = ()
    decides: tuple[str, ...] = ()

    def filled(self, fields: Mapping[str, str | None]) -> Advice:
        """The advice with each ``<name>`` replaced by the message's value; in a line to copy also by NAME. A
        sentence that needs a value which the message lacks is left out, in a remedy with its lines."""

        def known(text: str) -> bool:
            return all(fields.get(name) for name in _FIELD.findall(text))

        def fill(text: str) -> str:
            return _FIELD.sub(lambda match: fields.get(match[1]) or match[1].upper(), text)

        return Advice(
            fill(self.says) if known(self.says) else "",
            tuple(
                (who, fill(text), tuple(map(fill, lines))) for who, text, lines in self.remedy if known(text)
            ),
            tuple(map(fill, self.decides)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause(Advice):
    """One row of causes.toml with its general advice. ``verify``: how the job shows that the remedy works, or
    empty."""

    id: str
    title: str
    source: str
    verify: str = ""


@functools.cache
def causes() -> dict[str, Cause]:
    """Id -> cause, in the order of the table."""
    return {
        row["id"]: Cause(**{key: row[key] for key in row if key != "message"} | advice(row))
        for row in table("causes/causes")["cause"]
    }


def advice(row: Mapping[str, Any]) -> dict[str, Any]:
    """The advice in a table's row, as arguments of `Cause` and `Advice`."""
    decides = (
        {"decides": tuple(row["decides"][part] for part in ("probe", "why", "line"))}
        if "decides" in row
        else {}
    )
    return {"remedy": tuple((r["who"], r["text"], r["lines"]) for r in row.get("remedy", ())), **decides}


def fitting(cause_id: str, *lines: str) -> Cause:
    """The cause with the advice of the line that names it, or of lines beside it: a program's own exception
    needs no look at the kernel log."""
    fit = (
        row
        for row in table("causes/causes")["said"]
        if row["id"] == cause_id
        and any(re.search(row["line"], line) for line in lines[: None if row.get("beside") else 1])
    )
    return dataclasses.replace(causes()[cause_id], **next(map(advice, fit), {}))


def for_launcher(line: str, launcher: str) -> tuple[str, ...]:
    """The line in the form of ``launcher``; unchanged if the table has no form for it and it sets nothing."""
    for form in (form for form in table("causes/launchers")["form"] if form["launcher"] == launcher):
        if match := re.fullmatch(form["of"], line):
            either = "|".join("".join(match.groups()[:1]).split())
            return tuple(
                wanted.format(*(group or "" for group in match.groups()), either=either)
                for wanted in form["lines"]
            )
    pairs = re.findall(r"\b(\w+)=(\S+)", line) if line.startswith("export ") else []
    if not pairs or launcher not in table("causes/launchers")["export"]:
        return (line,)
    form, pair, between = table("causes/launchers")["export"][launcher]
    return tuple(
        form.format(between.join(pair.format(name=name, value=value) for name, value in pairs)).split("\n")
    )


def launcher_of(script: str) -> str:
    """The launcher that a script or a manifest uses, as logs name it; empty if none is recognised."""
    words = table("causes/launchers")["script"]
    return next((name for name in words if re.search(words[name], script)), "")


NOT_SEEN = Evidence(
    "this fault was not yet seen on hardware; we tested the rule with a simulated fault, without GPUs",
    "the rule",
)


def remedies_for(
    cause: str,
    status: str | None = None,
    lines: Sequence[str] = (),
    launcher: str = "",
    rows: Rows | None = None,
) -> tuple[Remedy, ...]:
    """Remedies: ``rows``, or those of the table of causes for the naming ``lines``, in the form of
    ``launcher``. For a possible cause they are marked as unconfirmed."""
    rows = fitting(cause, *lines).remedy if rows is None else rows
    if_so = "If this is the cause: " if status == "possible" and cause != "benign" else ""
    return tuple(
        Remedy(
            who,
            if_so + text,
            tuple(dict.fromkeys(own for line in copied for own in for_launcher(line, launcher))),
        )
        for who, text, copied in rows
    )


def once_ended(remedy: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """The remedies for a job that has ended: what only its processes can show is for the next run, and stands
    behind everything else."""
    kept = [tuple(line for line in r.lines if not OF_PROCESS.search(line)) for r in remedy]
    return (
        *(dataclasses.replace(r, lines=own) for r, own in zip(remedy, kept) if own or not r.lines),
        *(
            dataclasses.replace(r, text=f"In the next run: {r.text}")
            for r, own in zip(remedy, kept)
            if r.lines and not own
        ),
    )


def in_logs(line: str, logs: Sequence[str]) -> str:
    """The line with the names of these logs instead of LOG."""
    return re.sub(r"\bLOGS?\b", lambda _: shlex.join(logs), line) if logs else line


def remedies(cause: Cause | None, status: str | None = None) -> tuple[Remedy, ...]:
    """Remedies of a cause, which may be those of a message; NOTHING_KNOWN if there is no cause, or it has
    none."""
    return remedies_for(cause.id, status, rows=cause.remedy) if cause and cause.remedy else (NOTHING_KNOWN,)
