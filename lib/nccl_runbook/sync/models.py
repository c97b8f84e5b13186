"""Public models, and any other by its config.json or its safetensors files: tensor names and
shapes. No weight is read."""

import difflib
import functools
import json
import math
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Unusable, grouped
from nccl_runbook.sync.pays.read import MOST_HEADER, first_bytes, header, json_object

_LAYOUTS = ("qwen2", "llama", "olmo2", "qwen3", "qwen3_moe")
_MOST = 1 << 32  # of one dimension
# Qwen3-30B-A3B unfused has 18,867; a slip of the pen in a config.json would fill the ranks' memory
_MOST_TENSORS = 1 << 20


def part(spec: dict[str, Any], layers: int = 0) -> dict[str, Any]:
    """The model with only this many layers, for a machine that cannot hold or move all of them; 0 for all.
    Its ``line`` is shell text that prints this specification."""
    own = [sys.executable, "-m", "nccl_runbook.sync.models", spec.get("source", spec["name"]), str(layers)]
    if layers > spec["layers_of"]:
        raise Unusable(f"layers: {layers} is more than the {spec['layers_of']} layers of {spec['name']}")
    return {
        **spec,
        "layers": layers or spec["layers_of"],
        "line": f'"$({shlex.join(own)})"',
    }


def _spec(
    name: str,
    head: list[Any],
    layer: list[Any],
    layers: int,
    prefix: str,
    tail: list[Any],
    experts: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a rank needs to make the tensors, as JSON of about 1 kB: those outside the layers, those of one
    layer, as all are alike, and those of each expert in a layer."""
    return {
        "name": name,
        "dtype": "bfloat16",
        "head": head,
        "layers": layers,
        "layers_of": layers,
        "prefix": prefix,
        "layer": layer,
        "experts": experts or {},
        "tail": tail,
    }


def decoder(
    name: str,
    template: str,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    tied: bool,
    experts: int = 0,
) -> dict[str, Any]:
    """A decoder-only model. ``template``: its layer in layouts.toml; ``vocab``: stored rows of the
    embedding."""
    sizes = {
        "hidden": hidden,
        "intermediate": intermediate,
        "gate_up": 2 * intermediate,
        "experts": experts,
        "head_dim": head_dim,
        "query": heads * head_dim,
        "key": kv_heads * head_dim,
    }
    rows = {
        part: [[tensor, [sizes[dimension] for dimension in shape]] for tensor, *shape in listed]
        for part, listed in table("sync/layouts")[template].items()
    }
    return _spec(
        name,
        [["model.embed_tokens.weight", [vocab, hidden]]],
        rows["layer"],
        layers,
        "model.layers.{i}.",
        [["model.norm.weight", [hidden]], *([] if tied else [["lm_head.weight", [vocab, hidden]]])],
        {"count": experts, "prefix": "mlp.experts.{e}.", "each": rows["each"]} if "each" in rows else {},
    )


@functools.cache
def load() -> dict[str, dict[str, Any]]:
    """Published name -> spec of every known model."""
    return {name: decoder(name, **fields) for name, fields in table("sync/models").items()}


def find(name: str) -> dict[str, Any]:
    """The spec of a model by name (organisation and case are optional), or of a config.json, a safetensors
    file or index, or a folder. ValueError names the nearest known model, or says what is wrong with the
    file."""
    known = load()
    for full, model in known.items():
        if name.lower() in (full.lower(), full.split("/")[1].lower()):
            return model
    if os.path.exists(name):
        return {**_bounded(_from_path(Path(name)), name), "source": os.path.abspath(name)}
    near = difflib.get_close_matches(name, known, 1, 0.4)
    raise Unusable(
        f"unknown model {name!r}: "
        + (f"did you mean {near[0]}? " if near else "")
        + f"known: {', '.join(known)}"
    )


def _bounded(spec: dict[str, Any], path: str) -> dict[str, Any]:
    """The model, if ranks can make it: some bytes, and no more tensors than a model has."""
    count = len(spec["head"] + spec["tail"]) + spec["layers"] * (
        len(spec["layer"]) + 3 * spec["experts"].get("count", 0)
    )
    if count > _MOST_TENSORS or not any(
        math.prod(shape) for _, shape in spec["head"] + spec["layer"] + spec["tail"]
    ):
        raise Unusable(
            f"{path} has {count} tensors{' without a byte' if count <= _MOST_TENSORS else ''}, so it "
            "is not a model that a sync can move"
        )
    return spec


def _from_path(path: Path) -> dict[str, Any]:
    if path.is_dir():
        files = [
            path / n
            for n in ("model.safetensors.index.json", "model.safetensors", "config.json")
            if (path / n).is_file()
        ]
        if not files:
            raise Unusable(f"{path} contains no config.json and no safetensors files")
        path = files[0]
    if path.suffix == ".safetensors":
        return _listed(path.name, _shapes(path))
    document = json_object(first_bytes(str(path), MOST_HEADER)[0], str(path))
    if isinstance(document.get("weight_map"), dict):
        shards = {n for n in document["weight_map"].values() if isinstance(n, str)}
        merged = dict(
            entry for name in sorted(shards) for entry in _shapes(path.parent / Path(name).name).items()
        )
        return _listed(path.parent.name or str(path), merged)
    return _from_config(path, document)


def _from_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    further = [name for name in ("attention_bias", "mlp_bias", "mlp_only_layers") if config.get(name)]
    kind = " with ".join([re.sub("^mistral$", "llama", str(config.get("model_type", ""))), *further])
    if kind not in _LAYOUTS:
        raise Unusable(
            f"{path}: the tensors of a {kind[:60]!r} model are not known (known: "
            f"{', '.join(_LAYOUTS)}). Name its safetensors index instead"
        )

    def number(*names: str) -> int:
        value = next((config[n] for n in names if config.get(n) is not None), None)
        if type(value) is not int or not 0 < value < _MOST:
            raise Unusable(f"{path}: {names[0]} is missing, or is not a possible value")
        return value

    moe, hidden, heads = kind == "qwen3_moe", number("hidden_size"), number("num_attention_heads")
    return decoder(
        path.parent.name or str(path),
        kind,
        hidden,
        heads=heads,
        layers=number("num_hidden_layers"),
        intermediate=number("moe_intermediate_size" if moe else "intermediate_size"),
        vocab=number("vocab_size"),
        kv_heads=number("num_key_value_heads", "num_attention_heads"),
        tied=config.get("tie_word_embeddings") is True,
        head_dim=hidden // heads if config.get("head_dim") is None else number("head_dim"),
        experts=number("num_experts") if moe else 0,
    )


def _shapes(path: Path) -> dict[str, list[int]]:
    """Names and shapes of one safetensors file."""
    return {name: [*place.shape] for name, place in header(str(path)).items()}


def _listed(name: str, shapes: dict[str, list[int]]) -> dict[str, Any]:
    """Tensors of equal layers once; all of them one by one if layers differ."""
    matches = {tensor: re.match(r"(.*?\blayers\.)(\d{1,4})\.(.+)", tensor) for tensor in shapes}
    prefix = next((m[1] for m in matches.values() if m), "")
    inside = {tensor: m for tensor, m in matches.items() if m and m[1] == prefix}
    layers = grouped((int(m[2]), [m[3], shapes[tensor]]) for tensor, m in inside.items())
    rest = [[tensor, shape] for tensor, shape in shapes.items() if tensor not in inside]
    if len({json.dumps(sorted(layer)) for layer in layers.values()}) != 1 or sorted(layers) != list(
        range(len(layers))
    ):
        return _spec(name, list(map(list, shapes.items())), [], 0, "", [])
    return _spec(
        name, rest, layers[0], len(layers), prefix.replace("{", "{{").replace("}", "}}") + "{i}.", []
    )


if __name__ == "__main__":  # in the lines that repeat a weight sync
    print(json.dumps(part(find(sys.argv[1]), int(sys.argv[2]))))
