"""What a file is that may be a recorder dump: (dump, live look, what is wrong with it), one of the three. Many are read side by side."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from nccl_runbook.hang import read_stacks as stacks
from nccl_runbook.hang.dumps import file as dump_file
from nccl_runbook.hang.dumps.columns import Reading, Refused

FOREIGN = "is JSON, but no dump and no live look"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def of_file(name: str) -> tuple[Reading | None, Any, str]:
    try:
        with open(name, "rb") as file:
            return outcome(file.read(min(os.fstat(file.fileno()).st_size, dump_file.MAX_BYTES) + 1))  # no buffer for more than is there
    except OSError as error:
        return None, None, f"cannot be read: {error.strerror or error}"


def outcome(data: bytes) -> tuple[Reading | None, Any, str]:
    """(dump, live look, what is wrong with it): one of the three."""
    try:
        value = {} if data.startswith(b"\x80") else dump_file.decode(data)
        looks = stacks.looks_in(value)
        if looks or value and not (isinstance(value, list) or "entries" in value or "pg_config" in value):
            return None, looks, "" if looks else FOREIGN
        return dump_file.read(data), None, ""
    except Refused as error:
        return None, None, str(error)


def of_files(names: list[str], workers: int) -> Iterator[tuple[Reading | None, Any, str]]:
    """The same by several processes, in order. Whoever stops asking, on a signal too, waits for none of them: no thread is between."""
    readers: list[multiprocessing.Process] = []
    pipes: dict[int, Connection] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # one that comes while a process is forked may be lost in a hook of that
    try:
        for first in range(workers):
            with contextlib.suppress(OSError):  # no further process, no further pipe: its share is read here
                ours, theirs = multiprocessing.Pipe(duplex=False)
                unused = [*pipes.values(), ours]
                reader = multiprocessing.Process(target=_read_into, args=(theirs, unused, names[first::workers]), daemon=True)
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
    for number in (*_SIGNALS, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for end in unused:  # with an end open that nobody reads, this process would outlive the one that asks
        end.close()
    for name in names:
        pipe.send(of_file(name))
