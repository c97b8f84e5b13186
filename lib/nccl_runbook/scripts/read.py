"""A launch script, an sbatch file or one line: its commands, and the nodes and GPUs that it asks for. Nothing is executed.

Variables that the same text sets and arithmetic are worked out. What needs a shell ($(...), a variable from elsewhere) stays as written.
"""
import ast
import dataclasses
import operator
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping

from nccl_runbook.causes.toml import table

MOST_BYTES = 1 << 20
MOST_LEVELS = 4
# a # within quotes begins no comment
_COMMENT = re.compile(r"^((?:[^\"'#\n]|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?<=\S)#)*)(?<!\S)#.*", re.M)
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", re.M)
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()\n]|\([^()\n]{0,99}\)){0,200})\)\)")
_USED = re.compile(r"\$(?:\{(\w+)(?::?-([^{}$]*))?\}|(\w+))")
_PREFIX = re.compile(r"([A-Za-z_]\w{0,80})=(.*)", re.S)
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_][\w.]*\.\w+|allocation_mode)=(.*)", re.S)  # overrides as Hydra and OmegaConf take them
_BEFORE = {"env", "export", "declare", "-x", "exec", "nohup", "time", "then", "do", "else", "if", "!", "{", "("}
_LONG_WORD = re.compile(r"(?<!\S)\S{16384,}")  # none of a launch line; shlex takes the square of its length (Python 3.11)
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod}


@dataclasses.dataclass(frozen=True)
class Command:
    """``words``: as the shell would split them; ``flags``: name without dashes, "-" as "_", to its values; ``env``: set for it alone or
    before it in the same text."""

    words: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]
    env: dict[str, str]

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclasses.dataclass(frozen=True)
class Script:
    """``nodes``: that a scheduler is asked for, ``gpus``: of a node, ``spread``: nodes that a launcher is told to use, each 0 if the text
    does not say; ``sourced``: files that it reads as it runs."""

    commands: tuple[Command, ...]
    nodes: int
    gpus: int
    spread: int
    sourced: tuple[str, ...]


def read(text: str) -> Script:
    """Every command of the text, in order, and how large the job is."""
    asked = _size("sbatch", " ".join(_DIRECTIVE.findall(text[:MOST_BYTES])))
    names = ("SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE", "SLURM_NNODES", "SLURM_GPUS_PER_NODE")
    known = {name: str(value) for name, value in zip(names, asked * 2) if value}
    commands = tuple(_commands(text[:MOST_BYTES], known, MOST_LEVELS))
    told = [(name, _size(name, c.text)) for c in commands for name, row in table("scripts/launchers").items()
            if {*map(posixpath.basename, c.words[:3])} & {*row["programs"]}]
    submitted = [asked, *(size for name, size in told if name in ("sbatch", "mason"))]
    nodes, gpus = (next((size[i] for size in submitted if size[i]), 0) for i in (0, 1))
    sourced = [c.words[1] for c in commands if c.words[0] in (".", "source") and len(c.words) > 1]
    sourced += [f for c in commands for f in c.flags.get("env_file", ())[:1]]
    return Script(commands, nodes, gpus, max([nodes, *(size[0] for _, size in told)]), tuple(dict.fromkeys(sourced)))


def _size(launcher: str, text: str) -> tuple[int, int]:
    """Nodes, and GPUs of a node, as this launcher gets them."""
    row = table("scripts/launchers")[launcher]
    nodes, gpus, total = (int(next(reversed(re.findall(row[what], text)), 0)) if what in row else 0 for what in ("nodes", "gpus", "total"))
    return nodes, gpus or total // (nodes or 1)


def _commands(text: str, known: dict[str, str], levels: int) -> Iterator[Command]:
    for words in _split(worked_out(re.sub(r"[ \t]*\\[ \t]*(\r?\n|$)", " ", _COMMENT.sub(r"\1", text)), None)):
        words, env = [w for word in words for w in _expanded(word, known)], {}
        while words and (words[0] in _BEFORE or _PREFIX.fullmatch(words[0])):
            name, equals, value = words.pop(0).partition("=")
            env |= {name: value} if equals else {}
        if not words:
            known |= env
        while words:
            end = words.index("--") if "--" in words[1:] else len(words)
            command, words = words[:end], words[end + 1:]
            yield Command(tuple(command), _flags(command), {**{n: known[n] for n in ("CUDA_VISIBLE_DEVICES",) if n in known}, **env})
            inner = command[command.index("-c") + 1:][:1] if "-c" in command and levels else []
            yield from (c for line in inner if re.search(r"\s", line) for c in _commands(line, {**known, **env}, levels - 1))


def _expanded(word: str, known: Mapping[str, str]) -> list[str]:
    """The word with variables and arithmetic put in. One that is a variable and nothing else may stand for several words."""
    filled = worked_out(_USED.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), word), known)
    return next(_split(filled), []) if _USED.fullmatch(word) and re.search(r"\s", filled) else [filled]


def worked_out(text: str, known: Mapping[str, str] | None) -> str:
    """The text with $((4 * 1024)) as its result; without blanks in it where ``known`` is None or that is unknown."""
    def result(found: re.Match[str]) -> str:
        expression = re.sub(r"\s|\$\{?(?=\w)|(?<=\w)\}", "", found[1])
        try:
            return f"$(({expression}))" if known is None else str(_number(ast.parse(expression, mode="eval").body, known))
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
            return f"$(({expression}))"

    return _ARITHMETIC.sub(result, text)


def _number(node: ast.AST, known: Mapping[str, str]) -> int:
    """Raises KeyError and ValueError for what is not known or no whole number."""
    if isinstance(node, ast.BinOp):
        value = _OPERATORS[type(node.op)](_number(node.left, known), _number(node.right, known))
    else:
        value = int(known[node.id]) if isinstance(node, ast.Name) else int(ast.unparse(node))
    if abs(value) >= 1 << 63:
        raise ValueError("larger than a shell's numbers")
    return value


def _split(text: str) -> Iterator[list[str]]:
    """The words of each command. A quote may span lines; the line of one that is never closed is split at blanks."""
    text = _LONG_WORD.sub("", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words, at = [], 0
    try:
        for word in lexer:
            at = lexer.instream.tell() - 1  # it has looked one character ahead
            if set(word) <= set(";&|\n"):
                yield words
                words = []
            else:
                words.append(word)
        yield words
    except ValueError:
        line, _, rest = text[at:].partition("\n")
        yield [*words, *line.split()]
        yield from (found for row in rest.splitlines() for found in _split(row))


def _flags(words: list[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        dotted = _DOTTED.fullmatch(word)
        if dotted and not word.startswith("--"):
            found[dotted[1]] = (dotted[2],)
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and at < len(words) and not words[at].startswith("--") and not _DOTTED.fullmatch(words[at]):
                values.append(words[at])
                at += 1
            found[name.replace("-", "_")] = tuple(values)
    return found
