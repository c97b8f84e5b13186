"""What somebody gave, each thing recognised by its content: paths, process ids, allocations, error texts."""

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence

from nccl_runbook.case.facts import Brought, Start
from nccl_runbook.core.facts import Gap, grouped
from nccl_runbook.core.findings import Finding
from nccl_runbook.hang.facts import Hang
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import READ_BY_HANG, heads, kind
from nccl_runbook.messages import read
from nccl_runbook.messages.facts import Logs
from nccl_runbook.plan import frameworks
from nccl_runbook.plan.areal import Refused, newest, parse

SORT_S = 3.0  # a folder that takes longer is read as logs alone: the reader waits
_SHELL = re.compile(rb"#![^\n]*(?:sh|bash|zsh)\b|(?:.*\n){0,40}#(?:SBATCH|PBS|BSUB|FLUX) ")
_SCRIPTS, _CONFIGURATIONS = (".sh", ".bash", ".sbatch", ".slurm", ".env"), (".yaml", ".yml")
_PATH = re.compile(r"~?[\w.+@%-]*/\S*|[\w+@%-]+(?:\.[\w+@%-]+)*\.(?:log|out|err|txt|json|pkl|gz|tar|tgz|zip|py|sh|sbatch|slurm|ya?ml)")


def sort(given: Iterable[str]) -> Brought:
    """Everything under what it is; a path that leads nowhere is left to the reader of logs, which says so."""
    return Brought(**{what: tuple(dict.fromkeys(names))
                      for what, names in grouped(pair for one in given for pair in _recognised(one)).items()})


def _recognised(given: str) -> Iterator[tuple[str, str]]:
    if given == "-" or os.path.lexists(os.path.expanduser(given)):
        yield from _of_path(given)
    elif pid := re.fullmatch(r"(?:pid:)?(\d{1,8})", given):
        yield "pids", pid[1]
    elif _PATH.fullmatch(given):
        yield "logs", given
    else:
        yield "allocations" if _is_allocation(given) else "words", given


def _is_allocation(text: str) -> bool:
    if " " in text:
        return (" --" in text or "=" in text) and frameworks.of(text) is not None
    try:
        return bool(parse(text, newest()))
    except Refused:
        return "+" in text and ":" in text  # somebody meant one


def _of_path(path: str) -> Iterator[tuple[str, str]]:
    """A file under what it is; a folder as a whole where it holds nothing but logs and dumps."""
    if path == "-":
        yield "logs", path
        return
    until = time.monotonic() + SORT_S
    inside = [(_of_file(name, head), name) for name, head in heads(path) if time.monotonic() < until]
    is_folder = os.path.isdir(os.path.expanduser(path))
    if is_folder and (all(what == "logs" for what, _ in inside) or time.monotonic() > until):
        yield "logs", path
    else:
        yield from inside if is_folder else ((what, path) for what, _ in inside)


def _of_file(name: str, head: bytes) -> str:
    words, is_log = kind(head)
    if words.startswith("a record of this runbook"):
        return "records"
    if name.endswith(_SCRIPTS) or _SHELL.match(head) or words.startswith("variables"):
        return "scripts"
    return "configurations" if name.endswith(_CONFIGURATIONS) else "logs"


LIMIT_S = 5.0  # somebody waits for the first answer; 07-logs takes longer


def collect(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path; "" for what was not given. No GPU is touched.

    ``log``: a file, folder or archive, or several separated by a colon.
    """
    limit = Limit(LIMIT_S)
    logs = read.collect(log.strip(), symptom.strip(), limit=limit) if symptom.strip() or log.strip() else None
    return Start(logs, hang_of(logs, log.strip(), limit) if logs else None)


def hang_of(logs: Logs, paths: Sequence[str] | str, limit: Limit) -> Hang | None:
    """What recorder dumps and stacks among the files of these logs hold, None without any."""
    if not any(READ_BY_HANG in f.kind + f.problem for f in logs.files):
        return None
    from nccl_runbook.hang.read import collect as collect_hang

    return collect_hang(paths, limit)


@dataclasses.dataclass(frozen=True)
class Dumps:
    """``sentence``: as `hang` says it; ``next``: what to collect next, or ""."""

    sentence: str
    finding: Finding
    tables: list[object]
    next: str = ""


def dumps_of(hang: Hang | Gap | None, logs: Logs) -> tuple[Dumps | None, Logs]:
    """What `hang` says of them, None without any, or where an old record holds none; and the logs, in which these files count as read."""
    if hang is None or isinstance(hang, Gap):
        return None, logs
    from nccl_runbook.hang.judge import hang_told, judge
    from nccl_runbook.hang.table import tables

    told = judge(hang)
    sure = f" ({told.status})" if told.status in ("possible", "likely") else ""
    dumps = Dumps(f"{told.kind}: {told.sentence}{sure}", hang_told(told, hang.logs.launcher), tables(hang, told.culprits), told.decides)
    files = [dataclasses.replace(f, kind="", problem="") if READ_BY_HANG in f.kind + f.problem else f for f in logs.files]
    return dumps, dataclasses.replace(logs, files=files)
