"""A launch script or a list of variables with a remedy applied: a setting or an option added, changed or removed, and nothing else.

Nothing is executed, and no value is guessed. The changed text is read again: if it sets anything else than it should, there is no change.
"""
import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from nccl_runbook.causes.toml import table
from nccl_runbook.causes.variables import variables
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.read_file import MOST_BYTES, NAME_KEY, VALUE_KEY, assigned, is_dump, live, placed, value_of

_HANDS_ON = {"docker run": "-e", "podman run": "-e", "gantry run": "--env", "mpirun": "-x"}  # a variable, to the ranks
_REPEATED = ("--cap-add", "--device")  # a second one adds to the first
_UNWANTED = re.compile(r"(?:.*\b)?unset((?: [A-Z]\w+)+)\b.*")
_OPTIONS = re.compile(rf"({'|'.join(_HANDS_ON)}|apptainer exec|torchrun|accelerate launch|deepspeed)"
                      r"((?: --?[a-z][\w-]*(?:[= ](?![A-Z]+\b)[\w.:/=-]+)?)+) (?:\.\.\.|IMAGE|(?:--nproc-per-node N )?train\.py)(?: *#.*)?")
_LIMIT = re.compile(r"ulimit -\w \w+")
_APPLICABLE = (_UNWANTED, _OPTIONS, _LIMIT, re.compile(r"(?:export )?(?:[A-Z]\w*=[\w.:/,^-]+ ?)+(?: *#.*)?"))
_OPTION = re.compile(r"(--?[a-z][\w-]*)([= ][^- ]\S*)?")
_LAUNCH = (r"[ \t]*(?:[A-Za-z_]\w*=\S+[ \t]+|exec[ \t]+|time[ \t]+|nohup[ \t]+)*(?:\S*/)?"
           r"(?:python3?[ \t]|(?:{})(?![\w-]))")
_LISTED = re.compile(r"--export[= ]\S+|--env[= ]\S+,[A-Z_]+=")  # a comma ends a value
_GOES_ON = re.compile(r"[ \t]*\\[ \t]*(?=\r?\n\Z)")
_NOTHING = re.compile(r"(?P<indent>[ \t]*)-?[ \t]*(?P<shell>(?:export|declare|ENV|setenv)\b)?[ \t]*;?[ \t]*\\?[ \t]*")


@dataclasses.dataclass(frozen=True)
class Fix:
    """``text``: the whole file at ``path`` as it should be; ``diff``: what changes, without secrets."""

    path: str
    text: str
    diff: str

    @property
    def lines(self) -> list[str]:
        """As a terminal shows it."""
        return [f"   That change in {self.path} (--out FILE writes the changed file):", *(f"       {row}" for row in self.diff.split("\n"))]


def fix_of(finding: Finding | None, paths: Iterable[str]) -> Fix | None:
    """The first remedy of a finding that one of these files can hold, None without one, or if the finding is only possible. Of the lines of
    a remedy, those behind one that is to be run by hand rest on its result."""
    remedies = finding.remedy if finding and finding.status != "possible" else ()
    lines = (line for remedy in remedies for line in itertools.takewhile(
        lambda line: any(form.fullmatch(line) for form in _APPLICABLE), remedy.lines))
    for line, path in itertools.product(lines, paths):
        old = _text(path)
        if new := changed(old, line, variable_of(finding)):
            secrets = Redactor({name: value for name, (value, _) in assigned(old).items()})
            return Fix(path, new, secrets.text(_diff(old, new, path)))
    return None


def variable_of(finding: Finding) -> str:
    """The variable that a finding is about, "" for one about the host or a library."""
    path = finding.evidence[0].source if finding.evidence else ""
    return path.rpartition(".")[2] if ".variables." in path or ".conf." in path else ""


def _text(path: str) -> str:
    """As it stands, byte for byte; "" for what is no file to change."""
    file = Path(path).expanduser()
    data = file.read_bytes() if file.is_file() and file.stat().st_size <= MOST_BYTES else b"\0"
    text = data.decode("utf-8", "surrogateescape")
    return "" if "\0" in text or is_dump(text) else text


def _values(text: str) -> dict[str, str]:
    """The variables; other names are keys of a document, or options."""
    return {name: value for name, (value, _) in assigned(text).items() if name.isupper()}


