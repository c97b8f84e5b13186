"""Find and open what was handed over: files, folders, archives, gzip, standard input.
Bounded; nothing in it is executed."""

import contextlib
import functools
import gzip
import itertools
import lzma
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from nccl_runbook.core.facts import Gap
from nccl_runbook.logs.encoding import as_utf8
from nccl_runbook.logs.facts import FileRead
from nccl_runbook.logs.file import HELD, Limit, Metered, Spent, named, opened, waits
from nccl_runbook.logs.kind import HEAD_BYTES
from nccl_runbook.logs.source import BROKEN, PACKED, ZIP, Source, piped, why

MAX_FILES = 4096  # a dump and a log of each of 2,048 ranks
MAX_LISTED, LIST_S = 10 * MAX_FILES, 2.0  # of a folder: more are not even looked at
MANY_S = 5.0  # for a folder with more than MAX_FILES, such as /usr: no job's
MAX_DEPTH = 6
SHORT_ENDS = 2 << 20, 2 << 20
END_BYTES = 4096  # looked at of each of too many files, at its beginning and at its end
_NUMBERS = b"0123456789abcdef"  # hexadecimal ones, too
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
MAX_MEMBERS = 4 * MAX_FILES  # of a tar, with folders and links
PACKED |= {b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file), b"\xfd7zXZ\x00": lzma.LZMAFile}


def heads(path: str) -> Iterator[tuple[str, bytes]]:
    """(path, first bytes) of each file at or below a path; no bytes if unreadable. An archive is one file."""
    for name, problem in _listed(os.path.expanduser(path), 0):
        opening = problem or opened(name)
        with contextlib.nullcontext() if isinstance(opening, (str, Gap)) else opening as file:
            yield name, as_utf8(Source(name, 0, file).peek(HEAD_BYTES))


def sources(
    paths: list[str] | str, stdin: BinaryIO | None = None, limit: Limit | None = None
) -> Iterator[Source]:
    """Every text below ``paths``; "-" is standard input. A file that does not open is a source with a
    problem."""
    limit = limit or Limit()
    limit.read.clear()
    list_until = time.monotonic() + min(LIST_S, max(1.0, limit.until - time.monotonic()))
    listed = [
        one
        for path in dict.fromkeys(named(paths) if isinstance(paths, str) else paths)
        for one in list(
            itertools.takewhile(
                lambda _: time.monotonic() < list_until,
                itertools.islice(_listed(os.path.expanduser(path), 0), MAX_LISTED),
            )
        )
        or [(path, "contains no readable file (hidden files and links are skipped)")]
    ]
    chosen, with_errors = (
        (listed, 0) if len(listed) <= MAX_FILES else _most_telling(listed, list_until + LIST_S)
    )
    if len(listed) > MAX_FILES:
        limit.until = min(limit.until, list_until + LIST_S + MANY_S)
        yield Source(
            f"{len(listed)} files",
            0,
            None,
            f"{len(listed) - len(chosen)} of them were not read"
            + (
                f", and at least {with_errors} of these contain lines that look like errors"
                if with_errors
                else ""
            )
            + ". Name fewer files, for example those of one node or one day",
        )
    for number, (path, problem) in enumerate(chosen):
        Limit.now = f"reading {path}"
        if len(listed) > MAX_FILES and time.monotonic() > limit.until:
            yield Source(f"{len(chosen) - number} files", 0, None, "not read: the time limit was reached")
            break
        if problem:
            yield Source(path, 0, None, problem)
        elif path == "-":
            yield Source(
                "standard input", 0, stdin, "" if stdin else ("this process has no standard input"), limit
            )
        else:
            try:
                with piped(path) if stat.S_ISFIFO(os.stat(path).st_mode) else open(path, "rb") as file:
                    yield from _unpacked(path, file, limit)
            except OSError as error:
                yield Source(path, 0, None, f"cannot be read: {why(error)}")
    Limit.now = "judging what was read"


def read_each(texts: Iterable[Source], read: Callable[[Source], None]) -> list[FileRead]:
    """Pass each readable text to ``read``; returns what became of every file."""
    files = []
    for source in texts:
        if not source.problem:
            read(source)
        files.append(
            FileRead(source.name, source.size, source.lines, source.left_out, source.problem, source.kind)
        )
    return files


