"""Did the weights arrive? Digests of trainer and engine, whatever each calls, fuses and cuts its tensors."""
from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from nccl_runbook.core.findings import Severity
from nccl_runbook.sync.arrived import digest, read
from nccl_runbook.sync.arrived.judge import judge
from nccl_runbook.sync.arrived.table import arrival_table
from processes import ROOT
from warm_cli import read_cli

HIDDEN, QUERY, KEY, INNER, EXPERTS, VOCAB = 8, 8, 4, 12, 3, 20
LAYER = {"self_attn.q_proj.weight": (QUERY, HIDDEN), "self_attn.k_proj.weight": (KEY, HIDDEN), "self_attn.v_proj.weight": (KEY, HIDDEN),
         "self_attn.q_proj.bias": (QUERY,), "self_attn.k_proj.bias": (KEY,), "self_attn.v_proj.bias": (KEY,),
         "self_attn.o_proj.weight": (HIDDEN, QUERY), "mlp.gate_proj.weight": (INNER, HIDDEN), "mlp.up_proj.weight": (INNER, HIDDEN),
         "mlp.down_proj.weight": (HIDDEN, INNER), "input_layernorm.weight": (HIDDEN,),
         **{f"moe.experts.{e}.{part}.weight": shape for e in range(EXPERTS)
            for part, shape in (("gate_proj", (INNER, HIDDEN)), ("up_proj", (INNER, HIDDEN)), ("down_proj", (HIDDEN, INNER)))}}


def trainer(seed=1):
    made = torch.Generator().manual_seed(seed)
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        **{f"model.layers.{i}.{n}": s for i in (0, 1) for n, s in LAYER.items()},
        "model.norm.weight": (HIDDEN,),
    }
    return {name: torch.randn(shape, generator=made).to(torch.bfloat16) for name, shape in shapes.items()}


def engine(held, rank=0, ranks=1):
    """As vLLM holds it: qkv, gate_up and experts fused, each rank its part; rows padded to a multiple of 8 x ranks."""

    def part(tensor, dim=0):
        return tensor.chunk(ranks, dim)[rank]

    embed = torch.cat([held["model.embed_tokens.weight"], torch.zeros((-VOCAB) % (8 * ranks), HIDDEN, dtype=torch.bfloat16)])
    fused = {"model.embed_tokens.weight": part(embed), "model.norm.weight": held["model.norm.weight"]}
    for layer in ("model.layers.0.", "model.layers.1."):
        def of(*names, dim=0, layer=layer):
            return torch.cat([part(held[layer + n], dim) for n in names])

        fused |= {f"{layer}self_attn.qkv_proj.{kind}": of(*(f"self_attn.{p}_proj.{kind}" for p in "qkv")) for kind in ("weight", "bias")}
        fused |= {f"{layer}mlp.gate_up_proj.weight": of("mlp.gate_proj.weight", "mlp.up_proj.weight"),
                  f"{layer}input_layernorm.weight": held[f"{layer}input_layernorm.weight"]}
        fused |= {layer + n: of(n, dim=1) for n in ("self_attn.o_proj.weight", "mlp.down_proj.weight")}
        each = [f"moe.experts.{e}." for e in range(EXPERTS)]
        fused |= {f"{layer}moe.experts.w13_weight": torch.stack([of(e + "gate_proj.weight", e + "up_proj.weight") for e in each]),
                  f"{layer}moe.experts.w2_weight": torch.stack([of(e + "down_proj.weight", dim=1) for e in each])}
    return fused


@pytest.fixture
def compared(tmp_path):
    def compare(held, *ranks):
        paths = [str(tmp_path / f"{number}.json") for number in range(len(ranks) + 1)]
        for path, tensors in zip(paths, [held, *ranks], strict=True):
            digest.save(tensors.items(), path)
        return read.collect(paths[0], ",".join(paths[1:]))

    return compare


