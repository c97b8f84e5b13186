"""No regular expression of the package is slow on a text that is made for it from its own parts: constants, what functions write out, and
the rows of tables. Known exceptions are listed by name, with the longest text that they ever see."""
from __future__ import annotations

import re

import expressions
import pytest
from nccl_runbook.logs.text import LINE_CHARACTERS
from nccl_runbook.messages import clues
from nccl_runbook.messages.lines import OWN as _OWN

SMALL, LARGE, TIMES = 1000, 8000, 24  # linear: 8 times as long, quadratic: 64 times
AT_ONCE_S = 0.020
FAMILIES = 12  # tried of one expression, spread over all that its parts give
# constant -> longest text, and why no longer one comes
BOUNDED = {
    "core.redact.FORMS.sure": (80, "the end of a name"),
    "core.redact.FORMS.secret_name": (80, "the end of a name"),
    "core.redact.FORMS.gap_name": (80, "the end of a name"),
    "hang.live.judge_hosts._ELSEWHERE": (300, "an address and its port, asked with match"),
    "against.read._TIMES": (LINE_CHARACTERS, "a piece of a line"),
    "messages.read_ranks._GROUP": (LINE_CHARACTERS, "a line"),
}
# rows of tables that are asked of something else than the lines of a log -> how
ASKED = {"variables/.form": "fullmatch", "choice/.own/.sync": "match"}


@pytest.fixture(scope="module")
def constants() -> list[tuple[tuple[str, re.Pattern], set[str]]]:
    return sorted(expressions.compiled().items(), key=lambda item: item[0][0])


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    catalogue = clues.catalogue()
    return {
        **catalogue["printed"],
        **catalogue["spoken"],
        **catalogue["beside"],
        **_OWN,
        **{at: p.pattern for at, p in expressions.of_tables()},
    }


def texts(pattern: re.Pattern, size: int) -> list[str]:
    found = list(expressions.Families(pattern).texts(size))
    return found[:: max(1, len(found) // FAMILIES)]


def took(pattern: re.Pattern, way: str, text: str) -> float:
    return expressions.took(pattern, way, text, 10 * AT_ONCE_S)


def grows(pattern: re.Pattern, way: str, large: int = LARGE) -> str:
    """The text for which it does so faster than that, shortened; in each of four tries, as on a busy machine one alone says little."""
    for text in texts(pattern, large):
        tries = ((took(pattern, way, text), TIMES * took(pattern, way, text[:SMALL])) for _ in range(4))
        if all(slow > AT_ONCE_S and slow > min(linear, 10 * AT_ONCE_S) for slow, linear in tries):
            return f"{text[:60]!r}"
    return ""


def late(pattern: re.Pattern, way: str, bound: int) -> str:
    for text in texts(pattern, bound):
        if all(took(pattern, way, text[:bound]) > AT_ONCE_S for _ in range(4)):
            return f"{text[:60]!r}"
    return ""


@pytest.mark.parametrize("part", range(4))
def test_constants_grow_with_the_text_and_not_with_its_square(constants: list[tuple[tuple[str, re.Pattern], set[str]]], part: int) -> None:
    assert len(constants) > 300
    slow = {(name, way): late(pattern, way, BOUNDED[name][0]) if name in BOUNDED else grows(pattern, way)
            for (name, pattern), ways in constants[part::4] for way in ways}
    assert {key: text for key, text in slow.items() if text} == {}


@pytest.mark.parametrize("part", range(4))
def test_rows_of_tables_are_quick_on_the_longest_line_or_grow_with_it(rows: dict[str, str], part: int) -> None:
    assert len(rows) > 1200
    slow = {}
    for name, expression in sorted(rows.items())[part::4]:
        pattern, way = re.compile(expression), next((w for start, w in ASKED.items() if name.startswith(start)), "search")
        if text := late(pattern, way, LINE_CHARACTERS):
            slow[name] = grows(pattern, way) and text
    assert {name: text for name, text in slow.items() if text} == {}


def test_lists_name_what_is_there(constants: list[tuple[tuple[str, re.Pattern], set[str]]], rows: dict[str, str]) -> None:
    assert all(any(name.startswith(start) for name in rows) for start in ASKED) and BOUNDED.keys() <= {name for (name, _), _ in constants}


@pytest.mark.parametrize(
    "expression",
    [
        r"(\w+)=",
        r"-eyJ[\w-]{10,}\.",
        r"\s+$",
        r"(?:a|b|ab)*c",
        r"a.*b.*c",
        r"x*y*z",
        r"(\d+)+x",
        r"\[.*\]",
        r"(?i)error[^;]*fatal",
        r"[ab]+[bc]+d",
    ],
)
def test_a_slow_expression_is_seen(expression: str) -> None:
    """On a fast machine the simplest ones take less than AT_ONCE_S for LARGE characters."""
    assert grows(re.compile(expression), "search", 2 * LARGE)
