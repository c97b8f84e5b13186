"""Lines as they are printed: what they show, how they end, and which belong together."""

import functools
import re
from collections.abc import Mapping

from nccl_runbook.causes.tables import table
from nccl_runbook.logs.text import LINE_CHARACTERS, pieces, who_says
from nccl_runbook.messages.clues import catalogue, needs
from nccl_runbook.messages.matcher import Matcher

# id -> expression for lines about a rank
EXPRESSIONS = {
    # torch 1.9 (no SeqNum) to 2.13
    "rank-work": (
        r"WorkNCCL\((?:SeqNum=(\d+), )?(?:\.\.\.,? ?)?OpType=(\w+)(?:, NumelIn=(\d+))?(?:, "
        r"NumelOut=(\d+))?(?:, ?\.\.\.)?"
        r"(?:, Timeout\(ms\)=(\d+))?\)(?: ran for (\d+) milliseconds)?"
    ),
    "rank-status": r"[Ll]ast enqueued(?: NCCL)?(?: work)?: (-?\d+),\s*last completed(?: "
    r"NCCL)?(?: work)?: (-?\d+)",
    "rank-communicator": (
        r"comm 0x[0-9a-f]+ rank (\d+) n[rR]anks (\d+)(?: cudaDev (\d+))?(?: nvmlDev (\d+))?(?: "
        r"busId ([0-9a-f]+))?"
        r"(?: commId 0x([0-9a-f]+))?"
    ),
    "rank-error": (
        r"^\s*(?!KeyError: ./(?:psm|mp|loky)[_-])(?:[\w.-]{1,60}: )?(?:[\w.]+\.)?(?!User|Future|Deprecation|"
        r"Runtime?Warning)(\w*(?:Error|"
        r"Exception|Interrupt)(?:_\w+)?|SystemExit)(?::\s|:?$)|Fatal Python|terminate called|"
        # not in a sentence that quotes it
        r"(?:(?<!\w ['\"`])|(?<=(?:by|al) .)|(?<=with .))Segmentation fault|"
        r"\bKilled\s*$|^\s*torch\.\w+Error"
    ),
    "rank-watched": (
        r"Watchdog caught|checkTimeout|Some NCCL operations have failed|watchdog got stuck for|watchdog hang|"
        r"watchdog thread terminated|"
        r"failure detected by watchdog|Observed flight recorder dump|remote error detected from rank|"
        r"Received a dump signal"
    ),
    # torchrun says so when no process of the attempt is left on its node (torch 2.0 to 2.13)
    "rank-over": r"\bfailed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)",
    # the launcher starts the ranks again: torch's agent (2.0 to 2.13), Ray Train, Slurm, Lightning
    "rank-again": (
        r"\bwill restart worker group|\brestart_count=[1-9]|FailureDecision\.RETRY|"
        r"DUE TO JOB REQUEUE|\bSLURM_RESTART_COUNT=[1-9]|"
        r"(?i:(?<!not )(?<!data)\b(?:reque\w{2,4}|restarting|relaunching)\b)"
        r"(?= (?:\S{1,20} )?(?i:(?<!loader )(?<!rollout )"
        r"(?:jobs?|workers|worker group|ranks?|training|trial)\b))"
        r"(?![^\n]{0,80} failed with)"
    ),
    "rank-ended": (
        r"(?i)^\W*+(?:\w*\]?\s*)?(?:done|training (?:is )?(?:finished|complete\w*|done)|finished training|"
        r"job (?:completed|finished) successfully)\b|Training finished|stopped: `max_|\[PASS(?:ED)?\]\s*$|"
        r"\{'train_runtime': "
    ),
    # the whole job says that it ended well: MLPerf's logger (mlperf_logging 1 to 5) and result line
    "rank-success": r'"key": ?"run_stop".*"status": ?"success"|^\s*RESULT,\w+,\d*,\d+,',
    # pytest's last line, which counts failures before what passed
    "tests-passed": r"^=+ \d+ passed(?:, \d+ (?!failed|error)\w+)* in ",
    "rank-nccl": r"NCCL version (\d+\.\d+\.\d+)|using nccl==(\d+\.\d+\.\d+)",
    "rank-torch": r"(?i)\btorch(?: version)?[=: ]+(\d+\.\d+\.\d+[\w.+]*)",
    "rank-network": r"Using network (\w+)",
    # NCCL_DEBUG_SUBSYS=COLL, NCCL 2.4 to 2.30; TORCH_DISTRIBUTED_DEBUG=DETAIL, torch 2.13 (seen): operation,
    # number, size, type, group
    "rank-call": (
        r"\b(\w{1,40}): opCount ([0-9a-f]+) sendbuff \S{1,40} recvbuff \S{1,40} count (\d+) "
        r"datatype (\d+) .*\[nranks=(\d+)\]|"
        r"Running collective: Collective(?=.*?OpType=(\w+))"
        r"\w+\(SequenceNumber=(\d+).*?TensorShape=\[([\d, ]+)\], TensorDtypes=(\w+), (\w)"
    ),
    "rank-via": r"Channel \d+(?:/\d+)? ?: \d+\[\w+\] -> \d+\[\w+\](?: \[\w+\])? via ([\w/]+)",
    # a search begins at a letter that few words hold, as this is asked of every line that tells of a step;
    # nccl-tests' heading names none
    "rank-progress": (
        r"[PpTtLl/](?i:(?:(?<=\bstep)(?<!\bjob step)|(?<=\bglobal_step)|(?<=\bep)och|(?<=\bit)er(?:ation)?|"
        r"(?<=\bbat)ch)s?\W{0,3}\[?\s*\d"
        r"(?!\d*(?:\.\w+ ON |\(factor| (?:agg )?(?:iters|validation):))|"
        r"(?<=\d/)\d+ \[\d\d:\d\d<|(?<=it/)s\]|(?<=s/)it|(?<=\bl)oss\b\W{1,3}\d|"
        r"(?<=\bPOST) /(?:v1/(?:chat/)?completions|generate) HTTP/[\d.]+\W{1,3}2\d\d\b)"
    ),
}
# of those every line counts, of the others only the first and the last ones
MUCH = frozenset(
    f"rank-{what}"
    for what in ("work", "status", "communicator", "error", "watched", "over", "ended", "success")
)
LAUNCHERS: Mapping[str, str] = {
    f"launcher-{name}": line for name, line in table("causes/launchers")["said"].items()
}

