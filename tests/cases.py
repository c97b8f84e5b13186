"""Five cases of the field, each made again on this machine: `python tests/cases.py [NAME...]`. Pages: build/cases/NAME.html.

What a machine without GPUs cannot show is stood in for, and each case says by what.
"""
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fake_nvml import fake_nvml
from nccl_runbook.gym import ask

PAGES = Path(__file__).resolve().parents[1] / "build" / "cases"
# the figures of the reporter: the same NCCL 2.27.5 twice, once as a module for every process, once preloaded for the trainer alone
GOOD_S, BAD_S = (21.0, 22.1, 22.4, 23.0, 24.0), (47.3, 48.0, 49.5, 51.0)
LOG = """NCCL version 2.27.5+cuda12.9
export NCCL_NET={net}
node1:7:9 [0] NCCL INFO NCCL_NET set by environment to {net}
node1:7:9 [0] NCCL INFO Using network {network}
"""
SYNC = """import os, time
slow = os.environ.get("NCCL_NET") == "Socket"
began = time.perf_counter()
time.sleep(0.4 if slow else 0.2)
print(f"sync took {time.perf_counter() - began:.3f} s")
"""
NVML = "[rank1]: torch.distributed.DistBackendError: NCCL error\n[rank1]: nvmlDeviceGetHandleByIndex(0) failed: Unknown Error\n"


def answer(name: str, *arguments: str | Path) -> None:
    """The answer of one command as text, and as a page of that name."""
    PAGES.mkdir(parents=True, exist_ok=True)
    print(f"$ nccl-runbook {' '.join(map(str, arguments))}", flush=True)
    page = ["--out", PAGES / name] if arguments[0] == "run" else ["--html", PAGES / f"{name}.html"]
    subprocess.run([*ask.CLI, arguments[0], *map(str, page), *map(str, arguments[1:])], stdin=subprocess.DEVNULL, check=False)
    print(f"page: {page[1]}\n", flush=True)


def one_gpu(folder: Path) -> None:
    """Trainer and engine on one GPU. Made on: no GPU; the plan predicts it from the allocation."""
    answer("one-gpu-old-form", "diagnose", "sglang.d1p1t1+d1p1t1", "--gpus", "1")
    answer("one-gpu", "plan", "sglang.d1p1t1+d1p1t1", "--gpus", "1", "--areal", "v0.4.0")


def disk_sync(folder: Path) -> None:
    """The disk instead of NCCL, every byte compared. Made on: CPU ranks, two layers of the model; the seconds are those of this machine."""
    answer("disk-sync", "sync", "--methods", "disk,fast-disk,gloo-per-tensor", "--layers", "2", "--directory", folder, "--budget", "4m")


def two_builds(folder: Path) -> None:
    """Two builds of NCCL, and the network in between. Made on: logs with the reporter's figures; then a command that sleeps twice as long
    with one of four settings that differ."""
    for name, net, network, times in (("good", "OFI", "AWS Libfabric", GOOD_S), ("bad", "Socket", "Socket", BAD_S)):
        (folder / f"{name}.log").write_text(LOG.format(net=net, network=network) + "".join(f"weight sync took {s} s\n" for s in times))
    answer("two-builds", "diagnose", folder / "bad.log", "--against", folder / "good.log")
    (folder / "sync.py").write_text(SYNC)
    answer(
        "two-builds-ab",
        "ab",
        "NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_NTHREADS=256 NCCL_NET=OFI",
        "NCCL_ALGO=Tree NCCL_PROTO=LL NCCL_NTHREADS=512 NCCL_NET=Socket",
        "--figure",
        "sync took ([0-9.]+) s",
        "--rounds",
        "2",
        "--",
        sys.executable,
        folder / "sync.py",
    )


def nvml_unknown(folder: Path) -> None:
    """nvmlDeviceGetHandleByIndex(0) failed: Unknown Error. Made on: the reporter's two lines; then a stand-in for NVML that answers so."""
    (folder / "job.log").write_text(NVML)
    answer("nvml-unknown-log", "diagnose", folder / "job.log")
    with fake_nvml("handle-unknown"):
        shutil.rmtree(PAGES / "nvml-unknown", ignore_errors=True)
        answer("nvml-unknown", "run", "--step", "01-gpu-visibility")


def uneven(folder: Path) -> None:
    """Uneven minibatches until the time-out, and the guard that stops the same job before its first step. Made on: three Gloo ranks."""
    names = ("uneven-batches", "uneven-batches-guarded")
    asked = [word for name in names for word in ("--fault", name)]
    answer("uneven", "dev", "gym", *asked, "--to-the-end", "--keep", folder)
    for name in names:
        answer(name, "diagnose", folder / name / "job.log")


CASES: dict[str, Callable[[Path], None]] = {
    "one-gpu": one_gpu,
    "disk-sync": disk_sync,
    "two-builds": two_builds,
    "nvml-unknown": nvml_unknown,
    "uneven": uneven,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; none: all")
    for name in parser.parse_args().names or CASES:
        print(f"== {name}: {' '.join((CASES[name].__doc__ or '').split())}\n", flush=True)
        with tempfile.TemporaryDirectory(prefix="case-") as folder:
            CASES[name](Path(folder))


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "140")
    main()
