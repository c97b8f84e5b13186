"""The causes by id: title, explanation, remedies, the messages that point to them; and a line that
sets a variable, by launcher."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import signal
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nccl_runbook.core.facts import WRONG_VALUES, Identity, RankResult, World, bus_of_message, clashes
from nccl_runbook.core.findings import NOTHING_KNOWN, Evidence, Finding, Remedy, Severity
from nccl_runbook.core.redact import sounds_secret

NOT_EVALUATED = "$"  # a value with a shell expression in it is not known here
_PLAIN = re.compile(
    r"\d{1,6}|true|false|yes|no|on|off", re.I
)  # may be shown of a variable that is not in the table
_MISSPELT = ("NCLL_", "NCC_", "NCL_", "NNCL_", "TORCH_NCLL_", "TORCH_NCL_")  # prefixes, as they are slipped


@dataclasses.dataclass(frozen=True)
class Reader:
    """Who reads a section's variables: a row [reader] of variables.toml.
    ``key``: its section; ``families``: prefixes of its names; ``is_complete``: the table holds every name
    it reads; ``version_of``: "nccl" or "torch" if since and until count that version."""

    key: str
    name: str
    source: str
    families: tuple[str, ...] = ()
    is_complete: bool = False
    version_of: str = ""


@dataclasses.dataclass(frozen=True)
class Variable:
    """One row of variables.toml; see its head. ``renamed_to``: the new name, ``renamed_in``: the
    first version that has it."""

    name: str
    reader: Reader
    means: str
    values: str = "text"
    default: str = ""
    since: str = ""
    until: str = ""
    renamed_to: str = ""
    renamed_in: str = ""
    documented: bool = False
    debugging: bool = False

    def accepts(self, value: str) -> bool:
        """Whether the reader takes ``value`` as it stands. An empty value, or one that the shell still
        has to work out, is taken."""
        if value == "" or NOT_EVALUATED in value:
            return True
        kind, _, rest = self.values.partition(":")
        if kind in ("int", "count"):
            return _in_range(value, rest)
        if kind in ("words", "list"):
            listed = [w.strip() for w in value.removeprefix("^").split(",")] if kind == "list" else [value]
            return all(w.casefold() in ("", *rest.casefold().split(",")) for w in listed)
        line = rest if kind == "re" else table("causes/variables")["form"].get(kind, {}).get("line", "(?s).*")
        return bool(re.fullmatch(line, value))

    @property
    def values_in_words(self) -> str:
        kind, _, rest = self.values.partition(":")
        low, _, high = rest.partition("..")
        if kind == "int" and rest:
            return f"a whole number from {low} to {high}" if high else f"a whole number of at least {low}"
        if kind in ("words", "list"):
            return ("one of " if kind == "words" else "some of ") + ", ".join(rest.split(","))
        return table("causes/variables")["form"].get(kind, {}).get("words", "another form")


def _in_range(value: str, bounds: str) -> bool:
    if not re.fullmatch(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)\s*", value):
        return False
    number = int(value, 0) if re.search("[xX]", value) else int(value)
    low, _, high = bounds.partition("..")
    return (not low or number >= int(low)) and (not high or number <= int(high))


@functools.cache
def readers() -> dict[str, Reader]:
    return {key: Reader(key, **row) for key, row in table("causes/variables")["reader"].items()}


@functools.cache
def variables() -> dict[str, Variable]:
    """Every variable by name."""
    return {
        name: Variable(name, reader, **row)
        for key, reader in readers().items()
        for name, row in table("causes/variables")[key].items()
    }


@functools.cache
def unread() -> dict[str, tuple[str, str]]:
    """Names that circulate and that nobody reads: what is so, and what to use instead."""
    return {name: (row["says"], row["instead"]) for name, row in table("causes/variables")["unread"].items()}


def family(name: str) -> Reader | None:
    """Whose family a name looks like, by its longest prefix."""
    return max(
        ((len(p), r) for r in readers().values() for p in r.families if name.startswith(p)),
        key=lambda fitting: fitting[0],
        default=(0, None),
    )[1]


@functools.cache
def nearest(name: str) -> str:
    """The known name that looks most like it, "" where none is near. Only a name of the same length, give
    or take two, counts as a slip; a slip leaves its beginning, its middle or its end as it was."""
    near = (
        n
        for n in variables()
        if abs(len(n) - len(name)) <= 2 and (n[:6] == name[:6] or name[6:11] in n or n[-3:] == name[-3:])
    )
    return next(iter(difflib.get_close_matches(name, near, n=1, cutoff=0.85)), "")


@functools.cache
def prefixes() -> tuple[str, ...]:
    """Prefixes of every family: with the names of the table they are what may be kept of an environment."""
    return tuple(sorted({*_MISSPELT, *(p for r in readers().values() for p in r.families)}))


def is_kept(name: str) -> bool:
    """Whether a variable of that name may be kept: one of the table, or of a family that it knows
    unless the name sounds secret."""
    return (
        name in variables()
        or name.startswith(prefixes())
        and not name.startswith("NCCL_RUNBOOK_")
        and not sounds_secret(name)
    )


def may_be_shown(name: str, value: str) -> bool:
    """Whether a page may hold it: of a variable that the table knows, or a plain number or yes and no."""
    return is_kept(name) or bool(_PLAIN.fullmatch(value))


def version(text: str) -> tuple[int, ...]:
    """ "2.11.0+cu130" as (2, 11, 0)."""
    return tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3])


PACKAGE = Path(__file__).parents[1]


@functools.cache
def table(name: str) -> Mapping[str, Any]:
    """The table ``name``.toml, a path below the package, with arrays as tuples. Read-only at every level."""
    return _fixed(tomllib.loads((PACKAGE / f"{name}.toml").read_text(encoding="utf-8")))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _fixed(one) for key, one in value.items()})
    return tuple(map(_fixed, value)) if isinstance(value, list) else value


_PAIR = re.compile(r"\b(\w+)=(\S+)")
Rows = Sequence[tuple[str, str, Sequence[str]]]  # of a remedy: who, text, lines to copy


@dataclasses.dataclass(frozen=True)
class Advice:
    """What one message says of its cause, in place of what the cause says in general; empty parts leave that
    as it is. ``decides``: the cheapest evidence that settles it, (probe, why, line)."""

    says: str = ""
    remedy: Rows = ()
    decides: tuple[str, ...] = ()

    def filled(self, fields: Mapping[str, str | None]) -> Advice:
        """With what stands in the message in place of ``<name>``; it says nothing
        of what does not stand there."""

        def fill(text: str) -> str:
            return re.sub(r"<([a-z_]+)>", lambda found: fields.get(found[1]) or found[1].upper(), text)

        says = (
            ""
            if any(not fields.get(name) for name in re.findall(r"<([a-z_]+)>", self.says))
            else fill(self.says)
        )
        return Advice(
            says,
            tuple((who, fill(text), tuple(map(fill, lines))) for who, text, lines in self.remedy),
            tuple(map(fill, self.decides)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause(Advice):
    """One row of causes.toml, with what it says in general. ``by_message``: status where nothing but
    a message names it; ``verify``: how the job shows that the remedy acts, or ""."""

    id: str
    title: str
    source: str
    signatures: tuple[str, ...] = ()
    by_message: str = "established"
    verify: str = ""


@functools.cache
def causes() -> dict[str, Cause]:
    """Every cause, in the order in which signatures are tried."""
    return {row["id"]: Cause(**{**row, **advice(row)}) for row in table("causes/causes")["cause"]}


def advice(row: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a table's row that are advice, as `Cause` and `Advice` take them."""
    decides = (
        {"decides": tuple(row["decides"][part] for part in ("probe", "why", "line"))}
        if "decides" in row
        else {}
    )
    return {"remedy": tuple((r["who"], r["text"], r["lines"]) for r in row.get("remedy", ())), **decides}


