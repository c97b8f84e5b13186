"""Variables out of a file: `env` output, /proc/PID/environ, a launch script, or the environment block
of Slurm, Ray or YAML; and PCI bridges out of raw configuration space.

Nothing is executed, and of the shell's language only arithmetic is worked out: a value with another
expression stays as it is written. Only names that the table of variables allows are kept, and every value
is scrubbed of what looks like a secret or is the value of one in the same file.
"""

import itertools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from nccl_runbook.causes.variables import is_kept, variables
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import Redactor, clipped
from nccl_runbook.core.share import learn
from nccl_runbook.environment.facts import Role
from nccl_runbook.logs.file import text_of
from nccl_runbook.scripts import counts
from nccl_runbook.scripts.read import read as read_script, with_arithmetic

# what Linux gives a process at most, with its arguments: a quarter of 8 MiB of stack (execve(2))
MOST_BYTES = 2 << 20
MOST_NAMES, MOST_KEPT = (
    1000,
    1 << 18,
)  # that are kept, and characters of their values: jobs have 100 and 20,000
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,80}"
_VALUE = r"\"(?P<d>(?:[^\"\\]++|\\.)*+)\"|'(?P<s>[^']*)'|(?P<b>[^\s;&|<>\"'`]*)"
# nothing else on the line, as with most of 40,000 lines
_PLAIN = re.compile(rf"\s*(?:export\s+)?({_NAME})=([\w./:$-]*)\s*")
_BY_SHELL = (
    # NAME=value: exports, prefixes of a command, env, --env, -e, -x, --export=ALL,NAME=value; the name is not
    # the middle of another word
    re.compile(rf"(?<![\w./$-])(?P<name>{_NAME})=(?:{_VALUE})"),
    re.compile(rf"(?<!\S)(?:setenv|ENV)\s+(?P<name>{_NAME})\s+(?:{_VALUE})"),  # csh, Dockerfile
)
# a Kubernetes pair, whose value follows, and keywords of Python: name: X, value: Y and name="X", value="Y"
_KEY = rf"[\"']?name[\"']?\s*[:=]\s*[\"']?(?P<name>{_NAME})[\"']?\s*+"
_BY_PROGRAM = (
    # NAME: value in YAML, "NAME": "value" in Ray's runtime_env and JSON, os.environ["NAME"] = "value"
    re.compile(
        rf"(?<![\w.$-])(?P<quote>[\"'])?(?P<name>{_NAME})(?(quote)(?P=quote)(?:\s*:|\]\s*=(?!=))\s*|\s*:\s+)"
        rf"(?=[^\s{{\[])(?:{_VALUE})"
    ),
    re.compile(rf"\b(?:setdefault|putenv|setenv)\(\s*[\"'](?P<name>{_NAME})[\"']\s*,\s*(?:{_VALUE})"),
    re.compile(rf"(?<![\w.$-]){_KEY},\s*[\"']?value[\"']?\s*[:=]\s*(?:{_VALUE})"),
)
_NAME_KEY = re.compile(rf"^\s*(?:-\s*)?{_KEY},?\s*$")
_VALUE_KEY = re.compile(rf"^\s*(?:-\s*)?[\"']?value[\"']?\s*[:=]\s*(?:{_VALUE})\s*+,?\s*$")
# commands that only print a text, unless into a file or a pipe
_SHOWN = re.compile(
    r"(?<![\w./$(`-])(?:echo|printf)\s(?:\"(?:[^\"\\]++|\\.)*+\"|'[^']*'|[^\"';&|>\n])*+(?!>(?!&)|"
    r"\|(?!\|))|^\s*print\(.*"
)
_EXPORT_LIST = re.compile(r"--export[= ](\S+)")
_OPENS = {")": "(", "]": "[", "}": "{"}
_LIVE_COMMENT = re.compile(r"^\s*#(SBATCH|PBS|BSUB|FLUX)\b")
_UNSET = re.compile(rf"(?<!\S)unset(?:env)?((?:\s+{_NAME})+)")
_REDIRECTS = 0x04 | 0x08  # request and completion redirect (PCI Express base specification, 7.7.8)
_TELLS = re.compile(r"[=:(]|set|ENV")  # a line without one sets nothing
# characters and dots: for one key of many parts tomllib takes the square of its length, and memory, too:
# 16,000 parts take 1 GB (CPython 3.11)
_MOST_TOML, _MOST_DOTS = 1 << 15, 1 << 11
# what a job printed: a log advises settings, and sets none
_PRINTED = re.compile(
    r"(?m)^(?:\[rank\d+\]: ?)?Traceback \(most recent call last\):|^[\w.-]+:\d+:\d+ \[\d+\] "
    r"NCCL (?:INFO|WARN) "
)
_NO_TEXT = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\ufffd]")
_ENTRY = re.compile(r"[A-Za-z_][^\s=]*=")  # of /proc/PID/environ
_BRIDGE, _EXTENDED, _ACS = (
    0x0604,
    0x100,
    0x000D,
)  # class of PCI bridges; where extended capabilities begin; id of that one


