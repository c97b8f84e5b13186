"""Secrets out of anything that is written. Standard library only, Python >= 3.9.

By value: the values of variables whose name sounds secret. By shape: what secrets.toml lists. Whoever reads a
log, a file or a command line passes it through a ``Redactor`` as raw text. Each mask says what kind it hides.
"""

import collections
import dataclasses
import enum
import functools
import itertools
import json
import os
import re
from typing import Any, Iterator, Mapping, Match, Pattern

from nccl_runbook.core.secret_lines import ESCAPED_LINES, KEY, LINES, bodies, is_prose
from nccl_runbook.core.secret_values import (
    HARMLESS,
    HINTS,
    PHRASE,
    TABLES,
    is_numbered,
    is_secret,
    looks_random,
    mask,
    own_patterns,
    sounds_secret,
    without_blocks,
    written,
)
from nccl_runbook.core.secret_words import LETTERS, is_name, without_made
from nccl_runbook.core.share import compiled, learn, shared

KINDS = {
    "variable": "value of a secret variable",
    "named": "value behind a telling name",
    "token": "token of a known form, or what looks like one",
    "url": "password in a URL",
    "argument": "secret argument of a command",
    "key": "private key",
    "own": "match of your own patterns",
}
OWN_PATTERNS = "NCCL_RUNBOOK_REDACT"  # names the file of --redact, for notebooks and ranks, too
_MASKED = re.compile(r"\[redacted:(%s)\]" % "|".join(KINDS))
_FIELD = re.compile(r"[a-z_]{1,24}")  # a name in a document of ours

