"""The jobs of the gym, and what `diagnose` answered about each."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nccl_runbook.causes.tables import table

Outcome = Literal["right", "undecided", "wrong"]


@dataclasses.dataclass(frozen=True)
class Job:
    """One row of jobs.toml, which explains its fields, or of gpu_jobs.toml."""

    name: str
    about: str
    launch: str
    does: str
    causes: tuple[str, ...] = ()
    rank: int | None = None
    look: str = ""
    many: int = 3
    says: str = ""
    timeout_s: int = 45
    dumps: bool = False
    gpus: int = 0

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong with the job, so that it has causes."""
        return bool(self.causes)

    @property
    def mounts(self) -> bool:
        """Whether it needs a file system of its own, so that only a user with namespaces can start it."""
        return "mount -t" in self.launch


@functools.cache
def jobs() -> Mapping[str, Job]:
    """Name -> job, in the order of the tables: those on the CPU first."""
    of_tables = {}
    for name, gpus in (("gym/jobs", 0), ("gym/gpu_jobs", 1)):
        rows = table(name)
        for row in rows["job"]:
            line = rows["launchers"].get(row["launch"], row["launch"])
            of_tables[row["name"]] = Job(**{"gpus": gpus, **row, "launch": line})
    return of_tables


def in_turn(chosen: Sequence[Job], runs: int) -> list[Job]:
    """So many runs of the jobs, one after the other and again; each has a name of its own."""
    turns = itertools.islice(itertools.cycle(chosen), runs)
    return [dataclasses.replace(job, name=f"{job.name}-{n}") for n, job in enumerate(turns, 1)]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What `diagnose` answered. ``door``: "live" while the job ran, "log" from what it left. ``cause`` and
    ``status``: of the leading finding, None without one; ``evidence``: its first lines; ``took_s``: of the
    command."""

    door: Literal["live", "log"]
    outcome: Outcome
    sentence: str
    cause: str | None
    status: str | None
    evidence: list[str]
    took_s: float


@dataclasses.dataclass(frozen=True)
class Trial:
    """One job from its start to its end. ``wall_s`` includes both answers."""

    job: Job
    answers: list[Answer]
    outcome: Outcome
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        """The row of ``faults`` in the JSON answer."""
        return {
            "fault": self.job.name,
            "about": self.job.about,
            "expected": {"causes": list(self.job.causes), "rank": self.job.rank},
            "answer": [dataclasses.asdict(answer) for answer in self.answers],
            "outcome": self.outcome,
            "wall_s": self.wall_s,
        }
