"""Rules of GPU health: each where it fires and beside it where it stays quiet."""
from __future__ import annotations

import dataclasses
import json
import re

import machines as made
import pytest
from machines import change, change_all, change_gpu, cuda, machine, owner
from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.gpus import judge_health as rules
from nccl_runbook.machine import facts as m


def of(rule: str, seen: m.Machine) -> Finding | None:
    return next((f for r in rules.RULES for f in r(seen) if f.id == rule), None)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda r: r.__name__)
def test_every_health_rule_stays_quiet_when_the_machine_is_healthy_or_says_nothing(rule):
    silent = {f.name: Gap("unsupported") for f in dataclasses.fields(m.NvmlGpu) if f.name not in ("nvml_index", "retired_pages")}
    quiet = (machine(), change_all(machine(), **silent), dataclasses.replace(machine(), nvml=Gap("failed"), cuda=Gap("failed")))
    assert [f for seen in quiet for f in rule(seen)] == []


def name_of(row: dict) -> str:
    return row.get("has", row["id"])


@pytest.mark.parametrize("row", table("gpus/faults")["fault"], ids=name_of)
def test_every_fault_of_the_table_has_what_its_finding_needs(row):
    assert len({"values", "least", "has"} & {*row}) == 1 and {row.get("has"), row.get("shown")} <= {None, *rules._HAS}
    assert row["field"] in {f.name for f in dataclasses.fields(m.NvmlGpu)}
    lines = [line for remedy in rules.remedies(row, [0, 2]) for line in remedy.lines]
    assert bool(lines) == (row["severity"] != "note") and not any("{" in line for line in lines)


@pytest.mark.parametrize("row", [row for row in table("gpus/faults")["fault"] if "fires" in row], ids=name_of)
def test_a_fault_of_the_table_fires_on_its_sample_and_not_on_the_near_miss(row):
    def with_gpu(fields) -> m.Machine:
        gpu = m.from_json(m.NvmlGpu, to_json(made.gpu(2)) | json.loads(json.dumps(fields, default=dict)))
        return change(machine(), "nvml", gpus=[made.gpu(0), made.gpu(1), gpu, made.gpu(3)])

    found = [f for f in rules.faults(with_gpu(row["fires"])) if f.id == row["id"]]
    assert [(f.severity.value, f.cause, f.status) for f in found] == [(row["severity"], row.get("cause"), row.get("status"))]
    assert re.match(r"GPU 2:", found[0].title) and found[0].evidence[0].source == f"gpus.nvml.gpus[2].{row['field']}"
    assert row["id"] not in [f.id for f in rules.faults(with_gpu(row["quiet"]))]


def test_ecc_errors_fires_when_there_are_new_ones():
    found = of("ecc-errors", change_gpu(machine(), 3, ecc=m.Ecc(2, 5)))
    assert found.title.startswith("GPU 3:") and found.cause == "gpu-or-link-fault" and "--gpu-reset -i 3" in found.remedy[0].lines[-1]


def test_ecc_errors_stays_quiet_when_they_are_history():
    assert of("ecc-errors", change_gpu(machine(), 3, ecc=m.Ecc(0, 5))) is None


@pytest.mark.parametrize(
    ("rows", "severity"), [(m.RemappedRows(0, 1, True, False), Severity.WARN), (m.RemappedRows(0, 9, False, True), Severity.BROKEN)]
)
def test_rows_need_reset_fires_when_pending_or_failed(rows, severity):
    assert of("rows-need-reset", change_gpu(machine(), 1, remapped_rows=rows)).severity is severity


def test_rows_need_reset_stays_quiet_when_rows_were_remapped_well():
    assert of("rows-need-reset", change_gpu(machine(), 1, remapped_rows=m.RemappedRows(1, 2, False, False))) is None


@pytest.mark.parametrize("up", [17, 0])
def test_nvlink_down_fires_when_one_gpu_has_fewer_links(up):
    found = of("nvlink-down", change_gpu(machine(), 1, nvlinks=m.NvLinks([True] * up + [False] * (18 - up), Gap("absent"))))
    assert found.title.startswith("GPU 1:") and "17" in found.evidence[0].text


