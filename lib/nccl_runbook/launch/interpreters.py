"""Whose Python runs the ranks: the job's own, found in DESIGN's order; nothing is ever installed into it.

``python -m nccl_runbook.launch.interpreters [PREFIX]`` prints the choice: exit 0 found, 3 none, 2 several or unusable.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Optional

# finds torch without importing it (milliseconds instead of seconds); the folder tells whether distributed is part of it
_ASK = """
import importlib.util, json, os, sys
spec = importlib.util.find_spec("torch")
home = os.path.dirname(spec.origin) if spec and spec.origin else ""
print(json.dumps({"executable": sys.executable, "prefix": sys.prefix, "torch": home, "version": sys.version.split()[0],
                  "distributed": bool(home) and os.path.isdir(os.path.join(home, "distributed"))}))
"""
ASK_TIMEOUT_S = 30


class InterpreterError(ValueError):
    """No interpreter can be chosen; the message is one sentence that names the way out. ``exit_code``: 3 none found, else 2."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True)
class Choice:
    """``prefix``: argv prefix; ``text``: the same as one shell word list; ``own``: the runbook's torch, not the user's; ``how``: why it."""

    prefix: List[str]
    text: str
    own: bool
    how: str


def ask(prefix: List[str]) -> dict:
    """What the interpreter behind ``prefix`` says of itself and of torch. Raises InterpreterError if it does not run."""
    said = ""
    try:
        done = subprocess.run([*prefix, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
        # where docker, srun or conda start no Python, their last line says why (docker 28.2: on standard output)
        said = "".join(filter(str.isprintable, (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]))[:200]
        return json.loads(done.stdout.splitlines()[-1])
    except OSError as error:
        raise InterpreterError(f"{prefix[0]} cannot be run: {str(error.strerror).lower()}") from None
    except subprocess.TimeoutExpired:
        raise InterpreterError(f"{shlex.join(prefix)} did not answer within {ASK_TIMEOUT_S} s") from None
    except (IndexError, ValueError):
        raise InterpreterError(f"{shlex.join(prefix)} is not a Python that runs here" + (f": {said}" if said else "")) from None


def _usable(prefix: List[str], own: bool, how: str) -> Choice:
    said = ask(prefix)
    if not said["torch"]:
        what = f"{shlex.join(prefix)} (Python {said['version']}) has no torch"
    elif not said["distributed"]:
        what = f"the torch of {shlex.join(prefix)} has no torch.distributed"
    else:
        return Choice(prefix, shlex.join(prefix), own, how)
    raise InterpreterError(f"{what}: name the interpreter of your job with --python")


def _of_pid(pid: str) -> List[str]:
    """The interpreter of a running process: its argv[0] where that is the same file as its executable (a venv), else the executable."""
    try:
        exe = os.readlink(f"/proc/{pid}/exe")
        first = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        environ = dict(e.split("=", 1) for e in variables if "=" in e)
    except OSError as error:
        raise InterpreterError(f"process {pid} cannot be looked at: {error.strerror}") from None
    found = shutil.which(first, path=environ.get("PATH"))
    return [found if found and os.path.realpath(found) == os.path.realpath(exe) else exe]


def _runbooks_own() -> bool:
    """Whether this process runs in the checkout's own .venv rather than in an environment of the user's."""
    return Path(sys.prefix).resolve() == (Path(__file__).resolve().parents[3] / ".venv").resolve()


def _active() -> Iterator[str]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        home = os.environ.get(variable)
        if home and not (_runbooks_own() and Path(home).resolve() == Path(sys.prefix).resolve()):
            yield str(Path(home) / "bin" / "python")
    if not _runbooks_own():
        yield sys.executable


def _on_path() -> Iterator[str]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for name in ("python3", "python"):
            if folder and (found := shutil.which(name, path=folder)):
                yield found


def _with_torch(candidates: Iterator[str]) -> List[str]:
    """Those that have torch.distributed, one for each torch; one that does not run is no candidate."""
    by_torch = {}
    for path in dict.fromkeys(candidates):
        try:
            said = ask([path])
        except InterpreterError:
            continue
        ours = _runbooks_own() and Path(said["prefix"]).resolve() == Path(sys.prefix).resolve()
        if said["distributed"] and not ours:
            by_torch.setdefault(os.path.realpath(said["torch"]), path)
    return list(by_torch.values())


def _split(python: str) -> List[str]:
    try:
        words = shlex.split(python)
    except ValueError as error:
        raise InterpreterError(f"{python} cannot be read as a command: {error}") from None
    if not words:
        raise InterpreterError("an empty interpreter was named: leave --python out, or name one")
    # `conda run` closes the standard input of what it runs unless it captures nothing (conda 26.7, conda/gateways/subprocess.py)
    captures = os.path.basename(words[0]) == "conda" and words[1:2] == ["run"] and not {"--no-capture-output", "--live-stream"} & set(words)
    return [*words[:2], "--no-capture-output", *words[2:]] if captures else words


def choose(python: str = "") -> Choice:
    """The interpreter of the ranks: ``python`` (a prefix, or "pid:4711"), the active venv or conda, the one python3 on PATH that has
    torch.distributed, else the runbook's own torch. Raises InterpreterError otherwise."""
    if python.startswith("pid:"):
        return _usable(_of_pid(python[4:]), False, f"the interpreter of process {python[4:]}")
    if python:
        prefix = _split(python)
        return _usable(prefix, _runbooks_own() and prefix == [sys.executable], "named by you")
    if active := _with_torch(_active()):
        return Choice([active[0]], shlex.quote(active[0]), False, "the active environment")
    found = _with_torch(_on_path())
    if len(found) > 1:
        raise InterpreterError(f"several interpreters with torch: {', '.join(found)}; choose one with --python (make report PYTHON=...)")
    if found:
        return Choice([found[0]], shlex.quote(found[0]), False, "the one on PATH that has torch")
    if _runbooks_own() and ask([sys.executable])["distributed"]:
        return Choice([sys.executable], shlex.quote(sys.executable), True, "the runbook's own torch: no other was found")
    raise InterpreterError("no Python with torch was found: name the interpreter of your job with --python", exit_code=3)


def main(argv: Optional[List[str]] = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        choice = choose(arguments[0] if arguments else "")
    except InterpreterError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{choice.text} ({choice.how})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
