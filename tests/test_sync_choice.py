"""Which way to move weights, where the user's own seconds go, and the command that says both."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from book_samples import with_library
from hypothesis import given, settings, strategies as st
from nccl_runbook.causes.tables import table as tables
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Severity
from nccl_runbook.core.records import Record, read
from nccl_runbook.look import own_sync
from nccl_runbook.plan.allocation import areal_rules as allocation_rules
from nccl_runbook.sync import judge as weight_sync, read_trace as sync_trace
from nccl_runbook.sync.facts import ALL_OF_THEM, OwnSync, OwnSyncTime, SyncVariant
from nccl_runbook.sync.methods import METHODS
from nccl_runbook.sync.table import choice_table, methods_table, own_table, sweeps_table
from pydantic import TypeAdapter
from test_rules_sync import DUPLICATE, ERROR, TOGETHER, arm, broken, runs
from warm_cli import read_cli

P2P, SHM, NET = {"P2P/CUMEM": 24}, {"SHM/direct/direct": 8}, {"NET/Socket/0": 4}


@pytest.fixture(autouse=True)
def _library(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", with_library()["PYTHONPATH"])


@pytest.mark.parametrize(
    ("facts", "key", "method"),
    [
        (runs(arm("nccl-flat", transports=P2P), arm("disk")), "p2p", "nccl-flat"),
        (runs(arm("nccl-flat", transports=SHM), arm("fast-disk-shm")), "shm", "nccl-flat"),
        (runs(arm("nccl-flat", transports=NET), arm("fast-disk-shm")), "sockets", "fast-disk-shm"),
        (
            runs(broken("nccl-flat", "Duplicate GPU detected"), arm("ipc-direct"), arm("fast-disk-shm"), devices=(0, 0)),
            "one-gpu",
            "ipc-direct",
        ),
        (runs(broken("nccl-flat", ERROR + DUPLICATE), arm("gloo-flat"), arm("fast-disk")), "bus-ids", "fast-disk"),
        (
            runs(broken("nccl-flat", "x"), broken("ipc-direct", "x"), arm("fast-disk"), arm("disk"), uuids=("GPU-a", "GPU-a")),
            "one-gpu",
            "fast-disk",
        ),
    ],
)
def test_weight_sync_choice_fires_with_the_first_of_the_row_that_passed(facts, key, method):
    found = weight_sync.choice(facts)
    assert weight_sync.topology(facts) == key and found.severity is Severity.NOTE and f": {method}, " in found.title
    assert found.evidence[0].source.startswith("runs.arms.") and len(found.remedy) == len(weight_sync.lines_for(method)) > 0


def test_weight_sync_choice_stays_quiet_without_gpus_and_where_nothing_passed():
    assert weight_sync.choice(runs(arm("gloo-flat"), arm("fast-disk"), devices=(None, None))) is None
    assert weight_sync.choice(runs(broken("nccl-flat", "x"))) is None
    assert (
        weight_sync.topology(Gap("not-run", "busy"))
        == weight_sync.topology(runs(broken("nccl-flat", DUPLICATE), uuids=("GPU-a", "")))
        == ""
    )
    assert (
        weight_sync.choice(runs(arm("nccl-flat", transports=Gap("absent", "no log")), arm("disk"))) is None
    ), "nobody knows what connects them"


def test_a_method_cut_by_its_share_of_the_time_counts_where_a_sync_was_steady():
    """Slow, not stuck: what went into whole syncs tells them apart."""
    cut = {"ended": ["timed-out 9", "timed-out 9"], "timed_out": True, "deadline_s": 60.0}
    slow = runs(arm("gloo-flat", (14.0, 13.0), **cut), arm("disk", (30.0, 29.0, 29.0)), uuids=("GPU-a", "GPU-a"))
    assert ": gloo-flat, 13.0000 s" in weight_sync.choice(slow).title and "gloo-flat" not in weight_sync.bytes_verified(slow).title
    assert "weight-sync-too-slow" in [f.id for f in weight_sync.judge(slow, TOGETHER)], "and it is told all the same"
    for near in (
        arm("gloo-flat", (0.1, 0.1), **cut),
        arm("gloo-flat", (50.0,), **cut),
        arm("gloo-flat", (14.0, 13.0), **{**cut, "timed_out": False}),
        arm("gloo-flat", (14.0, 13.0), wrong=[{"tensor": "a", "rank": 1, "repeat": 1, "words": 1, "count": 1}], **cut),
    ):
        assert ": disk, " in weight_sync.choice(runs(near, arm("disk"), uuids=("GPU-a", "GPU-a"))).title


def test_the_table_says_where_the_disk_methods_wrote():
    for methods, in_memory, on_disk in (
        (("disk-shm", "fast-disk-shm"), True, False),
        (("disk-shm", "disk"), True, True),
        (("fast-disk",), False, True),
        (("nccl-flat",), False, False),
    ):
        where = repr(methods_table(runs(*map(arm, methods)))).partition("Disk: ")[2]
        assert ("/dev/shm" in where, "ext4 at /tmp" in where) == (in_memory, on_disk), methods


def test_weight_sync_choice_names_what_was_faster_here():
    slow = runs(arm("nccl-flat", (0.5, 0.5), transports=P2P), arm("fast-disk-shm", (0.3, 0.2)))
    assert ": nccl-flat, " in (title := weight_sync.choice(slow).title) and re.search(r"; fast-disk-shm .*\b0\.2000 s", title)
    near = runs(arm("nccl-flat", (0.5, 0.5), transports=P2P), arm("fast-disk-shm", (0.3, 0.4)))
    assert "fast-disk-shm" not in weight_sync.choice(near).title


def test_the_table_names_methods_that_exist_and_every_framework_has_lines():
    rows = tables("sync/choice")["topology"]
    assert {m for row in rows.values() for m in row.get("prefer", ())} <= {*METHODS}
    assert (
        all(set(row) - {"prefer"} == {"title", "decoupled", "overlap", "shared", "colocated"} for row in rows.values()) and len(rows) == 9
    )
    names = {name.split(",")[0] for method in METHODS for name, lines in weight_sync.lines_for(method) if all(lines)}
    assert names == {"AReaL", "open-instruct", "TRL", "OpenRLHF", "verl"}
    assert [lines for name, lines in weight_sync.lines_for("fast-disk-shm") if "v0.5.0" in name] == [("actor.weight_update_mode=disk",)]


def test_areal_s_lines_are_those_of_each_tag():
    """What this page says and what the plan says of a tag are one."""
    told = {name: lines for name, lines in weight_sync.lines_for("disk") if name.startswith("AReaL")}
    for tag in ("v0.3.2", "v0.3.3", "v0.3.4", "v0.4.0", "v0.4.1", "v0.5.0"):
        assert [lines for name, lines in told.items() if tag in name] == [allocation_rules.at(tag).switch["lines"]], tag


def test_the_row_that_fits_is_marked_in_words():
    marked = [row[0].text.endswith(" (here)") for row in choice_table("one-gpu").rows]
    assert (
        sum(marked) == 1
        and list(tables("sync/choice")["topology"])[marked.index(True)] == "one-gpu"
        and "(here)" not in repr(choice_table())
    )


def test_a_fit_comes_from_two_sizes_and_sweeps_are_rows():
    whole, part = 988_065_536, 988_065_536 // 16
    swept = arm("nccl-flat", (0.5, 0.1029), variants=[SyncVariant(512, 4096, whole, 0.2), SyncVariant(512, 0, part, 0.0029 + 0.1 / 16)])
    a, b = swept.fit(290, whole)
    assert a == pytest.approx(1e-5, rel=0.01) and b == pytest.approx(whole / 0.1, rel=0.01)
    text = repr(sweeps_table(runs(swept)))
    assert "4096 x 4096" in text and "10.0" in text and "9.9" in text
    assert (
        arm("nccl-flat", (0.5, 0.001), variants=[SyncVariant(512, 0, part, 0.002)]).fit(290, whole) is None
    ), "near miss: time did not grow"
    assert "busy" in repr(sweeps_table(Gap("not-run", "busy")))


# as nccl_guards.py prints it (schema 1)
LINE = (
    '[rank0]: NCCL_GUARD {"schema": 1, "guard": "pause_trace", "ok": null, "rank": 0, "world_size": 2, "local_rank": 0, "host": "n", "pid":'
    ' 7, "time": 1.5, "offset_s": null, "wall_s": 22.1, "says": "weight sync took 22.100 s", "cause": null, "bad_ranks": [], "data":'
    ' {"pause": 0.4, "control": 20.6, "wire": 0.5, "load": 0.6}}'
)


def figures(findings):
    """(seconds, who, seconds of its longest phase, that phase) of each title."""
    return [re.search(r"([\d.]+) s on ([^,]*), ([\d.]+) s .*\b(\w+)$", f.title).groups() for f in findings]


def test_own_sync_phases_fires_with_the_longest_phase_of_the_slowest_rank(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step 1\n" + LINE + "\n" + LINE.replace('"rank": 0', '"rank": 1').replace("20.6", "0.6") + "\n")
    own = sync_trace.collect_trace(str(log))
    found = weight_sync.own_sync(own)
    assert figures(found) == [("22.100", "rank 0", "20.600", "control")]
    assert found[0].evidence[0].source == f"{log}:2" and found[0].remedy[0].text == tables("sync/choice")["own"]["advice"]["control"]
    assert "rank 1  2.100   0.400  0.600    0.500  0.600" in repr(own_table(own))


def test_a_line_without_end_neither_fills_the_memory_nor_moves_the_numbers(tmp_path):
    path = tmp_path / "trace.log"
    line = b'NCCL_GUARD {"guard":"pause_trace","rank":0,"data":{"x":1.0}}\n'
    with path.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line * 2)
    tracemalloc.start()
    try:
        found = sync_trace.collect_trace(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [time.source for time in found.syncs] == [f"{path}:2", f"{path}:3"] and peak < 16 << 20


def test_own_sync_phases_stays_quiet_without_a_line(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(LINE.replace("pause_trace", "sync_clock") + "\nNCCL_GUARD {broken\n")
    own = sync_trace.collect_trace(str(log))
    assert own.reason == "absent" and [(f.id, f.severity) for f in weight_sync.own_sync(own)] == [("own-sync-not-seen", Severity.UNKNOWN)]
    assert sync_trace.collect_trace(str(tmp_path / "none")).reason == "failed"


@pytest.mark.parametrize(
    ("phase", "frames"),
    [
        (
            "pause",
            (
                "readinto socket.py",
                "post requests/api.py",
                "pause_generation areal/engine/sglang_remote.py",
                "update_weights areal/engine/fsdp_engine.py",
            ),
        ),
        (
            "gather",
            (
                "all_gather_into_tensor torch/distributed/distributed_c10d.py",
                "full_tensor torch/distributed/tensor/_api.py",
                "_update_weights_from_distributed areal/fsdp_engine.py",
            ),
        ),
        (
            "wire",
            (
                "broadcast vllm/distributed/device_communicators/pynccl.py",
                "update_named_param trl/extras/vllm_client.py",
                "_move_model_to_vllm trl/trainer/grpo_trainer.py",
            ),
        ),
        ("control", ("readinto socket.py", "post requests/sessions.py", "update_named_param trl/extras/vllm_client.py")),
        (
            "control",
            (
                "get ray/_private/worker.py",
                "_broadcast_to_vllm openrlhf/ppo_actor.py",
                "broadcast_weights_to_vllm open_instruct/grpo_fast.py",
            ),
        ),
        (
            "control",
            (
                "get ray/_private/worker.py",
                "_broadcast_to_vllm openrlhf/trainer/ray/ppo_actor.py",
                "broadcast_to_vllm openrlhf/trainer/ray/ppo_actor.py",
            ),
        ),
        ("wire", ("broadcast torch/distributed/distributed_c10d.py", "send_weights verl/checkpoint_engine/nccl_checkpoint_engine.py")),
        ("", ("send cupy/nccl.py", "send_parts own/pipeline.py")),
        (
            "gather",
            (
                "all_gather_into_tensor torch/distributed/distributed_c10d.py",
                "state_dict torch/nn/modules/module.py",
                "rollout_mode verl/workers/fsdp_workers.py",
            ),
        ),
        (
            "pause",
            (
                "post requests/api.py",
                "pause trl/experimental/async_grpo/weight_transfer.py",
                "_sync_weight trl/experimental/async_grpo/async_grpo_trainer.py",
            ),
        ),
        (
            "control",
            (
                "get ray/_private/worker.py",
                "perform_weight_sync open_instruct/grpo_utils.py",
                "weight_sync_thread open_instruct/grpo_fast.py",
            ),
        ),
        ("", ("wait threading.py", "wait open_instruct/grpo_fast.py", "weight_sync_thread open_instruct/grpo_fast.py", "run threading.py")),
        (
            "",
            (
                "all_gather torch/distributed/distributed_c10d.py",
                "_update_model_bit16_weights site-packages/deepspeed/runtime/zero/stage_1_and_2.py",
                "step x/own.py",
            ),
        ),
        ("", ("new_group torch/distributed/distributed_c10d.py", "init_weights_update_group sglang/srt/model_executor/model_runner.py")),
        (
            "load",
            (
                "copy_ torch/x.py",
                "load_weights vllm/model_executor/models/qwen2.py",
                "update_weights_from_distributed sglang/srt/model_executor/model_runner.py",
            ),
        ),
        ("save", ("write safetensors/x.py", "save_file safetensors/torch.py", "update_weights_to_disk x/engine.py")),
        ("other", ("compute x/own.py", "sync_weights x/own.py", "main x/own.py")),
        (
            "",
            (
                "broadcast torch/distributed/distributed_c10d.py",
                "_sync_params_and_buffers site-packages/torch/nn/parallel/distributed.py",
                "main x/own.py",
            ),
        ),
        ("", ("load_weights vllm/model_executor/models/qwen2.py", "load_model vllm/worker.py")),
        ("", ()),
    ],
)
def test_each_stack_is_in_one_phase_of_a_sync_or_in_none(phase, frames):
    assert weight_sync.phase_of(frames) == phase


def test_a_sync_ends_where_no_stack_shows_one_and_its_phases_add_up():
    found = own_sync.syncs_of("pid 7", list(enumerate(("", "control", "control", "wire", "", "", "load"))))
    assert [(s.phases, s.who) for s in found] == [({"control": 1.0, "wire": 1.0}, "pid 7"), ({"load": 0.0}, "pid 7")]
    assert figures(weight_sync.own_sync(OwnSync(found))) == [("2.000", "pid 7", "1.000", "control")]
    assert "pid 7" in repr(own_table(OwnSync(found)))


@pytest.mark.parametrize(
    ("phases", "told"),
    [
        (("pause", "wire"), "pause"),
        (("wire", "gather"), "gather"),
        (("control", "load"), "load"),
        (("wire", "control"), "control"),
        (("wire", "wire"), "wire"),
        (("", "wire"), "wire"),
        (("", ""), ""),
        ((), ""),
    ],
)
def test_while_one_waits_what_the_other_does_counts(phases, told):
    """An engine that hangs in its broadcast while the trainer still gathers spends nothing on the wire."""
    assert own_sync.joint(phases) == told


def test_own_sync_phases_goes_by_all_processes_together_where_they_were_watched_at_once():
    apart = [("pid 1", ("pause", "gather", "wire")), ("pid 2", ("wire", "wire", "wire", "load"))]
    syncs = [
        s
        for name, phases in [(ALL_OF_THEM, ("pause", "gather", "gather", "load")), *apart]
        for s in own_sync.syncs_of(name, list(enumerate(phases)))
    ]
    assert figures(weight_sync.own_sync(OwnSync(syncs))) == [("3.000", ALL_OF_THEM, "2.000", "gather")]
    assert figures(weight_sync.own_sync(OwnSync(syncs[1:])))[0][:2] == ("3.000", "pid 2"), "near miss: each by itself"


OWN = """import threading
class Engine:
    def pause_generation(self): threading.Event().wait()
    def update_weights(self): self.pause_generation()
