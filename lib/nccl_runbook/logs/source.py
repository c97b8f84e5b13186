"""One file, stream or member of an archive, as lines of text."""

import bz2
import codecs
import collections
import dataclasses
import io
import lzma
import os
import re
import select
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from nccl_runbook.core.share import learn
from nccl_runbook.logs.encoding import encoding
from nccl_runbook.logs.file import Limit, Spent, mib
from nccl_runbook.logs.kind import DUMP, damaged, kind

CHUNK_BYTES = 1 << 19
LEARNT_BYTES = 1 << 16  # of a chunk, for --share: the whole would take a second per MiB
MAX_LINE = 2 << 20
MAX_KEY_LINES = 200  # an RSA key of 16,384 bits has 197
_KEY_LINE = re.compile(rb"[\w+/=]{1,80}\s*$")

# read of the beginning and of the end of one text; between them one piece of SAMPLED
BOTH_ENDS = (512 << 20, 64 << 20)

SAMPLED = 16
BLANK_BYTES = 16 << 20  # without a line end: no log
ZIP = b"PK\x03\x04"
PACKED: dict[bytes, Callable[..., Any]] = {
    b"BZh%d%b" % (n, magic): bz2.BZ2File for n in range(1, 10) for magic in (b"1AY&", b"\x17rE8")
}

# \x80: a pickle, such as a flight-recorder dump; ( and 7z: zstd and 7-Zip
_BINARY = (
    b"\x7fELF",
    ZIP,
    b"PK\x05\x06",
    *PACKED,
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf",
    b"\x80\x02",
    b"\x80\x04",
    b"\x89PNG",
    b"%PDF",
)

