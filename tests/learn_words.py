"""Learns what the words of a report say about its cause, and writes words.json of knowledge: `PYTHONPATH=lib python tests/learn_words.py
REPORTS.jsonl...` (labelled reports, as `nccl-runbook dev score` takes them: id, cause, log, context).

A logistic regression over the causes (multinomial, L2) on which words a report holds, each as rare as it is in the reports, which hints of
hints.toml were seen in it, and what its messages point at and how surely; causes with few reports count as much as others. Each report counts
twice, the second time without its messages: those of a report that nobody saw before are recognised less often than those of these, from
which messages were learned. The reports themselves are not here: they quote what others wrote. What is kept are the weights.
"""
from __future__ import annotations

import collections
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
from nccl_runbook.evidence.logs import collect
from nccl_runbook.rules import triage

OUT = Path(__file__).resolve().parents[1] / "lib/nccl_runbook/knowledge/words.json"
FEWEST = 2  # reports with a word, for it to be kept
STRENGTH = 20.0  # inverse of the L2 penalty
UNREAD, HINT, POINTER = 0.4, 0.15, 0.6  # what counts without messages; a hint and a message beside all words of a report, which are 1 together
LEAST = 0.5  # a smaller weight is left out: nine of ten are, and the answers stay the same


def seen(report: dict) -> tuple[set[str], set[str]]:
    """The words that triage sees of a report, and the marks: hints, and what messages point at."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.log"
        path.write_text(report["log"], encoding="utf-8")
        logs = collect([str(path)], report["context"])
    return set(logs.words), triage.marks(logs, triage.pointers(logs))


def learn(reports: list[tuple[set[str], set[str], str]]) -> dict:
    """What words.json holds: ``base`` of each of ``causes``; of each word its rarity, then number of a cause, weight in tenths, and so on; of
    each mark the same without rarity, in hundredths."""
    times = collections.Counter(name for words, marks, _ in reports for name in words | marks)
    known = {name: i for i, name in enumerate(sorted(name for name, n in times.items() if n >= FEWEST))}
    causes = {cause: i for i, cause in enumerate(sorted({cause for *_, cause in reports}))}
    rarity = {word: round(math.log((1 + len(reports)) / (1 + times[word])) + 1, 2) for words, *_ in reports for word in words & known.keys()}
    rows = [_row(words, marks, known, rarity) for words, marks, _ in reports]
    unread = [_row(words, {m for m in marks if m[0] == "~"}, known, rarity) for words, marks, _ in reports]
    x = torch.sparse_coo_tensor(*_sparse(rows + unread), (2 * len(rows), len(known)), check_invariants=True).coalesce()
    y = torch.tensor([causes[cause] for *_, cause in reports])
    each = len(reports) / len(causes) / torch.bincount(y)[y]
    y, each = torch.cat([y, y]), torch.cat([each * (1 - UNREAD), each * UNREAD])
    weight, base = torch.zeros(len(known), len(causes), requires_grad=True), torch.zeros(len(causes), requires_grad=True)
    steps = torch.optim.LBFGS([weight, base], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        steps.zero_grad()
        wrong = torch.nn.functional.cross_entropy(torch.sparse.mm(x, weight) + base, y, reduction="none")
        total = STRENGTH * (each * wrong).sum() + weight.square().sum() / 2
        total.backward()
        return total

    steps.step(loss)
    kept = {name: [(c, w) for c, w in enumerate(weight[i].tolist()) if abs(w) >= LEAST] for name, i in known.items()}
    words = {name: [rarity[name], *(n for c, w in pairs for n in (c, round(10 * w)))] for name, pairs in kept.items() if pairs and name in rarity}
    marks = {name: [n for c, w in pairs for n in (c, round(100 * w * _worth(name)))] for name, pairs in kept.items() if pairs and name not in rarity}
    return {"causes": list(causes), "base": [round(one, 2) for one in base.tolist()], "marks": marks, "words": words}


def _worth(mark: str) -> float:
    return HINT if mark[0] == "~" else POINTER


def _row(words: set[str], marks: set[str], known: dict[str, int], rarity: dict[str, float]) -> dict[int, float]:
    length = math.sqrt(sum(rarity[word] ** 2 for word in words & known.keys())) or 1
    return {known[w]: rarity[w] / length for w in words & known.keys()} | {known[m]: _worth(m) for m in marks & known.keys()}


def _sparse(rows: list[dict[int, float]]) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.tensor([(row, column) for row, values in enumerate(rows) for column in values]).T
    return at, torch.tensor([value for values in rows for value in values.values()])


def main() -> None:
    told = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    found = learn([(*seen(report), report["cause"]) for report in told])
    by_cause = collections.Counter(report["cause"] for report in told)
    head = json.dumps({"reports": dict(sorted(by_cause.items())), "causes": found["causes"], "base": found["base"], "marks": found["marks"]})[:-1]
    lines = ",\n".join(f"{json.dumps(word)}: {json.dumps(row, separators=(',', ':'))}" for word, row in found["words"].items())
    OUT.write_text(f'{head}, "words": {{\n{lines}\n}}}}\n')
    print(f"{len(told)} reports, {len(found['words'])} words, {OUT.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
