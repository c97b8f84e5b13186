"""The catalogue of messages: expressions under permanent ids, and which cause each one speaks for."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

from nccl_runbook.causes.causes import Advice, advice
from nccl_runbook.causes.tables import PACKAGE, table
from nccl_runbook.messages import cache, matcher
from nccl_runbook.messages.matcher import compiled as compiled

PROGRAMS = ("nccl", "torch", "gpu", "network", "host", "launch", "engines", "frameworks", "job", "reporter")
AT_WORK = re.compile(  # the last words of a rank that may be at work still
    r"(?i)\b(?:sav|writ|load|generat|evaluat|validat|tokeni[sz]|download|export|compil|convert|merg|unpack|"
    r"extract|captur|quanti[sz])(?:es?|ing)\b|about to be \w+ed|"
    r"\bwait(?:s|ing) (?:for|on|until) [^\n]{0,20}(?:\bfile|\bpath|\block|['\"]?/)|"
    r"\b(?:up|down)loads?\b[^\n]{0,40}\d ?/ ?\d|\d ?/ ?\d+ (?:files|parts|shards|chunks)\b|"
    r"^(?![^\n]*(?:step|epoch|iter|batch|loss|throughput))[^\n]*\d ?[KMGT]i?B\W{1,4}[\d.]+ ?[KMGT]i?B/s"
)
# an exception that only echoes another rank's, and what torch (2.0 to 2.13) adds to result codes of NCCL
ECHO = re.compile(
    r"Dist(?:Backend|Network|Store)Error|NCCL (?:[Ee]rror|communicator)|[Cc]onnection (?:reset|closed|"
    r"refused)|Broken pipe|"
    r"ChildFailedError|KeyboardInterrupt|SystemExit|SIGTERM|watchdog|[Tt]imed? ?out|terminate called|"
    r"Socket Timeout|store->get|SignalException|"
    r"Process(?:Exited|Raised)Exception|nccl[A-Z][A-Za-z]{1,30}Error: |RayTaskError|GuardError|EOFError|"
    r"Aborted|RendezvousC|TimeoutError|[Ss]ee (?:stack trace (?:\(above\) )?for )?(?:the )?root cause"
)
# what follows the exception that ends a rank: another in its chain, and what torch (>= 2.4) says at the end
LAST_WORDS = re.compile(
    r"^\s*(?:\[\w+\]:\s*)?[\w.]*(?:Error|Exception)(?::\s|$)|destroy_process_group\(\) was not called"
)
LOST = re.compile(r"[Cc]onnection (?:reset|closed)|Broken pipe")
SLOW = frozenset(
    ["net-socket-fallback", "gdr-disabled", "pcie-topology-limit", "straggler", "gloo-carries-traffic"]
    + ["per-parameter-sync", "sync-contends-with-inference", "communicator-recreated"]
)
ENDED = frozenset(  # what ends a job from outside, and also the jobs that have failed already
    ["scheduler-time-limit", "scheduler-cancelled", "scheduler-preempted", "scheduler-evicted", "node-failed"]
)
# what the rules read beside clues: of lines that a job printed
PRINTED = {
    "nccl-network": r"NCCL INFO Using network (\w+)",
    "traceback": r"Traceback \(most recent call last\)",
    # NCCL 2.4 to 2.30 prints it of channels inside a host; nNodes 1: from 2.19 on
    "nccl-within-one-host": r"\bvia (?:P2P|SHM)|\bnNodes 1\b",
    # the line of a guard that failed (nccl_guards.py): what is below was measured by the job itself
    "guard-failed": r'NCCL_GUARD \{"schema":\d+,"guard":"(\w+)","ok":false,[^\n]*?"says":"([^"\n]{0,600})",'
    r'"cause":"([a-z0-9-]+)"',
    "job-ended": (  # a job ends with it, and it is no exception
        r"Duplicate GPU detected|NCCL WARN (?:Cuda failure(?! \d* ?.out of)|[^\n]{0,80}[Mm]essage truncated|"
        r"Error while attaching to shared)|Multiple [Rr]anks \w{3,8} using the same GPU|"
        r"(?:NCCL|CUDA) failure \S+:\d|Check failed: |\(core dumped\)|"
        r"Failed[:,] (?:Cuda|CUDA|NCCL) error \S{1,120}:\d|\bwhat\(\):  |INTERNAL ASSERT FAILED|"
        r"[Nn]o algorithm/protocol available for function|"
        r"Got completion \w[^\n]*(?:status=|error )[1-9]|[Ee]xited with exit code [1-9]|\bCANCELLED AT |"
        r"exited on signal [1-9]|exceeded error retry count|no socket interface found|"
        r"NCCL WARN [^\n]{0,60}onnect to \S{1,90} failed : (?![^\n]{0,80}retrying)|"
        r"terminated with (?:non-zero )?exit code [1-9]|A worker died or was killed|"
        r"EngineCore encountered a fatal|"
        r"double free or corruption|\d Killed {6}|std::bad_alloc|\*\*\* Aborted at |(?:exit status|"
        r"Exit Code:) [1-9]|Application startup failed|OOMKilled|sigkill_handler\] \['|NCCL INFO (?:enqueue|"
        r"group)\.cc:\d+ -> [1-9]|failed \(exitcode: -?[1-9]|Signal \d+ \(SIG\w+\) received by PID"
    ),
    "nccl-returned": r"NCCL INFO [\w/.-]{1,60}\.(?:cc|cu|h):\d{1,5} -> [1-6]\s*$",  # 7: in progress
    "faulthandler-stack": r"Fatal Python error: (?:Segmentation|Bus|Illegal|Floating|Aborted)",
    # collect_env and Ray name other vendors everywhere: a value counts, or a line of the library itself
    "platform-rocm": (
        r"RCCL (?:INFO|version|WARN)|librccl\.so|HIP (?:failure|error)|HIP version *: *\d|hipify/|"
        r"hipError|\bROCm\W{1,3}\d|"
        r"(?<![A-Z_])(?:HIP|ROCR)_VISIBLE_DEVICES\W{1,3}\d|\bMI(?:2[15]0|3\d\d)[AX]?\b"
    ),
    "platform-ascend": r"HCCL (?:function )?error|\btorch_npu\b|\bnpu:\d|ASCEND_RT_VISIBLE_DEVICES\W{1,3}\d",
    "platform-xpu": r"ProcessGroupXCCL|\bxpu:\d|CCL_(?:WARN|ERROR)|oneCCL \d|ZE_AFFINITY_MASK\W{1,3}\d",
    "tensor-described": (  # as sender and receiver print it: name, data type, shape
        r"\b((?:[A-Za-z_]\w*+\.){1,16}\w++)\b[^\n]{0,40}?\bdtype[=:] ?(?:torch\.)?(\w+)"
        r"[^\n]{0,12}?\bshape[=:] ?[\[(]([\d, ]*)[\])]"
    ),
    "nccl-tests-rank-0": r"#\s+Rank +0 Group +0 Pid +\d+ on +([\w.-]{1,60})",  # each job has one such rank
    "nccl-tests-row": r"^\s+\d+ +\d+ +\w+ +(?:sum|none) +-?\d+ +[\d.]+ ",
    "nccl-tests-end": r"#\s+(?:Avg bus bandwidth|Out of bounds values)",
    # NCCL >= 2.18
    "nccl-channels": r"\b(\d+ coll channels, \d+ collnet channels, \d+ nvls channels, \d+ p2p channels)\b",
    "torchrun-failed-rank": r"^\s*rank\s+: (\d{1,5}) \(local_rank: (\d{1,4})\)",
    "torchrun-failed-pid": r"^\s*exitcode\s+: (-?\d+) \(pid: (\d+)\)",
    "torchrun-ends": r"Sending process (\d+) closing signal",
    "torchrun-traceback": r"^\s*return launch_agent\(",  # torch 1.9 to 2.13, as the three above
    "ranks-share-gpu": r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on",
    # the device that a rank prints as its own: torch, transformers' Trainer, nccl-tests
    "device-of-rank": (
        r"(?:\b[Rr]ank\W{1,3}(\d{1,5})\b[^\n]{0,60}?)?(?:\b[Dd]evice\W{1,4}cuda:|\bcurrent_device\W{1,4}|"
        r"\b(?:uses|using|on) (?:GPU|(?:device )?cuda)\W{1,2}|"
        r"\bon +[\w.-]{1,60} device +(?=\d{1,2} +\[))(\d{1,2})\b"
    ),
    "visible-devices": r"CUDA_VISIBLE_DEVICES\W{1,4}(\d{1,2}(?:, ?\d{1,2}){0,15})(?![\w-])",
    "nvidia-smi-process": r"(?:^|\|)\s*(\d{1,2})\s+(?:N/A\s+N/A\s+)?(\d{2,8})\s+C\s[^\n]*MiB",  # GPU and pid
}
_NEEDS = {"needs": matcher.alternatives, "numbered": matcher.numbered}
# a question whether something will go wrong, or a quoted message, is no complaint
_WONDERS = re.compile(
    r"(?i)(?:^|[.!?,;:]\s+(?:and |or )?)(?:(?:will|could|may) (?!any|some|there|this be why|"
    r"you)[^.?!\n]{1,160}|(?:is|are) (?!any|there)"
    r"[^.,?!\n]{1,30})\?|\b(?:whether|(?:ask|sure|know|wonder) if) [^.?!\n]{0,60}\b(?:will|could|can|may|"
    r"might)\b[^.?!\n]*|"
    r"\b(?:can|could|may|might) (?:potentially )?(?:cause|lead to|result in) (?:an? )?"
    r"(?:\w{1,12} )?(?:hang|deadlock)\w{0,2}|"
    r"\b(?:speaks? of|(?:warnings?|one|messages?) (?:of|about)) (?:an? )?(?:\w{1,12} )?hang"
)


@dataclasses.dataclass(frozen=True)
class Clue:
    """One row of the catalogue: a line that points to a cause. ``message``: id of the line in the facts;
    ``also``: ids that must be present as well; ``without``: ids that must be absent; ``status``: the most
    that this clue alone allows, "established" only if the line is the fault itself; ``words``: a reporter
    writes it, no program prints it; ``advice``: replaces the cause's; ``above`` and ``not_above``: id of what
    must, or must not, stand in one of the two lines above."""

    id: str
    cause: str
    status: str
    order: int
    message: str
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    words: bool = False
    advice: Advice | None = None
    above: str = ""
    not_above: str = ""

    @property
    def stays(self) -> bool:
        """Whether it counts even if the job went on after its line."""
        return (
            (self.status == "established" and self.cause not in ENDED)
            or (self.cause == "gpu-or-link-fault" and self.status == "likely")  # a fault of hardware
            or self.cause == "benign"
            or self.cause in SLOW
        )


@functools.cache
def clues() -> tuple[Clue, ...]:
    """Every clue; among equally certain ones the first leads."""
    return tuple(
        Clue(*row[:5], *map(tuple, row[5:7]), row[7], Advice(**row[8]) if row[8] else None, *row[9:])
        for row in catalogue()["clues"]
    )


@functools.cache
def catalogue() -> dict[str, Any]:
    """id -> expression, by use. "printed": for every line of a job (NAME=VALUE: a setting that a remedy
    advises); "spoken": for a reporter's words and short logs; "beside": what must or must not accompany a
    clue; "fits": id of a symptom -> causes, the most usual first; "meanings": id of a symptom -> what NCCL
    prints with it; "commands": id of a symptom -> (command that looks into it, what that shows); "states":
    ids of messages of which a rank's last one counts. Cached for the user, as it takes 0.1 s to compute."""
    tables = [
        *sorted((PACKAGE / "messages/catalogue").glob("*.toml")),
        *(PACKAGE / name for name in ("causes/causes.toml", "triage/experiments.toml")),
    ]
    name = hashlib.sha256(
        b"\0".join(file.read_bytes() for file in [*tables, Path(__file__), Path(matcher.__file__)])
    ).hexdigest()[:32]
    with contextlib.suppress(ValueError):  # a file that somebody cut off
        return json.loads(cache.read(name) or b"")
    symptoms = table("messages/catalogue/fits")["fit"]
    patterns = {**_lines(words=True), **{row["id"]: "(?i)" + _spelt(row["words"]) for row in symptoms}}
    around = {
        i: _spelt(e) for row in _rows() for key in ("also", "not") for i, e in _beside(row, key).items()
    }
    advised = {
        pair
        for file in tables
        for pair in re.findall(r"\bexport (\w+=\w+)", file.read_text(encoding="utf-8"))
    }
    # not in a sentence that advises it: "Disable NVLS (NCCL_NVLS_ENABLE=0) if you wish", "set
    # NCCL_CUMEM_ENABLE=0 to fall back"
    done = {
        pair: r"(?<![Ss]et )(?<!setting )\b{0}"
        r"(?:\W{{1,4}}| set (?:by environment )?to ){2}\b(?!\) if you)".format(*pair.partition("="))
        for pair in sorted(advised)
    }
    above = {
        f"{row['id']}/{key}": row[key] for row in _rows() for key in ("above", "not_above") if key in row
    }
    asked = {
        "printed": {**_lines(words=False), **PRINTED, **done, **above},
        "spoken": patterns,
        "beside": around,
    }
    every = {e for expressions in asked.values() for e in expressions.values()}
    meanings = {row["id"]: row["says"] for row in symptoms if "says" in row}
    rows = {
        **asked,
        "fits": {row["id"]: row["causes"] for row in symptoms},
        "meanings": meanings,
        "commands": {r["id"]: (r["next"]["line"], r["next"]["why"]) for r in symptoms if "next" in r},
        "states": [row["id"] for row in _rows() if row.get("state")],
        "clues": [
            (
                r["id"],
                r["cause"],
                r["status"],
                r["order"],
                r.get("same", r["id"]),
                *(list(_beside(r, key)) for key in ("also", "not")),
                r.get("words", False),
                advice(r) | {"says": r.get("says", "")} if {"says", "remedy", "decides"} & r.keys() else None,
                *(f"{r['id']}/{key}" if key in r else "" for key in ("above", "not_above")),
            )
            for r in _rows()
        ],
        **{
            use: {e: [[sorted(map(bytes.decode, of)) for of in branch] for branch in read(e)] for e in every}
            for use, read in _NEEDS.items()
        },
    }
    cache.write(name, json.dumps(rows))
    return rows


