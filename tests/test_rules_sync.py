"""Rules of 05-weight-sync: each fires, and stays quiet at the near miss."""
from __future__ import annotations

import dataclasses
import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, strategies as st
from nccl_runbook import placement
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Severity
from nccl_runbook.sync import judge as weight_sync, judge_failures as weight_sync_failures
from nccl_runbook.sync.facts import Shortage, SyncArm, SyncRuns, SyncTime, SyncVariant
from nccl_runbook.sync.table import methods_table, placement_table

# as NCCL 2.28.9 on an H200 ends it (torch 2.11), and the two later wordings
DUPLICATE = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
REFUSALS = [DUPLICATE, "Multiple ranks detected using the same GPU on this node", "Multiple Ranks are using the same GPU/Partition"]
ERROR = (
    "NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage.\nLast"
    " error:\n"
)
APART, TOGETHER = placement.place([0, 1]), placement.place([0])


def arm(method, seconds=(0.01, 0.01), **other):
    times = [SyncTime(i, s, {"wire": s}, {"wire": s}) for i, s in enumerate(seconds)]
    made = SyncArm(method, times, len(times), [], {}, None, ["exited 0", "exited 0"], False, 100.0, 5.0, {}, "torchrun weight_sync.py")
    return dataclasses.replace(made, **other)


def broken(method, text, **other):
    return arm(method, (), errors={"0": text, "1": text}, ended=["exited 1", "exited 1"], **other)


def runs(*arms, devices=(0, 1), uuids=("GPU-a", "GPU-b"), layers=24):
    return SyncRuns(
        "m", layers, 24, 290, 988_065_536, 2, "/tmp", "ext4", list(devices), ["NVIDIA H200"] * 2, list(uuids), {a.method: a for a in arms}
    )


def ids(facts, plan=APART):
    return [f.id for f in weight_sync.judge(facts, plan)]


@pytest.mark.parametrize("text", REFUSALS)
def test_trainer_and_engine_share_gpu_fires_when_nccl_refuses_one_gpu(text):
    one = runs(
        broken("nccl-per-tensor", ERROR + text), broken("nccl-flat", ERROR + text), arm("disk"), devices=(0, 0), uuids=("GPU-a", "GPU-a")
    )
    found = weight_sync.judge(one, TOGETHER)
    assert [f.id for f in found] == ["trainer-and-engine-share-gpu", "weight-sync-choice", "weight-sync-verified"], "once for both methods"
    assert (found[0].severity, found[0].status, found[0].cause) == (Severity.NOTE, "established", "trainer-and-engine-share-gpu")
    lines = [line for r in found[0].remedy for line in r.lines]
    assert lines == ["actor.weight_update_mode=disk", "export NCCL_MULTI_RANK_GPU_ENABLE=1"] and text in found[0].evidence[0].text


def test_trainer_and_engine_share_gpu_stays_quiet_when_uuids_differ():
    found = weight_sync.judge(runs(broken("nccl-flat", ERROR + DUPLICATE)), APART)
    assert [(f.id, f.severity, f.cause, f.status) for f in found] == [
        ("refused-though-gpus-differ", Severity.BROKEN, "bus-id-collision", "likely")]
    assert "refused-though-gpus-differ" not in ids(runs(broken("disk", ERROR + DUPLICATE))), "this method does not go over NCCL"


def test_failed_on_one_gpu_fires_when_only_the_echo_of_the_refusal_is_left():
    echo = "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error"
    found = weight_sync.judge(runs(broken("nccl-flat", echo), devices=(0, 0), uuids=("GPU-a", "GPU-a")), TOGETHER)
    assert [(f.id, f.severity, f.status) for f in found] == [("failed-on-one-gpu", Severity.NOTE, "likely")]