_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F][0-9A-F]))"  # of a word, or behind an escape
_TOKENS = {
    word: f"{_START * word[0].isalnum()}{re.escape(word)}(?:{rest}|"
    r"(?=[\w-]{0,40}\d)[\w-]{6,40}(?:\.{3}|\u2026))"  # as a program shows the beginning of a token
    for word, rest in TABLES["token"].items()
}
_BETWEEN = r"(?:\s{1,4}|[\"'],\s{0,4}[\"'])"  # two words of a command, or of a list of its words
_BEFORE_VALUE = [
    (
        word,
        table,
        _START
        + lead.replace(r"[^\n|;&]{0,200}?", r"(?:\\\n|[^\n|;&]){0,200}?")
        .replace(r"\s{1,4}", _BETWEEN)
        .replace(r"\s-", r"[\s\"']-")
        .replace(r"\s(?:-", r"[\s\"'](?:-"),
    )
    for table in ("argument", "sentence", "number")
    for words, lead in TABLES[table].items()
    for word in words.split("|")
]
# up to the last @ before the path; a / in it counts unless a port stands before it, @ and / unless a host
_URL = re.compile(
    r"([a-zA-Z][a-zA-Z0-9+.-]{0,30}://)(?:[^\s/@:\"'<>]{0,256}:(?:[^\s/@\"'<>]{0,256}@"
    r"(?![\w.-]{0,256}(?:\.[a-z]|:\d))[^\s\"'<>]{0,256}(?=@[\w.-]{1,256}(?:\.[a-z]|:\d{2,5}\b))|"
    r"[^\s/\"'<>]{0,256}|(?!\d{1,5}[/?#])[^\s\"'<>]{0,256})|[^\s/@:]{16,256})@"
)
# a quote, as JSON, HTML or a URL writes it inside of a text, too
_QUOTE = r"(?:\\{0,3}[\"']|&(?:quot|#34|#39|#x27);|%2[27])"
# a name and what stands between it and its value: a sign, a blank behind an option, or the other half
# of a {name, value} pair; "PASS: x" is the result of a test
_NAME = re.compile(
    r"(?:(?<![\w.-])(?<!next )(?<!last )(?<!stop )(?<!etc/)(?<!:\d{12}:)|"
    r"(?<=%2[2-7])|(?<=%3[Ff])|(?<=%25(?:2[2-7]|3[Ff])))(?:(?<=\\)[nrt])?"
    r"(?P<option>-{1,2}g?env\s{1,4}|--?|(?:setenv|setx|ENV)\s{1,4})?"
    r"(?P<name>(?!PASS:|(?<=compile )pass\b|(?<=fusion )pass\b)[A-Za-z_][\w.-]*)"
    rf"(?:(?:{_QUOTE}\]?)?(?:>(?=[^\s>]|\n\s{{0,40}}[^\s<>]))?"
    rf"(?:\s{{0,4}}:\s{{0,4}}[\"']?(?:\w{{1,20}}\[)?(?:str|bytes|"
    rf"SecretStr)\]?[\"']?(?=\s{{0,4}}=)|\s\((?:str(?:ing)?|text|secret)\)(?=\s?[:=]))?"
    r"\s{0,8}(?:={1,3}>|:=|-{1,3}>|[+?]?=(?!=)|(?:\*\*)?:(?!\s{0,8}\n\s{0,40}[\w.\"'-]{1,64}:(?:\s|$))(?:(?:\*\*)?\s{1,4}`?)?|(?<=>)|"
    r"&#(?:58|61);|%(?:25)?3[ADad])\s{0,60}(?:-\s{1,4})?(?:(?:&|"
    r"!{1,2})[\w-]{1,20}\s{1,4}(?=\S))?(?:(?:\\|[|>][+-]?)\n\s{0,8})?|"
    r"\\{0,3}[\"']?(?:,\s{0,12}|\s{1,12}(?:#[^\n]{0,200}\s{1,12})?)\\{0,3}[\"']?[Vv]alue\\{0,3}[\"']?\s{0,4}[=:]\s{0,8}|</(?:name|"
    r"key)>\s{0,12}<\w{1,20}>|"
    r"\\{0,3}[\"']\s{0,4},\s{0,4}(?=[bruf]?\\{0,3}[\"'])|(?(option)(?:\s{1,8}(?:\\\n\s{0,20})?(?=[^-\s\\])|"
    r"[\"']?\n\s{0,40}-\s{1,4}[\"']?(?=[^-\s\"'])|[\"']\s{1,8}(?:a\d{1,4}=)?(?=[\"']))|(?!)))"
)
# the name behind the value, as Kubernetes takes it, too
_BELOW = re.compile(
    r"(?i:value)\\{0,3}[\"']?\s{0,4}[=:]\s{0,8}(?=(?P<around>\\{0,3}[\"']?)(?:(?![\"'])[^\n]){1,300}?(?P=around)\s{0,4},?"
    r"\s{1,12}\\{0,3}[\"']?(?i:name|key)\\{0,3}[\"']?\s{0,4}[=:]\s{0,8}\\{0,3}[\"']?(?P<name>[\w.-]{1,200}))"
)
# a name and a gap: a border of columns, or one blank. Then only how the value looks makes it a secret
_GAP = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)(?:(?P<column>[`*\"']{0,2}\s{0,60}(?:[|\u2502\u2503]|\\{1,3}u250[23])\s{0,60}`?|"
    r"\t{1,8}|\s{2,60}"
    r"| ?\.{3,99} |</t[dh]>\s{0,12}<td>|\s{0,4}==\s{0,4})|[ ,;])(?=[^\s|])"
)
_OPENS = r"(?:\w{1,40}\()?[bruf]{0,2}"  # SecretStr(b'
_VALUE = re.compile(
    r"(?:[\[({]\s{0,12}){1,3}(?!redacted:)(?P<listed>[^\[\](){}]{1,4000})|(?:<!\[CDATA\[)?(?:"
    + _OPENS
    + r"(?P<quote>\\{1,3}[\"']|\"{3}|'{3}|&(?:quot|#34|#39|#x27);|"
    r"%2[27])(?P<quoted>(?:(?!(?P=quote))[\s\S]){0,4000})|"
    + _OPENS
    + r"\"(?P<double>(?:[^\"\\]|\\[\s\S]){0,16000}[^\"\n]*)|"
    + _OPENS
    + r"'(?P<single>(?:[^'\\]|\\[\s\S]){0,16000}[^'\n]*)|"
    r"(?P<bare>(?:(?i:bearer|basic|token|digest|negotiate|apikey|splunk)\s{1,4})?"
    r"(?:[^\s\"'`;&,\\<]|,(?!\s|[\w.-]{1,64}[=:])|[\"'](?=[\w!@#$%^*])|<(?!/)|\\(?:\n|(?![nrt\"']))){1,16000}"
    r"(?:(?<=\S{16000})\S*)?(?<![)\]}.,])))"
)  # brackets close around it; groups are repeated 16,000 times, as each costs memory, and the rest goes, too
# what has blanks: a header, in which a cookie may be quoted, and a phrase
_WITH_BLANKS, _HEADER = (
    re.compile(r"(?i)cookie|authorization|headers|phrase$"),
    re.compile(r"(?:[^\"'\n\\]|(?<==)\\{0,3}\"[^\"\n]*\")+"),
)
# and what else a terminal obeys
COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
# no program writes letters this way, but someone who hides a JSON name may
_LETTER = re.compile(r"\\{1,9}u00([46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|3[0-9])")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """The text for a terminal or a page, with every unsafe character replaced: control characters other than
    line ends and tabs, direction marks, and what UTF-8 cannot hold."""
    return _UNPRINTABLE.sub("\ufffd", text)


def escaped(text: str) -> str:
    """JSON text with the same characters, in JSON's own escapes."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def masked(text: str) -> str:
    """Number and kind of the masks in a text ("2 x token"); empty if there are none."""
    return ", ".join(
        f"{number} x {KINDS[kind]}"
        for kind, number in collections.Counter(_MASKED.findall(text)).most_common()
    )


SHORT = 200  # characters: here one search is faster than a hundred, and records hold many such strings
_LEADS = [*(word for word, _, _ in _BEFORE_VALUE), *HINTS]  # a word in which another stands adds nothing
_ANY_LEAD = re.compile("|".join(re.escape(w) for w in _LEADS if not any(o != w and o in w for o in _LEADS)))
_ANY_TOKEN = re.compile("|".join(map(re.escape, _TOKENS)))


def _begun(form: Pattern[str], text: str, line: Match[str]) -> Iterator[Match[str]]:
    """What begins on this line; it may end on one of the next two."""
    return itertools.takewhile(lambda match: match.start() < line.end(), form.finditer(text, *line.span(1)))


def _values(text: str) -> str:
    """The text without what follows a telling name, and without what a command takes for a secret."""
    leads = []
    low = text.encode("latin-1", "replace").lower().decode("latin-1")  # as long as the text
    if len(text) < SHORT and not _ANY_LEAD.search(low):
        return text
    commands = [command for command in _BEFORE_VALUE if command[0] in low]
    hints = [hint for hint in HINTS if hint in low]
    for line in LINES.finditer(low) if commands or hints else ():
        here = line[0]
        leads += [
            (match.end(), table, match)
            for word, table, lead in commands
            if word in here
            for match in _begun(compiled(lead), text, line)
        ]
        if any(map(here.__contains__, hints)):
            leads += [
                (match.end(), "named", match)
                for names in (_NAME, _BELOW)
                for match in _begun(names, text, line)
                if sounds_secret(match["name"][-80:])
            ] + [
                (match.end(), "named", match)
                for match in _begun(_GAP, text, line)
                if sounds_secret(match["name"][-80:]) and looks_random(match)
            ]
    parts, done = [""], 0
    for start, kind, lead in sorted(leads, key=lambda one: one[:2]):
        if start < done or not (value := _VALUE.match(text, start)):
            continue
        begin, end = value.span(value.lastgroup or 0)
        if (
            kind == "named"
            and value["bare"]
            and _WITH_BLANKS.search(lead["name"])
            and (header := (PHRASE if "phrase" in lead["name"].lower() else _HEADER).match(text, begin))
            and not (HARMLESS.fullmatch(value["bare"]) and text[end : end + 2].strip()[:1] in ".)}(")
        ):
            end = header.end()
        whole = text[begin:end]
        is_word = kind == "sentence" and (is_numbered(whole) or is_name(whole, LETTERS))
        if not (is_word or is_prose(lead, value, end)) and any(
            is_secret(lead["name"][-80:], word)
            if kind == "named"
            else kind == "number" or not HARMLESS.fullmatch(word)
            for word in (re.findall(r"[^\s\"',:]+", text[begin:end]) if value["listed"] else [whole])
        ):
            parts += [text[done:begin], mask("named" if kind == "named" else "argument", whole)]
            done = end
    return "".join([*parts, text[done:]])


def clipped(text: str, most: int) -> str:
    """The first ``most`` characters; a longer text is redacted first: half a secret matches no pattern."""
    return text if len(text) <= most else Redactor(os.environ).text(text[: most + 4096])[:most]


class Redactor:
    """Knows the secret values of one environment; immutable, safe to share between threads."""

    def __init__(self, env: Mapping[str, str]) -> None:
        values = {v for name, v in env.items() if len(v) >= 6 and is_secret(name, v)}
        # a key of many lines, in a log that is read line by line
        values |= {line for v in values for line in v.splitlines() if len(line) >= 16}
        self._values = re.compile(
            "|".join("".join(map(written, v)) for v in sorted(values, key=len, reverse=True)) or "(?!)"
        )
        self._own = own_patterns(env[OWN_PATTERNS]) if OWN_PATTERNS in env else []
        self.hidden = functools.lru_cache(maxsize=8192)(
            self._without_secrets
        )  # ranks and files say the same again and again

    def text(self, text: str) -> str:
        """The text with secrets masked, and ``shared``."""
        return shared(self.hidden(text))

    def _without_secrets(self, text: str) -> str:
        text = _LETTER.sub(lambda escape: chr(int(escape[1], 16)), COLOURS.sub("", text))
        for own in self._own:
            text = own.sub(mask("own"), text)
        text = ESCAPED_LINES.sub(
            lambda line: self._masked(line[0].replace("\\n", "\n")).replace("\n", "\\n"), self._masked(text)
        )
        return without_made(text, self.hidden)

    def _masked(self, text: str) -> str:
        """The text without secrets; lines with a prefix are read together without it, then each alone."""
        lines = text.split("\n")
        without_prefix = bodies(lines) if len(lines) > 1 else lines
        if without_prefix == lines:
            return self._without_known(text)
        hidden = self._without_known("\n".join(without_prefix)).split("\n")
        return "\n".join(
            self._without_known(line.removesuffix(body) + hidden_body)
            for line, body, hidden_body in zip(lines, without_prefix, hidden)
        )

    def _without_known(self, text: str) -> str:
        text = self._values.sub(lambda value: mask("variable", value[0]), text)
        text = KEY.sub(lambda key: mask("key", key[0]), text)
        if len(text) >= SHORT or _ANY_TOKEN.search(text):
            for start, token in _TOKENS.items():
                if start in text:
                    text = compiled(token).sub(mask("token"), text)
        return _values(without_blocks(_URL.sub(r"\1" + mask("url") + "@", text) if "://" in text else text))

    def _document(self, text: str) -> str:
        """A text that is JSON itself, with each of its values looked through; any other as a text."""
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text)
        hidden = self._json(whole, "")
        return self.text(text if hidden == whole else json.dumps(hidden, ensure_ascii=False))

    def json(self, value: Any, name: str = "") -> Any:
        """The JSON value or fact with secrets masked in every string; a string under a secret name is masked
        whole."""
        learn(value)
        return self._json(value, name)

    def _json(self, value: Any, name: str) -> Any:
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            if name and is_secret(name, value):
                return mask("named")
            return self._document(value) if value[:1] in ("{", "[") else self.text(value)
        if isinstance(value, dict):
            return {
                k if _FIELD.fullmatch(str(k)) else self._json(k, ""): self._json(v, str(k))
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self._json(v, name) for v in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(value, **self._json(vars(value), ""))
        return value
