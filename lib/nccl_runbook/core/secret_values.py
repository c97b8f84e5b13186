"""Which names and values are secrets."""

import functools
import html
import json
import pkgutil
import re
from pathlib import Path
from typing import Dict, List, Match, Pattern
from urllib.parse import quote

MASK = "[redacted:"  # how every mask begins; its kind and a bracket follow


def _tables() -> Dict[str, Dict[str, str]]:
    """The sections of secrets.toml; each row is one line."""
    parts = re.split(
        r"(?m)^\[(\w+)\]$", (pkgutil.get_data("nccl_runbook.core", "secrets.toml") or b"").decode()
    )
    return {
        name: dict(re.findall(r"(?m)^\"?([^\"#\n]+?)\"? = '([^'\n]*)'", rows))
        for name, rows in zip(parts[1::2], parts[2::2])
    }


TABLES = _tables()


NAMES = TABLES["name"]


# a word of a name stands between others, or between signs and capital letters
_SURE = (
    f"^(?!.*(?i:{NAMES['innocent']}))(?=.*(?i:{NAMES['anywhere']})|"
    rf".*(?:(?<=[a-z])(?=[A-Z])|(?<![A-Za-z]))(?i:{NAMES['word']})(?:(?<=[a-z])(?=[A-Z])|(?![A-Za-z])))"
)


SECRET_NAME = f"(?:{_SURE}|{NAMES['variable']})"


MOST_NAME = 80  # the end of a name, which says what it is
_SECRET_NAME, _SURE_NAME = re.compile(SECRET_NAME), re.compile(_SURE)


HINTS = NAMES["hint"].split("|")


_FILE = re.compile(f"(?i:{NAMES['file']})")
_GAP_NAME = re.compile(f"(?!(?i:{NAMES['alone']})$)(?!.*(?i:{NAMES['file']})){_SURE}")


HARMLESS = re.compile(f"(?i:{TABLES['value']['harmless']})", re.DOTALL)


_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.~-]{12,}")


# a word with a number in it; and a phrase of words up to the end of its line
NUMBERED, PHRASE = (
    re.compile(r"(?=[^\s|]{0,99}[A-Za-z])(?=[^\s|]{0,99}\d)[^\s|]{6}"),
    re.compile(
        r"(?!(?:not|is|was|the|for|see|must|in|to)\s)[a-z]{2,20}(?: [a-z0-9]{1,20}){1,30}(?=\s*(?:[#\n]|$))"
    ),
)


# a section or a block of secrets as INI, TOML, YAML and JSON have it; its values have names of their own
_BLOCK = re.compile(
    r"(?m)^(?P<head>(?P<indent>[ \t]{0,40})(?:(?:[^\n]{0,100}?[\"'=: ])?\[{1,2}[^\[\]\n]{0,64}?(?i:"
    + NAMES["block"]
    + r"|(?P<unsure>"
    + NAMES["unsure"]
    + r"))[\"']?\]{1,2}"
    r"(?P<section>)|(?:-[ \t])?[\"']?(?:[\w.-]{0,64}?(?i:"
    + NAMES["block"]
    + r")|kind:[ \t]{0,4}[\"']?(?:Sealed)?"
    r"Secret\b[^\n]*\n(?:[^\n]+\n){0,30}?data)[\"']?[ \t]?:[ \t]?\{?)(?:[ \t\r]|\\{1,3}r?){0,8}\n)"
    r"(?P<body>(?(section)(?:(?![ \t]{0,40}\[)[^\n]+\n?|\n)|(?P=indent)[ \t][^\n]*\n?){1,200})"
)


_PAIR = re.compile(
    r"(?m)^(?P<lead>[ \t]{0,80}(?:-[ \t])?[\"']?(?P<name>[\w./-]{1,64})"
    r"[\"']?[ \t]{0,40}[:=][ \t]{0,40}(?:\\{0,3}[\"'])?)"
    r"(?P<value>[^\s\"'#{\[|>&][^\"'\n]{0,4000}?)(?=\\{0,3}[\"']|[\\,)}\] \t\r]{0,12}(?:#[^\n]*)?$)"
)


