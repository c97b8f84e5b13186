"""A string that a tag refuses: at which other tags it is valid, and how it is written there and now."""
import re
from collections.abc import Iterator

from nccl_runbook.plan.areal.allocation import Mode, Part, Refused, parse
from nccl_runbook.plan.areal.tags import Rules, rows

# slips of the pen, one after the other: dots, names in round brackets, separators between dims, realhf's m for tensor parallel, capitals
_SLIPS = ((r"\b(sglang|vllm|fsdp|megatron|archon)\.", r"\1:"), (r"\b(sglang|vllm|fsdp|megatron|archon)\((\w+)\)", r"\1[\2]"),
          (r"(?<=\d),(?=[dtpce]\d)", ""), (r"m(?=\d)", "t"))


def of_realhf(text: str) -> str:
    """A string of realhf, whose tensor parallel size is m, as the grammars here write it."""
    return re.sub(_SLIPS[3][0], _SLIPS[3][1], re.sub(_SLIPS[0][0], _SLIPS[0][1], text))


def valid_at(text: str) -> list[Rules]:
    """The rows of tags that take the string as it stands, oldest first."""
    return [rules for rules in rows() if _parsed(text, rules)]


def spans(found: list[Rules]) -> str:
    """Rows in words: "era A (v0.3.2 to v0.4.0)"."""
    eras = dict.fromkeys(r.era for r in found)
    rows_of = {era: [r for r in found if r.era == era] for era in eras}
    return ", ".join(f"era {era} ({own[0].tags[0]} to {own[-1].tags[-1]})" for era, own in rows_of.items())


def written_for(text: str, rules: Rules) -> str:
    """The same allocation as ``rules`` read it, "" where there is none that means the same."""
    for candidate in _candidates(text):
        for row in (rules, *reversed(rows())):
            mode = _parsed(candidate, row)
            told = _write(mode, rules) if mode else ""
            if told and told != text and _parsed(told, rules):
                return told
    return ""


def _parsed(text: str, rules: Rules) -> Mode | None:
    try:
        return parse(text, rules)
    except Refused:
        return None


def _candidates(text: str) -> Iterator[str]:
    yield text
    for pattern, instead in _SLIPS:
        text = re.sub(pattern, instead, text)
        yield text
    yield text.lower()


def _write(mode: Mode, rules: Rules) -> str:
    """The mode in the words of ``rules``; engines first where the era wants it, names where components share or are many."""
    parts = [p for p in mode.parts if p.kind != "eval"]
    sharing = len(parts) > 2 or any(p.anchor is not None for p in parts)
    names = [p.name or ("rollout" if p.kind == "engine" else "actor") * sharing for p in parts]
    if rules.era == "A":
        if len(parts) > 2 or not mode.plain:
            return ""
        parts, names = sorted(parts, key=lambda p: p.kind), [""] * len(parts)
    return "".join(("|" if p.anchor is not None else "+") + _component(p, name, rules) for p, name in zip(parts, names))[1:]


def _component(part: Part, name: str, rules: Rules) -> str:
    heavy = part.size("p") > 1 or part.size("e") > 1 or bool(part.experts)
    backend = "megatron" if part.backend == "fsdp" and rules.fsdp_plain and heavy else part.backend
    named = f"{backend}[{name}]" if name else backend
    dims = "".join(f"{letter}{size}" for letter, size in part.dims.items())
    if part.experts:
        return f"{backend}:(attn:{dims}|ffn:{''.join(f'{letter}{size}' for letter, size in part.experts.items())})"
    return f"{named}:{dims}"
