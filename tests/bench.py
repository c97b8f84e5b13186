"""`make bench`: ours against a peer, interleaved in one run, as ratios; build/bench/bench.json and build/bench/index.html.

    python tests/bench.py [SECTION ...] [--rounds 5] [--python PREFIX] [--nccl-tests DIR] [--launches 12] [--ranks 2,4]

SECTION: launch, bandwidth, weights, ipc, disk, disk-shm, report; all without a name. ``--nccl-tests`` is a source tree of
NVIDIA/nccl-tests (2.19.6 was used), built here with nvcc against the header and library of the interpreter's own nvidia-nccl wheel, or
the folder of programs built so. Without GPUs launch runs on Gloo, and the others say why they were not measured.
"""
from __future__ import annotations

import argparse
import dataclasses
import datetime
import html
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bench_sync
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.interpreters import choose
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.sync import models

ROOT = Path(__file__).resolve().parents[1]
CHECK = ROOT / "lib/nccl_runbook/ranks/check.py"
VARIANTS = 12
GIB = 1 << 30
SIZES = (GIB // 4, GIB)
PERF = {"all_reduce": "all_reduce_perf", "broadcast": "broadcast_perf", "all_gather": "all_gather_perf", "send_recv": "sendrecv_perf"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison. ``ours`` and ``peer``: one figure a round, in ``unit``; the ratio is ours over peer, round by round.

    ``goal``: what the median ratio (or, without a peer, the median of ours) has to be, as "<= 0.4" or ">= 0.95"; "" for none.
    """

    section: str
    what: str
    unit: str
    ours: list[float]
    peer: list[float]
    goal: str = ""
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.peer)] if self.peer else self.ours

    @property
    def met(self) -> bool | None:
        """None where nothing was asked or nothing measured."""
        if not self.goal or not self.ours:
            return None
        relation, bound = self.goal.split()
        median = statistics.median(self.ratios)
        return median <= float(bound) if relation == "<=" else median >= float(bound)

    def to_json(self) -> dict[str, object]:
        spread = {"median": statistics.median(self.ratios), "min": min(self.ratios), "max": max(self.ratios)} if self.ours else None
        return {**dataclasses.asdict(self), "ratio" if self.peer else "figure": spread, "met": self.met}


@dataclasses.dataclass(frozen=True)
class Bench:
    """What a section may use. ``gpus``: how many CUDA shows, 0 without; ``launches``: torchrun launches a round, scaled to twelve;
    ``sizes``: world sizes of bandwidth, as many of them as there are GPUs for."""

    prefix: list[str]
    gpus: int
    rounds: int
    launches: int
    nccl_tests: Path | None
    sizes: tuple[int, ...] = (2, 4)

    def ranks(self, count: int) -> list[int | None]:
        return [n if self.gpus else None for n in range(count)]

    def engine(self, folder: str) -> Engine:
        return Engine(self.prefix, Path(folder), Redactor({}))


def not_measured(section: str, why: str) -> list[Row]:
    return [Row(section, section, "", [], [], note=why)]


def small(bench: Bench, number: int) -> tuple[list[str], dict[str, str | None]]:
    """Arguments and environment of one variant: a few all_reduce of 4 bytes."""
    backend = "nccl" if bench.gpus else "gloo"
    args = ["--ops", "all_reduce", "--sizes", "4", "--repeats", "1", "--backend", backend, "--leave"]
    return args, {"NCCL_BENCH_VARIANT": str(number), **({} if bench.gpus else {"GLOO_SOCKET_IFNAME": "lo"})}


def variants_in_engine(bench: Bench, ranks: list[int | None]) -> tuple[float, float]:
    """Seconds from nothing to the twelfth result, and from the warm process on (its import of torch not counted)."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, bench.engine(folder) as engine:
        engine.judged()
        warm = time.perf_counter()
        asked = [WorldRequest("variant", "check.py", ranks, *small(bench, number), 60.0, timed=False) for number in range(VARIANTS)]
        for world in engine.run_in_turn(asked):
            assert world.passed, world.log
        return time.perf_counter() - began, time.perf_counter() - warm


def variants_in_torchrun(bench: Bench, ranks: list[int | None]) -> float:
    """Seconds of twelve launches, from as many as ``bench.launches``."""
    began = time.perf_counter()
    for number in range(bench.launches):
        args, env = small(bench, number)
        command = [*bench.prefix, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(len(ranks)), str(CHECK), *args]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
    return (time.perf_counter() - began) * VARIANTS / bench.launches


def launch(bench: Bench) -> list[Row]:
    ranks = bench.ranks(min(4, bench.gpus) or 4)
    done = []
    for number in range(bench.rounds):
        done.append((*variants_in_engine(bench, ranks), variants_in_torchrun(bench, ranks)))
        print(
            f"round {number + 1} of {bench.rounds}: %.2f s, from the warm process on %.2f s, torchrun %.2f s" % done[-1],
            file=sys.stderr,
            flush=True,
        )
    cold, warm, peer = (list(column) for column in zip(*done))
    what = f"{VARIANTS} variants of {len(ranks)} ranks over {'NCCL' if bench.gpus else 'Gloo'}, against as many torchrun launches"
    note = "" if bench.launches == VARIANTS else f"torchrun: {bench.launches} launches a round, scaled to {VARIANTS}"
    return [Row("launch", f"{what}, import of torch counted", "s", cold, peer, "<= 0.4" if bench.gpus else "<= 0.1", note),
            Row("launch", f"{what}, warm process up", "s", warm, peer, "<= 0.1667" if bench.gpus else "", note)]


def nccl_of(prefix: list[str]) -> Path | None:
    """The folder of the interpreter's nvidia-nccl wheel (include/nccl.h, lib/libnccl.so.2), None where it has none."""
    line = "import importlib.util as u; s = u.find_spec('nvidia.nccl'); print(list(s.submodule_search_locations)[0] if s else '')"
    said = subprocess.run([*prefix, "-c", line], capture_output=True, text=True).stdout.strip()
    return Path(said) if said and (Path(said) / "include" / "nccl.h").is_file() else None


def build_nccl_tests(source: Path, nccl: Path, into: Path) -> dict[str, Path] | str:
    """The four programs; or, in a sentence, why not. A folder that holds them already is taken as it is."""
    if all((source / name).is_file() for name in PERF.values()):
        return {op: source / name for op, name in PERF.items()}
    nvcc = shutil.which("nvcc") or next(iter(Path("/usr/local").glob("cuda*/bin/nvcc")), None)
    if nvcc is None:
        return "nvcc was not found"
    (into / "nccl" / "lib").mkdir(parents=True)
    (into / "nccl" / "include").symlink_to(nccl / "include")
    (into / "nccl" / "lib" / "libnccl.so").symlink_to(nccl / "lib" / "libnccl.so.2")
    capability = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.split()[0]
    sm = capability.replace(".", "")
    shutil.copytree(source, into / "src", ignore=shutil.ignore_patterns(".git"))
    done = subprocess.run(["make", "-j8", "-C", into / "src" / "src", f"BUILDDIR={into / 'build'}", f"NCCL_HOME={into / 'nccl'}",
                           f"CUDA_HOME={Path(nvcc).resolve().parents[1]}", f"NVCC_GENCODE=-gencode=arch=compute_{sm},code=sm_{sm}",
                           *(f"{into / 'build'}/{name}" for name in PERF.values())], capture_output=True, text=True)
    if done.returncode:
        return f"nccl-tests could not be built: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}"
    return {op: into / "build" / name for op, name in PERF.items()}


def busbw_of(text: str) -> dict[int, float]:
    """Size in bytes -> out-of-place bus bandwidth, from what a program of nccl-tests prints (size count type redop root time algbw busbw
    ...)."""
    rows = (re.match(r"\s+(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s", line) for line in text.splitlines())
    return {int(r[1]): float(r[2]) for r in rows if r}


def by_nccl_tests(program: Path, ranks: int, nccl: Path) -> dict[int, float]:
    command = [program, "-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "4", "-g", str(ranks), "-w", "5", "-n", "20", "-c", "0"]
    env = {**os.environ, "LD_LIBRARY_PATH": f"{nccl / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return busbw_of(done.stdout)


def by_us(engine: Engine, ranks: int) -> dict[tuple[str, int], float]:
    """(operation, size in bytes) -> bus bandwidth in 1e9 bytes a second, by the slowest rank."""
    args = ["--ops", ",".join(PERF), "--sizes", ",".join(map(str, SIZES)), "--repeats", "5", "--iterations", "20", "--backend", "nccl"]
    world = engine.run(WorldRequest("bandwidth", "check.py", list(range(ranks)), args, {}, 120.0))
    assert world.passed, world.log
    slowest: dict[tuple[str, int], float] = {}
    for event in (e for r in world.ranks for e in r.named("op")):
        key = (event["op"], event["size_bytes"])
        rate = event["bus_factor"] * event["size_bytes"] / event["median_s"] / 1e9
        slowest[key] = min(rate, slowest.get(key, rate))
    return slowest


def bandwidth(bench: Bench) -> list[Row]:
    nccl = nccl_of(bench.prefix)
    if bench.gpus < 2 or nccl is None or bench.nccl_tests is None:
        return not_measured("bandwidth", "needs two GPUs, an nvidia-nccl wheel with its header, and --nccl-tests DIR")
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as folder, bench.engine(folder) as engine:
        programs = build_nccl_tests(bench.nccl_tests.resolve(), nccl, Path(built))
        if isinstance(programs, str):
            return not_measured("bandwidth", programs)
        rows = []
        for ranks in [size for size in bench.sizes if size <= bench.gpus]:
            done = [(by_us(engine, ranks), {op: by_nccl_tests(p, ranks, nccl) for op, p in programs.items()}) for _ in range(bench.rounds)]
            rows += [Row("bandwidth", f"{op}, {size >> 20} MiB, {ranks} GPUs: bus bandwidth against nccl-tests", "GB/s",
                         [ours[op, size] for ours, _ in done], [peer[op][size] for _, peer in done], ">= 0.97",
                         "nccl-tests drives all GPUs from one process, we from one process a GPU")
                     for op in programs for size in SIZES]
        return rows


def weights(bench: Bench) -> list[Row]:
    nccl = nccl_of(bench.prefix)
    if bench.gpus < 2:
        return not_measured("weights", "needs two GPUs")
    spec = models.find(bench_sync.MODEL)
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as folder, bench.engine(folder) as engine:
        programs = build_nccl_tests(bench.nccl_tests.resolve(), nccl, Path(built)) if bench.nccl_tests and nccl else "no --nccl-tests"
        by_torch = isinstance(programs, str) or nccl is None
        plain = (lambda: bench_sync.torch_broadcast(engine, [0, 1])) if by_torch else (
            lambda: by_nccl_tests(programs["broadcast"], 2, nccl)[SIZES[-1]] * 1e9)
        flat = bench_sync.flat_broadcast(engine, spec, [0, 1], plain, bench.rounds)
    note = f"peer: torch's broadcast ({programs})" if by_torch else "peer: broadcast_perf of 1 GiB"
    return [
        Row(
            "weights",
            f"flat NCCL, {part} of a sync of {bench_sync.MODEL}",
            "GB/s",
            gb(flat[part]),
            gb(flat["plain"]),
            bench_sync.GOALS[part],
            note,
        )
        for part in ("wire", "whole")
    ]


def ipc(bench: Bench) -> list[Row]:
    if not bench.gpus:
        return not_measured("ipc", "needs a GPU")
    with tempfile.TemporaryDirectory() as folder, bench.engine(folder) as engine:
        found = bench_sync.ipc_on_one_gpu(engine, models.find(bench_sync.MODEL), 0, bench.rounds)
    return [Row("ipc", f"{method}, one GPU, {bench_sync.MODEL}, against a copy there", "GB/s", gb(found[method]), gb(found["copy"]),
                bench_sync.GOALS.get(method, "")) for method in list(found)[1:]]


def disk(bench: Bench, where: str = "disk") -> list[Row]:
    if not bench.gpus:
        return not_measured(where, "needs a GPU")
    if subprocess.run([*bench.prefix, "-c", "import numpy, safetensors.torch"], capture_output=True).returncode:
        return not_measured(
            where, "needs safetensors and NumPy beside torch: the peer is their save and load, not our own writer of that form"
        )
    with tempfile.TemporaryDirectory() as folder, bench.engine(folder) as engine:
        found = bench_sync.disk(engine, models.find(bench_sync.MODEL), [0, min(1, bench.gpus - 1)], bench.rounds, where)
    return [Row(where, f"syncs a second of fast-{where}, {bench_sync.MODEL}, against safetensors' save and load", "1/s",
                [1 / s for s in found[f"fast-{where}"]], [1 / s for s in found[where]], bench_sync.GOALS[f"fast-{where}"], "fsync apart")]


def disk_shm(bench: Bench) -> list[Row]:
    return disk(bench, "disk-shm")


def gb(rates: list[float]) -> list[float]:
    return [r / 1e9 for r in rates]


def seconds_of_a_report(prefix: list[str], out: Path) -> tuple[float, float, float, str]:
    """Of a whole run with its defaults: until a step's sentence stood in verdict.json, until the GPUs' sentence, until the end; the
    verdict."""


    began, first, seen = time.perf_counter(), 0.0, 0.0
    command = [
        sys.executable,
        "-c",
        "from nccl_runbook.__main__ import main; main()",
        "run",
        "--python",
        shlex.join(prefix),
        "--out",
        str(out),
    ]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")})
    while run.poll() is None:
        told = [s["notebook"] for s in _steps(out) if s["status"] in ("ok", "note", "warn", "broken", "unknown") and s["wall_s"]]
        first = first or (time.perf_counter() - began if told else 0.0)
        seen = seen or (time.perf_counter() - began if "01-gpu-visibility" in told else 0.0)
        time.sleep(0.05)
    return first, seen, time.perf_counter() - began, json.loads((out / "verdict.json").read_text())["verdict"]


def _steps(out: Path) -> list[dict[str, object]]:
    path = out / "verdict.json"
    return json.loads(path.read_text())["steps"] if path.exists() else []


def report(bench: Bench) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        done = [seconds_of_a_report(bench.prefix, Path(folder) / str(n)) for n in range(bench.rounds)]
    first, seen, whole, verdicts = (list(column) for column in zip(*done))
    where = f"on {bench.gpus} GPUs" if bench.gpus else "without a GPU"
    note = f"verdicts: {', '.join(map(str, verdicts))}"
    return [Row("report", f"first sentence of a step on the page, {where}", "s", first, [], "<= 10", note),
            Row("report", f"the GPUs' sentence (01-gpu-visibility) on the page, {where}", "s", seen, [], "<= 10", note),
            Row("report", f"whole report, {where}", "s", whole, [], "<= 120", note)]


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "launch": launch,
    "bandwidth": bandwidth,
    "weights": weights,
    "ipc": ipc,
    "disk": disk,
    "disk-shm": disk_shm,
    "report": report,
}


def as_table(rows: list[Row]) -> Table:
    def line(row: Row) -> list[object]:
        if not row.ours:
            return [row.what, "", "", "", row.goal, Cell("not measured", "unknown"), row.note]
        ours, peer, ratio = (_spread(values) for values in (row.ours, row.peer, row.ratios if row.peer else []))
        met = Cell("", "") if row.met is None else Cell("met", "ok") if row.met else Cell("not met", "warn")
        return [row.what, f"{ours} {row.unit}", f"{peer} {row.unit}" if peer else "", ratio, row.goal, met, row.note]

    return Table(
        "Ours against a peer in the same run: median (least to most)",
        ["what", "ours", "peer", "ratio", "goal", "", "note"],
        list(map(line, rows)),
    )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else ""


def save(rows: list[Row], judged: dict[str, object], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    document = {"schema": "nccl-runbook/bench/1", "at": at, "judged": judged, "rows": [row.to_json() for row in rows]}
    (out / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    told = html.escape(", ".join(f"{k} {v}" for k, v in judged.items() if v and k in ("torch", "nccl", "gpus")))
    page = (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            f"<title>NCCL Runbook: bench</title><style>{(ROOT / 'lib/nccl_runbook/report/templates/style.css').read_text()}</style></head>"
            f"<body><main><h1>Bench</h1><p>{html.escape(at)} &middot; {told}</p>{as_table(rows)._repr_html_()}</main></body></html>")
    (out / "index.html").write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launches", type=int, default=VARIANTS, help="torchrun launches a round, scaled to twelve")
    parser.add_argument("--ranks", default="2,4", help="GPUs of each world of bandwidth, comma-separated")
    parser.add_argument("--python", default="", help="the interpreter of the ranks, as in nccl-runbook run")
    parser.add_argument("--nccl-tests", type=Path, help="a source tree of NVIDIA/nccl-tests")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    args = parser.parse_args()
    unknown = set(args.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {sorted(unknown)[0]}: {', '.join(SECTIONS)}")
    prefix = choose(args.python).prefix
    with tempfile.TemporaryDirectory() as folder, Engine(prefix, Path(folder), Redactor({})) as engine:
        count, judged = engine.cuda_count(), engine.judged()
    bench = Bench(
        prefix, 0 if isinstance(count, Gap) else count, args.rounds, args.launches, args.nccl_tests, tuple(map(int, args.ranks.split(",")))
    )
    rows: list[Row] = []
    for name in args.sections or SECTIONS:
        rows += SECTIONS[name](bench)
        save(rows, judged, args.out)  # after each: what was measured stays, whatever comes
    print(as_table(rows))
    print(f"written: {args.out / 'bench.json'} and index.html")
    return 0 if all(row.met is not False for row in rows) else 3


if __name__ == "__main__":
    sys.exit(main())
