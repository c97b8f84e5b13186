"""`nccl-runbook dev ...`: for those who work on the runbook itself."""

from __future__ import annotations

import json as json_format
import math
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(name="dev", no_args_is_help=True, rich_markup_mode=None, help="For those who work on the runbook itself.")
Z = 1.96  # of a 95 % interval
CONFIDENT = ("established", "likely")


@app.callback()
def dev() -> None:
    """For those who work on the runbook itself."""


@app.command("score", epilog="Example: nccl-runbook dev score reports.jsonl --json")
def score(
    reports: Annotated[
        Path, typer.Argument(metavar="REPORTS.jsonl", help="One labelled report a line: id, cause, decisive_from_log, log, context.")
    ],
    json: Annotated[bool, typer.Option("--json", help="The scores alone on standard output.")] = False,
) -> None:
    """How often triage names the labelled cause; it sees a report's log as a file, and its context, nothing else."""
    try:
        rows = [json_format.loads(line) for line in reports.read_text(encoding="utf-8").splitlines() if line.strip()]
        results = [result(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"nccl-runbook: {reports} is not a file of labelled reports ({type(error).__name__}: {error})", file=sys.stderr)
        sys.exit(2)
    told = summary(results)
    print(json_format.dumps({**told, "reports": results}, indent=1) if json else text(told, results))


def result(row: dict[str, Any]) -> dict[str, Any]:
    """One report judged: its label, and the first three causes with their status."""
    from nccl_runbook.evidence.logs import collect
    from nccl_runbook.rules.triage import judge

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.log"
        path.write_text(row["log"], encoding="utf-8")
        told = [(h.cause, h.status) for h in judge(collect([str(path)], row["context"]))][:3]
    lead, status = told[0] if told else ("", "undecided")
    return {
        "id": row["id"],
        "cause": row["cause"],
        "decisive": bool(row["decisive_from_log"]),
        "told": told,
        "first": lead == row["cause"],
        "third": row["cause"] in [c for c, _ in told],
        "undecided": status not in CONFIDENT,
        "wrong": status in CONFIDENT and lead != row["cause"],
        "alarm": row["cause"] == "benign" and status in CONFIDENT and lead != "benign",
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts with 95 % intervals (Wilson), over all and by cause."""
    decisive = [r for r in results if r["decisive"]]
    benign = [r for r in results if r["cause"] == "benign"]
    causes = sorted({r["cause"] for r in results})
    return {
        "top1_decisive": share(sum(r["first"] for r in decisive), len(decisive)),
        "top3_all": share(sum(r["third"] for r in results), len(results)),
        "wrong_but_confident": share(sum(r["wrong"] for r in results), len(results)),
        "undecided": share(sum(r["undecided"] for r in results), len(results)),
        "benign_alarms": share(sum(r["alarm"] for r in benign), len(benign)),
        "by_cause": {
            c: {
                "reports": len(of),
                "top1": sum(r["first"] for r in of),
                "top3": sum(r["third"] for r in of),
                "wrong": sum(r["wrong"] for r in of),
            }
            for c in causes
            for of in [[r for r in results if r["cause"] == c]]
        },
    }


def share(hits: int, of: int) -> dict[str, Any]:
    """``hits`` of ``of`` with the interval in which the true share lies with 95 %."""
    if not of:
        return {"hits": 0, "of": 0, "share": None, "low": None, "high": None}
    p, spread = hits / of, Z * Z / of
    middle, half = (p + spread / 2) / (1 + spread), Z * math.sqrt(p * (1 - p) / of + spread / (4 * of)) / (1 + spread)
    return {
        "hits": hits,
        "of": of,
        "share": round(p, 4),
        "low": round(max(0.0, middle - half), 4),
        "high": round(min(1.0, middle + half), 4),
    }


def text(told: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """The scores for a terminal, then what was missed."""
    names = {
        "top1_decisive": "first, of the decisive",
        "top3_all": "among three, of all",
        "wrong_but_confident": "wrong but confident",
        "undecided": "undecided",
        "benign_alarms": "alarms on benign",
    }
    lines = [
        f"{words:24} {s['hits']:4} of {s['of']:4}" + (f"  {s['share']:6.1%}  ({s['low']:.1%} to {s['high']:.1%})" if s["of"] else "")
        for name, words in names.items()
        for s in [told[name]]
    ]
    lines += ["", "by cause: reports, first, among three, wrong but confident"]
    lines += [f"  {name:32} {c['reports']:3} {c['top1']:3} {c['top3']:3} {c['wrong']:3}" for name, c in told["by_cause"].items()]
    missed = [
        f"  {r['id']}: {r['cause']}, told {', '.join(f'{c} ({s})' for c, s in r['told']) or 'nothing'}" for r in results if not r["first"]
    ]
    return "\n".join([*lines, "", "not first:", *missed])
