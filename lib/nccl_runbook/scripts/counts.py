"""How many ranks a command starts on a node, how many GPUs they have there, and what its launchers refuse."""

import collections
import functools
import itertools
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nccl_runbook.causes.tables import table

MOST_TEXT = 2000  # of a command that is compared with faults
_GPUS = re.compile(r"(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+))*+")
_NUMBERS = ("nodes", "spread", "ranks", "ranks_total", "ranks_each", "there", "there_total", "there_each")
_NO_LAUNCH = ("echo", "printf", "pip", "pip3", "kill", "pkill", "log", "logger", "which")
_STARTED = re.compile(r"(?:.*/)?(?:python[\d.]*|[a-z_]+_perf|(?!mason)[^/]*\.py)")
# what one process does for all, or without a GPU
_NO_RANKS = re.compile(r" (?:-c|pip|conda|ray)(?: |$)|prep|tokeni[sz]|download|convert")

# by: the outermost launcher; nodes: 0 if no launcher names a number; ranks: on a node; gpus: that they have
# there, 0 if it is not known; text: all launchers with their own words; rest: what they start
Size = collections.namedtuple("Size", "by nodes ranks gpus text rest")


@functools.cache
def _programs() -> dict[str, Any]:
    return {p: row for row in table("scripts/launchers")["program"].values() for p in row["programs"]}


def numbers(program: str, text: str) -> dict[str, int]:
    """What the words of a launcher say."""
    row = _programs()[program]
    matches = {what: re.findall(row[what], text) for what in _NUMBERS if what in row}
    return {what: int("".join(values[-1])) for what, values in matches.items() if values}


def per_node(asked: Mapping[str, int]) -> tuple[int, int]:
    """Ranks and GPUs of a node, 0 if they are not said; of one node, if nothing says of how many."""
    most = asked.get("ranks", 0)
    # Slurm chooses on how many nodes it runs all tasks, unless it is told
    is_open = "spread" in asked and not asked.get("nodes") and not most
    total = 0 if is_open else asked.get("ranks_total", 0)
    nodes = asked.get("nodes") or (-(-total // most) if total and most else 1)
    ranks = min(filter(None, (-(-total // nodes), most)), default=0)
    each = asked.get("there_each", 0) * (ranks or 1)
    return ranks, asked.get("there") or asked.get("there_total", 0) // nodes or each


def size_of(
    own_words: Sequence[str], outside: Sequence[str], env: Mapping[str, str], asked: Mapping[str, int]
) -> Size | None:
    """None of a command without a launcher. ``outside``: the words before the string that the command stands
    in; ``asked``: what the job asked its scheduler for."""
    words = (*outside, *own_words)
    names = [posixpath.basename(word) for word in words]
    # what follows the script that a launcher starts is for that script
    script = next(
        (i for i, name in enumerate(names) if name.endswith(".py") and name != "mason.py"), len(names)
    )
    at = [i for i, name in enumerate(names[:script]) if name in _programs()]
    if own_words[0] in _NO_LAUNCH or not any(i < 3 or 0 <= i - len(outside) < 3 for i in at):
        return None
    end = next((i for i in range(at[-1] + 1, script) if _STARTED.fullmatch(names[i])), script)
    gpus, shown, ranks, nodes, texts = per_node(asked)[1], env.get("CUDA_VISIBLE_DEVICES", ""), 1, 0, []
    # PET_NNODES stands for --nnodes (torch 2.13, distributed/argparse_util.py)
    preset = {
        "torch": [f"--{name[4:].lower()}={value}" for name, value in env.items() if name.startswith("PET_")],
        # a step runs on all nodes of its job, unless its own words say otherwise
        "srun": [f"--nodes={asked['nodes']}"] if asked.get("nodes") else [],
    }
    for i, j in itertools.pairwise((*at, end)):
        row = _programs()[names[i]]
        texts.append(" ".join((names[i], *preset.get(names[i][:5], ()), *words[i + 1 : j])))
        own = numbers(names[i], texts[-1])
        if "is_node" in row:
            asked, gpus, shown = own, 0, ""
        held = asked if "inherits" in row else {"nodes": asked.get("nodes", 0)}
        size = {**held, "there": 0, "there_total": 0, **own}
        started, there = per_node(size)
        gpus = there or gpus
        ranks *= 1 if "is_node" in row else started or size.get("ranks_each", 0) * gpus or 1
        nodes = max(nodes, own.get("nodes", 0))
        shown = next((m[1] for m in re.finditer(row.get("shown", "$^"), texts[-1])), shown)
    # srun and mpirun start whatever they are told
    if "inherits" in row and (end == len(words) or _NO_RANKS.search(" ".join(words[end : end + 3]))):
        ranks = 1
    listed = shown.count(",") + 1 if _GPUS.fullmatch(shown) else 0
    text = " ".join((f"{ranks} ranks:", *texts, *words[end : end + 1]))
    return Size(
        names[at[0]],
        nodes,
        ranks,
        min(filter(None, (listed, gpus)), default=0),
        text[:MOST_TEXT],
        " ".join(words[end:])[:MOST_TEXT],
    )


def faults(sizes: Iterable[Size], written: str) -> dict[str, str]:
    """What the table says against these commands, or against the text as it is written: its id, and the
    command or the lines."""
    rows = table("scripts/launchers")["fault"].items()
    return {
        name: m[m.re.groupindex.get("line", 0)].strip()
        for name, row in rows
        if "when" not in row and (m := re.search(row["text"], written))
    } | {
        name: size.text
        for name, row in rows
        for size in sizes
        if re.search(row.get("when", "$^"), size.text)
        and re.search(row.get("and", ""), size.text)
        and not re.search(row.get("never", "$^"), size.text)
        and re.search(row.get("starts", ""), size.rest)
        and re.search(row.get("text", ""), written)
    }


def lines_of(text: str, limit: str) -> list[int]:
    """Numbers of the lines that say how many ranks a node runs, and how many GPUs it has. ``limit``: the
    variable that says the latter, "" without."""
    wanted = "ranks" if limit else ("ranks", "there", "shown")
    rows = table("scripts/launchers")["program"].values()
    counting = [row[what] for row in rows for what in row if what.startswith(wanted)]
    # a manifest as its lists and maps are handed to these expressions
    forms = ("#SBATCH ?", ""), (r"[\"'\s]", ""), (r"[\"',\s\[\]]+", " ")
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if (limit and limit in line)
        or any(re.search(c, re.sub(*form, line)) for form in forms for c in counting)
    ]
