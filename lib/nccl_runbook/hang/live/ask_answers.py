"""What a running rank tells whoever asks: py-spy its stacks, torch's worker server its flight recorder,
NCCL's RAS its communicators.

Every question has a deadline. No process is stopped (py-spy reads without pausing), and no signal
is sent: from outside nobody can see whose handler a caught signal has (SigCgt of /proc/PID/status
tells only that there is one).
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.live import ask_proc
from nccl_runbook.hang.live.ask_ras import RECORDER_DEADLINE_S, STACK_DEADLINE_S, all_of
from nccl_runbook.hang.live.facts import Frame, GroupStatus, Stack

MOST_FRAMES, MOST_STACKS = 40, 12


# --- stacks


def find_py_spy(pids: List[int]) -> Union[str, Gap]:
    """Path of py-spy: on PATH, beside this interpreter, or beside a rank's; else a Gap."""
    argv0s = [
        ask_proc.unless_gone("", ask_proc.read, f"/proc/{pid}/cmdline").partition("\0")[0] for pid in pids
    ]
    beside = [Path(program).parent for program in (sys.executable, *argv0s) if program.startswith("/")]
    return (
        shutil.which("py-spy")
        or next((str(p / "py-spy") for p in beside if _may_run(p / "py-spy")), None)
        or Gap(
            "absent",
            "py-spy is not installed on this host. Run pip install py-spy, add its folder to PATH, "
            "and look again",
        )
    )


def _may_run(path: Path) -> bool:
    """Only a program of this user or root that no other user can write: the folder may belong to the user of
    a named pid."""
    status = ask_proc.unless_gone(None, path.stat)
    return (
        status is not None
        and status.st_uid in (0, os.getuid())
        and not status.st_mode & 0o022
        and os.access(path, os.X_OK)
    )


def stacks(py_spy: Union[str, Gap], pid: int, within_s: float = STACK_DEADLINE_S) -> Union[List[Stack], Gap]:
    """Every Python thread of a process, main thread first, or a Gap. ``within_s``: seconds that the caller
    has left."""
    if isinstance(py_spy, Gap):
        return py_spy
    try:
        done = subprocess.run(
            [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.1, min(STACK_DEADLINE_S, within_s)),
        )
    except subprocess.TimeoutExpired as error:
        return Gap("timed-out", f"py-spy did not answer within {error.timeout:.3g} s")
    except OSError as error:
        return Gap("failed", f"{py_spy}: {error.strerror}")
    if done.returncode:
        words = " ".join(done.stderr.decode("utf-8", "replace").partition("Stack backtrace")[0].split())
        return (
            Gap(
                "no-permission",
                "py-spy is not allowed to read this process. With kernel.yama.ptrace_scope 1, only root "
                "(CAP_SYS_PTRACE) or an ancestor of the process may read it; with 2, only root; with 3, "
                "no process",
            )
            if re.search(r"ermission|not permitted|root", words)
            else Gap("failed", words[-300:])
        )
    return stacks_of(done.stdout, pid)


def stacks_of(text: bytes, pid: int) -> Union[List[Stack], Gap]:
    """Stacks in the JSON of py-spy 0.3 and 0.4, or a Gap."""
    try:
        threads = [
            Stack(
                int(t["os_thread_id"] or 0),
                str(t["thread_name"] or ""),
                bool(t["active"]),
                bool(t["owns_gil"]),
                [
                    Frame(clipped(str(f["name"]), 200), clipped(str(f["filename"]), 400), int(f["line"]))
                    for f in t["frames"][:MOST_FRAMES]
                ],
            )
            for t in json.loads(text)
        ]
    except (ValueError, KeyError, TypeError) as error:
        return Gap("failed", f"py-spy answered in an unknown form: {type(error).__name__} {error}"[:300])
    return sorted(threads, key=lambda s: s.tid != pid)[:MOST_STACKS]


# --- flight recorder


