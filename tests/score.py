"""How often triage names the labelled cause: python tests/score.py REPORTS.jsonl [--json]

A report a line: id, cause, decisive_from_log, log, context. triage sees the log as a file, and the context, nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from nccl_runbook.core.facts import grouped  # noqa: E402
from nccl_runbook.messages.read import collect  # noqa: E402
from nccl_runbook.search.group_testing import wilson  # noqa: E402
from nccl_runbook.triage.hypotheses.judge_weights import fits  # noqa: E402
from nccl_runbook.triage.judge import judge

CONFIDENT = ("established", "likely")
# a score: its words, what of a result counts as a hit, and of which results
SCORES: dict[str, tuple[str, str, Callable[[dict[str, Any]], bool]]] = {
    "top1_decisive": ("first, of the decisive", "first", lambda r: r["decisive"]),
    "top3_all": ("among three, of all", "third", lambda r: True),
    "wrong_but_confident": ("wrong but confident", "wrong", lambda r: True),
    "undecided": ("undecided", "undecided", lambda r: True),
    "benign_alarms": ("alarms on benign", "alarm", lambda r: r["cause"] == "benign"),
}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    try:
        rows = [json.loads(line) for line in asked.reports.read_text(encoding="utf-8").splitlines() if line.strip()]
        results = [result(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{asked.reports} is not a file of labelled reports ({type(error).__name__}: {error})")
    told = summary(results)
    print(json.dumps({**told, "reports": results}, indent=1) if asked.json else text(told, results))


def result(row: dict[str, Any]) -> dict[str, Any]:
    """One report judged: its label, and the first three causes with their status; what only fits comes last."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.log"
        path.write_text(row["log"], encoding="utf-8")
        logs = collect([str(path)], row["context"])
    found = judge(logs)
    told = [*((h.cause, h.status) for h in found), *((c.id, "possible") for c in fits(logs, found))][:3]
    lead, status = told[0] if told else ("", "undecided")
    hits = {"first": lead == row["cause"], "third": row["cause"] in [c for c, _ in told]}
    wrong = status in CONFIDENT and not hits["first"]
    return {"id": row["id"], "cause": row["cause"], "decisive": bool(row["decisive_from_log"]), "told": told, **hits,
            "undecided": status not in CONFIDENT, "wrong": wrong, "alarm": wrong and row["cause"] == "benign"}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts with 95 % intervals (Wilson), over all and by cause."""
    told: dict[str, Any] = {name: share([r[hit] for r in results if counts(r)]) for name, (_, hit, counts) in SCORES.items()}
    by_cause = grouped((result["cause"], result) for result in sorted(results, key=lambda r: r["cause"]))
    hits = {"top1": "first", "top3": "third", "wrong": "wrong"}
    return {**told, "by_cause": {cause: {"reports": len(of), **{name: sum(r[hit] for r in of) for name, hit in hits.items()}}
                                 for cause, of in by_cause.items()}}


def share(hits: list[bool]) -> dict[str, Any]:
    """How many are hits, with the interval in which the true share lies with 95 %."""
    if not hits:
        return {"hits": 0, "of": 0, "share": None, "low": None, "high": None}
    low, high = wilson(sum(hits), len(hits))
    return {"hits": sum(hits), "of": len(hits), "share": round(sum(hits) / len(hits), 4), "low": round(low, 4), "high": round(high, 4)}


def text(told: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """The scores for a terminal, then what was missed."""
    lines = [f"{words:24} {_in_words(told[name])}" for name, (words, _, _) in SCORES.items()]
    lines += ["", "by cause: reports, first, among three, wrong but confident"]
    lines += [f"  {name:32} {c['reports']:3} {c['top1']:3} {c['top3']:3} {c['wrong']:3}" for name, c in told["by_cause"].items()]
    lines += ["", "not first:"]
    for r in (r for r in results if not r["first"]):
        lines.append(f"  {r['id']}: {r['cause']}, told {', '.join(f'{c} ({s})' for c, s in r['told']) or 'nothing'}")
    return "\n".join(lines)


def _in_words(share: dict[str, Any]) -> str:
    rate = f"  {share['share']:6.1%}  ({share['low']:.1%} to {share['high']:.1%})" if share["of"] else ""
    return f"{share['hits']:4} of {share['of']:4}{rate}"


if __name__ == "__main__":
    main()
