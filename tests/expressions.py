"""Every regular expression of the package, how it is asked, and texts made from its own parts to be slow for it."""
from __future__ import annotations

import ast
import collections
import importlib
import pkgutil
import re
import signal
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from re import _constants as code, _parser as parser
from typing import Any

import nccl_runbook

LIB = Path(nccl_runbook.__file__).parents[1]
ASKS = {"search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
REPEATS = (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT)
MANY = 9  # a repeat of fewer is no reason for growth
USUAL = "a0 _-./:=,\"'\\\n\t[({<$#%A"
CLASSES = {code.CATEGORY_DIGIT: r"\d", code.CATEGORY_NOT_DIGIT: r"\D", code.CATEGORY_SPACE: r"\s", code.CATEGORY_NOT_SPACE: r"\S",
           code.CATEGORY_WORD: r"\w", code.CATEGORY_NOT_WORD: r"\W"}
LOOKS_LIKE_ONE = re.compile(r"\\[dbwsDBWS]|\(\?|\[\^|[.\])][*+]|\{\d*,\d+\}")


def modules() -> Iterator[tuple[str, Any]]:
    """Those that do something when they are imported are files of the node, and hold no foreign text."""
    for found in pkgutil.walk_packages(nccl_runbook.__path__, "nccl_runbook."):
        if not re.search(r"\.(?:__main__|ranks\..*|launch\.(?:warm|supervised)|machine\.nvml_child)$", found.name):
            yield found.name.partition(".")[2], importlib.import_module(found.name)


def patterns_in(value: Any) -> Iterator[re.Pattern]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        for one in value:
            yield from patterns_in(one)
    elif isinstance(value, dict):
        yield from patterns_in([*value, *value.values()])


def asked() -> dict[str, set[str]]:
    """Name of a constant -> how the package asks it."""
    found = collections.defaultdict(set)
    for path in LIB.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ASKS:
                name = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
                if isinstance(node.value, ast.Subscript) and isinstance(node.value.slice, ast.Constant):  # a row of a table
                    name = f"{ast.unparse(node.value.value)}.{node.value.slice.value}"
                found[name].add("search" if node.attr not in ("match", "fullmatch") else node.attr)
    return found


# tables of expressions that the package compiles at their first use -> what of them is one
DEFERRED = {"core.secret_values.WHOLE": lambda rows: [form for _, form in rows.values()],
            "core.secret_values.BEFORE_VALUE": lambda rows: [form for _, _, form in rows],
            "core.share._FORMS": lambda rows: [form for _, _, form in rows]}


def compiled() -> dict[tuple[str, re.Pattern], set[str]]:
    """(module and name, pattern) -> how it is asked: constants of modules, and what a function writes out."""
    found, ways = collections.defaultdict(set), asked()
    for module, loaded in modules():
        rows = {f"FORMS.{row}": form for row, form in vars(loaded).get("FORMS", {}).items()}
        for name, value in {**{name: value for name, value in vars(loaded).items() if name != "FORMS"}, **rows}.items():
            for pattern in patterns_in([re.compile(one) for one in DEFERRED.get(f"{module}.{name}", lambda _: ())(value)] or value):
                found[f"{module}.{name}", pattern] |= ways.get(name) if isinstance(value, re.Pattern) and name in ways else {"search"}
    for path in LIB.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) \
                    and node.func.value.id == "re" and node.func.attr in ASKS and isinstance(node.args[0], ast.Constant):
                flags = sum(getattr(re, a.attr) for a in [*node.args[1:], *(k.value for k in node.keywords)]
                            if isinstance(a, ast.Attribute) and isinstance(a.value, ast.Name) and a.value.id == "re")
                way = node.func.attr if node.func.attr in ("match", "fullmatch") else "search"
                found[
                    f"{path.relative_to(LIB)}:{node.args[0].value}".removeprefix("nccl_runbook/"), re.compile(node.args[0].value, flags)
                ].add(way)
    unique: dict[re.Pattern, str] = {}
    return {(unique.setdefault(pattern, name), pattern): ways for (name, pattern), ways in found.items()}


