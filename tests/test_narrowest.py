"""The narrowest pair of 04: which two GPUs show alone what the control shows; real Gloo ranks stand in for GPUs."""
from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys

import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.causes.causes import NOT_SEEN
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.search.group_testing import of_pairs
from nccl_runbook.worlds import (
    ask_pairs as probe_ask_pairs,
    judge_culprits,
    judge_transports as transports,
)
from nccl_runbook.worlds.facts import Pair, Pairs, Trial
from nccl_runbook.worlds.table import pairs_table
from pydantic import TypeAdapter
from world_samples import P2P, SHM, arms, hung, world


def failing(n, **changes):
    """The arms of ``n`` GPUs whose P2P hangs, each time."""
    made = arms(
        hung(ranks=n, transports=P2P), p2p=world(ranks=n, transports=SHM), shm=hung(ranks=n), pinned=hung(ranks=n), after=hung(ranks=n)
    )
    return dataclasses.replace(made, **changes)


class Planted(Engine):
    """A world in which the fault lies has ranks that leave at once; the others go over what NCCL's log would say."""

    def __init__(self, log_dir, fails, carried):
        super().__init__([sys.executable], log_dir, Redactor(os.environ))
        self.fails, self.carried, self.asked = fails, carried, []

    def run_all(self, requests, keep=True):
        self.asked.append([r.devices for r in requests])
        made = [dataclasses.replace(r, devices=[None] * len(r.devices), env={}, stall_s=None, args=[
            "--ops", "no-such-op" if self.fails(set(r.devices)) else "all_reduce", "--sizes", "4", "--repeats", "0"]) for r in requests]
        return [
            dataclasses.replace(w, request=r, transports=self.carried) for w, r in zip(super().run_all(made, keep), requests, strict=True)
        ]


def narrowed(tmp_path, n, fails, carried=P2P, budget_s=300.0):
    made = failing(n)
    with Planted(tmp_path / "logs", fails, carried) as engine:
        found = probe_ask_pairs.pairs(engine, made, budget_s)
    assert TypeAdapter(Pairs | Gap).validate_python(to_json(found)) == found
    return engine.asked, found, transports.judge_transports(made, found)[0]


def gpus_in(text):
    return re.findall(r"\bGPUs? (\d+)", text)


def unnarrowed(n):
    """The finding of the same arms without pairs."""
    return transports.judge_transports(failing(n))[0]


def test_one_bad_link_is_named_with_its_own_remedy_and_what_still_works(tmp_path):
    asked, found, told = narrowed(tmp_path, 4, lambda g: {1, 3} <= g)
    assert [[0, 1], [2, 3]] == asked[0] and sum(map(len, asked)) == 6 + 1  # every pair, and the one that failed again
    assert (found.worst().first, found.worst().second) == (1, 3) and found.worst().trial.again is not None
    assert re.search(r"\bGPUs 1 and 3 \(5 .*P2P\)$", told.title), told.title
    assert (told.id, told.cause, told.status) == ("transport-at-fault", "gpu-or-link-fault", "likely")
    assert [r.who for r in told.remedy] == ["the administrator", "you", "you"] and gpus_in(told.remedy[0].text) == ["1", "3"]
    assert gpus_in(told.remedy[1].text) == ["3"] and "P2P off" in told.remedy[2].text
    assert "GPUs 1 and 3 alone: failed" in [e.text for e in told.evidence] and pairs_table(found).rows[1][4].text == "failed"


def test_p2p_that_fails_everywhere_costs_one_round_and_accuses_no_pair(tmp_path):
    asked, found, told = narrowed(tmp_path, 4, lambda g: True)
    assert [a for a in asked if a] == [[[0, 1], [2, 3]]], "the one is the recurrence of the other"
    assert told.cause == "p2p-broken-acs-iommu" and told.title != unnarrowed(4).title and "other pairs" not in told.title
    assert told.remedy == unnarrowed(4).remedy


