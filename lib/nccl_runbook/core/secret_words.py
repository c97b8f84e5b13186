"""What a word is by itself: random, as a key is, or composed of words and numbers, as a name is.

A random word changes between capital letters, small letters and digits after 1 to 3 characters, a name after
more. So no list of programs, forms or neighbours is needed to recognise a key.
"""

import re

# 16 random characters are the least that programs issue as a key (96 bits), and 12 as a password
KEY, PASSWORD = 16, 12
# near the name of a secret 8 are enough; ids of runs and pods are of small letters and digits, too
NAMED, NAMED_SMALL = 8, 12
# characters between two changes, on average: random words have 1.5, and 2.5 if all their letters are small or
# capital. Of 5,000 words with digits inside, in 250 MB of sources and logs, 300 have 16 characters and as few
# as this; nearly all are keys and hashes
MOST, MOST_OF_ONE_CASE = 8 / 3, 3.6
# letters of one kind, a capital before small ones, a number, a size such as 256x192x64, a dimension (2D)
_CHUNK = re.compile(r"\d+(?:x\d+)+|\d[dD](?![a-z0-9])|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
MOST_IN_PASSWORD = 3  # characters of one kind: with 4 or more, a word such as isAllCudaP2p would be one
# what is no key, and looks so: hashes, revisions, addresses; a ULID, which begins with a time
_ID = re.compile("(?:[0-9a-f]+|[0-9A-F]+|0x[0-9A-Fa-f]+)(?:U?L{0,2})|01[0-9A-HJKMNP-TV-Z]{24}")
# more than a word and its number, such as node12
SHUFFLED = re.compile(r"[A-Za-z]\d{1,99}[A-Za-z]|\d[A-Za-z]{1,99}\d")
# what no name of a layer holds
_ODD = re.compile(r"(?i:[bcdfghjklmnpqrstvwxz]{5})|[A-Z](?![a-z])|\d{5}|^\d|[^A-Za-z0-9]")


def is_made(word: str, least: int = KEY) -> bool:
    """Whether the letters and digits, at least so many, change as often as random ones do. Of random words
    of 16, 9 in 10 do, and 8 in 10 if all letters are of one case."""
    if len(word) < least or not SHUFFLED.search(word) or _ID.fullmatch(word):
        return False
    each = len(word) / len(_CHUNK.findall(word))
    if word.islower() or word.isupper():
        return each <= MOST_OF_ONE_CASE and not is_numbered(word.lower())
    return each <= MOST


def is_password(word: str) -> bool:
    """Whether a word, perhaps with hyphens, is random in each part, and mixes small letters, capital ones and
    digits, as generated passwords do."""
    letters = re.sub("[-_]", "", word)
    if not letters.isalnum() or letters.islower() or letters.isupper() or not is_made(letters, PASSWORD):
        return False
    parts = [(part, _CHUNK.findall(part)) for part in re.findall("[^-_]{3,}", word)]
    return all(len(part) <= MOST * len(chunks) for part, chunks in parts) and all(
        len(chunk) <= MOST_IN_PASSWORD for _, chunks in parts for chunk in chunks
    )


def is_numbered(word: str) -> bool:
    """Whether this is words and numbers, as names of layers are (encoder1layer2weights3). So look,
    of random lowercase letters and digits, 11 % (16 characters) to 4 % (40); hexadecimal ones do not."""
    words = re.findall("[A-Z]?[a-z]+", word)
    return not _ODD.search(word) and sum(map(len, words)) >= (4 if len(words) > 2 else 6) * len(words) > 0
