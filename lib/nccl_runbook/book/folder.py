"""The folder of a run, its options, and the link to the latest one."""

import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from nccl_runbook.core import records
from nccl_runbook.core.facts import utc_now


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a run. ``out``: its folder, None for a new one below ``outputs``, to which `latest` then
    points; ``budget_s``: seconds for the whole run; ``allowance_s``: seconds that a notebook gets beyond its
    own budget for starting and saving, at most a tenth of ``budget_s``; ``command``: repeats the run;
    ``began``: start of the budget, by time.monotonic()."""

    outputs: Path
    command: str
    out: Path | None = None
    python: str = ""
    gpus: str = ""
    allow_busy: bool = False
    budget_s: float = 300.0
    allowance_s: float = 20.0
    asked: tuple[str, ...] = ()
    fail_on: str = "unknown"
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def reserve_s(self) -> float:
        """Seconds kept for starting and saving a notebook: the allowance, at most a tenth of the budget."""
        return min(self.allowance_s, self.budget_s / 10)

    @property
    def left_s(self) -> float:
        """Seconds left of the budget; negative once it is spent."""
        return self.budget_s - (time.monotonic() - self.began)


def in_order(done: Sequence[records.Record], waiting: Sequence[str]) -> tuple[str, str]:
    """The step to run next, by number, with an empty reason. The same form as case.judge.following."""
    return waiting[0], ""


def from_here(path: Path) -> str:
    """The path relative to the working directory if possible: a shared page need not show the home folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def make_folder(options: Options) -> Path:
    """The run's own folder, private whatever the umask; of two runs in one second one takes another name."""
    path = (
        options.out.absolute()
        if options.out
        else options.outputs.absolute() / utc_now().replace("-", "").replace(":", "")
    )
    for number in itertools.count(2):
        try:
            records.new_folder(path, exist_ok=bool(options.out))
            return path
        except FileExistsError:
            if options.out or not path.is_dir():
                raise
        path = path.with_name(f"{path.name.partition('-')[0]}-{number}")


def point_latest(run_dir: Path) -> Path | None:
    """Let `latest` beside the folder point to it, atomically; `latest.txt` with its name if links cannot be
    made. Returns the link, or None."""
    link = run_dir.parent / "latest"
    temporary = Path(tempfile.mktemp(prefix=".latest.", dir=run_dir.parent))
    try:
        os.symlink(run_dir.name, temporary)
        os.replace(temporary, link)
        return link
    except OSError:  # a file system without links, or a folder of that name
        temporary.unlink(missing_ok=True)
        records.write_text(run_dir.parent / "latest.txt", run_dir.name + "\n")
        return None
