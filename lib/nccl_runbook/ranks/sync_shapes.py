"""The tensors that a spec names, for ranks and for who asks them. Standard library, Python >= 3.9."""

from typing import Any, Dict, List, Tuple


def tensors(spec: Dict[str, Any]) -> List[Tuple[str, List[int]]]:
    """Name and shape of every tensor, in storage order."""
    experts = spec.get("experts") or {"count": 0}
    each = [
        (experts["prefix"].format(e=e) + name, shape)
        for e in range(experts["count"])
        for name, shape in experts["each"]
    ]
    layers = [
        (spec["prefix"].format(i=i) + name, shape)
        for i in range(spec["layers"])
        for name, shape in [*spec["layer"], *each]
    ]
    return [*map(tuple, spec["head"]), *layers, *map(tuple, spec["tail"])]
