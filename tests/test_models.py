"""Shapes of public models, and that a rank makes the same tensors of them."""
from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_runbook.knowledge import models

# tensors and bytes in bfloat16 of the published checkpoints, from their safetensors indices
PUBLISHED = {"Qwen/Qwen2.5-0.5B": (290, 988_065_536), "Qwen/Qwen2.5-1.5B": (338, 3_087_428_608), "Qwen/Qwen2.5-7B": (339, 15_231_233_024),
             "Qwen/Qwen2.5-32B": (771, 65_527_752_704), "meta-llama/Llama-3.1-8B": (291, 16_060_522_496),
             "allenai/OLMo-2-1124-7B": (355, 14_597_234_688)}
small = st.integers(1, 6)
any_model = st.builds(models.Model, name=st.just("x/y"), template=st.sampled_from(("qwen2", "llama", "olmo2")), hidden=small, intermediate=small,
                      layers=small, heads=small, kv_heads=small, head_dim=small, vocab=small, tied=st.booleans())


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_and_bytes_are_those_of_the_published_checkpoint(name):
    spec = models.find(name).spec()
    assert (len(models.tensors(spec)), models.size_bytes(spec)) == PUBLISHED[name]
    assert len(json.dumps(spec)) < 4000, "it travels in argv"


def test_every_model_is_checked():
    assert set(models.load()) == set(PUBLISHED)


@given(any_model)
def test_names_are_unique_and_layers_add_up(model):
    whole, part = models.tensors(model.spec()), models.tensors(model.spec(1))
    assert len({n for n, _ in whole}) == len(whole)
    per_layer = len(model.spec()["layer"])
    assert len(whole) - len(part) == (model.layers - 1) * per_layer
    assert any(n == "lm_head.weight" for n, _ in whole) is not model.tied
    assert models.size_bytes(model.spec()) == 2 * sum(math.prod(shape) for _, shape in whole)


def test_part_of_the_layers_is_said():
    spec = models.find("qwen2.5-0.5b").spec(6)
    assert (spec["layers"], spec["layers_of"], len(models.tensors(spec))) == (6, 24, 74)
    assert models.find("qwen2.5-0.5b").spec(99)["layers"] == 24


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean Qwen/Qwen2.5-7B"):
        models.find("Qwen/Qwen2.5-7BB")