def _rows(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _diff(old: str, new: str, path: str) -> str:
    """As `diff -u` prints it."""
    rows = difflib.unified_diff(_rows(old), _rows(new), path, path, n=2)
    text = "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)
    return text.encode("utf-8", "replace").decode().rstrip("\n")


def changed(text: str, line: str, about: str = "") -> str:
    """The text with this line of a remedy; "" if it cannot hold it, or holds it already. ``about``: the variable that the remedy is for."""
    before, wanted, unwanted, options = _values(text), _values(line), _UNWANTED.fullmatch(line), _OPTIONS.fullmatch(line)
    if unwanted:
        wanted = dict.fromkeys(unwanted[1].split())
    # nobody here knows the names of another machine's interfaces
    if any(value and name in variables() and variables()[name].values.startswith("interfaces") for name, value in wanted.items()):
        return ""
    expected = {**before, **wanted}
    if len(wanted) == 1 and about in before and about not in wanted:
        expected[about] = None
        new = _set(text, about, *wanted.values(), *wanted)
    elif options and not wanted:
        new = _with_options(text, options[1], options[2])
    else:
        new = _before_launch(text, line) if _LIMIT.fullmatch(line) else text
        for name, value in wanted.items():
            new = _set(new, name, value, name)
    return new if new != text and _values(new) == {n: v for n, v in expected.items() if v is not None} else ""


def _set(text: str, name: str, value: str | None, new_name: str) -> str:
    """With that value, and that name, wherever it is set, else before the launch; without the variable if there is no value."""
    rows, is_set = _rows(text), False
    for at in range(len(rows)):
        acts = live(rows[at].rstrip("\r\n"))
        key = NAME_KEY.match(acts)
        if key and key["name"] == name and (pair := VALUE_KEY.match(live("".join(rows[at + 1:at + 2]).rstrip("\r\n")))):
            is_set = True
            if value is not None:
                rows[at + 1] = _with_value(rows[at + 1], pair, value)
            elif acts.lstrip().startswith("-"):
                rows[at:at + 2] = ["", ""]
        for match in reversed([m for m in placed(acts) if m["name"] == name]):
            is_set = True
            if value is None:
                _remove(rows, at, match)
            else:
                row = _with_value(rows[at], match, value)
                rows[at] = row[:match.start("name")] + new_name + row[match.end("name"):]
    if is_set or value is None:
        return "".join(rows)
    program = next((program for program in _HANDS_ON if _command(text, program)), "")
    if program:
        return _with_options(text, program, f"{_HANDS_ON[program]} {name}={value}")
    return _before_launch(text, f"export {name}={value}")


def _with_value(row: str, match: re.Match[str], value: str) -> str:
    """The row with another value there; what closes a list around the old one stays."""
    begin, end = next(match.span(group) for group in "dsb" if match[group] is not None)
    old = value_of(match).partition("," if _LISTED.search(row) else "\n")[0]
    return row[:begin] + value + row[begin + len(old) if row.startswith(old, begin) else end:]


def _remove(rows: list[str], at: int, match: re.Match[str]) -> None:
    """That setting with its option; the row as well if nothing else stands there, and a block that would be empty unsets it."""
    setting = match[0].partition("," if _LISTED.search(rows[at]) else "\n")[0]
    with_option = rf"(?:,|[ \t]*(?:(?:-e|-x|--env)[ =])?)([\"']?){re.escape(setting)}\1"
    left = re.sub(with_option, "", rows[at], count=1)
    if rows[at].lstrip().startswith(setting):
        left = rows[at][:match.start()] + left.lstrip(" \t")
    nothing, end = _NOTHING.fullmatch(live(left.rstrip("\r\n"))), rows[at][len(rows[at].rstrip("\r\n")):]
    if nothing and nothing["shell"] and nothing["indent"]:
        left = f"{nothing['indent']}unset {match['name']}{end}"
    elif nothing:
        left = ""
        if at and not _GOES_ON.search(rows[at]):
            rows[at - 1] = _GOES_ON.sub("", rows[at - 1])
    elif rows[at][match.end("name")] not in "= \t":  # of a program or a document only a row of its own
        left = rows[at]
    rows[at] = re.sub(r"\b(?:export|declare)(?=[ \t]*[;&|])", f"unset {match['name']}", left)


def _command(text: str, program: str) -> re.Match[str] | None:
    """Where a program is called, and the rest of its command; never in a comment."""
    name = program.replace(" ", "[ ]+")
    return re.search(rf"(?m)^(?![ \t]*#)[^\n#]*?(?<![\w./-]){name}(?![\w-])(?P<rest>(?:[^\n\\]|\\[^\n]|\\\r?\n)*)", text)


def _with_options(text: str, program: str, options: str) -> str:
    """With these options of the program, each in place of one that says otherwise."""
    for flag, value in _OPTION.findall(options) if _command(text, program) else ():
        command = _command(text, program)
        key = flag + (value if flag in _REPEATED else value.rpartition("=")[0])
        own = re.search(rf"(?<!\S){re.escape(key)}(?:[= ](?!-)\S+)?(?!\S)", command["rest"])
        begin, end = own.span() if own else (0, 0)
        rest = f"{command['rest'][:begin]}{' ' * (not own)}{flag}{value}{command['rest'][end:]}"
        text = text[:command.start("rest")] + rest + text[command.end("rest"):]
    return text


def _before_launch(text: str, line: str) -> str:
    """With a line of its own before the command that starts the ranks; none where a container or another host would not see it."""
    rows, programs = _rows(text), [re.escape(p) for row in table("scripts/launchers").values() for p in row["programs"]]
    launch = re.compile(_LAUNCH.format("|".join(programs)))
    at = next((at for at, row in enumerate(rows) if launch.match(row)), None)
    if at is None or any(_command(text, program) for program in _HANDS_ON):
        return text
    while at and _GOES_ON.search(rows[at - 1]):
        at -= 1
    indent, ending = re.match(r"([ \t]*)[^\r\n]*(\r?\n?)", rows[at]).groups()
    rows.insert(at, indent + line + (ending or "\n"))
    return "".join(rows)
