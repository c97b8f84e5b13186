"""Variables that NCCL, torch and the like read: their values, versions and readers."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable

from nccl_runbook.causes.tables import table
from nccl_runbook.core.secret_values import sounds_secret

# may be shown of a variable that is not in the table
_PLAIN = re.compile(r"\d{1,6}|true|false|yes|no|on|off", re.I)
_MISSPELT = ("NCLL_", "NCC_", "NCL_", "NNCL_", "TORCH_NCLL_", "TORCH_NCL_")  # prefixes, as they are slipped


@dataclasses.dataclass(frozen=True)
class Reader:
    """The program that reads a section's variables: a row [reader] of variables.toml. ``key``: its section;
    ``families``: prefixes of its names; ``is_complete``: the table holds every name it reads;
    ``version_of``: "nccl" or "torch" if since and until count that version."""

    key: str
    name: str
    source: str
    families: tuple[str, ...] = ()
    is_complete: bool = False
    version_of: str = ""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One row of variables.toml (its head explains the fields). ``renamed_to``: new name, ``renamed_in``:
    first version with it."""

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
        """Whether the reader accepts ``value``. An empty value, or one that the shell still has to expand,
        is accepted."""
        if value == "" or "$" in value:
            return True
        kind, _, rest = self.values.partition(":")
        if kind in ("int", "count"):
            return _in_range(value, rest)
        if kind in ("words", "list"):
            listed = [w.strip() for w in value.removeprefix("^").split(",")] if kind == "list" else [value]
            return all(w.casefold() in ("", *rest.casefold().split(",")) for w in listed)
        line = rest if kind == "re" else table("causes/variables")["form"].get(kind, {}).get("line", "(?s).*")
        return bool(re.fullmatch(line, value))

    def as_read(self, value: str) -> str:
        """The value as its reader takes it, in lower case. Of a number NCCL takes the leading digits, also in
        hexadecimal, and 0 without any: strtoll(text, NULL, 0) (NCCL_PARAM in its param.h, read)."""
        is_number = self.values.partition(":")[0] in ("bool", "int")
        if self.reader.key != "nccl" or not is_number or self.accepts(value):
            return value.casefold()
        digits = re.match(r"\s*([+-]?(?:0x[0-9a-f]+|\d+))", value, re.I)
        return str(int(digits[1], 16 if "x" in digits[1].lower() else 10)) if digits else "0"

    @property
    def values_in_words(self) -> str:
        """The allowed values, as in "a whole number from 0 to 5"."""
        kind, _, rest = self.values.partition(":")
        low, _, high = rest.partition("..")
        if kind == "int" and rest:
            return f"a whole number from {low} to {high}" if high else f"a whole number of at least {low}"
        if kind in ("words", "list") or (kind == "re" and re.fullmatch(r"\w+(\|\w+)+(\|\\d\+)?", rest)):
            listed = ", ".join(re.split("[,|]", rest)).replace(r"\d+", "a number")
            return f"{'some' if kind == 'list' else 'one'} of {listed}"
        return table("causes/variables")["form"].get(kind, {}).get("words", "another form")


def ignored_by_gloo(names: Iterable[str]) -> str:
    """Why ranks over Gloo show nothing about these variables; "" if none of them is one of NCCL."""
    of_nccl = ", ".join(name for name in names if name.startswith(("NCCL_", "TORCH_NCCL_")))
    return of_nccl and (
        f"This trial shows nothing about {of_nccl}, because the ranks ran on the CPU over Gloo, which "
        "reads no variable of NCCL"
    )


def _in_range(value: str, bounds: str) -> bool:
    if not re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)\s*", value):
        return False
    number = int(value, 0) if re.search("[xX]", value) else int(value)
    low, _, high = bounds.partition("..")
    return (not low or number >= int(low)) and (not high or number <= int(high))


@functools.cache
def readers() -> dict[str, Reader]:
    """Key -> the program that reads variables."""
    return {key: Reader(key, **row) for key, row in table("causes/variables")["reader"].items()}


@functools.cache
def variables() -> dict[str, Variable]:
    """Name -> variable."""
    return {
        name: Variable(name, reader, **row)
        for key, reader in readers().items()
        for name, row in table("causes/variables")[key].items()
    }


@functools.cache
def unread() -> dict[str, tuple[str, str]]:
    """Name that circulates but no program reads -> (explanation, replacement)."""
    return {name: (row["says"], row["instead"]) for name, row in table("causes/variables")["unread"].items()}


def family(name: str) -> Reader | None:
    """The reader whose family the name belongs to, by its longest prefix; None if none does."""
    return max(
        ((len(p), r) for r in readers().values() for p in r.families if name.startswith(p)),
        key=lambda fitting: fitting[0],
        default=(0, None),
    )[1]


@functools.cache
def nearest(name: str) -> str:
    """The most similar known name; empty if none is near. Only names whose length differs by at most two
    count as typing errors, and their beginning, middle or end must agree."""
    near = [
        n
        for n in variables()
        if abs(len(n) - len(name)) <= 2 and (n[:6] == name[:6] or name[6:11] in n or n[-3:] == name[-3:])
    ]
    return next(iter(difflib.get_close_matches(name, near, n=1, cutoff=0.85)), "")


@functools.cache
def prefixes() -> tuple[str, ...]:
    """Prefixes of every family: together with the names of the table they decide which variables are kept."""
    return tuple(sorted({*_MISSPELT, *(p for r in readers().values() for p in r.families)}))


def is_kept(name: str) -> bool:
    """Whether a variable of this name may be kept: it is in the table, or of a known family without a name
    that sounds secret."""
    return name in variables() or (
        name.startswith(prefixes()) and not name.startswith("NCCL_RUNBOOK_") and not sounds_secret(name)
    )


def may_be_shown(name: str, value: str) -> bool:
    """Whether a page may show the value: the variable is in the table, or the value is a plain number, yes
    or no."""
    return is_kept(name) or bool(_PLAIN.fullmatch(value))
