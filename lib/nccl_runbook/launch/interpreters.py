"""Whose Python runs the ranks: the job's own, found in DESIGN's order; nothing is ever installed into it.

``python -m nccl_runbook.launch.interpreters [PREFIX]`` prints the choice: exit 0 found, 3 none, 2 several
or unusable. `.ci/setup` runs this file by its path, before anything is installed: it imports nothing of ours.
"""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Tuple

from nccl_runbook.core.facts import Unusable

# finds torch without importing it (milliseconds instead of seconds); the folder tells whether
# distributed is part of it
_ASK = """
import importlib.util, json, os, sys
spec = importlib.util.find_spec("torch")
home = os.path.dirname(spec.origin) if spec and spec.origin else ""
distributed = bool(home) and os.path.isdir(os.path.join(home, "distributed"))
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix, "torch": home,
                  "version": sys.version.split()[0], "host": os.uname().nodename,
                  "distributed": distributed}))
"""
# a launcher may print before it, label the line, or mix the lines of two hosts
_ANSWER = re.compile(r'\{"executable": (?:(?!\{"executable": ).)*?"distributed": (?:true|false)\}')
ASK_S = 30.0
MOST_BYTES = 1 << 16  # of what a prefix prints; an answer has less than 1 KiB
POLL_S = 0.02
STOPPED = "it is stopped (state T)"


class InterpreterError(Unusable):
    """No interpreter can be chosen; the message says what to do."""

    exit_code: int = 2


class NoInterpreter(InterpreterError):
    """None was found."""

    exit_code: int = 3


@dataclasses.dataclass(frozen=True)
class Choice:
    """The interpreter to judge. ``prefix``: its argv prefix; ``own``: whether it is the runbook's own torch;
    ``how``: why it was chosen."""

    prefix: List[str]
    own: bool
    how: str


def ask(prefix: List[str], within_s: float = ASK_S) -> dict:
    """What the interpreter behind ``prefix`` reports about itself and torch. InterpreterError if it does not
    run, or answers late."""
    command = shlex.join(prefix)
    try:
        text, killed = _output([*prefix, "-c", _ASK], within_s)
        answers = [json.loads(line) for line in _ANSWER.findall(text)]
    except OSError as error:
        raise InterpreterError(f"{prefix[0]} cannot be run: {str(error.strerror).lower()}") from None
    except json.JSONDecodeError:
        answers = []
    if len(answers) > 1:
        raise InterpreterError(_several(prefix, sorted({answer["host"] for answer in answers}), len(answers)))
    if not answers:
        # if docker, srun or conda start no Python, their last line says why
        last = "".join(filter(str.isprintable, text.strip().rpartition("\n")[2]))
        raise InterpreterError(
            ": ".join(filter(None, (f"{command} is not a Python that runs on this machine", killed, last)))
        )
    return answers[0]


def _output(argv: List[str], within_s: float) -> Tuple[str, str]:
    """What a command prints until it ends, and the signal that killed it. InterpreterError if it prints too
    much or takes too long. The end of the pipe is not awaited: a process that the command left behind may
    hold it open."""
    until, output, command = time.monotonic() + within_s, b"", shlex.join(argv[:-2])
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    ) as child:
        os.set_blocking(child.stdout.fileno(), False)
        try:
            while child.poll() is None and len(output) < MOST_BYTES and time.monotonic() < until:
                time.sleep(POLL_S)
                output += child.stdout.read(MOST_BYTES) or b""
            output += child.stdout.read(MOST_BYTES) or b""
            if len(output) >= MOST_BYTES:
                raise InterpreterError(f"{command} printed {MOST_BYTES >> 10} KiB and no answer")
            if child.poll() is None:
                raise InterpreterError(
                    f"{command} did not answer within {within_s:.0f} s"
                    + (f": {STOPPED}" if is_stopped(child.pid) else "")
                )
            return output.decode("utf-8", "replace"), killed_by(child.returncode)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def python_word(prefix: List[str]) -> int:
    """Index of the interpreter in the prefix: after it stand only its own options. A container may have its
    name."""
    return max(
        at
        for at, word in enumerate(prefix)
        if not word.startswith("-") and prefix[at - 1] not in ("-X", "-W")
    )


