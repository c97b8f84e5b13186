"""Every directed copy: right ones, and planted ones that arrive wrong or never."""
from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator

import pytest
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.facts_world import RankResult
from nccl_runbook.core.findings import Severity
from nccl_runbook.core.records import read
from nccl_runbook.core.redact import Redactor
from nccl_runbook.edges import ask, judge
from nccl_runbook.edges.facts import Edge, Edges
from nccl_runbook.edges.table import edges_table
from nccl_runbook.launch.engine import Engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine([sys.executable], tmp_path_factory.mktemp("logs"), Redactor({})) as engine:
        yield engine


def ends(edge: Edge) -> tuple[int, int]:
    return edge.source, edge.target


def test_right_copies_of_a_rehearsal(engine: Engine) -> None:
    seen = ask.collect(engine, [None] * 3, 60)
    assert isinstance(seen, Edges) and not seen.on_gpus and seen.bad == [] and seen.wanted == 6
    assert {ends(e) for e in seen.edges} == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert judge.judge_edges(seen) == [] and read(Edges | Gap, to_json(seen)) == seen


@pytest.mark.parametrize(("fault", "outcome"), [("corrupt@2-0", "wrong values"), ("stop@1-2", "hung")])
def test_one_planted_copy_is_named_and_the_others_are_right(engine: Engine, fault: str, outcome: str) -> None:
    began = time.monotonic()
    seen = ask.collect(engine, [None] * 3, 120, fault)
    where = tuple(map(int, fault[-3:].split("-")))
    assert [(ends(e), e.outcome, e.seen, e.runs) for e in seen.bad] == [(where, outcome, 2, 2)]
    assert len(seen.edges) == seen.wanted == 6
    assert time.monotonic() - began < 3 * ask.STALL_S + 20
    [finding] = judge.judge_edges(seen)
    assert (finding.id, finding.severity, finding.cause) == ("edge-fails", Severity.WARN, None)
    cells = {cell.text for row in edges_table(seen).rows for cell in row[1:]}
    assert outcome in cells


def test_values_of_an_event_reach_the_fields_of_their_names_and_no_others() -> None:
    begin = {"event": "begin", "edge": "0-1", "size_bytes": 4, "peer": True, "later": 1}
    copy = {**begin, "event": "copy", "wrong": 0, "first": None, "s": 0.5}
    rank = RankResult(0, "exited", 0, events=[begin, copy, {**begin, "edge": "1-0"}], last_lines=["out of memory"])
    assert ask._edges(rank, [4, 7]) == {
        "0-1": Edge(4, 7, "right", True, 4, gb_per_s=8 / 1e9),
        "1-0": Edge(7, 4, "failed", True, 4, text="out of memory"),
    }


def test_without_two_gpus_or_time_nothing_is_copied(engine: Engine) -> None:
    assert ask.collect(engine, [0], 60).reason == "not-run"
    assert ask.collect(engine, [*range(10)], 60).reason == "not-run"
    assert ask.collect(engine, [None, None], 1).reason == "not-run"


def edge(source: int, target: int, outcome: str = "right", peer: bool = True) -> Edge:
    bad = outcome != "right"
    return Edge(source, target, outcome, peer, 4096, 3 * (outcome == "wrong values"), gb_per_s=None if bad else 100.0 + source,
                seen=1 + bad, runs=1 + bad)


@pytest.mark.parametrize(("bad", "cause", "words"), [
    ([(0, 1)], "gpu-or-link-fault", {"0", "1"}),
    ([(0, 1), (1, 0)], "gpu-or-link-fault", {"0", "1"}),
    ([(2, 0), (2, 1), (0, 2), (1, 2)], "gpu-or-link-fault", {"2"}),
    ([(a, b) for a in range(3) for b in range(3) if a != b], "p2p-broken-acs-iommu", set()),
])
def test_what_bad_copies_have_in_common(bad: list[tuple[int, int]], cause: str, words: set[str]) -> None:
    every = [(a, b) for a in range(3) for b in range(3) if a != b]
    seen = Edges(6, True, [edge(a, b, "wrong values" if (a, b) in bad else "right") for a, b in every], 1.0, "line")
    [finding] = judge.judge_edges(seen)
    assert (finding.cause, finding.status, finding.severity) == (cause, "established", Severity.BROKEN)
    assert len(finding.evidence) == len(bad)
    named = {word for word in finding.title.replace(",", " ").partition(":")[0].split() if word.isdecimal()}
    assert named - {str(len(bad))} == words - {str(len(bad))}


def test_copies_that_were_seen_bad_only_once_are_likely() -> None:
    once = Edge(0, 1, "hung", True, 4, seen=1, runs=2)
    [finding] = judge.judge_edges(Edges(2, True, [once, edge(1, 0)], 1.0, "line"))
    assert (finding.status, finding.severity) == ("likely", Severity.WARN)


def test_a_copy_that_could_not_be_tried_accuses_nobody() -> None:
    failed = dataclasses.replace(edge(0, 1, "failed"), text="torch.OutOfMemoryError: CUDA out of memory")
    [finding] = judge.judge_edges(Edges(2, True, [failed, edge(1, 0)], 1.0, "line"))
    assert (finding.id, finding.severity, finding.cause) == ("edges-not-tried", Severity.UNKNOWN, None)


def test_where_others_were_not_tried_no_gpu_is_named() -> None:
    hung = [edge(0, b, "hung") for b in (1, 2, 3)]
    [finding] = judge.judge_edges(Edges(56, True, hung, 1.0, "line"))
    assert finding.cause == "p2p-broken-acs-iommu" and "GPU 0" not in finding.title


def test_a_run_that_ended_early_is_no_health() -> None:
    assert judge.judge_edges(Edges(6, True, [edge(0, 1)], 1.0, "line")) == []
    [right] = judge.judge_edges(Edges(2, True, [edge(0, 1), edge(1, 0)], 1.0, "line"))
    assert (right.id, right.severity) == ("edges-right", Severity.OK)
