"""What the tool says about public texts, beside the labels of this folder's lists. Fetches nothing.

    python tests/benchmark/score.py FOLDER [--tool .venv/bin/nccl-runbook] [--all]

FOLDER holds each text of scripts.tsv, configurations.tsv and logs.tsv that you have fetched, as LIST/NUMBER/NAME: scripts/007/run.sh.
The lists name repository, commit and path of each. ``--all`` also prints what was named in each text.
"""
from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "lib"))
from nccl_runbook.search.group_testing import wilson  # noqa: E402

COMMANDS = {"scripts": ("env", "plan"), "configurations": ("env", "plan"), "logs": ("triage",)}
GPUS = "8"  # of a node, if a text does not say it


def answer(tool: str, command: str, path: Path) -> dict[str, object]:
    """The JSON of one command; ``refused`` if it read the text and has no answer."""
    for more in ((), ("--gpus", GPUS)):
        done = subprocess.run([tool, command, str(path), "--json", *more], capture_output=True, text=True, timeout=300)
        if command != "plan" or "--gpus N" not in done.stderr:
            break
    if done.returncode not in (0, 3, 4) and not (done.returncode == 2 and not done.stdout):
        raise SystemExit(f"{command} {path}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout) if done.stdout else {"refused": done.stderr.strip()}


def named(command: str, given: dict[str, object]) -> list[str]:
    """What an answer accuses: settings that are warned about, a plan that fails, causes of a failure."""
    if command == "env":
        rows = [f for f in given.get("findings", []) if f["severity"] in ("warn", "broken")]
        return [f"env:{f['id']}:{f['variable']}" for f in rows]
    if command == "plan":
        return [] if "refused" in given or given["verdict"] == "clean" else [f"plan:{given['verdict']}"]
    causes = [h["cause"] for h in given.get("hypotheses", [])]
    return [f"triage:{cause}" for cause in causes if cause != "benign"]


def labels(row: dict[str, str]) -> dict[str, str]:
    """What was named when a text was labelled, with true, false or undecided: `env:unread:NCCL_X=true; plan:broken=false`."""
    return dict(part.rsplit("=", 1) for part in row["labels"].split("; ") if part)


def score(kind: str, folder: Path, tool: str, everything: bool) -> None:
    rows = list(csv.DictReader((HERE / f"{kind}.tsv").open(encoding="utf-8"), delimiter="\t"))
    for sample in sorted({row["sample"] for row in rows}):
        there, accused, planned, new = 0, 0, 0, 0
        for row in (r for r in rows if r["sample"] == sample):
            path = folder / kind / row["number"] / Path(row["path"]).name
            if not path.is_file() or row["kind"] == "failed":  # a log that turned out to be of a failed run
                continue
            there += 1
            given = {command: answer(tool, command, path) for command in COMMANDS[kind]}
            names = [name for command, one in given.items() for name in named(command, one)]
            label = labels(row)
            accused += any(label.get(name, "undecided") != "true" for name in names)
            new += any(name not in label for name in names)
            planned += "plan" in given and "refused" not in given["plan"]
            if names or everything:
                refused = given.get("plan", {}).get("refused", "")
                print(f"{kind} {row['number']} {row['path']}: " + ", ".join(f"{n} ({label.get(n, 'no label')})" for n in names), refused)
        low, high = wilson(accused, there) if there else (0.0, 1.0)
        print(f"{kind}, sample {sample}: {there} texts, {accused} with something false ({100 * low:.1f} to {100 * high:.1f} %), "
              f"{new} without a label, {planned} planned", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tool", default=str(HERE.parents[1] / ".venv/bin/nccl-runbook"))
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    for kind in COMMANDS:
        score(kind, asked.folder, asked.tool, asked.all)


if __name__ == "__main__":
    main()