def is_stopped(pid: int) -> bool:
    """Whether a process is in state T: SIGSTOP or SIGTSTP reached it, or a debugger holds it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def killed_by(code: Optional[int]) -> str:
    """The signal that ended a process, empty if none did: a shell, docker and srun report 128 plus its
    number."""
    number = -code if code and code < 0 else (code or 0) - 128
    return f"it was killed ({signal.Signals(number).name})" if number in set(signal.Signals) else ""


def _several(prefix: List[str], hosts: List[str], count: int) -> str:
    """A prefix that starts several interpreters: whichever answers first would decide, and
    hide what the others see."""
    where = (
        f"from {len(hosts)} hosts ({', '.join(hosts)})"
        if len(hosts) > 1
        else f"{count} times from {hosts[0]}"
    )
    at = python_word(prefix)
    line = shlex.join([*prefix[:at], "-N1", "-n1", "-w", hosts[0], *prefix[at:]])
    remedy = (
        f'--python "{line}"'
        if "srun" in map(os.path.basename, prefix)
        else "a prefix that starts one Python on one host (srun: -N1 -n1 -w HOST)"
    )
    return f"{shlex.join(prefix)} answers {where}, but only one host can be tested at a time. Use {remedy}"


def _usable(prefix: List[str], own: bool, how: str, within_s: float) -> Choice:
    answer = ask(prefix, within_s)
    if answer["distributed"]:
        return Choice(prefix, own, how)
    command = shlex.join(prefix)
    what = (
        f"the torch of {command} has no torch.distributed"
        if answer["torch"]
        else f"{command} (Python {answer['version']}) has no torch"
    )
    raise InterpreterError(f"{what}. Name the interpreter of your job with --python")


def _of_pid(pid: str) -> List[str]:
    """The interpreter of a running process: its argv[0] where that is the same file as its executable
    (a venv), else the executable."""
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        first = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        environ = dict(e.split("=", 1) for e in variables if "=" in e)
    except OSError as error:
        raise InterpreterError(f"process {pid} cannot be looked at: {error.strerror}") from None
    executable = shutil.which(first, path=environ.get("PATH"))
    return [executable if executable and os.path.realpath(executable) == os.path.realpath(exe) else exe]


def _runbooks_own() -> bool:
    """Whether this process runs in the checkout's own .venv rather than in an environment of the user's."""
    return Path(sys.prefix).resolve() == (Path(__file__).resolve().parents[3] / ".venv").resolve()


def _active() -> List[str]:
    homes = (os.environ.get(variable) for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    return [*(str(Path(home) / "bin" / "python") for home in homes if home), sys.executable]


def _on_path() -> Iterator[str]:
    return filter(
        None,
        (
            shutil.which(name, path=f)
            for f in filter(None, os.environ.get("PATH", "").split(os.pathsep))
            for name in ("python3", "python")
        ),
    )


def _with_torch(candidates: Iterable[str], within_s: float) -> List[str]:
    """Those that have torch.distributed, one for each torch. One that does not run, or is the runbook's own,
    is no candidate."""
    by_torch, until = {}, time.monotonic() + within_s
    for path in dict.fromkeys(candidates):
        with contextlib.suppress(InterpreterError):
            answer = ask([path], until - time.monotonic())
            ours = _runbooks_own() and Path(answer["prefix"]).resolve() == Path(sys.prefix).resolve()
            if answer["distributed"] and not ours:
                by_torch.setdefault(os.path.realpath(answer["torch"]), path)
    return list(by_torch.values())


def _split(python: str) -> List[str]:
    try:
        words = shlex.split(python)
    except ValueError as error:
        raise InterpreterError(f"{python} cannot be parsed as a command: {error}") from None
    if not words:
        raise InterpreterError("--python is empty. Omit the option, or name an interpreter")
    # `conda run` closes the standard input of what it runs unless it captures nothing (conda 26.7,
    # conda/gateways/subprocess.py)
    captures = (
        os.path.basename(words[0]) == "conda"
        and words[1:2] == ["run"]
        and not {"--no-capture-output", "--live-stream"} & set(words)
    )
    return [*words[:2], "--no-capture-output", *words[2:]] if captures else words


def choose(python: str = "", within_s: float = ASK_S) -> Choice:
    """The interpreter of the ranks: ``python`` (a prefix, or "pid:4711"), the active venv or conda, the only
    python3 on PATH with torch.distributed, else the runbook's own torch. InterpreterError if there is none,
    or none answers within ``within_s`` seconds."""
    within_s = min(within_s, ASK_S)
    if python.startswith("pid:"):
        return _usable(_of_pid(python[4:]), False, f"the interpreter of process {python[4:]}", within_s)
    if python:
        prefix = _split(python)
        return _usable(prefix, _runbooks_own() and prefix == [sys.executable], "named by you", within_s)
    if active := _with_torch(_active(), within_s):
        return Choice([active[0]], False, "the active environment")
    on_path = _with_torch(_on_path(), within_s)
    if len(on_path) > 1:
        raise InterpreterError(
            f"several interpreters have torch: {', '.join(on_path)}. Choose one with --python (make "
            "report PYTHON=...)"
        )
    if on_path:
        return Choice([on_path[0]], False, "the only interpreter on PATH that has torch")
    if _runbooks_own() and ask([sys.executable], within_s)["distributed"]:
        return Choice([sys.executable], True, "the runbook's own torch, because no other torch was found")
    raise NoInterpreter("no Python with torch was found. Name the interpreter of your job with --python")


def main() -> int:
    """What a terminal would obey is left out here, too: a prefix may print it, and a folder be named so."""
    try:
        choice = choose(*sys.argv[1:2])
    except InterpreterError as error:
        print("".join(filter(str.isprintable, str(error))), file=sys.stderr)
        return error.exit_code
    print("".join(filter(str.isprintable, f"{shlex.join(choice.prefix)} ({choice.how})")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