def test_nvlink_down_stays_quiet_when_all_have_the_same_or_one_card_has_no_bridge():
    half = m.NvLinks([True] * 4 + [False] * 8, False)
    none = m.NvLinks([False] * 12, Gap("absent"))
    bridged = change_all(machine(3), nvlinks=half, fabric=m.Fabric("not-supported", "Success"))
    assert of("nvlink-down", bridged) is None and of("nvlink-down", change_gpu(bridged, 2, nvlinks=none)) is None


@pytest.mark.parametrize(
    "fabric", [m.Fabric("in-progress", "Success"), m.Fabric("not-started", "Success"), m.Fabric("completed", "Unknown Error")]
)
def test_fabric_not_ready_fires_when_it_is_not_completed(fabric):
    waits = change_all(machine(), fabric=fabric)
    assert of("fabric-not-ready", waits).severity is Severity.WARN
    found = of("fabric-not-ready", dataclasses.replace(waits, cuda=cuda([], error="error 802", error_code=802)))
    assert (found.severity, found.cause) == (Severity.BROKEN, "fabric-manager-down")
    assert (
        of("fabric-not-ready", dataclasses.replace(waits, cuda=Gap("failed"))).severity is Severity.BROKEN
    ), "nobody knows that CUDA works"


def test_fabric_not_ready_stays_quiet_when_there_is_no_fabric():
    assert of("fabric-not-ready", change_all(machine(), fabric=m.Fabric("not-supported", "Success"))) is None


def test_clocks_held_down_fires_when_hot():
    assert of("clocks-held-down", change_gpu(machine(), 0, clock_reasons=["hw_slowdown", "hw_thermal_slowdown"])).severity is Severity.WARN


def test_clocks_held_down_stays_quiet_when_idle_or_capped():
    assert (
        of("clocks-held-down", change_all(machine(), clock_reasons=["idle", "sw_power_cap", "applications_clocks_setting", "sync_boost"]))
        is None
    )


@pytest.mark.parametrize("changes", [{"compute_mode": "prohibited"}, {"compute_mode": "exclusive-process", "owners": [owner()]}])
def test_compute_mode_blocks_fires_when_no_process_may_enter(changes):
    found = of("compute-mode-blocks", change_gpu(machine(), 2, **changes))
    assert (found.severity, found.cause) == (Severity.BROKEN, "gpu-exclusive-mode")


@pytest.mark.parametrize("owners", [[], [owner(is_ours=True)], [owner(kind="graphics")]])
def test_compute_mode_blocks_is_only_noted_when_exclusive_and_free(owners):
    assert of("compute-mode-blocks", change_all(machine(), compute_mode="exclusive-process", owners=owners)).severity is Severity.NOTE


def test_compute_mode_blocks_stays_quiet_in_the_default_mode_whoever_computes_there():
    assert of("compute-mode-blocks", change_all(machine(), compute_mode="default", owners=[owner()])) is None


@pytest.mark.parametrize(("instances", "severity"), [([], Severity.BROKEN), ([m.MigInstance("MIG-1", "1g.18gb")], Severity.WARN)])
def test_mig_splits_gpus_fires_when_mig_is_on(instances, severity):
    assert of("mig-splits-gpus", change_gpu(machine(), 0, mig=m.Mig(True, True, instances))).severity is severity


def test_vgpu_limits_fires_when_a_guest_has_a_vgpu():
    assert of("vgpu-limits", change_gpu(machine(), 0, virtualisation="vgpu")).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("nccl", "severity"),
    [("2.28.9", Severity.BROKEN), ("2.30.4", Severity.BROKEN), ("2.30.7", Severity.NOTE), (Gap("absent"), Severity.BROKEN)],
)
def test_bus_ids_collide_fires_when_distinct_gpus_share_one(nccl, severity):
    found = of("bus-ids-collide", change(change_all(machine(2), pci_bus_id="00000000:00:06.0"), "cuda", nccl=nccl))
    assert (found.severity, found.cause) == (severity, "bus-id-collision")


