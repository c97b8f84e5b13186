"""The fix of a finding as a diff of the script that it was found in.
Nothing is executed, and nothing is written."""

import difflib
import re
from collections.abc import Iterable

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.read_file import assigned
from nccl_runbook.logs.file import text_of

# what a line of a remedy does to a variable, as launchers want it; no value: unset
_SETTING = re.compile(
    r"(?:unset|# remove|- \{name:|(?:export )?(?=\w+=)) ?(?P<name>\w+)"
    r"(?:(?:=|, value: \")(?P<value>[\w.:/,^-]+))?(?:\"\})?(?: from env: .*|  #.*)?"
)


def variable_of(finding: Finding | None) -> str:
    """The variable that a finding is about; empty for a finding about the host or a library."""
    path = finding.evidence[0].source if finding and finding.evidence else ""
    return path.rpartition(".")[2] if ".variables." in path or ".conf." in path else ""


def diff_of(finding: Finding | None, paths: Iterable[str]) -> str:
    """A change as ``diff -u`` prints it, of the first file with the setting; empty if the remedy changes no
    variable that the finding is about, or changing lines of the shell is not enough."""
    lines = [line for remedy in (finding.remedy if finding else ()) for line in remedy.lines]
    for path in paths if lines else ():
        text = text_of(path, 1 << 18, "a script")
        values = {} if isinstance(text, Gap) or {"\0", "\r"} & {*text} else assigned(text)
        for setting in (
            match for match in map(_SETTING.fullmatch, lines) if match and match["name"] in values
        ):
            name, value = setting["name"], setting["value"]
            after = changed(text, name, value)
            # a log names no file, but the value
            shown = rf"\b{name}(?:=| set by environment to ){re.escape(values[name][0])}(?![\w,.:-])"
            is_meant = name == variable_of(finding) or any(re.search(shown, e.text) for e in finding.evidence)
            if is_meant and assigned(after).get(name, (None,))[0] == value:
                # whole, as a secret may have several lines
                hide = Redactor({n: raw for n, (raw, _) in values.items()}).text
                return "\n".join(
                    difflib.unified_diff(
                        hide(text).splitlines(), hide(after).splitlines(), path, path, n=2, lineterm=""
                    )
                )
    return ""


def changed(text: str, name: str, value: str | None) -> str:
    """The text with another value of a variable, or (None) without it."""
    rows = table("environment/read")["change"]
    for form, kept in rows["removed" if value is None else "set"]:
        whole = re.sub("<([A-Z]+)>", lambda piece: rows["pieces"][piece[1]], form).replace("NAME", name)
        text = re.sub(f"(?m){whole}", kept.replace("NAME", name).replace("VALUE", value or ""), text)
    return text
