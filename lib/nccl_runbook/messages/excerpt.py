"""What a reporter wrote, apart from what a program printed; and short excerpts."""

import itertools
import os
import re

MAX_SPOKEN = 3000  # kinds of lines: a log with more is no quotation, in which somebody's words may stand
_MARKDOWN = re.compile(
    rb"#{1,6} +(?!Rank +\d|Out of bounds|Avg bus|Using devices|Collective test)[A-Z\[]|"
    rb"\*\*[A-Z][^*\n]{2,60}\*\*|`{3}|~{3}"
)  # nccl-tests prints "# " before its own lines
_SENTENCE = re.compile(rb"[A-Z][a-z'-]* [^\n]{20,2000}[.?!:]\s*$")
_PROGRAM = re.compile(
    r"^(?:`{3}|~{3}|\(\w+ pid=\d|\[|File \"|[\w.]+(?:Error|Exception):)|NCCL (?:INFO|WARN)"
)  # pasted without a fence


def written(rows: list[bytes]) -> list[str]:
    """What a person wrote in an issue report: Markdown with a title, outside code fences; or a text of
    mostly sentences. Else empty."""
    filled = [raw for raw in rows if raw.strip()]
    has_title = (
        filled[:1]
        and filled[0].startswith((b"#", b"**", b"```"))
        and sum(map(bool, map(_MARKDOWN.match, filled))) >= 2
    )
    if not has_title and 2 * sum(map(bool, map(_SENTENCE.match, filled))) < max(len(filled) - 1, 2):
        return []
    lines = [
        raw.decode("utf-8", "replace").strip()
        for raw, number in zip(
            rows, itertools.accumulate(raw.lstrip().startswith((b"```", b"~~~")) for raw in rows)
        )
        if number % 2 == 0
    ]
    return [line for line in lines if not _PROGRAM.search(line)][:MAX_SPOKEN]


def short(name: str) -> str:
    """A path without the reader's home folder."""
    home = os.path.expanduser("~")
    return "~" + name[len(home) :] if name.startswith(home + os.sep) else name
