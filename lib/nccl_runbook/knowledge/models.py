"""Public models: their dimensions, and the tensor names and shapes that follow from them."""
from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import tomllib
from pathlib import Path
from typing import Any

BYTES_PER_ELEMENT = 2  # bfloat16, which trainers hand to engines
_PREFIX = "model.layers.{i}."


@dataclasses.dataclass(frozen=True)
class Model:
    """Dimensions of one decoder-only model; ``template`` names its layer layout, ``vocab`` counts the stored rows of the embedding."""

    name: str
    template: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    def spec(self, layers: int = 0) -> dict[str, Any]:
        """What a rank needs to make the tensors, as JSON of about 1 kB: head, one layer, its count, tail.

        ``layers``: only so many of the model's layers, for a machine that cannot hold or move them all; 0 for all.
        """
        return {"name": self.name, "dtype": "bfloat16", "head": [["model.embed_tokens.weight", [self.vocab, self.hidden]]],
                "layers": min(layers, self.layers) if layers else self.layers, "layers_of": self.layers, "prefix": _PREFIX,
                "layer": _attention(self) + _mlp_and_norms(self),
                "tail": [["model.norm.weight", [self.hidden]]] + ([] if self.tied else [["lm_head.weight", [self.vocab, self.hidden]]])}


def _attention(m: Model) -> list[list[Any]]:
    """Projections as torch stores them, [out, in]. Qwen2 has a bias on q, k and v; OLMo-2 norms the whole query and key."""
    rows = {"q": m.heads * m.head_dim, "k": m.kv_heads * m.head_dim, "v": m.kv_heads * m.head_dim}
    found: list[list[Any]] = []
    for letter, out in rows.items():
        found.append([f"self_attn.{letter}_proj.weight", [out, m.hidden]])
        if m.template == "qwen2":
            found.append([f"self_attn.{letter}_proj.bias", [out]])
    found.append(["self_attn.o_proj.weight", [m.hidden, rows["q"]]])
    if m.template == "olmo2":
        found += [["self_attn.q_norm.weight", [rows["q"]]], ["self_attn.k_norm.weight", [rows["k"]]]]
    return found


def _mlp_and_norms(m: Model) -> list[list[Any]]:
    norms = ["post_attention_layernorm"]
    norms = [*norms, "post_feedforward_layernorm"] if m.template == "olmo2" else ["input_layernorm", *norms]
    return [["mlp.gate_proj.weight", [m.intermediate, m.hidden]], ["mlp.up_proj.weight", [m.intermediate, m.hidden]],
            ["mlp.down_proj.weight", [m.hidden, m.intermediate]], *([f"{norm}.weight", [m.hidden]] for norm in norms)]


def tensors(spec: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Every tensor's name and shape, in the order in which they are stored."""
    middle = [(spec["prefix"].format(i=i) + name, shape) for i in range(spec["layers"]) for name, shape in spec["layer"]]
    return [*((n, s) for n, s in spec["head"]), *middle, *((n, s) for n, s in spec["tail"])]


def size_bytes(spec: dict[str, Any]) -> int:
    """Bytes of all tensors of the spec in bfloat16."""
    return sum(math.prod(shape) for _, shape in tensors(spec)) * BYTES_PER_ELEMENT


@functools.cache
def load() -> dict[str, Model]:
    """Every known model by its published name."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: Model(name=name, **fields) for name, fields in tomllib.loads(text).items()}


def spec_of(name: str, layers: int = 0) -> dict[str, Any]:
    """The spec of that model, {} for no name. ValueError names the nearest one that is known."""
    return find(name).spec(layers) if name else {}


def find(name: str) -> Model:
    """The model of that name, its organisation and upper case optional. ValueError names the nearest one that is known."""
    known = load()
    for full, model in known.items():
        if name.lower() in (full.lower(), full.split("/")[1].lower()):
            return model
    near = difflib.get_close_matches(name, known, 1, 0.4)
    raise ValueError(f"unknown model {name!r}: " + (f"did you mean {near[0]}? " if near else "") + f"known: {', '.join(known)}")
