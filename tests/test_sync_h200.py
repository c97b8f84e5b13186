"""What four H200 said (tests/data/sync-h200.json): the verdicts over real syncs, and phases that add up there."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nccl_runbook.core.facts import to_json, utc_now
from nccl_runbook.core.findings import Severity
from nccl_runbook.core.records import Record
from nccl_runbook.placement import place
from nccl_runbook.plan.answer import intend, intention
from nccl_runbook.plan.table import intended_tables
from nccl_runbook.report.page import render_index
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo
from nccl_runbook.sync import judge as weight_sync
from nccl_runbook.sync.facts import SyncRuns
from nccl_runbook.sync.table import methods_table, sweeps_table
from pydantic import TypeAdapter

SEEN = json.loads((Path(__file__).parent / "data" / "sync-h200.json").read_text())


def runs(name: str) -> SyncRuns:
    return TypeAdapter(SyncRuns).validate_python(SEEN[name])


def judged(name: str) -> dict[str, str]:
    seen = runs(name)
    return {f.id: f.title for f in weight_sync.judge(seen, place(seen.devices[:1] if seen.devices[0] == seen.devices[1] else seen.devices))}


def test_rl_on_one_gpu_ends_in_the_refusal_and_in_ipc():
    found = judged("one-gpu")
    assert list(found) == ["trainer-and-engine-share-gpu", "weight-sync-choice", "weight-sync-verified"]
    assert re.search(r": ipc-direct, 0\.0042 s .*0\.99 GB", found["weight-sync-choice"])
    assert "ipc-direct, gloo-flat, disk, fast-disk, fast-disk-shm" in found["weight-sync-verified"]


def test_rl_on_one_gpu_is_one_page_from_the_allocation_to_the_way_that_works():
    """The planned duplicate, NCCL's own refusal of it, the tag's line, and the methods that brought every byte on that one GPU
    (measured)."""
    seen, seats = runs("one-gpu"), place([0])
    intended = intend("sglang:d1+fsdp:d1", seats, "v0.5.0")
    found = intention(intended, weight_sync.judge(seen, seats))
    planned = found[0]
    assert [f.id for f in found] == ["allocation-duplicate", "trainer-and-engine-share-gpu", "weight-sync-choice", "weight-sync-verified"]
    assert (planned.severity, planned.status, found[1].remedy) == (
        Severity.BROKEN,
        "established",
        (),
    ) and "Duplicate GPU" in planned.evidence[-1].text
    tables = [*intended_tables(intended), methods_table(seen)]
    record = Record(
        step="05-weight-sync", status="broken", reason=planned.title, started=utc_now(), findings=found, tables=[to_json(t) for t in tables]
    )
    run = RunInfo(id="x", started=record.started, command="x", planned=["05-weight-sync"], asked=[])
    page = render_index(verdict_document(run, [record]), [record])
    told = [page.index(word) for word in (planned.title, "actor.weight_update_mode=disk", tables[0].caption, "Duplicate GPU",
                                          "ipc-direct, 0.0042 s", seen.arms["ipc-direct"].outcome)]
    assert told == sorted(told) and len(page) < 300_000
    two = intention(intend("sglang:d1+fsdp:d1", place([0, 1]), "v0.5.0"), weight_sync.judge(runs("flat"), place([0, 1])))
    assert two[0].id == "allocation-clean" and two[0].cause is None


def test_on_two_gpus_flat_buckets_are_chosen_by_what_nccls_log_says_of_the_link():
    found = judged("flat")
    assert found["weight-sync-choice"].partition(": ")[2].startswith("nccl-flat@512+64+256+1024, 0.0439 s")
    assert "15.23 GB" in found["weight-sync-choice"]
    assert "rate-above-link" not in found and all(
        f.severity in (Severity.OK, Severity.NOTE) for f in weight_sync.judge(runs("flat"), place([0, 1]))
    )


@pytest.mark.parametrize("name", ["flat", "others", "pinned"])
def test_phases_of_15_gb_add_up_within_5_percent(name):
    for arm in runs(name).run:
        for told in arm.syncs:
            sums = [sum(phases.values()) for phases in (told.trainer, told.engine)]
            assert max(sums) == pytest.approx(told.seconds, rel=0.001) and min(sums) > 0.9 * told.seconds, (arm.method, told)


def test_a_busy_engine_is_what_no_bucket_cures():
    arm = runs("flat").run[0]
    buckets = {v.bucket_mib: v.seconds for v in arm.variants if not v.busy and v.size_bytes == 15_231_233_024}
    busy = {v.busy: v.seconds for v in arm.variants if v.busy}
    assert max(buckets.values()) < 1.03 * min(buckets.values()) and busy[4096] < 0.046 and busy[16384] > 5 * arm.steady_s
    a, b = arm.fit(339, 15_231_233_024)
    assert 10e-6 < a < 20e-6 and 350e9 < b < 450e9
    assert "16384 x 16384" in repr(sweeps_table(runs("flat")))
    assert next(a for a in runs("one-gpu").run if not a.passed).outcome in repr(methods_table(runs("one-gpu")))
