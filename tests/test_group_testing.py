"""A simulator with planted faults: the walk names each exactly, within the runs that it promises."""
from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.search import group_testing as g, outcomes as g_outcomes
from nccl_runbook.search.group_testing import replay, wilson


def fails(gpus=(), pairs=(), sides=(), above=10**6):
    """A world of these GPUs: whether it fails by the faults planted."""
    def world(group):
        here = set(group)
        crossed = bool(sides) and all(here & set(side) for side in sides)
        return (bool(here & set(gpus)) and len(here) > 1) or any(set(p) <= here for p in pairs) or crossed or len(here) > above
    return world


def run(n, world, chance=None, p=1.0, repeats=20):
    """(diagnosis, runs, rounds, what was recorded)."""
    recorded = []

    def answer(asked):
        assert len({x for group in asked for x in group}) == sum(map(len, asked)), "groups of a round share a GPU"
        recorded.append({group: not (world(group) and (p == 1.0 or chance.random() < p)) for group in asked})
        return recorded[-1]

    diagnosis = g.identify(range(n), answer, repeats)
    return diagnosis, sum(map(len, recorded)), len(recorded), recorded


def check(n, told_of, **fault):
    diagnosis, runs, _, recorded = run(n, fails(**fault))
    assert told_of(diagnosis), (n, fault, diagnosis)
    assert runs <= g_outcomes.most_runs(n) - g_outcomes.REPEATS, (n, fault, runs)
    assert replay(range(n), recorded) == diagnosis
    return runs


SIZES = [2, 3, 4, 5, 6, 7, 8, 12, 16, 31, 64]


@pytest.mark.parametrize("n", SIZES)
def test_one_gpu_that_fails_with_every_partner(n):
    for bad in range(n):
        if n == 2:  # two GPUs that fail together: nobody can tell which
            check(n, lambda d: (d.kind, d.pairs) == ("pairs", ((0, 1),)), gpus=[bad])
        else:
            check(n, lambda d, bad=bad: (d.kind, d.gpus, d.pairs) == ("gpus", (bad,), ()), gpus=[bad])


@pytest.mark.parametrize("n", SIZES)
def test_one_gpu_that_fails_alone_too(n):
    for bad in range(min(n, 12)):
        diagnosis, runs, _, _ = run(n, lambda group, bad=bad: bad in group)
        assert (diagnosis.kind, diagnosis.gpus) == ("gpus", (bad,)) and runs <= g_outcomes.most_runs(n)


@pytest.mark.parametrize("n", SIZES)
def test_one_pair(n):
    pairs = list(itertools.combinations(range(n), 2))
    for pair in random.Random(n).sample(pairs, min(len(pairs), 60)):
        if n > 3 or n == 2:
            check(n, lambda d, pair=pair: (d.kind, d.pairs) == ("pairs", (pair,)), pairs=[pair])


@pytest.mark.parametrize("n", [n for n in SIZES if n >= 4])
def test_two_pairs_with_and_without_a_gpu_in_common(n):
    both = list(itertools.combinations(itertools.combinations(range(n), 2), 2)) if n <= 6 else None
    chance = random.Random(n)
    every = both or [tuple(sorted(chance.sample(list(itertools.combinations(range(n), 2)), 2))) for _ in range(60)]
    for pairs in every:
        check(n, lambda d, pairs=pairs: (d.kind, d.pairs) == ("pairs", tuple(sorted(pairs))), pairs=pairs)


@pytest.mark.parametrize("n", [n for n in SIZES if n >= 4])
def test_a_split_into_two_sets(n):
    chance = random.Random(n)
    for _ in range(30):
        one = sorted(chance.sample(range(n), chance.randint(2, n - 2)))
        two = [x for x in range(n) if x not in one]
        check(n, lambda d, one=one, two=two: d.kind == "split" and set(d.sides) == {tuple(one), tuple(two)}, sides=[one, two])


@pytest.mark.parametrize("n", [n for n in SIZES if n >= 3])
def test_a_fault_that_depends_on_the_count(n):
    for above in range(1, n):
        check(n, lambda d, above=above: (d.kind, d.works_up_to) == ("count", above), above=above)