print("there", flush=True)
Engine().{}()
"""


def test_stacks_of_running_processes_tell_where_their_own_sync_is():
    running = [
        subprocess.Popen([sys.executable, "-c", OWN.format(name)], stdout=subprocess.PIPE)
        for name in ("update_weights", "pause_generation")
    ]
    try:
        assert all(p.stdout.readline() == b"there\n" for p in running)
        seen = own_sync.collect([p.pid for p in running], 1.5, weight_sync.phase_of)
        assert [(s.who, set(s.phases)) for s in seen.syncs] == [(ALL_OF_THEM, {"pause"}), (f"pid {running[0].pid}", {"pause"})]
        assert str(running[1].pid) in seen.syncs[0].source and "EngineCore" in seen.syncs[0].source, "one that showed no sync is named"
        watched = read_cli("sync", "--pid", str(running[0].pid), "--budget", "1s")
        assert re.fullmatch(rf"nccl-runbook: .*\b{running[0].pid} for up to 1 s \(--budget\).*\n", watched.stderr)
        assert "pause" in watched.stdout.splitlines()[1]
        nothing = own_sync.collect([running[1].pid], 0.3, weight_sync.phase_of)
        assert nothing.reason == "absent" and "pause_trace()" in nothing.detail
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert isinstance(own_sync.collect([running[0].pid], 1.0, weight_sync.phase_of), Gap)


def test_a_number_that_means_nothing_a_missing_folder_and_a_missing_log_end_with_one_sentence():
    for arguments in (
        ("--repeats", "0"),
        ("--layers", "-1"),
        ("--trace", "/no/such/log"),
        ("--methods", "disk", "--directory", "/no/such/folder"),
        ("--pid", "999999999"),
    ):
        done = read_cli("sync", *arguments, "--python", sys.executable)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), arguments


@settings(max_examples=60)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.recursive(
            st.none() | st.floats() | st.text(max_size=5) | st.booleans(),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["guard", "data", "rank", "wire"]), inner, max_size=4),
            max_leaves=8,
        ).map(lambda d: json.dumps(d).encode()),
    )
)
def test_no_line_breaks_the_reader(junk):
    for one in sync_trace.read([b"NCCL_GUARD " + junk, b'NCCL_GUARD {"guard": "pause_trace", "data": {"wire": ' + junk[:20] + b"}}"]):
        assert one.phases and all(0 <= s < 1e6 for s in one.phases.values())


def test_the_command_measures_and_its_json_is_a_record(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    ended = read_cli(
        "sync",
        "--layers",
        "1",
        "--methods",
        "gloo-flat",
        "--repeats",
        "1",
        "--python",
        sys.executable,
        "--json",
        "--html",
        tmp_path / "s.html",
        "--allocation",
        "sglang:d1+fsdp:d1",
        "--gpus",
        "0",
        "--areal",
        "v0.4.0",
    )
    said = ended.stderr.splitlines()
    assert (ended.returncode, len(said)) == (3, 2) and "1 method in" in said[0] and "all correct" in said[1], ended.stderr
    jsonschema.validate(json.loads(ended.stdout), TypeAdapter(Record).json_schema())
    record = read(Record, ended.stdout.encode())
    assert {f.id for f in record.findings} == {
        "allocation-duplicate",
        "gpus-not-here",
        "rehearsed-without-gpu",
        "weight-sync-verified",
    } and record.facts["runs"]["arms"]["gloo-flat"]["syncs"]
    page = (tmp_path / "s.html").read_text()
    assert (
        "(AReaL v0.4.0)" in page
        and "two ranks on one GPU" in page
        and "disk" in page
        and "WeightUpdateMeta.from_disk(" in page
        and "<script" not in page
        and len(page) < 300_000
    )


def test_the_command_reads_a_trace_without_a_test(tmp_path):
    (tmp_path / "t.log").write_text(LINE + "\n")
    ended = read_cli("sync", "--trace", tmp_path / "t.log")
    assert ended.returncode == 0 and "20.600 s" in ended.stdout and "verdict: healthy" in ended.stdout
    assert read_cli("sync", "--trace", tmp_path / "none.log").returncode == 2


def test_a_log_without_a_sync_is_told_in_words_and_a_sync_of_two_ranks_is_one(tmp_path):
    (tmp_path / "empty.log").touch()
    ended = read_cli("sync", "--trace", tmp_path / "empty.log")
    assert ended.returncode == 4 and str(tmp_path / "empty.log") in ended.stdout and "pause_trace()" in ended.stdout
    one = [OwnSyncTime(rank, {"wire": 1.0}, "t.log:1") for rank in (0, 1)]
    assert own_table(OwnSync(one)).note.endswith(": 1.") and own_table(OwnSync([*one, one[0]])).note.endswith(": 1 to 2.")


@pytest.mark.parametrize(("given", "says"), [
    (["--allocation", "garbage"], "allocation garbage"), (["--areal", "v0.4.0"], "--allocation"),
    (["--trace", "t.log", "--pid", "1"], "--trace, --pid"), (["--methods", "nccl-flat@99999999999999999999"], "1048575")])
def test_what_a_sync_cannot_use_is_refused_at_once(given, says):
    ended = read_cli("sync", *given)
    assert (ended.returncode, ended.stdout) == (2, "") and says in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        (("--model", "qwen9"), "'qwen9'"),
        (("--methods", "rsync"), "'rsync'"),
        (("--fail-on", "x"), "--fail-on"),
        (("--budget", "soon"), "'soon'"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, data):
    ended = read_cli("sync", "--python", sys.executable, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "") and data in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr


def test_the_command_that_only_reads_imports_neither_torch_nor_jupyter(tmp_path):
    (tmp_path / "t.log").write_text(LINE + "\n")
    code = ("import sys; sys.argv = ['nccl-runbook', 'sync', '--trace', sys.argv[1]]\n"
            "import atexit; atexit.register(lambda: print([m for m in ('torch', 'papermill', 'IPython') if m in sys.modules]))\n"
            "from nccl_runbook.__main__ import main; main()")
    import subprocess
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.log")], capture_output=True, text=True, cwd=Path.cwd())
    assert ended.stdout.splitlines()[-1] == "[]", ended.stdout + ended.stderr
