"""Every directed copy between the GPUs of this machine, and planted ones that arrive wrong or never."""
from __future__ import annotations

import time

import pytest
from nccl_runbook.edges import ask, judge
from nccl_runbook.edges.facts import Edges
from nccl_runbook.launch.engine import Engine

pytestmark = pytest.mark.gpu


def test_every_copy_is_right_within_five_seconds_a_run(on_gpus: Engine) -> None:
    began, count = time.monotonic(), on_gpus.cuda_count()
    seen = ask.collect(on_gpus, [*range(count)], 60)
    print(f"{count} GPUs: {time.monotonic() - began:.2f} s from the start, {seen}")
    assert isinstance(seen, Edges) and seen.on_gpus and seen.bad == [] and len(seen.edges) == count * (count - 1)
    [right] = judge.judge_edges(seen)
    assert right.id == "edges-right" and all(e.gb_per_s and e.gb_per_s > 1 for e in seen.edges)


@pytest.mark.gpu(beside=True)
@pytest.mark.parametrize(("fault", "outcome"), [("corrupt@0-1", "wrong values"), ("stop@1-0", "hung")])
def test_a_planted_copy_is_named(on_gpus: Engine, fault: str, outcome: str) -> None:
    seen = ask.collect(on_gpus, [*range(on_gpus.cuda_count())], 150, fault)
    source, target = map(int, fault[-3:].split("-"))
    assert [(e.source, e.target, e.outcome, e.seen) for e in seen.bad] == [(source, target, outcome, 2)]
    [finding] = judge.judge_edges(seen)
    assert finding.cause in ("gpu-or-link-fault", "p2p-broken-acs-iommu") and finding.status == "established"