def strings(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in ("fires", "quiet"):
                yield from strings(one, f"{at}/{value['id'] if isinstance(value, dict) and 'id' in value else ''}.{key}")


def of_tables() -> Iterator[tuple[str, re.Pattern]]:
    """What a TOML table holds that can be nothing but an expression; those of the catalogue come spelt out from ``messages``."""
    for path in LIB.rglob("*.toml"):
        for at, text in (
            strings(tomllib.loads(path.read_text()), path.stem) if "catalogue" not in path.parts and "core" not in path.parts else ()
        ):
            if LOOKS_LIKE_ONE.search(text) and not at.endswith("/.path"):  # a path of facts has stars, too
                try:
                    yield at, re.compile(text)
                except re.error:
                    continue


def accepts(item: tuple[Any, Any]) -> Any:
    """A test for one character, None for what is no single character."""
    kind, value = item
    if kind in (code.LITERAL, code.NOT_LITERAL):
        return lambda one: (one == chr(value)) is (kind is code.LITERAL)
    if kind is code.ANY:
        return lambda one: one != "\n"
    if kind is not code.IN:
        return None
    tests = [accepts(part) if part[0] is code.LITERAL else _range(part) for part in value if part[0] is not code.NEGATE]
    return lambda one: any(test(one) for test in tests) is (value[0][0] is not code.NEGATE)


def _range(part: tuple[Any, Any]) -> Any:
    return (
        (lambda one: part[1][0] <= ord(one) <= part[1][1]) if part[0] is code.RANGE else (lambda one: bool(re.match(CLASSES[part[1]], one)))
    )


def inner(kind: Any, value: Any) -> list[Any]:
    if kind in REPEATS:
        return [value[2]]
    if kind is code.SUBPATTERN:
        return [value[3]]
    if kind is code.BRANCH:
        return value[1]
    if kind in (code.ASSERT, code.ASSERT_NOT):
        return [value[1]]
    if kind is code.GROUPREF_EXISTS:
        return [one for one in value[1:] if one]
    return [value] if kind is code.ATOMIC_GROUP else []


class Families:
    """(what comes first, what is repeated) for every repeated part of an expression, and for what leads to it."""

    def __init__(self, pattern: re.Pattern) -> None:
        text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        tree = parser.parse(text, pattern.flags & ~(0 if isinstance(pattern.pattern, str) else re.UNICODE))
        self.pool = list(dict.fromkeys([*USUAL[:5], *self._letters(tree), *USUAL]))
        self.accepted: dict[str, str] = {}  # what stands for one character -> the first character that it accepts
        self.found: dict[tuple[str, str], None] = {}
        self._walk(tree, "")

    def _letters(self, tree: Any) -> Iterator[str]:
        for kind, value in tree:
            yield from [chr(value)] if kind is code.LITERAL else [chr(v) for k, v in value if k is code.LITERAL] if kind is code.IN else []
            for part in inner(kind, value):
                yield from self._letters(part)

    def _sample(self, tree: Any, groups: dict[int, str]) -> str:
        """A text that matches, as far as looking around does not matter."""
        text = ""
        for item in tree:
            text += self._next(item, text, groups)
        return text

    def _next(self, item: tuple[Any, Any], text: str, groups: dict[int, str]) -> str:
        """What this item matches after that text."""
        kind, value = item
        if test := accepts(item):
            key = repr(item)
            if key not in self.accepted:
                self.accepted[key] = next(filter(test, [*self.pool, *map(chr, range(1, 0x500))]), "")
            return self.accepted[key]
        if kind in REPEATS:
            return self._sample(value[2], groups) * min(max(value[0], 1), 50)
        if kind is code.GROUPREF:
            return groups.get(value, "")
        if kind is code.ASSERT_NOT or (kind is code.ASSERT and (value[0] > 0 or text)):
            return ""
        part = self._sample(next(iter(inner(kind, value)), []), groups)
        if kind is code.SUBPATTERN:
            groups[value[0]] = part
        return part

    def _walk(self, tree: Any, lead: str) -> None:
        text, groups = "", {}
        for kind, value in tree:
            here = lead + text
            self.found["", here] = None
            if kind in REPEATS and (value[1] is code.MAXREPEAT or value[1] >= MANY):
                test = accepts(value[2][0]) if len(value[2]) == 1 else None
                for piece in list(filter(test, self.pool))[:12] if test else [self._sample(value[2], {})]:
                    self.found |= {(here, piece): None, ("", here + piece * max(value[0], 1)): None}
            for part in inner(kind, value):
                self._walk(part, here)
            text += self._next((kind, value), text, groups)
        whole = lead + text
        self.found |= {("", whole): None, ("", whole[:-1]): None}

    def texts(self, size: int) -> Iterator[str]:
        return (lead + piece * (size // len(piece) + 1) + "\x01\n" for lead, piece in self.found if piece)


class Slow(BaseException):
    """It took longer than anybody waits."""


def _stop(*_: Any) -> None:
    raise Slow


def took(pattern: re.Pattern, way: str, text: str, limit_s: float) -> float:
    """Seconds of computing; infinite above the limit: `re` looks for signals while it matches."""
    given = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
    before = signal.signal(signal.SIGVTALRM, _stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        began = time.thread_time()
        collections.deque(pattern.finditer(given), maxlen=0) if way == "search" else getattr(pattern, way)(given)
        return time.thread_time() - began
    except Slow:
        return float("inf")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