def fitting(cause_id: str, *lines: str) -> Cause:
    """The cause, with the advice for what the line which names it tells, the first one, or those beside it:
    a program's own exception needs no look at the kernel's log."""
    fit = (
        row
        for row in table("causes/causes")["said"]
        if row["id"] == cause_id
        and any(re.search(row["line"], line) for line in lines[: None if row.get("beside") else 1])
    )
    return dataclasses.replace(causes()[cause_id], **next(map(advice, fit), {}))


@functools.cache
def _patterns() -> list[tuple[Cause, re.Pattern[str]]]:
    return [
        (c, re.compile("|".join(f"(?:{s})" for s in c.signatures))) for c in causes().values() if c.signatures
    ]


def recognise(lines: Iterable[str]) -> tuple[Cause, str] | None:
    """The first cause in table order whose message is among ``lines``, with that line;
    None where nothing is known."""
    text = list(lines)
    return next(
        ((cause, line.strip()) for cause, pattern in _patterns() for line in text if pattern.search(line)),
        None,
    )


def for_launcher(line: str, launcher: str) -> tuple[str, ...]:
    """The line as ``launcher`` takes it; unchanged where the table has no form for it and it sets nothing."""
    for form in (form for form in table("causes/launchers")["form"] if form["launcher"] == launcher):
        if found := re.fullmatch(form["of"], line):
            either = "|".join("".join(found.groups()[:1]).split())
            return tuple(
                wanted.format(*(group or "" for group in found.groups()), either=either)
                for wanted in form["lines"]
            )
    pairs = _PAIR.findall(line) if line.startswith("export ") else []
    if not pairs or launcher not in table("causes/launchers")["export"]:
        return (line,)
    form, pair, between = table("causes/launchers")["export"][launcher]
    return tuple(
        form.format(between.join(pair.format(name=name, value=value) for name, value in pairs)).split("\n")
    )


