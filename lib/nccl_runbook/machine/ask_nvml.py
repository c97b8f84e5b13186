"""NVML, asked in a child process with a deadline: a call that hangs or crashes costs
the child, not the notebook."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.launch.command import ends
from nccl_runbook.launch.interpreters import STOPPED, is_stopped
from nccl_runbook.machine import facts as m

DEADLINE_S = 15.0
_START = (
    "import runpy, sys; sys.path[0] = sys.argv.pop(1); runpy.run_module('nccl_runbook.machine.nvml_child', "
    "None, '__main__', True)"
)
_KILLED_S = 2.0  # a process in an uninterruptible driver call cannot be reaped; it is left behind


def run_child(what: str, deadline_s: float = DEADLINE_S) -> Tuple[List[Dict[str, Any]], str]:
    """(lines that the child printed for ``what``, "all", "use" or "live"; why it did not end by itself, else
    empty)."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ended = _wait(
            subprocess.Popen(
                # the folder or zip that holds the package, and in the zip pynvml beside it
                [sys.executable, "-c", _START, str(Path(__file__).absolute().parents[2]), what],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            ),
            deadline_s,
        )
        out.seek(0)
        err.seek(0)
        return (
            [json.loads(line) for line in out.read().splitlines(keepends=True) if line.endswith(b"\n")],
            ended and f"{ended}; {err.read()[-300:].decode(errors='replace')}".rstrip("; \n"),
        )


def _wait(child: subprocess.Popen, deadline_s: float) -> str:
    with child.stdin:  # its end is the child's sign to leave
        if ends(child, deadline_s):
            return f"the process that queried NVML ended with {child.returncode}" if child.returncode else ""
        stopped = f": {STOPPED}" if is_stopped(child.pid) else ""
        child.kill()
        ends(child, _KILLED_S)
        return f"NVML did not answer within {deadline_s:g} s{stopped}"


def ask(what: str, within_s: float, make: Callable[[Dict[str, Any], List[Dict[str, Any]], Gap], Any]) -> Any:
    """What ``make`` returns for the system line, the other lines, and the Gap for missing parts; a Gap if
    NVML as a whole refused. ``within_s``: seconds left of the budget, at least 1."""
    try:
        lines, ended = run_child(what, max(1.0, min(DEADLINE_S, within_s)))
    except OSError as error:
        return Gap("failed", f"cannot start a process to query NVML: {error}")
    missing = Gap(
        "timed-out" if "did not answer" in ended else "failed",
        ended or "the process that queried NVML printed nothing",
    )
    system = next((line for line in lines if line["part"] == "system"), None)
    if system is None:
        return missing
    of_gpus = [line for line in lines if line["part"] not in ("system", "end")]
    return Gap(**system["refused"]) if "refused" in system else make(system, of_gpus, missing)


def by_index(lines: List[Dict[str, Any]], count: int, part: str, missing: Gap, kind: Any) -> List[Any]:
    """One entry a GPU: a fact of this kind from its line, the Gap of its handle, or ``missing``."""
    entries = {
        line["nvml_index"]: Gap(**line["refused"]) if "refused" in line else m.from_json(kind, line, "part")
        for line in lines
        if "refused" in line or line["part"] == part
    }
    return [entries.get(index, missing) for index in range(count)]


def view(within_s: float = DEADLINE_S) -> Union[m.NvmlView, Gap]:
    """Everything that NVML reports about this machine; parts that came too late because of a hang are Gaps
    (timed-out)."""
    return ask("all", within_s, _view)


def _view(system: Dict[str, Any], lines: List[Dict[str, Any]], missing: Gap) -> m.NvmlView:
    gpus = by_index(lines, system["count"], "gpu", missing, m.NvmlGpu)
    reached = sum(not isinstance(g, Gap) for g in gpus)
    pairs = [m.from_json(m.Pair, line, "part") for line in lines if line["part"] == "pair"]
    return m.NvmlView(
        *(m.gap_or(system[name], str) for name in ("driver", "cuda_driver", "nvml")),
        gpus,
        pairs if len(pairs) == reached * (reached - 1) // 2 else missing,
    )


def users(within_s: float = DEADLINE_S) -> Union[m.GpuUsers, Gap]:
    """Memory, utilisation and processes of every GPU over two samples 0.3 s apart; asked before any test
    that could disturb them. A Gap if NVML does not answer."""
    return ask(
        "use",
        within_s,
        lambda system, lines, missing: m.GpuUsers(
            by_index(lines, system["count"], "use", missing, m.GpuUse), os.path.exists("/dev/dxg")
        ),
    )


def links(within_s: float = DEADLINE_S) -> Union[List[Union[m.GpuLinks, Gap]], Gap]:
    """What limits each GPU's bandwidth, by nvml_index; a Gap if NVML does not answer."""
    nvml = view(within_s)
    return (
        nvml if isinstance(nvml, Gap) else [gpu if isinstance(gpu, Gap) else _links(gpu) for gpu in nvml.gpus]
    )


def _links(gpu: m.NvmlGpu) -> m.GpuLinks:
    return m.GpuLinks(
        gpu.name,
        gpu.nvlinks if isinstance(gpu.nvlinks, Gap) else gpu.nvlinks.up,
        *((gpu.pcie,) * 2 if isinstance(gpu.pcie, Gap) else (gpu.pcie.max_generation, gpu.pcie.max_width)),
    )
