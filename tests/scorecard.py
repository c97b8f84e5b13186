"""The scorecard: what was right, undecided and wrong, of which fault and on which hardware.

    make scorecard                                                         build/scorecard/index.html and scorecard.json
    make scorecard ARGS='gym.json --hardware "1 H200" [--add]'             with what `nccl-runbook dev gym --json` printed
    make gym                                                               the gym on the CPU; fails if a fault that was right is no
    longer (--check)

Every figure comes from tests/evidence.jsonl, one row for each command that was run, and from the answers of the gym that are named.
``--add`` appends these to evidence.jsonl; then `make knowledge` writes the pages scorecard.md and accuracy.md again.

A row: date, hardware, versions, commit, command, subject (which part of the tool), what, runs, result in words, seconds. ``faults``:
fault -> how often right, undecided and wrong. ``works``: jobs or runs without a fault, and alarms about them. ``answered``: fault -> the
cause that was named, no cause, or healthy. ``took_s``: fault -> seconds until the answer. ``scores``: question -> hits and of how many.
"""
from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "lib"))
from nccl_runbook.causes.causes import causes  # noqa: E402
from nccl_runbook.gym.facts import jobs  # noqa: E402
from nccl_runbook.report.markup import TONES, escape, framed, table_html  # noqa: E402
from nccl_runbook.search.group_testing import wilson  # noqa: E402

EVIDENCE = ROOT / "tests" / "evidence.jsonl"
OUTCOMES = ("right", "undecided", "wrong")
SUBJECTS = {
    "live": "`look` at a hung job",
    "dumps": "flight-recorder dumps",
    "log": "log of a job that ended, `run` if it is not enough",
    "gym": "the gym: `diagnose`, live and from the log",
    "run": "`run`: tests of the machine",
    "ab": "`ab`: A against B",
    "env": "`env`",
    "setup": "`make report` on a machine without network",
    "edges": "copies between GPUs",
    "look": "`look` on a bare node",
}
UNNAMED = "not named"  # runs whose record has counts, but no names of faults
# the cause of each fault that the tests plant; a fault without a cause of its own stands for none. Jobs of the gym name their causes
# themselves.
CAUSE = {
    "peer-crashed": "sigkill exception oom kill killed killed-rank rank-raises",
    "peer-stopped": "sigstop stop stopped-rank",
    "rank-busy-on-host": "gil loop checkpoint stall",
    "straggler": "straggler slow",
    "collective-on-some-ranks-only": "skip",
    "collective-mismatch": "op size dtype shapes-differ",
    "communicator-order": "swap",
    "send-recv-unmatched": "send recv",
    "uneven-minibatches": "minibatch",
    "rendezvous-misconfigured": "never-joins world-size no-address",
    "rendezvous-port-in-use": "port-held port-in-use",
    "rendezvous-name-resolution": "no-such-host",
    "network-path-blocked": "dropped",
    "device-not-set-per-rank": "two-ranks-on-one-gpu",
    "more-ranks-than-gpus": "more-ranks-than-gpus",
    "socket-interface-wrong": "interface gloo-interface",
    "visible-devices-wrong": "hidden-gpu no-gpu no-such-gpu",
    "shm-too-small": "shm",
    "nvml-call-failed": "nvml",
    "gpu-memory-exhausted": "memory",
    "net-plugin-failed": "network network-plugin",
    "topology-file-bad": "topology-file",
    "nccl-library-conflict": "two-libraries",
    "p2p-broken-acs-iommu": "p2p-hangs",
    "gpu-or-link-fault": "corrupting-rank wrong-copy hanging-copy",
    "env-conflict": "p2p-disabled p2p-forbidden bad-variable algorithm-used-anyway",
}
PLANTED = {  # what was wrong in the jobs at which `look` looked: tests/live_worlds.py, ordinary_jobs.py
    "skip": "one rank leaves out a collective",
    "sigstop": "one rank is stopped (SIGSTOP)",
    "sigkill": "one rank is killed (SIGKILL)",
    "exception": "one rank ends with an exception",
    "oom": "one rank asks for more GPU memory than there is",
    "gil": "a regular expression of one rank never ends and holds the GIL",
    "loop": "one rank computes in Python without end",
    "checkpoint": "one rank saves a checkpoint without end",
    "straggler": "one rank is slower than the others in each step",
    "spin": "a kernel of one GPU does not end",
    "never-joins": "one rank does not start",
    "world-size": "WORLD_SIZE is larger than the number of ranks",
    "port-held": "another program listens on the rendezvous port",
    "dropped": "one rank cannot reach the rendezvous",
    "ordinary-mistake": "a usual mistake in the training loop of one rank, another one in each job",
}
NEVER_TRIED = (
    "several real hosts with GPUs",
    "a real Kubernetes cluster",
    "Apptainer",
    "Slurm on several nodes",
    "MIG and vGPU",
    "exclusive mode",
    "InfiniBand, RoCE and EFA",
    "a bad link among several GPUs",
    "more than 4 GPUs",
    "GPUs other than H200 and H100",
)

