"""Find and open what was handed over: files, folders, archives, gzip, standard input.
Bounded; nothing in it is executed."""

import bz2
import codecs
import collections
import contextlib
import functools
import gzip
import io
import lzma
import os
import re
import select
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.share import learn
from nccl_runbook.logs.facts import FileRead
from nccl_runbook.logs.file import HELD, Limit, Metered, Spent, mib, named, opened, waits

MAX_FILES = 4096  # a dump and a log of each of 2,048 ranks
MAX_DEPTH = 6
CHUNK_BYTES = 1 << 19
LEARNT_BYTES = 1 << 16  # of a chunk, for --share: the whole would take a second per MiB
MAX_LINE = 2 << 20
MAX_KEY_LINES = 200  # an RSA key of 16,384 bits has 197
_KEY_LINE = re.compile(rb"[\w+/=]{1,80}\s*$")
BOTH_ENDS = (
    512 << 20,
    64 << 20,
)  # read of the beginning and of the end of one text; between them one piece of SAMPLED
SHORT_ENDS = 2 << 20, 2 << 20
SAMPLED = 16
END_BYTES = 4096  # looked at of each of too many files
_LIKE_AN_ERROR = (
    b"error",
    b"traceback",
    b"fatal",
    b"abort",
    b"segmentation",
    b"killed",
    b"nccl warn",
    b"timeout",
    b"timed out",
    b"xid",
)
BLANK_BYTES = 16 << 20  # without a line end: no log
MAX_MEMBERS = 4 * MAX_FILES  # of a tar, with folders and links
_ZIP = b"PK\x03\x04"
_PACKED: dict[bytes, Callable[..., Any]] = {
    b"BZh%d%b" % (n, magic): bz2.BZ2File for n in range(1, 10) for magic in (b"1AY&", b"\x17rE8")
}
_PACKED |= {b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file), b"\xfd7zXZ\x00": lzma.LZMAFile}
# \x80: a pickle, such as a flight-recorder dump; ( and 7z: zstd and 7-Zip
_BINARY = (
    b"\x7fELF",
    _ZIP,
    b"PK\x05\x06",
    *_PACKED,
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf",
    b"\x80\x02",
    b"\x80\x04",
    b"\x89PNG",
    b"%PDF",
)
_CONTROLS = bytes({*range(1, 32)} - {*b"\a\b\t\n\v\f\r\x1b"})  # of random bytes 9 in 100 are such
_BROKEN = (OSError, EOFError, MemoryError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
HEAD_BYTES = 8192
_ENV = re.compile(r"^(?:export |set -x |declare -x )?[A-Za-z_]\w*=")
_DUMP = r'"(?:pg_config|pg_status)"\s*:|"(?:collective_seq_id|record_id)"\s*:\s*\d'
READ_BY_HANG = "`nccl-runbook hang`"  # in the words for what is left to hang
DUMP = f"a flight-recorder dump: {READ_BY_HANG} reads it"
_ASIDE = f"read as text here; {READ_BY_HANG} compares the stacks of all ranks"
# (what tells it, what it is and who reads it, whether its text is a log all the same); the
# first that matches names it
_KINDS = (
    (_DUMP, DUMP, False),
    (
        r'"schema"\s*:\s*"nccl-runbook/record',
        "a record of this runbook: `nccl-runbook run --record` judges it again",
        False,
    ),
    (r'"schema"\s*:\s*"nccl-runbook/', "an answer of this runbook", False),
    (
        r"(?m)^Process \d{1,8}: .{0,400}\n(?:.*\n){0,3}Thread (?:0x[0-9A-F]+|\d+) \(",
        f"stacks of py-spy: {_ASIDE}",
        True,
    ),
    (r'"communicators_count"\s*:', f"an answer of NCCL's RAS: {_ASIDE}", False),
    (r"(?m)^Group +Comms +Nodes +Ranks\b|^Job summary\n=+$", f"an answer of NCCL's RAS: {_ASIDE}", True),
    (
        r"(?m)^(?:Current t|T)hread 0x[0-9a-f]+ .{0,60}\(most recent call first\):$",
        f"stacks of faulthandler: {_ASIDE}",
        True,
    ),
)


class _Pipe(io.FileIO):
    """Python sees no signal that comes between two reads in C before the second one ends, in a quiet
    pipe never: this looks up."""

    def readinto(self, buffer: Any) -> int | None:
        while not select.select([self], [], [], 0.5)[0]:
            pass
        return super().readinto(buffer)


def piped(path: str | int) -> BinaryIO:
    """A pipe by its path, or one that is open by its number."""
    return io.BufferedReader(_Pipe(path, closefd=isinstance(path, str)))


class Source:
    """One text to read. ``chunks`` gives its bytes as UTF-8; ``told`` is complete after that."""

    kind = ""  # what it is, where it is no log

    def __init__(
        self, name: str, size: int, file: Any, problem: str = "", limit: Limit | None = None
    ) -> None:
        self.name, self.size, self.problem = name, size, problem
        self.left_out, self.lines, self._of_key = "", 0, 0
        self._file, self._head, self._limit = file, b"", limit or Limit()
        self.plain = type(file) is io.BufferedReader  # a file as it lies on disk, under its own name

    def peek(self, size: int) -> bytes:
        """The first bytes as they lie there, also of binary files; b"" if nothing can be read.
        ``chunks`` begins with them again."""
        head = bytearray(self._head)
        try:
            while (
                self._file is not None
                and len(head) < size
                and (piece := self._file.read(min(size - len(head), CHUNK_BYTES)))
            ):
                head += piece
        except (Spent, *_BROKEN) as error:
            self.problem = f"cannot be read: {_why(error)}"
        self._head = bytes(head)
        return self._head[:size]

    def chunks(self) -> Iterator[bytes]:
        """Pieces of the text; ends early, with a sentence in ``left_out``, if it is damaged or endless."""
        total = blank = 0
        try:
            for piece in () if self._file is None else self._text():
                total += len(piece)
                blank = 0 if b"\n" in piece else blank + len(piece)
                yield piece
                if blank > BLANK_BYTES:
                    raise Spent(f"it has no line end in {mib(blank)}")
        except (Spent, *_BROKEN) as error:
            how = (
                f"read up to {mib(total)} and no further"
                if isinstance(error, Spent)
                else f"damaged after {mib(total)}"
            )
            self.left_out = f"{how}: {_why(error)}" if total else ""
            self.problem = "" if total else f"cannot be read: {_why(error)}"
        finally:
            self.size = max(self.size, total)

    def rows(self, logs_only: bool = False, ends: tuple[int, int] = BOTH_ENDS) -> Iterator[list[bytes]]:
        """Its lines, many at a time: of a long text those of both ``ends``, and samples between. Ends early,
        with a sentence in ``left_out`` or ``problem``, when the time is up, and at what is no log where only
        those are wanted. ``lines`` counts every line up to there."""
        rest, skipped, cut = b"", 0, False
        for chunk, is_wanted in _both_ends(self.chunks(), *ends):
            if not is_wanted:
                skipped, rest, cut = skipped + len(chunk), b"", True
                self.lines += chunk.count(b"\n")
                continue
            if cut:  # the end of a line that began in what was left out
                chunk, cut = chunk.partition(b"\n")[2], False
                self.lines += 1
            self.kind, is_log = kind(chunk) if logs_only and not self.lines else (self.kind, True)
            if not is_log:
                self.problem = f"is {self.kind}"
                return
            learn(chunk[:LEARNT_BYTES].decode("utf-8", "replace"))
            *rows, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE:  # a line without an end: what it begins with and what it ends with
                rest = rest[: MAX_LINE // 2] + b"\r" + rest[-MAX_LINE // 4 :]
            if self._of_key or b"PRIVATE KEY-----" in chunk:
                rows = list(map(self._without_key, rows))
            yield rows
            self.lines += len(rows)
            if time.monotonic() > self._limit.until:
                self.left_out = f"reading stopped after {self.lines} lines, at the time limit"
                break
        if rest:
            yield [rest]
            self.lines += 1
        if skipped:
            between = f"{mib(skipped)} between both ends were not read"
            self.left_out = f"{between}; {self.left_out}" if self.left_out else between

    def _without_key(self, row: bytes) -> bytes:
        """The row; masked if it is one of a private key, which only the line above all its rows shows."""
        self._of_key -= self._of_key > 0
        if b"-----BEGIN " in row or b"-----END " in row:
            self._of_key = MAX_KEY_LINES * (b"-----END " not in row)
            return row
        return _KEY_LINE.sub(b"[redacted:key]", row) if self._of_key else row

    def _text(self) -> Iterator[bytes]:
        head = self._head + self._file.read(CHUNK_BYTES)
        name = _wide(head)
        if head.startswith(_BINARY) or not name and len(head.translate(None, _CONTROLS)) < 0.95 * len(head):
            self.problem = (
                DUMP
                if b"pg_config" in head or b"nccl_version" in head
                else "is a binary file (program, pickle or zip)"
            )
            return
        decoder = codecs.getincrementaldecoder(name)("replace") if name else None
        while head:
            yield decoder.decode(head).encode("utf-8", "replace") if decoder else head
            if self.plain and not head.strip(b"\0"):
                self._skip_hole()
            head = self._file.read(CHUNK_BYTES)

    def _skip_hole(self) -> None:
        """On to where data lies in a sparse file, or to its end."""
        try:
            self._file.seek(os.lseek(self._file.fileno(), self._file.tell(), os.SEEK_DATA))
        except OSError:
            self._file.seek(0, os.SEEK_END)

    def told(self) -> FileRead:
        return FileRead(self.name, self.size, self.lines, self.left_out, self.problem, self.kind)


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
    for chunk in last:
        yield chunk, True


def _why(error: BaseException) -> str:
    return (
        getattr(error, "strerror", None)
        or str(error)
        or f"{type(error).__name__}, it ends too early or asks for too much memory"
    )


def _wide(head: bytes) -> str:
    """ "utf-16" or its kind for text of two-byte characters (PowerShell's >), else ""."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:4096]
    first, second = sample[::2].count(0), sample[1::2].count(0)
    if (
        len(sample) < 4 or (first + second) * 3 <= len(sample) or min(first, second) * 8 > len(sample)
    ):  # a hole in a file is all zeros
        return ""
    return "utf-16-le" if second > first else "utf-16-be"


def kind(head: bytes) -> tuple[str, bool]:
    """One sentence for the beginning of a text, "" for a log as far as that is visible; and
    whether to read it as one."""
    text = head[:HEAD_BYTES].decode("utf-8", "replace")
    for pattern, words, is_log in _KINDS:
        if (is_log or text.lstrip()[:1] in ("{", "[")) and re.search(pattern, text):
            return words, is_log
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    sets = sum(bool(_ENV.match(line)) for line in lines)
    return (
        "variables: `nccl-runbook env` judges them" if len(lines) > 2 and sets * 5 > len(lines) * 4 else ""
    ), True


def heads(path: str) -> Iterator[tuple[str, bytes]]:
    """Each file at or below a path with the bytes that it begins with, none for what cannot
    be read; an archive is one file."""
    for name, problem in _listed(os.path.expanduser(path), 0):
        opening = problem or opened(name)
        with contextlib.nullcontext() if isinstance(opening, (str, Gap)) else opening as file:
            yield name, Source(name, 0, file).peek(HEAD_BYTES)


def sources(
    paths: list[str] | str, stdin: BinaryIO | None = None, limit: Limit | None = None
) -> Iterator[Source]:
    """Every text below ``paths``, or in such a text field; "-" is standard input. What cannot be opened
    is a source with a problem."""
    limit = limit or Limit()
    limit.read.clear()
    nothing = "contains no readable file (hidden files and links are skipped)"
    given = dict.fromkeys(named(paths) if isinstance(paths, str) else paths)
    listed = [
        one for path in given for one in list(_listed(os.path.expanduser(path), 0)) or [(path, nothing)]
    ]
    if len(listed) > MAX_FILES:
        yield Source(
            f"{len(listed)} files",
            0,
            None,
            f"of them the {MAX_FILES} were read that are newest or end in errors: name fewer",
        )
    for path, problem in listed if len(listed) <= MAX_FILES else _most_telling(listed):
        if problem:
            yield Source(path, 0, None, problem)
        elif path == "-":
            yield Source("standard input", 0, stdin, "" if stdin else "there is no standard input", limit)
        else:
            try:
                with piped(path) if stat.S_ISFIFO(os.stat(path).st_mode) else open(path, "rb") as file:
                    yield from _unpacked(path, file, limit)
            except OSError as error:
                yield Source(path, 0, None, f"cannot be read: {_why(error)}")


def read_each(texts: Iterable[Source], read: Callable[[Source], None]) -> list[FileRead]:
    """Give each text that can be read to ``read``; what became of every one."""
    files = []
    for source in texts:
        if not source.problem:
            read(source)
        files.append(source.told())
    return files


def _listed(path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Each file below a path; with a sentence if it cannot be read."""
    try:
        mode = stat.S_IFREG if path == "-" else os.stat(path).st_mode
        if not stat.S_ISDIR(mode):
            is_text = (
                stat.S_ISREG(mode) and not waits(path) or stat.S_ISFIFO(mode) and path.startswith(HELD)
            )  # <(kubectl logs pod-0)
            yield (
                path,
                ""
                if is_text
                else "is not a regular file: pipe it to standard input and write - for its name",
            )
        elif depth >= MAX_DEPTH:
            yield path, f"folders nest deeper than {MAX_DEPTH}"
        elif depth and os.path.exists(
            os.path.join(path, "pyvenv.cfg")
        ):  # one that was named is what somebody wants read
            yield path, "is a virtual environment, which contains no logs"
        else:
            for name in sorted(os.listdir(path)):
                inner = os.path.join(path, name)
                if not os.path.islink(inner) and not name.startswith("."):
                    yield from _listed(inner, depth + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        yield path, f"cannot be read: {_why(error)}"


def _most_telling(listed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of too many files those that end in an error, then the newest; in their own order."""

    def worth(one: tuple[str, str]) -> tuple[bool, float]:
        with contextlib.suppress(OSError, ValueError), open(one[0], "rb") as file:
            state = os.fstat(file.fileno())
            file.seek(max(0, state.st_size - END_BYTES))
            # an expression takes 2 ms each
            return any(map(file.read(END_BYTES).lower().__contains__, _LIKE_AN_ERROR)), state.st_mtime
        return False, 0.0

    # only those that are readable: to open a pipe would wait for whoever writes to it
    best = set(sorted((one for one in listed if not one[1]), key=worth, reverse=True)[:MAX_FILES])
    return [one for one in listed if one in best]


def _unpacked(path: str, file: BinaryIO, limit: Limit) -> Iterator[Source]:
    """The text of a file, or those of an archive."""
    if not file.seekable():
        yield Source(path, 0, file, limit=limit)
        return
    size = os.fstat(file.fileno()).st_size
    head = file.read(8)
    file.seek(0)
    unpack = next((unpack for magic, unpack in _PACKED.items() if head.startswith(magic)), None)
    text = Metered(unpack(Metered(file, limit, "packed")), limit, "unpacked") if unpack else file
    try:
        tar = text.read(512)[257:262] == b"ustar"
        text.seek(0)
    except (Spent, *_BROKEN):
        tar = False
    if not (
        tar or head.startswith(_ZIP) and path.lower().endswith(".zip")
    ):  # checkpoints and wheels are zips, too
        yield Source(path, size, text, limit=limit)
        return
    try:
        archived = text if unpack else Metered(file, limit, "plain" if tar else "packed")
        # a tar that is not packed is not read where nobody asks for it
        with (
            tarfile.open(fileobj=archived, mode="r|" if unpack else "r:")
            if tar
            else zipfile.ZipFile(archived) as archive
        ):
            members = _members(path, _files(archive), limit)
            yield next(members, Source(path, size, None, "contains no readable file (links are skipped)"))
            yield from members
    except Spent as error:
        yield Source(path, size, None, f"not read to its end: {error}")
    except (*_BROKEN, NotImplementedError) as error:
        yield Source(path, size, None, f"the archive is damaged: {_why(error)}")


def _files(archive: tarfile.TarFile | zipfile.ZipFile) -> Iterator[tuple[str, int, str, Callable[[], Any]]]:
    """Name and size of each plain file of an archive, how its bytes count, and what opens it."""
    if isinstance(archive, zipfile.ZipFile):
        yield from (
            (m.filename, m.file_size, "unpacked", functools.partial(archive.open, m))
            for m in archive.infolist()
            if m.filename[-1:] not in "/"
        )
        return
    for number, m in enumerate(iter(archive.next, None)):
        archive.members.clear()  # a million would fill the memory
        if number >= MAX_MEMBERS:
            raise Spent(f"it holds more than {MAX_MEMBERS} files, folders and links")
        if m.isreg():
            yield (
                m.name,
                m.size,
                "unpacked" if m.issparse() else "plain",
                functools.partial(archive.extractfile, m),
            )


def _members(
    path: str, files: Iterable[tuple[str, int, str, Callable[[], Any]]], limit: Limit
) -> Iterator[Source]:
    """Plain files of an archive, read where they lie: nothing is written to disk, and
    an archive inside is not opened."""
    # what macOS puts beside the files is left out
    shown = (one for one in files if not os.path.basename(one[0]).startswith(("._", ".DS_Store")))
    for number, (name, size, kind, get) in enumerate(shown):
        if number >= MAX_FILES:
            raise Spent(f"it holds more than {MAX_FILES} files")
        try:
            yield Source(f"{path}:{name}", size, Metered(get(), limit, kind), limit=limit)
        except (RuntimeError, ValueError, *_BROKEN) as error:  # a password, a strange packing, damage
            yield Source(f"{path}:{name}", size, None, f"cannot be read: {_why(error)}")
