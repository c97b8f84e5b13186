"""How often triage is right about public reports: python tests/benchmark/reports.py FOLDER [--sample 1] [--json]

FOLDER holds NNN.report.txt for the ids of reports.jsonl. Nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "lib"))
from nccl_runbook.messages.read import collect  # noqa: E402
from nccl_runbook.search.group_testing import wilson  # noqa: E402
from nccl_runbook.triage.hypotheses.judge_weights import fits  # noqa: E402
from nccl_runbook.triage.judge import judge  # noqa: E402

SURE = ("established", "likely")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, choices=(1, 2, 3, 4))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    rows = [json.loads(line) for line in (HERE / "reports.jsonl").read_text(encoding="utf-8").splitlines()]
    results = [result(row, asked.folder / f"{row['id']}.report.txt") for row in rows if asked.sample in (None, row["sample"])]
    print(json.dumps(results, indent=1) if asked.json else text(results))


def result(row: dict[str, Any], report: Path) -> dict[str, Any]:
    """One report judged beside its label; what only fits the symptom comes last and is never sure."""
    logs = collect([str(report)], "")
    found = judge(logs)
    named = [*((h.cause, h.status) for h in found), *((c.id, "fits") for c in fits(logs, found))]
    right = {row["cause"], *row["also"]}
    sure = {cause for cause, status in named if status in SURE}
    return {**row, "named": named[:4], "first": bool(named) and named[0][0] in right,
            "third": any(cause in right for cause, _ in named[:3]), "sure": bool(sure & right),
            "wrong": bool(sure) and not sure & right}


def text(results: list[dict[str, Any]]) -> str:
    """The scores with their intervals (Wilson, 95 %), then every thread that is not right."""
    known = [r for r in results if r["cause"] != "undecidable" and not r["cause"].startswith("other")]
    scores = {"first, of those with a cause": [r["first"] for r in known],
              "within three, of those with a cause": [r["third"] for r in known],
              "likely or established, of the decisive": [r["sure"] for r in known if r["decisive"]],
              "wrong but confident, of all": [r["wrong"] for r in results]}
    lines = [f"{name}: {sum(hits)} of {len(hits)} ({interval(hits)})" for name, hits in scores.items()]
    return "\n".join([*lines, "", *(f"{r['id']} {r['cause']}: {r['named']}" for r in results
                                    if r["wrong"] or r in known and not r["first"])])


def interval(hits: list[bool]) -> str:
    low, high = wilson(sum(hits), len(hits))
    return f"{low:.0%} to {high:.0%}"


if __name__ == "__main__":
    main()
