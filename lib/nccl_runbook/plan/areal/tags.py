"""AReaL's tags: which grammar reads an allocation string at each, what follows from it, and how its weight update is switched."""
import dataclasses
import functools
import re

from nccl_runbook.causes.toml import table

_TAG = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\.?(rc|post)\.?(\d+))?$")
_KIND = {"rc": -1, None: 0, "post": 1}
FIRST = "v0.3.2"


@dataclasses.dataclass(frozen=True)
class Switch:
    """How a tag switches the weight update to disk; ``honours_option``: it reads actor.weight_update_mode."""

    text: str
    lines: tuple[str, ...]
    honours_option: bool
    example: str = ""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How the tags of one row read a string: a row of tags.toml, whose head explains the fields. ``tag``: the one that was asked for;
    ``switch``: the row of [switch] that it names."""

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
    switch: Switch

    @property
    def grammar(self) -> str:
        return "allocation_a.lark" if self.era == "A" else "allocation_b.lark"

    @property
    def known(self) -> bool:
        """Whether the source of this very tag was read."""
        return self.tag in self.tags


@functools.cache
def rows() -> tuple[Rules, ...]:
    """Every row, oldest first, each with its last tag as the one that was asked for."""
    data, found, so_far = table("plan/areal/tags"), [], {}
    for row in data["rows"]:
        so_far |= row
        switch = Switch(**data["switch"][so_far["switch"]])
        fields = {name: value for name, value in so_far.items() if name != "from"}
        found.append(Rules(**{**fields, "tag": row["tags"][-1], "switch": switch}))
    return tuple(found)


def newest() -> Rules:
    return rows()[-1]


def at(tag: str) -> Rules:
    """The rules of a tag, with or without its "v"; of one that is not in the table, those of the newest before it.

    Raises ValueError for what is no tag, and for tags before v0.3.2, which read the string with one regular expression.
    """
    order = _order(tag)
    if order is None:
        raise ValueError(f"{tag!r} is not a tag of AReaL, such as v0.4.0 or {newest().tag}")
    before = [r for r in rows() if _order(r.tags[0]) <= order]
    if not before:
        raise ValueError(f"{tag} is older than {FIRST}: it reads the string with a regular expression that ignores unknown parts")
    return dataclasses.replace(before[-1], tag=tag if tag.startswith("v") else f"v{tag}")


def _order(tag: str) -> tuple[int, ...] | None:
    found = _TAG.match(tag)
    return (*map(int, found.group(1, 2, 3)), _KIND[found[4]], int(found[5] or 0)) if found and len(tag) <= 40 else None
