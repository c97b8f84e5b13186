"""A line that sets a variable, as each launcher wants it."""

from __future__ import annotations

import re

from nccl_runbook.causes.toml import table

_PAIR = re.compile(r"(\w+)=(\S+)")


def for_launcher(line: str, launcher: str) -> tuple[str, ...]:
    """The line as ``launcher`` takes it; unchanged where the table has no form for it and it sets nothing."""
    for form in table("causes/launchers")["form"]:
        found = re.fullmatch(form["of"], line) if form["launcher"] == launcher else None
        if found:
            either = "|".join("".join(found.groups()[:1]).split())
            return tuple(wanted.format(*(group or "" for group in found.groups()), either=either) for wanted in form["lines"])
    pairs = _PAIR.findall(line) if line.startswith("export ") else []
    if not pairs or launcher not in table("causes/launchers")["export"]:
        return (line,)
    form, pair, between = table("causes/launchers")["export"][launcher]
    return tuple(form.format(between.join(pair.format(name=name, value=value) for name, value in pairs)).split("\n"))
