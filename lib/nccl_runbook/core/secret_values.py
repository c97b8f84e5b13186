"""Which names and values are secrets."""

import functools
import html
import json
import pkgutil
import re
from typing import Dict, List, Match, Pattern
from urllib.parse import quote

from nccl_runbook.core.share import ZEROS

MASK = "[redacted:"  # how every mask begins; its kind and a bracket follow


_SECTIONS = re.split(
    r"(?m)^\[(\w+)\]$", (pkgutil.get_data("nccl_runbook.core", "secrets.toml") or b"").decode()
)
# section of secrets.toml -> name -> value; each row is one line
TABLES: Dict[str, Dict[str, str]] = {
    name: dict(re.findall(r"(?m)^\"?([^\"#\n]+?)\"? = '([^'\n]*)'", rows))
    for name, rows in zip(_SECTIONS[1::2], _SECTIONS[2::2])
}
NAMES = TABLES["name"]


def _whole(form: str) -> str:
    """The expression with the rows that it names."""
    rows = {**NAMES, **TABLES["form"]}
    return re.sub(r"«(\w+)»", lambda part: _whole(rows[part[1]]), form)


MOST_NAME = 80  # the end of a name, which says what it is

HINTS = NAMES["hint"].split("|")

# what hides whole, by a word that it has: private keys and the like, and tokens
WHOLE = {word: ("key", form) for words, form in TABLES["key"].items() for word in words.split("|")}
WHOLE |= {
    word: (
        "token",
        f"{TABLES['form']['start'] * word[0].isalnum()}{re.escape(word)}(?:{rest}|"
        r"(?=[\w-]{0,40}\d)[\w-]{6,40}(?:\.{3}|\u2026))",  # as a program shows the beginning of a token
    )
    for word, rest in TABLES["token"].items()
}
BEFORE_VALUE = [
    (
        word,
        table,
        TABLES["form"]["start"]
        + lead.replace(r"[^\n|;&]{0,200}?", r"(?:\\\n|[^\n|;&]){0,200}?")
        .replace(r"\s{1,4}", r"(?:\s{1,4}|[\"'],\s{0,4}[\"'])")  # also of a list of words
        .replace(r"\s-", r"[\s\"']-")
        .replace(r"\s(?:-", r"[\s\"'](?:-"),
    )
    for table in ("argument", "sentence", "number")
    for words, lead in TABLES[table].items()
    for word in words.split("|")
]
# a row matches no text without its word; here as ``_words_in`` compares them
_WORDS = {
    word: word.lower().translate(ZEROS) for word in (*WHOLE, *HINTS, *(word for word, _, _ in BEFORE_VALUE))
}


# parts of texts, by their names
FORMS = {name: re.compile(_whole(form)) for name, form in TABLES["form"].items()}

OWN_LINES, OWN_CHARACTERS = 200, 16 << 10  # of a file of patterns: each text is searched for each pattern


def lower(text: str) -> str:
    """The text in small letters, as long as it was."""
    return text.encode("latin-1", "replace").lower().decode("latin-1")


@functools.lru_cache(maxsize=8192)  # the lines of thousands of ranks differ in their numbers only
def _words_in(shape: str) -> List[str]:
    return [word for word, shape_of_word in _WORDS.items() if shape_of_word in shape]


def words_in(text: str) -> List[str]:
    """The words of our rows that the text may hold: those that differ from what it says in digits at most."""
    return _words_in(lower(text).translate(ZEROS))


