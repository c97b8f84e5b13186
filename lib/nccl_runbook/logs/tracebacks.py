"""Python's tracebacks in a log, whose lines several ranks may print at once."""

import dataclasses
import re

from nccl_runbook.logs.text import pieces, who_says

# the lines below it quote the program's source
_FRAME = re.compile(rb'File "[^"\n]{1,500}", line \d+, in ')
# behind a prefix; a level that is set flush right is not source
_SOURCE = re.compile(r" {4}(?! *(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b)")
# what ends a traceback, beside errors that their name shows: a class, and what it says; no level of a log
_RAISED = re.compile(
    r" ?(?:[A-Za-z_]\w{0,60}\.){0,9}(?!\w*(?:Warning|Error|Exception|Interrupt)\b)"
    r"(?![A-Z]+\b)[A-Z]\w{1,80}(?:: |:?\s*$)"
)


@dataclasses.dataclass(eq=False)
class Tracebacks:
    """What was read of the tracebacks of a file so far. ``_heads``: who began one that has not ended;
    ``_whose``: who printed the last frame; ``_in_frame``: the last line was a frame, or source below one."""

    _heads: set[tuple[object, ...]] = dataclasses.field(default_factory=set)
    _whose: tuple[object, ...] = ()
    _in_frame: bool = False

    def of(self, rows: list[bytes]) -> tuple[set[int], set[int]]:
        """Indexes of the lines that quote source in a traceback, and of those that end one: exceptions of the
        same rank, process and host."""
        source, raised = set(), set()
        for index, raw in enumerate(rows):
            if b"Traceback (most" in raw:
                self._heads.add(_who(raw))
            elif b'", line ' in raw and _FRAME.search(raw):
                self._in_frame, self._whose = True, _who(raw)
            elif self._in_frame and _who(raw) == self._whose:
                text = who_says((pieces(raw) or [""])[0]).text
                self._in_frame = b"    " in raw and bool(_SOURCE.match(text))
                if self._in_frame:
                    source.add(index)
                    continue
                if self._whose in self._heads and _RAISED.match(text):
                    raised.add(index)
                self._heads.discard(self._whose)
        return source, raised


def _who(raw: bytes) -> tuple[object, ...]:
    """Rank, process and host that the prefix of a line names."""
    said = who_says((pieces(raw) or [""])[0])
    return said.rank, said.pid, said.host
