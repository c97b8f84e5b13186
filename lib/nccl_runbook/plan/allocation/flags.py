"""A launch line: its options and environment."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.machine.visible_devices import read_selection
from nccl_runbook.plan.groups import Pool


@dataclasses.dataclass(frozen=True)
class Launch:
    """What one launch says: flags by name, and the GPUs visible to trainer and server."""

    framework: str
    flags: Mapping[str, Sequence[str]]
    text: str
    trainer_sees: tuple[int, ...]
    server_sees: tuple[int, ...]

    @property
    def row(self) -> Mapping[str, Any]:
        """The framework's row of flags.toml (its head explains the fields)."""
        return table("plan/flags")[self.framework]

    def value(self, field: str) -> str:
        """The flag behind a field, as text: as given ("true" for a bare flag), else its default, else
        empty."""
        named = {n: f["default"] for n, f in self.row["flags"].items() if f["field"] == field}
        return (
            [next(iter(self.flags[name]), "true") for name in named if name in self.flags]
            or [str(default) for default in named.values()]
            or [""]
        )[0]

    def number(self, field: str) -> int:
        """The value of a field; several values are added, as open-instruct does. ValueError if it is no
        number."""
        return sum(self.numbers(field))

    def numbers(self, field: str) -> list[int]:
        """All whole numbers of a field, for flags with several values. ValueError for anything but
        numbers."""
        values = self._checked(field, r"\d{1,5}(?![^\s,])")
        return [*map(int, re.findall(r"\d+", re.match(r"(\d{1,5}(?![^\s,])[\s,]*)+", values)[0]))]

    def pool(self, role: str) -> Pool:
        """The nodes of a role. ValueError if a size is no number."""
        return Pool(self.number(f"{role}_nodes"), self.number(f"{role}_per_node"))

    def above_zero(self, field: str) -> bool:
        """Whether a coefficient is above zero. ValueError if it is no number."""
        return float(self._checked(field, r"[+-]?(\d{1,9}\.?\d{0,99}|\.\d{1,99})([eE][+-]?\d{1,3})?$")) > 0

    def _checked(self, field: str, form: str) -> str:
        name = next((n for n in self.flags if self.row["flags"].get(n, {}).get("field") == field), "")
        values = " ".join(self.flags[name]) if name else self.value(field)
        if not re.match(form, values):
            raise ValueError(f"{name or field} is {values!r}, which cannot be resolved to a number")
        return values

    def on(self, field: str) -> bool:
        """Whether a switch is on (true, 1 or yes)."""
        return self.value(field).lower() in ("true", "1", "yes")


def merged(
    framework: str, commands: Sequence[tuple[str, Mapping[str, Sequence[str]], Mapping[str, str]]], gpus: int
) -> Launch:
    """One launch from (text, flags, environment) of each command of a script. TRL's server and trainer each
    see their own GPUs. ValueError if none of the flags is known: defaults alone are no plan."""
    flags: dict[str, Sequence[str]] = {}
    sees: dict[bool, tuple[int, ...]] = {}
    for text, own, env in commands:
        serves = re.search(r"vllm[-_]serve(?!r)", text) is not None  # and not --vllm_server_host
        if own or serves:
            flags |= own
            sees[serves] = _visible(
                " ".join(own.get("gpu_ids", ())) or env.get("CUDA_VISIBLE_DEVICES", ""), gpus
            )
    if not set(flags) & set(table("plan/flags")[framework]["flags"]):
        raise ValueError(f"the command starts {framework}, but has no flag that places its ranks")
    if framework == "trl" and True in sees:
        flags.setdefault("vllm_mode", ("server",))
        if False not in sees:  # the trainer is started elsewhere
            flags["num_processes"] = ("0",)
    everything = _visible("", gpus)
    return Launch(
        framework,
        flags,
        "\n".join(text for text, _, _ in commands),
        trainer_sees=sees.get(False, everything),
        server_sees=sees.get(True, everything),
    )


def _visible(value: str, gpus: int) -> tuple[int, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows; all if it holds no numbers."""
    return (
        read_selection(value, [Gap("not-run")] * gpus).shown
        if re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", value)
        else tuple(range(gpus))
    )