def wrong(arrival):
    return [((p.engine or p.trainer)[0], p.said) for p in arrival.differing]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_an_engine_fuses_cuts_and_pads_is_the_same(compared, ranks):
    held = trainer()
    arrival = compared(held, *(engine(held, rank, ranks) for rank in range(ranks)))
    assert wrong(arrival) == [] and arrival.ranks == ranks and len(arrival.pairs) == 2 + 2 * 8
    loose = {p.engine[0].split(".", 3)[-1] for p in arrival.pairs if p.said == "same-rows-in-any-order"}
    assert loose == (
        set()
        if ranks == 1
        else {"self_attn.qkv_proj.weight", "self_attn.qkv_proj.bias", "mlp.gate_up_proj.weight", "moe.experts.w13_weight"}
    )
    found = judge(arrival)[0]
    assert (found.id, found.severity) == ("weights-arrived", Severity.NOTE if loose else Severity.OK) and not arrival_table(arrival).rows


def test_the_other_way_round_and_a_tied_head_are_the_same(compared):
    held = trainer()
    assert wrong(compared(engine(held), held)) == [("model.embed_tokens.weight", "shape")], "the engine may pad, the trainer not"
    assert wrong(compared({**held, "lm_head.weight": held["model.embed_tokens.weight"]}, held)) == []
    assert wrong(compared(held, {**held, "lm_head.weight": held["model.embed_tokens.weight"]})) == []
    assert wrong(compared({**held, "lm_head.weight": held["model.embed_tokens.weight"] + 1}, held)) == [
        ("model.embed_tokens.weight", "values")
    ]


def test_wrappers_of_torch_are_no_difference(compared):
    held = trainer()
    wrapped = {"module._orig_mod." + n.replace("layers.0.", "layers.0._checkpoint_wrapped_module."): t for n, t in held.items()}
    assert wrong(compared(wrapped, engine(held))) == []


def changed(tensors, name, change):
    return {**tensors, name: change(tensors[name].clone())}


def flip(tensor):
    tensor.view(torch.int16).view(-1)[-1] ^= 1
    return tensor


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("model.layers.1.self_attn.qkv_proj.weight", flip, "values"),
        ("model.layers.0.moe.experts.w2_weight", flip, "values"),
        ("model.layers.1.mlp.down_proj.weight", lambda t: t.flip(0), "values"),
        ("model.layers.1.mlp.down_proj.weight", lambda t: t.flip(1), "values"),
        ("model.norm.weight", lambda t: t.to(torch.float16), "dtype"),
        ("model.layers.0.input_layernorm.weight", lambda t: t[:-1], "shape"),
        ("model.embed_tokens.weight", lambda t: t[:-14], "shape"),
        ("model.layers.0.self_attn.qkv_proj.bias", torch.zeros_like, "values"),
    ],
)
def test_what_did_not_arrive_is_named_with_what_differs(compared, ranks, name, change, said):
    held = trainer()
    arrival = compared(
        held, *(changed(engine(held, r, ranks), name, change) if r == ranks - 1 else engine(held, r, ranks) for r in range(ranks))
    )
    assert wrong(arrival) == [(name, said)]
    assert judge(arrival)[0].id == "weights-differ" and name in judge(arrival)[0].title and len(arrival_table(arrival).rows) == 1


def test_stale_weights_and_names_that_are_swapped_or_missing(compared):
    held, old = trainer(), trainer(2)
    assert len(wrong(compared(held, engine(old)))) == 18, "all of them"
    gate, up = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    assert wrong(compared(held, engine({**held, gate: held[up], up: held[gate]}))) == [("model.layers.0.mlp.gate_up_proj.weight", "values")]
    assert wrong(compared({n: t for n, t in held.items() if n != "model.norm.weight"}, engine(held))) == [("model.norm.weight", "absent")]
    fused = engine(held)
    del fused["model.layers.1.self_attn.qkv_proj.weight"]
    assert wrong(compared(held, fused)) == [(f"model.layers.1.self_attn.{p}_proj.weight", "absent") for p in "qkv"]
    assert wrong(compared(held, engine(held, 0, 2), {n: t for n, t in engine(held, 1, 2).items() if n != "model.norm.weight"})) == [
        ("model.norm.weight", "absent")
    ]


