"""Variables that no program reads, or that are wrong, renamed, obsolete or too new for the installed
version."""

import difflib
import re
from collections.abc import Iterator

from nccl_runbook.causes.tables import table, version
from nccl_runbook.causes.variables import Variable, nearest, unread, variables
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.environment import judge_settings
from nccl_runbook.environment.settings.judge_effective import Setting

MOST_EVENTS = (
    1_000_000  # 67,108,864 was meant as bytes; a ring of a million collectives holds hours of training
)

RUN_STILL = (2, 5)  # NCCL and PyTorch from here on may still be met in jobs


def unread_variable(s: Setting) -> Iterator[Finding]:
    """No program reads this name: a widespread error, or a typing error."""
    if s.name in unread():
        says, instead = unread()[s.name]
        yield s.finding(
            "unread-variable",
            Severity.WARN,
            says,
            "The variable has no effect. Remove it, and use this instead:",
            re.sub("(?<=seconds=)1800", s.value, instead) if s.value.isdecimal() else instead,
        )
    elif near := nearest(s.name):
        yield s.finding(
            "unread-variable",
            Severity.WARN,
            f"no known library reads this variable; the most similar known name is {near}",
            f"The variable has no effect. Remove it. If you meant {near}, use that name:",
            *([f"unset {s.name}"] if variables()[near].debugging else [f"{near}={s.value}"]),
        )


def wrong_value(s: Setting, v: Variable) -> Iterator[Finding]:
    """The reader does not accept this value."""
    if not v.accepts(s.value):
        unset = "" if v.name in table("environment/environment")["needed"] else ", or remove it"
        yield s.finding(
            "wrong-value",
            Severity.WARN,
            f"{s.value!r} is not a valid value (valid: {v.values_in_words}){_what_happens(v, s.value)}",
            f"Set a valid value{unset}:",
            _right(v, s.value),
        )


def _what_happens(v: Variable, value: str) -> str:
    kind = v.values.partition(":")[0]
    if v.name in (known := table("environment/environment")["otherwise"]):
        return f"; {known[v.name]}"
    if v.reader.key == "nccl" and kind in ("bool", "int") and not value.strip(" +-").isdecimal():
        return (
            f"; NCCL reads only the leading digits ({v.as_read(value)})"
            if re.match(r"\s*[+-]?\d", value)
            else "; NCCL reads anything but a number as 0"
        )
    return "; torch then ends with an error" if kind == "flag" and v.reader.key == "torch" else ""


def _right(v: Variable, value: str) -> str:
    # "nvlink" as NVL: what begins like it
    beginnings = (value.upper()[:end] for end in range(len(value), 1, -1))
    if v.values.startswith("re:") and (near := next(filter(v.accepts, beginnings), "")):
        return f"{v.name}={near}"
    kind, _, words = v.values.partition(":")
    if kind == "words" and (close := difflib.get_close_matches(value.upper(), words.split(","), n=1)):
        return f"{v.name}={close[0]}"
    switch = table("environment/environment")["switch"]
    if v.values in ("bool", "flag") and value.casefold() in switch:
        return f"{v.name}={switch[value.casefold()]}"
    return table("environment/environment")["needed"].get(v.name) or (
        f"{v.name}={v.default}" if v.default else f"unset {v.name}"
    )


def _past(s: Setting, v: Variable) -> bool:
    """Whether the version in use, or any that may be, is newer than the last one that reads it."""
    return bool(v.until) and (not s.in_use or s.in_use[: len(version(v.until))] > version(v.until))


def renamed_variable(s: Setting, v: Variable) -> Iterator[Finding]:
    """An old name that the version in use still reads (a note) or no longer reads (a warning)."""
    if (
        v.renamed_to
        and s.role.variables.get(v.renamed_to, s.value) == s.value
        and not (s.in_use and s.in_use < version(v.renamed_in))
    ):
        since = f" since {v.reader.name} {v.renamed_in}" if v.renamed_in else ""
        # NCCL 2.30.7 (graph/connect.cc) prints no warning
        read = "still read, with a warning" if v.reader.version_of == "torch" else "still read"
        severity, says = (Severity.WARN, "no longer read") if _past(s, v) else (Severity.NOTE, read)
        value = (
            "2000"
            if v.values.startswith("count") and judge_settings.number(s.value) > MOST_EVENTS
            else s.value
        )
        yield s.finding(
            "renamed-variable",
            severity,
            f"this is the old name, and the new name is {v.renamed_to}{since} (the old name is {says})",
            "Use the new name:",
            f"{v.renamed_to}={value}" if v.values != "bool" else v.renamed_to,
        )


