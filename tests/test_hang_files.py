"""Dumps that others hand over are hostile until read: nothing is executed, nothing takes more memory than a dump can need, and every
file says why it was not used."""
from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hang_samples import Job
from hypothesis import given, settings, strategies as st
from nccl_runbook.hang import judge as rules, read as reader, read_stacks as stacks
from nccl_runbook.hang.dumps import (
    columns as dump_columns,
    file as dump_file,
    operations as dump_columns_operations,
)
from nccl_runbook.hang.inputs import read_inputs as reader_inputs
from processes import quickest_s

DATA = Path(__file__).parent / "data" / "hang"
GOOD = (DATA / "skip" / "fr_rank_0").read_bytes()


class Gadget:
    def __init__(self, function, *arguments) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def gadgets(mark: Path) -> dict[str, bytes]:
    """Pickles that leave ``mark`` behind if anything in them is executed."""
    command = f"touch {mark}"
    dump = {"version": "2.10", "pg_config": {}, "entries": []}
    by_hand = f"cos\nsystem\n(S'{command}'\ntR.".encode()
    stacked = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(command)]) + command.encode() + b"\x85R."
    return {
        "os.system": pickle.dumps(Gadget(os.system, command), protocol=2),
        "eval": pickle.dumps(Gadget(eval, f"open({str(mark)!r}, 'w')"), protocol=4),
        "inside": pickle.dumps({**dump, "entries": [Gadget(os.system, command)]}, protocol=2),
        "protocol 0": b"\x80\x02" + by_hand,
        "stack global": stacked,
        "inst": f"\x80\x02(S'{command}'\nios\nsystem\n.".encode("latin1"),
        "persistent": b"\x80\x02Pos.system\n.",
        "extension": b"\x80\x02\x82\x01.",
        "newobj": b"\x80\x02c__builtin__\nopen\nX\x01\0\0\0x\x85\x81.",
    }


def test_no_gadget_leaves_a_file_and_all_are_refused(tmp_path):
    mark = tmp_path / "executed"
    for name, data in gadgets(mark).items():
        with pytest.raises(dump_columns_operations.Refused):
            dump_file.read(data)
        assert not mark.exists(), name


@pytest.mark.parametrize(
    "ranks",
    ["__import__('os').mkdir('executed')", "'[0, 1]'", '"[0, 1]"', "[0, true]", "[0.5]", "[-1]", "[" * 5000, "[0, [1]]", 7, None, {}],
)
def test_ranks_are_numbers_or_the_dump_is_refused(tmp_path, ranks, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dump = dump_file.decode(GOOD)
    dump["pg_config"]["0"]["ranks"] = ranks
    with pytest.raises(dump_columns_operations.Refused):
        dump_file.read(pickle.dumps(dump, protocol=2))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02r\xff\xff\xff\x7f" + b".",
        b"\x80\x02]r\xff\xff\xff\x0f.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".",
        b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b".",
        b"[" * 10**6,
        b'{"entries": ' + b"[" * 10**5,
        b"\x80\x02]q\0" + b"(" + b"h\0" * 3 * 10**6 + b"e.",
        b"\x80\x02\x8b\xff\xff\xff\x7f1.",
        b'{"entries": [' + b"9" * 10**6 + b"]}",
    ],
    ids=range(10),
)
def test_a_bomb_ends_soon_and_small(data):
    import resource

    def read() -> None:
        with pytest.raises(dump_columns_operations.Refused):
            dump_file.read(data)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert quickest_s(read, 2.0) < 2.0
    assert sys.platform != "linux" or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
    assert dump_file.read(GOOD).entries


@settings(max_examples=150, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=400).map(lambda b: b"\x80\x02" + b), st.binary(max_size=400), st.binary(max_size=200).map(lambda b: b"{" + b)
    )
)
def test_random_bytes_are_refused_in_words(data):
    try:
        dump_file.read(data)
    except dump_columns_operations.Refused as refused:
        assert 5 < len(str(refused)) < 400


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_one_changed_byte_never_escapes(at, byte):
    data = GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
    try:
        assert isinstance(dump_file.read(data), dump_columns.Reading)
    except dump_columns_operations.Refused:
        pass


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=120, deadline=None)
@given(
    field=st.sampled_from(
        [
            "process_group",
            "collective_seq_id",
            "profiling_name",
            "state",
            "input_sizes",
            "input_dtypes",
            "frames",
            "time_created_ns",
            "is_p2p",
            "record_id",
            "p2p_seq_id",
        ]
    ),
    value=values,
    which=st.integers(0, 15),
)
def test_any_value_in_any_field_is_read_or_refused(field, value, which):
    dump = dump_file.decode(GOOD)
    dump["entries"][which % len(dump["entries"])][field] = value
    try:
        assert isinstance(dump_file.read(pickle.dumps(dump, protocol=2)), dump_columns.Reading)
    except dump_columns_operations.Refused:
        pass