@functools.lru_cache(maxsize=1024)  # thousands of facts have the same few names
def sounds_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret."""
    return any(map(name.lower().__contains__, HINTS)) and bool(FORMS["secret_name"].search(name[-MOST_NAME:]))


def _is_place(name: str, value: str) -> bool:
    """Whether the value is a folder, under a name that may mean one, or says something about a file that is
    the name."""
    is_file = bool(FORMS["file"].search(name))
    is_folder = bool(FORMS["path"].match(value)) and len(FORMS["part"].findall(value)) > 1
    return ((is_file or name[-3:].lower() == "pwd") and is_folder) or (
        is_file
        and (
            bool(FORMS["file"].search(value))
            or not FORMS["numbered"].match(FORMS["line"].sub("", value, count=1))
        )
    )


def is_secret(name: str, value: str) -> bool:
    """Whether the value under this name is a secret, rather than a number, a keyword or a placeholder."""
    return (
        sounds_secret(name)
        and not _is_place(name, value)
        and bool(
            (FORMS["sure"].search(name[-MOST_NAME:]) or FORMS["random"].fullmatch(value))
            and (
                re.match(
                    r"\[redacted:\w+\][;,]?\s{0,4}(?:[\w.-]{1,64}=|(?=\D{0,64}\d)[\w.+/|-]{12})", value
                )  # the rest of a header that it cut short
                if value.startswith(MASK)
                else not FORMS["harmless"].fullmatch(value)
            )
        )
    )


def looks_random(lead: Match[str]) -> bool:
    """Whether the value behind this gap is no ordinary word: it contains a digit, and after a name that also
    occurs in sentences it is not a numbered word. Letters alone count if they fill a cell of a table."""
    name = lead["name"][-MOST_NAME:]
    if lead["column"] or name.isupper() or "passw" in name.lower():
        is_one = bool(
            FORMS["numbered"].match(lead.string, lead.end())
            or (
                lead["column"]
                and set(name) & set("_.-")
                and (cell := FORMS["cell"].match(lead.string, lead.end()))
                and not FORMS["state"].fullmatch(cell["word"])
            )
        )
    else:
        word = (FORMS["first_word"].match(lead.string, lead.end()) or [""])[0]
        is_one = any(
            FORMS["shuffled"].search(part) and not is_numbered(part) for part in FORMS["long"].findall(word)
        )
    return is_one and bool(FORMS["gap_name"].search(name))


def is_numbered(word: str) -> bool:
    """Whether this is words and numbers, as names of layers are (encoder1layer2weights3). So look,
    of random lowercase letters and digits, 11 % (16 characters) to 4 % (40); hexadecimal ones do not."""
    words = re.findall("[A-Z]?[a-z]+", word)
    return (
        not FORMS["odd"].search(word)
        and sum(map(len, words)) >= (4 if len(words) > 2 else 6) * len(words) > 0
    )


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
    """The expressions of a file, one a line. ValueError if the file is too large, or names the line of one
    that is invalid or may take for ever; OSError if unreadable."""
    patterns = []
    with open(path, encoding="utf-8") as file:
        lines = file.read(OWN_CHARACTERS + 1).split("\n")
    if len(lines) > OWN_LINES or sum(map(len, lines)) > OWN_CHARACTERS:
        raise ValueError(f"the file has more than {OWN_LINES} lines or {OWN_CHARACTERS >> 10} KiB")
    for number, line in enumerate(lines, 1):
        if re.search(r"([*+]|\{\d*,\})\)(?:[*+]|\{\d*,\})", line):
            raise ValueError(f"line {number}: {line.strip()} repeats a repetition, which may take for ever")
        try:
            patterns += [re.compile(line)] if line.strip() else []
        except re.error as error:
            raise ValueError(f"line {number}: {line.strip()} is not a regular expression ({error})") from None
    return patterns


def without_blocks(text: str) -> str:
    """The text without the values of sections, blocks and lists that are named as secrets."""
    return FORMS["section"].sub(
        lambda block: (
            block["head"]
            + FORMS["pair"].sub(
                lambda pair: (
                    pair[0]
                    if FORMS["plain_name"].search(pair["name"])
                    or FORMS["harmless"].fullmatch(pair["value"])
                    or (block["unsure"] and not FORMS["random"].fullmatch(pair["value"].lstrip("/.~")))
                    else pair["lead"] + mask("named")
                ),
                block["body"],
            )
        ),
        FORMS["list"].sub(
            lambda named: FORMS["long_value"].sub(
                lambda word: (
                    mask("named")
                    if any(
                        FORMS["shuffled"].search(piece) and not is_numbered(piece)
                        for piece in re.findall("[A-Za-z0-9]{16,}", word[0])
                    )
                    else word[0]
                ),
                named[0],
            ),
            text,
        ),
    )
