"""A launch script or a list of variables with a remedy applied: a setting or an option added, changed or removed, and nothing else.

Nothing is executed, and no value is guessed. The changed text is read again: if it sets anything else than it should, there is no change.
"""
import dataclasses
import difflib
import functools
import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from nccl_runbook.causes.causes import table, variables
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.read_file import assigned, is_dump

MOST_BYTES = 1 << 18  # of a script that somebody wrote
_UNWANTED = re.compile(r"(?:.*\b)?unset((?: [A-Z]\w+)+)\b.*")
_WANTED = re.compile(r"(?:export )?(?:[A-Z]\w*=[\w.:/,^-]+ ?)+(?: *#.*)?")
_LIMIT = re.compile(r"ulimit -\w \w+")
_OPTIONS = re.compile(r"((?:docker|podman|gantry) run|apptainer exec|torchrun|accelerate launch|deepspeed)"
                      r"((?: --?[a-z][\w-]*(?:[= ](?![A-Z]+\b)[\w.:/=-]+)?)+) (?:\.\.\.|IMAGE|(?:--nproc-per-node N )?train\.py)(?: *#.*)?")


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
        lambda line: any(form.fullmatch(line) for form in (_UNWANTED, _WANTED, _LIMIT, _OPTIONS)), remedy.lines))
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


def _diff(old: str, new: str, path: str) -> str:
    """As `diff -u` prints it."""
    before, after = (io.StringIO(text, newline="\n").readlines() for text in (old, new))
    rows = (row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n"
            for row in difflib.unified_diff(before, after, path, path, n=2))
    return "".join(rows).encode("utf-8", "replace").decode().rstrip("\n")


def changed(text: str, line: str, about: str = "") -> str:
    """The text with this line of a remedy; "" if it cannot hold it, or holds it already. ``about``: the variable that the remedy is for."""
    before, wanted, unwanted, options = _values(text), _values(line), _UNWANTED.fullmatch(line), _OPTIONS.fullmatch(line)
    if unwanted:
        wanted = dict.fromkeys(unwanted[1].split())
    # nobody here knows the names of another machine's interfaces
    if any(value and name in variables() and variables()[name].values.startswith("interfaces") for name, value in wanted.items()):
        return ""
    renamed = len(wanted) == 1 and about in before and about not in wanted
    expected = {**before, **wanted, **dict.fromkeys([about] * renamed)}
    new = _applied(text, "line", line=line) if _LIMIT.fullmatch(line) else text
    for option in re.findall(r"--?[a-z][\w-]*(?:[= ][^- ]\S*)?", options[2]) if options and not wanted else ():
        flag = re.fullmatch(r"(.+?(?: \w+(?==))?)(?:[= ].*)?", option)[1]
        new = _applied(new, "option", program=options[1], option=option, flag=flag)
    for name, value in wanted.items():
        how = "remove" if value is None else "change" if renamed or name in before else "add"
        new = _applied(new, how, name=about if renamed else name, new=name, value=value or "")
    return new if new != text and _values(new) == {n: v for n, v in expected.items() if v is not None} else ""


def _applied(text: str, how: str, **fields: str) -> str:
    """The text after these rows of change.toml: of a change or a removal all, else up to the first one that fits."""
    every = how in ("change", "remove")

    def filled(form: str) -> str:
        return re.sub(r"<([a-zA-Z]\w*)>", lambda m: {**table("environment/change")["part"], **fields}[m[1]], form)

    @functools.cache
    def acts(rows: str) -> bool:
        """Not a comment, or a text that is only shown."""
        return not every or fields["name"] in assigned(rows)

    def put(found: re.Match[str]) -> str:
        row, end = text.rfind("\n", 0, found.start() + 1) + 1, (text.find("\n", found.end()) + 1) or len(text)
        return found.expand(filled(form["put"])) if acts(text[row:end]) else found[0]

    for form in table("environment/change")[how]:
        fits = "unless" not in form or not re.search(filled(form["unless"]), fields.get("option", text))
        new = re.sub(filled(form["at"]), put, text, count=not every) if fits else text
        if not every and new != text:
            return new
        text = new
    return text
