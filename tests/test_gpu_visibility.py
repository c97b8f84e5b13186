"""Rules of GPU visibility: each where it fires and beside it where it stays quiet."""
from __future__ import annotations

import dataclasses
import re

import machines as made
import pytest
from hypothesis import given, strategies as st
from machines import bare, change, change_gpu, cuda, machine, visible
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Finding, Severity, step_status
from nccl_runbook.gpus import judge as rules, judge_health, judge_nvml
from nccl_runbook.machine import facts as m
from nccl_runbook.machine.visible_devices import granted_by, read_selection
from pydantic import TypeAdapter

GPUS = machine().nvml.gpus


def ids(judged: list[Finding]) -> set[str]:
    return {f.id for f in judged}


def the(rule: str, judged: list[Finding]) -> Finding:
    return next(f for f in judged if f.id == rule)


def test_a_healthy_machine_is_ok_and_nothing_else():
    judged = rules.judge_gpus(machine())
    assert ids(judged) == {"views-agree"} and step_status(judged)[0] is Severity.OK
    assert "can use 4 GPUs (" in judged[0].title and "can use 1 GPU (" in rules.judge_gpus(machine(1))[0].title


def test_facts_survive_json():
    broken = change(machine(), "nvml", gpus=[Gap("failed", "x"), *GPUS[1:]], pairs=Gap("timed-out", "y"))
    for fact in (machine(), broken, bare(), m.Machine(Gap("failed"), Gap("failed"), Gap("timed-out"))):
        assert TypeAdapter(m.Machine | Gap).validate_python(to_json(fact)) == fact


def test_a_gap_for_everything_gives_no_ok():
    gap = Gap("failed", "the rank was lost")
    assert rules.judge_gpus(gap) == []
    assert "views-agree" not in ids(rules.judge_gpus(m.Machine(machine().nvml, gap, gap)))


# --- no GPU

def test_no_gpu_anywhere_fires_when_no_view_names_one():
    judged = rules.judge_gpus(bare())
    assert step_status(judged) == (Severity.UNKNOWN, the("no-gpu-anywhere", judged).title)


def test_no_gpu_anywhere_says_where_to_run_instead():
    assert "job" in the("no-gpu-anywhere", rules.judge_gpus(bare())).remedy[0].text


def test_no_gpu_anywhere_fires_when_nvml_answers_and_lists_none():
    assert ids(rules.judge_gpus(dataclasses.replace(bare(), nvml=m.NvmlView("580", "13.0", "13", [], [])))) == {"no-gpu-anywhere"}


def test_no_gpu_anywhere_names_the_container_when_the_bus_has_gpus():
    found = rules.judge_gpus(change(bare(), "surroundings", container=["/.dockerenv"], pci_gpus={"0000:00:06.0": "nvidia"}))[0]
    assert (found.severity, found.cause) == (Severity.WARN, "container-gpu-access") and "--gpus all" in found.remedy[0].lines[0]


def test_no_gpu_anywhere_stays_unknown_when_the_host_has_a_card_without_driver():
    assert rules.judge_gpus(change(bare(), "surroundings", pci_gpus={"0000:01:00.0": "nouveau"}))[0].severity is Severity.UNKNOWN


def test_no_gpu_anywhere_stays_quiet_when_one_view_has_a_gpu():
    assert "no-gpu-anywhere" not in ids(rules.judge_gpus(change(bare(), "surroundings", files=made.files(1))))


# --- NVML

@pytest.mark.parametrize(("gap", "cause"), [
    (Gap("failed", "nvmlInit() failed: Driver/library version mismatch"), "driver-library-mismatch"),
    (Gap("timed-out", "NVML did not answer within 15 s"), "gpu-or-link-fault"),
    (Gap("absent", "nvmlInit() failed: NVML Shared Library Not Found"), "container-gpu-access"),
    (Gap("failed", "nvmlInit() failed: Unknown Error"), "nvml-call-failed"),
])
def test_nvml_refuses_fires_when_gpus_are_there(gap, cause):
    found = the("nvml-refuses", rules.judge_gpus(dataclasses.replace(machine(), nvml=gap)))
    assert (found.severity, found.cause) == (Severity.BROKEN, cause) and gap.detail in found.title


def test_nvml_refuses_blames_the_container_when_access_was_lost_in_one():
    lost = dataclasses.replace(machine(), nvml=Gap("failed", "nvmlInit() failed: Unknown Error"))
    assert the("nvml-refuses", rules.judge_gpus(change(lost, "surroundings", container=["/.dockerenv"]))).cause == "container-gpu-access"


