"""The fast disk path as a trainer uses it: whole weights or the old ones, whatever happens; and files that safetensors reads."""
from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import fast_disk
import pytest
import torch
from hypothesis import given, settings, strategies as st

LIB = Path(__file__).resolve().parents[1] / "lib"

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def weights(seed=0, count=20):
    torch.manual_seed(seed)
    made = {f"layers.{i}.weight": torch.randn(64 + i, 96).to(torch.bfloat16) for i in range(count)}
    return {**made, "scale": torch.tensor(1.5), "empty": torch.empty(0, 4), "odd": torch.randn(7).to(torch.bfloat16)}


def same(a, b):
    return set(a) == set(b) and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def files(path):
    return sorted(p for p in path.resolve().iterdir() if p.suffix == ".safetensors")


def left(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_was_saved_is_loaded_and_only_the_newest_is_kept(tmp_path):
    for seed in range(3):
        report = fast_disk.save(weights(seed), tmp_path / "w")
        assert same(fast_disk.load(tmp_path / "w"), weights(seed))
    assert len(left(tmp_path)) == 2 and (tmp_path / "w").is_symlink()
    assert report["bytes"] == sum(t.numel() * t.element_size() for t in weights().values()) and report["files"] == fast_disk.LANES
    assert 0 <= report["fsync_s"] < report["seconds"]


def test_the_safetensors_library_reads_every_shard_by_the_index(tmp_path):
    load_file = pytest.importorskip("safetensors.torch").load_file
    fast_disk.save(weights(), tmp_path / "w", fsync=True)
    index = json.loads((tmp_path / "w" / fast_disk.INDEX).read_text())
    found = {}
    for shard in set(index["weight_map"].values()):
        loaded = load_file(tmp_path / "w" / shard)
        assert {index["weight_map"][name] for name in loaded} == {shard}
        found.update(loaded)
    assert same(found, weights()) and index["metadata"]["total_size"] == sum(p.stat().st_size - header(p) for p in files(tmp_path / "w"))


def header(path):
    with open(path, "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=8), st.integers(1, 20))
def test_any_shapes_and_types_survive(tmp_path_factory, made, lanes):
    folder = tmp_path_factory.mktemp("any")
    tensors = {f"t{i}": (torch.rand(shape) * 99).to(dtype) for i, (dtype, shape) in enumerate(made)}
    fast_disk.save(tensors, folder / "w", lanes=lanes)
    assert same(fast_disk.load(folder / "w"), tensors)
    shutil.rmtree(folder)


def test_chunks_end_in_the_middle_of_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(fast_disk, "CHUNK", 4096)
    fast_disk._weights.cache_clear()
    fast_disk.save(weights(), tmp_path / "w", lanes=2)
    assert same(fast_disk.load(tmp_path / "w"), weights())
    fast_disk._weights.cache_clear()


def test_a_rank_may_keep_its_rows_only(tmp_path):
    whole = weights()
    fast_disk.save(whole, tmp_path / "w")
    into = {"layers.3.weight": torch.zeros(20, 96, dtype=torch.bfloat16), "odd": torch.zeros(7, dtype=torch.bfloat16)}
    fast_disk.load(tmp_path / "w", into, rows={"layers.3.weight": (10, 30)})
    assert torch.equal(into["layers.3.weight"], whole["layers.3.weight"][10:30]) and torch.equal(into["odd"], whole["odd"])


@pytest.mark.parametrize(("into", "error"), [({"nobody": torch.zeros(3)}, KeyError), ({"odd": torch.zeros(7)}, ValueError),
                                             ({"odd": torch.zeros(8, dtype=torch.bfloat16)}, ValueError)])
def test_a_tensor_that_does_not_fit_is_named(tmp_path, into, error):
    fast_disk.save(weights(), tmp_path / "w")
    with pytest.raises(error, match=next(iter(into))):
        fast_disk.load(tmp_path / "w", into)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_every_flipped_bit_of_the_data_shows(tmp_path_factory, place, bit):
    folder = tmp_path_factory.mktemp("flip")
    fast_disk.save(weights(), folder / "w", lanes=1)
    shard = files(folder / "w")[0]
    data = bytearray(shard.read_bytes())
    at = header(shard) + int(place * (len(data) - header(shard)))
    data[at] ^= 1 << bit
    shard.write_bytes(data)
    with pytest.raises(fast_disk.Torn, match=shard.name):
        fast_disk.load(folder / "w")
    shutil.rmtree(folder)


def test_two_swapped_words_show(tmp_path):
    fast_disk.save({"t": torch.arange(1000)}, tmp_path / "w")
    shard = files(tmp_path / "w")[0]
    data, at = shard.read_bytes(), header(shard)
    shard.write_bytes(data[:at] + data[at + 8:at + 16] + data[at:at + 8] + data[at + 16:])
    with pytest.raises(fast_disk.Torn):
        fast_disk.load(tmp_path / "w")
    assert fast_disk.load(tmp_path / "w", verify=False)["t"][0] == 1, "near miss: nobody looked"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2000), st.binary(max_size=12), st.sampled_from(["index", "shard"]))
