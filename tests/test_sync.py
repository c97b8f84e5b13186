"""Weight syncs on real Gloo ranks: what is written, what is caught, what is left behind."""
from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench_sync
import pytest
import torch
import torch.distributed as dist
from book_samples import CLI, with_library
from hypothesis import given, settings, strategies as st
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.placement import place
from nccl_runbook.sync import ask as sync, judge as rules, models
from nccl_runbook.sync.facts import SyncRuns
from nccl_runbook.sync.methods import METHODS
from processes import children, gone, start_time
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib" / "nccl_runbook" / "ranks"))
import sync_bytes  # noqa: E402
import sync_clock  # noqa: E402
import sync_ways  # noqa: E402
import weight_sync  # noqa: E402

TINY = models.decoder("test/tiny", "qwen2", hidden=64, intermediate=160, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=1000, tied=True)


def run(engine, method, *args, ranks=2, spec=TINY, deadline_s=30.0):
    argv = ["--method", method, "--spec", json.dumps(spec), "--repeats", "2", "--cpu", *map(str, args)]
    return engine.run(WorldRequest(method, "weight_sync.py", [None] * ranks, argv, deadline_s=deadline_s))


def syncs(world):
    return [(r.rank, e) for r in world.ranks for e in r.named("sync")]


@pytest.mark.parametrize("method", [m for m in sync_ways.METHODS if not m.startswith(("nccl", "ipc"))])
def test_every_byte_arrives_on_two_engines_and_phases_add_up(engine, tmp_path, method):
    world = run(engine, method, "--directory", tmp_path / "w", "--buckets", 1, ranks=3)
    assert [r.code for r in world.ranks] == [0, 0, 0]
    assert [(rank, e["compared"], e["verified"]) for rank, e in syncs(world)] == [(0, False, True)] * 2 + [(1, True, True)] * 2 + [
        (2, True, True)
    ] * 2
    assert {e["bytes"] for _, e in syncs(world)} == {bench_sync.size_bytes(TINY)} and {e["tensors"] for _, e in syncs(world)} == {26}
    for _, event in syncs(world):
        assert sum(event["phases"].values()) == pytest.approx(event["seconds"], rel=1e-6)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("method", ["gloo-per-tensor", "fast-disk"])
def test_one_flipped_bit_on_an_engine_is_caught_and_the_tensor_named(engine, tmp_path, method):
    world = run(engine, method, "--directory", tmp_path, "--fault", "corrupt@1")
    assert [r.code for r in world.ranks] == [0, weight_sync.WRONG_BYTES]
    assert [e["wrong"] for rank, e in syncs(world) if rank == 1] == [
        [{"tensor": "model.layers.1.self_attn.q_proj.weight", "index": 13, "words": 1}]
    ] * 2


def test_a_tensor_left_from_the_sync_before_is_caught(engine):
    world = run(engine, "gloo-flat", "--fault", "stale@1")
    last = [e["wrong"] for rank, e in syncs(world) if rank == 1][-1]
    assert [(w["tensor"], w["words"]) for w in last] == [("model.norm.weight", 64)]


@pytest.mark.parametrize("method", ["disk", "fast-disk"])
def test_a_torn_file_is_named_and_removed(engine, tmp_path, method):
    world = run(engine, method, "--directory", tmp_path / "w", "--fault", "torn@0")
    assert [r.code for r in world.ranks] == [weight_sync.PEER_STOPPED, 1]
    assert re.match(r"torn file: model-[-0-9a-f]*of-000.*\.safetensors has \d+ of \d+ bytes", world.ranks[1].first("error")["text"])
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("method", ["disk", "fast-disk"])
def test_a_dead_engine_ends_the_wait_and_leaves_nothing(engine, tmp_path, method):
    began = time.monotonic()
    world = run(engine, method, "--directory", tmp_path / "w", "--fault", "die@1", deadline_s=120)
    assert world.ranks[1].code == 9 and world.ranks[0].code == 1 and world.ranks[0].first("error")
    assert time.monotonic() - began < 60 and not (tmp_path / "w").exists()


def test_an_engine_that_never_comes_is_not_waited_for_for_ever(engine):
    world = run(engine, "gloo-flat", "--timeout", 2, ranks=1, deadline_s=20)
    assert world.ranks[0].code == 0, "a trainer alone is a world of one"
    lonely = WorldRequest("lonely", "weight_sync.py", [None], world.request.args, {"WORLD_SIZE": "2"}, 20)
    rank = engine.run(lonely).ranks[0]
    assert rank.outcome == "exited" and rank.code == 1 and rank.first("error")


