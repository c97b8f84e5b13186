"""Counts what changed between two checkpoints, in a child, which a disk that hangs or a file that
shrinks may end."""

import json
import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nccl_runbook.core.facts import Gap, grouped
from nccl_runbook.sync.pays.facts import Comparison, Tensor
from nccl_runbook.sync.pays.read import BITS, Place, checkpoint, first_difference

ADDED = ("count", "values", "changed", "changed_bytes", "size", "delta", "fp8")
MOST_LISTED = 2000
INDEX_BYTES = 4  # of the place of a changed value; 8 in a tensor with 2^32 values or more
FP8_BLOCK = 128  # one float32 scale for 128 x 128 values (DeepSeek-V3, quantization_config.weight_block_size)
WIDE = ("F64", "F32", "F16", "BF16")
# what FP8 checkpoints leave as it is (modules_to_not_convert of Qwen3-FP8; DeepSeek-V3 keeps the same)
KEPT = ("embed", "lm_head", "norm", "mlp.gate.", "router")
PREFIXES = {"M": 1e-3, "G": 1.0, "T": 1e3, "Mi": 2**20 / 1e9, "Gi": 2**30 / 1e9, "Ti": 2**40 / 1e9}
_RATE = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([MGT]i?)(b|bit|B)(?:/s|ps)\s*")
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")
GRACE_S, LATE = 5.0, 3  # LATE: how count.py ends without time


def link_rate(text: str) -> float:
    """GB/s (1e9 bytes per second) from "25GB/s" or "200Gb/s". ValueError without a unit, which may mean
    bytes or bits."""
    rate = _RATE.fullmatch(text)
    if not rate or not float(rate[1]):
        raise ValueError(f"--link {text[:40]!r} is not a rate, such as 25GB/s (bytes) or 200Gb/s (bits)")
    return float(rate[1]) * PREFIXES[rate[2]] / (1 if rate[3] == "B" else 8)


def collect(a: str, b: str, link_gb_per_s: float, prefix: Sequence[str], within_s: float) -> Comparison | Gap:
    """What changed between two checkpoints and what each method would send; a Gap if time runs out.
    ``prefix``: argv of the Python that counts. ValueError with one sentence if a file cannot be read."""
    first, second = checkpoint(a), checkpoint(b)
    difference = first_difference(first, second)
    pairs = [] if difference else [(place, second[name]) for name, place in first.items()]
    lines = _counted(pairs, prefix, within_s) if pairs else ['["nothing", 0, 0]']
    if isinstance(lines, Gap):
        return lines
    tensors = [
        _tensor(name, place, *map(int, line.split()))
        for (name, place), line in zip(first.items(), lines[:-1])
    ]
    return Comparison(
        link_gb_per_s,
        difference,
        *json.loads(lines[-1]),
        _added("all", tensors),
        sorted(
            (_added(*kind) for kind in grouped((_NUMBERS.sub("*", t.name), t) for t in tensors).items()),
            key=lambda k: -k.changed,
        ),
        sorted(tensors, key=lambda t: -t.changed)[:MOST_LISTED],
    )


def _tensor(name: str, place: Place, changed: int, changed_bytes: int) -> Tensor:
    """With the bytes of the smallest delta: places and values, a bit mask and values, or all of it."""
    values, new = math.prod(place.shape), changed * BITS[place.dtype] // 8
    listed = (2 * INDEX_BYTES if values >> 32 else INDEX_BYTES) * changed + new
    delta = min(listed, -(-values // 8) + new, place.size) if changed else 0
    fp8 = place.size
    if place.dtype in WIDE and len(place.shape) > 1 and not any(word in name for word in KEPT):
        fp8 = values + 4 * math.prod(
            [*place.shape[:-2], *(-(-side // FP8_BLOCK) for side in place.shape[-2:])]
        )
    return Tensor(
        name=name,
        dtype=place.dtype,
        shape=[*place.shape],
        count=1,
        values=values,
        changed=changed,
        changed_bytes=changed_bytes,
        size=place.size,
        delta=delta,
        fp8=fp8,
    )


def _added(name: str, tensors: Sequence[Tensor]) -> Tensor:
    return Tensor(name, **{field: sum(getattr(t, field) for t in tensors) for field in ADDED})


def _counted(pairs: Sequence[tuple[Place, Place]], prefix: Sequence[str], within_s: float) -> list[str] | Gap:
    """The lines of count.py. Raises ValueError if it could not count."""
    files = {place.file: None for pair in pairs for place in pair}
    number = {file: at for at, file in enumerate(files)}
    spans = [
        (number[p.file], p.start, number[q.file], q.start, p.size, max(1, BITS[p.dtype] // 8))
        for p, q in pairs
    ]
    request = json.dumps({"files": [*files], "spans": spans, "seconds": within_s}) + "\n"
    program = Path(__file__).with_name("count.py").read_text(encoding="utf-8")
    command, late_s = [*prefix, "-c", program], within_s + GRACE_S
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=late_s)
    except OSError as error:
        raise ValueError(f"{prefix[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        return Gap(
            "timed-out",
            f"the comparison of the checkpoints did not end within {late_s:.0f} s, probably because a read "
            "from a file hangs",
        )
    lines = done.stdout.splitlines()
    if done.returncode == LATE:
        return Gap("timed-out", f"{len(lines)} of {len(pairs)} tensors were compared in {within_s:.0f} s")
    if done.returncode or len(lines) != len(pairs) + 1:
        raise ValueError(
            f"the checkpoints could not be compared: {done.stderr.strip().rpartition(chr(10))[2][:200]}"
        )
    return lines