def recorder(pid: int, variables: Dict[str, str], rank: Optional[int]) -> Union[List[GroupStatus], Gap]:
    """The flight recorder's state from the worker server's socket; a Gap if the job runs without one."""
    path = variables.get("TORCH_WORKER_SERVER_SOCKET", "")
    if not path:
        return _dump_by_pipe(pid, variables, rank)
    try:
        return statuses_of(_request(f"/proc/{pid}/root{os.path.abspath(path)}", "/handler/fr_trace_json"))
    except socket.timeout:
        return Gap(
            "timed-out",
            f"PyTorch's worker server (TORCH_WORKER_SERVER_SOCKET), which reads the flight recorder, did "
            f"not answer within {RECORDER_DEADLINE_S:g} s",
        )
    except OSError as error:
        return Gap("failed", f"{path}: {error.strerror or error}")


def _request(path: str, handler: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(RECORDER_DEADLINE_S)
        link.connect(path)
        link.sendall(f"POST {handler} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        return all_of(link, time.monotonic() + RECORDER_DEADLINE_S).partition(b"\r\n\r\n")[2]


def statuses_of(text: bytes) -> Union[List[GroupStatus], Gap]:
    """Newest entry of each group in fr_trace_json (torch 2.5 to 2.13), with the counters of pg_status, or a
    Gap."""
    try:
        dump = json.loads(text)
        newest = {str(entry.get("process_group")): entry for entry in dump.get("entries", [])}
        return [_status(entry, dump.get("pg_status", {})) for entry in list(newest.values())[:64]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return Gap(
            "failed", f"the flight recorder answered in an unknown form: {type(error).__name__} {error}"[:300]
        )


def _status(entry: Dict[str, Any], status: Dict[str, Any]) -> GroupStatus:
    """Counters from pg_status, which is keyed by the group's first name; else the entry's own number."""
    own = (
        status.get(str(entry["process_group"][0]) or "0", {})
        if isinstance(entry.get("process_group"), list)
        else {}
    )
    enqueued, completed = [
        int(n) if n is not None and int(n) >= 0 else None
        for n in map(own.get, ("last_enqueued_collective", "last_completed_collective"))
    ]
    if enqueued is None:
        enqueued = entry.get("collective_seq_id") or entry.get("p2p_seq_id") or None
    return GroupStatus(
        enqueued, completed, clipped(str(entry.get("profiling_name", "")).split(":", 1)[-1], 60)
    )


def _dump_by_pipe(pid: int, variables: Dict[str, str], rank: Optional[int]) -> Gap:
    """The line that makes the job write a dump, where TORCH_NCCL_DEBUG_INFO_PIPE_FILE gave it a pipe for
    that. It is not run from here.

    torch's monitor thread looks into the pipe once a second and writes the recorder over the rank's file;
    in some versions it waits for that, and while it waits nobody aborts the job (ProcessGroupNCCL.cpp, torch
    2.2 to 2.13). A look changes nothing.
    """
    stem = variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not stem or rank is None:
        return Gap(
            "not-run",
            "the job was started with neither TORCH_WORKER_SERVER_SOCKET nor TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        )
    file = next(
        (
            variables[n]
            for n in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
            if variables.get(n)
        ),
        "",
    )
    keep = (
        "first copy the existing dump, which will be overwritten, and then "
        if file and os.path.lexists(f"/proc/{pid}/root{os.path.abspath(file)}{rank}")
        else ""
    )
    return Gap(
        "not-run",
        f"`look` never requests a dump itself. To request a dump, run: {keep}echo 1 > "
        f"{shlex.quote(f'{stem}{rank}.pipe')}; nccl-runbook hang "
        f"{shlex.quote(f'{file}{rank}') if file else 'DUMPS'}",
    )


# --- NCCL's RAS (NCCL >= 2.24): how many collectives each rank of each communicator
# launched, and which ranks it lost

# JSON from NCCL 2.28.7 on, before that the text that `ncclras` prints.
# The forms: src/ras/client_support.cc, NCCL 2.24.3 to 2.30.7.


# --- JSON


# --- text
