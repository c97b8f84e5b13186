"""Words that are random by themselves, as a key is. A name or an id is put together from words and numbers.

A random word changes between capital letters, small letters and digits after 1 to 3 characters, a name after
more. Shorter words can look alike: host names, models and run ids do. So a word that no name, prefix or place
makes a secret is masked only from 32 characters on, and a shorter one only near the name of a secret.
"""

import base64
import functools
import re
from typing import Callable, Match

from nccl_runbook.core.secret_values import (
    FORMS,
    MASK,
    TABLES,
    is_numbered,
    mask,
    sounds_secret,
)

# letters and digits of a word that nothing names; of a piece of it, or of a key near the name of a secret; of
# a password there. Names there have at least 4 letters between two numbers, on average
ALONE, PIECE, PASSWORD, LETTERS = 32, 16, 8, 4
# characters between two changes, on average: random words have 1.5, and 2.5 if all their letters are small or
# capital. Of 5,000 words with digits inside, in 250 MB of sources and logs, 300 have 16 characters and as few
# as this; nearly all are keys and hashes
MOST_PER_CHANGE, MOST_OF_ONE_CASE = 8 / 3, 3.6
# letters of one kind, a capital before small ones, a number, a size such as 256x192x64, a dimension (2D)
_CHUNK = re.compile(r"\d+(?:x\d+)+|\d[dD](?![a-z0-9])|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# a word between hyphens: what it is in is a name
_PLAIN_WORD = re.compile("(?<![^_-])(?:[A-Z]?[a-z]{4,}|[A-Z]{5,})(?![^_-])")
# so many letters of one kind, digits, or letters between hyphens are in names (isAllCudaP2p), in no password
_RUN = re.compile(r"[a-z]{4}|[A-Z][a-z]{3}|[A-Z]{4}|\d{4}|(?<![^_-])[A-Za-z]{3}(?![^_-])")
# what is no key, and looks so: hashes, revisions, addresses, the id of a pod (without sk or key before it);
# a SHA-256 in base32, as Triton and Inductor call their files
_ID = re.compile(
    "(?:[0-9a-f]+|[0-9A-F]+|0x[0-9A-Fa-f]+)(?:U?L{0,2})|"
    "(?!(?:[a-z]{0,5}(?:key|api|pat|tok|token|secret|auth|pass)|[a-z]?sk)[0-9a-f]{32})"
    "[a-z]{1,9}[0-9a-f]{32,64}|[A-Z2-7]{52}|[cf]?[a-z2-7]{51}"
)
# near the name of a secret, these are names, too: network interfaces and RDMA devices, as udev calls them;
# meshes, in which each number is one of parallel parts (TP8PP4); formats of numbers (fp8e4m3); addresses;
# durations; functions of CUDA, HIP and NCCL; types, as a compiler writes them; jobs of Ray; a ULID, which
# begins with a time; the size of a tensor, and its type
_KIND = re.compile(
    r"(?:(?:en|ib|sl|wl|ww|iw|opa|roce|usnic)(?:P\d+)?(?:[a-z]{1,3}\d+)+|"
    r"(?i:(?:[a-z]{0,4}p\d+){2}(?:[a-z]{1,4}\d+)*|[a-z]{0,5}\d{1,2}e\dm\d[a-z0-9]*)|"
    r"0x[0-9A-Fa-f]{1,16}U?L{0,2}|(?i:P?(?:\d+(?:[ywdhms]|[mun]s)T?){3,})|(?:cuda|cu|hip|nccl)[A-Z]\w+|"
    r"[FKPRZ]{0,3}(?:N[KR]?(?:S[atbsiod])?|St|Z)\d{1,3}[A-Za-z_]\w*E_?|raysubmit_\w{16}|"
    r"01[0-9A-HJKMNP-TV-Z]{24}|\d+(?:x\d+)+(?:x?[a-z]{1,5}\d{0,2})?)(?:[.:]\w{1,5})*"
)
# letters between two numbers of a name: of one case, words that each begin with a capital, or as in LoRA
_LETTERS = re.compile(
    "x?(?:[a-z]+|[A-Z]+[a-z]*|(?:[a-z]{2,})?(?:[A-Z]+[a-z]{2,}|[A-Z][a-z](?=[A-Z][a-z]{2}))+[A-Z]*|"
    "[A-Z]{1,2}[a-z][A-Z]{1,2})"
)
_CAPITALISED = re.compile("[A-Z](?=[a-z]?[aeiouy])[a-z]{3,}")  # two in a third of a word are a name
# a word of a text; and first what is as long and no secret: what is named as an id or a hash, except those of
# secrets; a public key, a mangled name, a picture
_WORD = re.compile(
    r"(?:(?<![A-Za-z])(?<!(?i:secret[_ -]))(?<!(?i:session[_ -]))(?<!(?i:token[_ -]))(?<!(?i:auth[_ -]))"
    r"(?<!(?i:credential[_ -]))(?<!(?i:password[_ -]))(?<!(?i:cookie[_ -]))"
    r"(?i:(?:x-amz-(?:cf-)?)?id(?:-\d)?|uid|etag|hash|digest|checksum|integrity|fingerprint|"
    r"commit|revision|sha\d{1,3}|md5)(?:\\?[\"'])?[ ]?[:=-][ ]?(?:\\?[\"'])?|"
    r"\bAAAA[BCE][23]|\b_[ZR]|\bocid1\.|\bh1:|\biVBORw0KGgo|(?<![\w+/])/9j/|\bR0lGOD|\bJVBERi0|\bUklGR)[\w+/=.-]+|"
    r"(?<![\w+/~.-])(?=[A-Za-z_+/~.-]*[0-9])(?P<word>[\w+/~.-]{7,}[\w+/~-]={0,2})"
)
# base64, in which a slash is no end: no part of it is a word or a number
_BASE64 = re.compile(r"(?!(?:.*/)?(?:[A-Z]?[a-z]{2,}\d{0,3}|[A-Z]{2,}\d{0,3}|\d+)(?:/|$))[A-Za-z0-9+/]+=*")
# the name of a secret is near on its line and on two lines below; of a long line, each part is one
NEAR, _LINE = 3, re.compile(r"[^\n]{0,400}\S*\n?")
# a name without the s of a plural and without id (of secret_id), and with the word before it if that says of
# what the key or code is; the tokens of a language model are counted
_NAME_WORD = re.compile(
    r"(?<![\w.-])(?<!\[redacted:)(?!(?<=\d )tokens|[\w-]{0,40}tokens\W{1,3}\d+\b)"
    r"(?:[A-Za-z]{1,20} (?=(?i:key|code)))?[A-Za-z_][\w.-]*?"
    r"(?=(?:(?<![asAS])[sS]|[_-](?i:id))?(?![\w.-]))"
)
_NEAR_NAME = re.compile(f"(?i:{TABLES['name']['near']})")


def is_made(word: str, least: int) -> bool:
    """Whether the letters and digits, at least so many, change as often as random ones do. Of random words
    of 16, 9 in 10 do, 8 in 10 if all letters are of one case, 6 in 10 if they are base32."""
    is_mixed = not (word.islower() or word.isupper())
    most = MOST_PER_CHANGE if is_mixed else MOST_OF_ONE_CASE
    return (
        len(word) >= least
        and bool(FORMS["shuffled"].search(word))
        and not _ID.fullmatch(word)
        and len(word) <= most * len(_CHUNK.findall(word))
        and (is_mixed or not is_numbered(word.lower()))
    )


def is_password(word: str) -> bool:
    """Whether a word, perhaps with hyphens, mixes small letters, capital ones and digits as a generated
    password does."""
    letters = re.sub("[-_]", "", word)
    is_mixed = letters.isalnum() and not letters.islower() and not letters.isupper()
    return (
        is_mixed
        and is_made(letters, PASSWORD)
        and bool(FORMS["shuffled"].search(word))
        and not _RUN.search(word)
    )


def is_name(word: str, least: int = 1) -> bool:
    """Whether it is put together from words and numbers, with at least so many letters between two numbers on
    average, or of a kind that is no secret. Of random words of 16 letters and digits, 1 in 7 looks so, and
    1 in 12 with 4 letters; of 32, 1 in 30."""
    letters = re.findall("[A-Za-z]+", re.sub("(?i)[phd]2[phd]", "", word))  # no number: P2P, H2D
    return (
        bool(_KIND.fullmatch(word))
        or len("".join(_CAPITALISED.findall(word))) >= max(8, len(word) / 3)
        or (
            not (word.islower() or word.isupper())
            and len("".join(letters)) >= least * len(letters)
            and all(map(_LETTERS.fullmatch, letters))
        )
    )


def without_made(text: str, hidden: Callable[[str], str]) -> str:
    """The text without words that are random, and without shorter ones near the name of a secret: on its
    line, and on two lines below if nothing is masked before. Base64 of a text stays if ``hidden`` leaves that
    text as it is."""
    parts, near = [""], 0
    for line in _LINE.findall(text):
        near = NEAR if _NEAR_NAME.search(line) or any(map(sounds_secret, _NAME_WORD.findall(line))) else near
        parts.append(_WORD.sub(functools.partial(_without_parts, near=near > 0, hidden=hidden), line))
        near = 0 if MASK in line else near - 1
    return "".join(parts)


def _without_parts(match: Match[str], near: bool, hidden: Callable[[str], str]) -> str:
    """The word; of a path, each part that is random as a mask."""
    if not match["word"] or (len(match[0]) < ALONE and not near) or _is_harmless_text(match[0], hidden):
        return match[0]
    parts = [match[0]] if _BASE64.fullmatch(match[0]) else match[0].split("/")
    for at, part in enumerate(parts):
        piece = max(re.findall("[A-Za-z0-9]+", re.sub("[+/]", "", part)), key=len, default="")
        letters = piece if _PLAIN_WORD.search(part) else re.sub("[^A-Za-z0-9]", "", part)
        is_cached = FORMS["path"].match(match[0]) and (piece.islower() or piece.isupper())
        is_key = is_made(piece, PIECE) and not is_cached and not is_name(part)
        if is_key and is_made(letters, ALONE):
            parts[at] = mask("token")
        elif near and (is_key or (is_password(part) and not is_name(part, LETTERS))):
            parts[at] = mask("named")
    return "/".join(parts)


def _is_harmless_text(word: str, hidden: Callable[[str], str]) -> bool:
    """Whether the word is the base64 of a text, of a configuration for example, without a secret in it."""
    letters = re.sub("[^A-Za-z0-9+/]", "", word)
    text = base64.b64decode(letters[: len(letters) // 4 * 4]).decode("ascii", "replace")
    return (
        len(word) >= ALONE
        and bool(re.search(r"[\s{]", text))
        and not re.search(r"[^\s -~]", text)
        and hidden(text) == text
    )