def read(path: str) -> Role | Gap:
    """The variables of a file, each with the line that set it last; a Gap says why it cannot be read."""
    text = text_of(path, MOST_BYTES, "an environment")
    if not isinstance(text, Gap) and not _is_text(text) and not _PRINTED.search(text):
        return Gap("unsupported", f"{path} is a binary file (program, pickle or zip)")
    return text if isinstance(text, Gap) else parse(text, Path(path).name)


def _is_text(text: str) -> bool:
    """Whether these are lines or /proc/PID/environ, which a program may have written over in part; an archive
    and a log have names, too."""
    if "\0" in text:
        entries = [e for e in text.split("\0") if e]
        return sum(map(bool, map(_ENTRY.match, entries))) * 2 > len(entries)
    return len(_NO_TEXT.findall(text)) <= len(text) // 20 and not _PRINTED.search(text)


def parse(text: str, name: str = "text") -> Role:
    """The variables of a text; none if it is neither an environment nor a script."""
    learn(text)
    values = assigned(text) if _is_text(text) else {}
    script = read_script(text if _is_text(text) else "")
    redactor = Redactor({n: v for n, (v, _) in values.items()})
    known_first = sorted(filter(is_kept, values), key=lambda n: n not in variables())[:MOST_NAMES]
    names = {
        n
        for n, size in zip(known_first, itertools.accumulate(len(values[n][0]) for n in known_first))
        if size <= MOST_KEPT
    }
    kept = {n: redactor.text(f"{n}={values[n][0]}").partition("=")[2] for n in values if n in names}
    limit = "CUDA_VISIBLE_DEVICES=" if "CUDA_VISIBLE_DEVICES" in kept else ""
    lines = counts.lines_of(text, limit) if script.crowded else []
    unread = Gap("not-run", "only a file was read")
    return Role(
        name=name,
        variables=kept,
        where={n: values[n][1] for n in kept},
        others=len(values) - len(kept) if kept or is_dump(text) else 0,
        conf={},
        torch=unread,
        torch_cuda=unread,
        mapped=unread,
        reported=unread,
        nofile=unread,
        memlock=unread,
        # else what Slurm, torchrun or the user set
        nodes=script.spread
        or max(
            (
                int(value)
                for n, (value, _) in values.items()
                if n in ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
                and re.fullmatch("[0-9]{1,5}", value)
            ),
            default=0,
        ),
        sourced=list(script.sourced),
        crowded=list(script.crowded),
        crowded_by=f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:6]))}" if lines else "",
        faults={name: clipped(redactor.text(command), 200) for name, command in script.faults.items()},
        meeting=next(
            (
                value
                for c in script.commands
                # torchrun's: they outrank MASTER_ADDR, which it sets for its ranks itself
                for flag in ("rdzv_endpoint", "master_addr")
                for value in c.flags.get(flag, ())[:1]
            ),
            "",
        ),
    )


def is_dump(text: str) -> bool:
    """Whether the text is the output of `env`: a whole environment, in which a missing name is not set."""
    rows = [row for row in text.split("\0" if "\0" in text else "\n") if row]
    return {"PATH", "HOME"} <= {r.partition("=")[0] for r in rows} and sum(
        map(bool, map(_ENTRY.match, rows))
    ) > 0.8 * len(rows)


def _is_toml(text: str) -> bool:
    try:
        return len(text) < _MOST_TOML and text.count(".") < _MOST_DOTS and bool(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):
        return False


