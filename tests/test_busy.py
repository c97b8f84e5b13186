"""The guard before GPU tests."""
from __future__ import annotations

import re

import pytest
from machines import owner
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Severity
from nccl_runbook.machine.facts import GpuUse, GpuUsers, Owner
from nccl_runbook.machine.guard import in_the_way
from nccl_runbook.machine.judge_busy import gpus_busy
from pydantic import TypeAdapter

UNKNOWN = Gap("absent", "pid 4711 is not a GPU process of this pid namespace")
NO_MEMORY = Gap("unsupported", "NVML reports no memory per process here")


def users(*owners: Owner, used_mib: int = 0, percent: tuple[int, ...] = (0, 0), is_wsl: bool = False) -> GpuUsers:
    idle = [GpuUse(i, 0, [0, 0], []) for i in range(4)]
    return GpuUsers(
        [
            *idle[:2],
            GpuUse(2, used_mib or sum(o.used_mib for o in owners if isinstance(o.used_mib, int)), list(percent), list(owners)),
            idle[3],
        ],
        is_wsl,
    )


def test_gpus_busy_fires_when_a_foreign_process_computes():
    found = gpus_busy(users(owner()), allow_busy=False)
    assert found.severity is Severity.UNKNOWN and found.title.endswith("(pid 4711, alice, 40213 MiB on GPU 2)")
    assert len(found.remedy[0].lines) == 1 and "--allow-busy" in found.remedy[0].lines[0]


def test_gpus_busy_fires_when_the_owner_is_in_another_namespace():
    found = gpus_busy(users(owner(name=UNKNOWN, user=UNKNOWN, used_mib=NO_MEMORY)), allow_busy=False)
    assert re.search(r"\(pid 4711, .*unknown.*, .*on GPU 2\)$", found.title) and "MiB" not in found.title


def test_gpus_busy_asks_to_look_first_when_it_is_the_users_own_job():
    found = gpus_busy(users(owner(is_same_user=True)), allow_busy=False)
    assert found.remedy[0].text != gpus_busy(users(owner()), allow_busy=False).remedy[0].text
    assert found.remedy[0].lines[0].split() == ["py-spy", "dump", "--pid", "4711"]


@pytest.mark.parametrize(("seen", "words"), [(users(used_mib=40213), r"unknown .*, 40213 MiB .*GPU 2\b"), (
    users(percent=(97, 12)), r"unknown .*, 12 % .*GPU 2\b"), (users(used_mib=9000, percent=(99, 99), is_wsl=True), "9000 MiB")])
def test_gpus_busy_fires_when_nobody_is_listed_for_the_work(seen, words):
    assert re.search(words, gpus_busy(seen, allow_busy=False).title)


def test_gpus_busy_names_one_process_once_when_it_holds_several_gpus():
    two = GpuUsers([GpuUse(i, 100, [0, 0], [owner(used_mib=100)]) for i in range(2)], False)
    assert gpus_busy(two, allow_busy=False).title.endswith("(pid 4711, alice, 200 MiB on GPU 0, 1)")


@pytest.mark.parametrize("seen", [
    users(), users(owner(is_ours=True), percent=(90, 90)), users(owner(kind="graphics", used_mib=900), percent=(5, 9)),
    users(owner(kind="both", used_mib=300)), users(owner(name="nvidia-cuda-mps-server", used_mib=30)), users(used_mib=700),
    users(percent=(80, 0)), users(used_mib=3000, percent=(20, 30), is_wsl=True), GpuUsers([Gap("failed", "GPU is lost")], False),
    Gap("absent", "no NVML"), Gap("failed", "Unknown Error")])
def test_gpus_busy_stays_quiet_when_nobody_works(seen):
    assert gpus_busy(seen, allow_busy=False) is None


def test_memory_without_a_process_is_reported_of_a_gpu_only_if_no_process_is_listed_there():
    listed, unlisted = GpuUse(0, 60000, [0, 0], [owner(used_mib=100)]), GpuUse(1, 60000, [0, 0], [])
    busy = in_the_way(GpuUsers([listed, unlisted], False), allow_busy=False)
    assert [word.rpartition(" on ")[2] for word in busy.words] == ["GPU 0", "GPU 1"] and busy.words[0].startswith("pid 4711")
    assert in_the_way(GpuUsers([unlisted], False), allow_busy=False).mine == []


def test_memory_on_a_gpu_whose_processes_nvml_does_not_name_is_somebodys():
    unnamed = GpuUsers([GpuUse(3, 60000, [0, 0], Gap("no-permission", "Insufficient Permissions"))], False)
    assert [word.rpartition(" on ")[2] for word in in_the_way(unnamed, allow_busy=False).words] == ["GPU 3"]


def test_gpus_busy_stays_quiet_when_the_user_allows_it():
    assert gpus_busy(users(owner()), allow_busy=True) is None


def test_users_survive_json():
    for seen in (users(owner(name=UNKNOWN, user=UNKNOWN)), GpuUsers([Gap("failed", "x")], True), Gap("absent")):
        assert TypeAdapter(GpuUsers | Gap).validate_python(to_json(seen)) == seen
