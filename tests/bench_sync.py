"""Speed of weight syncs on GPUs, arms interleaved, memory touched before. Each entry returns rows as `make bench` prints them.

    python tests/bench_sync.py [MODEL] [PYTHON]     prints one JSON object; two GPUs, about 130 s for Qwen/Qwen2.5-7B
"""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nccl_runbook.facts import Gap, to_json
from nccl_runbook.facts.sync import SyncArm
from nccl_runbook.facts.world import WorldRequest
from nccl_runbook.knowledge import models
from nccl_runbook.launch.engine import Engine
from nccl_runbook.probes import sync
from nccl_runbook.redact import Redactor

WIRE, WHOLE = 0.93, 0.88   # of nccl-tests' broadcast_perf on the same two GPUs; here beside torch's broadcast, which was within 1 % of it
DEVICE_COPY = 0.8
DISK = 12.0                # times as fast as safetensors' save and load
# bytes, then seconds of the median copy of a buffer on one GPU, read as one tensor
COPY = """
import json, sys, torch
n = int(sys.argv[1]); a = torch.ones(n, dtype=torch.uint8, device="cuda"); b = torch.zeros_like(a); found = []
for _ in range(7):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in "ab"); first.record(); b.copy_(a); last.record(); torch.cuda.synchronize()
    found.append(first.elapsed_time(last) / 1e3)
print(json.dumps(sorted(found)[3]))
"""


def row(name: str, measured: float | None, reference: float | None, needed: float, **more: Any) -> dict[str, Any]:
    """``measured`` and ``reference`` in the same unit, larger is better; ``ratio`` has to be ``needed`` or more."""
    ratio = measured / reference if measured and reference else None
    return {"name": name, "measured": measured, "reference": reference, "ratio": ratio, "needed": needed,
            "passed": ratio is not None and ratio >= needed, **more}


def torch_broadcast(engine: Engine, devices: list[int | None], size: int = 1 << 30) -> float | None:
    """Bytes a second of a broadcast of 1 GiB between these two."""
    args = ["--ops", "broadcast", "--sizes", str(size), "--repeats", "10"]
    found = engine.run(WorldRequest("broadcast", "check.py", devices, args, deadline_s=60)).busbw_gb_per_s("broadcast")
    return found and found * 1e9


def flat_broadcast(engine: Engine, spec: dict[str, Any], devices: list[int | None], methods: str = "nccl-flat", rounds: int = 2) -> list[dict[str, Any]]:
    """Flat NCCL broadcast to one engine against a plain broadcast: the best of each, in turn."""
    plain, arms = [], []
    for _ in range(rounds):
        plain.append(torch_broadcast(engine, devices) or 0.0)
        arms.append(sync.collect(engine, spec, devices, methods, repeats=6, deadline_s=60).arms[methods])
    size, best = models.size_bytes(spec), [min(a.syncs[1:], key=lambda s: s.seconds) for a in arms if isinstance(a, SyncArm) and len(a.syncs) > 1]
    whole = max((size / s.seconds for s in best), default=None)
    wire = max((size / s.trainer["wire"] for s in best if s.trainer.get("wire")), default=None)
    return [row("flat NCCL, wire phase (bytes/s)", wire, max(plain), WIRE), row("flat NCCL, whole sync (bytes/s)", whole, max(plain), WHOLE)]


def ipc_on_one_gpu(engine: Engine, spec: dict[str, Any], device: int | None, methods: tuple[str, ...] = ("ipc-direct", "ipc-flat", "ipc-per-tensor")) -> list[dict[str, Any]]:
    """CUDA IPC with trainer and engine on one GPU against a copy of as many bytes there; ipc-direct is the one with a bound."""
    size = models.size_bytes(spec)
    copy_s = json.loads(subprocess.run([*engine.prefix, "-c", COPY, str(size)], capture_output=True, text=True, check=True, timeout=60).stdout)
    runs = sync.collect(engine, spec, [device, device], ",".join(methods), repeats=5, deadline_s=90)
    best = {a.method: min(s.seconds for s in a.syncs) for a in runs.run if a.syncs}
    return [row(f"{m}, one GPU (bytes/s)", best.get(m) and size / best[m], size / copy_s, DEVICE_COPY if m == "ipc-direct" else 0.0,
                phases=_phases(runs.arms[m])) for m in methods]


def fast_disk(engine: Engine, spec: dict[str, Any], devices: list[int | None], directory: str = "") -> list[dict[str, Any]]:
    """The fast disk path against safetensors' own save and load, page cache on both sides, fsync apart."""
    arms = {m: sync.collect(engine, spec, devices, m, directory, repeats, 120).arms[m] for m, repeats in (("disk", 2), ("fast-disk", 4), ("fast-disk-shm", 4))}
    best = {m: min(s.seconds for s in a.syncs) for m, a in arms.items() if isinstance(a, SyncArm) and a.syncs}
    return [row(f"{m} against safetensors (1/s)", best.get(m) and 1 / best[m], best.get("disk") and 1 / best["disk"], DISK,
                phases=_phases(arms[m]), fsync_s=[s.fsync_s for s in getattr(arms[m], "syncs", [])][-1:], safetensors=_phases(arms["disk"])) for m in ("fast-disk", "fast-disk-shm")]


def _phases(arm: SyncArm | Gap) -> Any:
    return to_json(arm) if isinstance(arm, Gap) else [s.trainer | {"engine": s.engine, "seconds": s.seconds} for s in arm.syncs] or arm.errors


def main(model: str, python: str) -> None:
    spec = models.find(model).spec()
    with tempfile.TemporaryDirectory() as folder, Engine([python], Path(folder), Redactor({})) as engine:
        rows = [*flat_broadcast(engine, spec, [0, 1]), *ipc_on_one_gpu(engine, spec, 0), *fast_disk(engine, spec, [0, 1])]
        print(json.dumps({"model": model, "bytes": models.size_bytes(spec), "judged": engine.judged(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-7B", sys.argv[2] if len(sys.argv) > 2 else sys.executable)