KEPT_BYTES = 16_000  # of the first line of a kind

_STARTS = re.compile(
    r"^(?:[\[{]|\d{1,4}: |RESULT,|:::|\d{4}-|Traceback|\(|[\w.-]+:\d+:\d+ \[|[\w.]*(?:Error|Exception|"
    r"Interrupt)(?:_\w{1,40})?(?::|\s*$))"
)

OWN = {
    **EXPRESSIONS,
    # no part of a longer name, no source, no figure
    "looks-odd": r"(?i)(?<![\w-])(?:error(?!(?<=Last error):\s*$)|fail(?:ed|ure)?|fatal|abort(?:ed)?|WARN|"
    r"exception|timed? ?out|killed|panic|refused)(?![\w(-]|\W{1,3}\d+\.\d|(?<=timeout) \w{1,30}: )",
    "ends-open": r"Watchdog|WorkNCCL|NCCL WARN|Error|PG ID|[Ll]ast enqueued|Duplicate|"
    r"Traceback|Last error:\s*$",
}


@functools.cache
def matcher() -> Matcher:
    """The matcher for everything that is asked of each line."""
    return Matcher({**catalogue()["printed"], **OWN, **LAUNCHERS}, needs)


@functools.cache
def numbered() -> Matcher:
    """The matcher, for lines without their digits, of the expressions that match or not by the digits. What
    stands beside a message and ignores case is looked for in a reporter's words, above all."""
    asked = {
        **catalogue()["printed"],
        **{i: e for i, e in catalogue()["beside"].items() if not e.startswith("(?i)")},
        "rank-again": OWN["rank-again"],
    }
    return Matcher(asked, functools.partial(needs, use="numbered"))


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


@functools.lru_cache(maxsize=64)  # a program repeats a line thousands of times
def shows(message: re.Pattern[str], text: str) -> bool:
    """Whether the text contains the message and does not deny it."""
    bare = plain(text)
    match = message.search(bare)
    if not match:  # a message begins behind what a launcher put in front of it
        bare = who_says(bare).text
        match = message.search(bare)
    return bool(match) and not _DENIED.search(bare, 0, match.start())


@functools.lru_cache(maxsize=64)  # each message is looked for in the same line
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
    begins = who_says(text).text != text or _STARTS.match(text)
    looks_broken = len(above) >= 16 and text[:1].strip() and not begins
    head = above.decode("utf-8", "replace").rstrip("\r\n")
    if (
        len(above) + len(text) > LINE_CHARACTERS
        or not (goes_on or looks_broken)
        or not matcher().pattern("ends-open").search(head)
    ):
        return ""
    return head.rstrip() + " " + text.strip() if text[:1] in " \t" else head + text