FIRST = "The true cause comes first, or first among causes that fit"

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """``rows``: text a cell; ``note``: how to read them."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    note: str


def evidence() -> list[Row]:
    return [json.loads(line) for line in EVIDENCE.read_text(encoding="utf-8").splitlines()]


def of_gym(document: Row, hardware: str, date: str, commit: str) -> Row:
    """One row of evidence from what `dev gym --json` printed."""
    faults = [f for f in document["faults"] if f["expected"]["causes"]]
    works = [f for f in document["faults"] if not f["expected"]["causes"]]
    lead = {f["fault"]: next((a for a in f["answer"] if a["outcome"] == f["outcome"]), None) for f in faults}
    return {
        "date": date,
        "hardware": hardware,
        "commit": commit,
        "subject": "gym",
        "what": f"jobs on the {document['on']}, {len(faults)} with a fault",
        "command": f"nccl-runbook dev gym --on {document['on']} --json",
        "runs": "1",
        "result": document["sentence"],
        "faults": {f["fault"]: [int(f["outcome"] == word) for word in OUTCOMES] for f in faults},
        **({"works": [len(works), sum(f["outcome"] == "wrong" for f in works)]} if works else {}),
        "answered": {name: answer["cause"] or "no cause" for name, answer in lead.items() if answer},
        "took_s": {name: answer["took_s"] for name, answer in lead.items() if answer},
    }


# --- figures

def tally(rows: Iterable[Row]) -> dict[tuple[str, str, str], Counter[str]]:
    """(subject, fault, hardware) -> how often right, undecided, wrong."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for row in rows:
        for fault, outcomes in row.get("faults", {}).items():
            counts.setdefault((row["subject"], fault, row["hardware"]), Counter()).update(dict(zip(OUTCOMES, outcomes)))
    return counts


def on_gpus(row: Row) -> bool:
    return "H200" in row.get("hardware", "") or "H100" in row.get("hardware", "")


def causes_of(fault: str) -> tuple[str, ...]:
    """The causes that are right for a fault."""
    if fault in jobs():
        return jobs()[fault].causes
    return tuple(cause for cause, faults in CAUSE.items() if fault in faults.split())


def bound(runs: int, alarms: int) -> str:
    """The rate of false alarms with 95 % confidence: below 3/N without one, else Wilson's interval."""
    if alarms:
        low, high = wilson(alarms, runs)
        return f"{low:.1%} to {high:.1%}"
    return f"below {min(1.0, 3 / runs):.0%}"


def share(hits: int, of: int) -> str:
    low, high = wilson(hits, of)
    return f"{hits / of:.1%} ({low:.1%} to {high:.1%})"


def dates(rows: Iterable[Row]) -> str:
    days = sorted({row["date"] for row in rows})
    last = days[-1].removeprefix(days[0][:8])  # of the same month: its day alone
    return days[0] if len(days) == 1 else f"{days[0]} to {last}"


def commands(rows: Sequence[Row]) -> str:
    """The commands behind a figure, as many as fit a line."""
    files = (re.search(r"tests/[\w/]+\.py", row["command"]) for row in rows)
    names = sorted({file[0] if file else row["command"] for file, row in zip(files, rows)}, key=lambda name: (len(name), name))
    return "; ".join(names[:2]) + f" and {len(names) - 2} more" * (len(names) > 2)


