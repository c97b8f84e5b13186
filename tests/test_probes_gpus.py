"""NVML in its child, against a stand-in for the library; and what a real rank finds."""
from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nccl_runbook
import pytest
from fake_nvml import SOURCE, fake_nvml
from nccl_runbook.core.facts import Gap, gaps_in, to_json
from nccl_runbook.core.redact import Redactor
from nccl_runbook.gpus import ask as gpus, judge_health as gpu_health
from nccl_runbook.launch import interpreters
from nccl_runbook.launch.engine import Engine
from nccl_runbook.machine import ask_nvml as nvml, ask_owner
from nccl_runbook.machine.facts import (
    CudaView,
    Fabric,
    GpuUse,
    GpuUsers,
    Machine,
    NvmlGpu,
    NvmlView,
    Owner,
    Surroundings,
    from_json,
)
from nccl_runbook.machine.judge_busy import gpus_busy
from pydantic import TypeAdapter

PACKAGE = Path(nccl_runbook.__file__).parent
CHILD = PACKAGE / "machine" / "nvml_child.py"


def seen(scenario: str, pid: int = 0, deadline_s: float = 10.0) -> NvmlView | Gap:
    with fake_nvml(scenario, pid):
        view = nvml.view(deadline_s)
    assert TypeAdapter(NvmlView | Gap).validate_python(to_json(view)) == view
    return view


@pytest.fixture(scope="module")
def healthy() -> NvmlView:
    return seen("healthy")


def test_a_healthy_host_has_no_gaps(healthy):
    """Of the calls that the stand-in has."""
    view = healthy
    lacks = [gap.detail.partition("(")[0] not in SOURCE.read_text() and "() failed: " in gap.detail for _, gap in gaps_in(view)]
    assert all(lacks) and len(view.reached) == 4 and len(view.pairs) == 6
    assert (view.driver, view.cuda_driver) == ("580.159.04", "13.0") and view.pairs[0].level == "NV18"
    assert view.gpus[1].pci_bus_id == "00000000:00:07.0" and view.gpus[1].fabric == Fabric("completed", "Success")
    assert view.gpus[0].memory.used_bytes == 0 and view.gpus[0].memory.reserved_bytes == 616 << 20


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(NvmlGpu)])
def test_the_stand_in_has_each_value_of_a_gpu(healthy, field):
    values = [getattr(gpu, field) for gpu in healthy.gpus]
    assert len(values) == 4 and not [value for value in values if isinstance(value, Gap) or str(value).startswith("unknown")]


@pytest.mark.parametrize(
    ("scenario", "index", "words"),
    [
        ("handle-unknown", 0, "nvmlDeviceGetHandleByIndex(0) failed: Unknown Error"),
        ("lost", 1, "nvmlDeviceGetHandleByIndex(1) failed: GPU is lost"),
    ],
)
def test_one_gpu_that_fails_does_not_hide_the_others(scenario, index, words):
    view = seen(scenario)
    assert view.gpus[index] == Gap("failed", words) and len(view.reached) == 3 and len(view.pairs) == 3


def test_a_refused_gpu_is_no_permission():
    assert seen("denied").gpus[3].reason == "no-permission"


def test_a_driver_mismatch_is_told_in_the_librarys_own_words():
    assert seen("mismatch") == Gap("failed", "nvmlInit() failed: Driver/library version mismatch")


def test_no_gpus_is_an_empty_list():
    assert seen("none").gpus == []


def test_what_the_card_does_not_support_is_unsupported():
    view = seen("unsupported")
    assert {gap.reason for _, gap in gaps_in(view)} == {"unsupported"} and view.gpus[0].name == "NVIDIA H200"


def test_a_hanging_call_ends_at_the_deadline_and_keeps_what_was_told():
    began = time.monotonic()
    view = seen("hang", deadline_s=3.0)
    assert time.monotonic() - began < 20 and len(view.reached) == 2
    assert [g.reason for g in view.gpus[2:]] == ["timed-out"] * 2 and view.pairs.reason == "timed-out"


def test_a_crashing_library_costs_only_the_child():
    view = seen("crash")
    assert len(view.reached) == 1 and view.gpus[3] == Gap("failed", "the process that queried NVML ended with -6")


