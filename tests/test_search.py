"""The search of 03 end to end on real Gloo ranks that stand in for GPUs, and what the rules say of it."""
from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys

import pytest
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.search.group_testing import identify
from nccl_runbook.search.outcomes import most_runs
from nccl_runbook.worlds import ask as worlds, judge as fewer_gpus
from nccl_runbook.worlds.facts import Ladder, Search, SearchRound, Singles
from pydantic import TypeAdapter
from world_samples import hung, rank, trial, world


class Planted(Engine):
    """Numbered Gloo ranks in place of GPUs; a world in which the fault lies has ranks that leave at once. ``times``: how often, None for
    always."""

    def __init__(self, log_dir, fails, times=None):
        super().__init__([sys.executable], log_dir, Redactor(os.environ))
        self.fails, self.times = fails, times

    def run_all(self, requests, keep=True):
        made = [self._planted(r) for r in requests]
        return [dataclasses.replace(w, request=r) for w, r in zip(super().run_all(made, keep), requests, strict=True)]

    def _planted(self, request):
        bad = self.fails(set(request.devices)) and (self.times is None or self.times > 0)
        self.times = self.times - 1 if bad and self.times is not None else self.times
        args = ["--ops", "no-such-op" if bad else "all_reduce", "--sizes", "4", "--repeats", "0"]
        return dataclasses.replace(request, devices=[None] * len(request.devices), args=args, env={}, stall_s=None)


def collect(engine, n, budget_s=200):
    devices = list(range(n))
    ladder = worlds.ladder(engine, devices, budget_s)
    singles = worlds.singles(engine, devices, budget_s)
    pairs = worlds.pairs(engine, devices, singles, budget_s, ladder)
    return ladder, singles, pairs, worlds.search(engine, ladder, singles, pairs, budget_s, identify)


def judged(tmp_path, n, fails, times=None, budget_s=200):
    with Planted(tmp_path / "logs", fails, times) as engine:
        facts = collect(engine, n, budget_s)
    assert TypeAdapter(Search | Gap).validate_python(to_json(facts[3])) == facts[3]
    return facts, fewer_gpus.judge_worlds(*facts)


