"""False alarms on healthy GPUs, counted: whole runs of 03 and 04, one JSON line each, and what their number bounds.

    python tests/gpu/tally.py RUNS GPUS [GPUS ...] [--python PREFIX]        5 0,1 2,3: five runs on two GPUs, two at a time

No alarm in N runs bounds the rate below 3/N at 95 % (rule of three).
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]


def one(number: int, free: Queue[str], prefix: str, folder: str, beside: list[str]) -> dict[str, object]:
    """One whole run on a set of GPUs that nobody else of ours uses meanwhile. On one GPU 04 does not apply and is left out."""
    gpus = free.get()
    steps = ["--step", "03-fewer-gpus", *(["--step", "04-transports"] if "," in gpus else [])]
    command = [sys.executable, "-c", "from nccl_runbook.__main__ import main; main()", "run", *steps, "--gpus", gpus, "--json",
               "--out", str(Path(folder) / str(number)), *(["--python", prefix] if prefix else []), *beside]
    began = time.monotonic()
    said = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "lib"), os.environ.get("PYTHONPATH", "")]))},
    )
    free.put(gpus)
    document = json.loads(said.stdout)
    line = {
        "run": number,
        "gpus": gpus,
        "verdict": document["verdict"],
        "seconds": round(time.monotonic() - began, 1),
        "judged": document["judged"],
        "causes": [c["id"] for c in document["causes"]],
        "steps": {s["notebook"]: [s["status"], s["reason"]] for s in document["steps"]},
    }
    print(json.dumps(line), flush=True)
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int)
    parser.add_argument("gpus", nargs="+")
    parser.add_argument("--python", default="")
    args = parser.parse_args()
    beside = ["--allow-busy"] if len(args.gpus) > 1 else []  # our own runs on the other GPUs are somebody else's to each of them
    free: Queue[str] = Queue()
    for gpus in args.gpus:
        free.put(gpus)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(args.gpus)) as pool:
        lines = list(pool.map(lambda n: one(n, free, args.python, folder, beside), range(1, args.runs + 1)))
    alarms = [line for line in lines if line["verdict"] in ("broken", "degraded")]
    whole = [line for line in lines if line["verdict"] == "healthy"]
    bound = f"at most 3/{len(whole)} = {3 / len(whole):.0%} at 95 %" if not alarms and len(whole) > 3 else "see the lines"
    print(f"{len(alarms)} alarms in {len(lines)} runs, {len(whole)} healthy: {bound}")
    return 0 if len(whole) == len(lines) else 3


if __name__ == "__main__":
    sys.exit(main())
