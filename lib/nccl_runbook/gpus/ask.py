"""What is there: GPUs as NVML, the device files and CUDA in a fresh rank each see them."""

import json
import subprocess
import sys
import time
from typing import Any, Optional

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import RankResult, WorldRequest
from nccl_runbook.launch.warm_link import source_of
from nccl_runbook.machine import ask_nvml as nvml
from nccl_runbook.machine.facts import CudaView, Machine, Surroundings, from_json

RANK_DEADLINE_S = 60.0


def collect(engine: Optional[Any], within_s: float = RANK_DEADLINE_S) -> Machine:
    """The three views of the GPUs. ``engine``: a launch Engine, which runs ranks/view.py as one rank with
    CUDA_VISIBLE_DEVICES unchanged; None if this interpreter cannot run ranks: then view.py reports what
    works without torch. ``within_s``: seconds left of the budget."""
    until = time.monotonic() + within_s
    request = WorldRequest("what CUDA sees", "view.py", [None], deadline_s=min(RANK_DEADLINE_S, within_s))
    rank = engine.run(request).ranks[0] if engine else _alone(request)
    return Machine(
        nvml.view(until - time.monotonic()),
        fact_of(rank, "surroundings", Surroundings),
        fact_of(rank, "cuda", CudaView),
    )


def _alone(request: WorldRequest) -> RankResult:
    """ranks/view.py run under this interpreter, over standard input."""
    try:
        done = subprocess.run(
            [sys.executable, "-"],
            input=source_of(f"nccl_runbook/ranks/{request.entry}"),
            capture_output=True,
            timeout=request.deadline_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return RankResult(0, "lost" if isinstance(error, OSError) else "timed-out", last_lines=[str(error)])
    return RankResult(
        0,
        "exited",
        done.returncode,
        events=[json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")],
        last_lines=done.stderr.decode("utf-8", "replace").splitlines(),
    )


def fact_of(rank: RankResult, event: str, kind: Any) -> Any:
    """The rank's event as a fact of this kind, or a Gap that says why the rank did not report it."""
    answer, no_torch = rank.first(event), rank.first("no_torch")
    if answer is not None:
        return from_json(kind, answer, "event")
    return Gap("absent", no_torch["error"]) if no_torch else rank.why_silent()
