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
from typing import Any, Collection, Iterator, Mapping, Match, Pattern, Tuple

from nccl_runbook.core.secret_lines import ESCAPED_LINES, KEY_LINE, LINES, bodies, is_prose
from nccl_runbook.core.secret_values import (
    BEFORE_VALUE,
    FORMS,
    HINTS,
    WHOLE,
    is_numbered,
    is_secret,
    looks_random,
    lower,
    mask,
    own_patterns,
    sounds_secret,
    without_blocks,
    words_in,
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


def plain(text: str) -> str:
    """The text for a terminal or a page, with every unsafe character replaced: control characters other than
    line ends and tabs, direction marks, and what UTF-8 cannot hold."""
    return FORMS["unprintable"].sub("\ufffd", text)


def escaped(text: str) -> str:
    """JSON text with the same characters, in JSON's own escapes."""
    return FORMS["unprintable"].sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def masked(text: str) -> str:
    """Number and kind of the masks in a text ("2 x token"); empty if there are none."""
    return ", ".join(
        f"{number} x {KINDS[kind]}"
        for kind, number in collections.Counter(_MASKED.findall(text)).most_common()
    )


def _begun(form: Pattern[str], text: str, line: Match[str]) -> Iterator[Match[str]]:
    """What begins on this line; it may end on one of the next two."""
    return itertools.takewhile(lambda match: match.start() < line.end(), form.finditer(text, *line.span(1)))


def _values(text: str, words: Collection[str]) -> str:
    """The text without what follows a telling name, and without what a command takes for a secret. ``words``:
    those of our rows that it may hold."""
    leads = []
    low = lower(text)
    commands = [command for command in BEFORE_VALUE if command[0] in words]
    hints = [hint for hint in HINTS if hint in words]
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
                for names in (FORMS["named"], FORMS["below"])
                for match in _begun(names, text, line)
                if sounds_secret(match["name"][-80:])
            ] + [
                (match.end(), "named", match)
                for match in _begun(FORMS["gap"], text, line)
                if sounds_secret(match["name"][-80:]) and looks_random(match)
            ]
    parts, done = [""], 0
    for start, kind, lead in sorted(leads, key=lambda one: one[:2]):
        if start < done or not (value := FORMS["value"].match(text, start)):
            continue
        begin, end = value.span(value.lastgroup or 0)
        if (
            kind == "named"
            and value["bare"]
            and FORMS["blanks"].search(lead["name"])
            and (
                header := (FORMS["phrase"] if "phrase" in lead["name"].lower() else FORMS["header"]).match(
                    text, begin
                )
            )
            and not (FORMS["harmless"].fullmatch(value["bare"]) and text[end : end + 2].strip()[:1] in ".)}(")
        ):
            end = header.end()
        whole = text[begin:end]
        is_word = kind == "sentence" and (is_numbered(whole) or is_name(whole, LETTERS))
        if not (is_word or is_prose(lead, value, end)) and any(
            is_secret(lead["name"][-80:], word)
            if kind == "named"
            else kind == "number" or not FORMS["harmless"].fullmatch(word)
            for word in (
                re.findall(r"[^\s\"',:]+", FORMS["beside_names"].sub("", whole))
                if value["listed"]
                else [whole]
            )
        ):
            parts += [text[done:begin], mask("named" if kind == "named" else "argument", whole)]
            done = end
    return "".join([*parts, text[done:]])


def clipped(text: str, most: int) -> str:
    """The first ``most`` characters; a longer text is redacted first: half a secret matches no pattern."""
    return text if len(text) <= most else Redactor(os.environ).text(text[: most + 4096])[:most]


@dataclasses.dataclass(init=False, repr=False, unsafe_hash=True)
class Redactor:
    """Knows the secret values of one environment; immutable, safe to share between threads. Redactors of the
    same secrets are equal."""

    _values: Pattern[str]
    _own: Tuple[Pattern[str], ...]

    def __init__(self, env: Mapping[str, str]) -> None:
        values = {v for name, v in env.items() if len(v) >= 6 and is_secret(name, v)}
        # a key of many lines, in a log that is read line by line
        values |= {line for v in values for line in v.splitlines() if len(line) >= 16}
        self._values = re.compile(
            "|".join("".join(map(written, v)) for v in sorted(values, key=len, reverse=True)) or "(?!)"
        )
        self._own = tuple(own_patterns(env[OWN_PATTERNS]) if OWN_PATTERNS in env else ())

    def text(self, text: str) -> str:
        """The text with secrets masked, and ``shared``."""
        return shared(self.hidden(text))

    @functools.lru_cache(maxsize=1 << 15)  # noqa: B019 ranks and files say the same again and again
    def hidden(self, text: str) -> str:
        """The text with secrets masked; equal redactors remember together."""
        text = FORMS["letter"].sub(lambda escape: chr(int(escape[1], 16)), FORMS["colours"].sub("", text))
        for own in self._own:
            text = own.sub(mask("own"), text)
        text = ESCAPED_LINES.sub(
            lambda line: self._masked(line[0].replace("\\n", "\n")).replace("\n", "\\n"), self._masked(text)
        )
        if FORMS["word_and_number"].search(text) and (FORMS["long_word"].search(text) or words_in(text)):
            text = without_made(text, self.hidden)
        return text

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
        text = KEY_LINE.sub(mask("key"), text)
        words = words_in(text)
        for word in words:
            if word in WHOLE:
                kind, form = WHOLE[word]
                text = compiled(form).sub(lambda match: mask(kind, match[0]), text)  # noqa: B023 at once
        text = FORMS["url"].sub(r"\1" + mask("url") + "@", text) if "://" in text else text
        return _values(without_blocks(text), words) if words else text

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
                k if FORMS["field"].fullmatch(str(k)) else self._json(k, ""): self._json(v, str(k))
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self._json(v, name) for v in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return type(value)(**self._json(vars(value), ""))
        return value
