"""The causes by id: title, explanation, remedies, the messages that point to them; and a line that sets a variable, by launcher."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nccl_runbook.core.redact import sounds_secret

NOT_EVALUATED = "$"  # a value with a shell expression in it is not known here
_PLAIN = re.compile(r"\d{1,6}|true|false|yes|no|on|off", re.I)  # may be shown of a variable that is not in the table
_MISSPELT = ("NCLL_", "NCC_", "NCL_", "NNCL_", "TORCH_NCLL_", "TORCH_NCL_")  # prefixes, as they are slipped


@dataclasses.dataclass(frozen=True)
class Reader:
    """Who reads a section's variables: a row [reader] of variables.toml. ``key``: its section; ``families``: prefixes of its names;
    ``is_complete``: the table holds every name it reads; ``version_of``: "nccl" or "torch" if since and until count that version."""

    key: str
    name: str
    source: str
    families: tuple[str, ...] = ()
    is_complete: bool = False
    version_of: str = ""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One row of variables.toml; see its head. ``renamed_to``: the new name, ``renamed_in``: the first version that has it."""

    name: str
    reader: Reader
    means: str
    values: str = "text"
    default: str = ""
    since: str = ""
    until: str = ""
    renamed_to: str = ""
    renamed_in: str = ""
    documented: bool = False
    debugging: bool = False

    def accepts(self, value: str) -> bool:
        """Whether the reader takes ``value`` as it stands. An empty value, or one that the shell still has to work out, is taken."""
        if value == "" or NOT_EVALUATED in value:
            return True
        kind, _, rest = self.values.partition(":")
        if kind in ("int", "count"):
            return _in_range(value, rest)
        if kind in ("words", "list"):
            listed = [w.strip() for w in value.removeprefix("^").split(",")] if kind == "list" else [value]
            return all(w.casefold() in ("", *rest.casefold().split(",")) for w in listed)
        line = rest if kind == "re" else table("causes/variables")["form"].get(kind, {}).get("line", "(?s).*")
        return bool(re.fullmatch(line, value))

    @property
    def values_in_words(self) -> str:
        kind, _, rest = self.values.partition(":")
        low, _, high = rest.partition("..")
        if kind == "int" and rest:
            return f"a whole number from {low} to {high}" if high else f"a whole number of at least {low}"
        if kind in ("words", "list"):
            return ("one of " if kind == "words" else "some of ") + ", ".join(rest.split(","))
        return table("causes/variables")["form"].get(kind, {}).get("words", "another form")


def _in_range(value: str, bounds: str) -> bool:
    if not re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)\s*", value):
        return False
    number = int(value, 0) if re.search("[xX]", value) else int(value)
    low, _, high = bounds.partition("..")
    return (not low or number >= int(low)) and (not high or number <= int(high))


@functools.cache
def readers() -> dict[str, Reader]:
    return {key: Reader(key, **row) for key, row in table("causes/variables")["reader"].items()}


@functools.cache
def variables() -> dict[str, Variable]:
    """Every variable by name."""
    return {name: Variable(name, reader, **row) for key, reader in readers().items()
            for name, row in table("causes/variables")[key].items()}


@functools.cache
def unread() -> dict[str, tuple[str, str]]:
    """Names that circulate and that nobody reads: what is so, and what to use instead."""
    return {name: (row["says"], row["instead"]) for name, row in table("causes/variables")["unread"].items()}


def family(name: str) -> Reader | None:
    """Whose family a name looks like, by its longest prefix."""
    fitting = [(len(p), r) for r in readers().values() for p in r.families if name.startswith(p)]
    return max(fitting, key=lambda f: f[0])[1] if fitting else None


@functools.cache
def nearest(name: str) -> str:
    """The known name that looks most like it, "" where none is near. Only a name of the same length, give or take two, counts as a slip."""
    alike = difflib.get_close_matches(name, [n for n in variables() if abs(len(n) - len(name)) <= 2], n=1, cutoff=0.85)
    return next(iter(alike), "")


def prefixes() -> tuple[str, ...]:
    """Prefixes of every family: with the names of the table they are what may be kept of an environment."""
    return tuple(sorted({*_MISSPELT, *(p for r in readers().values() for p in r.families)}))


def is_kept(name: str) -> bool:
    """Whether a variable of that name may be kept: one of the table, or of a family that it knows unless the name sounds secret."""
    return name in variables() or name.startswith(prefixes()) and not name.startswith("NCCL_RUNBOOK_") and not sounds_secret(name)