def test_other_files_beside_the_dumps_do_no_harm(tmp_path):
    folder = shutil.copytree(DATA / "stall", tmp_path / "dumps")
    (folder / "notes.json").write_text('{"a": 1}')
    (folder / "fr_rank_9").write_bytes(b"")
    (folder / "fr_rank_8").write_bytes(b"\x80\x02garbage")
    (folder / "core").write_bytes(b"\x7fELF" + bytes(100))
    os.mkfifo(folder / "fr_rank_7")
    (folder / "gone").symlink_to("nowhere")
    hang = reader.collect([str(folder)])
    assert rules.judge_hang(hang).culprits == (1,)
    assert {f.name.rpartition("/")[2] for f in hang.files if f.problem} >= {"core", "fr_rank_9", "fr_rank_8"}


def test_archives_gzip_and_json_hold_the_same_dumps(tmp_path):
    answer = rules.judge_hang(reader.collect([str(DATA / "skip")]))
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(DATA / "skip", "dumps")
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in (DATA / "skip").iterdir():
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    as_json = tmp_path / "json"
    as_json.mkdir()
    for path in (DATA / "skip").iterdir():
        (as_json / f"{path.name}.json").write_text(json.dumps(dump_file.decode(path.read_bytes())))
    for place in (tmp_path / "all.tar.gz", packed, as_json):
        found = rules.judge_hang(reader.collect([str(place)]))
        assert (found.culprits, found.kind, found.collective) == (answer.culprits, answer.kind, answer.collective), place


def test_many_dumps_read_by_several_processes_give_the_same(tmp_path, monkeypatch):
    job = Job(1, 16, 6)
    job.inject(5, "skip", 4)
    folder = job.run().write(tmp_path)
    alone = reader.collect([str(folder)])
    monkeypatch.setattr(reader_inputs, "PARALLEL_BYTES", 0)
    assert reader.collect([str(folder)]) == alone


@pytest.mark.parametrize("version", ["1.1", "1.4", "2.2", "2.10"])
def test_formats_of_torch_2_2_to_2_13(tmp_path, version):
    job = Job(5, 4, 3)
    job.inject(1, "stall", 2)
    folder = job.run().write(tmp_path, "1.4" if version == "1.1" else version)
    if version == "1.1":  # no members, no record ids (NCCLUtils / TraceUtils of torch 2.2): groups are the ranks that used them
        for path in folder.iterdir():
            dump = dump_file.decode(path.read_bytes())
            rows = [{k: v for k, v in e.items() if k not in ("record_id", "op_id")} for e in dump["entries"]]
            path.write_bytes(pickle.dumps({"version": "1.1", "entries": rows}, protocol=2))
    assert set(rules.judge_hang(reader.collect([str(folder)])).culprits) <= {1}
    assert version == "1.1" or rules.judge_hang(reader.collect([str(folder)])).culprits == (1,)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300), head=st.sampled_from(["Process 1: python\n", "Thread 0x1 (most recent call first):\n", ""]))
def test_any_text_is_a_stack_or_none(text, head):
    found = stacks.read("rank3.txt", head + text)
    assert found is None or (found.rank == 3 and len(found.frames) <= stacks.MOST_FRAMES)


def test_source_peek_changes_nothing_for_the_log_reader():
    from nccl_runbook.logs.source import Source

    source = Source("x", 6, io.BytesIO(b"a\nb\nc\n"))
    assert source.peek(3) == b"a\nb" and source.peek(1) == b"a" and b"".join(source.chunks()) == b"a\nb\nc\n"


def shared(levels: int = 40) -> list:
    value: list = ["x"]
    for _ in range(levels):
        value = [value] * 10
    return value


@pytest.mark.parametrize("field", ["input_sizes", "input_dtypes", "output_sizes", "frames", "state", "profiling_name", "process_group"])
def test_a_value_that_holds_itself_many_times_over_ends_soon(field):
    dump = dump_file.decode(GOOD)
    value = {"input_dtypes": [shared()], "frames": [{"name": shared(), "filename": shared(), "line": 1}], "process_group": ("0", shared())}
    dump["entries"][-1][field] = value.get(field, shared())
    data = pickle.dumps(dump, protocol=2)

    def read() -> None:
        with contextlib.suppress(dump_columns_operations.Refused):
            assert isinstance(dump_file.read(data), dump_columns.Reading)

    assert quickest_s(read, 2.0) < 2.0


