"""Attempts of a job whose launcher starts the ranks again in the same file."""

import dataclasses

from nccl_runbook.logs.facts import LogLine

# (line, whether it is an exception, whether it follows no other rank's failure)
Failed = tuple[LogLine, bool, bool]


@dataclasses.dataclass(eq=False)
class Attempts:
    """The last restart of the ranks of each file."""

    last: dict[str, LogLine] = dataclasses.field(default_factory=dict)
    _order: dict[str, int] = dataclasses.field(default_factory=dict)  # of these lines

    def begin(self, line: LogLine, order: int) -> None:
        """The launcher starts the ranks of this file again."""
        self.last[line.file] = line
        self._order[line.file] = order

    def began(self, file: str) -> int:
        """Order of the last restart of the ranks of this file, -1 without one."""
        return self._order.get(file, -1)

    def is_earlier(self, line: LogLine) -> bool:
        """Whether the launcher has started the ranks of this file again below this line."""
        return line.file in self.last and line.line < self.last[line.file].line

    def left_behind(self, line: LogLine, survived: int) -> bool:
        """Whether the ranks of this file went further than before after a restart below this line.
        ``survived``: order of the last such restart."""
        begins = self.began(line.file) - self.last[line.file].line if line.file in self.last else survived
        return begins + line.line <= survived

    def ended_again(self, failed: list[Failed]) -> bool:
        """Whether an error of some rank's own ended the last of several attempts."""
        return any(own and line.file in self.last and not self.is_earlier(line) for line, _, own in failed)