def test_nvml_refuses_stays_quiet_when_only_pynvml_is_missing():
    judged = rules.judge_gpus(dataclasses.replace(machine(), nvml=Gap("not-run", "no pynvml")))
    assert "nvml-refuses" not in ids(judged) and "views-agree" not in ids(judged)


def test_nvml_refuses_a_gpu_fires_when_a_handle_fails():
    words = "nvmlDeviceGetHandleByIndex(0) failed: Unknown Error"
    found = the("nvml-refuses-a-gpu", rules.judge_gpus(change(machine(), "nvml", gpus=[Gap("failed", words), *GPUS[1:]])))
    assert found.cause == "nvml-call-failed" and words in found.title and '"device=1,2,3"' in found.remedy[1].lines[0]


def test_nvml_refuses_a_gpu_names_the_hardware_when_it_is_lost():
    lost = change(machine(), "nvml", gpus=[GPUS[0], Gap("failed", "nvmlDeviceGetHandleByIndex(1) failed: GPU is lost"), *GPUS[2:]])
    assert the("nvml-refuses-a-gpu", rules.judge_gpus(lost)).cause == "gpu-or-link-fault"


# --- each condition of judge_nvml by itself

@pytest.mark.parametrize(("nvml", "fires"), [
    (Gap("absent", "no library"), True), (Gap("not-run", "no pynvml"), True), (Gap("failed", "nvmlInit() failed: Driver Not Loaded"), True),
    (Gap("failed", "nvmlInit() failed: Unknown Error"), False), (machine().nvml, False)])
def test_no_gpu_anywhere_takes_nvml_for_blind_only_where_it_is_absent(nvml, fires):
    blind = m.Machine(nvml, Gap("failed", "x"), Gap("failed", "y"))
    assert [f and (f.severity, [(e.source, e.text) for e in f.evidence]) for f in [judge_nvml.no_gpu_anywhere(blind)]] == [
        (Severity.UNKNOWN, [("gpus.nvml", str(nvml))]) if fires else None]


def test_no_gpu_anywhere_counts_devices_and_cuda_but_no_control_file():
    assert (
        judge_nvml.no_gpu_anywhere(change(bare(), "surroundings", files=[m.DeviceFile("/dev/nvidiactl", "crw-rw-rw-", "")])).id
        == "no-gpu-anywhere"
    )
    for path in ("/dev/nvidia0", "/dev/dxg"):
        assert judge_nvml.no_gpu_anywhere(change(bare(), "surroundings", files=[m.DeviceFile(path, "crw-rw-rw-", "")])) is None
    assert judge_nvml.no_gpu_anywhere(dataclasses.replace(bare(), cuda=cuda([0]))) is None


@pytest.mark.parametrize(("container", "severity", "cause", "who"), [
    ([], Severity.UNKNOWN, None, "the administrator"), (["/.dockerenv"], Severity.WARN, "container-gpu-access", "your launcher")])
def test_no_gpu_anywhere_quotes_the_bus_and_asks_who_can_help(container, severity, cause, who):
    there = change(bare(), "surroundings", container=container, pci_gpus={"0000:00:06.0": "", "0000:00:07.0": "nouveau"})
    found = judge_nvml.no_gpu_anywhere(there)
    assert (found.severity, found.cause, found.status) == (severity, cause, cause and "likely") and found.remedy[0].who == who
    assert [(e.source, e.text) for e in found.evidence][1:] == [
        ("gpus.cuda.error", made.NO_LIBCUDA), ("gpus.surroundings.pci_gpus", "0000:00:06.0 (no driver), 0000:00:07.0 (nouveau)")]


@pytest.mark.parametrize(("gap", "in_container", "cause", "status"), [
    (Gap("failed", "Driver/library version mismatch"), True, "driver-library-mismatch", "established"),
    (Gap("timed-out", "x"), True, "gpu-or-link-fault", "likely"), (Gap("absent", "x"), True, "container-gpu-access", "established"),
    (Gap("no-permission", "x"), False, "container-gpu-access", "likely"), (Gap("failed", "x"), True, "container-gpu-access", "likely"),
    (Gap("failed", "x"), False, "nvml-call-failed", "established"), (Gap("failed", "x"), None, "nvml-call-failed", "established")])
def test_nvml_refuses_by_reason_and_place(gap, in_container, cause, status):
    """``in_container``: None if nobody knows."""
    around = (
        Gap("failed", "x")
        if in_container is None
        else dataclasses.replace(machine().surroundings, container=["/.dockerenv"] * in_container)
    )
    [found] = judge_nvml.nvml_refuses(m.Machine(gap, around, machine().cuda))
    assert (found.severity, found.cause, found.status) == (Severity.BROKEN, cause, status)


