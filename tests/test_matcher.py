"""What the matcher finds is what `re` finds, with hyperscan and without; and nothing is taken from a cache that others can write to."""
from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_runbook.evidence import log_events, log_templates
from nccl_runbook.knowledge.clues import clues, printed, spoken
from nccl_runbook.messages.literals import alternatives
from nccl_runbook.messages.matcher import Matcher, pieces
from triage_samples import SAMPLES

BESIDE = [e for clue in clues() for e in (*clue.also, *clue.without)]
CATALOGUE = dict.fromkeys([*printed(), *spoken(), *log_events.HINTS, log_templates.ODD.pattern, *log_events.LAUNCHERS, *BESIDE])
# what the catalogue has none of
SPELLINGS = [
    r"", r"^$", r"a|", r"(?i)kiss", r"(?i)[^i]k", r"(?i:i)[^i]", r"\bé\w{,3}\b", r"[^\W\d]x", r"[\S]\x1f", r"\s\s", r"[é-ü]+z", r"\u00e9$",
    r"(a)\1b", r"(?P<n>.)(?P=n)c", r"(?<!a)bc(?!d)", r"(?<=é)q", r"a{,2}b++", r"(?>ab|a)c", r"\x00\0", "\0z", r"[\0]y", r"(?#no)w\.", "ſ", "(?i)K",
    r"(?s).\Z", r"\A\d", r"(?m)^\)$", r"[]x]]", r"[^]x]", r"a{b", r"ab{,}c", r"(?i)(?:fs|[Kk]elvin)?m", r"\N{LATIN SMALL LETTER E WITH ACUTE}", r"x*",
]
EXPRESSIONS = {str(number): e for number, e in enumerate([*CATALOGUE, *SPELLINGS])}
PATTERNS = {number: re.compile(e) for number, e in EXPRESSIONS.items()}
LINES = [line for _, log, context, miss in SAMPLES for line in (log + miss + context).splitlines()]
LITERALS = sorted({n.decode() for e in EXPRESSIONS.values() for needs in alternatives(e) for literals in needs for n in literals})
ODD = ["İ", "ı", "ſ", "\u212a", "é", "ü", "…", "█", "\0", "\x1c", "\x1f", "\x85", "\xa0", "\u2028", "\x1b[31m", "\r", " ", "٣", "ß", "名"]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A matcher with hyperscan, and one without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        fast = Matcher(EXPRESSIONS)
        assert fast.build()
        assert fast.may_match([b""]) and fast._scanner
        patch.setitem(__import__("sys").modules, "hyperscan", None)
        plain = Matcher(EXPRESSIONS)
        plain.may_match([b""])
        assert plain._scanner is None
    return fast, plain


def naive(line: bytes) -> tuple[str, ...]:
    texts = pieces(line.decode("utf-8", "replace"))
    return tuple(id for id, pattern in PATTERNS.items() if any(map(pattern.search, texts)))


def test_every_sample_is_matched_as_re_matches_it(both):
    lines = [line.encode() for line in LINES]
    expected = {at: ids for at, line in enumerate(lines) if (ids := naive(line))}
    for matcher in both:
        assert matcher.matches(lines) == expected


PIECES = st.one_of(st.sampled_from(LINES), st.sampled_from(LITERALS), st.sampled_from(LITERALS).map(str.upper), st.sampled_from(ODD), st.text(max_size=8))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.lists(PIECES, max_size=6), st.binary(max_size=3), st.integers(0, 200)), max_size=4))
def test_random_lines_are_matched_as_re_matches_them(both, parts):
    lines = [(text := "".join(of).replace("\n", " ").encode("utf-8", "replace"))[:at] + raw.replace(b"\n", b"") + text[at:] for of, raw, at in parts]
    expected = {at: ids for at, line in enumerate(lines) if (ids := naive(line))}
    for matcher in both:
        assert matcher.matches(lines) == expected