@pytest.mark.parametrize("method", ["gloo-flat", "fast-disk"])
def test_tensor_parallel_engines_keep_their_rows_and_every_variant_is_compared(engine, tmp_path, method):
    world = run(engine, method, "--directory", tmp_path / "w", "--tp", 2, "--buckets", "1,2", "--busy", "0,64", ranks=5, deadline_s=60)
    assert [r.code for r in world.ranks] == [0] * 5
    told = [e for r in world.ranks[1:] for e in r.named("variant")]
    assert {(e["bucket_mib"], e["busy"]) for e in told} == {(2, 0), (1, 64), (1, 0)} and all(e["verified"] and e["compared"] for e in told)
    small = bench_sync.size_bytes(TINY) // weight_sync.SMALL
    assert {e["bytes"] for e in told} == {bench_sync.size_bytes(TINY), small}


def test_engines_that_could_not_be_busy_are_not_measured_as_busy(engine):
    world = run(engine, "gloo-flat", "--busy", "0,1000000")
    assert [r.code for r in world.ranks] == [weight_sync.NOT_ENOUGH] * 2 and not any(r.named("variant") for r in world.ranks)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_products_end_is_no_busy_engine():
    with pytest.raises(RuntimeError, match=r"\b1073741824\b"), sync_clock.busy(torch.device("cpu"), 1 << 30):
        pass
    with sync_clock.busy(torch.device("cpu"), 32):  # near miss
        pass


def test_a_tensor_without_a_byte_travels_with_the_others(engine):
    world = run(engine, "gloo-flat", spec={**TINY, "head": [["empty", [0, 5]], ["scalar", []], *TINY["head"]]})
    assert [r.code for r in world.ranks] == [0, 0] and all(e["verified"] for _, e in syncs(world))


def test_the_list_of_methods_is_that_of_the_rank():
    """Each has code of its own, but for nccl-one-gpu, which is nccl-flat in another environment."""
    assert sorted(METHODS) == sorted(
        ["nccl-one-gpu", *sync_ways.METHODS, *weight_sync.sync_reshard.METHODS, *weight_sync.sync_delta.METHODS]
    )


