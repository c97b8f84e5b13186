"""The fix of a finding as a diff of the script that it was found in.
Nothing is executed, and nothing is written."""

import difflib
import re
from collections.abc import Iterable

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.read_file import assigned
from nccl_runbook.logs.file import text_of

# without an expression of the shell; an own word, to its end
_VALUE = r"(?:\"[^\"\n$`]*\"|'[^'\n]*'|[^\s;&|<>()\"'\\$`]*)(?=[\s;&|]|$)"


def variable_of(finding: Finding | None) -> str:
    """The variable that a finding is about; empty for a finding about the host or a library."""
    path = finding.evidence[0].source if finding and finding.evidence else ""
    return path.rpartition(".")[2] if ".variables." in path or ".conf." in path else ""


def diff_of(finding: Finding | None, paths: Iterable[str]) -> str:
    """A change as ``diff -u`` prints it, of the first file with the setting; empty if the remedy does not
    change the finding's variable, or changing lines of the shell is not enough."""
    name, lines = (
        variable_of(finding),
        [line for remedy in finding.remedy for line in remedy.lines] if finding else [],
    )
    setting = next(
        filter(
            None,
            (re.fullmatch(rf"unset {name}|(?:export )?{name}=([\w.:/,^-]+)", line) for line in lines if name),
        ),
        None,
    )
    for path in paths if setting else ():
        text = text_of(path, 1 << 18, "a script")
        after = "" if isinstance(text, Gap) or "\0" in text else changed(text, name, setting[1])
        if after and assigned(after).get(name, (None,))[0] == setting[1]:
            hide = Redactor(
                {n: value for n, (value, _) in assigned(text).items()}
            ).text  # whole, as a secret may have several lines
            return "\n".join(
                difflib.unified_diff(
                    hide(text).splitlines(), hide(after).splitlines(), path, path, n=2, lineterm=""
                )
            )
    return ""


def changed(text: str, name: str, value: str | None) -> str:
    """The script with another value of a variable, or (None) without it: ``unset`` replaces an export, since
    no block may be empty."""
    if value is not None:
        return re.sub(
            rf"(?m)^((?![ \t]*(?:echo|printf)\b)[^#\n]*?)(?<![\w./$-]){name}={_VALUE}",
            lambda m: f"{m[1]}{name}={value}",
            text,
        )
    text = re.sub(
        rf"(?m)(?<!\\\n)^([ \t]*)export[ \t]+{name}={_VALUE}(?=[ \t\r]*$|[ \t]+#)", rf"\1unset {name}", text
    )
    return re.sub(
        rf"(?m)(?<!\\\n)^([ \t]*(?:export[ \t]+)?){name}={_VALUE}[ \t]+(?=[A-Za-z_./])", r"\1", text
    )