NOT_SEEN = Evidence(
    "not yet seen on hardware; the tests of this rule simulate the fault in ranks without GPUs", "the rule"
)


def usual(
    cause: str,
    status: str | None = None,
    lines: Sequence[str] = (),
    launcher: str = "",
    rows: Rows | None = None,
) -> tuple[Remedy, ...]:
    """What to do about it: ``rows``, or what the table of causes says, given ``lines`` that name it. The
    lines to copy are as ``launcher`` takes them; of what is only possible nobody knows that it needs it."""
    rows = fitting(cause, *lines).remedy if rows is None else rows
    if_so = "If so: " * (status == "possible" and cause != "benign")
    return tuple(
        Remedy(who, if_so + text, tuple(own for line in copied for own in for_launcher(line, launcher)))
        for who, text, copied in rows
    )


def remedies(cause: Cause | None, status: str | None = None) -> tuple[Remedy, ...]:
    return usual(cause.id, status) if cause and cause.remedy else (NOTHING_KNOWN,)


def last_begun(rank: RankResult) -> str:
    """What the rank was doing when it ended: "at the start", "in init", "after init", "in
    all_reduce of 16777216 B"."""
    last = rank.events[-1] if rank.events else {}
    begun = [e for e in rank.events if e.get("event") == "begin"]
    if last.get("event") == "init" or not begun:
        return "after init" if begun else "at the start"
    size = begun[-1].get("size_bytes")
    return f"in {begun[-1]['what']} of {size} B" if size else f"in {begun[-1]['what']}"


def rank_line(rank: RankResult) -> str:
    """One line: what became of the rank, and where it was."""
    ended = {
        "exited": f"exit code {rank.code}",
        "signalled": f"killed by signal {rank.code}",
        "timed-out": "still running at the deadline",
        "lost": "lost together with the runbook's own process",
        "late": "end not reported",
    }[rank.outcome]
    return f"rank {rank.rank}: {ended}{f', state {rank.state}' if rank.state else ''}, {last_begun(rank)}"


def _duplicate(world: World) -> tuple[str, str, str]:
    """(cause id, status, the device map in words) behind a duplicate-GPU refusal: UUIDs
    first, then what was asked for."""
    found = clashes(
        [
            Identity(rank.rank, str(hello.get("uuid") or ""), str(hello.get("pci_bus_id") or ""))
            for rank in world.ranks
            for hello in [rank.first("hello") or {}]
        ]
    )
    if not found:
        return "device-not-set-per-rank", "possible", "the ranks' UUIDs were not seen"
    clash = found[0]
    if clash.kind == "shared":
        words = "; ".join(
            f"ranks {' and '.join(map(str, one.ranks))} on {one.what} (asked for: GPU "
            f"{' and '.join(str(world.request.devices[n]) for n in one.ranks)})"
            for one in found
            if one.kind == "shared"
        )
        same_asked = len(set(world.request.devices)) < len(world.request.devices)
        return "device-not-set-per-rank" if same_asked else "scheduler-shares-gpu", "established", words
    words = f"ranks {' and '.join(map(str, clash.ranks))} on bus {clash.what}, and their UUIDs differ"
    if clash.kind == "slices":
        return "vgpu-or-mig-unsupported", "established", f"{words}: MIG slices of one card"
    return "bus-id-collision", "established", words


def _known(rank: RankResult) -> tuple[Cause, str] | None:
    """The message of one rank that failed, if the tables know it. Wrong values have no message: what else
    was printed is beside them."""
    if rank.outcome == "exited" and rank.code in (0, WRONG_VALUES):
        return None
    return recognise(
        [
            *(line for e in rank.named("error") for line in str(e.get("text", "")).splitlines()),
            *rank.last_lines,
        ]
    )


