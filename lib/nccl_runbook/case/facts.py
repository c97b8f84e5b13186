"""What somebody gave."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Brought:
    """Sorted by what reads it. ``logs``: also dumps, stacks, archives, answers of RAS; ``scripts``: launch scripts and lists of variables;
    ``allocations``: also launch lines; ``words``: error texts and symptoms."""

    logs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    allocations: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