@functools.cache
def expressions() -> dict[str, str]:
    """Id -> expression, whatever it is asked of."""
    return {**catalogue()["printed"], **catalogue()["spoken"], **catalogue()["beside"]}


@functools.cache
def needs(expression: str, use: str = "needs") -> list[matcher.Needs]:
    """For each alternative of an expression, what a line must contain. ``use``: "numbered" for the
    alternatives that the digits of a line decide, and a line without its digits."""
    known = catalogue()[use].get(expression)
    if known is None:
        return _NEEDS[use](expression)
    return [tuple(frozenset(map(str.encode, of)) for of in branch) for branch in known]


@functools.cache
def _rows() -> list[dict]:
    return sorted(
        (
            *(row for name in PROGRAMS for row in table(f"messages/catalogue/{name}")["clue"]),
            *(
                {"cause": cause["id"], **row}
                for cause in table("causes/causes")["cause"]
                for row in cause.get("message", ())
            ),
        ),
        key=lambda row: row["order"],
    )


def _beside(row: dict, key: str) -> dict[str, str]:
    """Id -> expression of what must, or must not, stand beside a clue."""
    return {
        f"{row['id']}/{key}-{number}": expression for number, expression in enumerate(row.get(key, ()), 1)
    }


def _lines(words: bool) -> dict[str, str]:
    return {
        row["id"]: _spelt(row["line"])
        for row in _rows()
        if "line" in row and row.get("words", False) == words
    }


@functools.cache
def version() -> str:
    """Checksum of the catalogue; it changes with any id or expression."""
    return f"{zlib.crc32(repr([*expressions().items()]).encode()):08x}"


def _spelt(expression: str | tuple[str, ...]) -> str:
    """The expression; a long one is a list of alternatives, without short forms."""
    expression = expression if isinstance(expression, str) else "|".join(expression)
    for short, words in table("messages/catalogue/short-forms")["words"].items() if "<" in expression else ():
        expression = expression.replace(short, words if isinstance(words, str) else "|".join(words))
    return expression


@functools.lru_cache(256)  # each message asks for the same words
def says(words: str, what: str) -> bool:
    """Whether a reporter's words state this (short forms included) and do not only ask about it."""
    return bool(compiled(_spelt("(?i)" + what)).search(_WONDERS.sub(" ", words)))


@functools.lru_cache(8)
def works(words: str) -> bool:
    """Whether a reporter only asks what a line means, or says that the job works and reports no problem."""
    return bool(_WONDERS.search(words) or compiled(_spelt("(?i)<asks>|<works>")).search(words)) and not says(
        compiled(_spelt("(?i)<no-fault>")).sub(" ", words), "<complaint>"
    )
