"""The matcher leaves out nothing that `re` finds, with hyperscan and without; what is kept in the cache is ours alone."""
from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.messages import cache, clues, matcher
from nccl_runbook.messages.clues import catalogue
from nccl_runbook.messages.lines import LAUNCHERS, OWN as _OWN
from nccl_runbook.messages.matcher import FOLDED, Matcher, alternatives
from triage_samples import SAMPLES

LIB = Path(__file__).resolve().parents[1] / "lib"
PRINTED = dict.fromkeys([*catalogue()["printed"].values(), *_OWN.values(), *LAUNCHERS.values()])
# forms of expressions that the catalogue has not, or has not now
FORMS = [
    r"",
    r"^$",
    r"a|",
    r"x*",
    r"(?i)kiss",
    r"(?i)[^i]k",
    r"(?i:i)[^i]",
    r"(?i)[a-k]Z",
    "ſ",
    "(?i)K",
    r"(?i)(?:fs|[Kk]elvin)?m",
    r"\bé\w{,3}\b",
    r"[é-ü]+z",
    r"\u00e9$",
    r"(?<=é)q",
    r"\N{LATIN SMALL LETTER E WITH ACUTE}",
    r"[^é]b",
    r"[^\W\d]x",
    r"[\S]\x1f",
    r"\s\s",
    r"(a)\1b",
    r"(?P<n>.)(?P=n)c",
    r"(?:(?<=st)ep|(?<=\d/)\d|(?<=a|b)cd)x?\d",
    r"(?<=a)?ce",
    r"b(?=c)\w",
    r"(?:(?:a|b)|c)(?:d|)e",
    r"(?<!a)bc(?!d)",
    r"a{,2}b++",
    r"(?>ab|a)c",
    r"ab{,}c",
    r"a{b",
    r"(?#no)w\.",
    r"(?#a|b)w,",
    r"[]x]]",
    r"[^]x]",
    r"\x00\0",
    "\0z",
    "[\0]y",
    r"(?s).\Z",
    r"\A\d",
    r"(?m)^\)$",
    r"(ab)?c(?:d|)e",
    r"(?:ab|c)*d",
    r"(?:ab){0}e",
    r"(?:ab){2}",
    r"a+b\.c?d",
    r"\d{3}\.\d",
]
EXPRESSIONS = {str(number): e for number, e in enumerate([*PRINTED, *FORMS])}
PATTERNS = {number: re.compile(e) for number, e in EXPRESSIONS.items()}
LINES = [line for _, log, context, miss in SAMPLES for line in (log + miss + context).splitlines()]
LITERALS = sorted({literal.decode() for e in EXPRESSIONS.values() for needs in alternatives(e) for of in needs for literal in of})
ODD = ["İ", "ı", "ſ", "\u212a", "é", "ü", "…", "█", "\0", "\x1c", "\x1f", "\x85", "\xa0", "\u2028",
       "\x1b[31m", "\r", " ", "٣", "ß", "名"]
FEW = {"oom": r"(?i)out of memory", "wait": r"[Tt]imed? ?out"}


