"""Lines as they are printed: what they show, how they end, and which belong together."""

import functools
import re

from nccl_runbook.logs.text import LINE_CHARACTERS, pieces, who_says
from nccl_runbook.messages.clues import catalogue, needs
from nccl_runbook.messages.matcher import Matcher
from nccl_runbook.messages.read_ranks import EXPRESSIONS, LAUNCHERS

KEPT_BYTES = 16_000  # of the first line of a kind

_STARTS = re.compile(
    r"^(?:\[|\d{1,4}: |RESULT,|:::|\d{4}-|Traceback|\(|[\w.-]+:\d+:\d+ \[|[\w.]*(?:Error|Exception|"
    r"Interrupt)(?:_\w{1,40})?(?::|\s*$))"
)

OWN = {
    **EXPRESSIONS,
    "looks-odd": r"(?i)\b(?:error|fail(?:ed|ure)?|fatal|abort(?:ed)?|WARN|exception|timed? ?out|"
    r"killed|panic|refused)\b",
    "ends-open": r"Watchdog|WorkNCCL|NCCL WARN|Error|PG ID|[Ll]ast enqueued|Duplicate|"
    r"Traceback|Last error:\s*$",
}


@functools.cache
def matcher() -> Matcher:
    """The matcher for everything that is asked of each line."""
    return Matcher({**catalogue()["printed"], **OWN, **LAUNCHERS}, needs)


def visible(raws: list[bytes]) -> list[bytes]:
    """The lines without invisible characters inside words."""
    return ["\r".join(pieces(raw)).encode() if b"\x1b" in raw or b"\x00" in raw else raw for raw in raws]


def ends(raw: bytes) -> bytes:
    """The line; of a very long one its beginning and end."""
    return raw if len(raw) <= KEPT_BYTES else raw[: KEPT_BYTES // 2] + b"\r" + raw[-KEPT_BYTES // 2 :]


# general advice of libraries in the same line: no information about this job
_ADVICE = re.compile(
    r"This is most likely caused by .*|This can (?:potentially )?cause a hang.*|"
    r"For debugging consider passing .*|"
    r'You can specify device_id.*|NCCL_GUARD \{(?!.*"ok":false).*|'  # a guard that passed shows no fault
    r"In rare cases this process .*|This typically indicates .*|Due to the asynchronous nature .*|"
    r"If reserved but unallocated memory .*|"
    r"This (?:may|could) indicate .*|"
    r"(?:There are some potential root causes|[Pp](?:ossible|otential) (?:reasons|causes)\b[^\n:]{0,40}:).*|"
    r"This (?:may|might|could) (?:be|have been) (?:caused by|due to|because) .*"
)

# "No `GPU has fallen off the bus`": a list of absent messages names them
_DENIED = re.compile(
    r"(?i)\b(?:no|without|(?:not|n't) (?:see|find|get|show))(?: (?:any|such|related|further|signs? of))? "
    r"(?:[`\"][^`\"]{0,60})?$"
)


def shows(message: re.Pattern[str], text: str) -> bool:
    """Whether the text contains the message and does not deny it."""
    bare = plain(text)
    match = message.search(bare)
    if not match:  # a message begins behind what a launcher put in front of it
        bare = who_says(bare).text
        match = message.search(bare)
    return bool(match) and not _DENIED.search(bare, 0, match.start())


def plain(text: str) -> str:
    """The text without advice that libraries print along."""
    may_advise = any(
        words in text
        for words in (
            "his ",
            "For debugging",
            "You can",
            "Due to",
            "If reserved",
            "auses",
            "easons",
            "GUARD {",
        )
    )
    return _ADVICE.sub("", text) if may_advise else text


def joined(above: bytes, text: str) -> str:
    """Two lines as one if a terminal or Ray broke a message between them; empty if not, or if the result is
    too long for a line."""
    if above.rstrip().endswith(b"Last error:"):
        # PyTorch and NCCL's tests quote the warning below this line, without its head
        return "NCCL WARN " + text
    goes_on = text.startswith((" ", "\t")) and above.rstrip().endswith((b":", b","))
    looks_broken = len(above) >= 16 and text[:1].strip() and not _STARTS.match(text)
    head = above.decode("utf-8", "replace").rstrip("\r\n")
    if (
        len(above) + len(text) > LINE_CHARACTERS
        or not (goes_on or looks_broken)
        or not matcher().pattern("ends-open").search(head)
    ):
        return ""
    return head.rstrip() + " " + text.strip() if text[:1] in " \t" else head + text
