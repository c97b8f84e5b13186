"""What a reporter wrote, apart from what a program printed; and short excerpts."""

import itertools
import os
import re

from nccl_runbook.logs.text import who_says
from nccl_runbook.messages.clues import ECHO

STAMP = re.compile(  # no person types these: a rank, a time, an exception, a line of source
    r"^\s*(?:\(\w+ pid=\d|\[(?:[A-Za-z]\w*\d|[^\]\n]*:\d| *\d+\.\d|\d+,\d+\]<)|\d{4}-\d\d-\d\d[ T]\d\d:\d\d|"
    r"[\w.-]+:\d+:\d+ \[|"
    r"NCCL (?:INFO|WARN) |File \"|Traceback |[\w.]+(?:Error|Exception): |[\w.-]+: (?:error|fatal): |NVRM: "
    r"|\S+\.(?:cc|cpp|cu|h|hpp|c):\d)|\bWorkNCCL\("
)
MAX_SPOKEN = 3000  # kinds of lines: a log with more is no quotation, in which somebody's words may stand
_MARKDOWN = re.compile(
    rb"#{1,6} +(?!Rank +\d|Out of bounds|Avg bus|Using devices|Collective test)[A-Z\[]|"
    rb"\*\*[A-Z][^*\n]{2,60}\*\*|`{3}|~{3}"
)  # nccl-tests prints "# " before its own lines
_SENTENCE = re.compile(rb"[A-Z][a-z'-]* [^\n]{20,2000}[.?!:]\s*$")
_PROGRAM = re.compile(
    r"^(?:`{3}|~{3}|\(\w+ pid=\d|\[|File \"|[\w.]+(?:Error|Exception):)|NCCL (?:INFO|WARN)"
)  # pasted without a fence
# healthy jobs print these with all the words of their set-up: NCCL's own, a shell's trace, dumps of settings
CHATTER = re.compile(
    rb"NCCL INFO|\[I\d{3,4} \d\d:|^(?:\d+: )?\++ \w|Namespace\(|"
    rb"^(?:\d+: )?:::\w|\{'[A-Z_]+':|^\s{0,40}+[\w.()/-][\w .()/-]{0,60} {2}: |^- \*\*"
)
MOST_IGNORED = 30  # lines of a destructor's exception
_IGNORED = re.compile(
    rb"(?m)^(?:\[\w+\]: ?|\(\w+ pid=[^\n)]*\) )?Exception ignored [^\n]*\n"
    rb"(?:[^\n]*Traceback \(most[^\n]*\n)?(?:(?:\[\w+\]: ?|\(\w+ pid=[^\n)]*\) )?[ \t][^\n]*\n)*"
    rb"[^\n]*\Z"
)
TRACEBACK = 200  # lines above an exception in which its traceback begins
# not of a library: installed, compiled from Cython, or Python's own
_OWN_FRAME = re.compile(r'\s*File "(?![^"\n]*(?:-packages/|/lib/python\d|<|\.p[xy][dix]"))[^"\n]+", line \d')


# a GPU's, reported at a later call; Ray's, raised where a result is asked for
_LATE = re.compile(r"CUDA error|CUDNN_STATUS|CUBLAS_STATUS|ray\.exceptions\.")


def is_ignored(rows: list[bytes], index: int) -> bool:
    """Whether this row is an exception that ends nothing: Python prints what a destructor raises, with its
    traceback, and goes on."""
    return bool(_IGNORED.search(b"\n".join(rows[max(index - MOST_IGNORED, 0) : index + 1])))


def own_frame(rows: list[bytes]) -> int:
    """How many lines above the exception in the last of these rows the nearest frame of the program's own
    code stands, within the traceback; 0 without one, and for errors of a GPU."""
    raised, *above = [who_says(row.decode("utf-8", "replace")) for row in rows[: -TRACEBACK - 1 : -1]]
    for back, who in enumerate(above, 1):
        if who.rank == raised.rank and _OWN_FRAME.match(who.text):
            return 0 if ECHO.search(raised.text) or _LATE.search(raised.text) else back
        if who.rank == raised.rank and "Traceback (most" in who.text:
            break
    return 0


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
