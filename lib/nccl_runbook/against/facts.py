"""How a run was set up and how long things took, and two such runs side by side."""

import dataclasses

from nccl_runbook.logs.facts import FileRead


@dataclasses.dataclass(frozen=True)
class RunProfile:
    """How a run was set up and how long it took, from its logs and records.

    ``settings``: kind (as in profile.toml) -> name -> values; ``communicators``: number of distinct ids;
    ``syncs``: weight syncs timed; ``times``: "init", "step", "sync" -> seconds, in order; "all_reduce,
    control, GB/s" -> bus bandwidths in GB/s; ``steps``: steps of the records; ``variables_from``: "log",
    "script" or "record"; ``problem``: what is wrong in the run itself, empty if nothing is known.
    """

    files: list[FileRead]
    settings: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)
    communicators: int = 0
    syncs: int = 0
    times: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    steps: list[str] = dataclasses.field(default_factory=list)
    variables_from: list[str] = dataclasses.field(default_factory=list)
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class TimeChange:
    """A time or bandwidth in both runs. ``good``, ``bad``: (n, median, least, most), n 0 if none was
    printed; ``unit``: s or GB/s."""

    kind: str
    good: tuple[int, float, float, float]
    bad: tuple[int, float, float, float]
    says: str
    unit: str = "s"

    @property
    def spans(self) -> list[str]:
        """Both runs as text: "22.5 s (n 27, 21.0 to 24.0)"."""
        return [
            f"{median:.3g} {self.unit} ({n} samples, {least:.3g} to {most:.3g})" if n else "none printed"
            for n, median, least, most in (self.good, self.bad)
        ]


@dataclasses.dataclass(frozen=True)
class Difference:
    """Something that differs between the runs. ``could_explain``: whether it could be the cause; ``why``:
    the reason; ``is_tested``: whether a cause that it excludes is established."""

    kind: str
    name: str
    good: str
    bad: str
    could_explain: bool
    why: str
    is_tested: bool = True


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``sentence`` first, then the times, and the differences, most telling first. ``settings``: number of
    versions, variables and the like that both runs show; ``of``: cause or finding that the differences were
    judged for, empty for a change of speed; ``good_is``: what is wrong in the good run, empty if nothing is
    known; ``line``: command that compares both set-ups in turn, empty if there is none."""

    sentence: str
    times: tuple[TimeChange, ...]
    differences: tuple[Difference, ...]
    settings: int = 0
    of: str = ""
    good_is: str = ""
    line: str = ""

    @property
    def slower(self) -> bool:
        """Whether any time became slower, beyond its spread."""
        return any("slower" in t.says for t in self.times)