def test_a_gpu_is_named_by_its_partners(tmp_path):
    asked, found, told = narrowed(tmp_path, 4, lambda g: 2 in g)
    assert re.search(r"\bGPU 2 .*\(3 .*P2P\)$", told.title) and told.cause == "gpu-or-link-fault"
    assert sum(map(len, asked)) == 6 + 3 and [gpus_in(r.text) for r in told.remedy[:2]] == [["2"], ["2"]]
    assert told.remedy[2] == unnarrowed(4).remedy[0], "it may sit behind another bridge"


def test_a_budget_that_ends_is_no_all_clear(tmp_path):
    _, found, told = narrowed(tmp_path, 4, lambda g: {1, 3} <= g, budget_s=probe_ask_pairs.PAIR_DEADLINE_S + 0.5)
    assert len(found.pairs) == 2
    assert told.evidence[0].text.startswith("4 of 6 ") and told.title == unnarrowed(4).title


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_bad_gpu_of_which_few_pairs_were_tried_is_not_called_a_link(kept):
    every = [pair(a, b, hung(devices=[a, b]) if 2 in (a, b) else world(), hung()) for a, b in [(2, 3), (0, 1), (0, 2), (1, 3), (0, 3)]]
    told = transports.judge_transports(failing(4), Pairs(6, every[:kept]))[0]
    assert not gpus_in(told.title), "neither a GPU nor a link is named"
    assert any(e.text.startswith(f"{6 - kept} of 6 ") for e in told.evidence)
    assert (told.remedy == unnarrowed(4).remedy) == (kept == 1), "nothing passed yet"
    assert kept == 1 or f"; {sum(not p.trial.passed for p in every[:kept])} of " in told.title


def test_one_gpu_that_two_bad_links_share_is_left_out_alone():
    told = transports.judge_transports(
        failing(4),
        Pairs(6, [pair(a, b, hung(devices=[a, b]) if a == 0 and b < 3 else world()) for a, b in itertools.combinations(range(4), 2)]),
    )[0]
    assert re.findall(r"GPUs (\d) and (\d)", told.title) == [("0", "1"), ("0", "2")] and gpus_in(told.remedy[1].text) == ["0"]
    assert re.findall(r"GPU (\d) \(PCI bus ", told.remedy[0].text) == gpus_in(told.remedy[0].text) == ["0", "1", "2"]


def test_a_pair_whose_world_the_runbook_lost_is_a_pair_not_tried():
    found = Pairs(3, [pair(0, 1, world(outcome="lost", code=None)), pair(0, 2, world()), pair(1, 2, world())])
    told, before = transports.judge_transports(failing(3), found)[0], transports.judge_transports(failing(3))[0]
    assert (told.title, told.cause) == (before.title, before.cause) and told.evidence[0].text.startswith("1 of 3 ")


def test_of_sixteen_a_gpu_with_five_bad_links_has_others_that_work():
    every = list(itertools.combinations(range(16), 2))
    told = transports.judge_transports(
        failing(16), Pairs(len(every), [pair(a, b, hung(devices=[a, b]) if a == 0 and b < 6 else world()) for a, b in every])
    )[0]
    assert "; 5 of " in told.title and not gpus_in(told.title) and gpus_in(told.remedy[1].text) == ["0"]