_PLAIN_NAME = re.compile(f"(?i:{NAMES['innocent']}|^(?:{NAMES['beside']})$)")


# more than a word and its number, such as node12
SHUFFLED = re.compile(r"[A-Za-z]\d{1,99}[A-Za-z]|\d[A-Za-z]{1,99}\d")
# what no name of a layer holds
_ODD = re.compile(r"(?i:[bcdfghjklmnpqrstvwxz]{5})|[A-Z](?![a-z])|\d{5}|^\d|[^A-Za-z0-9]")
# a cell of letters only, beside a name of two words or more
_CELL = re.compile(
    r"(?m)(?P<word>[A-Za-z]{8,64})[`\"'})]{0,4}[ \t]{0,60}(?:[|\u2502\u2503]|\\{1,3}u250[23]|</t|\r?$)"
)
# what such a cell says about it; of random letters, 1 in 100
_STATE = re.compile(
    r"(?i)(?:not|un|no|is|from|via|see|use|in|dis|pre|auto)[a-z]+|[a-z]+(?:ed|ing|able|less|only|ive|ory)"
)
_VALUE_WORD, _LONG = re.compile(r"[^\s|]{0,199}"), re.compile("[A-Za-z0-9]{10,199}")


# a folder, and its parts that are words; behind a file, grep prints the number of a line
PATH, _PART, _LINE = (
    re.compile(r"(?:~|\.{0,2})/"),
    re.compile(r"/[A-Z]?[a-z_-]{2,99}(?![^/])"),
    re.compile(r"(?:\d{1,9}:)*"),
)
# a list of secrets (`tokens: [a, b]`, `api_keys:` and items below), and a value on the line below its name;
# of vocabularies and layers, which are lists of that name, too, no word mixes letters and digits so long
_LIST, _LONG_VALUE = (
    re.compile(
        r"(?mi)^[ \t]{0,40}(?:export[ \t]|-[ \t])?[\"']?[\w .-]{0,64}?(?:token|"
        + "".join(f"(?<!{kind}[ _.-])" for kind in NAMES["key"].split("|"))
        + r"key|secret|password|credential|passcode|jwt)"
        r"(?:s?:?[ \t]{0,8}(?:\n[ \t]{0,60}[\w+/=-]{12,200}[ \t\r]{0,8}$){1,200}|"
        r"s[\"']?[ \t]?[:=][^\n]*(?:\n[ \t]{0,60}(?:[-*]|\d{1,3}[.)])[ \t][^\n]*){0,200})"
    ),
    re.compile(r"(?<![\w./~+-])[A-Za-z0-9][\w+/-]{15,199}={0,2}"),
)


@functools.lru_cache(maxsize=1024)  # thousands of facts have the same few names
def sounds_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return any(map(name.lower().__contains__, HINTS)) and bool(_SECRET_NAME.search(name[-MOST_NAME:]))


def _is_place(name: str, value: str) -> bool:
    """Whether the value is a folder, under a name that may mean one, or says something about a file that is
    the name."""
    is_file = bool(_FILE.search(name))
    is_folder = bool(PATH.match(value)) and len(_PART.findall(value)) > 1
    return ((is_file or name[-3:].lower() == "pwd") and is_folder) or (
        is_file and (bool(_FILE.search(value)) or not NUMBERED.match(_LINE.sub("", value, count=1)))
    )


def is_secret(name: str, value: str) -> bool:
    """Whether the value under this name is a secret, rather than a number, a keyword or a placeholder."""
    return (
        not _is_place(name, value)
        and sounds_secret(name)
        and bool(
            (_SURE_NAME.search(name[-MOST_NAME:]) or _RANDOM.fullmatch(value))
            and (
                re.match(
                    r"\[redacted:\w+\][;,]?\s{0,4}(?:[\w.-]{1,64}=|(?=\D{0,64}\d)[\w.+/|-]{12})", value
                )  # the rest of a header that it cut short
                if value.startswith(MASK)
                else not HARMLESS.fullmatch(value)
            )
        )
    )