def test_without_the_library_nvml_is_absent():
    if Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").exists():
        pytest.skip("this machine has NVML")
    assert nvml.view().reason == "absent" and nvml.users().reason == "absent"


@pytest.mark.parametrize(("scenario", "rule"), [
    ("ecc", "ecc-errors"), ("remap-pending", "rows-need-reset"), ("link-down", "nvlink-down"), ("mig", "mig-splits-gpus"),
    ("exclusive", "compute-mode-blocks"), ("prohibited", "compute-mode-blocks"), ("thermal", "clocks-held-down"),
    ("fabric-waits", "fabric-not-ready"), ("same-bus-id", "bus-ids-collide")])
def test_a_fault_reaches_its_rule_and_no_other(scenario, rule):
    machine = Machine(seen(scenario), Gap("not-run"), Gap("not-run"))
    assert [f.id for r in gpu_health.RULES for f in r(machine)] == [rule]


@pytest.mark.parametrize("scenario", ["healthy", "geforce", "idle-link", "desktop"])
def test_healthy_machines_reach_no_rule(scenario):
    machine = Machine(seen(scenario, pid=os.getpid()), Gap("not-run"), Gap("not-run"))
    assert [f for r in gpu_health.RULES for f in r(machine)] == []


def use(scenario: str, pid: int = 0) -> GpuUsers:
    with fake_nvml(scenario, pid):
        return nvml.users()


def holder(folder: Path) -> subprocess.Popen:
    """A process that looks like one on a GPU: a file named as the driver's library is mapped."""
    (folder / "libcuda.so.1").write_bytes(b"x" * 4096)
    code = "import mmap,sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder / "libcuda.so.1")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_a_descendant_is_ours_and_another_process_is_the_users_own(tmp_path):
    child = holder(tmp_path)
    try:
        mine = use("busy", child.pid).gpus[2].owners[0]
        assert mine.is_ours and mine.is_same_user and mine.used_mib == 40213 and mine.kind == "compute"
        # asked from a process that is not its ancestor, the same pid is somebody's job
        code = (
            "import sys; from nccl_runbook.machine import ask_nvml as nvml; o = nvml.users().gpus[2].owners[0]; sys.exit(10 * o.is_ours +"
            " o.is_same_user)"
        )
        with fake_nvml("busy", child.pid):
            asked = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
        assert asked.returncode == 1
    finally:
        child.communicate()


def test_a_pid_of_another_namespace_has_no_name_and_is_busy():
    seen_users = use("busy", pid=os.getpid())  # lives here, but has no GPU open: the pid NVML lists means another process
    owner = seen_users.gpus[2].owners[0]
    assert isinstance(owner.user, Gap) and not owner.is_ours
    assert re.search(rf"pid {os.getpid()}, unknown .*, 40213 MiB .*GPU 2\b", gpus_busy(seen_users, allow_busy=False).title)


def test_idle_gpus_a_desktop_and_unlisted_memory():
    assert gpus_busy(use("healthy"), allow_busy=False) is None and gpus_busy(use("desktop", os.getpid()), allow_busy=False) is None
    assert re.search(r"unknown .*, 40213 MiB .*GPU 1\b", gpus_busy(use("unlisted"), allow_busy=False).title)