FORBIDDEN = Gap("no-permission", "Insufficient Permissions")


@pytest.mark.parametrize(
    ("refused", "cuda_gpus", "severity", "cause", "status"),
    [
        ([], 4, None, None, None),
        ([FORBIDDEN], 3, Severity.NOTE, None, None),
        ([FORBIDDEN], 2, Severity.BROKEN, "container-gpu-access", "established"),
        ([FORBIDDEN] * 4, 0, Severity.BROKEN, "container-gpu-access", "established"),
        ([Gap("failed", "Unknown Error")], 3, Severity.BROKEN, "nvml-call-failed", "established"),
        ([FORBIDDEN, Gap("failed", "Unknown Error")], 2, Severity.BROKEN, "container-gpu-access", "established"),
        ([Gap("failed", "GPU is lost")], 3, Severity.BROKEN, "gpu-or-link-fault", "established"),
        ([Gap("failed", "GPU requires restart")], 3, Severity.BROKEN, "gpu-or-link-fault", "established"),
        ([Gap("timed-out", "no answer")], 3, Severity.BROKEN, "gpu-or-link-fault", "likely"),
    ],
)
def test_nvml_refuses_a_gpu_by_what_it_says(refused, cuda_gpus, severity, cause, status):
    listed = dataclasses.replace(change(machine(), "nvml", gpus=[*refused, *GPUS[len(refused):]]), cuda=cuda(range(cuda_gpus)))
    assert [(f.severity, f.cause, f.status) for f in judge_nvml.nvml_refuses_a_gpu(listed)] == [(severity, cause, status)] * bool(refused)
    assert [g.nvml_index for g in judge_health.reached(listed)] == [*range(len(refused), 4)]


def test_nvml_refuses_a_gpu_stays_quiet_when_only_a_field_is_unsupported():
    assert ids(rules.judge_gpus(change_gpu(machine(), 0, ecc=Gap("unsupported", "Not Supported"), owners=Gap("no-permission")))) == {
        "views-agree"
    }


# --- CUDA_VISIBLE_DEVICES

@pytest.mark.parametrize(("value", "seen", "words"), [
    ("", [], "every GPU"), ("-1", [], "every GPU"), ("NoDevFiles", [], "every GPU"), ("0,4", [0], "GPU 4 "), ("1,1", [], "twice"),
    ("0, 1,x", [0, 1], "'x'"), (f"GPU-{made.uuid(0)[:-1]}1", [], f" GPU-{made.uuid(0)}?"), ("GPU-ef50b44", [], "4 GPUs"),
])
def test_visible_devices_wrong_fires_when_the_value_is_bad(value, seen, words):
    judged = rules.judge_gpus(visible(machine(), value, seen))
    found = the("visible-devices-wrong", judged)
    assert words in found.title and found.cause == "visible-devices-wrong" and found.remedy[0].who == "your launcher"
    assert ids(judged) == {"visible-devices-wrong"}


@pytest.mark.parametrize("value", ["0,1,2,3", "3,2,1,0", " 0, 1 ,2,3", ",".join(f"GPU-{made.uuid(i)}" for i in range(4)),
                                   ",".join(f"gpu-ef50b44{i}" for i in range(4))])
def test_visible_devices_wrong_stays_quiet_when_all_are_named(value):
    assert ids(rules.judge_gpus(visible(machine(), value, [0, 1, 2, 3]))) == {"views-agree"}


def test_gpus_hidden_fires_when_the_variable_leaves_some_out():
    found = the("gpus-hidden", rules.judge_gpus(visible(machine(), "0,2", [0, 2])))
    assert found.severity is Severity.WARN and found.title.startswith("CUDA_VISIBLE_DEVICES=0,2 hides GPU 1, 3 of ")


@pytest.mark.parametrize("grant", ["0,2", "2,0"])
def test_gpus_hidden_is_only_noted_when_the_scheduler_grants_just_these(grant):
    judged = rules.judge_gpus(visible(machine(), "0,2", [0, 2], SLURM_JOB_GPUS=grant))
    assert the("gpus-hidden", judged).severity is Severity.NOTE and ids(judged) == {"gpus-hidden", "views-agree"}


def test_gpus_hidden_fires_when_the_scheduler_grants_more():
    assert the("gpus-hidden", rules.judge_gpus(visible(machine(), "0,2", [0, 2], SLURM_STEP_GPUS="0-3"))).severity is Severity.WARN


