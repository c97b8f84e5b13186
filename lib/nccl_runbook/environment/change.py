"""The fix of a finding as a diff of the script that it was found in. Nothing is executed, and nothing is written."""
import difflib
import re
from collections.abc import Iterable

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.read_file import MOST_BYTES, assigned
from nccl_runbook.logs.file import text_of

_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|\"'\\]*)"


def variable_of(finding: Finding | None) -> str:
    """The variable that a finding is about, "" for one about the host or a library."""
    path = finding.evidence[0].source if finding and finding.evidence else ""
    return path.rpartition(".")[2] if ".variables." in path or ".conf." in path else ""


def diff_of(finding: Finding | None, paths: Iterable[str]) -> str:
    """As ``diff -u`` prints it, for the first file that holds the setting; "" where the remedy does not remove the variable of this finding
    or give it another value, or where that cannot be done by changing lines of the shell."""
    name, lines = variable_of(finding), [line for remedy in finding.remedy for line in remedy.lines] if finding else []
    told = next(filter(None, (re.fullmatch(rf"unset {name}|(?:export )?{name}=([\w.:/,^-]+)", line) for line in lines if name)), None)
    for path in paths if told else ():
        text = text_of(path, MOST_BYTES, "a script")
        after = "" if isinstance(text, Gap) else changed(text, name, told[1])
        if after and assigned(after).get(name, (None,))[0] == told[1]:
            rows = difflib.unified_diff(text.splitlines(), after.splitlines(), path, path, n=2, lineterm="")
            return Redactor({n: value for n, (value, _) in assigned(text).items()}).text("\n".join(rows))
    return ""


def changed(text: str, name: str, value: str | None) -> str:
    """A script with another value of a variable, or with None without it; a line that exports it unsets it, as no block may be empty."""
    if value is not None:
        return re.sub(rf"(?<![\w./$-]){name}={_VALUE}", lambda _: f"{name}={value}", text)
    text = re.sub(rf"(?m)^([ \t]*)export[ \t]+{name}={_VALUE}[ \t\r]*(?=#|$)", rf"\1unset {name}", text)
    text = re.sub(rf"(?m)^([ \t]*(?:export[ \t]+)?){name}={_VALUE}[ \t]+(?=[^\s#])", r"\1", text)
    return re.sub(rf"(?m)^{name}={_VALUE}[ \t\r]*(?:#.*)?\n", "", text)