_CONTROLS = bytes({*range(1, 32)} - {*b"\a\b\t\n\v\f\r\x1b"})  # of random bytes 9 in 100 are such
BROKEN = (
    OSError,
    EOFError,
    MemoryError,
    RecursionError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


class _Pipe(io.FileIO):
    """Python sees no signal that comes between two reads in C before the second one ends, in a quiet
    pipe never: this looks up."""

    def readinto(self, buffer: Any) -> int | None:
        while not select.select([self], [], [], 0.5)[0]:
            pass
        return super().readinto(buffer)


def piped(path: str | int) -> BinaryIO:
    """A pipe, opened by its path or number. OSError if that fails."""
    return io.BufferedReader(_Pipe(path, closefd=isinstance(path, str)))


@dataclasses.dataclass(eq=False)
class Source:
    """One text to read. ``chunks`` yields its bytes as UTF-8; afterwards ``file_read`` is complete."""

    name: str
    size: int
    file: Any
    problem: str = ""
    limit: Limit = dataclasses.field(default_factory=Limit)
    left_out: str = ""
    lines: int = 0
    _of_key: int = 0
    _head: bytes = b""
    kind: str = ""  # what it is, if it is no log

    def __post_init__(self) -> None:
        self.plain = type(self.file) is io.BufferedReader  # a file as it lies on disk, under its own name

    def peek(self, size: int) -> bytes:
        """The first bytes, also of binary files; b"" if unreadable. ``chunks`` yields them again."""
        head = bytearray(self._head)
        try:
            while (
                self.file is not None
                and len(head) < size
                and (piece := self.file.read(min(size - len(head), CHUNK_BYTES)))
            ):
                head += piece
        except (Spent, *BROKEN) as error:
            self.problem = f"cannot be read: {why(error)}"
        self._head = bytes(head)
        return self._head[:size]

    def chunks(self) -> Iterator[bytes]:
        """Pieces of the text. Ends early if it is damaged, endless, or over the limit (Spent), with a
        sentence in ``left_out`` or, if nothing was read, in ``problem``."""
        total = blank = 0
        try:
            for piece in () if self.file is None else self._text():
                total += len(piece)
                blank = 0 if b"\n" in piece else blank + len(piece)
                yield piece
                if blank > BLANK_BYTES:
                    raise Spent(f"the file has no line end in {mib(blank)}")
        except (Spent, *BROKEN) as error:
            how = (
                f"only the first {mib(total)} were read"
                if isinstance(error, Spent)
                else f"damaged after {mib(total)}"
            )
            self.left_out = f"{how}: {why(error)}" if total else ""
            self.problem = "" if total else f"cannot be read: {why(error)}"
        finally:
            self.size = max(self.size, total)

    def rows(self, logs_only: bool = False, ends: tuple[int, int] = BOTH_ENDS) -> Iterator[list[bytes]]:
        """Lines in blocks; of a long text the beginning, the end (``ends``) and samples between. Ends early
        when time is up, or at text that is no log if only logs are wanted, with a sentence in ``left_out``
        or ``problem``. ``lines`` counts every line read so far."""
        rest, skipped, cut = b"", 0, False
        for chunk, is_wanted in _both_ends(self.chunks(), *ends):
            if not is_wanted:
                skipped, rest, cut = skipped + len(chunk), b"", True
                self.lines += chunk.count(b"\n")
                continue
            if cut:  # the end of a line that began in what was left out
                chunk, cut = chunk.partition(b"\n")[2], False
                self.lines += 1
            self.kind, is_log = kind(chunk, self.name) if logs_only and not self.lines else (self.kind, True)
            if not is_log:
                self.problem = f"is {self.kind}"
                return
            if self.name.endswith(".json") and self.plain and self.size == len(chunk):
                self.left_out = damaged(chunk)
            learn(chunk[:LEARNT_BYTES].decode("utf-8", "replace"))
            *rows, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE:  # a line without an end: its beginning and its last bytes
                rest = rest[: MAX_LINE // 2] + b"\r" + rest[-MAX_LINE // 4 :]
            if self._of_key or b"PRIVATE KEY-----" in chunk:
                rows = list(map(self._without_key, rows))
            yield rows
            self.lines += len(rows)
            if time.monotonic() > self.limit.until:
                self.left_out = f"reading stopped after {self.lines} lines, at the time limit"
                break
        if rest:
            yield [rest]
            self.lines += 1
        if skipped:
            between = f"{mib(skipped)} in the middle of the file were not read"
            self.left_out = f"{between}; {self.left_out}" if self.left_out else between

    def _without_key(self, row: bytes) -> bytes:
        """The row; masked if it is one of a private key, which only the line above all its rows shows."""
        self._of_key = max(0, self._of_key - 1)
        if b"-----BEGIN " in row or b"-----END " in row:
            self._of_key = 0 if b"-----END " in row else MAX_KEY_LINES
            return row
        return _KEY_LINE.sub(b"[redacted:key]", row) if self._of_key else row

    def _text(self) -> Iterator[bytes]:
        head = self._head + self.file.read(CHUNK_BYTES)
        name = encoding(head)
        if head.startswith(_BINARY) or (not name and len(head.translate(None, _CONTROLS)) < 0.95 * len(head)):
            self.problem = (
                DUMP
                if b"pg_config" in head or b"nccl_version" in head
                else "is a binary file (program, pickle or zip)"
            )
            return
        decoder = codecs.getincrementaldecoder(name)("replace") if name else None
        while head:
            text = decoder.decode(head).encode("utf-8", "replace") if decoder else head
            # progress bars alone: each is a line
            yield text if b"\n" in text else text.replace(b"\r", b"\n")
            if self.plain and not head.strip(b"\0"):
                self._skip_hole()
            head = self.file.read(CHUNK_BYTES)

    def _skip_hole(self) -> None:
        """Seek to the next data of a sparse file, or to its end."""
        try:
            self.file.seek(os.lseek(self.file.fileno(), self.file.tell(), os.SEEK_DATA))
        except OSError:
            self.file.seek(0, os.SEEK_END)


def _both_ends(chunks: Iterable[bytes], begin: int, end: int) -> Iterator[tuple[bytes, bool]]:
    """Each piece, and whether it is to be read: the first and the last bytes, and one
    piece of SAMPLED between."""
    total, last = 0, collections.deque[bytes]()
    for number, chunk in enumerate(chunks):
        total += len(chunk)
        if total <= begin + len(chunk):
            yield chunk, True
        else:
            last.append(chunk)
        if len(last) * CHUNK_BYTES > end:
            yield last.popleft(), number % SAMPLED == 0
    yield from ((chunk, True) for chunk in last)


def why(error: BaseException) -> str:
    """Reason of an error in words; never empty."""
    return (
        getattr(error, "strerror", None)
        or str(error)
        or f"{type(error).__name__}, because the file ends too early or asks for too much memory"
    )
