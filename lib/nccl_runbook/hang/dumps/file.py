"""Flight-recorder dumps, pickle or JSON, decoded without executing anything in them, within
bounds, and many side by side."""

import contextlib
import gc
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import re
import resource
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nccl_runbook.hang import read_stacks as stacks
from nccl_runbook.hang.dumps.columns import Reading, condense
from nccl_runbook.hang.dumps.operations import Refused
from nccl_runbook.launch.stop import SIGNALS

MAX_BYTES = 256 << 20
TOO_LARGE = f"is larger than {MAX_BYTES >> 20} MiB"
SPARE_BYTES = 96 << 20  # what loading may take beyond OBJECT_FACTOR times the file
OBJECT_FACTOR = (
    24  # 1.5 kB an entry as objects, measured against 115 to 230 bytes in a pickle (torch 2.13, CPython 3.11)
)
# the bound is the whole process's: of two readers at once one would leave it to all
# that come after, children too
_ONE = threading.Lock()
# a child of another thread's would wait for the lock for ever, and keep the bound
os.register_at_fork(before=_ONE.acquire, after_in_child=_ONE.release, after_in_parent=_ONE.release)
_OURS = re.compile(
    rb'"(?:entries|pg_config|record_id|collective_seq_id|comm_lib_version|samples|first_s|'
    rb'boot_id|schema)"\s*:'
)
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    ImportError,
    RecursionError,
)
FOREIGN = "is JSON, but neither a dump nor a record of a running job"
Outcome = tuple[Reading | None, Any, str]  # (dump, live looks, what is wrong with it): one of the three


class _PlainUnpickler(pickle.Unpickler):
    """Values only: real dumps hold no global at all, so whatever asks for one is no dump."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            "the file asks to run code, which a dump never does; nothing was executed"
        )


@contextlib.contextmanager
def _bounded(size: int) -> Iterator[None]:
    """No more memory than a dump of ``size`` bytes can need: a few bytes can ask the unpickler for
    gigabytes. On Linux only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError):
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        wanted = now + SPARE_BYTES + OBJECT_FACTOR * size
        resource.setrlimit(
            resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard)
        )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins so is a pickle, or JSON that may be a dump or a live look (logs may begin
    with a bracket, too)."""
    return head.startswith(b"\x80") or (
        head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and bool(_OURS.search(head))
    )


def decode(data: bytes) -> Any:
    """The plain value in ``data``; Refused if the data is damaged, hostile or too large."""
    if len(data) > MAX_BYTES:
        raise Refused(TOO_LARGE)
    try:
        with _ONE, _bounded(len(data)):
            # buffered: where the unpickler can peek it reads blocks, else one byte a call
            return (
                _PlainUnpickler(io.BufferedReader(io.BytesIO(data), 1 << 18)).load()
                if data.startswith(b"\x80")
                else json.loads(data)
            )
    except MemoryError:
        raise Refused("asks for far more memory than a dump of this size needs") from None
    except _BROKEN as error:
        raise Refused(f"is damaged, or not a dump: {str(error)[:160]}") from None


def read(data: bytes) -> Reading:
    """One dump; Refused with a sentence if it is none."""
    collecting, value = gc.isenabled(), None
    gc.disable()  # it would look through millions of live objects again and again
    try:
        value = decode(data)
        with (
            _ONE,
            _bounded(len(data)),
        ):  # a small value may hold itself a thousand times over, and be endless as text
            return condense(
                {"entries": value} if isinstance(value, list) else value,
                hashlib.blake2b(data, digest_size=16).digest(),
            )
    except MemoryError:
        raise Refused("asks for far more memory than a dump of this size needs") from None
    except _BROKEN as error:
        raise Refused(f"is not a readable dump: {type(error).__name__} {str(error)[:120]}") from None
    finally:
        value = None  # gone before the collector may look
        if collecting:
            gc.enable()


# --- what a file is that may be a dump


def of_file(name: str) -> Outcome:
    """(dump, live look, problem) of one file, one of the three set; OSError becomes the problem."""
    try:
        with open(name, "rb") as file:
            # no buffer for more than is there
            return outcome(file.read(min(os.fstat(file.fileno()).st_size, MAX_BYTES) + 1))
    except OSError as error:
        return None, None, f"cannot be read: {error.strerror or error}"


def outcome(data: bytes) -> Outcome:
    """(dump, live look, problem): one of the three is set."""
    try:
        value = {} if data.startswith(b"\x80") else decode(data)
        looks = stacks.looks_in(value)
        if looks or (value and not (isinstance(value, list) or "entries" in value or "pg_config" in value)):
            return None, looks, "" if looks else FOREIGN
        return read(data), None, ""
    except Refused as error:
        return None, None, str(error)


def of_files(names: list[str], workers: int) -> Iterator[Outcome]:
    """Outcomes of the files, read by several processes, in order. A caller that stops early (a signal) waits
    for none of them."""
    readers: list[multiprocessing.Process] = []
    pipes: dict[int, Connection] = {}
    # one that comes while a process is forked may be lost in a hook of that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        for first in range(workers):
            with contextlib.suppress(OSError):  # no further process, no further pipe: its share is read here
                ours, theirs = multiprocessing.Pipe(duplex=False)
                reader = multiprocessing.Process(
                    target=_read_into,
                    daemon=True,
                    args=(theirs, [*pipes.values(), ours], names[first::workers]),
                )
                reader.start()
                readers.append(reader)
                pipes[first] = ours
                theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, name in enumerate(names):
            try:
                yield pipes[number % workers].recv() if number % workers in pipes else of_file(name)
            except (EOFError, OSError):
                pipes.pop(number % workers).close()
                yield None, None, "cannot be read: the process that read it ended (out of memory?)"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for reader in readers:
            reader.kill()
            reader.join()


def _read_into(pipe: Connection, unused: list[Connection], names: list[str]) -> None:
    for number in (*SIGNALS, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for end in unused:  # with an unread end open, this process would outlive its parent
        end.close()
    for name in names:
        pipe.send(of_file(name))
