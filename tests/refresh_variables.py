"""Compare causes/variables.toml with an unpacked NCCL tree: `python tests/refresh_variables.py PATH [--write]`.

Prints what that tree reads and the table lacks, and documented names that the table does not mark so. --write adds the missing names
with an empty meaning, which the tests refuse until somebody has written one.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "lib/nccl_runbook/causes/variables.toml"
sys.path.insert(0, str(TABLE.parents[2]))

_HEADING = re.compile(r"^(NCCL_\w+)(?: \(formerly \w+\))?\n[-^~=]{4,}\n", re.M)
_PARAM = re.compile(r'(?<!DEFINE_)\bNCCL_PARAM\(\s*\w+\s*,\s*"(\w+)"')
_DEFINED = re.compile(r"DEFINE_NCCL_PARAM\(\s*\w+\s*,[^,]*,\s*(NCCL_\w+)")
_ASKED = re.compile(r'(?:[gG]et[eE]nv\w*|ncclGetLevel)\([^;]*?"(NCCL_\w+)"')
NOT_VARIABLES = {"NCCL_PARAM"}


def in_guide(tree: Path) -> dict[str, str]:
    """Names of the user guide and the version that brought each, "" where it does not say."""
    text = (tree / "docs/userguide/source/env.rst").read_text(encoding="utf-8")
    parts = _HEADING.split(text)
    since = ((name, re.search(r"since ([\d.]*\d)", body[:300])) for name, body in zip(parts[1::2], parts[2::2]))
    return {name: found[1] if found else "" for name, found in since}


def in_sources(tree: Path) -> set[str]:
    """Names that the sources read: parameters, and what they ask the environment for."""
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in (tree / "src").rglob("*") if p.suffix in (".cc", ".h", ".cu")]
    return {f"NCCL_{n}" for t in texts for n in _PARAM.findall(t)} | {
        n for t in texts for pattern in (_DEFINED, _ASKED) for n in pattern.findall(t)} - NOT_VARIABLES


def missing(tree: Path) -> dict[str, str]:
    """Names that the tree has and the table lacks, and where they stand."""
    from nccl_runbook.causes.variables import variables

    guide = in_guide(tree)
    told = {n: f"documented{f', since {v}' if v else ''}" for n, v in guide.items()}
    found = {**dict.fromkeys(in_sources(tree), "in the sources only"), **told}
    return {n: why for n, why in sorted(found.items()) if n not in variables()}


def main(arguments: list[str]) -> int:
    from nccl_runbook.causes.variables import variables

    tree = Path(arguments[0])
    for name in sorted(in_guide(tree)):
        if name in variables() and not variables()[name].documented:
            print(f"{name}: stands in the user guide, but is not marked so")
    new = missing(tree)
    for name, why in new.items():
        print(f"{name}: {why}, not in the table")
    if "--write" in arguments and new:
        rows = "".join(
            f'{n} = {{ means = "", values = "text"{", documented = true" if why.startswith("doc") else ""} }}\n' for n, why in new.items()
        )
        text = TABLE.read_text(encoding="utf-8")
        TABLE.write_text(text.replace("\n[reader.torch]", f"{rows}\n[reader.torch]", 1), encoding="utf-8")
    print(f"{len(new)} names to add")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else __doc__)