def looks_random(lead: Match[str]) -> bool:
    """Whether the value behind this gap is no ordinary word: it contains a digit, and after a name that also
    occurs in sentences it is not a numbered word. Letters alone count if they fill a cell of a table."""
    name = lead["name"][-MOST_NAME:]
    if lead["column"] or name.isupper() or "passw" in name.lower():
        is_one = bool(
            NUMBERED.match(lead.string, lead.end())
            or (
                lead["column"]
                and set(name) & set("_.-")
                and (cell := _CELL.match(lead.string, lead.end()))
                and not _STATE.fullmatch(cell["word"])
            )
        )
    else:
        word = (_VALUE_WORD.match(lead.string, lead.end()) or [""])[0]
        is_one = any(SHUFFLED.search(part) and not is_numbered(part) for part in _LONG.findall(word))
    return is_one and bool(_GAP_NAME.search(name))


def is_numbered(word: str) -> bool:
    """Whether this is words and numbers, as names of layers are (encoder1layer2weights3). So look,
    of random lowercase letters and digits, 11 % (16 characters) to 4 % (40); hexadecimal ones do not."""
    words = re.findall("[A-Z]?[a-z]+", word)
    return not _ODD.search(word) and sum(map(len, words)) >= (4 if len(words) > 2 else 6) * len(words) > 0


def written(character: str) -> str:
    """An expression for the ways in which a character is written: as itself, or as JSON, Python,
    a shell, a URL or HTML has it."""
    if character.isascii() and character.isalnum():
        return character
    plain = {
        character,
        "\\" + character,
        json.dumps(character)[1:-1],
        character.encode("unicode_escape").decode(),
        quote(character, safe="", errors="replace"),
        "'\"'\"'" if character == "'" else character,
    }
    marked = plain | {html.escape(p, quotes) for p in plain for quotes in (True, False)}
    marked |= {m.replace("&#x27;", "&#39;").replace("&quot;", "&#34;") for m in marked}
    return "(?:" + "|".join(map(re.escape, sorted(marked, key=len, reverse=True))) + ")"


def mask(kind: str, secret: str = "") -> str:
    """The text that replaces a secret of this kind, with its line ends: no line changes its place."""
    return f"{MASK}{kind}]" + "\n" * secret.count("\n")


def own_patterns(path: str) -> List[Pattern[str]]:
    """The expressions of a file, one a line. ValueError names the line of an invalid one; OSError if
    unreadable."""
    patterns = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
        try:
            patterns += [re.compile(line)] if line.strip() else []
        except re.error as error:
            raise ValueError(
                f"{path}, line {number}: {line.strip()} is not a regular expression ({error})"
            ) from None
    return patterns


def without_blocks(text: str) -> str:
    """The text without the values of sections, blocks and lists that are named as secrets."""
    return _BLOCK.sub(
        lambda block: (
            block["head"]
            + _PAIR.sub(
                lambda pair: (
                    pair[0]
                    if _PLAIN_NAME.search(pair["name"])
                    or HARMLESS.fullmatch(pair["value"])
                    or (block["unsure"] and not _RANDOM.fullmatch(pair["value"].lstrip("/.~")))
                    else pair["lead"] + mask("named")
                ),
                block["body"],
            )
        ),
        _LIST.sub(
            lambda named: _LONG_VALUE.sub(
                lambda word: (
                    mask("named")
                    if any(
                        SHUFFLED.search(piece) and not is_numbered(piece)
                        for piece in re.findall("[A-Za-z0-9]{16,}", word[0])
                    )
                    else word[0]
                ),
                named[0],
            ),
            text,
        ),
    )
