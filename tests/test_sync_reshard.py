"""Several trainer ranks on real Gloo ranks: every byte arrives, what does not fit is named, and the old weights stay whole."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.placement import place
from nccl_runbook.sync import ask as sync, judge as rules, models
from nccl_runbook.sync.reshard.facts import control
from nccl_runbook.sync.reshard.judge import against_control
from test_sync import TINY, syncs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib" / "nccl_runbook" / "ranks" / "reshard"))
import sync_pieces  # noqa: E402
import sync_shapes  # noqa: E402

# 1,001 rows do not divide by two: a shorter shard, and an embedding that every engine rank holds whole; a router, and stacks of experts
MOE = models.decoder("test/moe", "qwen3_moe_fused", hidden=64, intermediate=32, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=1001,
                     tied=False, experts=4)


def run(engine, method, trainers, ranks, *args, spec=TINY, deadline_s=40.0):
    argv = ["--method", method, "--spec", json.dumps(spec), "--repeats", "2", "--cpu", "--trainers", str(trainers), *map(str, args)]
    return engine.run(WorldRequest(f"{method} {trainers}", "weight_sync.py", [None] * ranks, argv, deadline_s=deadline_s))


@pytest.mark.parametrize("method", ["gloo-reshard", "gloo-gather"])
@pytest.mark.parametrize(("trainers", "ranks", "engines"), [(1, 2, [1]), (2, 3, [2]), (1, 3, [1, 2]), (2, 4, [2, 3]), (2, 2, [0, 1])])
def test_every_byte_arrives_from_the_shards_of_each_trainer_in_those_of_each_engine_rank(engine, method, trainers, ranks, engines):
    world = run(engine, method, trainers, ranks, spec=MOE if ranks == 4 else TINY)
    assert [r.code for r in world.ranks] == [0] * ranks
    told = syncs(world)
    assert {rank for rank, e in told if e["compared"]} == {*engines} and all(e["verified"] for _, e in told) and len(told) == 2 * ranks
    for _, event in told:
        assert sum(event["phases"].values()) == pytest.approx(event["seconds"], rel=1e-6)
    small = [e for r in world.ranks for e in r.named("variant")]
    assert len(small) == 2 * ranks and all(e["verified"] for e in small)
    assert not any(r.first("kept") for r in world.ranks)


def test_many_buckets_share_two_stages(engine):
    large = {**TINY, "head": [["a.weight", [1500, 600]], ["b.o_proj.weight", [900, 800]], ["c.down_proj.weight", [602, 1000]]]}
    for method in ("gloo-reshard", "gloo-gather"):
        world = run(engine, method, 2, 4, "--buckets", 1, spec=large)
        assert [r.code for r in world.ranks] == [0] * 4 and all(e["verified"] for _, e in syncs(world))


def kept(world):
    return [(r.rank, e["sync"], e["whole"]) for r in world.ranks for e in r.named("kept")]


def test_bytes_that_are_wrong_on_one_engine_rank_replace_the_weights_on_none(engine):
    world = run(engine, "gloo-reshard", 1, 3, "--fault", "corrupt@2")
    assert [r.code for r in world.ranks] == [0, 0, 6]
    assert [w["tensor"] for rank, e in syncs(world) if rank == 2 for w in e["wrong"]] == ["model.layers.1.self_attn.q_proj.weight"] * 2
    assert {k for k in kept(world) if k[0]} == {(1, -1, True), (2, -1, True)}


@pytest.mark.parametrize(("fault", "of"), [("dtype@2", "model.embed_tokens.weight"), ("map@1", "model.embed_tokens.weight")])
def test_a_dtype_or_a_mapping_that_differs_is_named_before_a_byte_moves(engine, fault, of):
    rank = int(fault[-1])
    world = run(engine, "gloo-reshard", 1, 3, "--fault", fault)
    assert world.ranks[rank].first("error")["text"].startswith(f"{of}: ") and not syncs(world)
    assert [r.code for r in world.ranks] == [1 if r == rank else 7 for r in range(3)]


@pytest.mark.parametrize(("method", "rank"), [("gloo-reshard", 2), ("gloo-reshard", 1), ("gloo-gather", 2)])
def test_a_rank_that_dies_leaves_the_old_weights_whole_and_the_tensor_is_named(engine, method, rank):
    world = run(engine, method, 2, 4, "--fault", f"leave@{rank}")
    assert world.ranks[rank].code == 9
    told = [r.first("error")["text"] for r in world.ranks if r.first("error")]
    assert told and all(t.split(" ")[0] in {name for name, _ in sync_shapes.tensors(TINY)} for t in told)
    assert (3, 0, True) in kept(world) and all(whole for *_, whole in kept(world))


def test_more_trainers_than_ranks_is_one_sentence(engine):
    world = run(engine, "gloo-reshard", 3, 2)
    assert [r.code for r in world.ranks] == [1, 1] and world.ranks[0].first("error")["text"].startswith("3 trainer ranks")


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("layers.0.self_attn.q_proj.weight", (8, 6), (4, 8, 0, 12)),
        ("layers.0.self_attn.q_proj.bias", (8,), (4, 8, 0, 2)),
        ("layers.0.self_attn.o_proj.weight", (8, 6), (0, 8, 6, 12)),
        ("mlp.down_proj.weight", (8, 6), (0, 8, 6, 12)),
        ("mlp.experts.down_proj", (4, 8, 6), (2, 4, 0, 96)),
        ("input_layernorm.weight", (8,), (0, 8, 0, 2)),
        ("mlp.gate.weight", (8, 6), (0, 8, 0, 12)),
        ("mlp.gate_proj.weight", (8, 6), (4, 8, 0, 12)),
        ("embed_tokens.weight", (7, 6), (0, 7, 0, 12)),
        ("o_proj.weight", (8, 7), (0, 8, 0, 14)),
    ],
)
def test_the_second_of_two_engine_ranks_holds_rows_columns_or_all(name, shape, wanted):
    assert sync_pieces.engine_part(name, shape, 2, 2, 1) == wanted


shapes = st.one_of(st.just(()), st.tuples(st.integers(0, 40)), st.tuples(st.integers(0, 24), st.integers(1, 24)),
                   st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6)))
names = st.sampled_from(
    ["q_proj.weight", "q_proj.bias", "o_proj.weight", "mlp.down_proj.weight", "norm.weight", "mlp.gate.weight", "experts.gate_up_proj"]
)


@given(st.lists(st.tuples(names, shapes), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_every_byte_of_every_engine_shard_comes_exactly_once_and_from_where_it_lies(tensors, trainers, engines, width):
    held = [[sync_pieces.trainer_part(s, width, trainers, r) for r in range(trainers)] for _, s in tensors]
    wanted = [[sync_pieces.engine_part(n, s, width, engines, r) for r in range(engines)] for n, s in tensors]
    sides = [sync_pieces.sides(s, width) for _, s in tensors]
    whole = [torch.arange(rows * columns).view(rows, columns) for rows, columns in sides]
    arrived = [[torch.full((p.bottom - p.top, p.right - p.left), -1) for p in parts] for parts in wanted]
    for tensor, source, target, part in sync_pieces.pieces(range(len(tensors)), held, wanted):
        base = held[tensor][source]
        shard = whole[tensor][base.top : base.bottom, base.left : base.right]
        place = sync_pieces.cut(arrived[tensor][target], wanted[tensor][target], part)
        assert (place == -1).all() and place.numel() == sync_pieces.size(part) > 0
        place.copy_(sync_pieces.cut(shard, base, part))
    for tensor, parts in enumerate(wanted):
        for part, got in zip(parts, arrived[tensor], strict=True):
            assert torch.equal(got, whole[tensor][part.top : part.bottom, part.left : part.right])
        assert torch.cat([whole[tensor][p.top : p.bottom] for p in held[tensor]]).equal(whole[tensor]), "the shards are the whole, in order"
        covered = torch.zeros(sides[tensor])
        for part in parts:
            covered[part.top : part.bottom, part.left : part.right] += 1
        assert covered.numel() == 0 or {*covered.flatten().tolist()} <= {1.0, float(engines)}, "split, or the whole on each"


@given(st.integers(1, 200), st.integers(1, 9))
def test_shards_are_those_of_torch_chunk(rows, ranks):
    chunks = [len(c) for c in torch.chunk(torch.zeros(rows), ranks)]
    sizes = [p.bottom - p.top for p in (sync_pieces.trainer_part((rows,), 1, ranks, r) for r in range(ranks))]
    assert sizes == chunks + [0] * (ranks - len(chunks))


def test_the_step_measures_the_control_beside_it_and_says_the_ratio(engine):
    runs = sync.collect(engine, TINY, [None, None], "gloo-reshard@2", repeats=2, deadline_s=60)
    assert list(runs.arms) == ["gloo-reshard@2", "gloo-gather@2"] and all(a.complete and a.compared == 8 for a in runs.run)
    ids = [f.id for f in rules.judge(runs, place(runs.devices))]
    assert ids == ["weight-sync-reshard", "rehearsed-without-gpu", "weight-sync-verified"]
    assert f"{runs.run[0].steady_s / runs.run[1].steady_s:.2f}" in against_control(runs)[0].title


@pytest.mark.parametrize(("methods", "wanted"), [("gloo-reshard", ["gloo-reshard", "gloo-gather"]), ("gloo-gather@1", ["gloo-gather@1"]),
                                                 ("nccl-reshard@2,disk", ["nccl-reshard@2", "nccl-gather@2", "disk"])])
def test_a_control_comes_with_its_method(methods, wanted):
    assert sync.methods_of(methods) == wanted and control(wanted[-1]) == wanted[-1]


def test_trainers_are_one_number():
    with pytest.raises(ValueError, match="gloo-reshard@1\\+2"):
        sync.methods_of("gloo-reshard@1+2")
    assert not any(m.startswith("gloo-reshard") for m in sync.methods_of("all", [0, 1])) and "nccl-reshard" in sync.methods_of(
        "all", [0, 1]
    )