def dead_variable(s: Setting, v: Variable) -> Iterator[Finding]:
    """Last read by an earlier version, without a successor."""
    if not v.renamed_to and _past(s, v):
        may_run = not s.in_use and version(v.until) >= RUN_STILL
        yield s.finding(
            "dead-variable",
            Severity.NOTE if may_run else Severity.WARN,
            f"{v.reader.name} {v.until} is the last version that reads this variable"
            f"{'; the version in use is not known' if may_run else ''}",
            "Newer versions do not read this variable. If you use a newer version, remove the variable:"
            if may_run
            else ("The variable has no effect. Remove it:"),
            f"unset {s.name}",
        )


def not_yet_read(s: Setting, v: Variable) -> Iterator[Finding]:
    """The version in use is older than the first one that reads it."""
    if v.since and s.in_use and s.in_use < version(v.since):
        old = next((o.name for o in variables().values() if o.renamed_to == s.name), "")
        yield s.finding(
            "not-yet-read",
            Severity.WARN,
            f"only {v.reader.name} {v.since} and later read this variable, but "
            f"{'.'.join(map(str, s.in_use))} is in use",
            "Use the name that the version in use reads:"
            if old
            else "The variable has no effect in the version in use. Remove it, or use a newer version:",
            f"{old}={s.value}" if old else f"unset {s.name}",
        )


def bytes_for_events(s: Setting, v: Variable) -> Iterator[Finding]:
    """A buffer of the flight recorder given in bytes; it counts events."""
    if v.values == "count" and judge_settings.number(s.value) > MOST_EVENTS:
        name = "TORCH_NCCL_TRACE_BUFFER_SIZE" if s.in_use and s.in_use < (2, 9) else "TORCH_FR_BUFFER_SIZE"
        yield s.finding(
            "bytes-for-events",
            Severity.WARN,
            f"{int(s.value):,} events are requested (the value is a number of events, not of bytes)",
            "A few thousand events are enough:",
            f"{name}=2000",
        )


def debugging_left_on(s: Setting, v: Variable) -> Iterator[Finding]:
    """A switch for experiments that is still on: a warning if it is costly, else a note."""
    known = table("environment/environment")
    is_set = s.value not in ("", v.default) and v.accepts(s.value)
    if is_set and s.name in known["costs"] and s.value != "0":
        yield s.finding(
            "debugging-left-on",
            Severity.WARN,
            f"is still set; {known['costs'][s.name]}",
            known["serves"].get(
                s.name,
                "This setting is an experiment, not a fix. Remove the variable, and find the broken "
                "transport with step 04-transports:",
            ),
            f"unset {s.name}",
        )
    elif is_set and (
        s.value.casefold() in known["chatty"].get(s.name, ())
        or (v.debugging and s.name not in known["own_rule"])
    ):
        logs = s.name == "NCCL_DEBUG"
        yield s.finding(
            "debugging-left-on",
            Severity.NOTE,
            (
                "NCCL's log fills the disk. In our test, the log cost no time (45.3 ms per weight sync "
                "with and without the log)"
            )
            if logs
            else "this variable is for experiments only, so do not keep it in scripts",
            "When you have found the fault, set:",
            "NCCL_DEBUG=WARN" if logs else f"unset {s.name}",
        )


def has_a_side_effect(s: Setting, _: Variable) -> Iterator[Finding]:
    """A valid setting with a side effect (environment/environment.toml: cumem-must-agree,
    ranks-share-a-gpu). ``quiet`` of its row: values without one; ``since``: the version that has it."""
    row = table("environment/environment")["catch"].get(s.name)
    if row and s.as_read not in row["quiet"] and not (s.in_use and s.in_use < version(row["since"])):
        yield s.finding(row["id"], Severity(row["severity"]), row["says"], row["advice"], *row["lines"])