def _listed(path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Each file below a path; with a sentence if it cannot be read."""
    try:
        mode = stat.S_IFREG if path == "-" else os.stat(path).st_mode
        if not stat.S_ISDIR(mode):
            is_text = (stat.S_ISREG(mode) and not waits(path)) or (
                stat.S_ISFIFO(mode) and path.startswith(HELD)
            )  # <(kubectl logs pod-0)
            yield (
                path,
                ""
                if is_text
                else "is not a regular file. Pipe it to standard input, and write - for its name",
            )
        elif depth >= MAX_DEPTH:
            yield path, f"folders nest deeper than {MAX_DEPTH}"
        elif depth and os.path.exists(
            os.path.join(path, "pyvenv.cfg")
        ):  # one that was named is what somebody wants read
            yield path, "is a virtual environment, which contains no logs"
        else:
            Limit.now = f"listing {path}"
            for name in sorted(os.listdir(path)):
                inner = os.path.join(path, name)
                if not os.path.islink(inner) and not name.startswith("."):
                    yield from _listed(inner, depth + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        yield (
            path,
            "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {why(error)}",
        )


def _most_telling(listed: list[tuple[str, str]], until: float) -> tuple[list[tuple[str, str]], int]:
    """Of too many files those with a line that looks like an error and is in no file before them, then others
    with such a line, then the newest; and how many with such a line are left out. The first come first, as
    time may end, and all others in their own order. Beyond ``until`` none is opened."""
    known: set[bytes] = set()

    def worth(one: tuple[str, str]) -> tuple[bool, bool, float]:
        if time.monotonic() > until:
            return False, False, 0.0
        with contextlib.suppress(OSError, ValueError), open(one[0], "rb") as file:
            state = os.fstat(file.fileno())
            ends = [os.pread(file.fileno(), END_BYTES, at) for at in (0, max(0, state.st_size - END_BYTES))]
            # an expression takes 2 ms each; ranks print the same error with other numbers
            errors = {
                row.translate(None, _NUMBERS)
                for row in b"\n".join(ends).lower().split(b"\n")
                if any(map(row.__contains__, _LIKE_AN_ERROR))
            }
            is_new = not errors <= known
            known.update(errors)
            return is_new, bool(errors), state.st_mtime
        return False, False, 0.0

    # only those that are readable: opening a pipe would wait for its writer
    worths = {one: worth(one) for one in listed if not one[1]}
    best = set(sorted(worths, key=worths.__getitem__, reverse=True)[:MAX_FILES])
    return sorted((one for one in listed if one in best), key=lambda one: not worths[one][0]), sum(
        has_errors for one, (_, has_errors, _) in worths.items() if one not in best
    )


def _unpacked(path: str, file: BinaryIO, limit: Limit) -> Iterator[Source]:
    """The text of a file, or those of an archive."""
    if not file.seekable():
        yield Source(path, 0, file, limit=limit)
        return
    size = os.fstat(file.fileno()).st_size
    head = file.read(8)
    file.seek(0)
    unpack = next((unpack for magic, unpack in PACKED.items() if head.startswith(magic)), None)
    text = Metered(unpack(Metered(file, limit, "packed")), limit, "unpacked") if unpack else file
    try:
        tar = text.read(512)[257:262] == b"ustar"
        text.seek(0)
        # checkpoints and wheels are zips, too
        if not (tar or (head.startswith(ZIP) and path.lower().endswith(".zip"))):
            yield Source(path, size, text, limit=limit)
            return
        archived = text if unpack else Metered(file, limit, "plain" if tar else "packed")
        # an uncompressed tar is read only on request
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
    except (*BROKEN, NotImplementedError, ValueError, OverflowError) as error:
        yield Source(path, size, None, f"the archive is damaged: {why(error)}")


def _files(archive: tarfile.TarFile | zipfile.ZipFile) -> Iterator[tuple[str, int, str, Callable[[], Any]]]:
    """Name and size of each plain file of an archive, how its bytes count, and what opens it."""
    if isinstance(archive, zipfile.ZipFile):
        yield from (
            (m.filename, m.file_size, "unpacked", functools.partial(_member, archive, m))
            for m in archive.infolist()
            if m.filename[-1:] not in "/"
        )
        return
    for number, m in enumerate(iter(archive.next, None)):
        archive.members.clear()  # a million would fill the memory
        if number >= MAX_MEMBERS:
            raise Spent(f"the archive contains more than {MAX_MEMBERS} files, folders and links")
        if m.isreg():
            yield (
                m.name,
                m.size,
                "unpacked" if m.issparse() else "plain",
                functools.partial(archive.extractfile, m),
            )


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """The member, opened. Of bzip2 and LZMA, zipfile (Python 3.14) unpacks 4 KiB at once, which may be
    gigabytes: ValueError."""
    if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return archive.open(member)
    raise ValueError("in a zip file, only plain and deflated files are read. Unpack the zip file first")


def _members(
    path: str, files: Iterable[tuple[str, int, str, Callable[[], Any]]], limit: Limit
) -> Iterator[Source]:
    """Plain files of an archive, read where they lie: nothing is written to disk, and
    an archive inside is not opened."""
    # what macOS puts beside the files is left out
    shown = (one for one in files if not os.path.basename(one[0]).startswith(("._", ".DS_Store")))
    for number, (name, size, kind, get) in enumerate(shown):
        if number >= MAX_FILES:
            raise Spent(f"the archive contains more than {MAX_FILES} files")
        try:
            yield Source(f"{path}:{name}", size, Metered(get(), limit, kind), limit=limit)
        except (RuntimeError, ValueError, *BROKEN) as error:  # a password, a strange packing, damage
            yield Source(f"{path}:{name}", size, None, f"cannot be read: {why(error)}")
