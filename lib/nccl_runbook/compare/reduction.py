"""Which smaller forms of a job to run, in which order, so that the smallest one that fails is found. Pure."""

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

_PLACE = re.compile(r"(?<!\$)\{(\w+)\}")  # ${nodes} is the shell's
MOST = 200  # combinations; more would not end in a day


def axes_of(texts: Iterable[str]) -> dict[str, list[str]]:
    """`nodes=1,2,4` as {"nodes": ["1", "2", "4"]}, smallest first as written. ValueError with one sentence
    for any other form."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        listed = [v for v in values.split(",") if v]
        if (
            not re.fullmatch(r"[A-Za-z_]\w{0,63}", name)
            or not listed
            or len(set(listed)) < len(listed)
            or name in axes
        ):
            raise ValueError(
                f"--axis {text}: write NAME=VALUE,VALUE with each name and value once, such as nodes=1,2,4"
            )
        axes[name] = listed
    if not axes or math.prod(map(len, axes.values())) > MOST:
        raise ValueError(
            f"the axes have more than {MOST} combinations. Use fewer values"
            if axes
            else "name at least one --axis, such as nodes=1,2,4"
        )
    return axes


def smallest_first(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination, each after all that are smaller or equal in every axis. A run that passes ends by
    itself; only a failing one may cost the whole deadline, and in this order that is only the last."""
    places = itertools.product(*(range(len(values)) for values in axes.values()))
    return [
        {name: axes[name][at] for name, at in zip(axes, place, strict=True)}
        for place in sorted(places, key=lambda p: (sum(p), p))
    ]


def check_placeholders(
    command: Sequence[str], axes: Mapping[str, Sequence[str]], scripts: Callable[[str], str] = str
) -> None:
    """ValueError for a {name} that resembles an axis (other braces belong to programs), and for an unused
    axis. ``scripts``: text of the file that a word names."""
    for name in (
        n
        for word in command
        for n in _PLACE.findall(word)
        if n not in axes and difflib.get_close_matches(n, axes, 1, 0.75)
    ):
        raise ValueError(f"{{{name}}} in the command is not an axis. The axes are {', '.join(axes)}")
    text = " ".join([*command, *(text for text in map(scripts, command))])
    for name in (n for n, values in axes.items() if len(values) > 1 and not re.search(rf"\b{n}\b", text)):
        raise ValueError(
            f"every run would be the same, because {name} is not in the command. Write {{{name}}} "
            f"where its value belongs, or read the variable {name} in your script"
        )


def command_for(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The command with each {name} of an axis replaced; other braces stay."""
    return [_PLACE.sub(lambda match: values.get(match[1], match[0]), word) for word in command]
