"""What a line must hold for an expression to match it, worked out from how Python parses the expression. It takes half a second for what a
short log is asked, so that test_docs.py writes it down ahead, as literals.json of knowledge."""
from __future__ import annotations

import functools
import itertools
import re
import re._constants as sre
import re._parser as parser
from collections.abc import Iterable
from typing import Any

from nccl_runbook.causes.toml import worked_out
from nccl_runbook.messages.clues import Matcher, alternatives

_NOTHING, _REPEATS = [""], (sre.MAX_REPEAT, sre.MIN_REPEAT)
_SPELLINGS = 16  # of one literal; where more are possible it ends
_LOWER = {number: [chr(number).lower()] for number in range(128)}
# words that logs are full of, so that they single no line out
_COMMON = re.compile(
    r"rank|node|gpu|error|fail|work|time|this|only|some|with|when|while|other|more|many|none|one|any|all|key|model|tensor|param|data|"
    r"process|host|index|read|check|cach|load|sav|slow|run|start|local|device|step|batch|loss|sys|map|dist|direct|weight|port|is|out|call|"
    r"onnect|connect(?:ion)?|fault|match|fine|works?|workers|version|refused|timeout|supported|backend|disabl|enabled|require|manager|"
    r"torch|n?ccl|c?uda|must|should|needs to|name|work|in|not|--|\d\.|.?")


def matcher_of(*expressions: str) -> Matcher:
    """A matcher of expressions that no table has."""
    worked_out("literals").update({e: branches(e) for e in expressions})
    return Matcher(expressions)


def branches(expression: str) -> list[list[frozenset[str]]]:
    """For each alternative: sets of literals, of each of which a matching line holds one, the rarest first."""
    return [sorted(_in_sequence(parser.parse(one)), key=_rare, reverse=True) for one in alternatives(expression)]


def _of_any(branches: Iterable[list[frozenset[str]]]) -> frozenset[str] | None:
    """The best set of each branch, together; None where one has none."""
    each = [max(found, key=_rare, default=None) for found in branches]
    return frozenset().union(*each) if each and None not in each else None


def _rare(literals: frozenset[str]) -> tuple[int, int, int]:
    """Without common words, and the shortest literal as long as can be."""
    return -sum(bool(_COMMON.fullmatch(n.strip())) for n in literals), min(map(len, literals)), -len(literals)


def _in_sequence(sequence: Iterable[Any]) -> list[frozenset[str]]:
    """Every set of literals that the elements need; without those that hold another one, as a line that holds them holds that."""
    found: list[frozenset[str] | None] = []
    runs = _NOTHING  # all that may stand here, up to this element
    for code, value in [*sequence, (None, None)]:
        letters = _spelled(code, value)
        longer = _longer(runs, letters)
        if not longer:
            found += [_literals(runs), _of_element(code, value)]
        runs = longer or letters or _NOTHING
    return [frozenset(n for n in of if not any(other in n for other in of - {n})) for of in found if of]


def _of_element(code: Any, value: Any) -> frozenset[str] | None:
    there = code is sre.SUBPATTERN or code in _REPEATS and value[0] > 0
    return _of_any(map(_in_sequence, value[1] if code is sre.BRANCH else value[-1:] if there else ()))


def _literals(runs: list[str]) -> frozenset[str] | None:
    """These as literals; None if one is a letter or two, which are in every line."""
    bare = frozenset(run.lstrip() for run in runs)  # a blank is everywhere, and no literal shall begin with one
    return bare if all(len(n) > 2 or len(n) == 2 and not n.isalpha() or n == "%" for n in bare) else None


def _longer(runs: list[str], more: list[str] | None) -> list[str] | None:
    """Each of these with each of those behind it; None where they are too many."""
    return None if more is None or len(runs) * len(more) > _SPELLINGS else [run + letters for run in runs for letters in more]


def _spelled(code: Any, value: Any) -> list[str] | None:
    """All texts that the element matches, in lower case; None where they are too many to name."""
    each: list[list[str] | None] = [None]
    if code is sre.LITERAL:
        return _LOWER.get(value)
    if code in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
        return _NOTHING
    if code is sre.IN:
        each = [_LOWER.get(letter) if kind is sre.LITERAL else None for kind, letter in value]
    elif code is sre.BRANCH or code is sre.SUBPATTERN:
        each = [_all_spelled(branch) for branch in (value[1] if code is sre.BRANCH else value[-1:])]
    elif code in _REPEATS and value[1] == 1:
        each = [_all_spelled(value[2]), *[_NOTHING] * (not value[0])]
    return None if None in each else list(dict.fromkeys(itertools.chain(*each)))


def _all_spelled(sequence: Iterable[Any]) -> list[str] | None:
    return functools.reduce(lambda runs, element: runs and _longer(runs, _spelled(*element)), sequence, _NOTHING)
