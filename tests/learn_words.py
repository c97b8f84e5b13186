"""Learns what the words of a report say about its cause, and writes words.json of knowledge: `PYTHONPATH=lib python tests/learn_words.py
REPORTS.jsonl...` (labelled reports, as `nccl-runbook dev score` takes them: id, cause, log, context).

A logistic regression over the causes (multinomial, L2) on which words a report holds, each as rare as it is in the reports; causes with few
reports count as much as others. The reports themselves are not here: they quote what others wrote. What is kept is the weight of each word.
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

OUT = Path(__file__).resolve().parents[1] / "lib/nccl_runbook/knowledge/words.json"
FEWEST = 2  # reports with a word, for it to be kept
STRENGTH = 20.0  # inverse of the L2 penalty
LEAST = 0.5  # a smaller weight is left out: nine of ten are, and the answers stay the same


def seen(report: dict) -> set[str]:
    """The words that triage sees of a report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.log"
        path.write_text(report["log"], encoding="utf-8")
        return set(collect([str(path)], report["context"]).words)


def learn(reports: list[tuple[set[str], str]]) -> dict:
    """What words.json holds: ``base`` of each of ``causes``, and of each word its rarity, then number of a cause, weight in tenths, and so on."""
    times = collections.Counter(word for words, _ in reports for word in words)
    vocabulary = {word: i for i, word in enumerate(sorted(w for w, n in times.items() if n >= FEWEST))}
    causes = {cause: i for i, cause in enumerate(sorted({cause for _, cause in reports}))}
    rarity = {word: round(math.log((1 + len(reports)) / (1 + times[word])) + 1, 2) for word in vocabulary}
    x = torch.zeros(len(reports), len(vocabulary))
    for row, (words, _) in enumerate(reports):
        for word in words & vocabulary.keys():
            x[row, vocabulary[word]] = rarity[word]
    x = torch.nn.functional.normalize(x)
    y = torch.tensor([causes[cause] for _, cause in reports])
    each = len(reports) / len(causes) / torch.bincount(y)[y]
    weight, base = torch.zeros(len(vocabulary), len(causes), requires_grad=True), torch.zeros(len(causes), requires_grad=True)
    steps = torch.optim.LBFGS([weight, base], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        steps.zero_grad()
        wrong = torch.nn.functional.cross_entropy(x @ weight + base, y, reduction="none")
        total = STRENGTH * (each * wrong).sum() + weight.square().sum() / 2
        total.backward()
        return total

    steps.step(loss)
    kept = {word: [(c, round(10 * w)) for c, w in enumerate(weight[i].tolist()) if abs(w) >= LEAST] for word, i in vocabulary.items()}
    rows = {word: [rarity[word], *(number for pair in pairs for number in pair)] for word, pairs in kept.items() if pairs}
    return {"causes": list(causes), "base": [round(one, 2) for one in base.tolist()], "words": rows}


def main() -> None:
    told = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    found = learn([(seen(report), report["cause"]) for report in told])
    by_cause = collections.Counter(report["cause"] for report in told)
    head = json.dumps({"reports": dict(sorted(by_cause.items())), "causes": found["causes"], "base": found["base"]})[:-1]
    lines = ",\n".join(f"{json.dumps(word)}: {json.dumps(row, separators=(',', ':'))}" for word, row in found["words"].items())
    OUT.write_text(f'{head}, "words": {{\n{lines}\n}}}}\n')
    print(f"{len(told)} reports, {len(found['words'])} words, {OUT.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