def test_a_trainer_that_keeps_more_is_compared_as_the_engine_holds_it(tmp_path):
    wide = {name: tensor.float() + 1e-5 for name, tensor in trainer().items()}
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    digest.save(wide.items(), str(a), dtype=torch.bfloat16)
    digest.save(((n, t.to(torch.bfloat16)) for n, t in wide.items()), str(b))
    assert wrong(read.collect(str(a), str(b))) == []
    digest.save(wide.items(), str(a))
    assert {said for _, said in wrong(read.collect(str(a), str(b)))} == {"dtype"}
    digest.save(wide.items(), "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


matrices = st.tuples(
    st.integers(1, 6), st.integers(1, 6), st.sampled_from([torch.bfloat16, torch.float32, torch.int8, torch.float64]), st.integers(0, 9)
)


def held_of(tensor):
    return read._held("x", tensor.shape, digest.sums(tensor))


def random(rows, columns, dtype, seed):
    return (torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype)


@given(matrices, st.lists(st.integers(0, 7), max_size=4), st.sampled_from([0, 1]), st.integers(1, 9))
def test_sums_of_parts_add_up_to_those_of_the_whole_however_it_is_cut(made, cuts, dim, block):
    whole = random(*made)
    edges = sorted({0, whole.shape[dim], *(min(c, whole.shape[dim]) for c in cuts)})
    parts = [whole.narrow(dim, a, b - a) for a, b in itertools.pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "BLOCK", block)
        assert read.joined([held_of(p) for p in parts], side_by_side=dim == 1) == held_of(whole)


@given(matrices, matrices)
def test_sums_are_equal_only_where_all_bits_are(one, other):
    a, b = random(*one), random(*other)
    if a.shape == b.shape and a.dtype == b.dtype:
        assert (digest.sums(a) == digest.sums(b)) == torch.equal(a, b)
    rows = a.flip(0)
    assert (digest.sums(rows) == digest.sums(a)) == torch.equal(rows, a)


names = st.lists(
    st.sampled_from(
        [
            "a.q_proj.weight",
            "a.k_proj.weight",
            "a.v_proj.weight",
            "a.qkv_proj.weight",
            "x.experts.w13_weight",
            "lm_head.weight",
            "x.experts.gate_up_proj",
            "x.experts.0.gate_proj.weight",
            "x.experts.0.up_proj.weight",
            "model.embed_tokens.weight",
        ]
    ),
    unique=True,
)


@given(names, names)
def test_no_tensor_of_either_side_is_passed_over(a, b):
    sides = [dict.fromkeys(names) for names in (a, b)]
    pairs = read.counterparts(*sides)
    assert {n for one, _ in pairs for n in one} == {*a} and {n for _, other in pairs for n in other} == {*b}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    for document in (content, {"tensors": content}, {"tensors": {"a": content}}, {"tensors": {"a": ["x", content, ["0", "0", "0"]]}}):
        path.write_text(json.dumps(document))
        try:
            assert read.collect(str(path), str(path)).differing == []
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def arrived(*arguments):
    return read_cli("sync", "--arrived", *arguments)


def test_the_command_ends_with_0_3_or_2(tmp_path):
    held = trainer()
    paths = {name: tmp_path / f"{name}.json" for name in ("trainer", "good", "bad", "other")}
    for name, tensors in (
        ("trainer", held),
        ("good", engine(held)),
        ("bad", changed(engine(held), "model.norm.weight", flip)),
        ("other", {"w": held["model.norm.weight"]}),
    ):
        digest.save(tensors.items(), str(paths[name]))
    assert arrived(paths["trainer"], paths["good"]).returncode == 0
    bad = arrived(paths["trainer"], paths["bad"], "--json")
    assert bad.returncode == 3 and [f["id"] for f in json.loads(bad.stdout)["findings"]] == ["weights-differ"]
    for path in (paths["other"], tmp_path / "none.json", Path(__file__)):
        none = arrived(paths["trainer"], path)
        assert none.returncode == 2 and str(path) in none.stderr and len(none.stderr.splitlines()) == 1


def test_the_file_to_copy_needs_nothing_of_ours(tmp_path):
    source = ROOT / "lib/nccl_runbook/sync/arrived/digest.py"
    spec = importlib.util.spec_from_file_location("copied", source)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert not re.search(r"nccl_runbook\.|from nccl_runbook", source.read_text())
    copied.save(
        [("a", torch.ones(3, dtype=torch.bfloat16)), ("scalar", torch.tensor(1.5)), ("empty", torch.zeros(0, 4))], str(tmp_path / "a.json")
    )
    assert {n: t[:2] for n, t in json.loads((tmp_path / "a.json").read_text())["tensors"].items()} == {
        "a": ["bfloat16", [3]], "scalar": ["float32", []], "empty": ["float32", [0, 4]]}
