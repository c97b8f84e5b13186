"""The steps of a look, as the notebooks 01, 03, 04 and 05 ask them."""

import dataclasses
import json
import os
import pkgutil
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

from nccl_runbook import placement
from nccl_runbook.core.facts import Gap, to_json, utc_now
from nccl_runbook.edges import ask as edges
from nccl_runbook.gpus import ask as gpus
from nccl_runbook.hosts.on_node import node
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.gpu_lists import rank_devices
from nccl_runbook.look import live as look_live
from nccl_runbook.machine import ask_nvml as nvml, guard
from nccl_runbook.machine.facts import CudaView, NvmlGpu, Surroundings
from nccl_runbook.search import group_testing, halving
from nccl_runbook.sync import ask as sync
from nccl_runbook.sync.facts import SyncArm
from nccl_runbook.worlds import ask as worlds, ask_arms as arms, ask_pairs
from nccl_runbook.worlds.facts import Trial


@dataclasses.dataclass(eq=False)
class Step:
    """One notebook's facts. ``engine``: None if this interpreter cannot run ranks; ``why_not``: why no rank
    may run, else None."""

    name: str
    parameters: Dict[str, Any]
    engine: Optional[Engine]
    why_not: Optional[Gap]
    facts: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin(self.parameters["budget_s"])

    def begin(self, left_s: float) -> None:
        """Start the clock; ``left_s``: seconds left for all steps. Without any, the facts say so."""
        self.started, self._clock, self._worlds_before = (
            utc_now(),
            time.monotonic(),
            len(self.engine.history) if self.engine else 0,
        )
        self.parameters["budget_s"] = max(1, int(min(self.parameters["budget_s"], left_s)))
        self.forbid(Gap("not-run", "no time was left for this test. Raise --budget") if left_s < 1 else None)

    def forbid(self, gap: Optional[Gap]) -> None:
        """Forbid ranks for this reason, unless one is set already."""
        self.why_not = gap if self.why_not is None else self.why_not

    @property
    def left_s(self) -> float:
        """Seconds left of the step's budget, at least 1."""
        return max(1.0, self.parameters["budget_s"] - (time.monotonic() - self._clock))

    @property
    def devices(self) -> List[Optional[int]]:
        """One device a rank: the cuda_index, or None for the CPU. ValueError as in rank_devices."""
        return rank_devices(
            self.parameters["gpus"],
            self.parameters["max_ranks"],
            self.engine.cuda_count() if self.engine else 0,
        )

    def ask_who_works(self) -> None:
        """Forbid ranks on GPUs that another process uses."""
        self.facts["users"] = nvml.users(self.left_s)
        busy = guard.in_the_way(self.facts["users"], self.parameters["allow_busy"])
        self.forbid(Gap("not-run", busy.reason) if busy else None)

    def ask(self, fact: str, probe: Callable[[], Any]) -> Any:
        """Store and return what the probe gives, or the reason not to ask (a Gap)."""
        self.facts[fact] = probe() if self.why_not is None else self.why_not
        return self.facts[fact]

    def record(self, reason: str) -> Dict[str, Any]:
        """The record of this step, not judged. ``reason``: why not."""
        judged = {
            "python": self.parameters["python"],
            **(self.engine.judged() if self.engine else {"host": os.uname().nodename}),
        }
        commands = [
            {"label": w.request.name, "line": w.shell_line}
            for w in (self.engine.history if self.engine else [])
        ]
        return look_live.unjudged(
            self.name,
            reason,
            self.started,
            time.monotonic() - self._clock,
            parameters=self.parameters,
            judged=judged,
            facts=to_json(self.facts),
            commands=commands[self._worlds_before :],
        )


def visibility(step: Step) -> None:
    """Step 01: the three views of the GPUs, and the host's network, which `hosts` and `fleet` compare."""
    step.facts["gpus"] = gpus.collect(step.engine, step.left_s)
    step.facts["network"] = node.network()


def fewer_gpus(step: Step) -> None:
    """Step 03: edges, ladder, singles, pairs, search."""
    step.ask_who_works()
    step.ask("edges", lambda: edges.collect(step.engine, step.devices, step.left_s))
    ladder = step.ask("ladder", lambda: worlds.ladder(step.engine, step.devices, step.left_s))
    singles = step.ask("singles", lambda: worlds.singles(step.engine, step.devices, step.left_s))
    pairs = step.ask("pairs", lambda: worlds.pairs(step.engine, step.devices, singles, step.left_s, ladder))
    step.ask(
        "search",
        lambda: worlds.search(step.engine, ladder, singles, pairs, step.left_s, group_testing.identify),
    )


def transports(step: Step) -> None:
    """Step 04: links, the arms, and pairs if the control fails."""
    step.ask_who_works()
    step.ask("links", lambda: nvml.links(step.left_s))
    made = step.ask("arms", lambda: arms.collect(step.engine, step.devices, step.left_s, halving.halve))
    step.ask("pairs", lambda: ask_pairs.pairs(step.engine, made, step.left_s))


def weight_sync(step: Step) -> None:
    """Step 05: placement and every method. ValueError for an unknown method."""
    step.ask_who_works()
    p, spec = step.parameters, settings()["spec"]
    plan = step.ask("plan", lambda: placement.place(step.devices))
    step.ask(
        "runs",
        lambda: sync.collect(
            step.engine,
            {**spec, "layers": placement.layers_to_move(plan, p["layers"], spec["layers_of"])},
            plan.devices,
            p["methods"],
            p["directory"],
            p["repeats"],
            step.left_s,
            p["receivers_busy"],
        ),
    )


def settings() -> Dict[str, Any]:
    """Settings from the build of the file: each notebook's parameters, and the shapes of the model that 05
    moves."""
    return json.loads(pkgutil.get_data("nccl_runbook", "look.json") or b"")


def _trial(trial: Trial) -> str:
    failed = [e["text"] for r in trial.world.ranks for e in r.named("error")] + trial.world.log.splitlines()[
        -1:
    ]
    why = "" if trial.passed or not failed else f": {failed[0].partition(chr(10))[0]}"
    return (
        f"{trial.name}: {trial.world.ended} ({trial.world.wall_s:.1f} "
        f"s){f', again {trial.again.ended}' if trial.again else ''}{why}"
    )


_WORDS: Dict[type, Callable[[Any], str]] = {
    Trial: _trial,
    SyncArm: str,
    NvmlGpu: lambda gpu: f"NVML: GPU {gpu.nvml_index}, {gpu.name}, {gpu.uuid}",
    CudaView: lambda cuda: f"CUDA: {len(cuda.gpus)} GPUs{'. '.join(['', *cuda.error.splitlines()])}",
    Surroundings: lambda around: (
        f"device files: {', '.join(f'{f.path} {f.error}'.strip() for f in around.files) or 'none'}"
    ),
}


def lines(fact: Any, name: str = "") -> Iterator[str]:
    """One line for each GPU, world and sync in a fact, and for each Gap."""
    if isinstance(fact, Gap):
        yield f"{name}: {fact}"
    elif type(fact) in _WORDS:
        yield _WORDS[type(fact)](fact)
    else:
        parts = (
            list(vars(fact).items())
            if dataclasses.is_dataclass(fact)
            else list(fact.items())
            if isinstance(fact, dict)
            else []
        )
        for key, part in [(name, one) for one in fact] if isinstance(fact, list) else parts:
            yield from lines(part, getattr(fact, "name", key))
