"""Safetensors headers: where each tensor lies. No weight is read, and a file may be anybody's.

Format: eight bytes of length, a JSON object, the data (safetensors 0.6, README). Unlike the library,
this reader accepts holes between tensors."""

import dataclasses
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

from nccl_runbook.core.redact import clipped

# bits of a value; safetensors 0.6, safetensors/src/tensor.rs
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
MOST_HEADER = 32 << 20  # all headers of Kimi-K2, with 140,000 tensors, have 20 MiB
MOST_TENSORS = 1 << 18
MOST_VALUES = 1 << 48
CONVERT = "save it as safetensors first (safetensors.torch.save_file)"


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor in a safetensors file. ``start`` and ``size``: bytes from the beginning of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def checkpoint(path: str) -> dict[str, Place]:
    """Tensor name -> place, of a safetensors file, an index, or a folder. ValueError with one sentence."""
    at = Path(path).expanduser()
    at = at.parent if at.name.endswith(".safetensors.index.json") else at
    files = sorted(map(str, at.glob("*.safetensors"))) if at.is_dir() else [str(at)]
    indices = at.glob("*.safetensors.index.json")
    missing = [n for index in indices for n in _shards(index) if str(at / n) not in files]
    tensors = [*itertools.islice((item for file in files for item in header(file).items()), MOST_TENSORS + 1)]
    refuse(
        (not files, f"{path} contains no .safetensors file; if there are .pt or .bin files, {CONVERT}"),
        (missing, f"{path} lacks {missing[:1]}, which its index names"),
        (len(tensors) > MOST_TENSORS, f"{path} has more than {MOST_TENSORS} tensors"),
        (len(tensors) > len(dict(tensors)), f"{path}: two of its files contain the same tensor"),
    )
    return dict(tensors)


def refuse(*wrong: tuple[Any, str]) -> None:
    """ValueError with the first sentence that applies; nothing if none does."""
    for why in [why for applies, why in wrong if applies]:
        raise ValueError(clipped(why, 400))


def _shards(index: Path) -> list[Any]:
    named = json_object(first_bytes(str(index), MOST_HEADER)[0], str(index)).get("weight_map")
    return [n for n in {*map(str, named.values())} if "/" not in n] if isinstance(named, dict) else []


def first_bytes(path: str, size: int) -> tuple[bytes, int]:
    """(first ``size`` bytes, bytes of the whole file). ValueError if it is no regular file, or not
    readable."""
    refuse(
        (os.path.exists(path) and not os.path.isfile(path), f"cannot read {path}: it is not a regular file")
    )
    try:  # to open a pipe would wait for its writer
        with open(path, "rb") as file:
            # no more than there is: a file of /proc may wait for its next line
            return file.read(min(size, whole := os.fstat(file.fileno()).st_size)), whole
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def header(path: str) -> dict[str, Place]:
    """Tensor name -> place, in the order of the bytes. ValueError if the file is a pickle, cut, or no
    safetensors."""
    start, whole = first_bytes(path, 8)
    length = int.from_bytes(start, "little")
    refuse(
        (
            start[:2] == b"PK" or (start[:1] == b"\x80" and length > whole),
            f"{path} is a PyTorch pickle, which can run code, so {CONVERT}",
        ),
        (
            not 2 <= length <= min(MOST_HEADER, whole - 8),
            f"{path} is not a safetensors file, or was cut off, because a header of {length} bytes "
            "does not fit",
        ),
    )
    listed = json_object(first_bytes(path, 8 + length)[0][8:], path)
    places = [
        (n, _place(path, n, tensor, 8 + length, whole)) for n, tensor in listed.items() if n != "__metadata__"
    ]
    return dict(sorted(places, key=lambda named: named[1].start))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse(
        (
            len({name for name, _ in pairs}) != len(pairs),
            "readers of safetensors disagree about a name that occurs twice",
        )
    )
    return dict(pairs)


def json_object(data: bytes, path: str) -> dict[str, Any]:
    """What these bytes of ``path`` hold. ValueError if they are no JSON object, or name something twice."""
    try:
        entries = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it cannot be read as JSON") from error
    refuse((not isinstance(entries, dict), f"{path}: it is not a JSON object"))
    return entries


def _place(path: str, name: str, tensor: Any, data: int, whole: int) -> Place:
    fields = tensor if isinstance(tensor, dict) else {}
    dtype, shape, place = (fields.get(field) for field in ("dtype", "shape", "data_offsets"))
    lists = isinstance(shape, list) and isinstance(place, list) and len(place) == 2
    numbers = [*shape, *place] if lists and len(shape) <= 64 else [-1]
    refuse(
        (
            not isinstance(dtype, str) or dtype not in BITS,
            f"{path}: {name[:200]} has dtype {str(dtype)[:40]}, which is not known here",
        ),
        (
            not all(type(n) is int and 0 <= n < MOST_VALUES for n in numbers),
            f"{path}: {name[:200]} has no shape or position that a tensor can have",
        ),
    )
    size = place[1] - place[0]
    refuse(
        (
            size * 8 != math.prod(shape) * BITS[dtype] or data + place[1] > whole,
            f"{path} is cut or damaged: {name[:200]} does not fit",
        )
    )
    return Place(path, dtype, tuple(shape), data + place[0], size)


def first_difference(a: dict[str, Place], b: dict[str, Place]) -> str:
    """The first tensor whose name, dtype or shape differs; empty if all agree."""
    for name in itertools.chain(a, b):
        here, there = (f"{c[name].dtype} {[*c[name].shape]}" if name in c else "missing" for c in (a, b))
        if here != there:
            return clipped(f"{name[:200]} is {here} in the first checkpoint, and {there} in the second", 400)
    return ""