@pytest.mark.parametrize("version", ["12.8", "13.0"])
def test_bus_ids_collide_names_the_wheel_of_the_jobs_cuda(version):
    found = of("bus-ids-collide", change(change_all(machine(2), pci_bus_id="00000000:00:06.0"), "cuda", nccl="2.28.9", cuda=version))
    assert f"nvidia-nccl-cu{version[:2]}>=2.30.7" in found.remedy[0].lines[0]


def test_bus_ids_collide_fires_when_only_cuda_mixes_them_up():
    same = [dataclasses.replace(g, pci_bus_id="0000:00:06.0") for g in machine().cuda.gpus]
    assert of("bus-ids-collide", change(machine(), "cuda", gpus=same))


def test_bus_ids_collide_stays_quiet_when_cuda_shows_mig_slices_of_one_card_or_nvml_cannot_say_so():
    same = [dataclasses.replace(g, pci_bus_id="0000:00:06.0") for g in machine(2).cuda.gpus]
    seen = change(machine(2), "cuda", gpus=same)
    assert of("bus-ids-collide", seen).id == "bus-ids-collide"
    assert of("bus-ids-collide", change_gpu(seen, 0, mig=m.Mig(True, True, []))) is None
    assert of("bus-ids-collide", dataclasses.replace(seen, nvml=Gap("absent", "no NVML"))) is None


@pytest.mark.parametrize(("nccl", "status"), [("2.29.9", "established"), ("2.30.4", "established"), ("2.30.7", "possible")])
def test_bus_ids_collide_is_sure_of_an_nccl_that_compares_bus_ids(nccl, status):
    assert of("bus-ids-collide", change(change_all(machine(2), pci_bus_id="00000000:00:06.0"), "cuda", nccl=nccl)).status == status


@pytest.mark.parametrize("view", [Gap("failed", "no rank"), dataclasses.replace(cuda([]), cuda="")])
def test_bus_ids_collide_fires_when_only_nvml_mixes_them_up(view):
    found = of("bus-ids-collide", dataclasses.replace(change_all(machine(2), pci_bus_id="00000000:00:06.0"), cuda=view))
    assert found.severity is Severity.BROKEN and "nvidia-nccl-cu12>=2.30.7" in found.remedy[0].lines[0]


@pytest.mark.parametrize("field", ["uuid", "pci_bus_id"])
def test_bus_ids_collide_stays_quiet_when_a_name_was_not_read(field):
    empty = change(machine(2), "cuda", gpus=[dataclasses.replace(g, pci_bus_id="0000:00:06.0") for g in machine(2).cuda.gpus])
    blank = [dataclasses.replace(g, **({"uuid": ""} if field == "uuid" and g.cuda_index else {"pci_bus_id": ""} if field != "uuid" else {}))
             for g in empty.cuda.gpus]
    assert of("bus-ids-collide", change(empty, "cuda", gpus=blank)) is None


def test_bus_ids_collide_stays_quiet_when_it_is_one_gpu_seen_twice():
    twice = change_all(machine(2), pci_bus_id="00000000:00:06.0", uuid="GPU-1")
    assert of("bus-ids-collide", dataclasses.replace(twice, cuda=cuda([0]))) is None


def test_nvlink_without_peer_access_fires_when_cuda_refuses():
    assert "6 pairs" in of("nvlink-without-peer-access", dataclasses.replace(machine(), cuda=cuda(range(4), peers=False))).title


def test_nvlink_without_peer_access_stays_quiet_when_there_is_no_nvlink():
    plain = change(machine(), "nvml", pairs=made.pairs(4, "SYS", "topology not supported"))
    assert of("nvlink-without-peer-access", dataclasses.replace(plain, cuda=cuda(range(4), peers=False))) is None