CASES = {
    "a GPU": (lambda g: 2 in g and len(g) > 1, "located", "GPU 2 "),
    "a link": (lambda g: {1, 3} <= g, "located", "GPUs 1 and 3"),
    "a split": (lambda g: bool(g & {0, 3}) and bool(g & {1, 2}), "split-at-fault", "GPUs 0, 3 and GPUs 1, 2 "),
    "the count": (lambda g: len(g) > 2, "count-at-fault", "2 GPUs "),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_planted_among_four_is_named_and_comes_first(tmp_path, name):
    fails, rule, named = CASES[name]
    facts, found = judged(tmp_path, 4, fails)
    ladder, singles, pairs, search = facts
    seen = [*ladder.rungs, *singles.trials.values(), *(p.trial for p in pairs.pairs)]
    asked = sum(len(r.groups) for r in search.rounds)  # what was seen before is not run again
    assert len(list((tmp_path / "logs").iterdir())) < sum(1 + (t.again is not None) for t in seen) + asked
    assert found[0].id == rule and named in found[0].title and found[0].severity.value == "broken"
    assert {f.id for f in found[1:]} <= {"first-failing-world-size"}
    assert any("exit code 1" in e.text for e in found[0].evidence)
    unkept = fewer_gpus._search(dataclasses.replace(search, example=Gap("absent", "not kept")))[0]
    assert (unkept.id, unkept.cause, unkept.status) == (rule, found[0].cause, found[0].status) and unkept.remedy
    assert (unkept.remedy != found[0].remedy) == (rule == "located"), "where to look is read off the failed world"
    assert re.match(rf"{asked} runs .*\b{most_runs(4)}\b", found[0].evidence[0].text) and asked <= most_runs(4)


def searched(n, fails, example=None, why=""):
    """The recorded search of a fault among ``n`` GPUs, without ranks; ``example``: the failed world."""
    rounds = []

    def answer(groups):
        rounds.append(SearchRound([list(g) for g in groups], [not fails(set(g)) for g in groups]))
        return dict(zip(groups, rounds[-1].passed, strict=True))

    identify(list(range(n)), answer)
    return Search(list(range(n)), rounds, example or hung(ranks=2, devices=[0, 1]), why)


@pytest.mark.parametrize(
    ("fails", "rule", "cause"),
    [
        (lambda g: {1, 3} <= g, "located", "gpu-or-link-fault"),
        (lambda g: bool(g & {0, 3}) and bool(g & {1, 2}), "split-at-fault", "p2p-broken-acs-iommu"),
        (lambda g: len(g) > 2, "count-at-fault", None),
        (lambda g: len(g) > 1, "every-pair-fails", None),
    ],
)
def test_each_kind_of_search_has_its_rule_and_cause_with_and_without_the_failed_world(fails, rule, cause):
    search = searched(4, fails)
    [kept], [unkept] = fewer_gpus._search(search), fewer_gpus._search(dataclasses.replace(search, example=Gap("absent", "not kept")))
    assert (kept.id, kept.severity.value, kept.cause, kept.status) == (rule, "broken", cause, "likely" if cause else None)
    assert unkept.id == (rule if rule != "every-pair-fails" else "count-at-fault") and (unkept.cause, unkept.status) == (cause, kept.status)
    assert len(kept.evidence) > len(unkept.evidence) == 2 and "at least twice" in kept.evidence[0].text
    assert (kept.remedy[0].who == "the administrator" and "nvidia-smi topo -m" in kept.remedy[0].lines) == (rule == "located")
    assert (unkept.remedy == kept.remedy) == (rule in ("split-at-fault", "count-at-fault"))


def test_a_search_that_comes_and_goes_is_a_rate_and_one_that_was_cut_says_why():
    turns = itertools.count()
    [rate] = fewer_gpus._search(searched(3, lambda g: len(g) == 3 and next(turns) < 1))
    assert (rate.id, rate.severity.value, rate.cause) == ("intermittent", "warn", None) and "twice" not in rate.evidence[0].text
    whole = searched(4, lambda g: {1, 3} <= g)
    for why in ("the budget ended", ""):
        [cut] = fewer_gpus._search(dataclasses.replace(whole, rounds=whole.rounds[:3], why=why))
        assert (cut.id, cut.severity.value) == ("search-not-finished", "unknown") and f" {why or 'the results fit no '}" in cut.title
    assert fewer_gpus._search(Gap("not-run")) == []


@pytest.mark.parametrize("fails", [lambda g: len(g) > 1, lambda g: len(g) > 1 and not g <= {2, 3}])
def test_that_no_two_of_eleven_work_together_is_an_answer_of_its_own_and_comes_early(tmp_path, fails):
    facts, found = judged(tmp_path, 11, fails)
    asked = [tuple(group) for r in facts[3].rounds for group in r.groups]
    if fails({2, 3}):
        assert found[0].id == "every-pair-fails" and found[0].severity.value == "broken"
        assert "25 pairs" in found[0].title and not re.search(r"GPUs? \d", found[0].title), "neither a GPU nor a pair is named"
        assert found[0].remedy == (fewer_gpus.SHARED,) and len(asked) == 2 + 11 + 25
        assert {f.id for f in found[1:]} == {"first-failing-world-size"}
    else:
        assert "every-pair-fails" not in {f.id for f in found} and "GPUs 0, 1, 4, 5, 6, 7, 8, 9, 10 " in found[0].title


def test_what_the_ranks_say_of_no_two_is_the_cause():
    rounds = [SearchRound([list(range(9))], [False])] * 2 + [SearchRound([[g] for g in range(9)], [True] * 9)]
    pairs = [[[a, b] for a in range(9) for b in range(a + 1, 9) if (a + b) % 9 == turn] for turn in range(9)]
    said = world(
        [
            rank(
                0,
                code=1,
                error="Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888), error: No space left on device (28)",
            ),
            rank(1, "timed-out", 15),
        ]
    )
    told = fewer_gpus._search(Search(list(range(9)), [*rounds, *(SearchRound(p, [False] * 4) for p in pairs)], said))[0]
    assert told.id == "every-pair-fails" and told.cause == "shm-too-small" and fewer_gpus.SHARED not in told.remedy
    cut = fewer_gpus._search(Search(list(range(9)), [*rounds, *(SearchRound(p, [False] * 4) for p in pairs[:-1])], said, "cut"))[0]
    assert cut.id == "search-not-finished"
    unkept = fewer_gpus._search(
        Search(list(range(9)), [*rounds, *(SearchRound(p, [False] * 4) for p in pairs)], Gap("absent", "not kept"))
    )[0]
    assert (unkept.id, unkept.cause) == ("count-at-fault", None)


def test_what_comes_and_goes_is_a_rate(tmp_path):
    facts, found = judged(tmp_path, 3, lambda g: len(g) == 3, times=3)
    assert found[0].id == "intermittent" and found[0].severity.value == "warn"
    assert "GPUs 0, 1, 2 failed" in found[0].title and "of 20 times" in found[0].title and "at 95 %" in found[0].title


def test_what_comes_and_goes_between_two_gpus_is_a_rate_too(tmp_path):
    _, found = judged(tmp_path, 2, lambda g: len(g) == 2, times=1)
    assert [f.id for f in found] == [
        "intermittent",
        "first-failing-world-size",
    ] and "GPUs 0, 1 failed 0 of 20 times (0% to 16% at" in found[0].title
    assert "twice" not in found[0].evidence[0].text


def test_two_gpus_that_passed_once_are_no_broken_link_however_often_they_fail_afterwards(tmp_path):
    asked = []
    _, found = judged(tmp_path, 2, lambda g: len(g) == 2 and (asked.append(g) or len(asked) != 2))
    assert [(f.id, f.severity.value) for f in found] == [("intermittent", "warn"), ("first-failing-world-size", "warn")]
    assert "GPUs 0, 1 failed 20 of 20 times" in found[0].title


def test_two_gpus_that_failed_together_twice_are_not_run_again_as_a_pair(tmp_path):
    asked = []
    facts, found = judged(tmp_path, 2, lambda g: len(g) == 2 and (asked.append(g) or True))
    assert facts[2].pairs[0].trial is facts[0].first_failing and len(asked) == 2
    assert [f.id for f in found] == ["first-failing-world-size", "pair-fails"] and {f.severity.value for f in found} == {"broken"}


def test_two_gpus_of_three_that_pass_alone_are_run_as_a_pair_whatever_all_three_did(tmp_path):
    facts, _ = judged(tmp_path, 3, lambda g: 2 in g)
    assert [(p.first, p.second, p.trial.passed) for p in facts[2].pairs] == [(0, 1, True)]


def test_a_search_that_the_budget_ends_is_unknown_and_names_the_smallest_group(tmp_path):
    with Planted(tmp_path / "logs", lambda g: {0, 2} <= g) as engine:
        ladder, singles, pairs, _ = collect(engine, 3)
        found = fewer_gpus.judge_worlds(ladder, singles, pairs, worlds.search(engine, ladder, singles, pairs, 0.1, identify))
    assert [f.severity.value for f in found if f.id == "search-not-finished"] == ["unknown"]


@pytest.mark.parametrize(
    ("n", "fails", "why"),
    [
        (2, lambda g: len(g) == 2, "two GPUs make only one pair"),
        (3, lambda g: len(g) > 1, "every pair"),
        (3, lambda g: False, "no run with several GPUs"),
    ],
)
def test_there_is_no_search_where_it_would_tell_nothing(tmp_path, n, fails, why):
    facts, _ = judged(tmp_path, n, fails)
    assert isinstance(facts[3], Gap) and why in facts[3].detail


def test_with_more_than_eight_the_search_asks_for_the_pairs():
    failing = Ladder("nccl", [1, 2], [trial(hung(), hung())])
    many = Singles({str(g): trial(world(1)) for g in range(9)})
    assert "search" in worlds.pairs(None, list(range(9)), many, 100, failing).detail


def test_two_ranks_on_one_gpu_are_no_reason_to_search():
    assert isinstance(worlds.search(None, Ladder("nccl", [1], []), Gap("not-run"), Gap("not-run"), 1, identify), Gap)