def groups(rows: Iterable[Row], field: str) -> Iterator[tuple[str, str, list[Row]]]:
    """The rows that have the field, by subject and hardware, in the order of SUBJECTS."""
    chosen = [row for row in rows if field in row]
    for subject in SUBJECTS:
        for hardware in sorted({row["hardware"] for row in chosen if row["subject"] == subject}):
            yield subject, hardware, [row for row in chosen if (row["subject"], row["hardware"]) == (subject, hardware)]


def worse(rows: Iterable[Row], new: Iterable[Row]) -> list[str]:
    """What these runs of the gym lost: faults that are wrong, or were right when they last ran on this hardware and are not now; and
    false alarms."""
    last = {
        (row["hardware"], fault): outcomes for row in rows if row["subject"] == "gym" for fault, outcomes in row.get("faults", {}).items()
    }
    lost = [f"{fault}: {OUTCOMES[outcomes.index(1)]}" for row in new for fault, outcomes in row["faults"].items()
            if outcomes[2] or (not outcomes[0] and last.get((row["hardware"], fault), (0,))[0])]
    return lost + [
        f"false alarms: {row['works'][1]} in {row['works'][0]} jobs without a fault" for row in new if row.get("works", (0, 0))[1]
    ]


# --- tables

def summary_table(rows: Sequence[Row]) -> Table:
    """By part of the tool and hardware."""
    lines = []
    for subject, hardware, chosen in groups(rows, "faults"):
        total = sum(tally(chosen).values(), Counter())
        lines.append([SUBJECTS[subject], hardware, *(total[word] for word in OUTCOMES), dates(chosen), commands(chosen)])
    return Table(
        "summary",
        "Faults, by part of the tool",
        ["part of the tool", "hardware", *OUTCOMES, "date", "command"],
        lines,
        "Right: the cause is likely or established, and its rank is named. Undecided: nothing is named, or the cause is only possible. Some"
        " tests also pass if the tool is undecided, for example when a killed rank leaves no dump. This table counts such a case as"
        " undecided.",
    )


def alarm_table(rows: Sequence[Row]) -> Table:
    """Jobs and runs without a fault, and what was accused in them."""
    lines = []
    for subject, hardware, chosen in groups(rows, "works"):
        runs, alarms = (sum(r["works"][at] for r in chosen) for at in (0, 1))
        lines.append([SUBJECTS[subject], hardware, runs, alarms, bound(runs, alarms), dates(chosen), commands(chosen)])
    return Table(
        "alarms",
        "False alarms",
        ["part of the tool", "hardware", "healthy jobs or runs", "alarms", "rate at 95 %", "date", "command"],
        lines,
        "If N healthy runs raise no alarm, the true rate of false alarms is, with 95 % confidence, below 3/N. If some runs raise an alarm,"
        " the table gives Wilson's interval.",
    )


def fault_table(rows: Sequence[Row]) -> Table:
    """Each fault by hardware, what was ever wrong first."""
    by_fault: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for (subject, fault, hardware), counts in tally(rows).items():
        by_fault.setdefault((subject, fault), {})[hardware] = counts
    lines = []
    for (subject, fault), where in sorted(
        by_fault.items(),
        key=lambda item: (-sum(c["wrong"] for c in item[1].values()), -sum(c["undecided"] for c in item[1].values()), item[0]),
    ):
        total = sum(where.values(), Counter())
        lines.append(
            [
                fault,
                subject,
                *(total[word] for word in OUTCOMES),
                "; ".join(f"{h}: {'/'.join(str(c[w]) for w in OUTCOMES)}" for h, c in sorted(where.items())),
            ]
        )
    return Table(
        "faults",
        "Each fault",
        ["fault", "part of the tool", *OUTCOMES, "by hardware: right/undecided/wrong"],
        lines,
        "Faults for which the tool ever gave a wrong answer come first. If a fault has the name of a test file, that file describes the"
        " fault. `nccl-runbook dev gym --list` describes the jobs of the gym.",
    )


