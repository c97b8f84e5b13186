"""Under which tags an allocation string is valid, and how another tag writes it."""

import contextlib
import itertools
import re

from nccl_runbook.plan.allocation.areal_rules import Rules, rows
from nccl_runbook.plan.areal import SLIPS, Mode, Part, Refused, parse


def of_realhf(text: str) -> str:
    """A string of realhf, whose tensor parallel size is m, in the spelling of the grammars here."""
    return re.sub(SLIPS[3][0], SLIPS[3][1], re.sub(SLIPS[0][0], SLIPS[0][1], text))


def valid_at(text: str) -> list[Rules]:
    """Rows whose tags accept the string unchanged, oldest first."""
    return [rules for rules in rows() if _parsed(text, rules)]


def written_for(text: str, rules: Rules) -> str:
    """The same allocation as ``rules`` read it, with as few corrections as possible; empty if none means the
    same."""
    mended = [*itertools.accumulate(SLIPS, lambda so_far, slip: re.sub(*slip, so_far), initial=text)]
    modes = (
        _parsed(candidate, row)
        for candidate in (*mended, mended[-1].lower())
        for row in (rules, *reversed(rows()))
    )
    return next(
        (
            written
            for written in (_write(mode, rules) for mode in modes if mode)
            if written and written != text and _parsed(written, rules)
        ),
        "",
    )


def _parsed(text: str, rules: Rules) -> Mode | None:
    with contextlib.suppress(Refused):
        return parse(text, rules)
    return None


def _write(mode: Mode, rules: Rules) -> str:
    """The mode in the words of ``rules``; engines first where the era wants it, names where
    components share or are many."""
    parts = [p for p in mode.parts if p.kind != "eval"]
    sharing = len(parts) > 2 or any(p.anchor is not None for p in parts)
    names = [p.name or ("rollout" if p.kind == "engine" else "actor") * sharing for p in parts]
    if rules.era == "A":
        if len(parts) > 2 or not mode.plain:
            return ""
        parts, names = sorted(parts, key=lambda p: p.kind), [""] * len(parts)
    return "".join(
        ("|" if p.anchor is not None else "+") + spelt(p, name, rules) for p, name in zip(parts, names)
    )[1:]


def spelt(part: Part, name: str, rules: Rules) -> str:
    """One component as ``rules`` spell it."""
    backend = (
        "megatron"
        if part.backend == "fsdp"
        and rules.fsdp_plain
        and (part.size("p") > 1 or part.size("e") > 1 or bool(part.experts))
        else part.backend
    )
    dims, experts = (
        "".join(f"{letter}{size}" for letter, size in own.items()) for own in (part.dims, part.experts)
    )
    if experts:
        return f"{backend}:(attn:{dims}|ffn:{experts})"
    return f"{backend}[{name}]:{dims}" if name else f"{backend}:{dims}"
