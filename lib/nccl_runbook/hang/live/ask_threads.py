"""Threads of a rank, and the end of its log."""

import os
import re
import stat
from typing import List, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hang.live.ask_proc import read, stat_fields, unless_gone
from nccl_runbook.hang.live.ask_processes import CALLS, MOST_THREADS, TAIL_BYTES, TAIL_LINES, TICKS
from nccl_runbook.hang.live.facts import Thread


def threads(pid: int, most: int = MOST_THREADS) -> List[Thread]:
    """The main thread, then those with the most CPU time; OSError if the process is gone."""
    others = sorted(map(int, os.listdir(f"/proc/{pid}/task"))) if most > 1 else []
    beside = filter(None, (unless_gone(None, _thread, pid, tid) for tid in others if tid != pid))
    return [_thread(pid, pid), *sorted(beside, key=lambda t: -t.cpu_s)][:most]


def _thread(pid: int, tid: int) -> Thread:
    folder = f"/proc/{pid}/task/{tid}"
    fields, status = stat_fields(f"{folder}/stat"), read(f"{folder}/status")
    return Thread(
        tid,
        fields[0],
        waits_in(folder),
        round((int(fields[11]) + int(fields[12])) / TICKS, 2),
        sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", status))),
        round(int((unless_gone("", read, f"{folder}/schedstat").split() or [0, 0])[1]) / 1e9, 3),
    )


def waits_in(folder: str) -> str:
    """Where a thread sleeps: the kernel's wait channel, else the system call; empty if unreadable."""
    channel = unless_gone("", read, f"{folder}/wchan").strip()
    if channel not in ("0", ""):
        return channel
    call = unless_gone("", read, f"{folder}/syscall").partition(" ")[0].strip()
    return CALLS.get(int(call), f"system call {call}") if call.lstrip("-").isdecimal() else call


def log_tail(pid: int, redactor: Redactor) -> Union[List[str], Gap]:
    """The last lines that the process wrote to a regular file, without secrets of its environment; else a
    Gap."""
    for descriptor in (2, 1):
        path, text = f"/proc/{pid}/fd/{descriptor}", ""
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                with open(path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * TAIL_BYTES))
                    text = file.read(2 * TAIL_BYTES).decode("utf-8", "replace")
        except OSError as error:
            return Gap(
                "no-permission" if isinstance(error, PermissionError) else "absent",
                f"{path}: {error.strerror}",
            )
        if text.strip():  # the first half is read so that no secret is cut where the second one begins
            return [line[:400] for line in redactor.text(text)[-TAIL_BYTES:].splitlines()[-TAIL_LINES:]]
    return Gap("unsupported", "standard output and standard error are empty, or not files")
