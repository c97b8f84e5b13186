"""All expressions as one hyperscan database: which of them a line may match, in one pass over the line.

Hyperscan reads bytes, and it reads expressions nearly as Python does. Each expression is widened for it, so
that it misses nothing that `re` matches.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.messages import cache, literals
from nccl_runbook.messages.literals import FOLDED, parsed

_ANY = "(?s:.)"
_MANY = "(?s:.*)"
# Beyond ASCII, one byte stands for each character: `readable` leaves the others out. `re` takes \x1c to
# \x1f for spaces.
_CLASSES = {r"\w": r"\w\x80-\xff", r"\d": r"\d\x80-\xff", r"\s": r"\s\x1c-\x1f\x80-\xff"}
_FURTHER_BYTES = bytes(range(0x80, 0xC0))
_CODED = re.compile(r"\\[xuUN0]|\\\d{3}")
_UNKNOWN = re.compile(r"\(\?(?:[ims-]*[aLux]|\()")
_KEPT_GROUP = re.compile(r"\(\?[ims-]+:")


def widened(expression: str) -> str:
    """An expression for hyperscan that matches wherever this one does, and maybe elsewhere.

    ValueError: the expression has flags or conditions that cannot be widened.
    """
    return _alternatives(parsed(expression))


def _alternatives(each: list[list[list[Any]]]) -> str:
    return "|".join("".join(_element(*element) for element in elements) for elements in each)


def _element(element: Any, quantifier: str) -> str:
    greedy = re.sub(r"(?<=.)[+?]$", "", quantifier).replace("{,", "{0,")
    if greedy in ("{0}", "{0,0}"):
        return ""
    if isinstance(element, str):
        return _token(element) + greedy
    opening, each = element
    if opening.startswith(("(?=", "(?!", "(?<=", "(?<!")):
        return "(?:)"
    _refuse_unknown(opening)
    return (opening if _KEPT_GROUP.match(opening) else "(?:") + _alternatives(each) + ")" + greedy


def _token(token: str) -> str:
    if token in ("^", "$") or token[0] == "\\" and token[1] in "AbBZz":
        return "(?:)"
    if token[0] == "[":
        return _class(token)
    if token[0] == "\\":
        if token[1].isdigit() and not _CODED.match(token):
            return _MANY  # what a group matched
        return _ANY if _CODED.match(token) else f"[{_CLASSES[token]}]" if token in _CLASSES else token
    if token.startswith("(?"):
        _refuse_unknown(token)
        return _MANY if token.startswith("(?P=") else "" if token.startswith("(?#") else token
    return re.sub("[^\x01-\x7f]", lambda _: _ANY, token)


def _class(token: str) -> str:
    """A class of characters, or any character if the class cannot be widened."""
    if not token.isascii() or "\0" in token or _CODED.search(token):
        return _ANY
    negative = token.startswith("[^")
    if negative and re.search(r"\\[WDS]", token):
        return _ANY
    wider = {"[": r"\["} if negative else {"[": r"\[", **_CLASSES}  # `[[:a:]]` would be a name
    return "[" + re.sub(r"\\.|\[", lambda m: wider.get(m[0], m[0]), token[1:])


def _refuse_unknown(token: str) -> None:
    if _UNKNOWN.match(token):
        raise ValueError(f"cannot be widened: {token}")


def readable(line: bytes) -> bytes | None:
    """The line as the database reads it: one byte for each character. None if it must not be asked.

    It must not if a letter beyond ASCII matches i, s or k when case is ignored.
    """
    if line.isascii():
        return line
    text = line.decode("utf-8", "replace").encode()
    if any(letter in text for letter, _ in FOLDED):
        return None
    return text.translate(None, _FURTHER_BYTES)


class Scanner:
    """A compiled database."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def numbers(self, line: bytes) -> list[int]:
        """The expressions, by their place in the list, that a line may match; in no order, each once."""
        found: list[int] = []
        self._database.scan(line, match_event_handler=_take, context=found)
        return found


def _take(number: int, start: int, end: int, flags: int, found: list[int]) -> None:
    found.append(number)


def stored(expressions: Sequence[str]) -> Scanner | None:
    """The database from the cache; None if it is missing there, or hyperscan is."""
    hyperscan = _hyperscan()
    content = cache.read(_name(expressions, hyperscan.__version__)) if hyperscan else None
    if content is None:
        return None
    try:
        database = hyperscan.loadb(content, hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
    except hyperscan.error:  # of another processor
        return None
    return Scanner(database)


def compiled(expressions: Sequence[str]) -> Scanner | None:
    """The database, compiled, and kept in the cache if possible. None without hyperscan, or if it refuses.

    Cost: 1.3 s for 630 expressions, 30 s for 1,480.
    """
    hyperscan = _hyperscan()
    if hyperscan is None:
        return None
    flags = hyperscan.HS_FLAG_PREFILTER | hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_ALLOWEMPTY
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        wide = [widened(expression).encode() for expression in expressions]
        count = len(wide)
        database.compile(expressions=wide, ids=range(count), elements=count, flags=[flags] * count)
    except (hyperscan.error, ValueError):
        return None
    cache.write(_name(expressions, hyperscan.__version__), hyperscan.dumpb(database))
    return Scanner(database)


def _hyperscan() -> Any:
    try:
        import hyperscan  # late: reading commands must start soon
    except (ImportError, OSError):  # no wheel for this machine, or one that its processor cannot run
        return None
    return hyperscan


def _name(expressions: Sequence[str], version: str) -> str:
    """The name in the cache: another one for other expressions, hyperscan, processor, or way of widening."""
    try:
        with open("/proc/cpuinfo") as file:
            features = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = ""
    key = hashlib.sha256("\0".join([*expressions, version, platform.machine(), features]).encode())
    for source in (__file__, literals.__file__):
        key.update(Path(source).read_bytes())
    return key.hexdigest()[:32]
