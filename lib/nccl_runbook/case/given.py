"""What was given, sorted by its reader."""

import dataclasses
import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from nccl_runbook.core.facts import grouped
from nccl_runbook.logs.kind import kind
from nccl_runbook.logs.sources import heads
from nccl_runbook.report.run import RECORDS


@dataclasses.dataclass(frozen=True)
class Material:
    """What was given, by its reader. ``logs``: also dumps, stacks, archives, answers of RAS; ``scripts``:
    launch scripts and lists of variables; ``allocations``: also launch lines; ``words``: error texts and
    symptoms."""

    logs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    allocations: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


SORT_S = 2.0  # a folder that takes longer is read as logs alone: the reader waits
_SHELL = re.compile(rb"#![^\n]*(?:sh|bash|zsh)\b|(?:.*\n){0,40}#(?:SBATCH|PBS|BSUB|FLUX) ")
_SCRIPTS, _CONFIGURATIONS = (".sh", ".bash", ".sbatch", ".slurm", ".env"), (".yaml", ".yml")

# a misspelt extension counts behind a number or a dash: torch.cuda and socket.error are words
_PATH = re.compile(
    r"\w+://\S*|~?[\w.+@%-]*/\S*|[\w+@%-]+(?:\.[\w+@%-]+)*\.(?:log|out|err|txt|json|pkl|gz|tar|tgz|zip|py|sh|"
    r"sbatch|slurm|ya?ml)|"
    r"(?=[\w+@%]{0,99}[\d-])[\w+@%-]+(?:\.[\w+@%-]+)*\.[A-Za-z]{2,6}|"
    r"-\S+|[^\s*]*\*\S*"  # an option behind --, and a pattern that the shell found no file for
)


def is_path(word: str) -> bool:
    """Whether the word looks like the name of a file, so that it is no error text."""
    return bool(_PATH.fullmatch(word))


def sort(given: Iterable[str]) -> Material:
    """Everything by its kind; a path that does not exist goes to the log reader, which reports it."""
    return Material(
        **{
            what: tuple(dict.fromkeys(names))
            for what, names in grouped(pair for one in given for pair in _recognised(one)).items()
        }
    )


def _recognised(given: str) -> Iterator[tuple[str, str]]:
    if given != "-" and os.path.lexists(os.path.expanduser(given)):
        yield from _of_path(given)
    elif pid := re.fullmatch(r"(?i:pid[:= ]?\s*)?(\d{1,20})", given):
        yield "pids", pid[1]
    elif given == "-" or is_path(given):
        yield "logs", given
    else:
        yield "allocations" if _is_allocation(given) else "words", given


def _is_allocation(text: str) -> bool:
    # only here: a log is read without these grammars, which take a quarter of the start
    from nccl_runbook.plan import frameworks
    from nccl_runbook.plan.allocation.areal_rules import newest
    from nccl_runbook.plan.areal import Refused, parse

    if " " in text:
        return (" --" in text or "=" in text) and frameworks.of(text) is not None
    try:
        return bool(parse(text, newest()))
    except Refused:
        # somebody meant one: of today's form, or of an AReaL tag before it (sglang.d1p1t1+d1p1t1)
        return "+" in text and (":" in text or bool(re.search(r"[.+|]d\d+[pt]\d+", text)))


def _of_path(path: str) -> Iterator[tuple[str, str]]:
    """A file by its kind; a folder as a whole if it holds only logs and dumps."""
    until = time.monotonic() + SORT_S
    if os.path.basename(path) == "verdict.json" and (records := sorted(Path(path).parent.glob(RECORDS))):
        yield from (("records", str(record)) for record in records)
        return
    in_time = itertools.takewhile(lambda _: time.monotonic() < until, heads(path))
    inside = _without_pages([(_of_file(name, head), name) for name, head in in_time])
    is_folder = os.path.isdir(os.path.expanduser(path))
    if is_folder and (all(what == "logs" for what, _ in inside) or time.monotonic() > until):
        yield "logs", path
    else:
        yield from inside if is_folder else ((what, path) for what, _ in inside)


def _without_pages(files: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Only the records of a run's folder: its pages and notebooks quote messages that no job printed, and
    its logs are tests."""
    runs = {os.path.dirname(name) for what, name in files if what == "records"} & {
        os.path.dirname(name) for _, name in files if os.path.basename(name) == "verdict.json"
    }
    return [
        (what, name)
        for what, name in files
        if what == "records" or not any(name.startswith(run + os.sep) for run in runs)
    ]


def _of_file(name: str, head: bytes) -> str:
    words, is_log = kind(head)
    if words.startswith("a record of this runbook"):
        return "records"
    if name.endswith(_SCRIPTS) or _SHELL.match(head) or words.startswith("variables"):
        return "scripts"
    sets = name.endswith(".py") and b"environ" in head
    return "configurations" if sets or name.endswith(_CONFIGURATIONS) else "logs"
