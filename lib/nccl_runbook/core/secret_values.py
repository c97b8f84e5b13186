"""Which names and values are secrets."""

import functools
import pkgutil
import re
from typing import Dict, Match

MASK = "[redacted:"  # how every mask begins; its kind and a bracket follow


def _tables() -> Dict[str, Dict[str, str]]:
    """The sections of secrets.toml; each row is one line."""
    parts = re.split(
        r"(?m)^\[(\w+)\]$", (pkgutil.get_data("nccl_runbook.core", "secrets.toml") or b"").decode()
    )
    row = re.compile(r"(?m)^\"?([^\"#\n]+?)\"? = '([^'\n]*)'")
    return {name: dict(row.findall(rows)) for name, rows in zip(parts[1::2], parts[2::2])}


TABLES = _tables()


NAMES = TABLES["name"]


_BETWEEN = r"(?:(?<=[a-z])(?=[A-Z])|{})"  # two words of a name


_WORD = _BETWEEN.format("(?<![A-Za-z])") + f"(?i:{NAMES['word']})" + _BETWEEN.format("(?![A-Za-z])")


_SURE = f"^(?!.*(?i:{NAMES['innocent']}))(?=.*(?i:{NAMES['anywhere']})|.*{_WORD})"


SECRET_NAME = f"(?:{_SURE}|{NAMES['variable']})"


_SECRET_NAME, _SURE_NAME = re.compile(SECRET_NAME), re.compile(_SURE)


_GAP_NAME = re.compile(f"(?!(?i:{NAMES['alone']})$){_SURE}")


HARMLESS = re.compile(f"(?i:{TABLES['value']['harmless']})", re.DOTALL)


_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.~-]{12,}")


_NUMBERED = re.compile(r"(?=[^\s|]{0,99}[A-Za-z])(?=[^\s|]{0,99}\d)[^\s|]{6}")


# more than a word and its number, such as node12
_SHUFFLED = re.compile(
    r"[^\s|]{0,99}?(?=[A-Za-z0-9]{10})(?:[A-Za-z]{1,99}\d{1,99}[A-Za-z]|\d{1,99}[A-Za-z]{1,99}\d)"
)


@functools.lru_cache(maxsize=1024)  # thousands of facts have the same few names
def sounds_secret(name: str) -> bool:
    """Whether a variable of that name usually holds a secret."""
    return bool(_SECRET_NAME.search(name))


def is_secret(name: str, value: str) -> bool:
    """Whether this value under that name is a secret: not a number, a word of a program,
    or what stands for a value."""
    # behind a mask: the rest of a header that was cut short by it
    is_value = (
        re.match(r"\[redacted:\w+\][;,]?\s{0,4}[\w.-]{1,64}=", value)
        if value.startswith(MASK)
        else not HARMLESS.fullmatch(value)
    )
    return (
        bool(is_value) and sounds_secret(name) and bool(_SURE_NAME.search(name) or _RANDOM.fullmatch(value))
    )


def looks_random(lead: Match[str]) -> bool:
    """Whether what stands behind this gap is no word of a sentence or a table: it holds a digit, and after
    a name that a sentence may hold, too, it is no numbered word."""
    name = lead["name"][-80:]
    is_field = lead["column"] or name.isupper() or "passw" in name.lower()
    look = _NUMBERED.match(lead.string, lead.end()) if is_field else _SHUFFLED.match(lead.string, lead.end())
    return bool(look and _GAP_NAME.search(name))
