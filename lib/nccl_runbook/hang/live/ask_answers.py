"""What a running rank tells whoever asks: py-spy its stacks, torch's worker server its flight recorder. NCCL's RAS: see ask_ras.

Every question has a deadline. No process is stopped (py-spy reads without pausing), and no signal is sent: from outside nobody can
see whose handler a caught signal has (SigCgt of /proc/PID/status tells only that there is one).
"""
import contextlib
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
from nccl_runbook.hang.live.facts import Frame, GroupStatus, Stack

STACK_DEADLINE_S, RECORDER_DEADLINE_S = 5.0, 2.0
MOST_BYTES = 1 << 26
MOST_FRAMES, MOST_STACKS = 40, 12


# --- stacks

def find_py_spy(pids: List[int]) -> Union[str, Gap]:
    """py-spy on PATH, beside this interpreter, or beside that of a rank."""
    beside = [Path(sys.executable).parent]
    for pid in pids:
        with contextlib.suppress(OSError):
            argv0 = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
            beside += [Path(argv0).parent] if argv0.startswith("/") else []
    py_spy = shutil.which("py-spy") or next((str(p / "py-spy") for p in beside if _may_run(p / "py-spy")), None)
    return py_spy or Gap("absent", "py-spy is not installed here: pip install py-spy, put its folder on PATH, and look again")


def _may_run(path: Path) -> bool:
    """Only what this user or root put there and nobody else can write: the folder may be another user's, whose pid was named."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_uid in (0, os.getuid()) and not status.st_mode & 0o022 and os.access(path, os.X_OK)
    return False


def stacks(py_spy: Union[str, Gap], pid: int) -> Union[List[Stack], Gap]:
    """Every Python thread of a process, the main one first."""
    if isinstance(py_spy, Gap):
        return py_spy
    command = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=STACK_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return Gap("timed-out", f"py-spy did not answer within {STACK_DEADLINE_S:g} s")
    except OSError as error:
        return Gap("failed", f"{py_spy}: {error.strerror}")
    if done.returncode:
        words = " ".join(done.stderr.decode("utf-8", "replace").partition("Stack backtrace")[0].split())[-300:]
        if not re.search(r"ermission|not permitted|root", words):
            return Gap("failed", words)
        return Gap("no-permission", f"{words}; with kernel.yama.ptrace_scope from 1 on only root or the job's parent may look")
    return stacks_of(done.stdout, pid)


def stacks_of(text: bytes, pid: int) -> Union[List[Stack], Gap]:
    """py-spy 0.3 and 0.4's JSON as facts."""
    try:
        threads = [Stack(int(t["os_thread_id"] or 0), str(t["thread_name"] or ""), bool(t["active"]), bool(t["owns_gil"]),
                         [Frame(str(f["name"])[:200], str(f["filename"])[:400], int(f["line"])) for f in t["frames"][:MOST_FRAMES]])
                   for t in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        return Gap("failed", f"py-spy answered in another form: {type(error).__name__} {error}"[:300])
    return sorted(threads, key=lambda s: s.tid != pid)[:MOST_STACKS]


# --- flight recorder

def recorder(pid: int, variables: Dict[str, str], rank: Optional[int]) -> Union[List[GroupStatus], Gap]:
    """The recorder's state over the worker server's socket, where the job was started with one."""
    path = variables.get("TORCH_WORKER_SERVER_SOCKET", "")
    if not path:
        return _dump_by_pipe(pid, variables, rank)
    try:
        return statuses_of(_request(f"/proc/{pid}/root{os.path.abspath(path)}", "/handler/fr_trace_json"))
    except socket.timeout:
        return Gap("timed-out", f"the worker server did not answer within {RECORDER_DEADLINE_S:g} s")
    except OSError as error:
        return Gap("failed", f"{path}: {error.strerror or error}")


def _request(path: str, handler: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(RECORDER_DEADLINE_S)
        link.connect(path)
        link.sendall(f"POST {handler} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        return all_of(link, time.monotonic() + RECORDER_DEADLINE_S).partition(b"\r\n\r\n")[2]


def all_of(link: socket.socket, until: float, most_bytes: int = MOST_BYTES, end: bytes = b"") -> bytes:
    """What is sent until the end, or until ``end``. Raises socket.timeout, also for one who sends now and then and never ends."""
    told = bytearray()
    while len(told) < most_bytes and not (end and told.endswith(end)):
        link.settimeout(max(0.001, until - time.monotonic()))
        block = link.recv(min(1 << 16, most_bytes - len(told)))
        if not block:
            break
        told += block
    return bytes(told)


def statuses_of(text: bytes) -> Union[List[GroupStatus], Gap]:
    """The newest entry of each group out of fr_trace_json (torch 2.5 to 2.13), and the counters of pg_status."""
    try:
        dump = json.loads(text)
        newest = {_group(entry): entry for entry in dump.get("entries", [])}
        return [_status(name, entry, dump.get("pg_status", {})) for name, entry in list(newest.items())[:64]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return Gap("failed", f"the recorder answered in another form: {type(error).__name__} {error}"[:300])


def _group(entry: Dict[str, Any]) -> str:
    name = entry.get("process_group", ["", ""])
    return (" ".join(str(n) for n in name if n) if isinstance(name, list) else str(name))[:120]


def _status(name: str, entry: Dict[str, Any], status: Dict[str, Any]) -> GroupStatus:
    """Counters from pg_status, which is keyed by the group's first name; the entry's own number where that is missing."""
    own = status.get(str(entry["process_group"][0]) or "0", {}) if isinstance(entry.get("process_group"), list) else {}
    sequence = entry.get("collective_seq_id") or entry.get("p2p_seq_id") or None
    numbers = [own.get(f"last_{word}_collective") for word in ("enqueued", "completed")]
    enqueued, completed = [int(n) if n is not None and int(n) >= 0 else None for n in numbers]
    frame = next(iter(entry.get("frames") or []), {})
    at = f"{frame.get('name', '')} ({frame.get('filename', '')}:{frame.get('line', '')})" if frame else ""
    return GroupStatus(name, enqueued if enqueued is not None else sequence, completed,
                       str(entry.get("profiling_name", "")).rpartition(":")[2][:60], str(entry.get("state", ""))[:20], at[:300])


def _dump_by_pipe(pid: int, variables: Dict[str, str], rank: Optional[int]) -> Gap:
    """The line that makes the job write a dump, where TORCH_NCCL_DEBUG_INFO_PIPE_FILE gave it a pipe for that. It is not run from here.

    torch's monitor thread looks into the pipe once a second and writes the recorder over the rank's file; in some versions it waits for
    that, and while it waits nobody aborts the job (ProcessGroupNCCL.cpp, torch 2.2 to 2.13). A look changes nothing.
    """
    stem = variables.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if not stem or rank is None:
        return Gap("not-run", "the job was started without TORCH_WORKER_SERVER_SOCKET and TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    file = next((variables[n] for n in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE") if variables.get(n)), "")
    keep = "keep the dump that is there, which it overwrites, then " * bool(
        file and os.path.lexists(f"/proc/{pid}/root{os.path.abspath(file)}{rank}"))
    return Gap("not-run", f"a look asks for no dump, you can: {keep}echo 1 > {shlex.quote(f'{stem}{rank}.pipe')}; "
                          f"nccl-runbook hang {shlex.quote(f'{file}{rank}') if file else 'DUMPS'}")
