"""Small books to inject faults into: notebooks made of a parameters cell and the cells that a test gives."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
import psutil
from nbformat import v4

PARAMETERS = 'run_dir: str = ""  # folder of this run\nrecord_path: str = ""  # a record to judge\nbudget_s: int = 20  # seconds'
GOOD = """from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.step import open_step
step = open_step("{name}", globals())
step.finish([Finding("seen", Severity.OK, "all well")])"""
MARK = "the cell after"
CLI = [sys.executable, "-c", "from nccl_runbook.__main__ import main; main()"]


def make_book(folder: Path, **steps: str | Sequence[str]) -> Path:
    """A folder of notebooks; ``n01_good=GOOD`` becomes 01-good.ipynb. Every notebook ends with a cell that says MARK."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, sources in steps.items():
        name = key[1:].replace("_", "-")
        parameters = v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
        bodies = [sources] if isinstance(sources, str) else list(sources)
        cells = [v4.new_code_cell(text.replace("{name}", name)) for text in [*bodies, f"'{MARK}'"]]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(v4.new_notebook(cells=[parameters, *cells], metadata={"kernelspec": kernel}), folder / f"{name}.ipynb")
    return folder


class Running(subprocess.Popen):
    """One that a failed test leaves is killed: waiting for it would hide the failure, and hold up the suite for ever."""

    def __exit__(self, failed, *more) -> None:
        if failed:
            self.kill()
        super().__exit__(failed, *more)


def start_cli(*arguments: str | Path, **options: object) -> subprocess.Popen[str]:
    return Running([*CLI, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def run_cli(*arguments: str | Path, timeout: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options)


def wait_for(path: Path, seconds: float = 40) -> str:
    """The text of a file that some other process is about to write as a whole."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.02)
    return path.read_text()


def tell_process(path: Path) -> str:
    """Source that writes pid and start time of ``p`` (a psutil.Process) to a file as a whole."""
    return f"import os\nopen({str(path)!r} + '.part', 'a').write(f'{{p.pid}} {{p.create_time()}}\\n')\n"


def publish(path: Path) -> str:
    return f"import os\nos.rename({str(path)!r} + '.part', {str(path)!r})\n"


def still_there(lines: str) -> list[int]:
    """Those pids (lines of `pid start`) whose process is the same one and still lives."""
    there = []
    for line in lines.splitlines():
        pid, start = line.split()
        try:
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(start)) < 0.05 and process.status() != psutil.STATUS_ZOMBIE:
                there.append(int(pid))
        except psutil.NoSuchProcess:
            continue
    return there


def gone_after(lines: str, seconds: float) -> float:
    """Seconds until none of them is left; fails after ``seconds``."""
    clock = time.monotonic()
    while left := still_there(lines):
        assert time.monotonic() - clock < seconds, f"still there after {seconds} s: {left}"
        time.sleep(0.02)
    return time.monotonic() - clock


def with_library() -> dict[str, str]:
    """The environment in which a kernel finds the package, installed or not."""
    import nccl_runbook

    folder = str(Path(nccl_runbook.__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))}
