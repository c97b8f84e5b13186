"""The one way to a terminal. Standard library only, Python >= 3.9."""

import io
import sys

from nccl_runbook.core.redact import plain
from nccl_runbook.core.share import shared


class Terminal(io.TextIOWrapper):
    """Standard output and error: everything printed is ``plain``, and ``shared`` with --share."""

    def write(self, text: str) -> int:
        """Print the text; returns the number of characters printed."""
        return super().write(plain(shared(text)))

    @classmethod
    def take(cls) -> None:
        """Replace sys.stdout and sys.stderr; characters that the locale lacks are escaped."""
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
