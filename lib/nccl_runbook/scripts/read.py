"""A launch script, an sbatch file or one line: its commands, and the nodes and GPUs that it asks
for. Nothing is executed.

Variables that the same text sets and arithmetic are worked out. What needs a shell ($(...), a variable from
elsewhere) stays as written.
"""

import ast
import dataclasses
import functools
import itertools
import operator
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from nccl_runbook.causes.tables import table
from nccl_runbook.scripts import accelerate

MOST_BYTES = 1 << 20
MOST_COMMANDS = 50_000  # of one text; with more it is a log or a table
MOST_LEVELS = 4
MOST_HEREDOCS = 500  # of one text: for each the rest is searched
# characters that the variables of a text may be put in for: `A=$A$A` doubles with each line
MOST_EXPANDED = 1 << 20
_HERE = r"<<(?P<tabs>-?)[ \t]*\\?(?P<quote>[\"']?)(?P<name>[A-Za-z_][\w.-]*)(?P=quote)"
# a quote that is never closed is a letter, < one of a word unless a heredoc begins there
_TOKEN = re.compile(
    rf"(?P<gap>(?:[ \t\r]|\\[ \t]*(?:\r?\n|\Z))+|\#[^\n]*)|(?P<end>[;&|\n]+)|(?P<here>{_HERE})|"
    r"(?P<word>(?:[^ \t\r\n;&|\"'\\<$]++|\$\(\((?:[^()\n]|\([^()\n]*\))*\)\)|\"(?:[^\"\\]++|\\.)*+\"|'[^']*'|"
    r"<<<|\\(?![ \t]*(?:\r?\n|\Z)).|[\"'$]|<(?!<-?[ \t]*\\?[\"']?[A-Za-z_]))++)|.",
    re.S,
)
_QUOTED = re.compile(r"\"((?:[^\"\\]++|\\.)*+)\"|'([^']*)'|\\(.)", re.S)
_NO_SHELL = {"cat", "python", "python3"}  # unless they write a file
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.M)
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()\n]|\([^()\n]{0,99}\)){0,200})\)\)")
_USED = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}$]*))?\}|(\w+))")
_KEPT = re.compile(r"\$\{(\w+):?=([^{}$]*)\}")  # sets the variable, too, unless it is set
_PREFIX = re.compile(r"([A-Za-z_]\w{0,80})=(.*)", re.S)
_GPUS = re.compile(r"(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d{1,3}|(?:GPU|MIG)-[\w/-]+))*+")
# overrides as Hydra and OmegaConf take them
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_][\w.]*\.\w+|allocation_mode)=(.*)", re.S)
_BEFORE = frozenset("env export declare -x exec nohup time then do else if ! { (".split())
# launchers whose line does not state the GPUs, or whose ranks may share them
_UNSURE = re.compile(
    r"\b(?:if|case|elif|function|unset|hetjob|het-group|mps|gloo|docker|podman|apptainer|singularity|"
    r"enroot|ssh|hostfile)\b|"
    r"--cpu\b|device[= ]cpu|\(\)\s{0,4}\{|-u CUDA|CUDA_VISIBLE_DEVICES(?:\+=|=[^\n]{0,40}:-)|"
    r"> ?[^\n ]{1,100} ?<<|<<[^\n]{1,40}>"
)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclasses.dataclass(frozen=True)
class Command:
    """``words``: as the shell splits them; ``flags``: name (without dashes, "-" as "_") -> values; ``env``:
    set for this command, or earlier in the text."""

    words: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]
    env: dict[str, str]

    @property
    def text(self) -> str:
        """The words joined by blanks."""
        return " ".join(self.words)


@dataclasses.dataclass(frozen=True)
class Script:
    """``nodes``: requested from a scheduler, ``gpus``: of a node, ``spread``: nodes given to a launcher,
    each 0 if not stated; ``sourced``: files that it reads as it runs; ``crowded``: ranks on a node and GPUs
    there, if those are fewer."""

    commands: tuple[Command, ...]
    nodes: int
    gpus: int
    spread: int
    sourced: tuple[str, ...]
    crowded: tuple[int, ...]


