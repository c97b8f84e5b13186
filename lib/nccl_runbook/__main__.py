"""`nccl-runbook`: one file a command. A command is imported only if it is named,
so that --help answers at once."""

import ast
import difflib
import functools
import importlib
import os
import re
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nccl_runbook.cli import answer, options
from nccl_runbook.core.facts import PlainError, Unusable
from nccl_runbook.core.redact import OWN_PATTERNS
from nccl_runbook.launch import stop
from nccl_runbook.look.terminal import Terminal

# each is a file of cli/
COMMANDS = tuple(
    "diagnose run env hosts fleet ab plan look watch reduce sync triage hang bundle soak dev".split()
)
# open at once: with 48 a notebook does not start, and the library of its sockets ends the process (pyzmq 27);
# jobs of the gym fail, and would be diagnosed
LEAST_FILES = 64
# options that take one value or more: click takes one a time
_REPEATED = ("--step", "--record", "--pid")


# wording of typer 0.29 -> ours
_PLAINER = (
    (r"Invalid value for '(.+?)': Input should be a valid integer.*", r"\1 takes a whole number"),
    (r"Invalid value for '(.+?)': Input should be a valid number.*", r"\1 takes a number"),
    (r"Invalid value for '?(.+?)'?: ", r"\1: "),
    (r"Input should be greater than or equal to ", "must be at least "),
    (r"Input should be less than or equal to ", "must be at most "),
    (r"Input should be ", "must be "),
    (r"Value error, ", ""),
    (
        r"Got unexpected extra argument\S* \((\d+)\b.*\)",
        r"\1 was not expected: for a process, write --pid \1",
    ),
    (
        r"Got unexpected extra argument\S* \((.+)\)",
        r"\1 was not expected: to read a file, run nccl-runbook diagnose \1",
    ),
    (r"Option '(.+?)' requires .*", r"\1 has no value"),
    (r"Missing argument '(.+?)'", r"\1 is missing"),
    (r"No such option: (\S+).*", r"there is no option \1"),
    (
        r"No such command '([^']*[./][^']*)'",
        r"\1 is not a command: to read a file, run nccl-runbook diagnose \1",
    ),
    (r"No such command '([^']*)'\. Did you mean '([^']*)'\?", r"there is no command \1: did you mean \2?"),
    (r"No such command '([^']*)'", r"there is no command \1: nccl-runbook --help lists them"),
    (r"\.$", ""),
)


def app(listed: bool = False) -> Any:
    """The parser of the named command, or of all; ``listed``: names and summaries only. The example of a
    command stands in the docstring of its file."""
    whole = typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    whole.callback()(nccl_runbook)
    for name in [word for word in sys.argv[1:2] if word in COMMANDS] or COMMANDS:
        if listed:
            whole.command(name, help=_help(name))(lambda: None)
        else:
            command = importlib.import_module(f"nccl_runbook.cli.{name}")
            example = command.__doc__.partition("\n\n")[2].strip().replace("\n", " ")
            whole.command(name, epilog=example.replace(" or nccl-runbook", "   or   nccl-runbook"))(
                getattr(command, name)
            )
    return whole


def _help(command: str) -> str | None:
    """The docstring of a command, read and not imported."""
    return next(
        ast.get_docstring(n)
        for name in (f"{command}.py", f"{command}/__init__.py")
        for path in (Path(__file__).parent / "cli").glob(name)
        for n in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(n, ast.FunctionDef) and n.name == command
    )


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"nccl-runbook {version('nccl-runbook')}")
        except PackageNotFoundError:  # run from the source tree, without an installation
            typer.echo("nccl-runbook (not installed: version unknown)")
        raise typer.Exit()


def nccl_runbook(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find the cause of a multi-GPU job that failed, hangs or is slow, and the fix. Exit codes: 0
    healthy, 1 the runbook failed, 2 wrong usage, 3 broken or degraded, 4 unknown, 129/130/143
    interrupted."""


def spread(arguments: Sequence[str]) -> list[str]:
    """`--step A B` as `--step A --step B`, and `-p NAME VALUE` as `-p NAME=VALUE`: forms that typer 0.29
    does not accept."""
    rest, spreading, result = list(arguments), "", []
    while rest:
        argument = rest.pop(0)
        if argument == "--":  # what follows is a command of the reader's own
            return [*result, argument, *rest]
        if argument == "-p" and len(rest) > 1 and "=" not in rest[0]:
            result += ["-p", f"{rest.pop(0)}={rest.pop(0)}"]
            spreading = ""
        elif argument.startswith("-"):
            spreading = argument if argument in _REPEATED else ""
            result.append(argument)
        else:
            result += ([spreading] if spreading and result[-1] != spreading else []) + [argument]
    return result


def _nearest(error: Any) -> str:
    """ ": did you mean --html?" for an option that does not exist; empty if none resembles it."""
    if not hasattr(error, "possibilities"):  # of typer 0.29: it is about something else
        return ""
    # -html is read as -h and three more
    typed = next((word for word in sys.argv if word.startswith(error.option_name)), "").partition("=")[0]
    known = [name for parameter in error.ctx.command.get_params(error.ctx) for name in parameter.opts]
    near = difflib.get_close_matches(f"--{typed.lstrip('-')}", known, 1)
    return f": did you mean {near[0]}?" if near else ""


def main() -> None:
    """Run the command line and exit with its code: 2 for wrong usage, 1 if the answer cannot be written, 130
    if interrupted."""
    Terminal.take()
    stop.end()  # until a command keeps what was measured so far
    options.own_patterns_in(os.environ.pop(OWN_PATTERNS, ""))  # set again if the file can be read
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < LEAST_FILES:
        answer.leave(
            f"nccl-runbook needs {LEAST_FILES} open files at a time. First run: ulimit -n {LEAST_FILES}", 1
        )
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # `<&-`: as if nothing came
    command, *words = sys.argv[1:] or [""]
    plain = command in ("diagnose", "triage") or (command == "env" and len(words) == 1)
    if words and plain and all(word == "-" or word[:1] != "-" for word in words):
        # paths alone need no parser, which typer takes 0.06 s to build
        getattr(importlib.import_module(f"nccl_runbook.cli.{command}"), command)(
            Path(words[0]) if command == "env" else words
        )
    try:
        app(listed=command not in COMMANDS)(
            args=spread(sys.argv[1:]), prog_name="nccl-runbook", standalone_mode=not command
        )
    except (typer.Abort, EOFError):  # at the prompt
        sys.exit(130)
    except typer.BadParameter.__mro__[2] as error:  # ClickException: typer 0.29 does not export it
        answer.leave(
            functools.reduce(lambda text, row: re.sub(*row, text), _PLAINER, error.format_message())
            + _nearest(error)
            + (f" (nccl-runbook {command} --help lists the options)" if command in COMMANDS else "")
        )
    except PlainError as error:
        answer.leave(error, 2 if isinstance(error, Unusable) else 1)
    except OSError as error:  # no folder for temporary files, a full disk
        answer.leave(
            error if error.filename or not error.errno else f"cannot write the answer: {error.strerror}", 1
        )


if __name__ == "__main__":
    main()