def test_the_child_leaves_when_its_parent_does():
    with fake_nvml("hang"):
        child = subprocess.Popen([sys.executable, str(CHILD), "all"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(5) == 1


def test_a_rank_reports_surroundings_and_cuda_under_the_engine(tmp_path):
    with Engine([sys.executable], tmp_path, Redactor({})) as engine, fake_nvml("healthy"):
        machine = gpus.collect(engine)
    assert TypeAdapter(Machine).validate_python(to_json(machine)) == machine
    assert machine.cuda.torch and bool(machine.cuda.error) != bool(machine.cuda.gpus) and len(machine.nvml.reached) == 4


def test_view_runs_by_itself_and_prints_events():
    bare = {k: v for k, v in os.environ.items() if k != "NCCL_RUNBOOK_EVENT_FD"}
    ran = subprocess.run(
        [sys.executable, str(PACKAGE / "ranks" / "view.py")], env={**bare, "CUDA_VISIBLE_DEVICES": "7"}, capture_output=True
    )
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [e["event"] for e in events] == ["surroundings", "cuda"] and ran.returncode == 0
    assert events[0]["variables"]["CUDA_VISIBLE_DEVICES"] == "7"


def test_view_says_so_where_there_is_no_torch():
    ran = subprocess.run([sys.executable, "-S", "-E", str(PACKAGE / "ranks" / "view.py")], capture_output=True, cwd="/")
    assert json.loads(ran.stdout.splitlines()[-1])["event"] == "no_torch" and ran.returncode == 3


def test_facts_are_read_with_their_parts_and_gaps_by_the_types_of_their_fields():
    absent = {"reason": "absent", "detail": "no such pid"}
    owner = {"pid": 7, "name": absent, "user": "eva", "used_mib": 3, "kind": "compute", "is_ours": False, "is_same_user": True}
    line = {"nvml_index": 1, "used_mib": absent, "utilisation_percent": [0, 4], "owners": [owner]}
    use = from_json(GpuUse, line)
    assert use.owners == [Owner(7, Gap(**absent), "eva", 3, "compute", False, True)] and use.used_mib == Gap(**absent)
    assert to_json(use) == line
    assert from_json(GpuUse, {**line, "owners": absent}).owners == Gap(**absent)
    with pytest.raises(TypeError):
        from_json(GpuUse, {**line, "unheard_of": 1})


def test_a_world_without_an_answer_is_a_gap():
    from nccl_runbook.core.facts_world import RankResult

    assert gpus.fact_of(RankResult(0, "timed-out", 9), "cuda", CudaView).reason == "timed-out"
    assert "Segfault" in gpus.fact_of(RankResult(0, "signalled", 11, last_lines=["Segfault"]), "surroundings", Surroundings).detail


def fake_cuda(folder: Path, code: int, ask: str) -> str:
    """What view.py's Driver says of a stand-in for libcuda (a foreign library)."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc to build the libcuda stand-in with")
    source = Path(__file__).with_name("data") / "fake_cuda.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_CODE": str(code), "PYTHONPATH": str(PACKAGE.parent)}
    line = f"from nccl_runbook.ranks.view import Driver; d = Driver(); print(({ask}))"
    return subprocess.run([sys.executable, "-c", line], env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_the_driver_is_asked_for_count_uuid_and_bus_id(tmp_path):
    said = fake_cuda(tmp_path, 0, "d.text, d.code, d.count(), d.identity(1), d.identity(2)")
    assert said == "('', 0, 2, ('ef000000-0000-0000-0000-000000000001', '0000:00:07.0'), ('', ''))"


def test_the_drivers_error_is_told_with_code_name_and_text(tmp_path):
    said = fake_cuda(tmp_path, 802, "d.text, d.count()")
    assert re.fullmatch(r"\('cuInit: .*\b802 CUDA_ERROR_SYSTEM_NOT_READY: system .*', None\)", said)


# maps a library of the driver's name and then a file whose name is no UTF-8; the kernel cuts a process's name after 15 bytes, also
# within a letter
NO_UTF8 = """import ctypes, mmap, os, sys
for name in (b"libcuda.so.1", b"caf\\xe9.bin"):
    open(name, "wb").write(b"x" * 4096)
maps = [mmap.mmap(os.open(name, os.O_RDONLY), 4096, prot=mmap.PROT_READ) for name in (b"libcuda.so.1", b"caf\\xe9.bin")]
ctypes.CDLL(None).prctl(15, "trains-à-répétitions".encode())
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_names_that_are_no_utf8_hide_no_process(tmp_path):
    python = os.fsencode(tmp_path / "p") + b"\xe9"
    os.symlink(sys.executable, python)
    with subprocess.Popen([python, "-c", NO_UTF8], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stdout.readline() == "ready\n"
        assert ask_owner.holds_gpu(running.pid) is True and ask_owner.status_of(running.pid)["Name"].startswith("trains-")
        assert interpreters._of_pid(str(running.pid))[0] == os.fsdecode(python)
        running.stdin.close()
