"""The allocation string that a reader of 05-weight-sync names, on the GPUs that are seen here or that he names."""
import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.placement.placement import Placement
from nccl_runbook.plan.areal.allocation import Refused, parse
from nccl_runbook.plan.areal.tags import at, newest
from nccl_runbook.plan.groups import Placed, Site, place


@dataclasses.dataclass(frozen=True)
class Intended:
    """``text``: "" where no allocation was named; ``tag``: of AReaL; ``gpus``: seen here, or named where none is seen; ``placed``: None
    where that tag refuses the text."""

    text: str
    gpus: int
    tag: str = ""
    placed: Placed | None = None


def check(text: str, tag: str = "") -> None:
    """Raises ValueError for an allocation that this tag (the newest known if empty) cannot read, and for a tag that is none."""
    rules = at(tag) if tag else newest()
    try:
        parse(text, rules) if text.strip() else None
    except Refused as why:
        raise ValueError(f"AReaL {rules.tag} cannot read the allocation {text}: {why.says}") from why


def intend(text: str, seen: Placement | Gap, tag: str = "", named: int = 0) -> Intended | Gap:
    """Where AReaL's local launcher would put it on the GPUs that ``seen`` is placed on, else on as many as are ``named``. ``tag``: AReaL's,
    the newest known if empty. A Gap where there is a text and no GPU. Raises ValueError for a tag that is none."""
    gpus = 0 if isinstance(seen, Gap) else len({d for d in seen.devices if d is not None})
    rules, count = at(tag) if tag else newest(), gpus or named
    if not text.strip():
        return Intended("", count)
    if not count:
        return Gap("not-run", "no GPU is visible here, or none was looked at: name as many as the job has, --gpus 0 or 0-7")
    try:
        return Intended(text, count, rules.tag, place(parse(text, rules), Site(count)))
    except Refused:
        return Intended(text, count, rules.tag)