def assigned(text: str) -> dict[str, tuple[str, str]]:
    """Name -> (raw value, line that set it last), secrets included."""
    is_environ = "\0" in text
    rows = text.split("\0") if is_environ else text.splitlines()
    values: dict[str, tuple[str, str]] = {}
    waiting = None  # the name of a pair whose value stands on the next line
    toml = _is_toml(text)
    for number, row in enumerate(rows, 1):
        plain = _PLAIN.fullmatch(row)
        if plain or not _TELLS.search(row):
            values |= {plain[1]: (plain[2], f"line {number}")} if plain else {}
            waiting = None
            continue
        # lines for the scheduler look like comments of the shell
        line = (
            row if is_environ or _LIVE_COMMENT.match(row) else _SHOWN.sub("", re.sub(r"(^|\s)#.*", "", row))
        )
        if "$((" in line:
            line = with_arithmetic(line, {n: v for n, (v, _) in values.items()})
        if toml:
            line = re.sub(r"((?:^|[{,])\s*[\w.-]+)\s*=\s*", r"\1=", line)
        for word in " ".join(_UNSET.findall(line)).split():
            values.pop(word, None)
        if waiting and (pair := _VALUE_KEY.match(line)) and not _is_code(pair, True):
            values[waiting["name"]] = _value(pair), f"line {number}"
        waiting = _NAME_KEY.match(line)
        for variable, value in _pairs(line):
            values[variable] = value, f"line {number}"
    return values


def _pairs(line: str) -> list[tuple[str, str]]:
    exported = _EXPORT_LIST.search(line)
    # a comma ends a value
    slurm = (
        [part.partition("=")[::2] for part in exported[1].strip("\"'").split(",") if "=" in part]
        if exported
        else []
    )
    # apptainer: A=1,B=2
    rest = re.sub(r"--env[= ]\S+", lambda m: re.sub(rf",(?={_NAME}=)", " ", m[0]), _EXPORT_LIST.sub("", line))
    matches = [
        m
        for in_program, patterns in ((False, _BY_SHELL), (True, _BY_PROGRAM))
        for pattern in patterns
        for m in pattern.finditer(rest)
        if not _is_code(m, in_program)
    ]
    return [
        *((m["name"], _value(m)) for m in sorted(matches, key=lambda m: m.start())),
        *((name, value) for name, value in slurm if re.fullmatch(_NAME, name)),
    ]


def _is_code(match: re.Match[str], in_program: bool) -> bool:
    """Whether the value is nothing, or an expression of Python, where only numbers and what
    stands in quotes are values."""
    bare = (match["b"] or "").rstrip(",})")
    before = match[0][: match.start("b") - match.start()].rstrip()  # of a long line only this match
    named = before.endswith(("=", ",")) or (
        bool(match["b"]) and match["b"] != bare and before.endswith(('":', "':"))
    )
    # no shell has a word like a call or an item of Python
    return bool(re.match(r"[A-Za-z_][\w.]*[(\[]", bare)) or (
        in_program
        and (
            bare in ("null", "Null", "NULL", "~", "None")  # a name that is not set, in YAML and Python
            or (named and bare.replace(".", "").isidentifier() and bare.lower() not in ("true", "false"))
        )
    )


def _value(match: re.Match[str]) -> str:
    value = (
        match["d"] if match["d"] is not None else match["s"] if match["s"] is not None else match["b"] or ""
    )
    if match["b"] is not None:  # a closing bracket of a list or call around the value is not part of it
        value = value.rstrip(",\\")
        while value and value[-1] in _OPENS and _OPENS[value[-1]] not in value:
            value = value[:-1].rstrip(",\\")
    return re.sub(r"^\$\{\w+:?-([^${}]*)\}$", r"\1", value)


def acs_redirects(configs: Mapping[str, bytes]) -> list[str] | Gap:
    """Bus ids of PCI bridges whose access control services (ACS) redirect peer traffic through the root. A
    Gap without root permission: the kernel then shows 64 bytes only."""
    bridges = {
        bus: data
        for bus, data in configs.items()
        if len(data) >= 12 and int.from_bytes(data[10:12], "little") == _BRIDGE
    }
    if not bridges:
        return (
            Gap("absent", "this machine shows no PCI bridge, so the ACS settings could not be read")
            if configs
            else Gap("not-run", "not read here")
        )
    if all(len(data) <= _EXTENDED for data in bridges.values()):
        return Gap(
            "no-permission",
            "only root can read whether PCIe Access Control Services (ACS) are on: "
            "sudo lspci -vvv | grep -i acsctl",
        )
    return sorted(bus for bus, data in bridges.items() if _control(data) & _REDIRECTS)


def _control(data: bytes) -> int:
    """ACS control register; 0 where the bridge has none."""
    at = _EXTENDED
    for _ in range(64):  # a list of capabilities that leads back to itself ends, too
        head = int.from_bytes(data[at : at + 4], "little") if _EXTENDED <= at <= len(data) - 8 else 0
        if head & 0xFFFF == _ACS:
            return int.from_bytes(data[at + 6 : at + 8], "little")
        at = head >> 20
    return 0