ONCE = failing(3).control.world
REFUSED = {
    "the control passes": arms(),
    "a variable": failing(3, clean=dataclasses.replace(arms().arms[0], name="clean", trial=Trial("clean", world(3)))),
    "comes and goes": failing(3, control=Trial("control", ONCE, world(3))),
    "not repeated": failing(3, control=Trial("control", ONCE)),
    "passes at the end": failing(3, control_after=Trial("control again", world(3))),
    "two GPUs": failing(2),
    "two ranks on one GPU": failing(3, control=Trial("control", twice := hung(ranks=3, devices=[0, 1, 1]), twice)),
    "no arm": Gap("unsupported", "there is one GPU, but a transport test needs two ranks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_run_where_a_pair_would_tell_nothing(name):
    made = REFUSED[name]
    found = probe_ask_pairs.pairs(None, made, 300)
    assert found.reason == "not-run" and "three or more GPUs" in found.detail
    assert transports.judge_transports(made, found) == transports.judge_transports(made)


def pair(a, b, first, again=None):
    return Pair(a, b, 0, Trial(f"pair {a}-{b}", first, again))


def test_where_the_others_do_not_go_over_p2p_the_host_s_settings_stay_suspect():
    found = Pairs(3, [pair(0, 1, hung(), hung()), pair(0, 2, world(transports=SHM)), pair(1, 2, world(transports=SHM))])
    told = transports.judge_transports(failing(3), found)[0]
    assert told.cause == "p2p-broken-acs-iommu" and re.search(r"\bGPUs 0 and 1 \(2 .*SHM\)$", told.title)


def test_what_takes_more_than_two_is_said_so():
    told = transports.judge_transports(failing(3), Pairs(3, [pair(0, 1, world()), pair(0, 2, world()), pair(1, 2, world())]))[0]
    assert re.search(r"; .*\(3 .*\)$", told.title) and told.cause == "p2p-broken-acs-iommu"


def test_a_pair_that_passes_when_repeated_is_not_named():
    found = Pairs(3, [pair(0, 1, hung(), world()), pair(0, 2, world()), pair(1, 2, world())])
    told, before = transports.judge_transports(failing(3), found)[0], transports.judge_transports(failing(3))[0]
    assert told.title == before.title and told.cause == before.cause
    steady = transports.judge_transports(failing(3), Pairs(3, [pair(0, 1, hung(), hung()), *found.pairs[1:]]))[0]
    assert told.evidence[0].text.startswith("GPUs 0 and 1 alone: ") and "intermittent" in told.evidence[0].text
    assert "intermittent" not in steady.evidence[0].text


def test_where_every_pair_fails_no_part_is_named_and_what_was_not_seen_on_hardware_is_said_once():
    every = Pairs(3, [pair(a, b, hung(), hung()) for a, b in itertools.combinations(range(3), 2)])
    before = transports.judge_transports(failing(3))[0]
    for fault in (before, dataclasses.replace(before, evidence=(*before.evidence, NOT_SEEN))):
        told = judge_culprits.with_pairs(fault, every)
        assert (told.cause, gpus_in(told.title), told.evidence.count(NOT_SEEN)) == (before.cause, [], 1) and "other pairs" not in told.title


def test_a_pair_without_a_log_of_nccl_says_nothing_of_the_way():
    silent = pair(0, 2, world(transports=Gap("absent", "no log")))
    told = transports.judge_transports(failing(3), Pairs(3, [pair(0, 1, hung(), hung()), silent, pair(1, 2, world(transports=P2P))]))[0]
    assert re.search(r"\bGPUs 0 and 1 \(2 .*P2P\)$", told.title)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 8), st.data())
def test_every_matrix_of_pairs_has_an_answer_that_names_no_pair_which_passed(n, data):
    every = list(itertools.combinations(range(n), 2))
    failed = data.draw(st.lists(st.sampled_from(every), unique=True))
    found = Pairs(len(every), [pair(a, b, hung() if (a, b) in failed else world()) for a, b in every])
    told = transports.judge_transports(failing(n), found)[0]
    named = of_pairs(range(n), failed)
    assert set(named.pairs) <= set(failed) and all(
        (min(g, o), max(g, o)) in failed for g in named.gpus for o in range(n) if o not in (g, *named.gpus)
    )
    assert told.severity.value == "broken" and told.remedy and told.evidence
    groups = {
        "pairs": [f"{a} and {b}" for a, b in named.pairs],
        "split": [", ".join(map(str, side)) for side in named.sides],
        "unclear": [],
    }
    wanted = groups.get(named.kind, [", ".join(map(str, named.gpus))])
    if 0 < len(failed) < len(every):
        assert all(re.search(rf"GPUs? {group}\b", told.title) for group in wanted) and bool(wanted) == bool(gpus_in(told.title)), told.title
    else:
        assert "other pairs" not in told.title and not gpus_in(told.title)
