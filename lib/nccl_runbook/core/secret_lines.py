"""A secret on the line below the line that names it, also if each line has a prefix of its own."""

import os
import re
from typing import Callable, List, Match, Sequence

from nccl_runbook.core.secret_values import FORMS

MOST_BELOW = 120  # lines that are read together; half of it may belong to one name: a key of 4096 bits has 53
# of a bracket that is a prefix: the name of a secret in it belongs to a value
_NO_NAME = r"(?![^\n\])>]{0,120}(?i:pass|secret|token|key|cred|auth|cookie|redacted:))"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?![\w:])"
_ELEMENTS = (
    rf"\[{_NO_NAME}[^\[\]\n]{{1,120}}\](?:<std(?:out|err)>)?:?",  # [rank0]:  [1,0]<stdout>:
    rf"\({_NO_NAME}[^()\n]{{1,120}}\)(?=\s|$)",  # (worker pid=7)
    r"\d{1,9}:(?=[ \t]|$)",  # srun -l, grep -n
    rf"\d{{4}}[-/]\d\d[-/]\d\d(?:[T ]{_CLOCK})?,?",
    rf"\d\d[-/]\d\d[ ]{_CLOCK}",
    _CLOCK,
    r"-[ ][\w.]{1,64}[ ]-(?=[ ])",  # Python's loggers: time - name - level -
    rf"[A-Z][a-z]{{2}}[ ]{{1,2}}\d{{1,2}}[ ]{_CLOCK}[ ][\w.-]{{1,64}}[ ][\w./-]{{1,64}}(?:\[\d{{1,8}}\])?:",
    r"[IWEF]\d{4}[ ][\d:.]{8,18}[ ]{1,8}\d{1,8}[ ][\w./-]{1,80}:\d{1,6}\]",
    r"(?:stdout|stderr)[ ][FP](?=[ ])",  # Kubernetes
    r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)(?::[\w.]{1,64}:|[ ]-(?=[ ])|:?(?=[ \t]))",
    r"[\w.]{1,64}:[\w.<>]{1,64}:\d{1,6}[ ]-(?=[ ])",  # loguru
    r"\|(?=[ ])",  # between two of them
    rf"[A-Z][a-z]{{2}}[ ][A-Z][a-z]{{2}}[ ]{{1,2}}\d{{1,2}}[ ]{_CLOCK}[ ]\d{{4}}(?=\[)",  # mpirun
    r"(?:(?:ts|time)=[\w.:+-]{8,40}[ ])?level=[a-z]{4,8}[ ]msg=",
)
_PUT_BEFORE = re.compile(rf"\A(?![ \t]{{0,8}}[|-])(?:[ \t]{{0,8}}(?:{'|'.join(_ELEMENTS)}))+[ \t]?")
# what a line has in common with the next one, whole words of it, is a prefix, too; never the name of a secret
_SAME = re.compile(
    r"(?=[\w<>|\[({+#])(?:(?!(?i:pass|pwd|secret|token|key|cred|auth|cookie))[^\n]){1,120}(?<=[ \t])"
)
_DIGIT, _WIDTH = re.compile(r"\d"), 120
# a line after which a value may come: it ends with a name, or with a name and a sign
_OPENS = re.compile(
    r"(?i)(?:pass|pwd|pw|secret|token|key|cred|auth|cookie|jwt|dsn)(?:[\w.-]{0,24}[^\w\n]{0,12}|"
    r"[^\n]{0,40}(?:[:=>|\\+\]-]|<<-?[ \t]?[\"']?\w{1,20}[\"']?)[ \t\r]{0,8})$"
)
# a line with line ends that JSON, Python or a shell wrote as two characters
ESCAPED_LINES = re.compile(r"(?m)^[^\n]*?\\n[^\n]*")
# each line, and as a group with the next ones, where its value may stand
LINES = re.compile(r"(?=([^\n]+(?:\n\s{0,60}[^\n]*){0,2}))[^\n]+")
# a line of a private key, by itself
KEY_LINE = re.compile(
    r"(?m:^[ \t]{0,8}(?=[^\n]{0,60}[0-9])(?=[^\n]{0,60}[a-z])(?=[^\n]{0,60}[A-Z])(?:[\w+/]{64}|[\w+/]{70})$)"
)
# a value on the next line, except of a block or a line that goes on; and what stands there alone or not
_NEXT_LINE = re.compile(r"[^|>\\+-][ \t\r]{0,8}\n\s{0,80}$")
_ALONE, _ASSIGNED = (
    re.compile(r"[^\w\n]{0,12}(?:\n|\\n|#|</|\Z)"),
    re.compile(r"[A-Za-z_][\w.-]{0,63}(?:[=:][^=\s]|:$)"),
)


def bodies(lines: Sequence[str]) -> List[str]:
    """The lines without what a logger, a launcher or a host put before each: a time, a rank, a name. Words
    with which a line begins like the line above or below it are such a prefix, too."""
    texts = [_PUT_BEFORE.sub("", line) for line in lines]
    starts = [_DIGIT.sub("0", text[:_WIDTH]) + " " for text in texts]
    shared = [0, *map(_shared_prefix, starts, starts[1:]), 0]  # with the line above each, and below the last
    # the shorter of the two prefixes, if a line shares one with both of its neighbours
    prefixes = [min(filter(None, (above, below)), default=0) for above, below in zip(shared, shared[1:])]
    return [_PUT_BEFORE.sub("", text[end:]) if end else text for text, end in zip(texts, prefixes)]


def _shared_prefix(start: str, other: str) -> int:
    """Number of characters of the prefix that both have; 0 without one."""
    match = _SAME.match(os.path.commonprefix([start, other]))
    return match.end() if match else 0


def masked_below(lines: Sequence[str], hidden: Callable[[str], str]) -> List[str]:
    """The lines with secrets masked. A line that may name a secret, and the lines around it, are given to
    ``hidden`` as one text; it returns that text with as many lines."""
    masked = list(lines)
    for at in range(0, len(masked), MOST_BELOW // 2):
        block = masked[at : at + MOST_BELOW]
        if any(map(_OPENS.search, block[:-1])):
            masked[at : at + MOST_BELOW] = hidden("\n".join(block)).split("\n")
    return masked


def is_prose(lead: Match[str], value: Match[str], end: int) -> bool:
    """Whether the line below a name is an assignment, or a sentence that begins with an ordinary word. The
    first item of a list below it may be an assignment, too."""
    return bool(
        value["bare"]
        and _NEXT_LINE.search(lead[0].removesuffix("- " if value["bare"].endswith(":") else ""))
        and (
            _ASSIGNED.match(value["bare"])
            or not (_ALONE.match(value.string, end) or FORMS["numbered"].match(value["bare"]))
        )
    )
