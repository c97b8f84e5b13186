"""How often a tool is right about the cause of a failure. Fetches nothing.

    python tests/benchmark/reports.py                              the synthetic samples of samples/*.txt
    python tests/benchmark/reports.py FOLDER                       public reports: FOLDER holds NNN.report.txt for the ids of reports.jsonl
        [--sample 1]                                               of one sample
        [--half public|held-back]                                  of one half: see README.md
        [--tool baseline | --tool "CMD"] [--json] [--missed]

The tool is triage; ``baseline``: the phrases of baseline.tsv. Any other command gets the file as its last argument and prints JSON:
{"causes": [{"id": "peer-crashed", "sure": true, "remedy": "text"}, ...]}, the likeliest first, with ids of causes.md.
"""
from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "lib"))
from nccl_runbook.messages.read import collect  # noqa: E402
from nccl_runbook.search.group_testing import wilson  # noqa: E402
from nccl_runbook.triage.hypotheses.judge_weights import fits  # noqa: E402
from nccl_runbook.triage.judge import judge  # noqa: E402

SURE = ("established", "likely")
Answer = list[dict[str, Any]]  # causes: id, sure, remedy
Case = dict[str, Any]  # id, cause, also, decisive, fix, text


# --- what is asked

def reports(folder: Path) -> Iterator[Case]:
    for line in (HERE / "reports.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        report = folder / f"{row['id']}.report.txt"
        if report.is_file():
            yield {**row, "half": half(row["url"]), "fix": "", "text": report.read_text(encoding="utf-8", errors="replace")}


def half(url: str) -> str:
    """Which half an address belongs to: held back if the first hexadecimal digit of its SHA-256 is 0 to 3."""
    return "held-back" if hashlib.sha256(url.encode()).hexdigest()[0] in "0123" else "public"


def samples() -> Iterator[Case]:
    """Each begins with `=== CAUSE[,CAUSE that is right as well] | expression that a right remedy matches`."""
    for path in sorted((HERE / "samples").glob("*.txt")):
        for number, text in enumerate(path.read_text(encoding="utf-8").split("=== ")[1:], 1):
            head, _, log = text.partition("\n")
            named, _, fix = head.partition("|")
            cause, *also = named.strip().split(",")
            yield {"id": f"{path.stem}-{number}", "cause": cause, "also": also, "decisive": True, "fix": fix.strip(), "text": log}


# --- who is asked

def triage(path: Path) -> Answer:
    """What only fits the symptom comes last and is never sure."""
    logs = collect([str(path)], "")
    hypotheses = judge(logs)
    named = [
        {"id": h.cause, "sure": h.status in SURE, "remedy": " ".join(f"{r.text} {' '.join(r.lines)}" for r in h.remedy)} for h in hypotheses
    ]
    return named + [{"id": cause.id, "sure": False, "fits": True} for cause in fits(logs, hypotheses)]


def baseline(path: Path) -> Answer:
    """The phrases of baseline.tsv in the order of the table; a phrase that is there counts as sure."""
    text = path.read_text(encoding="utf-8", errors="replace")
    rows = csv.DictReader((HERE / "baseline.tsv").open(encoding="utf-8"), delimiter="\t")
    found = dict.fromkeys(row["cause"] for row in rows if re.search(row["phrase"], text, re.IGNORECASE))
    return [{"id": cause, "sure": True} for cause in found]


def command(line: str) -> Callable[[Path], Answer]:
    """A tool of others."""
    def ask(path: Path) -> Answer:
        ended = subprocess.run([*shlex.split(line), str(path)], capture_output=True, text=True, timeout=300, check=False)
        try:
            return list(json.loads(ended.stdout)["causes"])
        except (ValueError, KeyError, TypeError):
            raise SystemExit(
                f"{line} {path.name} printed no JSON with causes (exit code {ended.returncode}): {ended.stderr.strip()[-300:]}"
            ) from None
    return ask


# --- whether it was right

def result(case: Case, answer: Answer) -> dict[str, Any]:
    """One case beside its label."""
    right = {case["cause"], *case["also"]}
    sure = {cause["id"] for cause in answer if cause.get("sure")}
    return {**{k: v for k, v in case.items() if k != "text"}, "named": [[c["id"], bool(c.get("sure"))] for c in answer[:4]],
            "first": bool(answer) and answer[0]["id"] in right, "third": any(c["id"] in right for c in answer[:3]),
            "is_sure": bool(sure & right), "wrong": bool(sure) and not sure & right,
            "is_remedy": bool(answer and case["fix"] and re.search(case["fix"], answer[0].get("remedy") or "", re.IGNORECASE)),
            "accused": any(c["id"] != "benign" and not c.get("fits") for c in answer)}


def scores(results: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Question -> hits, and of how many."""
    faults = [r for r in results if r["cause"] not in ("undecidable", "benign") and not r["cause"].startswith("other")]
    hits = {"cause first": [r["first"] for r in faults], "cause among three": [r["third"] for r in faults],
            "likely or established, and right": [r["is_sure"] for r in faults if r["decisive"]],
            "likely or established, and wrong": [r["wrong"] for r in results],
            "first remedy right": [r["is_remedy"] for r in faults if r["fix"]],
            "healthy runs accused": [r["accused"] for r in results if r["cause"] == "benign"]}
    return {question: [sum(hit), len(hit)] for question, hit in hits.items() if hit}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--sample", type=int, choices=(1, 2, 3, 4, 5))
    parser.add_argument("--half", choices=("public", "held-back"))
    parser.add_argument("--tool", default="triage", help="triage, baseline, or a command")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--missed", action="store_true", help="also what is not right")
    asked = parser.parse_args(argv)
    ask = {"triage": triage, "baseline": baseline}.get(asked.tool) or command(asked.tool)
    cases = [case for case in (reports(asked.folder) if asked.folder else samples())
             if asked.sample in (None, case.get("sample")) and asked.half in (None, case.get("half"))]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        for case in cases:
            path.write_text(case["text"], encoding="utf-8")
            results.append(result(case, ask(path)))
    if asked.json:
        print(json.dumps({"tool": asked.tool, "scores": scores(results), "cases": results}, indent=1))
        return
    for question, (hits, of) in scores(results).items():
        low, high = wilson(hits, of)
        print(f"{question}: {hits} of {of} ({low:.0%} to {high:.0%})")
    for r in results if asked.missed else []:
        if r["wrong"] or (not r["first"] and r["cause"] != "undecidable") or (r["cause"] == "benign" and r["accused"]):
            print(f"{r['id']} {r['cause']}: " + (", ".join(f"{cause}{' (sure)' * sure}" for cause, sure in r["named"]) or "nothing"))


if __name__ == "__main__":
    main()