def test_a_damaged_file_is_torn_and_never_another_error(tmp_path_factory, at, junk, which):
    folder = tmp_path_factory.mktemp("junk")
    fast_disk.save(weights(), folder / "w", lanes=2)
    path = folder / "w" / fast_disk.INDEX if which == "index" else files(folder / "w")[0]
    data = path.read_bytes()
    path.write_bytes(data[:at] + junk + data[at + len(junk) + 1:])
    try:
        assert same(fast_disk.load(folder / "w"), weights())
    except (fast_disk.Torn, FileNotFoundError, KeyError) as error:
        assert str(error)
    shutil.rmtree(folder)


@pytest.fixture
def small_disk(tmp_path):
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(where)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs needs root: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.parametrize("spare", [4 << 20, -(1 << 40)], ids=["seen before", "met while writing"])
def test_a_full_disk_keeps_the_old_weights_and_says_where_and_how_much(small_disk, monkeypatch, spare):
    monkeypatch.setattr(fast_disk, "SPARE_BYTES", 0)
    fast_disk.save(weights(1, 5), small_disk / "w", lanes=2)
    monkeypatch.setattr(fast_disk, "SPARE_BYTES", spare)
    before = left(small_disk)
    with pytest.raises(fast_disk.NotEnough, match=f"{small_disk}") as error:
        fast_disk.save(weights(2, 40), small_disk / "w")
    assert error.value.needed > 400 << 10 > error.value.free and left(small_disk) == before
    assert same(fast_disk.load(small_disk / "w"), weights(1, 5))


