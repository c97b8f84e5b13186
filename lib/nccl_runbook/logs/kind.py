"""What a file is, by its first bytes and its name."""

import json
import re

HEAD_BYTES = 8192
_ENV = re.compile(r"^(?:export |set -x |declare -x )?[A-Za-z_]\w*=")
READ_BY_HANG = "`nccl-runbook hang`"  # in the words for what is left to hang
DUMP = f"a flight-recorder dump: {READ_BY_HANG} reads it"
DAMAGED = "not a flight-recorder dump, or a damaged dump"  # by a name as torch gives it (2.2 to 2.11)
DUMP_NAME = re.compile(r"(?:nccl|comm_lib)_trace_rank_?\d{1,7}$")
_ASIDE = f"{READ_BY_HANG} compares the stacks of all ranks"

# (what it looks like, what it is and who reads it, whether its text is still a log); the
# first that matches names it
_KINDS = (
    (r'"(?:pg_config|pg_status)"\s*:|"(?:collective_seq_id|record_id)"\s*:\s*\d', DUMP, False),
    (
        r'"schema"\s*:\s*"nccl-runbook/record',
        "a record of this runbook: `nccl-runbook run --record` judges it again",
        False,
    ),
    (r'"schema"\s*:\s*"nccl-runbook/', "an answer of this runbook", False),
    (
        r"(?m)^Process \d{1,8}: .{0,400}\n(?:.*\n){0,3}Thread (?:0x[0-9A-F]+|\d+) \(",
        f"stacks of py-spy: {_ASIDE}",
        True,
    ),
    (r'"communicators_count"\s*:', f"an answer of NCCL's RAS: {READ_BY_HANG} reads it", False),
    (
        r"(?m)^Group +Comms +Nodes +Ranks\b|^Job summary\n=+$",
        f"an answer of NCCL's RAS: {READ_BY_HANG} reads it",
        True,
    ),
    # where a process crashed, not where ranks wait
    (r"(?m)^Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction|Floating)", "", True),
    (
        r"(?m)^(?:Current t|T)hread 0x[0-9a-f]+ .{0,60}\(most recent call first\):$",
        f"stacks of faulthandler: {_ASIDE}",
        True,
    ),
)


def damaged(text: bytes) -> str:
    """Where a JSON document breaks; "" for a whole one, and for one on each line."""
    try:
        json.loads(text if text.lstrip()[:1] in (b"{", b"[") else b"0")
    except (ValueError, RecursionError) as error:
        return f"damaged JSON: {error}" if "Extra data" not in str(error) else ""
    return ""


def kind(head: bytes, name: str = "") -> tuple[str, bool]:
    """(what a text with this beginning is, empty for a log; whether to read it as a log). ``name``: of its
    file."""
    text = head[:HEAD_BYTES].decode("utf-8", "replace")
    for pattern, words, is_log in _KINDS:
        if (is_log or text.lstrip()[:1] in ("{", "[")) and re.search(pattern, text):
            return words, is_log
    if DUMP_NAME.search(name):
        return DAMAGED, False
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return (
        "variables: `nccl-runbook env` judges them"
        if len(lines) > 2 and sum(bool(_ENV.match(line)) for line in lines) * 5 > len(lines) * 4
        else ""
    ), True