@pytest.mark.parametrize("n", range(3, 65))
def test_where_no_two_work_together_a_few_pairs_are_enough(n):
    """They are 424 worlds for 64 GPUs, if each is asked who its partners are. One more with all, and every GPU alone, were seen before."""
    runs = check(n, lambda d: (d.kind, d.works_up_to, d.gpus, d.pairs, d.sides) == ("count", 1, (), (), ()), above=1)
    assert runs - n - 2 <= (n * (n - 1) // 2 if n <= 10 else 30), runs
    assert run(n, fails(above=1))[2] <= 3 + 10, "rounds"


@pytest.mark.parametrize("n", range(9, 65))
def test_near_misses_of_no_two_work_together_are_named_as_what_they_are(n):
    chance = random.Random(n)
    every = list(range(n))
    halves = every[::2], every[1::2]  # whatever is beside each other fails
    check(n, lambda d: d.kind == "split" and set(d.sides) == set(map(tuple, halves)), sides=halves)
    for k in range(1, min(n - 2, 8) + 1):
        for bad in (every[:k], sorted(chance.sample(every, k))):
            check(n, lambda d, bad=bad: (d.kind, d.gpus, d.pairs) == ("gpus", tuple(bad), ()), gpus=bad)
    for cut in (2, n // 3, n - 2):
        check(
            n,
            lambda d, cut=cut: d.kind == "split" and set(d.sides) == {tuple(every[:cut]), tuple(every[cut:])},
            sides=(every[:cut], every[cut:]),
        )
    for pairs in ([(0, 1)], [(0, 1), (2, 3)], [(0, 1), (1, 2)]):
        check(n, lambda d, pairs=pairs: (d.kind, list(d.pairs)) == ("pairs", pairs), pairs=pairs)


def test_some_that_fail_alone_and_no_two_of_the_others_that_work_together_end_early_and_unclear():
    diagnosis, runs, _, _ = run(64, lambda group: 0 in group or len(group) > 1)
    assert diagnosis.kind == "unclear" and runs < 64 + 50


def test_pairs_that_pass_now_and_then_are_no_pairs_that_fail():
    told = [run(16, fails(above=1), random.Random(seed), 0.8)[0].kind for seed in range(40)]
    assert told.count("intermittent") >= 38, told


@pytest.mark.parametrize("n", [5, 6, 8, 12, 16, 31, 64])
def test_several_gpus_while_two_are_good(n):
    for k in range(2, min(n - 2, 8) + 1):
        for seed in range(4):
            bad = sorted(random.Random(f"{n}{k}{seed}").sample(range(n), k))
            check(n, lambda d, bad=bad: (d.kind, d.gpus, d.pairs) == ("gpus", tuple(bad), ()), gpus=bad)


def test_a_walk_that_the_stated_number_ends_is_unclear():
    diagnosis, runs, _, recorded = run(16, fails(gpus=[0, 2, 4, 6, 8, 10, 12, 14, 15]))
    assert (diagnosis.kind, replay(range(16), recorded)) == ("unclear", diagnosis) and g_outcomes.most_runs(
        16
    ) - g_outcomes.REPEATS - 16 < runs <= g_outcomes.most_runs(16) - g_outcomes.REPEATS


def test_two_gpus_and_a_gpu_beside_a_pair():
    for n in (5, 8, 16):
        check(n, lambda d: (d.kind, d.gpus) == ("gpus", (1, 3)), gpus=[1, 3])
        check(n, lambda d: (d.kind, d.gpus, d.pairs) == ("several", (0,), ((2, 4),)), gpus=[0], pairs=[(2, 4)])


def across(sides):
    return [tuple(sorted(p)) for one, two in itertools.combinations(sides, 2) for p in itertools.product(one, two)]


@pytest.mark.parametrize(
    "sides", [((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 3), (1, 2), (4, 5)), ((0, 1, 2), (3, 4, 5), (6, 7)), ((0, 1), (2,), (3, 4, 5))]
)
def test_a_split_into_more_than_two_sets_accuses_no_gpu(sides):
    """Such as P2P that works below one PCIe switch only, with four of them."""
    check(sum(map(len, sides)), lambda d: (d.kind, d.sides and set(d.sides)) == ("split", set(sides)), pairs=across(sides))


@pytest.mark.parametrize(("n", "fault"), [(4, {"gpus": [0, 2, 3]}), (12, {"gpus": range(12)}), (12, {"gpus": range(11)}),
                                          (6, {"gpus": [5], "above": 2}), (4, {"gpus": [3], "above": 2})])
def test_a_gpu_is_accused_only_if_it_fails_with_partners_known_to_be_good(n, fault):
    told = run(n, fails(**fault))[0]
    assert (told.kind, told.works_up_to) == (("unclear", 0) if "above" in fault else ("count", 1)) and not told.gpus


@pytest.mark.parametrize("n", [4, 8, 33])
@pytest.mark.parametrize("p", [0.9, 0.97])
def test_what_passes_once_by_chance_does_not_turn_one_fault_into_another(n, p):
    faults = [("pairs", {"pairs": [(0, n - 1)]}), ("gpus", {"gpus": [n // 2]}), ("split", {"sides": [range(n // 2), range(n // 2, n)]})]
    for kind, fault in faults:
        chance = random.Random(f"{n}{p}{kind}")
        told = [run(n, fails(**fault), chance, p)[0].kind for _ in range(50)]
        assert sum(k not in (kind, "intermittent") for k in told) <= 1, (fault, told)


def test_every_graph_of_failing_links_among_five_is_named_exactly_or_not_at_all():
    every = list(itertools.combinations(range(5), 2))
    for bits in range(1, 1 << len(every)):
        bad = {p for i, p in enumerate(every) if bits >> i & 1}
        told = run(5, fails(pairs=bad))[0]
        starred = {p for p in every if set(p) & set(told.gpus)}
        split = set(across(told.sides)) if told.sides else set()
        none = set(every) if told.works_up_to == 1 else set()
        assert told.kind == "unclear" or bad == {*told.pairs, *starred, *split, *none}, (bad, told)


@pytest.mark.parametrize("n", [10, 16, 31, 64])
def test_links_from_each_gpu_to_its_mate_are_no_split(n):
    mates = [(g, g + n // 2) for g in range(n // 2)]
    check(n, lambda d: d.kind == "unclear" or (d.kind, list(d.pairs)) == ("pairs", mates), pairs=mates)


def test_disjoint_groups_run_at_once():
    assert max(run(8, fails(pairs=[pair]))[2] for pair in itertools.combinations(range(8), 2)) <= 35


FLAKY = {"gpu": {"gpus": [2]}, "pair": {"pairs": [(1, 6)]}, "split": {"sides": [(0, 1, 2, 3), (4, 5, 6, 7)]}, "count": {"above": 5}}


@pytest.mark.parametrize("fault", FLAKY)
@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.7])
def test_an_intermittent_fault_comes_out_as_a_rate_whose_interval_holds_it(fault, p):
    chance, told, covered = random.Random(f"{fault}{p}"), 0, 0
    for _ in range(60):
        diagnosis = run(8, fails(**FLAKY[fault]), chance, p)[0]
        told += diagnosis.kind == "intermittent"
        low, high = wilson(diagnosis.failed, diagnosis.repeated)
        covered += diagnosis.kind == "intermittent" and low <= p <= high
    assert told >= 50 and covered >= 0.85 * told, (told, covered)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.randoms(use_true_random=False))
def test_answers_without_any_sense_still_end_the_walk(n, chance):
    diagnosis, runs, _, recorded = run(n, lambda group: True, chance, 0.5)
    assert diagnosis.kind in ("gpus", "pairs", "several", "split", "count", "intermittent", "unclear") and runs <= g_outcomes.most_runs(n)
    assert replay(range(n), recorded) == diagnosis


def test_a_record_that_ends_early_is_unclear_and_names_the_smallest_group_that_failed():
    recorded = run(8, fails(pairs=[(2, 5)]))[3]
    for kept in range(len(recorded)):
        assert replay(range(8), recorded[:kept]).kind == "unclear"
    assert replay(range(8), recorded[:-3]).within == (2, 5)


def test_a_rate_whose_runs_the_budget_ended_is_told_from_those_that_were_made():
    recorded = run(4, fails(above=3), random.Random(3), 0.5)[3]
    first = next(n for n in range(len(recorded)) if replay(range(4), recorded[:n]).kind == "intermittent")
    told = [replay(range(4), recorded[:n]) for n in range(first, len(recorded) + 1)]
    assert [d.repeated for d in told] == list(range(5, 21)) and {d.within for d in told} == {(0, 1, 2, 3)}
    assert all(d.failed == sum(not r[0, 1, 2, 3] for r in recorded[first - 5:first - 5 + d.repeated]) for d in told)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_interval_holds_the_rate_and_narrows_with_runs(failed, passed):
    low, high = wilson(failed, failed + passed)
    assert 0 <= low <= high <= 1
    if failed + passed:
        assert low <= failed / (failed + passed) + 1e-9 and high >= failed / (failed + passed) - 1e-9
        more = wilson(10 * failed, 10 * (failed + passed))
        assert more[1] - more[0] <= high - low


def test_the_interval_is_wilsons():
    assert [round(x, 4) for x in wilson(1, 20)] == [0.0089, 0.2361] and wilson(0, 0) == (0.0, 1.0)