def test_what_stands_in_the_way_is_named_and_kept(tmp_path):
    (tmp_path / "w").mkdir()
    with pytest.raises(FileExistsError, match="move away"):
        fast_disk.save(weights(), tmp_path / "w")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fast_disk.save(weights(), tmp_path / "nowhere" / "w")
    with pytest.raises(ValueError, match="torch.complex64"):
        fast_disk.save({"c": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "v")
    with pytest.raises(ValueError, match="__metadata__"):
        fast_disk.save({"__metadata__": torch.zeros(2)}, tmp_path / "v")
    assert left(tmp_path) == ["w"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    code = (f"import sys, os, torch; sys.path.insert(0, {str(LIB)!r}); import fast_disk; os.setuid(65534);"
            f"fast_disk.save({{'t': torch.zeros(4)}}, {str(tmp_path / 'closed' / 'w')!r})")
    if os.getuid():
        pytest.skip("becoming another user needs root")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o755)
    for folder in (f for f in [tmp_path, *tmp_path.parents] if str(f).startswith(tempfile.gettempdir() + "/")):
        folder.chmod(folder.stat().st_mode | 0o055)
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert (
        ended.returncode == 1 and "Permission denied" in ended.stderr and "closed/.w." in ended.stderr and left(tmp_path / "closed") == []
    )


SENDER = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import fast_disk
fast_disk.CHUNK = 8192
import time
mark = fast_disk._Lane.mark
def slow(lane):
    print("writing", flush=True)
    time.sleep(0.05)
    return mark(lane)
fast_disk._Lane.mark = slow
fast_disk.save({"t%d" % i: torch.full((100000,), i + 100.0) for i in range(20)}, sys.argv[2])
"""


def test_a_sender_killed_in_mid_write_leaves_the_old_weights_and_the_next_save_cleans_up(tmp_path):
    fast_disk.save(weights(), tmp_path / "w")
    sender = subprocess.Popen([sys.executable, "-W", "ignore", "-c", SENDER, str(LIB), str(tmp_path / "w")], stdout=subprocess.PIPE)
    assert sender.stdout.readline().startswith(b"writing")
    fast_disk.sweep(tmp_path / "w")
    assert len(left(tmp_path)) == 3, "near miss: a living sender's folder is left alone"
    os.kill(sender.pid, signal.SIGKILL)
    sender.wait()
    assert len(left(tmp_path)) == 3 and same(fast_disk.load(tmp_path / "w"), weights())
    fast_disk.save(weights(5), tmp_path / "w")
    assert len(left(tmp_path)) == 2 and same(fast_disk.load(tmp_path / "w"), weights(5))


def test_a_reader_keeps_its_version_until_it_is_done(tmp_path):
    fast_disk.save(weights(1), tmp_path / "w")
    folder = os.path.realpath(tmp_path / "w")
    held = fast_disk._hold(folder, fcntl.LOCK_SH)
    fast_disk.save(weights(2), tmp_path / "w")
    assert Path(folder).is_dir() and len(left(tmp_path)) == 3
    fast_disk._let_go(held)
    fast_disk.save(weights(3), tmp_path / "w")
    assert not Path(folder).exists() and len(left(tmp_path)) == 2


def test_a_loader_of_two_versions_finds_no_file_rather_than_a_mixture(tmp_path):
    fast_disk.save(weights(1), tmp_path / "w")
    old = {p.name for p in files(tmp_path / "w")}
    fast_disk.save(weights(2), tmp_path / "w")
    assert not old & {p.name for p in files(tmp_path / "w")}


def test_page_cache_that_nobody_uses_is_no_used_memory_of_a_container(tmp_path):
    """memory.current counts cached files, too; the kernel gives the inactive ones back when memory is asked for (cgroup v2)."""
    for name, text in (
        ("max", "1000000\n"),
        ("current", "900000\n"),
        ("stat", "anon 100000\nfile 800000\ninactive_file 700000\nactive_file 1\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(text)
    free, limit = fast_disk.room("/dev/shm", str(tmp_path))
    assert free == 800_000 and "container" in limit
    (tmp_path / "memory.max").write_text("max\n")
    assert "container" not in fast_disk.room("/dev/shm", str(tmp_path))[1]


def test_room_in_shm_is_bounded_by_memory_too():
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm here")
    free, limit = fast_disk.room("/dev/shm")
    assert 0 < free <= shutil.disk_usage("/dev/shm").free and limit.startswith(("space", "memory"))


def test_a_child_forked_during_a_save_does_not_keep_the_lock(tmp_path, monkeypatch):
    """As DataLoader's workers are while a thread saves."""
    children = []

    def fork(path):
        children.append(os.fork())
        if not children[-1]:
            signal.pause()
    monkeypatch.setattr(os, "symlink", lambda *a, plain=os.symlink: (fork(a), plain(*a)))  # while the lock is held
    try:
        fast_disk.save(weights(1), tmp_path / "w")
        held = fast_disk._hold(os.path.realpath(tmp_path / "w"), fcntl.LOCK_SH)
        assert held is not None, "or load would wait for the child"
        fast_disk._let_go(held)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_another_savers_sweep_takes_neither_the_link_nor_the_weights_it_has_just_led_to(tmp_path, monkeypatch):
    fast_disk.save(weights(1), tmp_path / "w")
    replace, listdir = os.replace, os.listdir
    monkeypatch.setattr(os, "replace", lambda *a: (fast_disk.sweep(tmp_path / "w"), replace(*a)))
    fast_disk.save(weights(2), tmp_path / "w")
    monkeypatch.undo()

    def late(folder):
        found = listdir(folder)
        if str(folder) == str(tmp_path):
            monkeypatch.undo()
            fast_disk.save(weights(3), tmp_path / "w", clean=False)
            found = listdir(folder)
        return found
    monkeypatch.setattr(os, "listdir", late)
    fast_disk.sweep(tmp_path / "w")
    assert same(fast_disk.load(tmp_path / "w"), weights(3)) and len(left(tmp_path)) == 2


def test_what_others_lay_out_under_such_names_is_not_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    (tmp_path / ".w.0123456789abcdef").symlink_to(kept)
    (tmp_path / ".w.0123456789abcde0").write_text("a file")
    if not os.getuid():
        (tmp_path / ".w.0123456789abcde1").mkdir()
        os.chown(tmp_path / ".w.0123456789abcde1", 65534, 65534)
    before = left(tmp_path)
    fast_disk.save(weights(), tmp_path / "w")
    assert (kept / "file").read_text() == "mine" and set(before) < set(left(tmp_path)) and same(fast_disk.load(tmp_path / "w"), weights())


def test_the_old_weights_stay_below_a_linked_folder_too(tmp_path):
    (tmp_path / "with blank").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "with blank")
    for seed in range(2):
        fast_disk.save(weights(seed), tmp_path / "link" / "w", clean=False)
    assert len(left(tmp_path / "with blank")) == 3 and same(fast_disk.load(tmp_path / "link" / "w"), weights(1))


@pytest.mark.parametrize("rows", [(-10, 10), (60, 80), (30, 10)])
def test_rows_that_are_not_there_are_not_filled_with_the_next_tensors(tmp_path, rows):
    fast_disk.save(weights(), tmp_path / "w")
    into = {"layers.3.weight": torch.zeros(abs(rows[1] - rows[0]), 96, dtype=torch.bfloat16)}
    with pytest.raises(ValueError, match=r"layers\.3\.weight.*rows"):
        fast_disk.load(tmp_path / "w", into, rows={"layers.3.weight": rows}, verify=False)


@pytest.mark.parametrize("odd", [torch.zeros(3, device="meta"), torch.eye(3).to_sparse()], ids=["meta", "sparse"])
def test_a_tensor_without_bytes_of_its_own_is_named(tmp_path, odd):
    with pytest.raises(ValueError, match="layer: "):
        fast_disk.save({"layer": odd}, tmp_path / "w")
    assert left(tmp_path) == []