def test_stale_swapped_and_shifted_bytes_show_in_every_tensor_and_no_others(monkeypatch):
    monkeypatch.setattr(sync_bytes, "CHUNK", 1 << 12)  # words: the second tensor lies in three rounds of the pattern
    sizes, pattern = [1536, 20000, 512, 0, 10000, 20000], sync_bytes.Pattern(torch.device("cpu"))
    a, b = (sync_bytes.laid(sync_bytes.slabs(sizes, "cpu"), sizes) for _ in "ab")
    pattern.lay(sizes, a, [0] * 6)
    pattern.fill(7)
    assert pattern.differing(7) == {} and 5 < len(pattern.pieces) < 12, "what lies end to end is one piece a round"
    assert all(pattern.differing(other) == {i: n // 2 for i, n in enumerate(sizes) if n} for other in (0, 6, 8, 300))
    pattern.lay(sizes, b, [0] * 6)
    b[0].copy_(a[0]), b[1].copy_(a[5]), b[2].copy_(a[2]), b[4][2:].copy_(a[4][:-2]), b[5].copy_(a[5])
    found = pattern.differing(7)
    assert list(found) == [1, 4] and found[1] > 9900 and found[4] > 4900
    b[1].copy_(a[1]), b[4].copy_(a[4]), b[5][19999:].bitwise_xor_(64)
    assert pattern.differing(7) == {5: 1}


def test_a_part_of_each_tensor_is_compared_with_that_part():
    pattern = sync_bytes.Pattern(torch.device("cpu"))
    sizes = [10000, 10000]
    whole = sync_bytes.laid(sync_bytes.slabs(sizes, "cpu"), sizes)
    pattern.lay(sizes, whole, [0, 0])
    pattern.fill(3)
    pattern.lay(sizes, [whole[0][2000:6000], whole[1][:500]], [2000, 0])
    assert pattern.differing(3) == {}
    pattern.lay(sizes, [whole[0][2000:6000], whole[1][:500]], [1998, 0])
    assert list(pattern.differing(3)) == [0] and pattern.differing(3)[0] > 1990


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12), st.integers(600, 4000), st.integers(2, 32))
def test_tensors_lie_apart_in_memory_and_so_do_parts_of_them(sizes, slab, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync_bytes, "SLAB", slab)
        memory = sync_bytes.slabs(sizes, "cpu")
    for wanted in (sizes, [size // part for size in sizes]):
        views = sync_bytes.laid(memory, wanted)
        assert [v.numel() for v in views] == wanted and all(v.storage_offset() % sync_bytes.ALIGN == 0 for v in views)
        for number, view in enumerate(views):
            view.fill_(number)
        assert all((view == number).all() for number, view in enumerate(views))


@pytest.mark.parametrize(("sizes", "limit", "wanted"), [([4, 4, 4], 8, [[0, 1], [2]]), ([9], 9, [[0]]), ([1, 9, 1], 9, [[0], [1], [2]])])
def test_buckets_keep_the_order_and_the_limit(sizes, limit, wanted):
    assert sync_bytes.buckets_of(sizes, limit) == wanted


spans = st.lists(
    st.tuples(st.sampled_from(sync_clock.PHASES), st.floats(0, 1), st.floats(0, 1)).map(lambda s: (s[0], min(s[1:]), max(s[1:]))),
    max_size=9,
)


@settings(max_examples=60)
@given(spans, st.floats(0.1, 1))
def test_phases_add_up_however_they_overlap(found, total):
    shares = sync_clock.shares(found, total)
    assert sum(shares.values()) == pytest.approx(total) and all(s > 0 for s in shares.values())
    wire = sum(b - a for p, a, b in found if p == "wire")
    assert shares.get("wire", 0) <= wire + 1e-9


def test_what_is_hidden_behind_the_wire_costs_nothing():
    assert sync_clock.shares([("wire", 1, 3), ("pack", 0, 2), ("load", 2.5, 4)], 5.0) == {"pack": 1, "wire": 2, "load": 1, "other": 1}


class Watched(sync_clock.Clock):
    """Counts how often the host waits for the device while no phase is measured."""

    held, waits, loose = 0, 0, 0

    @contextlib.contextmanager
    def host(self, phase):
        with super().host(phase):
            self.held += 1
            yield
            self.held -= 1

    def wait(self):
        super().wait()
        self.waits, self.loose = self.waits + 1, self.loose + (self.held == 0)


@pytest.fixture
def alone(monkeypatch):
    """A group of this process alone, with the tensors of TINY."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    arguments = ["weight_sync.py", "--method", "gloo-per-tensor", "--spec", json.dumps(TINY), "--cpu", "--buckets", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    sync = weight_sync.Sync(weight_sync.check.parsed("", weight_sync.OPTIONS), 0, 1, torch.device("cpu"))
    sync.prepare()
    yield sync
    dist.destroy_process_group()


@pytest.mark.parametrize("way", [sync_ways.per_tensor, sync_ways.listed, sync_ways.flat])
def test_whoever_waits_for_the_device_counts_it_for_a_phase(alone, way):
    """On H200 the notice of 290 broadcasts' ends, in no phase, was a tenth of a sync."""
    alone.buckets, alone.stage = sync_bytes.buckets_of(alone.sizes, alone.bucket_bytes(1)), [
        torch.zeros(1 << 20, dtype=torch.uint8) for _ in "ab"
    ]
    clock = Watched(alone.device)
    before = clock.loose
    way(alone, clock)
    assert clock.waits > before and clock.loose == before
    clock.stop()
    assert clock.loose == before + 1, "near miss: the last byte of all is waited for when the clock stops"


def test_the_speed_entries_run_without_a_gpu(engine):
    flat = bench_sync.flat_broadcast(
        engine, TINY, [None, None], lambda: bench_sync.torch_broadcast(engine, [None, None], 1 << 16), 1, "gloo-flat"
    )
    disk = bench_sync.disk(engine, TINY, [None, None], 1)
    assert all(len(v) == 1 and v[0] > 0 for v in [*flat.values(), *disk.values()]) and set(bench_sync.GOALS) >= {
        "wire",
        "whole",
        "fast-disk",
        "fast-disk-shm",
    }


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 64 KiB; the tensors need four times as much."""
    where = tmp_path / "tiny"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_a_folder_that_cannot_be_written_is_one_sentence_before_any_rank(engine, tiny_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(ValueError, match=rf"directory: .* {tiny_disk}\b"):
        sync.collect(engine, TINY, [None, None], "disk", directory=str(tiny_disk))
    with pytest.raises(ValueError, match=rf"directory: .* {re.escape(__file__)}\b"):
        sync.collect(engine, TINY, [None, None], "disk", directory=__file__)
    assert (
        sync.collect(engine, TINY, [None, None], "gloo-flat", directory=str(tiny_disk), repeats=1, deadline_s=60).arms["gloo-flat"].complete
    ), "near miss"


@pytest.mark.parametrize("method", ["disk", "fast-disk"])
def test_a_full_disk_is_told_with_its_bytes_and_nothing_is_left(engine, tiny_disk, method):
    world = run(engine, method, "--directory", tiny_disk / "w")
    assert [r.code for r in world.ranks] == [weight_sync.NOT_ENOUGH, weight_sync.PEER_STOPPED]
    told = world.ranks[0].first("not-enough")
    assert told["needed"] >= bench_sync.size_bytes(TINY) and told["free"] <= 64 << 10 and str(tiny_disk) in told["what"]
    assert list(tiny_disk.iterdir()) == []


def test_more_memory_than_there_is_is_not_allocated(engine):
    huge = {**TINY, "head": [["embed", [1 << 30, 1 << 12]]]}
    world = run(engine, "gloo-flat", spec=huge)
    assert [r.code for r in world.ranks] == [weight_sync.NOT_ENOUGH] * 2
    assert world.ranks[0].first("not-enough")["needed"] > 1 << 43


def test_the_probe_gives_a_fact_that_survives_the_record_and_leaves_nothing(engine, tmp_path):
    runs = sync.collect(engine, TINY, [None, None], directory=str(tmp_path), repeats=2, deadline_s=60)
    assert list(runs.arms) == ["gloo-flat", "disk", "fast-disk"] and all(a.complete and a.compared == 4 for a in runs.run)
    assert (runs.tensors, runs.size_bytes, runs.on_cpu) == (26, bench_sync.size_bytes(TINY), True) and runs.file_system
    assert runs.arms["disk"].syncs[-1].fsync_s is not None and runs.fastest("gloo").steady_s > 0
    assert TypeAdapter(SyncRuns | Gap).validate_python(json.loads(json.dumps(to_json(runs)))) == runs
    assert list(tmp_path.iterdir()) == []


def test_the_probe_says_what_it_did_not_run(engine, tmp_path):
    runs = sync.collect(engine, TINY, [None, None], methods="nccl-flat,disk", directory=str(tmp_path), deadline_s=1)
    assert [a.reason for a in runs.arms.values()] == ["not-run", "not-run"] and "methods=disk" in runs.arms["disk"].detail
    assert sync.collect(engine, TINY, [None, None], methods="nccl-flat", deadline_s=60).arms["nccl-flat"].reason == "unsupported"
    for wrong, message in (
        ({"methods": "rsync"}, "'rsync'"),
        ({"methods": "gloo-flat@1+x"}, "gloo-flat@1\\+x: '1,x'"),
        ({"tp": 2}, "multiple of 2"),
    ):
        with pytest.raises(ValueError, match=message):
            sync.collect(engine, TINY, [None, None], **wrong)


def test_an_arm_that_the_deadline_ends_leaves_nothing_and_some_of_the_budget_and_is_called_slow(own_engine, tmp_path, monkeypatch):
    monkeypatch.setattr(sync, "_LEAST_S", 1.0)
    own_engine.software()  # torch is imported: the deadline is that of the arms
    runs = sync.collect(own_engine, TINY, [None, None], methods="disk,gloo-flat", directory=str(tmp_path), repeats=10**6, deadline_s=8)
    assert [arm.timed_out for arm in runs.run] == [True, True] and len(runs.arms["disk"].syncs) > 5
    assert {path.name for path in tmp_path.iterdir()} <= {"logs"}, "those of the engine"
    assert [f.id for f in rules.judge(runs, place(runs.devices))] == ["weight-sync-too-slow"] * 2 + ["rehearsed-without-gpu"]


def test_an_interrupt_ends_the_ranks_and_tells_what_was_measured(tmp_path):
    """disk is at work for ten seconds; the one before it is measured, the one behind it is not."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen2",
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_hidden_layers": 1,
                "intermediate_size": 160,
                "vocab_size": 1000,
            }
        )
    )
    runner = subprocess.Popen(
        [
            *CLI,
            "sync",
            "--model",
            str(tmp_path),
            "--layers",
            "1",
            "--methods",
            "gloo-flat,disk,fast-disk",
            "--repeats",
            "1000",
            "--directory",
            str(tmp_path),
            "--budget",
            "10m",
            "--json",
        ],
        env=with_library(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = [runner.stderr.readline() for _ in range(2)]
    wait_for_one(tmp_path, "nccl-runbook-sync-*/*")
    below = {pid: start_time(pid) for pid in children(runner.pid)}
    runner.send_signal(signal.SIGTERM)
    out, err = runner.communicate(timeout=60)
    arms, why = json.loads(out)["facts"]["runs"]["arms"], "interrupted (SIGTERM)"
    assert runner.returncode == 143 and gone(below) and [p.name for p in tmp_path.iterdir()] == ["config.json"]
    assert "running gloo-flat" in said[0] and re.match(r"\[1/3\] gloo-flat: .* [0-9.]+ s, .* [0-9.]+ s, .*; running disk", said[1])
    assert (
        len(arms["gloo-flat"]["syncs"]) == 1000
        and arms["disk"]["stopped"] == why
        and arms["fast-disk"] == {"reason": "not-run", "detail": why}
    )
    assert why in err and {f["id"] for f in json.loads(out)["findings"]} >= {"weight-sync-interrupted", "not-seen"}


@pytest.mark.parametrize(("letters", "pasted"), [(2, True), (40, False)])
def test_shapes_that_fit_into_no_command_are_not_printed_as_one(tmp_path, letters, pasted):
    """As of a model whose layers differ: Linux takes no argument of more than 128 KiB."""
    text = json.dumps(
        {f"{'x' * letters}{i}": {"dtype": "BF16", "shape": [1], "data_offsets": [2 * i, 2 * i + 2]} for i in range(2500)}
    ).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(5000))
    asked = ["sync", "--model", str(tmp_path / "m.safetensors"), "--methods", "gloo-flat", "--repeats", "1", "--budget", "50s"]
    told = subprocess.run([*CLI, *asked], env=with_library(), capture_output=True, text=True, check=False, timeout=100)
    line = next(line for line in told.stdout.splitlines() if "weight_sync.py" in line)
    assert (
        told.returncode == 4 and bool(re.search(r"\.\.\. \(.*\b1\d{5}\b.*\)$", line)) == (not pasted) and len(line) < 1000
    ), "cut, and how long it is"
    if pasted:
        line = line[line.index("timeout "):]
        assert (
            subprocess.run(["bash", "-c", line], cwd=Path(__file__).parents[1], capture_output=True, timeout=100, check=False).returncode
            == 0
        ), "as printed, in the runbook's folder"


def wait_for_one(folder, pattern):
    until = time.monotonic() + 60
    while not list(folder.glob(pattern)) and time.monotonic() < until:
        time.sleep(0.02)


def test_a_sync_sweeps_what_a_killed_one_left(engine, tmp_path):
    """test_own_folder.py says which folders stay."""
    left = tmp_path / "nccl-runbook-sync-1-a"
    left.mkdir()
    (left / ".owner").touch()
    sync.collect(engine, TINY, [None, None], methods="disk", directory=str(tmp_path), repeats=1, deadline_s=60)
    assert list(tmp_path.iterdir()) == []


def test_a_sync_without_a_folder_leaves_the_users_own_weights_alone(tmp_path):
    """They lay in the current folder under the name that fast_disk's own link has."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").write_text("mine")
    (tmp_path / "weights").symlink_to("checkpoint")
    spec = json.dumps({"head": [["w", [8, 8]]], "layer": [], "layers": 0, "prefix": "", "tail": []})
    alone = [sys.executable, weight_sync.__file__, "--method", "gloo-flat", "--cpu", "--spec", spec]
    assert subprocess.run(alone, cwd=tmp_path, capture_output=True, timeout=90).returncode == 0
    assert (tmp_path / "weights" / "model.safetensors").read_text() == "mine"


def test_the_shell_line_runs_as_printed(engine, tmp_path):
    runs = sync.collect(engine, TINY, [None, None], methods="disk", directory=str(tmp_path), repeats=1, deadline_s=60)
    root = Path(__file__).resolve().parents[1]
    again = subprocess.run(shlex.split(runs.arms["disk"].shell_line), cwd=root, capture_output=True, text=True, timeout=90)
    assert again.returncode == 0 and again.stdout.count("verified=True") == 6 and list(tmp_path.iterdir()) == []