def test_gpus_hidden_stays_quiet_when_the_variable_is_not_set():
    assert "gpus-hidden" not in ids(rules.judge_gpus(machine()))


@given(st.text(max_size=60))
def test_any_value_is_read_without_error_and_names_only_gpus_that_exist(value):
    selection = read_selection(value, GPUS)
    assert set(selection.shown) <= set(range(4)) and isinstance(selection.problem, str)


@given(st.dictionaries(st.sampled_from(["SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES"]), st.text("0123456789,-all GPU", max_size=30)))
def test_any_grant_is_read_without_error(variables):
    assert isinstance(granted_by(variables, [0], GPUS), str)


# --- torch and CUDA

def test_torch_without_cuda_fires_when_gpus_are_there():
    cpu = cuda([], torch="2.13.0+cpu", cuda="", error="Torch not compiled with CUDA enabled", error_code=-1)
    judged = rules.judge_gpus(dataclasses.replace(machine(), cuda=cpu))
    assert ids(judged) == {"torch-without-cuda"} and the("torch-without-cuda", judged).remedy[0].who == "you"
    assert the("torch-without-cuda", judged).remedy[0].lines[0].endswith("torch==2.13.0"), "the job's own version, not the newest"


def test_torch_without_cuda_stays_quiet_when_there_is_no_gpu():
    assert "torch-without-cuda" not in ids(rules.judge_gpus(bare()))


def test_a_rocm_torch_is_skipped():
    assert rules.judge_gpus(dataclasses.replace(bare(), cuda=cuda([0], cuda="", hip="6.2")))[0].severity is Severity.SKIPPED


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "fabric-manager-down"),
        (
            "cuInit: error 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver / cuda driver combination",
            "driver-library-mismatch",
        ),
        ("The NVIDIA driver on your system is too old (found version 11040).", "driver-too-old"),
        (
            "cuInit: error 804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: forward compatibility was attempted on non supported HW",
            "driver-too-old",
        ),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu-exclusive-mode"),
        ("an error nobody has seen yet", None),
    ],
)
def test_cuda_cannot_start_fires_when_initialisation_fails(error, cause):
    judged = rules.judge_gpus(dataclasses.replace(machine(), cuda=cuda([], error=error, error_code=1)))
    found = the("cuda-cannot-start", judged)
    assert (found.severity, found.cause) == (Severity.BROKEN, cause) and error in found.evidence[0].text


def test_cuda_cannot_start_names_the_device_file_when_it_is_missing_or_denied():
    failed = dataclasses.replace(machine(), cuda=cuda([], error="No CUDA GPUs are available", error_code=100))
    no_uvm = change(failed, "surroundings", files=made.files(4)[:-1])
    denied = change(failed, "surroundings", files=made.files(4, "EPERM"))
    assert "/dev/nvidia-uvm" in the("cuda-cannot-start", rules.judge_gpus(no_uvm)).title
    assert "cgroup" in the("cuda-cannot-start", rules.judge_gpus(denied)).title
    assert the("cuda-cannot-start", rules.judge_gpus(no_uvm)).cause == "container-gpu-access"


def test_cuda_cannot_start_stays_quiet_when_the_variable_hides_all():
    assert "cuda-cannot-start" not in ids(rules.judge_gpus(visible(machine(), "", [])))


def test_cuda_misses_gpus_fires_when_cuda_counts_fewer():
    found = the("cuda-misses-gpus", rules.judge_gpus(dataclasses.replace(machine(), cuda=cuda([0, 1, 3]))))
    assert re.search(r"\b3 of the 4 GPUs\b.*; GPU 2\b", found.title)


def test_cuda_misses_gpus_stays_quiet_when_the_variable_explains_it():
    assert "cuda-misses-gpus" not in ids(rules.judge_gpus(visible(machine(), "0,1,3", [0, 1, 3])))


def test_cuda_misses_gpus_fires_when_cuda_counts_fewer_than_the_variable_lets_through():
    found = the("cuda-misses-gpus", rules.judge_gpus(visible(machine(), "0,1,3", [0, 3])))
    assert (found.severity, found.cause, found.status) == (Severity.BROKEN, "gpu-or-link-fault", "possible")
    assert "cuda-misses-gpus" not in ids(
        rules.judge_gpus(visible(machine(), "0,1,1", [0]))
    ), "a value that is wrong is judged by its own rule"


@pytest.mark.parametrize("made", [
    dataclasses.replace(machine(), cuda=cuda([0, 1, 3], cuda="")),
    dataclasses.replace(machine(), cuda=cuda([0, 1, 3], error="out of memory", error_code=2)),
    dataclasses.replace(change_gpu(machine(), 2, mig=m.Mig(True, True, [])), cuda=cuda([0, 1, 3])),
    visible(machine(), "0,1,7,3", [0])], ids=["CPU build", "CUDA error", "MIG", "a value that is wrong"])