def planted_table(rows: Sequence[Row]) -> Table:
    """What was planted in the jobs at which `look` looked."""
    where: dict[str, dict[str, Counter[str]]] = {}
    for (_, fault, hardware), counts in tally(row for row in rows if row["subject"] == "live").items():
        where.setdefault(fault, {})[hardware] = counts
    lines = [
        [PLANTED[fault], *(sum(counts[word] for counts in of.values()) for word in OUTCOMES),
         ", ".join(f"{sum(counts.values())} on {hardware}" for hardware, counts in sorted(of.items()))]
        for fault, of in where.items()
    ]
    return Table("planted", "What was planted", ["planted fault", *OUTCOMES, "jobs"], sorted(lines), "")


def confusion_table(rows: Sequence[Row]) -> Table:
    """What was named for each planted cause."""
    named: dict[str, Counter[str]] = {}
    for row in rows:
        for fault, counts in row.get("faults", {}).items():
            if right := " or ".join(causes_of(fault)):
                cause = row.get("answered", {}).get(fault)
                for outcome, count in zip(OUTCOMES, counts):
                    answer = outcome if outcome != "wrong" else cause or "not recorded"
                    named.setdefault(right, Counter())[answer] += count
    lines = [
        [
            right,
            *(
                sum(c.values()) - sum(n for a, n in c.items() if a in ("right", "undecided")) if word == "wrong" else c[word]
                for word in OUTCOMES
            ),
            ", ".join(f"{a}: {n}" for a, n in c.most_common() if n and a not in OUTCOMES),
        ]
        for right, c in sorted(named.items())
    ]
    return Table("confusion", "Confusion over causes", ["planted cause", *OUTCOMES, "named instead"], lines,
                 "This table counts every planted fault that belongs to a cause of the catalogue, on the CPU and on GPUs.")


def time_table(rows: Sequence[Row]) -> Table:
    lines = []
    for field in ("took_s", "seconds"):
        for subject, hardware, chosen in groups(rows, field):
            took = [s for row in chosen for s in (row[field].values() if field == "took_s" else row[field])]
            lines.append(
                [SUBJECTS[subject], hardware, len(took), round(statistics.median(took), 1), max(took), dates(chosen), commands(chosen)]
            )
    return Table("time", "Time to the answer", ["part of the tool", "hardware", "times", "median s", "longest s", "date", "command"], lines,
                 "For the gym, the time is that of the command that gives the answer, without the time of the job. For `run`, the time"
                 " covers all steps that the command was asked to run.")


def reports_table(rows: Sequence[Row]) -> Table:
    lines = [[question, f"{hits} of {of}", share(hits, of), row["what"], row["date"], row["command"]]
             for row in rows for question, (hits, of) in row.get("scores", {}).items()]
    return Table("reports", "Public and synthetic texts", ["question", "texts", "share (95 % interval)", "of", "date", "command"], lines,
                 "Intervals are Wilson's.")


def unseen_table(rows: Sequence[Row]) -> Table:
    """What no GPU has shown yet."""
    planted = {fault for (_, fault, _), counts in tally(filter(on_gpus, rows)).items() if sum(counts.values())}
    seen = {cause for fault in planted for cause in causes_of(fault)}
    never = [name for name, job in jobs().items() if job.gpus and job.is_fault and name not in planted]
    kinds = {
        "places and machines": NEVER_TRIED,
        "gym jobs for GPUs, by name": never,
        "causes that no fault on a GPU stood for": [c for c in causes() if c not in seen and c != "benign"],
    }
    return Table(
        "unseen",
        "Never seen on hardware",
        ["kind", "how many", "which"],
        [[kind, len(names), ", ".join(names)] for kind, names in kinds.items()],
        "No item in this table was tested in a run on a GPU. Some of these items were seen on the CPU, in other people's logs, or in"
        " network namespaces.",
    )


def run_table(rows: Sequence[Row]) -> Table:
    lines = [[row["date"], row.get("hardware", ""), row.get("commit", ""), row["what"], row.get("command", ""), row.get("runs", ""),
              row.get("result") or "; ".join(f"{q}: {h} of {n}" for q, (h, n) in row.get("scores", {}).items())] for row in rows]
    return Table("runs", "Every run", ["date", "hardware", "commit", "what", "command", "runs", "result"], lines,
                 "One row for each command, and remarks of the day. tests/evidence.jsonl holds the same rows.")


TABLES = (summary_table, alarm_table, reports_table, fault_table, confusion_table, time_table, unseen_table)