@pytest.mark.parametrize("field", ["time_created_ns", "timeout_ms", "collective_seq_id"])
def test_a_number_beyond_every_clock_is_refused(tmp_path, field):
    dump = dump_file.decode(GOOD)
    dump["entries"][-1][field] = 10**400
    (tmp_path / "fr_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    hang = reader.collect([str(tmp_path)])
    assert rules.judge_hang(hang).kind == "unknown"
    assert any("dump" in f.problem for f in hang.files)


@pytest.mark.parametrize("samples", [{"a": 1}, ["x"], [{"threads": [1]}], [{"stacks": [3]}], [{"stacks": [{"frames": 4}]}], 5])
def test_a_live_look_of_another_shape_does_no_harm(tmp_path, samples):
    (tmp_path / "look.json").write_text(json.dumps({"schema": 1, "ranks": [{"rank": 0, "samples": [{}]}, {"rank": 1, "samples": samples}]}))
    hang = reader.collect([str(tmp_path)])
    assert not hang.stacks and not hang.looks and [("version" in f.problem) for f in hang.files] == [True]


def test_a_call_of_an_unknown_name_that_is_open_is_no_health(tmp_path):
    """Whatever has a blank in its name was once taken for a send without ends, and left out."""
    for rank in range(4):
        dump = pickle.loads((DATA / "skip" / f"fr_rank_{rank}").read_bytes())  # a file of ours
        for entry in dump["entries"]:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:all_reduce", "own:fused all reduce")
        (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump))
    found = rules.judge_hang(reader.collect([str(tmp_path)]))
    assert found.culprits == (2,) and found.kind == "skipped", found.sentence


@pytest.mark.parametrize("renamed", [{}, {"collective_seq_id": "seq_id"}, {"collective_seq_id": "seq_id", "process_group": None}])
def test_json_tells_the_same_as_a_pickle_in_the_format_of_every_torch(renamed):
    dump = dump_file.decode(GOOD)
    for entry in dump["entries"]:
        for old, new in renamed.items():
            entry[new or "unused"] = entry.pop(old)
    plain, pickled = (
        dataclasses.replace(dump_file.read(data), digest=b"") for data in (json.dumps(dump).encode(), pickle.dumps(dump, protocol=2))
    )
    assert plain == pickled and plain.columns


def test_json_with_a_byte_order_mark_is_a_dump_too(tmp_path):
    for rank in range(4):
        dump = pickle.loads((DATA / "skip" / f"fr_rank_{rank}").read_bytes())
        (tmp_path / f"fr_rank_{rank}.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(dump).encode())
    assert rules.judge_hang(reader.collect([str(tmp_path)])).culprits == (2,)


def test_readers_in_several_threads_leave_no_bound_on_the_process():
    """A child of such a process could not even load torch: seen on GPUs, where a test judged several jobs at once."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(dump_file.read, [GOOD] * 160))) == 160
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_process_forked_while_another_thread_reads_a_dump_reads_its_own() -> None:
    """As a pool's are: with a lock that nobody in the child lets go, or a bound that nobody there lifts, it would hang or starve."""
    code = """
import os, pickle, resource, threading
from nccl_runbook.hang.dumps import file as dump_file
before = resource.getrlimit(resource.RLIMIT_AS)
inside, forking = threading.Event(), threading.Event()
def reads():
    with dump_file._ONE, dump_file._bounded(100):
        inside.set()
        forking.wait(20)  # ends early only where a fork does not wait for the reader
threading.Thread(target=reads).start()
inside.wait(20)
threading.Timer(0.2, forking.set).start()
child = os.fork()
if child == 0:
    free = resource.getrlimit(resource.RLIMIT_AS) == before
    os._exit(0 if free and dump_file._ONE.acquire(timeout=5) else 1)
print(os.waitpid(child, 0)[1])
"""
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert told.stdout == "0\n", told.stderr


@pytest.mark.parametrize(("backend", "kind"), [("nccl2", "healthy"), ("nccl", "symmetric")])
def test_what_another_backend_retires_without_an_end_did_not_time_out(tmp_path: Path, backend: str, kind: str) -> None:
    """The hook of torch 2.15 retires at once what a backend issues that reports no ends; with NCCL's own recorder that is a time-out."""
    row = {
        "process_group": ("0", "default_pg"),
        "profiling_name": f"{backend}:all_reduce",
        "p2p_seq_id": 0,
        "is_p2p": False,
        "state": "scheduled",
        "retired": True,
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "timeout_ms": 1000,
        "time_discovered_completed_ns": None,
    }
    for rank in range(2):
        entries = [{**row, "record_id": n, "collective_seq_id": n + 1, "time_created_ns": 10**18 + n} for n in range(5)]
        dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "entries": entries}
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    assert rules.judge_hang(reader.collect([str(tmp_path)])).kind == kind
