"""The usual node has eight GPUs: eight Gloo ranks in their place, with planted faults. tests/gpu has the same on GPUs."""
from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import live_worlds as worlds
import pytest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.edges import ask
from nccl_runbook.edges.facts import Edges
from nccl_runbook.launch.engine import Engine
from nccl_runbook.search.outcomes import most_runs
from test_live import lacked_cores, told
from test_search import judged


def test_every_copy_between_eight_is_made_and_one_planted_copy_is_named(tmp_path: Path) -> None:
    with Engine([sys.executable], tmp_path, Redactor({})) as engine:
        right = ask.collect(engine, [None] * 8, 60)
        planted = ask.collect(engine, [None] * 8, 120, "corrupt@6-3")
    assert isinstance(right, Edges) and isinstance(planted, Edges)
    assert (right.wanted, len(right.edges), right.bad) == (56, 56, [])
    assert [(e.source, e.target, e.outcome, e.seen) for e in planted.bad] == [(6, 3, "wrong values", 2)]


@pytest.mark.parametrize(
    ("fails", "rule", "named"),
    [
        (lambda g: 5 in g and len(g) > 1, "located", "GPU 5 "),
        (lambda g: {2, 6} <= g, "located", "GPUs 2 and 6"),
        (lambda g: len(g) > 5, "count-at-fault", "5 GPUs "),
    ],
    ids=["a GPU", "a link", "five work and six do not"],
)
def test_what_is_planted_among_eight_is_named_first(
    tmp_path: Path, fails: Callable[[set[int]], bool], rule: str, named: str
) -> None:
    facts, found = judged(tmp_path, 8, fails)
    assert (found[0].id, found[0].severity.value) == (rule, "broken") and named in found[0].title
    assert sum(len(r.groups) for r in facts[3].rounds) <= most_runs(8)


FAULTS = [*"skip sigstop sigkill exception gil checkpoint loop never-joins world-size port-held dropped send".split()]


@pytest.fixture(scope="module")
def running() -> Iterator[subprocess.Popen[str]]:
    with worlds.launcher() as started:
        yield started


@pytest.mark.parametrize("fault", ["healthy", *FAULTS])
def test_of_eight_ranks_the_right_one_is_named(running: subprocess.Popen[str], tmp_path: Path, fault: str) -> None:
    pids = worlds.start(running, tmp_path, fault, 8)
    try:
        time.sleep(1.4)
        look, pictures = told(pids)
    finally:
        worlds.end(running)
    truth = json.loads((tmp_path / "truth.json").read_text())
    [picture] = pictures
    if picture.kind == "unknown" and not picture.culprits and lacked_cores(look):
        pytest.skip("other work took the cores of this machine, and the look says that it cannot tell")
    assert (picture.kind, [v.rank for v in picture.culprits]) == (truth["kind"], truth["culprits"])
