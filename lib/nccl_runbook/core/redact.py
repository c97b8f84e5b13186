"""Secrets out of anything that is written. Standard library only, Python >= 3.9.

By value: the values of variables whose name sounds secret. By shape: tokens with a known prefix, and passwords in URLs. Everything
that may be shared (records, logs, notebooks, pages) passes through ``Redactor.text``.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any, Mapping
from urllib.parse import quote

MASK = "[redacted]"
SECRET_NAME = r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASS(WORD|WD|PHRASE)?|CREDENTIALS?|AUTH|COOKIE|PRIVATE)(_|$|\d)|(APIKEY|PASSWORD|SECRET)"
_SECRET_NAME = re.compile(SECRET_NAME, re.I)
# a variable whose name only sounds secret: a yes/no is no secret, nor a word without which no record could be read again, nor why `ab`
# left it as it is
_HARMLESS_VALUE = re.compile(
    r"^(|true|false|yes|no|none|null|auto|\d{1,4}|default|enabled|disabled|healthy|degraded|broken|unknown|skipped|running|"
    r"established|likely|possible|ruled-out|absent|failed|unsupported|no-permission|timed-out|not-run|exited|signalled|"
    r"its name or value looks like a secret: it stays as it is around the runbook)$", re.I)
_FIELD = re.compile(r"[a-z_]{1,24}")  # a name in a document of ours
_NAMED = r"(?:(?:API|WANDB|COMET|ACCESS|PRIVATE|AUTH)[_-]?KEY|TOKEN|SECRET|PASSWORD|PASSWD)"
_TOLD = r"(?:\"[^\"\n]{6,512}\"|'[^'\n]{6,512}'|[\"']?[^\s\"',;]{6,})"  # what stands behind such a name
# what repeats before the telling part is bounded or left out: a log line of a megabyte (an image, a core dump) must not cost its square
_SHAPES = (
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"), MASK),
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{12,}"), r"\1" + MASK),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,30}://)[^\s/@:]+(?::[^\s/@]*)?@"), r"\1" + MASK + "@"),
    (re.compile(r"(?i)([?&](?:sig|signature|X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token))=)[^&\s\"'<>]{4,}"), r"\1" + MASK),
    (re.compile(r"(?i)\b(authorization[\"']?\s{0,8}[=:]\s{0,8}[\"']?basic\s{1,8})[A-Za-z0-9+/=]{8,}"), r"\1" + MASK),
    (re.compile(r"(?i)(" + _NAMED + r"[A-Z0-9_]{0,64}[\"']?\s{0,8}[=:]\s{0,8})(?!\[redacted\])" + _TOLD), r"\1" + MASK),
    # an option and its value; --max-tokens 4096 and --tokenizer PATH are none
    (re.compile(r"(?i)((?<![-\w])--?(?:[A-Z0-9]{1,32}[_-]){0,4}" + _NAMED + r"\s{1,8})(?![-\[])" + _TOLD), r"\1" + MASK),
)


_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    """For a terminal or a file, whatever it quotes: no control character but line ends and tabs, nothing that UTF-8 cannot hold."""
    return _UNPRINTABLE.sub("\ufffd", text)


def sounds_secret(name: str) -> bool:
    """Whether a variable of that name usually holds a secret."""
    return bool(_SECRET_NAME.search(name))


def _written(character: str) -> str:
    """An expression for the ways in which a character is written: as itself, or as JSON, Python, a shell, a URL or HTML has it."""
    if character.isascii() and character.isalnum():
        return character
    plain = {character, "\\" + character, json.dumps(character)[1:-1], character.encode("unicode_escape").decode()}
    plain |= {quote(character, safe="", errors="replace"), "'\"'\"'" if character == "'" else character}
    marked = plain | {html.escape(p, quotes) for p in plain for quotes in (True, False)}
    marked |= {m.replace("&#x27;", "&#39;").replace("&quot;", "&#34;") for m in marked}
    return "(?:" + "|".join(map(re.escape, sorted(marked, key=len, reverse=True))) + ")"


class Redactor:
    """Knows the secret values of one environment; immutable, so that one may be shared between threads."""

    def __init__(self, env: Mapping[str, str]) -> None:
        values = {v for name, v in env.items() if sounds_secret(name) and len(v) >= 6 and not _HARMLESS_VALUE.match(v)}
        values |= {line for v in values for line in v.splitlines() if len(line) >= 16}  # a key of many lines, in a log that goes by lines
        longest_first = sorted(values, key=len, reverse=True)
        self._values = re.compile("|".join("".join(map(_written, v)) for v in longest_first)) if longest_first else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._values:
            text = self._values.sub(MASK, text)
        for shape, replacement in _SHAPES:
            text = shape.sub(replacement, text)
        return text

    def json(self, value: Any, name: str = "") -> Any:
        """The JSON value without secrets: every string is scrubbed, and a value under a name that sounds secret is masked whole."""
        if isinstance(value, str):
            return MASK if name and sounds_secret(name) and not _HARMLESS_VALUE.match(value) else self.text(value)
        if isinstance(value, dict):
            return {k if _FIELD.fullmatch(str(k)) else self.text(str(k)): self.json(v, str(k)) for k, v in value.items()}
        return [self.json(v) for v in value] if isinstance(value, (list, tuple)) else value
