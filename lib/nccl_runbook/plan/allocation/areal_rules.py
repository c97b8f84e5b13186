"""AReaL's rules for allocation strings, by tag."""

import dataclasses
import functools
import itertools
import operator
import re
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Unusable


@dataclasses.dataclass(frozen=True)
class Rules:
    """How the tags of one row of areal.toml read a string (its head explains the fields). ``tag``: the
    requested tag; ``switch``: the row of [switch] that it names."""

    tag: str
    tags: tuple[str, ...]
    era: str
    trainers: tuple[str, ...]
    eval: bool
    expert_tensor: str
    expert_data: str
    fsdp_plain: bool
    archon_pipeline: bool
    controller: str
    realhf: bool
    switch: Mapping[str, Any]

    @property
    def known(self) -> bool:
        """Whether the source of exactly this tag was read."""
        return self.tag in self.tags


@functools.cache
def rows() -> tuple[Rules, ...]:
    """Every row, oldest first, each with its last tag as the requested one."""
    data = table("plan/areal")
    return tuple(
        Rules(**{**row, "tag": row["tags"][-1], "switch": data["switch"][row["switch"]]})
        for row in itertools.accumulate(data["rows"], operator.or_)
    )


def newest() -> Rules:
    """The row of the newest tags."""
    return rows()[-1]


def at(tag: str) -> Rules:
    """The rules of a tag, with or without "v"; for a tag that is not in the table, those of the newest
    before it. ValueError for text that is no tag, and for tags before v0.3.2, which read the string with one
    regular expression."""
    if not re.fullmatch(r"v?[0-9]+\.[0-9]+\.[0-9]+(\.?(rc|post)\.?[0-9]+)?", tag) or len(tag) > 40:
        raise Unusable(f"{tag!r} is not a tag of AReaL, such as v0.4.0 or {newest().tag}")
    before = [r for r in rows() if Version(r.tags[0]) <= Version(tag)]
    if not before:
        raise Unusable(
            f"{tag} is older than {rows()[0].tags[0]}, and reads the allocation string with a regular "
            "expression that ignores unknown parts"
        )
    return dataclasses.replace(before[-1], tag=tag if tag.startswith("v") else f"v{tag}")


def spans(rows: list[Rules]) -> str:
    """The tags of these rows in words: "AReaL v0.3.2 to v0.4.0"."""
    rows_of = {era: [r for r in rows if r.era == era] for era in dict.fromkeys(r.era for r in rows)}
    return "AReaL " + ", ".join(f"{own[0].tags[0]} to {own[-1].tags[-1]}" for own in rows_of.values())