def may_be_shown(name: str, value: str) -> bool:
    """Whether a page may hold it: of a variable that the table knows, or a plain number or yes and no."""
    return is_kept(name) or bool(_PLAIN.fullmatch(value))


def version(text: str) -> tuple[int, ...]:
    """ "2.11.0+cu130" as (2, 11, 0)."""
    return tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3])


PACKAGE = Path(__file__).parents[1]


@functools.cache
def table(name: str) -> Mapping[str, Any]:
    """The table ``name``.toml, a path below the package, with arrays as tuples. Read-only at every level."""
    return _fixed(tomllib.loads((PACKAGE / f"{name}.toml").read_text(encoding="utf-8")))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _fixed(one) for key, one in value.items()})
    return tuple(map(_fixed, value)) if isinstance(value, list) else value


_PAIR = re.compile(r"\b(\w+)=(\S+)")
Rows = Sequence[tuple[str, str, Sequence[str]]]  # of a remedy: who, text, lines to copy


@dataclasses.dataclass(frozen=True)
class Advice:
    """What one message says of its cause, in place of what the cause says in general; empty parts leave that as it is.
    ``decides``: the cheapest evidence that settles it, (probe, why, line)."""

    says: str = ""
    remedy: Rows = ()
    decides: tuple[str, ...] = ()

    def filled(self, fields: Mapping[str, str | None]) -> Advice:
        """With what stands in the message in place of ``<name>``; it says nothing of what does not stand there."""
        def fill(text: str) -> str:
            return re.sub(r"<([a-z_]+)>", lambda found: fields.get(found[1]) or found[1].upper(), text)

        says = "" if any(not fields.get(name) for name in re.findall(r"<([a-z_]+)>", self.says)) else fill(self.says)
        return Advice(says,
                      tuple((who, fill(text), tuple(map(fill, lines))) for who, text, lines in self.remedy),
                      tuple(map(fill, self.decides)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause(Advice):
    """One row of causes.toml, with what it says in general. ``by_message``: status where nothing but a message names it;
    ``verify``: how the job shows that the remedy acts, or ""."""

    id: str
    title: str
    source: str
    signatures: tuple[str, ...] = ()
    by_message: str = "established"
    verify: str = ""


@functools.cache
def causes() -> dict[str, Cause]:
    """Every cause, in the order in which signatures are tried."""
    return {row["id"]: Cause(**{**row, **advice(row)}) for row in table("causes/causes")["cause"]}


def advice(row: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a table's row that are advice, as `Cause` and `Advice` take them."""
    decides = {"decides": tuple(row["decides"][part] for part in ("probe", "why", "line"))} if "decides" in row else {}
    return {"remedy": tuple((r["who"], r["text"], r["lines"]) for r in row.get("remedy", ())), **decides}


def fitting(cause_id: str, *lines: str) -> Cause:
    """The cause, with the advice for what the line which names it tells, the first one, or those beside it: a program's own exception
    needs no look at the kernel's log."""
    fit = (row for row in table("causes/causes")["said"] if row["id"] == cause_id
           and any(re.search(row["line"], line) for line in lines[:None if row.get("beside") else 1]))
    return dataclasses.replace(causes()[cause_id], **next(map(advice, fit), {}))


@functools.cache
def _patterns() -> list[tuple[Cause, re.Pattern[str]]]:
    return [(c, re.compile("|".join(f"(?:{s})" for s in c.signatures))) for c in causes().values() if c.signatures]


def recognise(lines: Iterable[str]) -> tuple[Cause, str] | None:
    """The first cause in table order whose message is among ``lines``, with that line; None where nothing is known."""
    text = list(lines)
    return next(((cause, line.strip()) for cause, pattern in _patterns() for line in text if pattern.search(line)), None)


def for_launcher(line: str, launcher: str) -> tuple[str, ...]:
    """The line as ``launcher`` takes it; unchanged where the table has no form for it and it sets nothing."""
    for form in (form for form in table("causes/launchers")["form"] if form["launcher"] == launcher):
        if found := re.fullmatch(form["of"], line):
            either = "|".join("".join(found.groups()[:1]).split())
            return tuple(wanted.format(*(group or "" for group in found.groups()), either=either) for wanted in form["lines"])
    pairs = _PAIR.findall(line) if line.startswith("export ") else []
    if not pairs or launcher not in table("causes/launchers")["export"]:
        return (line,)
    form, pair, between = table("causes/launchers")["export"][launcher]
    return tuple(form.format(between.join(pair.format(name=name, value=value) for name, value in pairs)).split("\n"))
