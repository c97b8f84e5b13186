"""What a word is by itself: random, as a key is, or composed of words and numbers, as a name is.

A random word changes between capital letters, small letters and digits after 1 to 3 characters, a name after
more. So no list of programs, forms or neighbours is needed to recognise a key.
"""

import re

# 16 random characters are the least that programs issue as a key (96 bits)
KEY = 16
# near the name of a secret, passwords that a program made have 8; ids of runs have so many small letters and digits
NAMED, NAMED_SMALL = 8, 12
# characters between two changes, on average: random words have 1.5, and 2.5 if all letters are small or all
# capital. Of 4,909 different words with digits inside, in 250 MB of sources and logs, 1 in 30 has as few as
# this and 16 characters; 3 of them are names
MOST, MOST_OF_ONE_CASE = 8 / 3, 3.6
# letters of one kind, a capital before small ones, a number, a size such as 256x192x64, a dimension such as 2D
_CHUNK = re.compile(r"\d+(?:x\d+)+|\d[dD](?![a-z0-9])|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_HEXADECIMAL = re.compile("(?:0x)?(?:[0-9a-f]+|[0-9A-F]+)")
# more than a word and its number, such as node12
SHUFFLED = re.compile(r"[A-Za-z]\d{1,99}[A-Za-z]|\d[A-Za-z]{1,99}\d")
# what no name of a layer holds
_ODD = re.compile(r"(?i:[bcdfghjklmnpqrstvwxz]{5})|[A-Z](?![a-z])|\d{5}|^\d|[^A-Za-z0-9]")


def is_made(word: str, least: int = KEY) -> bool:
    """Whether the letters and digits, at least so many, change as often as random ones do. A hexadecimal number
    is none: hashes, revisions and ids are."""
    if len(word) < least or not SHUFFLED.search(word) or _HEXADECIMAL.fullmatch(word):
        return False
    chunk = len(word) / len(_CHUNK.findall(word))
    if word.islower() or word.isupper():
        return chunk <= MOST_OF_ONE_CASE and not is_numbered(word.lower())
    return chunk <= MOST


def is_numbered(word: str) -> bool:
    """Whether this is words and numbers, as names of layers are (encoder1layer2weights3). So look,
    of random lowercase letters and digits, 11 % (16 characters) to 4 % (40); hexadecimal ones do not."""
    words = re.findall("[A-Z]?[a-z]+", word)
    return not _ODD.search(word) and sum(map(len, words)) >= (4 if len(words) > 2 else 6) * len(words) > 0
