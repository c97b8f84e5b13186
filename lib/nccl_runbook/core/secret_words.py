"""What a word is by itself: random, as a key is, or composed of words and numbers, as a name is.

A random word changes between capital letters, small letters and digits after 1 to 3 characters, a name after
more. So no list of programs, forms or neighbours is needed to recognise a key.
"""

import re
from typing import Match

from nccl_runbook.core.secret_values import (
    MASK,
    MOST_NAME,
    PATH,
    SHUFFLED,
    is_numbered,
    mask,
    sounds_secret,
)

# 16 random characters are the least that programs issue as a key (96 bits); near the name of a secret 8 are
# enough for a password. There a name has at least 4 letters between two numbers, on average
KEY, NAMED, LETTERS = 16, 8, 4
# characters between two changes, on average: random words have 1.5, and 2.5 if all their letters are small or
# capital. Of 5,000 words with digits inside, in 250 MB of sources and logs, 300 have 16 characters and as few
# as this; nearly all are keys and hashes
MOST_PER_CHANGE, MOST_OF_ONE_CASE = 8 / 3, 3.6
# letters of one kind, a capital before small ones, a number, a size such as 256x192x64, a dimension (2D)
_CHUNK = re.compile(r"\d+(?:x\d+)+|\d[dD](?![a-z0-9])|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
LONGEST_CHUNK = (
    3  # characters of one kind in a password: with 4 or more, a word such as isAllCudaP2p would be one
)
# what is no key, and looks so: hashes, revisions, addresses
_ID = re.compile("(?:[0-9a-f]+|[0-9A-F]+|0x[0-9A-Fa-f]+)(?:U?L{0,2})")
# words of these kinds are names: network interfaces and RDMA devices, as udev calls them; meshes, in which
# each number is one of parallel parts (TP8PP4); formats of numbers (fp8e4m3); addresses; durations; functions
# of CUDA, HIP and NCCL; types, as a compiler writes them; jobs of Ray; a ULID, which begins with a time; a
# SHA-256 in base32, as Triton and Inductor call their files
_KIND = re.compile(
    r"(?:(?:en|ib|sl|wl|ww|iw|opa|roce|usnic)(?:P\d+)?(?:[a-z]{1,3}\d+)+|"
    r"(?i:(?:[a-z]{0,4}p\d+){2}(?:[a-z]{1,4}\d+)*|[a-z]{0,5}\d{1,2}e\dm\d[a-z0-9]*)|"
    r"0x[0-9A-Fa-f]{1,16}U?L{0,2}|(?i:P?(?:\d+(?:[ywdhms]|[mun]s)T?){3,})|(?:cuda|cu|hip|nccl)[A-Z]\w+|"
    r"[FKPRZ]{0,3}(?:N[KR]?(?:S[atbsiod])?|St|Z)\d{1,3}[A-Za-z_]\w*E_?|raysubmit_\w{16}|"
    r"01[0-9A-HJKMNP-TV-Z]{24}|[A-Z2-7]{52}|c?[a-z2-7]{51})(?:[.:]\w{1,5})*"
)
# letters between two numbers of a name: of one case, words that each begin with a capital, or as in LoRA
_LETTERS = re.compile(
    "x?(?:[a-z]+|[A-Z]+[a-z]*|(?:[a-z]{2,})?(?:[A-Z]+[a-z]{2,}|[A-Z][a-z](?=[A-Z][a-z]{2}))+[A-Z]*|"
    "[A-Z]{1,2}[a-z][A-Z]{1,2})"
)
_CAPITALISED = re.compile("[A-Z](?=[a-z]?[aeiouy])[a-z]{3,}")  # two in a third of a word are a name
# a word of a text; and first what is as long and no secret: a fingerprint, a public key, a mangled name
_WORD = re.compile(
    r"(?:\b(?i:sha\d{1,3})[:=-]|\bAAAA[BCE][23]|\b_[ZR])[\w+/=-]+|"
    r"(?<![\w+/~.-])(?=[A-Za-z_+/~.-]*[0-9])(?P<word>[\w+/~.-]{7,}[\w+/~-]={0,2})"
)
# base64, in which a slash is no end: no part of it is a word or a number
_BASE64 = re.compile(r"(?!(?:.*/)?(?:[A-Z]?[a-z]{2,}\d{0,3}|[A-Z]{2,}\d{0,3}|\d+)(?:/|$))[A-Za-z0-9+/]+=*")
# before a word: a setting of the libraries that this tool is about, whose values are no keys
_SETTING = re.compile(
    r"\b(?:NCCL|RCCL|HCCL|GLOO|UCX|FI|IBV|OMPI|TORCH|CUDA)_[A-Z0-9_]{1,60}=[\"']?[^\s\"']{0,80}$"
)
NEAR = 400  # characters before and behind a word
_NAME_WORD = re.compile(r"(?<![\w.-])(?<!\[redacted:)[A-Za-z_][\w.-]*")


def is_made(word: str, least: int = KEY) -> bool:
    """Whether the letters and digits, at least so many, change as often as random ones do. Of random words
    of 16, 9 in 10 do, 8 in 10 if all letters are of one case, 6 in 10 if they are base32."""
    if len(word) < least or not SHUFFLED.search(word) or _ID.fullmatch(word):
        return False
    each = len(word) / len(_CHUNK.findall(word))
    if word.islower() or word.isupper():
        return each <= MOST_OF_ONE_CASE and not is_numbered(word.lower())
    return each <= MOST_PER_CHANGE


def is_password(word: str, least: int = KEY) -> bool:
    """Whether a word, perhaps with hyphens, is random in each part, and mixes small letters, capital ones and
    digits, as generated passwords do."""
    letters = re.sub("[-_]", "", word)
    if not letters.isalnum() or letters.islower() or letters.isupper() or not is_made(letters, least):
        return False
    parts = [(part, _CHUNK.findall(part)) for part in re.findall("[^-_]{3,}", word)]
    return all(len(part) <= MOST_PER_CHANGE * len(chunks) for part, chunks in parts) and all(
        len(chunk) <= LONGEST_CHUNK for _, chunks in parts for chunk in chunks
    )


def is_name(word: str, least: int = 1) -> bool:
    """Whether it is put together from words and numbers, with at least so many letters between two numbers on
    average, or of a kind that is no secret. Of random words of 16 letters and digits, 1 in 7 looks so, and
    1 in 12 with 4 letters; of 32, 1 in 30."""
    letters = re.findall("[A-Za-z]+", re.sub("(?i)[phd]2[phd]", "", word))  # no number: P2P, H2D
    return (
        bool(_KIND.fullmatch(word))
        or len("".join(_CAPITALISED.findall(word))) >= max(8, len(word) / 3)
        or not (word.islower() or word.isupper())
        and len("".join(letters)) >= least * len(letters)
        and all(map(_LETTERS.fullmatch, letters))
    )


def without_made(text: str) -> str:
    """The text without words that are random, wherever they stand, and without shorter ones near the name of
    a secret."""
    return _WORD.sub(_without_parts, text)


def _without_parts(match: Match[str]) -> str:
    """The word; of a path, each part that is random as a mask."""
    before = match.string[max(0, match.start() - 160) : match.start()]
    if not match["word"] or not SHUFFLED.search(match[0]) or _SETTING.search(before):
        return match[0]
    folders = bool(PATH.match(match[0]))
    parts = [match[0]] if _BASE64.fullmatch(match[0]) else match[0].split("/")
    for at, part in enumerate(parts):
        longest = max(re.findall("[A-Za-z0-9]+", re.sub("[+/]", "", part)), key=len, default="")
        # caches call their folders by hashes of one case; a key is rarely part of a path
        of_cache = folders and (longest.islower() or longest.isupper())
        if (is_made(longest) and not of_cache or is_password(part)) and not is_name(part):
            parts[at] = mask("token")
        elif is_password(part, NAMED) and not is_name(part, LETTERS) and _is_near_name(match):
            parts[at] = mask("named")
    return "/".join(parts)


def _is_near_name(match: Match[str]) -> bool:
    """Whether its line names a secret, or one of the two lines above that hold no mask."""
    above = match.string[max(0, match.start() - NEAR) : match.start()].split("\n")[-3:]
    line = above.pop() + match.string[match.start() : match.end() + NEAR].split("\n")[0]
    return any(
        sounds_secret(name[0][-MOST_NAME:])
        for words in (line, *(other for other in above if MASK not in other))
        for name in _NAME_WORD.finditer(words)
    )