def _message(world: World) -> tuple[Cause, str, list[Evidence]] | None:
    """The hardest message of all ranks, in the order of the table. What a rank only printed before
    it hung is likely at most."""
    said = [(rank, known) for rank in world.ranks for known in [_known(rank)] if known]
    if not said:
        return None
    order = list(causes())
    rank, (cause, line) = min(said, key=lambda s: order.index(s[1][0].id))
    if cause.id == "duplicate-gpu":
        cause_id, status, words = _duplicate(world)
        named = [
            Evidence(f"that CUDA device is the GPU on PCI bus {bus}", "NCCL prints the bus id in hexadecimal")
            for bus in [bus_of_message(line)]
            if bus
        ]
        return (
            causes()[cause_id],
            status,
            [Evidence(line, f"rank {rank.rank}"), *named, Evidence(words, "device map of the ranks")],
        )
    return (
        cause,
        "likely" if rank.outcome == "timed-out" else cause.by_message,
        [Evidence(line, f"rank {rank.rank}")],
    )


def _cause_of(world: World) -> tuple[Cause | None, str, list[Evidence]]:
    """(cause, status, evidence). The ranks' own messages first, then how the processes ended,
    as peers only echo a death."""
    if message := _message(world):
        return message
    if any(r.state.startswith("T") for r in world.ranks):
        return causes()["peer-stopped"], "established", []
    if killed := [r.code for r in world.ranks if r.outcome == "signalled"]:
        return (
            (causes()["shm-too-small"], "likely", [])
            if signal.SIGBUS in killed
            else (causes()["peer-crashed"], "established", [])
        )
    return None, "", []


def explain(rule: str, what: str, world: World, again: World | None = None) -> Finding:
    """A finding for a failed world. ``what``: "2 ranks"; ``again``: the same at once in a fresh world, for
    *broken* needs a recurrence there."""
    if world.ended == "lost":
        is_stopped = any(r.state.startswith("T") for r in world.ranks)
        is_gone = is_stopped or any(r.outcome == "lost" for r in world.ranks)
        ended = (
            f"the runbook's own process was {'stopped (state T)' if is_stopped else 'killed'} "
            "while the ranks ran"
        )
        why = ended if is_gone else "the ranks had not ended at the deadline"
        return Finding(
            rule,
            Severity.UNKNOWN,
            f"{what}: {why}",
            (
                *(Evidence(rank_line(r), r.log) for r in world.ranks if r.outcome in ("lost", "late")),
                Evidence(world.log),
            ),
        )
    again = again if again and again.ended != "lost" else None
    cause, status, said = _cause_of(world)
    # whose data arrived wrong, wherever a sender is known: not in an all_reduce, which adds all up
    senders = {e["wrong"].get("from_rank") for e in world.wrong} - {None}
    sender = senders.pop() if len(senders) == 1 else None
    # those first that show most: stopped or killed, then those that raised, then those that only waited
    bad = sorted(
        (r for r in world.ranks if not (r.outcome == "exited" and r.code == 0)),
        key=lambda r: (
            not (r.state.startswith("T") or r.outcome == "signalled"),
            r.outcome == "timed-out",
            r.rank,
        ),
    )
    evidence = (
        *[Evidence(f"every wrong value that has one sender came from rank {sender}", "value check")]
        * (sender is not None),
        *said,
        *(Evidence(rank_line(r), r.log) for r in bad),
        *(Evidence(_wrong_line(e), "value check") for e in world.wrong[:3]),
        *(Evidence(line, "log") for line in _telling(world) if cause is None),
    )
    title = (
        f"{what} {'got wrong values' if world.wrong else world.ended}"
        f"{'' if sender is None else f', sent by rank {sender}'}"
    )
    why = f": {cause.title}" if cause else ""
    if again is None or again.passed:
        said_of_repeat, runs = (
            ("It was not repeated", 1) if again is None else ("It passed the other time", 2)
        )
        return Finding(
            rule,
            Severity.WARN,
            f"{title}, seen 1 of {runs}{why}",
            evidence,
            (
                Remedy(
                    "you",
                    f"{said_of_repeat}. Repeat the test more often before you change anything.",
                    (world.shell_line,),
                ),
            ),
            cause and cause.id,
            cause and (status if again is None else "possible"),
        )
    return Finding(
        rule,
        Severity.BROKEN,
        f"{title}{why}",
        evidence,
        remedies(cause, status),
        cause and cause.id,
        cause and status,
    )


def _wrong_line(e: dict) -> str:
    wrong = e["wrong"]
    source = "" if wrong.get("from_rank") is None else f" from rank {wrong['from_rank']}"
    return (
        f"{e['op']} of {e['size_bytes']} B{source}: element {wrong['index']} is {wrong['got']}, "
        f"should be {wrong['expected']} ({wrong['count']} wrong)"
    )


def _telling(world: World) -> list[str]:
    """The last line of each rank that failed, and NCCL's first warning."""
    warned = [line for r in world.ranks for line in r.last_lines if "NCCL WARN" in line][:1]
    return warned + [r.last_lines[-1] for r in world.died if r.last_lines][:2]
