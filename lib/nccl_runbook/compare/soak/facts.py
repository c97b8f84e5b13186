"""Facts of a soak: what was run how often, and how each run ended."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from nccl_runbook.compare.facts import Difference
from nccl_runbook.core.facts import Gap

COUNTERS = ("uncorrected ECC errors", "remapped rows", "NVLinks up", "PCIe lanes")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run. ``arm``: "A", or "B" with the other settings; ``at_s``: its start in seconds after that of the
    soak; ``ended``: "passed", or how it failed; ``wall_s``: its seconds; ``figures``: name -> every value
    that it reported; ``last_lines``: the end of what a failed run printed."""

    arm: str
    at_s: float
    ended: str
    wall_s: float
    figures: Mapping[str, Sequence[float]]
    last_lines: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether the run ended well."""
        return self.ended == "passed"


@dataclasses.dataclass(frozen=True)
class Soak:
    """``what`` was run; ``unit``: of its figures; ``differences``: settings of B, empty without B; ``ended``:
    why the soak ended; ``wall_s``: its seconds; ``before`` and ``after``: the counters of each GPU by name
    (see COUNTERS), with NVML's index as key; ``diagnose``: the command
    that reads what failed runs printed; ``on_gpus``: False for ranks of ours that ran on the CPU."""

    what: str
    unit: str
    differences: Sequence[Difference]
    runs: Sequence[Run]
    ended: str
    wall_s: float
    before: Mapping[int, Mapping[str, int]] | Gap
    after: Mapping[int, Mapping[str, int]] | Gap
    diagnose: str = ""
    on_gpus: bool = True

    @property
    def arms(self) -> list[str]:
        """The arms that were run: A, or A and B."""
        return sorted({run.arm for run in self.runs})

    def of(self, arm: str) -> list[Run]:
        """The runs of one arm, in order."""
        return [run for run in self.runs if run.arm == arm]

    def failed(self, arm: str = "") -> list[Run]:
        """The failed runs of one arm, or of all."""
        return [run for run in self.runs if not run.passed and arm in ("", run.arm)]

    def figures(self, arm: str) -> dict[str, list[float]]:
        """Name -> the median of each passed run, in order."""
        passed = [run for run in self.of(arm) if run.passed]
        names = dict.fromkeys(name for run in passed for name in run.figures)
        return {
            name: [statistics.median(run.figures[name]) for run in passed if run.figures.get(name)]
            for name in names
        }