@pytest.mark.parametrize(("method", "text", "devices"), [
    ("nccl-flat", "NCCL error: remote process exited", (0, 1)), ("disk", "OSError: stale file handle", (0, 0)),
    ("nccl-flat", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", (0, 0))])
def test_failed_on_one_gpu_stays_quiet_when_gpus_differ_or_something_else_broke(method, text, devices):
    plan, uuids = (TOGETHER, ("GPU-a", "GPU-a")) if devices == (0, 0) else (APART, ("GPU-a", "GPU-b"))
    assert ids(runs(broken(method, text), devices=devices, uuids=uuids), plan) == ["weight-sync-failed"]


PLUGIN = (
    "NCCL error in: NCCLUtils.cpp:93, invalid usage\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast"
    " error:\nFailed to initialize any NET plugin"
)


def test_a_recognised_message_is_the_reason_even_if_two_ranks_share_a_gpu():
    found = weight_sync.judge(runs(broken("nccl-flat", PLUGIN), devices=(0, 0), uuids=("GPU-a", "GPU-a")), TOGETHER)
    assert [(f.id, f.severity, f.cause, f.status) for f in found] == [
        ("weight-sync-failed", Severity.BROKEN, "net-plugin-failed", "likely")
    ]


@pytest.mark.parametrize("ended", [["exited 1", "timed-out 15"], ["timed-out 15", "signalled 11"]])
def test_a_rank_that_broke_decides_and_the_other_only_waited(ended):
    one = arm(
        "nccl-flat",
        (),
        timed_out=True,
        ended=ended,
        deadline_s=69.0,
        wall_s=3.5,
        errors={"0": "node3:7:7 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found"},
    )
    assert [(f.id, f.cause) for f in weight_sync.judge(runs(one), APART)] == [("weight-sync-failed", "socket-interface-wrong")]
    assert "time" not in one.outcome and not one.passed


def test_refused_though_gpus_differ_stays_quiet_when_two_indices_are_one_gpu():
    assert ids(runs(broken("nccl-flat", ERROR + DUPLICATE), uuids=("GPU-a", "GPU-a"))) == ["trainer-and-engine-share-gpu"]


def test_refused_though_gpus_differ_is_only_possible_without_uuids():
    assert weight_sync.judge(runs(broken("nccl-flat", ERROR + DUPLICATE), uuids=("", "")), APART)[0].status == "possible"


def test_trainer_and_engine_share_gpu_stays_quiet_when_another_error_ends_one_gpu():
    found = weight_sync.judge(runs(broken("nccl-flat", "CUDA error: out of memory"), devices=(0, 0)), TOGETHER)
    assert found[0].id == "weight-sync-failed" and found[0].severity is Severity.BROKEN


def test_shared_gpu_not_refused_fires_when_nccl_passes_on_one_gpu():
    assert ids(runs(arm("nccl-flat"), devices=(0, 0), uuids=("GPU-a", "GPU-a")), TOGETHER)[0] == "shared-gpu-not-refused"


def test_shared_gpu_not_refused_stays_quiet_when_only_disk_passes():
    assert ids(runs(arm("disk"), devices=(0, 0)), TOGETHER) == ["weight-sync-choice", "weight-sync-verified"]


KILLED = {"ended": ["signalled 9"] * 2, "last_lines": ["[rank0] NCCL INFO Init START"]}


@pytest.mark.parametrize(("gpus", "plan"), [((0, 1), APART), ((0, 0), TOGETHER)], ids=["apart", "together"])
def test_weight_sync_interrupted_fires_when_somebody_stopped_it(gpus, plan):
    found = weight_sync.judge(runs(arm("nccl-flat", stopped="interrupted (SIGTERM)", **KILLED), devices=gpus), plan)
    assert [(f.id, f.severity) for f in found] == [("weight-sync-interrupted", Severity.UNKNOWN)] and re.fullmatch(
        r"2 syncs .*\b5 s", found[0].evidence[0].text
    )


def test_weight_sync_interrupted_stays_quiet_when_ranks_were_killed_by_others():
    assert ids(runs(arm("nccl-flat", **KILLED))) == ["weight-sync-failed"]


def test_weight_sync_wrong_bytes_fires_when_one_tensor_differs():
    wrong = [{"rank": 1, "repeat": 1, "tensor": "model.norm.weight", "index": 289, "words": 1, "count": 1}]
    found = weight_sync.judge(runs(arm("nccl-flat", wrong=wrong, ended=["exited 0", "exited 6"]), arm("disk")), APART)
    assert found[0].id == "weight-sync-wrong-bytes" and found[0].severity is Severity.BROKEN and found[0].cause is None
    assert re.search(r"model\.norm\.weight .*rank 1, sync 2\b", found[0].title) and "nccl-flat" not in found[-1].title


def test_weight_sync_wrong_bytes_stays_quiet_when_all_are_right():
    assert ids(runs(arm("nccl-flat"))) == ["weight-sync-verified"]


def test_weight_sync_verified_stays_quiet_when_nothing_was_compared():
    assert ids(runs(arm("nccl-flat", compared=0))) == []


def test_weight_sync_not_enough_fires_when_space_is_missing_and_is_no_fault():
    short = arm("disk", (), shortage=Shortage("space in /dev/shm", 10**9, 6 * 10**7), ended=["exited 5", "exited 7"])
    found = weight_sync.judge(runs(short), APART)
    assert (found[0].id, found[0].severity) == ("weight-sync-not-enough", Severity.UNKNOWN) and "0.06 GB free" in found[0].evidence[0].text
    advice = {
        what: weight_sync_failures.not_enough(arm("disk", (), shortage=Shortage(what, 9, 1))).remedy[0].text
        for what in ("space in /tmp", "host memory", "memory on GPU 0")
    }
    assert ["directory" in text for text in advice.values()] == [True, False, False]


def test_weight_sync_failed_fires_when_a_rank_dies_without_a_word():
    found = weight_sync.judge(runs(arm("nccl-flat", (), ended=["exited 1", "signalled 9"])), APART)
    assert found[0].id == "weight-sync-failed" and found[0].cause is None and "signalled 9" in found[0].evidence[1].text


def test_weight_sync_failed_fires_when_a_rank_is_lost_before_time_runs_out():
    assert ids(runs(arm("nccl-flat", (), ended=["exited 0", "lost"]))) == ["weight-sync-failed"]


@pytest.mark.parametrize(("text", "rule"), [
    ("slurmstepd: error: *** STEP 12.0 ON n7 CANCELLED AT 2026-01-02T03:04:05 ***", "failed-on-one-gpu"), (PLUGIN, "weight-sync-failed")])
def test_failed_on_one_gpu_fires_when_the_message_only_may_be_the_reason(text, rule):
    near = runs(broken("nccl-flat", text), devices=(0, 0), uuids=("GPU-a", "GPU-a"))
    assert (weight_sync_failures.recognised(near.arms["nccl-flat"]).status == "possible") == (rule == "failed-on-one-gpu")
    assert ids(near, TOGETHER) == [rule]


def test_weight_sync_failed_names_the_cause_when_the_message_is_known():
    found = weight_sync.judge(runs(broken("nccl-flat", "Bootstrap : no socket interface found")), APART)
    assert found[0].cause == "socket-interface-wrong" and found[0].status == "likely"


def test_weight_sync_hangs_fires_when_no_sync_was_finished_in_a_minute():
    assert ids(runs(arm("nccl-flat", (), timed_out=True, ended=["timed-out 15"] * 2))) == ["weight-sync-hangs"]


@pytest.mark.parametrize("near", [{"seconds": (1.0,)}, {"deadline_s": 20.0}, {"method": "disk"}])
def test_weight_sync_hangs_stays_quiet_when_it_is_only_slow(near):
    slow = {"method": "nccl-flat", "seconds": (), "timed_out": True, "ended": ["timed-out 15"] * 2, **near}
    found = weight_sync.judge(runs(arm(slow.pop("method"), **slow)), APART)
    assert [(f.id, f.severity) for f in found] == [("weight-sync-too-slow", Severity.UNKNOWN)]


def test_a_method_whose_syncs_were_over_is_measured_though_time_ended_with_engines_busy():
    """Products of 32768 x 32768 hold up 30 broadcasts of one sync for longer than its share of the time (two H200, 2026-11-22)."""
    cut = {"timed_out": True, "ended": ["timed-out 15"] * 2, "variants": [SyncVariant(512, 16384, 10**9, 1.0)]}
    measured = arm("nccl-list", (0.5, 0.05), **cut)
    assert [(f.id, f.severity) for f in weight_sync.judge(runs(measured), APART)][:1] == [
        ("weight-sync-cut", Severity.NOTE)
    ] and measured.passed
    near = arm("nccl-list", (0.5, 0.05), wrong=[{"tensor": "a", "rank": 1, "repeat": 1, "words": 1, "count": 1}], **cut)
    assert "weight-sync-cut" not in ids(runs(near)) and not near.passed


def test_disk_slower_than_nccl_fires_with_the_ratio_measured_here():
    found = weight_sync.judge(runs(arm("nccl-flat", (0.5, 0.010)), arm("nccl-per-tensor", (0.5, 0.02)), arm("disk", (1.0, 3.4))), APART)
    slower, = (f.title for f in found if f.id == "disk-slower-than-nccl")
    assert re.search(r"\bdisk .*\b340 times .*\bnccl-flat\b", slower)


def test_disk_slower_than_nccl_stays_quiet_when_it_is_not_twice_as_slow():
    assert "disk-slower-than-nccl" not in ids(runs(arm("nccl-flat", (0.5, 0.010)), arm("disk", (1.0, 0.019))))
    assert "disk-slower-than-nccl" not in ids(runs(arm("gloo-flat", (0.5, 0.010)), arm("disk", (1.0, 9.0))))


def test_rate_above_link_fires_when_the_timer_missed_the_work():
    found = weight_sync.judge(runs(arm("nccl-flat", (0.01, 0.0005))), APART)
    assert found[0].id == "rate-above-link" and re.findall(r"\d+ GB/s", found[0].title) == ["1976 GB/s", "450 GB/s"]


def test_rate_above_link_stays_quiet_when_nvlink_can_do_it():
    assert "rate-above-link" not in ids(runs(arm("nccl-flat", (0.01, 0.00274))))  # 360 GB/s, measured on H200


def test_rate_above_link_fires_when_ipc_between_gpus_beats_nvlink_and_stays_quiet_inside_one():
    assert "rate-above-link" in ids(runs(arm("ipc-direct", (0.0007,))))  # 1,400 GB/s
    assert "rate-above-link" not in ids(runs(arm("ipc-direct", (0.0007,)), devices=(0, 0), uuids=("GPU-a", "GPU-a")), TOGETHER)


def test_rate_above_link_fires_when_gloo_is_faster_than_pcie():
    assert ids(runs(arm("gloo-flat", (0.005,))))[0] == "rate-above-link"


def test_rehearsed_without_gpu_fires_when_all_ranks_sit_on_the_cpu():
    found = weight_sync.judge(runs(arm("gloo-flat", (0.4,)), devices=(None, None), layers=6), placement.place([None, None]))
    assert [(f.id, f.severity) for f in found] == [("rehearsed-without-gpu", Severity.UNKNOWN), ("weight-sync-verified", Severity.OK)]
    assert "only 6 of 24 layers" in found[1].title


def test_rehearsed_without_gpu_stays_quiet_when_there_is_one():
    assert "rehearsed-without-gpu" not in ids(runs(arm("disk")))


def test_nothing_is_judged_where_nothing_was_run():
    busy = Gap("not-run", "busy (pid 7)")
    assert weight_sync.judge(busy, busy) == []
    assert "busy (pid 7)" in repr(methods_table(busy)) and "busy (pid 7)" in repr(placement_table(busy))


def test_the_verdict_rests_on_arms_and_not_on_what_a_log_says_of_transports():
    def rests(path):
        return any(fnmatchcase(path, pattern) for pattern in weight_sync.RESTS_ON)

    assert rests("runs.arms.nccl-flat@64+512") and not rests("runs.arms.nccl-flat@64.transports") and not rests("runs.arms.nccl-one-gpu")
    assert rests("runs") and rests("plan") and rests("runs.arms.nccl-flat") and not rests("runs.arms.nccl-flat.transports")


def test_tables_say_in_words_what_they_shade():
    one = runs(broken("nccl-flat", ERROR + DUPLICATE), arm("disk", (0.5, 0.4)), devices=(0, 0), layers=6)
    text = repr(methods_table(one))
    assert "6 of 24 layers" in text and all(a.outcome in text for a in one.run) and len({a.outcome for a in one.run}) == 2 and "2.5" in text
    assert "shared" in repr(placement_table(TOGETHER)) and "shared" not in repr(placement_table(APART))


@given(st.lists(st.one_of(st.none(), st.integers(0, 7)), min_size=1, max_size=8))
def test_a_placement_shares_exactly_where_an_index_repeats(indices):
    plan = placement.place(indices)
    on_gpu = [d for d in plan.devices if d is not None]
    assert bool(plan.shared) == (len(set(on_gpu)) < len(on_gpu)) and len(plan.seats) >= 2
    assert [s.role for s in plan.seats] == ["trainer"] + ["engine"] * (len(plan.seats) - 1)
    assert all(len({plan.devices[r] for r in ranks}) == 1 for ranks in plan.shared)


def test_a_rehearsal_moves_an_eighth_of_the_layers_unless_asked():
    cpu = placement.place([None, None])
    assert [placement.layers_to_move(p, asked, 24) for p in (cpu, APART) for asked in (0, 9)] == [3, 9, 24, 9]


# --- each condition of judge_failures by itself

@pytest.mark.parametrize(("uuids", "plan", "shared"), [
    (("", ""), TOGETHER, True), (("", ""), APART, False), (("GPU-a", "GPU-a"), APART, True), (("GPU-a", "GPU-b"), APART, False)])
def test_two_ranks_share_a_gpu_by_the_plan_or_by_what_they_saw(uuids, plan, shared):
    assert weight_sync_failures._shared(runs(uuids=uuids), plan) is shared


@pytest.mark.parametrize(
    ("uuids", "status"), [(("GPU-a", "GPU-b"), "likely"), (("GPU-a", "GPU-a"), "possible"), (("GPU-a", ""), "possible")]
)
def test_refused_though_gpus_differ_is_likely_only_where_both_are_known_to_differ(uuids, status):
    found = weight_sync_failures.refused_though_gpus_differ(broken("nccl-flat", ERROR + DUPLICATE), runs(uuids=uuids), APART)
    assert (found.status, found.evidence[1].text) == (status, "UUIDs: " + ", ".join(u or "unknown" for u in uuids))


@pytest.mark.parametrize(
    ("seconds", "other", "rule"),
    [
        ((20.0, 20.0), {"variants": [SyncVariant(512, 16384, 10**9, 1.0)]}, "weight-sync-cut"),
        ((20.0, 20.0), {}, "weight-sync-too-slow"),
        ((20.0, 20.0), {"variants": [SyncVariant(512, 16384, 10**9, 1.0)], "compared": 0}, "weight-sync-too-slow"),
        ((), {}, "weight-sync-hangs"),
    ],
)
def test_what_did_not_end_was_cut_after_its_measurement_too_slow_or_hangs(seconds, other, rule):
    late = arm("nccl-flat", seconds, timed_out=True, ended=["timed-out 15"] * 2, **other)
    assert weight_sync_failures.did_not_end(late).id == rule


@pytest.mark.parametrize(
    ("errors", "cause", "status", "quoted"),
    [
        (
            {"0": "step 3\nNo space left on device (28): /dev/shm/nccl-abc"},
            "shm-too-small",
            "likely",
            "No space left on device (28): /dev/shm/nccl-abc",
        ),
        ({"0": DUPLICATE}, "device-not-set-per-rank", "possible", DUPLICATE),
        ({"0": "something new"}, None, None, "something new"),
        ({}, None, None, "no rank printed anything"),
    ],
)
def test_what_failed_has_the_cause_of_its_message_if_that_is_known(errors, cause, status, quoted):
    found = weight_sync_failures.failed(arm("disk", (), errors=errors, ended=["exited 1"] * 2))
    assert (found.cause, found.status, found.evidence[0].text) == (cause, status, quoted)
    assert (": " in found.title) == bool(cause) != any(line == "torchrun weight_sync.py" for r in found.remedy for line in r.lines)
