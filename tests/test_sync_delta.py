"""gloo-delta on real Gloo ranks: what changed arrives, the rest stays, and what fails leaves the weights of the sync before."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.placement import place
from nccl_runbook.sync import ask as sync, judge as rules
from test_sync import TINY, syncs

RANKS = Path(__file__).resolve().parents[1] / "lib" / "nccl_runbook" / "ranks"
sys.path[:0] = [str(RANKS), str(RANKS / "delta")]
import sync_bytes  # noqa: E402
import sync_delta  # noqa: E402


def run(engine, ranks, *args, spec=TINY, repeats=3):
    argv = ["--method", "gloo-delta", "--spec", json.dumps(spec), "--repeats", str(repeats), "--cpu", "--buckets", "1", *map(str, args)]
    return engine.run(WorldRequest("gloo-delta", "weight_sync.py", [None] * ranks, argv, deadline_s=60))


@pytest.mark.parametrize(("ranks", "args", "spec"), [
    (3, (), TINY), (2, (), {**TINY, "dtype": "float32"}), (2, (), {**TINY, "head": [["empty", [0, 5]], ["scalar", []], *TINY["head"]]}),
    (2, (), {**TINY, "dtype": "float64"}), (5, ("--tp", 2), TINY)], ids=["two engines", "float32", "empty", "float64", "tensor-parallel"])
def test_every_byte_is_right_after_each_sync_and_few_of_them_travel(engine, ranks, args, spec):
    world = run(engine, ranks, *args, spec=spec)
    assert [r.code for r in world.ranks] == [0] * ranks
    events = [e for _, e in syncs(world)] + [e for r in world.ranks for e in r.named("variant")]
    assert len(events) == 5 * ranks and all(e["verified"] for e in events)
    for event in events:
        assert sum(event["phases"].values()) == pytest.approx(event["seconds"], rel=1e-6)
    later = {e["by"] for _, e in syncs(world) if e["repeat"]}
    width = getattr(torch, spec.get("dtype", "bfloat16")).itemsize  # a value changes if one of its 16-bit words does
    share = 2.0 * (width // 2) * (4 + width) / width  # percent: a place of four bytes beside each value
    assert later and all(share - 0.2 < float(by.partition("%")[0].rpartition(" ")[2]) < share + 1 for by in later)


def kept(world):
    return {(r.rank, e["sync"], e["whole"]) for r in world.ranks for e in r.named("kept")}


def test_changes_that_arrive_torn_are_written_on_no_engine_and_the_tensor_is_named(engine):
    world = run(engine, 3, "--fault", "torn@2")
    assert [r.code for r in world.ranks] == [7, 7, 1] and kept(world) == {(1, 0, True), (2, 0, True)}
    assert world.ranks[2].first("error")["text"].split()[3] == "model.norm.weight"


def test_a_torn_arrival_harms_nothing_on_the_trainer_where_nothing_arrives(engine):
    world = run(engine, 2, "--fault", "torn@0")
    assert [r.code for r in world.ranks] == [0, 0] and all(e["verified"] for _, e in syncs(world))


def test_an_engine_that_dies_leaves_the_weights_of_the_others_whole(engine):
    world = run(engine, 3, "--fault", "leave@2")
    assert world.ranks[2].code == 9 and kept(world) == {(1, 0, True)}


@pytest.mark.parametrize(("fault", "wrong"), [("corrupt@1", "model.layers.1.self_attn.q_proj.weight"), ("stale@1", "model.norm.weight")])
def test_a_flipped_bit_and_a_tensor_that_stays_old_are_caught(engine, fault, wrong):
    world = run(engine, 2, "--fault", fault)
    assert [r.code for r in world.ranks] == [0, 6]
    assert wrong in {w["tensor"] for rank, e in syncs(world) if rank for w in e["wrong"]}


@given(st.lists(st.integers(0, 3000).map(lambda n: 2 * n), min_size=1, max_size=4), st.integers(0, 120), st.integers(0, 3), st.data())
def test_what_each_sync_changes_adds_up(sizes, syncs, first, data):
    pattern = sync_bytes.Pattern(torch.device("cpu"))
    views = sync_bytes.laid(sync_bytes.slabs(sizes, "cpu"), sizes)
    pattern.lay(sizes, views, [0] * len(sizes))
    changing = sync_delta.Changing(pattern, first)
    for number in range(first, first + syncs + 1):
        before = [v.clone() for v in views]
        changing.fill(number)
    assert changing.differing(first + syncs) == {}
    if syncs:
        words = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(before, views))
        assert words <= sum(-(-size // 2 // sync_delta.ONE_IN) for size in sizes)
        assert {*changing.differing(first + syncs - 1)} <= {i for i, size in enumerate(sizes) if size}
    at = data.draw(st.sampled_from(range(len(sizes))))
    if sizes[at]:
        views[at][data.draw(st.integers(0, sizes[at] - 1))] ^= 1
        assert changing.differing(first + syncs) == {at: 1}


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@given(st.data())
def test_the_check_sum_shows_one_place_or_one_value_that_differs(bits, data):
    value, place_of = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), st.integers(0, 2**31 - 1)
    changes = data.draw(st.lists(st.tuples(place_of, value), min_size=1, max_size=20))
    places, values = (torch.tensor(column) for column in zip(*changes))
    total = sync_delta.check_sum(places.to(torch.int32), values)
    column, drawn = data.draw(st.sampled_from([(places, place_of), (values, value)]))
    at, other = data.draw(st.integers(0, len(changes) - 1)), data.draw(drawn)
    differs = int(column[at]) != other
    column[at] = other
    assert (sync_delta.check_sum(places, values) != total) == differs


def test_the_full_sync_runs_beside_it_and_no_link_is_exceeded(engine):
    runs = sync.collect(engine, TINY, [None, None], "gloo-delta", repeats=3, deadline_s=60)
    assert list(runs.arms) == ["gloo-delta", "gloo-flat"] and all(a.passed for a in runs.run)
    assert [f.id for f in rules.judge(runs, place(runs.devices))] == ["weight-sync-delta", "rehearsed-without-gpu", "weight-sync-verified"]
    assert runs.run[0].by, "the share that travelled is said, although the first sync sends everything"
    assert runs.fastest("gloo").method == "gloo-flat", "a delta is no faster way to move everything"
