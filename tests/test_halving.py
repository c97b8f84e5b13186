"""Halving a set of differences to the few that carry an effect."""
from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from nccl_runbook.search.halving import halve


def needs(*guilty):
    return lambda subset: set(guilty) <= set(subset)


@pytest.mark.parametrize("n", range(1, 33))
def test_every_single_factor_is_found_within_two_logarithms(n):
    for guilty in range(n):
        found = halve(range(n), needs(guilty))
        assert found.why_not == "" and found.guilty == (guilty,)
        assert found.asked <= 2 * math.ceil(math.log2(n)) + 1 if n > 1 else found.asked == 0


def test_one_among_twelve_takes_at_most_ten():
    assert max(halve(range(12), needs(g)).asked for g in range(12)) <= 9


def test_every_pair_among_twelve_is_found():
    for a in range(12):
        for b in range(a + 1, 12):
            found = halve(range(12), needs(a, b))
            assert (found.guilty, found.why_not) == ((a, b), "") and found.asked <= 20


@given(st.sets(st.integers(0, 15), min_size=1))
def test_any_set_that_is_needed_together_is_found(guilty):
    found = halve(range(16), needs(*guilty), most=200)
    assert found.guilty == tuple(sorted(guilty)) and found.why_not == ""


def test_one_of_two_that_each_do_it_is_named_and_called_confounded():
    found = halve("abcdef", lambda s: "b" in s or "e" in s)
    assert found.guilty == ("b",) and found.why_not == "confounded"


def test_an_effect_that_the_others_show_too_is_confounded():
    found = halve("abcd", lambda s: len(s) % 2 == 0)
    assert (found.guilty, found.why_not) == (("a", "b"), "confounded")


def test_an_effect_that_needs_all_of_them_names_all():
    found = halve("abcd", lambda s: False)
    assert found.guilty == ("a", "b", "c", "d") and found.why_not == ""


def test_a_spent_budget_leaves_the_smallest_set_that_was_seen_to_do_it():
    found = halve(range(64), needs(5), most=3)
    assert found.why_not == "budget spent" and 5 in found.guilty and len(found.guilty) < 64 and found.asked == 3


def test_an_answer_that_cannot_be_given_ends_the_walk():
    found = halve("abcd", lambda s: None)
    assert (found.why_not, found.guilty, found.asked) == ("unclear", ("a", "b", "c", "d"), 1)


def test_no_subset_is_asked_for_twice():
    seen = []
    halve(range(24), lambda s: seen.append(s) or {3, 17} <= set(s))
    assert len(seen) == len(set(seen))
