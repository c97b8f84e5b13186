"""Text that is not plain UTF-8: two or four bytes a character, as PowerShell writes, or a mark in front."""

import codecs

# the mark of UTF-32 begins with that of UTF-16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding(head: bytes) -> str:
    """Of a text that begins with its mark, or is of two-byte characters (PowerShell's >); else ""."""
    sample, marked = head[:4096], next((name for mark, name in _MARKS if head.startswith(mark)), "")
    first, second = sample[::2].count(0), sample[1::2].count(0)
    if (
        marked
        or len(sample) < 4
        or (first + second) * 3 <= len(sample)
        or min(first, second) * 8 > len(sample)
    ):  # a hole in a file is all zeros
        return marked
    return "utf-16-le" if second > first else "utf-16-be"


def as_utf8(data: bytes) -> bytes:
    """A text as UTF-8 and without its mark, whatever wrote it."""
    name = encoding(data)
    return data.decode(name, "replace").encode("utf-8", "replace") if name else data