@pytest.fixture(scope="module")
def both():
    """A matcher that uses hyperscan, and one that does not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matcher, "HYPERSCAN_FROM", 1)
        fast = Matcher(EXPRESSIONS)
        fast.may_match([b"x"])
        patch.setattr(matcher, "HYPERSCAN_FROM", 10**12)
        plain = Matcher(EXPRESSIONS)
        plain.may_match([b"x"])
        assert fast._database and not plain._database
        yield fast, plain


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nccl-runbook"


def naive(text: str) -> set[str]:
    return {id for id, pattern in PATTERNS.items() if pattern.search(text)}


def test_no_line_of_the_samples_is_missed_and_few_are_searched_in_vain(both):
    lines = LINES[::3]
    matching = [naive(line) for line in lines]
    for each in both:
        found = each.may_match([line.encode() for line in lines])
        assert all(ids <= set(found.get(at, ())) for at, ids in enumerate(matching))
        assert all(sorted(ids, key=int) == list(ids) for ids in found.values())
        catalogue = sum(int(id) < len(PRINTED) for ids in found.values() for id in ids)
        assert catalogue < 4 * sum(int(id) < len(PRINTED) for ids in matching for id in ids)


PIECES = st.one_of(
    st.sampled_from(LINES), st.sampled_from(LITERALS), st.sampled_from(LITERALS).map(str.upper), st.sampled_from(ODD), st.text(max_size=8)
)


@settings(max_examples=80, deadline=None)
@given(parts=st.lists(PIECES, max_size=6), raw=st.binary(max_size=3), at=st.integers(0, 200), cut=st.integers(0, 40))
def test_no_random_line_is_missed_nor_a_part_of_one(both, parts, raw, at, cut):
    text = "".join(parts).encode("utf-8", "replace")
    line = text[:at] + raw + text[at:]
    seen = line.decode("utf-8", "replace")
    for each in both:
        found = set(each.may_match([b"", line]).get(1, ()))
        assert naive(seen) <= found
        assert naive(seen[cut:]) | naive(seen[:cut]) <= found


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_found_in_what_it_matches(both, form):
    lines = [
        "",
        "a",
        "aab",
        "aac",
        "bcx",
        "éabc z",
        "ézé",
        "éq",
        "ſ",
        "K",
        "İ x",
        "iK",
        "ııs",
        "\u212aISſ",
        "Zk",
        "aZ",
        "e",
        "ce",
        "abcde",
        "cd",
        "dabab",
    ]
    lines += [
        "w.",
        "w,",
        "x]",
        "]]",
        "a{b",
        "\0\0",
        "\0z",
        "\0y",
        "3",
        "5.",
        ")",
        "abb",
        "abc",
        "ac",
        "a\x1f",
        "\x1c\xa0",
        "aa.cd",
        "aab.d",
        "123.4",
        "m",
        "fsm",
        ":q",
        "[q",
        "zq",
        "step3",
        "1/23",
        "acd7",
    ]
    assert any(map(re.compile(form).search, lines))
    for each in both:
        found = each.may_match([line.encode() for line in lines])
        for at, line in enumerate(lines):
            assert naive(line) <= set(found.get(at, ()))


def test_four_letters_beyond_ascii_match_one_of_ascii_when_case_is_ignored():
    beyond = "".join(map(chr, range(0x80, sys.maxunicode + 1)))
    assert sorted(re.findall(r"(?i)[\0-\x7f]", beyond)) == sorted(letter.decode() for letter, _ in FOLDED)
    for letter, plain in FOLDED:
        assert re.fullmatch(plain.decode(), letter.decode(), re.IGNORECASE)


@pytest.mark.parametrize("unit", [b"9", b"a", b"connection timed out ", "é█".encode(), b"NCCL WARN [", b" \t", b"\xff\x00"])
def test_the_time_for_a_line_grows_no_faster_than_its_length(both, unit):
    for each in both:
        times = []
        for length in (200_000, 1_600_000):
            line = unit * (length // len(unit))
            began = time.process_time()
            each.may_match([line])
            times.append(time.process_time() - began + 0.01)
        assert times[1] < 24 * times[0]


def test_a_short_log_is_answered_without_hyperscan_and_a_long_one_with_it(monkeypatch):
    monkeypatch.setattr(matcher, "HYPERSCAN_FROM", 1000)
    each = Matcher(FEW)
    assert each.may_match([b"out of memory", b""]) == {0: ("oom",)} and each._database is None
    assert each.may_match([b"timeout" + b"." * 1000]) == {0: ("wait",)} and each._database
    assert Matcher({}).may_match([b"." * 1001]) == {}


@pytest.mark.parametrize("there", [True, False])
def test_hyperscan_is_imported_when_it_is_needed_and_need_not_be_there(there):
    code = (
        f"import sys; sys.path.insert(0, {str(LIB)!r})\nfrom nccl_runbook.messages.matcher import Matcher\nprint('hyperscan' in"
        f" sys.modules)\n{'' if there else 'sys.modules.update(hyperscan=None)'}\nm = Matcher({FEW!r})\nprint(m.may_match([b'timeout', b'.'"
        " * 200_000]), bool(m._database))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert told.split("\n")[:2] == ["False", f"{{0: ('wait',)}} {there}"]


class TestCache:
    def test_what_was_written_is_read_and_is_private(self, folder):
        assert cache.read("a") is None
        cache.write("a", "one")
        cache.write("a", "two")
        assert cache.read("a") == b"two" and cache.read("b") is None
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]

    @pytest.mark.parametrize("damage", [
        lambda f: f.chmod(0o660), lambda f: f.chmod(0o602), lambda f: (f.rename(f.parent / "other"), f.symlink_to(f.parent / "other")),
        lambda f: (f.unlink(), os.mkfifo(f, 0o600)), lambda f: (f.unlink(), f.mkdir(0o700))])
    def test_nothing_open_to_others_is_read(self, folder, damage):
        cache.write("a", "one")
        assert cache.read("a") == b"one"
        damage(folder / f"{cache.PREFIX}a")
        assert cache.read("a") is None

    def test_nothing_of_another_user_is_read(self, folder, monkeypatch):
        cache.write("a", "one")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert cache.read("a") is None

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
    def test_a_catalogue_that_was_cut_off_is_worked_out_again(self, folder, content):
        whole = clues.catalogue.__wrapped__()
        [file] = folder.iterdir()
        kept = file.read_bytes()
        file.write_bytes(content)
        again = clues.catalogue.__wrapped__()
        assert again["printed"] == whole["printed"] and file.read_bytes() == kept
        assert clues.catalogue.__wrapped__() == json.loads(kept)

    @pytest.mark.parametrize("home", ["/proc/nowhere", "relative", ""])
    def test_it_works_without_a_folder(self, monkeypatch, home):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        monkeypatch.setenv("HOME", "/proc/nowhere")
        assert clues.catalogue.__wrapped__()["printed"] == clues.catalogue()["printed"]

    def test_an_old_catalogue_goes_and_other_files_stay(self, folder):
        cache.write("0", "")
        (folder / "notes").touch()
        cache.write("1", "")
        assert {file.name for file in folder.iterdir()} == {"notes", f"{cache.PREFIX}1"}

    def test_several_processes_at_once(self, folder):
        with ProcessPoolExecutor(3) as pool:
            assert {*pool.map(_written_and_read, range(120))} <= {0, 300_000}


def _written_and_read(number: int) -> int:
    cache.write("a", chr(number) * 300_000)
    return len(cache.read("a") or b"")
