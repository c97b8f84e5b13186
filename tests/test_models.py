"""Shapes of public models, and that a rank makes the same tensors of them."""
from __future__ import annotations

import errno
import itertools
import json
import math
import os

import pytest
from bench_sync import size_bytes
from hypothesis import given, strategies as st
from nccl_runbook.ranks.sync_shapes import tensors
from nccl_runbook.sync import models

# tensors and bytes in bfloat16 of the published checkpoints, from their safetensors indices
PUBLISHED = {"Qwen/Qwen2.5-0.5B": (290, 988_065_536), "Qwen/Qwen2.5-1.5B": (338, 3_087_428_608), "Qwen/Qwen2.5-7B": (339, 15_231_233_024),
             "Qwen/Qwen2.5-32B": (771, 65_527_752_704), "meta-llama/Llama-3.1-8B": (291, 16_060_522_496),
             "allenai/OLMo-2-1124-7B": (355, 14_597_234_688), "Qwen/Qwen3-30B-A3B": (18_867, 61_064_245_248),
             "Qwen/Qwen3-30B-A3B#fused-experts": (531, 61_064_245_248)}
small = st.integers(1, 6)
any_model = st.builds(
    dict,
    name=st.just("x/y"),
    template=st.sampled_from(("qwen2", "llama", "olmo2", "qwen3", "qwen3_moe")),
    hidden=small,
    intermediate=small,
    layers=small,
    heads=small,
    kv_heads=small,
    head_dim=small,
    vocab=small,
    tied=st.booleans(),
    experts=small,
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_and_bytes_are_those_of_the_published_checkpoint(name):
    spec = models.find(name)
    assert (len(tensors(spec)), size_bytes(spec)) == PUBLISHED[name]
    assert len(json.dumps(spec)) < 4000, "it travels in argv"


def test_every_model_is_checked():
    assert set(models.load()) == set(PUBLISHED)


@given(any_model)
def test_names_are_unique_and_layers_add_up(dimensions):
    model = models.decoder(**dimensions)
    whole, part = tensors(model), tensors(models.part(model, 1))
    assert len({n for n, _ in whole}) == len(whole)
    per_layer = len(model["layer"]) + dimensions["experts"] * len(model["experts"].get("each", []))
    assert len(whole) - len(part) == (model["layers"] - 1) * per_layer
    assert any(n == "lm_head.weight" for n, _ in whole) is not dimensions["tied"]


def test_part_of_the_layers_is_said():
    spec = models.part(models.find("qwen2.5-0.5b"), 6)
    assert (spec["layers"], spec["layers_of"], len(tensors(spec))) == (6, 24, 74)
    with pytest.raises(ValueError, match=r"\b99\b.*\b24\b"):
        models.part(models.find("qwen2.5-0.5b"), 99)


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ValueError, match=r"'Qwen/Qwen2\.5-7BB'.* Qwen/Qwen2\.5-7B\b"):
        models.find("Qwen/Qwen2.5-7BB")


CONFIG = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
          "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}


def test_a_config_json_gives_the_same_tensors_as_the_table(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (tmp_path, tmp_path / "config.json"):
        assert tensors(models.find(str(path))) == tensors(models.find("qwen2.5-0.5b"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox'.*safetensors"),
        ({"hidden_size": "x"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"head_dim": 10**12}, "head_dim"),
        ({"num_hidden_layers": 2**31}, "25769803778 tensors\\b"),
        ({"model_type": {"a": 1}}, "'a': 1"),
        ({"model_type": "qwen3_moe", "moe_intermediate_size": 8, "num_experts": 2**30}, r"\d tensors\b"),
        ({"model_type": "llama", "attention_bias": True}, "'llama with attention_bias'.*safetensors"),
    ],
)
def test_a_config_json_that_tells_no_shapes_says_why(tmp_path, change, message):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ValueError, match=message):
        models.find(str(tmp_path))


def shard(path, entries):
    """With a hole in place of the values: it takes no room on the disk."""
    ends = [0, *itertools.accumulate(4 * math.prod(shape) for _, shape in entries)]
    listed = {n: {"dtype": "F32", "shape": s, "data_offsets": [*ends[at : at + 2]]} for at, (n, s) in enumerate(entries)}
    text = json.dumps({"__metadata__": {}, **listed}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + ends[-1])


def test_a_safetensors_index_gives_what_its_files_hold(tmp_path):
    wanted = tensors(models.find("qwen2.5-0.5b"))
    shard(tmp_path / "a.safetensors", wanted[:100])
    shard(tmp_path / "b.safetensors", wanted[100:])
    index = {"metadata": {}, "weight_map": {n: "a.safetensors" if i < 100 else "b.safetensors" for i, (n, _) in enumerate(wanted)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = models.find(str(tmp_path))
    assert sorted(tensors(found)) == sorted(wanted) and found["layers"] == 24 and len(json.dumps(found)) < 4000
    assert len(tensors(models.part(found, 2))) == 2 * 12 + 2
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=rf"b\.safetensors: {os.strerror(errno.ENOENT)}"):
        models.find(str(tmp_path / "model.safetensors.index.json"))


def test_files_without_a_byte_and_names_that_no_file_has_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    for entries in ([], [("a", [0, 5])]):
        shard(path, entries)
        with pytest.raises(ValueError, match=rf"m\.safetensors.*\b{len(entries)} tensors"):
            models.find(str(path))
    path.write_bytes((10**5).to_bytes(8, "little") + b"[" * 10**5)
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        models.find(str(path))
    with pytest.raises(ValueError, match="unknown model"):
        models.find("a" * 5000)


def test_a_tensor_that_two_files_hold_moves_once(tmp_path):
    for name in ("a", "b"):
        shard(tmp_path / f"{name}.safetensors", [("x", [2]), (name, [3])])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "a.safetensors", "b": "b.safetensors"}}))
    assert sorted(n for n, _ in tensors(models.find(str(tmp_path)))) == ["a", "b", "x"]


def test_layers_that_differ_are_listed_one_by_one(tmp_path):
    entries = [("layers.0.a", [2, 3]), ("layers.1.a", [2, 4]), ("x", [])]
    shard(tmp_path / "m.safetensors", entries)
    found = models.find(str(tmp_path / "m.safetensors"))
    assert found["layers"] == 0 and tensors(found) == entries


@given(st.binary(max_size=200))
def test_a_file_of_junk_is_refused_in_one_sentence(tmp_path_factory, junk):
    path = tmp_path_factory.mktemp("junk") / "m.safetensors"
    path.write_bytes(junk)
    try:
        models.find(str(path))
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