@functools.lru_cache(2)  # diagnose asks for its settings and for its plan
def read(text: str) -> Script:
    """Every command of the text in order, and the size of the job."""
    text = accelerate.as_launch(text)
    directives = " ".join(_DIRECTIVE.findall(text[:MOST_BYTES]))
    asked = _size("sbatch", directives)
    names = ("SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE", "SLURM_NNODES", "SLURM_GPUS_PER_NODE")
    known = {name: str(value) for name, value in zip(names, asked * 2) if value}
    commands = tuple(itertools.islice(_commands(text[:MOST_BYTES], known, [MOST_EXPANDED]), MOST_COMMANDS))
    launchers = {
        program: name for name, row in table("scripts/launchers").items() for program in row["programs"]
    }
    # what follows the script that a launcher starts is for that script
    launches = [
        (
            launchers[program],
            _size(launchers[program], re.split(r"(?<!mason)\.py(?= |$)", c.text, maxsplit=1)[0], asked[0]),
            next(iter(c.flags.get("gpu_ids", ())), c.env.get("CUDA_VISIBLE_DEVICES", "")),
            _tasks(c, directives),
        )
        for c in commands
        for program in dict.fromkeys(
            map(posixpath.basename, c.words if c.words[0] == "srun" else c.words[:3])
        )
        if program in launchers
        and c.words[0] not in ("echo", "printf", "pip", "pip3", "kill", "pkill", "log", "logger", "which")
    ]
    submitted = [asked, *(size for name, size, *_ in launches if name in ("sbatch", "mason"))]
    nodes, gpus = (next((size[i] for size in submitted if size[i]), 0) for i in (0, 1))
    sourced = [
        *(c.words[1] for c in commands if c.words[0] in (".", "source") and len(c.words) > 1),
        *(file for c in commands for file in c.flags.get("env_file", ())[:1]),
    ]
    crowded = (
        (size[1] * tasks, there)
        for name, size, shown, tasks in launches
        if name not in ("sbatch", "mason")
        for there in [shown.count(",") + 1 if _GPUS.fullmatch(shown) else asked[1]]
        if 0 < there < size[1] * tasks
    )
    return Script(
        commands,
        nodes,
        gpus,
        max([nodes, *(size[0] for _, size, *_ in launches)]),
        tuple(dict.fromkeys(sourced)),
        () if _UNSURE.search(text[:MOST_BYTES]) else next(crowded, ()),
    )


def _tasks(command: Command, directives: str) -> int:
    """How often srun starts the launcher behind it on a node: once for each of its tasks."""
    if command.words[0] != "srun" or re.search(r" (?:-n[= ]?|--ntasks[= ])\d", command.text):
        return 1
    asked = re.findall(r"--ntasks-per-node[= ](\d{1,4})", f"{command.text} {directives}")
    return int(asked[0]) if asked else 1


def _size(launcher: str, text: str, allocated: int = 0) -> tuple[int, int]:
    """Nodes, and GPUs of a node, as this launcher gets them. ``allocated``: nodes of the job, for one that
    does not say on how many it starts its ranks."""
    row = table("scripts/launchers")[launcher]
    nodes, gpus, total = (
        int(next(reversed(re.findall(row[what], text)), 0)) if what in row else 0
        for what in ("nodes", "gpus", "total")
    )
    return nodes, gpus or total // (nodes or allocated or 1)


def _commands(
    text: str, known: dict[str, str], left: list[int], levels: int = MOST_LEVELS
) -> Iterator[Command]:
    """Every command, with variables put in. ``left``: how many characters may still be put in, of all texts
    together: none grows without end."""
    # an escaped operator is meant for the shell that receives these words
    for line in (
        own
        for several in _split(worked_out(text, None))
        for own in _groups(several, lambda w: w and not w.strip(";&|\n"))
    ):
        known |= {name: value for w in line for name, value in _KEPT.findall(w) if name not in known}
        words, env, at = [w for word in line for w in _expanded(word, known, left)], {}, 0
        while at < len(words) and (words[at] in _BEFORE or _PREFIX.fullmatch(words[at])):
            name, equals, value = words[at].partition("=")
            env |= {name: value} if equals else {}
            at += 1
        if at == len(words):
            known |= env
        visible = {n: known[n] for n in ("CUDA_VISIBLE_DEVICES",) if n in known}
        for command in _groups(words[at:], "--".__eq__):
            yield Command(tuple(command), _flags(command), {**visible, **env})
            inner = command[command.index("-c") + 1 :][:1] if "-c" in command and levels else []
            yield from (
                c
                for line in inner
                if re.search(r"\s", line)
                for c in _commands(line, {**known, **env}, left, levels - 1)
            )


