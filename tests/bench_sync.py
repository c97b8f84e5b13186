"""Speed of weight syncs on GPUs, arms interleaved, memory touched before: the figures that `make bench` puts side by side.

    python tests/bench_sync.py [MODEL] [PYTHON]     prints one JSON object; two GPUs, about 100 s for Qwen/Qwen2.5-7B
"""
from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.ranks.sync_shapes import tensors
from nccl_runbook.sync import ask as sync, models
from nccl_runbook.sync.facts import SyncArm

MODEL = "Qwen/Qwen2.5-7B"  # 15.2 GB
# what each figure over its peer has to be; the peer of the first two is nccl-tests' broadcast on the same two GPUs
GOALS = {"wire": ">= 0.93", "whole": ">= 0.88", "ipc-direct": ">= 0.8", "fast-disk": ">= 12", "fast-disk-shm": ">= 12"}
# seconds of the median copy of a buffer of so many bytes inside one GPU
COPY = """
import json, sys, torch
n = int(sys.argv[1]); a = torch.ones(n, dtype=torch.uint8, device="cuda"); b = torch.zeros_like(a); found = []
for _ in range(7):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in "ab"); first.record(); b.copy_(a); last.record(); torch.cuda.synchronize()
    found.append(first.elapsed_time(last) / 1e3)
print(json.dumps(sorted(found)[3]))
"""


def torch_broadcast(engine: Engine, devices: list[int | None], size: int = 1 << 30) -> float:
    """Bytes a second of torch's broadcast of 1 GiB between these two: within 1 % of nccl-tests' (358.9 of 361.1 GB/s on H200)."""
    args = ["--ops", "broadcast", "--sizes", str(size), "--repeats", "10"]
    return (engine.run(WorldRequest("broadcast", "check.py", devices, args, deadline_s=60)).busbw_gb_per_s("broadcast") or 0.0) * 1e9


def size_bytes(spec: dict[str, Any]) -> int:
    """Bytes of all tensors of the spec in bfloat16, which has two for each element."""
    return 2 * sum(math.prod(shape) for _, shape in tensors(spec))


def run(engine: Engine, spec: dict[str, Any], devices: list[int | None], method: str, repeats: int = 4) -> SyncArm:
    arm = sync.collect(engine, spec, devices, method, repeats=repeats, deadline_s=150).arms[method]
    assert isinstance(arm, SyncArm) and arm.complete and not arm.wrong, arm
    return arm


def flat_broadcast(engine: Engine, spec: dict[str, Any], devices: list[int | None], plain: Callable[[], float], rounds: int,
                   method: str = "nccl-flat") -> dict[str, list[float]]:
    """Bytes a second, a round each: the wire phase and the whole of the steady sync to one engine, and a plain broadcast."""
    found: dict[str, list[float]] = {"wire": [], "whole": [], "plain": []}
    size = size_bytes(spec)
    for _ in range(rounds):
        found["plain"].append(plain())
        steady = run(engine, spec, devices, method, 6).steady
        assert steady
        found["wire"].append(size / steady.trainer["wire"])
        found["whole"].append(size / steady.seconds)
    return found


def ipc_on_one_gpu(engine: Engine, spec: dict[str, Any], device: int, rounds: int) -> dict[str, list[float]]:
    """Bytes a second, a round each: the whole steady sync by CUDA IPC on one GPU, and a copy of as many bytes there."""
    found: dict[str, list[float]] = {"copy": [], "ipc-direct": [], "ipc-flat": []}
    size = size_bytes(spec)
    for _ in range(rounds):
        copied = subprocess.run([*engine.prefix, "-c", COPY, str(size)], capture_output=True, text=True, check=True, timeout=60)
        found["copy"].append(size / json.loads(copied.stdout))
        for method in ("ipc-direct", "ipc-flat"):
            found[method].append(size / (run(engine, spec, [device, device], method).steady_s or 0.0))
    return found


def disk(engine: Engine, spec: dict[str, Any], devices: list[int | None], rounds: int, where: str = "disk") -> dict[str, list[float]]:
    """Seconds of the steady sync, a round each, page cache on both sides: safetensors' save and load, and the fast disk path. ``where``:
    disk, or disk-shm. Each round is told as it ends: it takes about a minute for 15 GB."""
    found: dict[str, list[float]] = {where: [], f"fast-{where}": []}
    for number in range(rounds):
        for method in found:
            found[method].append(run(engine, spec, devices, method, 4 if method.startswith("fast") else 2).steady_s or 0.0)
        print(f"round {number + 1} of {rounds}: {', '.join(f'{m} {s[-1]:.3f} s' for m, s in found.items())}", file=sys.stderr, flush=True)
    return found


def main(model: str, python: str) -> None:
    spec = models.find(model)
    with tempfile.TemporaryDirectory() as folder, Engine([python], Path(folder), Redactor({})) as engine:
        told = {"flat": flat_broadcast(engine, spec, [0, 1], lambda: torch_broadcast(engine, [0, 1]), 2),
                "ipc": ipc_on_one_gpu(engine, spec, 0, 1), "disk": disk(engine, spec, [0, 1], 1),
                "disk-shm": disk(engine, spec, [0, 1], 1, "disk-shm")}
        print(json.dumps({"model": model, "bytes": size_bytes(spec), "judged": engine.judged(), **told}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else MODEL, sys.argv[2] if len(sys.argv) > 2 else sys.executable)
