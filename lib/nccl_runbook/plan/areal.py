"""AReaL's allocation strings: what a tag makes of one, or why it refuses it. Nothing is placed on a GPU yet.

Grammar and arithmetic as in areal/api/alloc_mode.py at the tags of plan/areal.toml. The class of an error
is the one that AReaL raises, decided in the order in which it looks: syntax, then the components from left
to right, then what they are together.

And of a string that a tag refuses: at which other tags it is valid, and how it is written there
and now. Which grammar reads a string at each tag, what follows from that, and how its weight
update is switched: areal.toml.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lark import Lark, LarkError, Token, Tree

from nccl_runbook.plan.allocation.areal_rules import Rules

MOST_CHARACTERS = 1000
SYNTAX, INVALID, SIZES = "ValueError", "AllocationValidationError", "InvalidAllocationModeError"
# slips of the pen, one after the other: dots, names in round brackets, separators between dims, realhf's
# m for tensor parallel, capitals
SLIPS = (
    (r"\b(sglang|vllm|fsdp|megatron|archon)\.", r"\1:"),
    (r"\b(sglang|vllm|fsdp|megatron|archon)\((\w+)\)", r"\1[\2]"),
    (r"(?<=\d),(?=[dtpce]\d)", ""),
    (r"m(?=\d)", "t"),
)


@dataclasses.dataclass(eq=False)
class Refused(Exception):
    """AReaL refuses the string. ``error``: the class that it raises; ``says``: why, in words; ``column``:
    position of the error from 1, or 0."""

    error: str
    says: str
    column: int = 0


@dataclasses.dataclass(frozen=True)
class Part:
    """One component. ``kind``: engine, trainer or eval; ``dims``: d, t, p, c, e as written, the last of
    equals; ``experts``: those of ffn; ``anchor``: index of the component whose GPUs it shares, or None."""

    kind: str
    backend: str
    name: str | None
    dims: Mapping[str, int]
    experts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    explicit: bool = True
    anchor: int | None = None

    def size(self, letter: str) -> int:
        """Size of a dimension (d, t, p, c, e); 1 if not written."""
        return self.dims.get(letter, 1)

    @property
    def world_size(self) -> int:
        """Number of ranks: d·t·p·c. Experts fold into them."""
        return 0 if self.kind == "eval" else _product(self.dims, "dtpc")

    @property
    def alloc_size(self) -> int:
        """Number of GPUs that it adds; 0 if it shares."""
        return self.world_size if self.anchor is None else 0

    @property
    def instance_size(self) -> int:
        """GPUs of one server (one worker of a controller)."""
        return _product(self.dims, "tp")


def part(
    kind: str, backend: str, name: str, replicas: int, tensor: int = 1, anchor: int | None = None
) -> Part:
    """A component of another framework: data parallel ``replicas``, tensor parallel size, anchor."""
    return Part(kind, backend, name, {"d": replicas, "t": tensor}, anchor=anchor)


@dataclasses.dataclass(frozen=True)
class Mode:
    """A string that parses: its components, and AReaL's ``type`` (None if reading it raises AttributeError).
    ``scheduled``: anchors come from a scheduling_strategy, which a scheduler follows, not from "|" in a
    string."""

    parts: tuple[Part, ...]
    type: str | None
    scheduled: bool = False

    def of(self, kind: str) -> list[Part]:
        """Components of this kind, in order."""
        return [p for p in self.parts if p.kind == kind]

    @property
    def total_gpus(self) -> int:
        """GPUs of all components together."""
        return sum(p.alloc_size for p in self.parts)

    @property
    def plain(self) -> bool:
        """Whether there is at most one engine and one trainer, which is all that AReaL's launchers can
        start."""
        return len(self.of("engine")) <= 1 and len(self.of("trainer")) <= 1

    @property
    def shares(self) -> bool:
        """Whether components with an anchor share its GPUs. No launcher reads "|" between one engine and one
        trainer."""
        return self.scheduled or not self.plain


def parse(text: str, rules: Rules) -> Mode:
    """The mode that this tag makes of ``text``. Raises Refused."""
    if len(text) > MOST_CHARACTERS:
        raise Refused(SYNTAX, f"the string is longer than {MOST_CHARACTERS} characters")
    tree = _tree(text, rules)
    taken: set[str] = set()
    if any(getattr(t, "type", "") == "EVAL" for t in tree.children):
        engine = dataclasses.replace(_part(tree.children[0], rules, taken), name=None)
        return Mode(
            (engine, *([Part("eval", "cpu", None, {})] if rules.era != "A" else [])), "DECOUPLED_EVAL"
        )
    parts: list[Part] = []
    for group in tree.children:
        parts += _joined([_part(node, rules, taken) for node in group.children], len(parts), rules)
    unnamed = [p for p in parts if p.name is None]
    if len(parts) >= 3 and len(tree.children) > 1 and unnamed:
        raise Refused(
            INVALID,
            f"if there are three components or more, all must have names, but {len(unnamed)} have none",
        )
    bare = [p for p in parts if p.kind == "trainer" and not p.explicit]
    if len(bare) > 1 and len(tree.children) > 1 and any(p.name is None for p in bare):
        raise Refused(INVALID, "several trainers without a backend must all have names")
    return Mode(tuple(parts), _type(parts))


def from_roles(specs: Mapping[str, str], shares: Mapping[str, str], rules: Rules) -> Mode:
    """The mode of a configuration with a string for each role (since v1.0.3). ``shares``: role -> role whose
    GPUs it uses. Raises Refused."""
    parts = []
    for role, spec in specs.items():
        if "+" in spec:
            raise Refused(SYNTAX, f'{role}.backend takes one component, without "+"')
        own = parse(spec, rules).parts
        if len(own) != 1:
            raise Refused(SYNTAX, f"{role}.backend holds {len(own)} components instead of one")
        parts.append(dataclasses.replace(own[0], name=role))
    index = {p.name: i for i, p in enumerate(parts)}
    target = {role: shares[role] for role in index if shares.get(role) in index}
    for role in target:
        root = role
        for _ in target:
            root = target.get(root, root)
        if root in target:  # areal/infra/scheduler/local.py at v1.0.4: the named role has no workers yet
            raise Refused(
                "WorkerNotFoundError",
                f"{role} shares the GPUs of {target[role]}, which has no GPUs of its own, so the "
                "references form a circle",
            )
        parts[index[role]] = dataclasses.replace(parts[index[role]], anchor=index[root])
    return Mode(tuple(parts), _type(parts), scheduled=True)


@functools.cache
def _parser(name: str) -> Lark:
    return Lark((Path(__file__).parent / "allocation" / name).read_text(encoding="utf-8"), parser="earley")


def _tree(text: str, rules: Rules) -> Tree:
    try:
        tree = _parser("areal_a.lark" if rules.era == "A" else "areal_b.lark").parse(text)
    except LarkError as error:
        raise Refused(
            SYNTAX, _stops(text, getattr(error, "column", 0)), max(0, getattr(error, "column", 0))
        ) from error
    for token in tree.scan_values(lambda t: getattr(t, "type", "") in ("TRAINER", "EVAL")):
        if (token.type == "TRAINER" and token not in rules.trainers) or (
            token.type == "EVAL" and not rules.eval
        ):
            raise Refused(SYNTAX, f"{rules.tag} does not know {token!s}", token.column)
    return tree


def _stops(text: str, column: int) -> str:
    if column < 1:
        return "the string ends too early" if text.strip() else "the string is empty"
    return f"unexpected {text[column - 1]!r} at character {column}"


def _part(node: Tree, rules: Rules, taken: set[str]) -> Part:
    """A component out of the tree, and what AReaL checks about each. ``taken``: names of those before it, to
    which its own is added."""
    tokens = {t.type: str(t) for t in node.children if isinstance(t, Token)}
    below = [t for t in node.children if isinstance(t, Tree)]
    part = (
        _trainer(tokens, below, rules)
        if node.data == "train"
        else Part("engine", tokens["ENGINE"], tokens.get("NAME"), _dims(below))
    )
    if part.name in taken:
        raise Refused(INVALID, f"two components are named {part.name}")
    taken |= {part.name} - {None}
    experts = part.experts.get("e", part.size("e"))
    if rules.fsdp_plain and part.backend == "fsdp" and (part.size("p") > 1 or experts > 1):
        raise Refused(
            INVALID,
            "fsdp accepts only d (data), t (tensor) and c (context parallelism); p (pipeline) and e "
            "(expert parallelism) need megatron",
        )
    if part.backend == "archon" and not rules.archon_pipeline and part.size("p") > 1:
        raise Refused(INVALID, "archon does not support p at this tag")
    return part


def _trainer(tokens: Mapping[str, str], below: Sequence[Tree], rules: Rules) -> Part:
    bare, hybrid = "TRAINER" not in tokens, below[0].data == "hybrid"
    if rules.era == "C" and bare and not hybrid:
        raise Refused(INVALID, "a trainer must name its backend, such as fsdp:d4")
    dims, experts = _hybrid(below[0], rules) if hybrid else (_dims(below), {})
    group, world = _product(dims, "pet" if rules.expert_tensor == "tensor" else "pe"), _product(dims, "dtpc")
    if dims.get("e", 1) > 1 and world % group:  # AReaL asserts it, which surfaces as ValueError
        raise Refused(
            SYNTAX,
            f"{world} GPUs is not a multiple of an expert group's {group} GPUs "
            f"({'p·t·e' if rules.expert_tensor == 'tensor' else 'p·e'})",
        )
    if rules.era == "C" and bare:
        raise Refused(
            INVALID, "a trainer with attn and ffn must name its backend, such as megatron:(attn:d4|ffn:e4)"
        )
    return Part(
        "trainer",
        tokens.get(
            "TRAINER", "megatron" if (hybrid or dims.get("p", 1) > 1 or dims.get("e", 1) > 1) else "fsdp"
        ),
        tokens.get("NAME"),
        dims,
        experts,
        not bare,
    )


def _hybrid(node: Tree, rules: Rules) -> tuple[dict[str, int], dict[str, int]]:
    attn, ffn = (_dims([t for t in node.children if t.data == kind]) for kind in ("attn_dim", "ffn_dim"))
    pipeline, world = attn.get("p", 1), _product(attn, "dtpc")
    if ffn.get("p", pipeline) != pipeline:
        raise Refused(INVALID, f"p must be the same for attn ({pipeline}) and ffn ({ffn['p']})")
    rest = (
        pipeline * ffn.get("t", attn.get("t", 1) if rules.expert_tensor == "tensor" else 1) * ffn.get("e", 1)
    )
    if "d" not in ffn and rules.expert_data == "derived":
        if world % rest:
            raise Refused(
                INVALID, f"ffn's d cannot be computed: attn's {world} GPUs are no multiple of {rest} (p·t·e)"
            )
    elif ffn.get("d", attn.get("d", 1)) * rest != world:
        raise Refused(
            SIZES,
            f"attn has {world} GPUs and ffn {ffn.get('d', attn.get('d', 1)) * rest}, but both must "
            "have the same number",
        )
    return attn, ffn


def _joined(parts: Sequence[Part], at: int, rules: Rules) -> list[Part]:
    """Components joined by "|"; the first is the anchor, and ``at`` its index in the whole. In era A there
    are two, and none has a name."""
    for part in parts[1:]:
        if part.name is None and rules.era != "A":
            raise Refused(INVALID, 'components joined by "|" must have names, such as fsdp[actor]:d4')
        if part.world_size != parts[0].world_size:
            joined = 'both sides of "|"' if rules.era == "A" else 'components joined by "|"'
            raise Refused(
                INVALID,
                f"{joined} must be equally large: {parts[0].world_size} and {part.world_size} GPUs",
            )
    return [dataclasses.replace(p, anchor=at if i else None) for i, p in enumerate(parts)]


def _product(dims: Mapping[str, int], letters: str) -> int:
    return math.prod(dims.get(letter, 1) for letter in letters)


def _dims(nodes: Sequence[Tree]) -> dict[str, int]:
    """Letter to size; of a letter that is repeated the last one counts."""
    return {str(node.children[0]): int(node.children[1]) for node in nodes}


def _type(parts: Sequence[Part]) -> str | None:
    kinds = [p.kind for p in parts]
    if len(parts) == 1:
        return "LLM_SERVER_ONLY" if kinds == ["engine"] else "COLOCATE"
    if sorted(kinds) != ["engine", "trainer"]:
        return None
    return "COLOCATE" if any(p.anchor is not None for p in parts) else "DECOUPLED_TRAIN"