def _expanded(word: str, known: Mapping[str, str], left: list[int]) -> list[str]:
    """The word with variables and arithmetic expanded. A word that is only a variable may become several
    words."""
    names = [match[0] or match[2] for match in _USED.findall(word)]
    left[0] -= sum(len(known.get(name, "")) for name in names)
    if left[0] < 0 or not (names or "$((" in word):
        return [word]
    filled = worked_out(
        _USED.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), word), known
    )
    return next(_split(filled), []) if _USED.fullmatch(word) and re.search(r"\s", filled) else [filled]


def worked_out(text: str, known: Mapping[str, str] | None) -> str:
    """The text with $((4 * 1024)) computed; without blanks inside if ``known`` is None or a variable is
    unknown."""

    def result(match: re.Match[str]) -> str:
        expression = re.sub(r"\s|\$\{?(?=\w)|(?<=\w)\}", "", match[1])
        try:
            return (
                f"$(({expression}))"
                if known is None
                else str(_number(ast.parse(expression, mode="eval").body, known))
            )
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
            return f"$(({expression}))"

    return _ARITHMETIC.sub(result, text)


def _number(node: ast.AST, known: Mapping[str, str]) -> int:
    """The whole number; KeyError if unknown, ValueError if it is none."""
    if isinstance(node, ast.BinOp):
        value = _OPERATORS[type(node.op)](_number(node.left, known), _number(node.right, known))
    else:
        value = int(known[node.id]) if isinstance(node, ast.Name) else int(ast.unparse(node))
    if abs(value) >= 1 << 63:
        raise ValueError("larger than a shell's numbers")
    return value


def _split(text: str, levels: int = MOST_LEVELS) -> Iterator[list[str]]:
    """The words of each command. A quote may span lines but not leave a heredoc, whose text has its own
    commands unless it is only printed, or Python."""
    words, parts, heredocs, at, left = [], [], [], 0, MOST_HEREDOCS
    while at < len(text):
        token = _TOKEN.match(text, at)
        at, kind = token.end(), token.lastgroup
        if kind in ("word", None):
            parts.append(_unquoted(token[0]))
            continue
        words += ["".join(parts)] if parts else []
        parts = []
        if kind == "here":
            left -= 1
            heredocs += [token] if left > 0 else []
        elif kind == "end":
            yield words
            if heredocs and "\n" in token[0]:
                at = text.index("\n", token.start())
                for heredoc in heredocs:
                    end = re.compile(
                        "\\n" + r"\t*" * bool(heredoc["tabs"]) + re.escape(heredoc["name"]) + r"\r?$", re.M
                    ).search(text, at)
                    begin, at = at, end.end() if end else at
                    if levels and (not _NO_SHELL & {*words} or any(">" in word for word in words)):
                        yield from _split(text[begin:at].rpartition("\n")[0], levels - 1)
                heredocs = []
            words = []
    yield words + ["".join(parts)] * bool(parts)


def _groups(words: list[str], is_end: Callable[[str], bool]) -> list[list[str]]:
    """What stands between those words."""
    return [[*group] for ends, group in itertools.groupby(words, lambda word: bool(is_end(word))) if not ends]


def _unquoted(word: str) -> str:
    """As the shell takes it; within double quotes a backslash stays but before a quote,
    itself and the end of a line."""
    if not {*"\"'\\"} & {*word}:
        return word
    return _QUOTED.sub(
        lambda m: (
            re.sub(r"\\(?:([\\\"])|[ \t]*\r?\n)", r"\1", m[1]) if m[1] is not None else m[2] or m[3] or ""
        ),
        word,
    )


def _flags(words: list[str]) -> dict[str, tuple[str, ...]]:
    flags: dict[str, tuple[str, ...]] = {}
    latest = ""  # the flag that takes the words behind it
    for word in words:
        if dotted := _DOTTED.fullmatch(word):
            flags[dotted[1]] = (dotted[2],)
            latest = ""
        elif word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            flags[flag.replace("-", "_")] = (value,) if equals else ()
            latest = "" if equals else flag.replace("-", "_")
        elif latest:
            flags[latest] += (word,)
    return flags
