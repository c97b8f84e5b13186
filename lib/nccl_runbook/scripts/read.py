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
import re
from collections.abc import Callable, Iterator, Mapping

from nccl_runbook.scripts import accelerate, counts, manifests

MOST_BYTES = 1 << 20
MOST_WRITTEN = 1 << 14  # characters of a text that is compared as a whole: some faults take their square
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
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.M)
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()\n]|\([^()\n]{0,99}\)){0,200})\)\)")
_USED = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^{}$]*))?\}|(\w+))")
_PREFIX = re.compile(r"([A-Za-z_]\w{0,80})=(.*)", re.S)
_SEEN = (
    "CUDA_VISIBLE_DEVICES",
    *(f"PET_{n}" for n in ("NNODES", "NPROC_PER_NODE", "RDZV_ENDPOINT", "MASTER_ADDR")),
)
_SHELL = re.compile(r"-[a-z]{0,3}c|--wrap")
MOST_OUTSIDE = 60  # words
# overrides as Hydra and OmegaConf take them
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_][\w.]*\.\w+|allocation_mode)=(.*)", re.S)
_BEFORE = frozenset("env export declare -x exec nohup time then do else if ! { (".split())
# where one line does not say for another which GPUs there are, or where ranks need none of their own
_UNSURE = re.compile(
    r"\b(?:if|case|elif|function|unset|hetjob|het-group|mps|gloo|podman|apptainer|singularity|"
    r"enroot|ssh|hostfile|PBS_\w+|LSB_\w+)\b|#(?:PBS|BSUB|\$) |"
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
    """``words``: as the shell would split them; ``flags``: name without dashes, "-" as "_", to its values;
    ``env``: set for it alone or before it in the same text; ``outside``: the words before the string that
    it stands in."""

    words: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]
    env: dict[str, str]
    outside: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The words joined by blanks."""
        return " ".join(self.words)


@dataclasses.dataclass(frozen=True)
class Script:
    """``nodes``: that a scheduler is asked for, ``gpus``: of a node, ``spread``: nodes that a launcher
    is told to use, each 0 if the text does not say; ``sourced``: files that it reads as it runs; ``crowded``:
    how many ranks a launcher starts on a node, and how many GPUs they have there, if those are fewer;
    ``faults``: what a launcher refuses, by its id in the table of launchers, with the command."""

    commands: tuple[Command, ...]
    nodes: int
    gpus: int
    spread: int
    sourced: tuple[str, ...]
    crowded: tuple[int, ...]
    faults: dict[str, str]


@functools.lru_cache(2)  # diagnose asks for its settings and for its plan
def read(text: str) -> Script:
    """Every command of the text in order, and the size of the job."""
    written, text = text, manifests.as_script(accelerate.as_launch(text))
    asked = counts.numbers("sbatch", " ".join(_DIRECTIVE.findall(text[:MOST_BYTES])))
    nodes = asked.get("nodes", 0)
    ranks, gpus = counts.per_node(asked)
    values = {
        "NNODES": nodes,
        "JOB_NUM_NODES": nodes,
        "GPUS_ON_NODE": gpus,
        "GPUS_PER_NODE": gpus,
        "NTASKS_PER_NODE": ranks,
        "NTASKS": ranks * nodes,
    }
    known = {f"SLURM_{name}": str(value) for name, value in values.items() if value}
    commands = tuple(itertools.islice(_commands(text[:MOST_BYTES], known, [MOST_EXPANDED]), MOST_COMMANDS))
    sizes = [s for c in commands if (s := counts.size_of(c.words, c.outside, c.env, asked))]
    jobs = [
        counts.Size("", nodes, 0, gpus, "", ""),
        *(s for s in sizes if s.by in ("sbatch", "salloc", "mason.py")),
    ]
    sourced = [
        *(c.words[1] for c in commands if c.words[0] in (".", "source") and len(c.words) > 1),
        *(file for c in commands for file in c.flags.get("env_file", ())[:1]),
    ]
    rays = [counts.numbers("ray", size.text).get("ranks", 0) for size in sizes]
    unsure = _UNSURE.search(text[:MOST_BYTES])
    return Script(
        commands,
        next((job.nodes for job in jobs if job.nodes), 0),
        gpus=next(filter(None, (*(job.gpus for job in jobs), *rays)), 0),
        spread=max(nodes, *(size.nodes for size in (*jobs, *sizes))),
        sourced=tuple(dict.fromkeys(sourced)),
        crowded=() if unsure else next(((s.ranks, s.gpus) for s in sizes if 0 < s.gpus < s.ranks), ()),
        faults=counts.faults(() if unsure else sizes, written if len(written) <= MOST_WRITTEN else ""),
    )


def _commands(
    text: str,
    known: dict[str, str],
    left: list[int],
    outside: tuple[str, ...] = (),
    levels: int = MOST_LEVELS,
) -> Iterator[Command]:
    """Every command of the text in order, with variables expanded. ``known``: variables set so far, to which
    those of the text are added; ``left``: its one item is how many characters may still be expanded, in this
    text and in those inside it."""
    # an operator that was escaped ends a command, too: it is for the shell that is handed these words
    for line in (
        line
        for words in _split(with_arithmetic(text, None))
        for line in _groups(words, lambda word: word and not word.strip(";&|\n"))
    ):
        # ${NAME:=value} sets the variable, too, unless it is set
        kept = (
            pair
            for word in line
            if "=" in word and "{" in word
            for pair in re.findall(r"\$\{(\w+):?=([^{}$]*)\}", word)
        )
        known |= {name: value for name, value in kept if name not in known}
        words, env, at = [part for word in line for part in _expanded(word, known, left)], {}, 0
        while at < len(words) and (words[at] in _BEFORE or _PREFIX.fullmatch(words[at])):
            name, equals, value = words[at].partition("=")
            env |= {name: value} if equals else {}
            at += 1
        if at == len(words):
            known |= env
        else:
            visible = {n: known[n] for n in _SEEN if n in known}
            for command in _groups(words[at:], lambda word: word == "--"):
                yield Command(tuple(command), _flags(command), {**visible, **env}, outside)
                # the word behind `bash -c` or --wrap is a text with commands of its own
                inner = next((i for i, word in enumerate(command, 1) if _SHELL.fullmatch(word)), len(command))
                if levels and inner < len(command) and re.search(r"\s", command[inner]):
                    yield from _commands(
                        command[inner],
                        {**known, **env},
                        left,
                        (*outside, *command[:inner])[-MOST_OUTSIDE:],
                        levels - 1,
                    )


def _expanded(word: str, known: Mapping[str, str], left: list[int]) -> list[str]:
    """The word with variables and arithmetic expanded. A word that is only a variable may become several
    words."""
    names = [match[0] or match[2] for match in _USED.findall(word)] if "$" in word else []
    left[0] -= sum(len(known.get(name, "")) for name in names)
    if left[0] < 0 or not (names or "$((" in word):
        return [word]
    filled = with_arithmetic(
        _USED.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), word), known
    )
    return next(_split(filled), []) if _USED.fullmatch(word) and re.search(r"\s", filled) else [filled]


def with_arithmetic(text: str, known: Mapping[str, str] | None) -> str:
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
                        "\\n" + (r"\t*" if heredoc["tabs"] else "") + re.escape(heredoc["name"]) + r"\r?$",
                        re.M,
                    ).search(text, at)
                    begin, at = at, end.end() if end else at
                    writes = any(">" in word for word in words)
                    # cat and Python do not run the text as a shell
                    if levels and (writes or not {"cat", "python", "python3"} & {*words}):
                        yield from _split(text[begin:at].rpartition("\n")[0], levels - 1)
                heredocs = []
            words = []
    yield words + (["".join(parts)] if parts else [])


def _groups(words: list[str], is_end: Callable[[str], bool]) -> list[list[str]]:
    """The words between those that end a group; no group is empty."""
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
    """Name of each flag -> its values; an override such as a.b=c is a flag, too."""
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
