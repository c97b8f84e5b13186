"""The commands of a launch script, an sbatch file or one line: their flags and their own environment. Nothing is executed.

Variables that the same text sets are put in; what needs a shell ($(...), a variable from elsewhere) stays as it is written.
"""
from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator

MOST_BYTES = 1 << 20
_COMMENT = re.compile(r"(^|(?<=\s))#.*", re.M)
_USED = re.compile(r"\$(?:\{(\w+)(?::-([^{}$]*))?\}|(\w+))")
_PREFIX = re.compile(r"([A-Za-z_]\w{0,80})=(.*)", re.S)
_DOTTED = re.compile(r"\+{0,2}([A-Za-z_][\w.]*\.\w+|allocation_mode)=(.*)", re.S)  # overrides as Hydra and OmegaConf take them
_ENDS = {"&", "&&", ";", "|", "||"}


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


def commands(text: str) -> list[Command]:
    """Every command of the text, in order."""
    known: dict[str, str] = {}
    found = []
    for line in re.sub(r"[ \t]*\\[ \t]*(\r?\n|$)", " ", _COMMENT.sub("", text[:MOST_BYTES])).splitlines():
        for words in _split(_filled(line, known)):
            env: dict[str, str] = {}
            while words and (words[0] in ("env", "export") or _PREFIX.fullmatch(words[0])):
                name, equals, value = words.pop(0).partition("=")
                env |= {name: value} if equals else {}
            if words:
                found.append(Command(tuple(words), _flags(words),
                                     {**{n: known[n] for n in ("CUDA_VISIBLE_DEVICES",) if n in known},
                                      **env}))
            else:
                known |= env
    return found


def _filled(line: str, known: dict[str, str]) -> str:
    return _USED.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), line)


def _split(line: str) -> Iterator[list[str]]:
    """The words of each command of one line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quote that is not closed: split at blanks
        words = line.split()
    ends = [-1, *(i for i, word in enumerate(words) if word in _ENDS), len(words)]
    yield from (words[start + 1:end] for start, end in zip(ends, ends[1:]))


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
