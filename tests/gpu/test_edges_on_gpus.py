"""Every directed copy between the GPUs of this machine, and planted ones that arrive wrong or never."""
from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.edges import ask, judge
from nccl_runbook.edges.facts import Edges
from nccl_runbook.launch.engine import Engine

torch = pytest.importorskip("torch")
COUNT = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine([sys.executable], tmp_path_factory.mktemp("logs"), Redactor({})) as engine:
        yield engine


def test_every_copy_is_right_within_five_seconds_a_run(engine: Engine) -> None:
    began = time.monotonic()
    seen = ask.collect(engine, [*range(COUNT)], 60)
    print(f"{COUNT} GPUs: {time.monotonic() - began:.2f} s from the start, {seen}")
    assert isinstance(seen, Edges) and seen.on_gpus and seen.bad == [] and len(seen.edges) == COUNT * (COUNT - 1)
    [right] = judge.judge_edges(seen)
    assert right.id == "edges-right" and all(e.gb_per_s and e.gb_per_s > 1 for e in seen.edges)


@pytest.mark.parametrize(("fault", "outcome"), [("corrupt@0-1", "wrong values"), ("stop@1-0", "hung")])
def test_a_planted_copy_is_named(engine: Engine, fault: str, outcome: str) -> None:
    seen = ask.collect(engine, [*range(COUNT)], 150, fault)
    source, target = map(int, fault[-3:].split("-"))
    assert [(e.source, e.target, e.outcome, e.seen) for e in seen.bad] == [(source, target, outcome, 2)]
    [finding] = judge.judge_edges(seen)
    assert finding.cause in ("gpu-or-link-fault", "p2p-broken-acs-iommu") and finding.status == "established"
