"""How fast hang reads dumps, beside torchfrtrace on the same folder: python tests/bench_hang.py [RANKS...] [--entries N] [--repeats N]
[--alone]

Made like torch 2.11's dumps: schema 2.10, 16 frames an entry that are written once, two groups, one rank that left out the last
collective. The two take turns; median seconds of `--repeats` rounds (5; above 256 ranks 1, as torchfrtrace takes minutes there) and the
highest memory of any one process.
"""
from __future__ import annotations

import argparse
import os
import pickle
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAMES = [
    {"name": f"call_{i}", "filename": f"/opt/venv/lib/python3.12/site-packages/torch/nn/file_{i}.py", "line": 100 + i} for i in range(16)
]


def entry(number: int, frames: list, world: int, group: tuple[str, str]) -> dict:
    at = 1_795_176_183_000_000_000 + number * 5_000_000
    return {
        "frames": frames,
        "record_id": number,
        "pg_id": int(group[0]),
        "process_group": group,
        "collective_seq_id": number // 2 + 1,
        "p2p_seq_id": 0,
        "op_id": number // 2 + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": at,
        "input_sizes": [[1024, number % 7 + 1]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, number % 7 + 1]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": at + 3_000_000,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def make(folder: Path, ranks: int, entries: int) -> None:
    everybody = str(list(range(ranks)))
    config = {name: {"name": name, "desc": desc, "ranks": everybody} for name, desc in (("0", "default_pg"), ("1", "dp"))}
    rows = [entry(n, FRAMES, ranks, (("0", "default_pg"), ("1", "dp"))[n % 2]) for n in range(entries)]
    rows[-1].update(state="scheduled", retired=False, time_discovered_completed_ns=None)
    for rank in range(ranks):
        kept = rows[:-1] if rank == ranks // 3 else rows
        dump = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.28.9", "pg_status": {}, "entries": kept}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def measured(command: list[str], env: dict[str, str]) -> tuple[float, float, float, str]:
    """Seconds, MB of the largest process, seconds of CPU, and what it said."""
    script = (
        "import resource, subprocess, sys, time; t = time.monotonic(); r = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(time.monotonic() - t, u.ru_maxrss / 1024, u.ru_utime + u.ru_stime); "
        "print(r.stdout[:1500], r.stderr[-1500:])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, *command], env={**os.environ, **env}, capture_output=True, text=True, check=True
    ).stdout
    first, _, said = out.partition("\n")
    seconds, megabytes, cpu = map(float, first.split())
    return seconds, megabytes, cpu, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 256])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    for ranks in args.ranks:
        folder = Path(tempfile.mkdtemp(prefix="bench-hang-"))
        try:
            make(folder, ranks, args.entries)
            compare(folder, ranks, args)
        finally:
            shutil.rmtree(folder)


def compare(folder: Path, ranks: int, args: argparse.Namespace) -> None:
    ours = [sys.executable, "-m", "nccl_runbook", "hang", str(folder), "--json"]
    theirs = [str(Path(sys.executable).with_name("torchfrtrace")), "--prefix", "nccl_trace_rank_", str(folder)]
    rows: dict[str, list[tuple[float, float, float, str]]] = {"hang": [], "torchfrtrace": []}
    for _ in range(args.repeats or (5 if ranks <= 256 else 1)):
        rows["hang"].append(measured(ours, {"PYTHONPATH": str(ROOT / "lib")}))
        if not args.alone:
            rows["torchfrtrace"].append(measured(theirs, {}))
    size = sum(p.stat().st_size for p in folder.iterdir()) / 1e6
    print(f"{ranks} ranks x {args.entries} entries, {size:.0f} MB, {os.cpu_count()} cores")
    for name, runs in rows.items():
        if runs:
            print(
                f"  {name:12} {statistics.median(r[0] for r in runs):7.2f} s   {max(r[1] for r in runs):6.0f} MB  "
                f" {statistics.median(r[2] for r in runs):7.2f} s of CPU"
            )
    assert f'"culprits": [\n  {ranks // 3}\n ]' in rows["hang"][0][3], rows["hang"][0][3]
    if rows["torchfrtrace"]:
        faster, smaller, work = (
            statistics.median(r[i] for r in rows["torchfrtrace"]) / statistics.median(r[i] for r in rows["hang"]) for i in (0, 1, 2)
        )
        print(f"  {faster:.1f} times as fast ({work:.1f} times by CPU time), 1/{smaller:.1f} of the memory (per process)")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
