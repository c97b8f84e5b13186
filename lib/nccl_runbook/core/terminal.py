"""The one way to a terminal. Standard library only, Python >= 3.9."""

import io
import sys

from nccl_runbook.core.redact import plain
from nccl_runbook.core.share import shared


class Terminal(io.TextIOWrapper):
    """The one way to a terminal: whatever is printed there is ``plain``, and
    ``shared`` if --share asks for it."""

    def write(self, text: str) -> int:
        return super().write(plain(shared(text)))

    @classmethod
    def take(cls) -> None:
        """Stand in for standard output and error, whoever writes to them; a locale that
        is not UTF-8 lacks our signs."""
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            if stream:
                setattr(
                    sys,
                    name,
                    cls(
                        stream.buffer,
                        stream.encoding,
                        "backslashreplace",
                        line_buffering=bool(stream.line_buffering),
                    ),
                )
