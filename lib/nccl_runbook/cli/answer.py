"""How a command ends: an answer on standard output, one page in a file, an exit code;
or one sentence why it cannot."""

import dataclasses
import errno
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TextIO

from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import EXIT_CODES, Finding
from nccl_runbook.core.redact import Redactor, escaped
from nccl_runbook.core.share import SHARE
from nccl_runbook.environment.facts import Environment
from nccl_runbook.logs.file import HELD, waits
from nccl_runbook.report import beside
from nccl_runbook.report.pictures import FOLDER
from nccl_runbook.report.tables import Table

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # the disk's fault; any other is that of the name
ABSENT = "there is no file"  # in the words for a name that leads nowhere
# a line to run next
_NEXT = re.compile(r"(?m)^( {6,8}|   decides: (?:[^\n]{0,500}: )?|next: )nccl-runbook(?= )")
_OF_JSON = re.compile(r'(?:(?<=")|(?<=\\n))nccl-runbook(?= [a-z]+ )')  # the same in JSON


def leave(sentence: object, code: int = 2) -> NoReturn:
    """Print the error and exit: 2 for wrong usage, 1 if the runbook itself fails."""
    say(f"nccl-runbook: {sentence}")
    sys.exit(code)


def named(paths: list[str], one: bool = False) -> None:
    """Exit with an error if a path does not exist or is never readable; with ``one``, unreadable paths
    matter only if all are. What <(command) gives is read like "-"."""
    wrong = sorted(
        (
            why
            for path in paths
            if path != "-" and not path.startswith(HELD if one else ()) and (why := never_read(path))
        ),
        key=lambda why: not why.startswith(ABSENT),
    )
    if wrong and (not one or wrong[0].startswith(ABSENT) or len(wrong) == len(paths)):
        leave(wrong[0])


def never_read(path: str) -> str:
    """Why nobody can read this path, else empty."""
    name = os.path.expanduser(path)
    if not os.path.exists(name):
        return (
            f"{path} is a link to {os.readlink(name)}, which leads to no file"
            if os.path.islink(name)
            else f"{ABSENT}{' that matches' if '*' in path else ''} {path}"
        )
    # to open a pipe would wait for whoever writes to it
    return (
        ""
        if (os.path.isfile(name) and not waits(name)) or os.path.isdir(name)
        else (f"{path} is a pipe, a socket or a device, not a regular file; first copy its text into a file")
    )


def put(text: str, stream: TextIO) -> None:
    """Print a line. A reader who has gone (`| head`, a closed terminal) does not stop the page and the exit
    code."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if error.errno not in (errno.EPIPE, errno.EIO):
            leave(f"cannot write the answer: {error.strerror or error}", 1)


def say(line: str) -> None:
    """Print progress on standard error."""
    put(Redactor(os.environ).text(line), sys.stderr)


def tell(answer: Any) -> None:
    """Print the answer on standard output: text as it is, any other value as JSON; redacted, no control
    characters. Comes before the page, so that a failure to write that loses no answer."""
    import json

    redactor = Redactor(os.environ)
    if isinstance(answer, str):
        shown = _NEXT.sub(lambda m: m[1] + shlex.quote(program()), redactor.text(answer))
    else:
        text = json.dumps(
            redactor.json(to_json(answer)),
            indent=1,
            ensure_ascii="utf" not in (getattr(sys.stdout, "encoding", None) or "utf").lower(),
        )
        shown = escaped(_OF_JSON.sub(lambda _: json.dumps(shlex.quote(program()))[1:-1], text))
    put(shown, sys.stdout)


def end(
    shown: Any,
    code: int,
    html: Path | None = None,
    page: Callable[[], str] = str,
    save: Path | None = None,
    record: Callable[[], str] = str,
) -> NoReturn:
    """Print the answer, write the requested record and page, and exit with the exit code."""
    tell(shown)
    if save is not None:
        write(save, record(), 0o600)
    if html is not None:
        write(html, page())
    sys.exit(code)


def write(path: Path, text: str, mode: int = 0o666) -> None:
    """Write the file atomically (a page with the mode of the umask, to be shared); exits with an error if
    that fails."""
    from nccl_runbook.core.records import write_text

    named_path, path = path, beside.free(path)
    if path != named_path:
        say(f"another command wrote {named_path} in the meantime, so this answer is in {path}")
    try:
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout: not to be replaced
            path.write_text(text, encoding="utf-8", errors="replace")
        else:
            write_text(path, text, mode)
            beside.remember(path)
    except OSError as error:
        leave(f"cannot write {path}: {error.strerror or error}", 1 if error.errno in FULL else 2)


def program() -> str:
    """How the reader can call this again: by name where PATH has it or a page is to be shared, else as now
    (`make report` calls .venv/bin/nccl-runbook)."""
    own = (
        sys.argv[0]
        if Path(sys.argv[0]).name == "nccl-runbook"
        else os.environ.get(FOLDER, "") + "nccl-runbook"
    )
    return "nccl-runbook" if shutil.which("nccl-runbook") or SHARE in os.environ else own


def command(*hidden: str) -> str:
    """The line that repeats this call, redacted word by word before quoting, without words that are ours."""
    redactor = Redactor(os.environ)
    return redactor.text(
        shlex.join([program(), *(redactor.text(word) for word in sys.argv[1:] if word not in hidden)])
    )


def judged(environment: Environment | Gap) -> dict[str, str]:
    """Software of the first role, as a page shows it."""
    return {
        name: text
        for role in getattr(environment, "roles", [])[:1]
        for name, text in (("torch", role.torch), ("cuda", role.torch_cuda), ("nccl", role.reported))
        if isinstance(text, str)
    }


def page_of(
    step: str,
    sentence: str,
    findings: Iterable[Finding],
    tables: Iterable[Table],
    code: int,
    software: dict[str, str] | None = None,
    not_seen: Iterable[str] = (),
    diff: str = "",
) -> str:
    """The page of one step that was judged without a run: index.html of a report, with ``sentence`` on top.
    ``software``: by records.Judged; ``not_seen``: what could not be seen, with why."""
    from nccl_runbook.case.judge import next_test
    from nccl_runbook.core.records import Judged, of_findings
    from nccl_runbook.report.verdict import verdict_document
    from nccl_runbook.report.verdict_document import RunInfo

    shown = of_findings(step, findings, tables, Judged(**(software or {})), not_seen)
    document = verdict_document(
        RunInfo(id=step, started=shown.started, command=command(), planned=[step], asked=[step]), [shown]
    )
    # for what no finding holds, as files that were not read
    if code and EXIT_CODES[document.verdict] != code:
        document = dataclasses.replace(
            document, verdict="degraded" if code == EXIT_CODES["degraded"] else "unknown"
        )
    return index(
        dataclasses.replace(document, sentence=Redactor(os.environ).text(sentence), exit_code=code),
        [shown],
        diff=diff,
        test=next_test(document, shown.findings[0], (), (), {})
        if any(f.id == "hang-told" for f in shown.findings[:1])
        else None,
    )


def page_of_case(case: Any, diff: str = "") -> str:
    """The page of a case. ``diff``: the fix as a change of a script."""
    return index(
        case.document,
        case.found.records,
        test=case.test,
        diff=diff,
        collect=case.collect,
        fits=[c.title for c in case.found.fits],
    )


def index(document: Any, records: Iterable[Any], **more: Any) -> str:
    """index.html of a report; loads jinja2 only when a page is wanted."""
    from nccl_runbook.report.page import render_index

    return render_index(document, records, **more)
