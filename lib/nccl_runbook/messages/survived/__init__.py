"""Exceptions that a job survived: it goes on with steps that it had not done before."""

import dataclasses
import re

# steps with new, higher numbers after an exception: ranks that miss a dead one complete the step they are in
SURVIVES = 2
_STEP = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?|batch)s?\W{0,3}\[?\s*(\d{1,12}(?:\.\d{1,6})?)|"
    r"\bPOST /\S{1,60} HTTP/"  # a server's answer has no number
)
# wandb repeats the last figures when a program ends, and a shell's "done" says nothing of the program
_NO_STEP = re.compile(r"(?i)^\W*+(?:wandb\b|(?:\w*\]?\s*)?done\b)")
# no process goes on after these, and no CUDA context after such an error
_FATAL = re.compile(
    r"Segmentation fault|\bKilled\s*$|Fatal Python|terminate called|CUDA error|illegal memory access|"
    r"device-side assert|unspecified launch failure|uncorrectable"
)
# a rank, or a file if the rank is unknown; a tuple: all ranks of a file
Who = int | str | tuple[str]


@dataclasses.dataclass(eq=False)
class Survived:
    """What each rank survived, while lines are read in the order of the logs; all ranks of a file together
    survive what was before a restart. ``order``, and every whole number that is kept or returned, is the
    place of a line in that order."""

    # the last error of any rank that echoes no other one
    _last: int = -1
    # rank -> its last exception that a program can survive
    _raised: dict[Who, int] = dataclasses.field(default_factory=dict)
    # rank -> the exception up to which it survived all
    _to: dict[Who, int] = dataclasses.field(default_factory=dict)
    # rank -> the highest number of a step
    _step: dict[Who, float] = dataclasses.field(default_factory=dict)
    # rank -> where its last SURVIVES steps with a new, higher number are
    _steps: dict[Who, list[int]] = dataclasses.field(default_factory=dict)

    def raised(self, who: Who, order: int, text: str) -> None:
        """An error that echoes no other one."""
        self._last = order
        if not _FATAL.search(text):
            self._raised[who] = order

    def restarted(self, file: str, order: int) -> None:
        """The launcher starts the ranks of this file again."""
        self._raised[file,] = order

    def stepped(self, of: tuple[Who, ...], order: int, text: str) -> None:
        """A line that shows progress of a rank and of its file."""
        step = None if _NO_STEP.match(text) else _STEP.search(text)
        for who in of:
            if step and (step[1] is None or float(step[1]) > self._step.get(who, -1)):
                self._step[who] = float(step[1] or self._step.get(who, -1))
                self._steps[who] = [*self._steps.get(who, ()), order][-SURVIVES:]
            steps = self._steps.get(who, [])
            if len(steps) == SURVIVES and steps[0] > self._raised.get(who, -1):
                self._to[who] = self._raised.get(who, -1)

    def ended_well(self, of: tuple[Who, ...], text: str) -> None:
        """A line by which the program of a rank says that it is done."""
        if not _NO_STEP.match(text):
            self._to |= {who: self._raised.get(who, -1) for who in of}

    def ran_on(self, who: Who, order: int, error: int) -> bool:
        """Whether the last SURVIVES steps with new, higher numbers lie between these two places."""
        steps = self._steps.get(who, [])
        return len(steps) == SURVIVES and order < steps[0] and steps[-1] < error

    def mark(self, who: Who) -> int:
        """The last exception that this rank has survived so far, -1 without one."""
        return self._to.get(who, -1)

    def up_to(self, who: Who, ended: int) -> int:
        """The last exception that this rank survived, -1 without one. ``ended``: where the log last shows a
        failure or the end of the job, which may come of the survived exception if no other error did it."""
        survived = self._to.get(who, -1)
        return survived if ended <= survived or self._last > survived else -1