def sentence(rows: Sequence[Row]) -> str:
    total = sum(tally(rows).values(), Counter())
    runs, alarms = (sum(r["works"][at] for r in rows if "works" in r) for at in (0, 1))
    return (
        f"Of {sum(total.values())} planted faults, the tool explained {total['right']} correctly and {total['wrong']} wrongly, and left"
        f" {total['undecided']} undecided. It raised {alarms} false alarm{'' if alarms == 1 else 's'} in {runs} healthy jobs and runs"
        f" (95 % interval of the rate: {bound(runs, alarms)})."
    )


def in_short(rows: Sequence[Row]) -> str:
    """The figures that README and the page for assistants quote."""
    live = [row for row in rows if row["subject"] == "live"]
    total = sum(tally(live).values(), Counter())
    gpus = sorted({row["hardware"].split()[0] for row in live if row.get("faults")})
    hits, of = next(row for row in rows if row["what"].startswith("90 public"))["scores"][FIRST]
    return (
        f"`look` explained {total['right']} of {sum(total.values())} faults planted on {gpus[0]} to {gpus[-1]} H200"
        f" ({total['undecided']} undecided, {total['wrong']} wrong). Of {of} new public reports, the true cause came first in {hits}"
    )


# --- what is written

def page_html(rows: Sequence[Row]) -> str:
    parts = []
    for table in [*(make(rows) for make in TABLES), run_table(rows)]:
        cells = [
            [(shown_text(table.columns[at], value), tone(table.columns[at], value)) for at, value in enumerate(row)] for row in table.rows
        ]
        made = table_html(f"{len(table.rows)} rows", table.columns, cells)
        if table.name == "runs":
            made = f'<details class="fold"><summary>{len(table.rows)} rows</summary>{made}</details>'
        note = f'<p class="quiet small">{escape(table.note.replace("`", ""))}</p>'
        parts.append(f'<section><h2 id="{table.name}">{escape(table.caption)}</h2>{note}{made}</section>')
    return framed(
        "".join(parts),
        "note",
        sentence(rows),
        "Figures are added up over all versions of these days: what failed once and was fixed stays counted.",
        f"scorecard · {dates(rows)}",
    )


def shown_text(column: str, value: str | float) -> str:
    """Without Markdown; a date does not break at its hyphens."""
    plain = str(value).replace("`", "").replace("*", "")
    return plain.replace("-", "\N{NON-BREAKING HYPHEN}") if column == "date" else plain


def tone(column: str, value: str | float) -> str:
    """The colour of a count of outcomes that is not 0."""
    colours = {"wrong": TONES["broken"], "undecided": TONES["warn"], "alarms": TONES["broken"]}
    return colours.get(column, "") if value else ""


def document(rows: Sequence[Row]) -> dict[str, Any]:
    tables = {table.name: [dict(zip(table.columns, row)) for row in table.rows] for table in (make(rows) for make in TABLES)}
    return {"schema": "nccl-runbook/scorecard/1", "sentence": sentence(rows), **tables, "runs": list(rows)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gym", nargs="*", type=Path, help="what nccl-runbook dev gym --json printed")
    parser.add_argument("--hardware", default="CPU", help="on which the gym ran: CPU, 1 H200, ...")
    parser.add_argument("--add", action="store_true", help="append it to tests/evidence.jsonl")
    parser.add_argument(
        "--check", action="store_true", help="only compare it with the rows that are there; exit 1 if a fault that was right is no longer"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "scorecard", help="folder of index.html and scorecard.json (default: build/scorecard)"
    )
    asked = parser.parse_args(argv)
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True).stdout.strip()
    try:
        new = [
            of_gym(json.loads(path.read_text()), asked.hardware, datetime.date.fromtimestamp(path.stat().st_mtime).isoformat(), commit)
            for path in asked.gym
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"not what nccl-runbook dev gym --json prints: {error!r}")
    if asked.check:
        sys.exit("\n".join(worse(evidence(), new)) or 0)
    if asked.add:
        with EVIDENCE.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in new)
        new = []
    rows = [*evidence(), *new]
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "index.html").write_text(page_html(rows), encoding="utf-8")
    (asked.out / "scorecard.json").write_text(json.dumps(document(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{sentence(rows)}\n{asked.out / 'index.html'}")


if __name__ == "__main__":
    main()
