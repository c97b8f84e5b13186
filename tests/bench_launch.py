"""Twelve environment variants of a 4-rank all_reduce: the engine against torchrun, in alternation.

    python tests/bench_launch.py [ROUNDS]               over Gloo; prints one JSON object; the import of torch is counted once, in every round
    python tests/bench_launch.py ROUNDS gpu [PYTHON]    over NCCL on four GPUs, under PYTHON; the warm process is up before the clock starts
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
        for world in engine.run_in_turn([WorldRequest("variant", "check.py", [None] * 4, ARGS, env, timed=False) for env in VARIANTS]):
            assert world.passed, world.log
    return time.perf_counter() - began


def with_torchrun(variants: int) -> float:
    """Seconds of so many launches, one after the other."""
    began = time.perf_counter()
    for env in VARIANTS[:variants]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(CHECK), *ARGS]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
    return time.perf_counter() - began


# what a step of this runbook asks: each in fresh processes, every element checked, ten small all_reduces
GPU_VARIANTS: list[dict[str, str]] = [
    {}, {"NCCL_P2P_DISABLE": "1"}, {"NCCL_SHM_DISABLE": "1"}, {"NCCL_CUMEM_ENABLE": "0"}, {"NCCL_IB_DISABLE": "1"}, {"NCCL_SOCKET_IFNAME": "lo"},
    {"NCCL_P2P_LEVEL": "NVL"}, {"NCCL_P2P_LEVEL": "PHB"}, {"NCCL_ALGO": "Ring"}, {"NCCL_PROTO": "Simple"}, {"NCCL_MAX_NCHANNELS": "4"},
    {"NCCL_CUMEM_HOST_ENABLE": "0"}]
GPU_ARGS = ["--ops", "all_reduce", "--sizes", "4,1024,4096,16384,65536", "--repeats", "0", "--backend", "nccl"]
RANKS = 4


def gpu_requests() -> list[WorldRequest]:
    return [WorldRequest(f"variant {n}", "check.py", list(range(RANKS)), GPU_ARGS, env, timed=False) for n, env in enumerate(GPU_VARIANTS)]


def twelve_in_turn(engine: Engine) -> dict:
    """Seconds of the twelve worlds, and where they went: medians over the worlds, by their slowest rank."""
    began = time.perf_counter()
    worlds = engine.run_in_turn(gpu_requests())
    seconds = time.perf_counter() - began
    assert all(w.passed for w in worlds), [w.log for w in worlds if not w.passed][:1]
    spans = {"context": ("hello", "ready", None), "init": ("begin", "init", "init"), "work": ("init", "begin", "destroy"), "destroy": ("begin", "bye", None)}
    phases = {name: statistics.median(max(_span(r, *span) for r in w.ranks) for w in worlds) for name, span in spans.items()}
    return {"seconds": seconds, **{k: round(v, 3) for k, v in phases.items()}}


def _span(rank, first: str, last: str, what: str | None) -> float:
    """Seconds between two events of a rank; ``what``: of a "begin"; the last "begin" where the first is one."""
    times = [e["t"] for e in rank.named(first) if first != "begin" or e["what"] == (what or "destroy")]
    ends = [e["t"] for e in rank.named(last) if last != "begin" or e["what"] == what]
    return ends[-1] - times[0]


def one_torchrun(python: str, env: dict[str, str]) -> float:
    began = time.perf_counter()
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(CHECK), *GPU_ARGS]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
    return time.perf_counter() - began


def on_gpus(python: str, rounds: int, launches: int) -> dict:
    """``rounds`` of twelve worlds and ``launches`` of torchrun (one variant each) in alternation; ``ratio``: twelve launches at their
    median over the median round."""
    ours, theirs, variants = [], [], list(GPU_VARIANTS)
    with tempfile.TemporaryDirectory() as folder, Engine([python], Path(folder), Redactor({})) as engine:
        engine.run(gpu_requests()[0])
        for number in range(rounds):
            ours.append(twelve_in_turn(engine))
            for _ in range(launches * (number + 1) // rounds - len(theirs)):
                theirs.append(one_torchrun(python, variants[len(theirs) % len(variants)]))
    ratio = len(GPU_VARIANTS) * statistics.median(theirs) / statistics.median(o["seconds"] for o in ours)
    return {"twelve_in_turn": ours, "torchrun_s": theirs, "ratio": round(ratio, 2)}


def main(rounds: int) -> None:
    pairs = [(with_engine(), with_torchrun(len(VARIANTS))) for _ in range(rounds)]
    ours, theirs = [[p[i] for p in pairs] for i in (0, 1)]
    print(json.dumps({"rounds": rounds, "engine_s": ours, "torchrun_s": theirs, "median_ratio": statistics.median(t / o for o, t in pairs)}))


if __name__ == "__main__":
    if sys.argv[2:3] == ["gpu"]:
        print(json.dumps(on_gpus(sys.argv[3] if len(sys.argv) > 3 else sys.executable, int(sys.argv[1]), 2 * int(sys.argv[1]))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