def test_cuda_misses_gpus_leaves_to_other_rules_what_is_theirs(made):
    assert "cuda-misses-gpus" not in ids(rules.judge_gpus(made))


def test_cuda_misses_gpus_names_none_whose_uuid_nvml_refuses():
    unread = dataclasses.replace(change_gpu(machine(), 1, uuid=Gap("failed", "Unknown Error")), cuda=cuda([0, 1, 3]))
    assert the("cuda-misses-gpus", rules.judge_gpus(unread)).title.partition("; ")[2].startswith("GPU 2 ")


def test_cuda_misses_gpus_blames_the_container_when_a_device_file_cannot_be_opened():
    files = [dataclasses.replace(f, error="EPERM" * (f.path == "/dev/nvidia2")) for f in machine().surroundings.files]
    blocked = dataclasses.replace(change(machine(), "surroundings", files=files), cuda=cuda([0, 1, 3]))
    found = the("cuda-misses-gpus", rules.judge_gpus(blocked))
    assert (found.cause, found.status) == ("container-gpu-access", "likely")


def test_cuda_misses_gpus_stays_quiet_when_nvml_refuses_the_one():
    words = Gap("failed", "nvmlDeviceGetHandleByIndex(0) failed: Unknown Error")
    judged = rules.judge_gpus(dataclasses.replace(change(machine(), "nvml", gpus=[words, *GPUS[1:]]), cuda=cuda([1, 2, 3])))
    assert ids(judged) == {"nvml-refuses-a-gpu"}


def test_indices_differ_fires_when_cuda_counts_the_fastest_first():
    found = the("indices-differ", rules.judge_gpus(dataclasses.replace(machine(), cuda=cuda([2, 0, 1, 3]))))
    assert found.severity is Severity.NOTE and re.findall(r"\d+", found.evidence[0].text)[:4] == ["0", "2", "1", "0"]


def test_indices_differ_stays_quiet_when_the_variable_sets_the_order():
    assert ids(rules.judge_gpus(visible(machine(), "3,2,1,0", [3, 2, 1, 0]))) == {"views-agree"}


def test_gpus_hidden_goes_by_cudas_uuids_when_its_order_is_another():
    mixed = visible(made.change_gpu(machine(2), 1, name="NVIDIA H100"), "0", [1])
    assert "hides GPU 0 of " in the("gpus-hidden", rules.judge_gpus(mixed)).title


# --- no false alarms

def test_gpus_that_a_cgroup_withholds_are_healthy():
    files = [*made.files(4)[:2], m.DeviceFile("/dev/nvidia2", "crw-rw-rw-", "EPERM"), *made.files(4)[4:]]
    granted = change(machine(2), "surroundings", files=files, variables={"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "2,3"})
    assert ids(rules.judge_gpus(granted)) == {"views-agree"}
    listed = change(machine(3), "nvml", gpus=[*GPUS[:2], Gap("no-permission", "Insufficient Permissions")], pairs=made.pairs(2))
    judged = rules.judge_gpus(dataclasses.replace(listed, cuda=cuda([0, 1])))
    assert ids(judged) == {"nvml-refuses-a-gpu", "views-agree"} and step_status(judged)[0] is Severity.NOTE


def test_wsl_is_healthy_with_dxg_alone():
    wsl = change(machine(1), "surroundings", files=[m.DeviceFile("/dev/dxg", "crw-rw-rw-", "")], is_wsl=True, pci_gpus={})
    assert ids(
        rules.judge_gpus(made.change_all(wsl, nvlinks=Gap("unsupported"), owners=Gap("unsupported"), fabric=Gap("unsupported")))
    ) == {"views-agree"}


def test_a_geforce_without_peer_access_at_idle_is_healthy():
    quiet = made.change_all(
        machine(),
        name="NVIDIA GeForce RTX 4090",
        nvlinks=Gap("unsupported", "Not Supported"),
        pcie=m.Pcie(1, 8, 4, 16),
        fabric=m.Fabric("not-supported", "Success"),
        ecc=Gap("unsupported"),
        memory=m.Memory(24 << 30, 1 << 30, 600 << 20),
    )
    quiet = change(quiet, "nvml", pairs=made.pairs(4, "PHB", "chipset not supported"))
    assert ids(rules.judge_gpus(dataclasses.replace(quiet, cuda=cuda(range(4), peers=False)))) == {"views-agree"}
