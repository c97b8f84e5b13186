"""Twelve environment variants of a 4-rank Gloo all_reduce: the engine against torchrun, in alternation.

    python tests/bench_launch.py [ROUNDS]     prints one JSON object; the import of torch is counted once, in every round
"""
from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nccl_runbook.facts.world import WorldRequest
from nccl_runbook.launch.engine import Engine
from nccl_runbook.redact import Redactor

VARIANTS = [{"GLOO_SOCKET_IFNAME": "lo", "NCCL_BENCH_VARIANT": str(n)} for n in range(12)]
ARGS = ["--ops", "all_reduce", "--sizes", "4", "--repeats", "1", "--backend", "gloo"]
CHECK = Path(__file__).resolve().parents[1] / "lib/nccl_runbook/ranks/check.py"


def with_engine() -> float:
    """Seconds from nothing to the twelfth result."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, Engine([sys.executable], Path(folder), Redactor({})) as engine:
        for env in VARIANTS:
            world = engine.run(WorldRequest("variant", "check.py", [None] * 4, ARGS, env))
            assert world.passed, world.log
    return time.perf_counter() - began


def with_torchrun(variants: int) -> float:
    """Seconds of so many launches, one after the other."""
    began = time.perf_counter()
    for env in VARIANTS[:variants]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(CHECK), *ARGS]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
    return time.perf_counter() - began


def main(rounds: int) -> None:
    pairs = [(with_engine(), with_torchrun(len(VARIANTS))) for _ in range(rounds)]
    ours, theirs = [[p[i] for p in pairs] for i in (0, 1)]
    print(json.dumps({"rounds": rounds, "engine_s": ours, "torchrun_s": theirs, "median_ratio": statistics.median(t / o for o, t in pairs)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
