"""Records of realistic runs, built in Python; figures are those of a host with 4 H200 (torch 2.11.0, NCCL 2.28.9)."""

from __future__ import annotations

from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity, step_status, worst_first
from nccl_runbook.core.records import Command, Judged, Record
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.report.verdict_document import RunInfo

PLAN = ["01-gpu-visibility", "03-fewer-gpus", "04-transports", "05-weight-sync", "99-verdict"]
USERS = Judged(
    python="/opt/venv/bin/python",
    torch="2.11.0+cu130",
    cuda="13.0",
    nccl="2.28.9",
    nccl_path="/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
    gpus=[f"{i}: NVIDIA H200" for i in range(4)],
    host="host-a",
)
OWN = Judged(python=".venv/bin/python", torch="2.13.0+cpu", host="laptop", own=True)


def run_info(**changes) -> RunInfo:
    known = {"id": "20261120T140233Z", "started": "2026-11-20T14:02:33Z", "command": "make report", "planned": PLAN}
    return RunInfo(**{**known, **changes})


def record(step: str, findings: list[Finding] = (), judged: Judged = USERS, **changes) -> Record:
    """A finished record whose status follows from its findings."""
    status, reason = step_status(list(findings))
    known = {"status": status.value, "reason": reason, "started": "2026-11-20T14:02:40Z", "ended": "2026-11-20T14:02:52Z", "wall_s": 11.6}
    return Record(step=step, judged=judged, findings=worst_first(findings), **{**known, **changes})


def ok(rule: str, title: str, *evidence: Evidence) -> Finding:
    return Finding(rule, Severity.OK, title, evidence)


def topology() -> Table:
    names = [f"GPU{i}" for i in range(4)]
    rows = [[a, *[Cell("self", "muted") if a == b else Cell("NV18", heat=1.0) for b in names]] for a in names]
    return Table("Links between GPUs", ["", *names], rows, "NV18: 18 NVLink links, 450 GB/s each way.")


def bandwidth() -> Table:
    rows = [
        ["control", Cell("passed", "ok"), Cell("355.6", heat=1.0), "P2P/CUMEM: 24"],
        ["P2P off", Cell("passed", "ok"), Cell("27.4", heat=0.3), "SHM/direct: 24"],
        ["P2P and SHM off", Cell("passed", "ok"), Cell("4.3", heat=0.05), "NET/Socket: 24"],
    ]
    return Table("all_reduce of 1 GiB, float32, 4 ranks", ["arm", "result", "bus bandwidth, GB/s", "transports"], rows)


def command(label: str, env: str = "") -> Command:
    return Command(
        label=label, line=f"{env}torchrun --nproc-per-node 4 lib/nccl_runbook/ranks/check.py --ops all_reduce --sizes 4,16777216".strip()
    )


def healthy() -> tuple[RunInfo, list[Record]]:
    """4 GPUs, all well; one experiment of the reader."""
    trial = {
        "at": "2026-11-20T14:03:01Z",
        "env": {"NCCL_P2P_LEVEL": "PHB"},
        "gpus": [2, 3],
        "passed": True,
        "wall_s": 2.1,
        "line": "NCCL_P2P_LEVEL=PHB torchrun ...",
    }
    return run_info(), [
        record(
            "01-gpu-visibility",
            [ok("views-agree", "NVML, the device files and CUDA each see the same 4 GPUs", Evidence("4 UUIDs in each", "gpus.uuids"))],
            tables=[to_json(topology())],
            facts={"gpus": {"count": 4, "driver": "580.159"}},
            wall_s=3.2,
            not_looked_at=["gpus.xid: no-permission: /dev/kmsg: Permission denied"],
        ),
        record(
            "03-fewer-gpus",
            [ok("worlds-pass", "1, 2, 3 and 4 ranks pass; every value was right")],
            commands=[command("4 ranks")],
            tried_by_hand=[trial],
        ),
        record(
            "04-transports",
            [Finding("nvls-off", Severity.NOTE, "NVLS is switched off by the surroundings (NCCL_NVLS_ENABLE=0)")],
            tables=[to_json(bandwidth())],
            commands=[command("control"), command("P2P off", "NCCL_P2P_DISABLE=1 ")],
            wall_s=41.0,
        ),
        record("05-weight-sync", [ok("sync-paths-measured", "NCCL per tensor is 340 times faster than disk for 15.2 GB")], wall_s=38.5),
        record("99-verdict", [ok("records-read", "4 records read")], judged=Judged(), wall_s=0.4),
    ]


def shared_gpu(severity: Severity = Severity.BROKEN, status: str = "established") -> Finding:
    return Finding(
        "ranks-share-a-gpu",
        severity,
        "ranks 0 and 1 share one GPU",
        (
            Evidence("rank 0 and rank 1: host-a, cuda_index 0, GPU-6d1b2e55-3c1f-4a0e-9d55-0f2f8f2f5b11", "world.ranks"),
            Evidence("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000", "logs/03-fewer-gpus/rank1.log:41"),
        ),
        (
            Remedy(
                "you",
                "Choose the GPU before the first collective, in every rank:",
                ('local_rank = int(os.environ["LOCAL_RANK"])', "torch.cuda.set_device(local_rank)"),
            ),
            Remedy("your launcher", "Start one rank per visible GPU, and no more:", ("torchrun --nproc-per-node 4 train.py",)),
        ),
        cause="device-not-set-per-rank",
        status=status,
    )


def duplicate_gpu() -> tuple[RunInfo, list[Record]]:
    """Two ranks on one GPU: established, with another cause ruled out."""
    ruled_out = Finding(
        "ranks-fit-gpus",
        Severity.OK,
        "more ranks than GPUs",
        (Evidence("4 ranks, 4 GPUs visible", "gpus.count"),),
        cause="more-ranks-than-gpus",
        status="ruled-out",
    )
    possible = Finding(
        "scheduler-may-share",
        Severity.NOTE,
        "the scheduler gives one GPU to two ranks",
        (Evidence("RAY_ADDRESS is set", "env"),),
        cause="scheduler-shares-gpu",
        status="possible",
        against=(Evidence("the same pair in 5 of 5 runs", "trial"),),
    )
    return run_info(), [
        record("01-gpu-visibility", [ok("views-agree", "4 GPUs in each view"), ruled_out], tables=[to_json(topology())]),
        record(
            "03-fewer-gpus",
            [shared_gpu(), possible],
            commands=[command("2 ranks on one GPU")],
            facts={"worlds": [{"log": "NCCL WARN Duplicate GPU detected\n" * 400}]},
        ),
        record("04-transports", [Finding("control-failed", Severity.UNKNOWN, "the control failed: nothing can be compared")]),
        record("05-weight-sync", [ok("disk-passes", "disk passes")]),
    ]


def cpu_only() -> tuple[RunInfo, list[Record]]:
    """No GPU: rehearsed on Gloo with the runbook's own torch."""
    no_gpu = Finding("no-gpu", Severity.UNKNOWN, "no GPU is visible on this machine")
    rehearsed = ok("rehearsal-passed", "the rehearsal on Gloo passed", Evidence("2 ranks, 12 of 12 values right", "worlds[0]"))
    return run_info(), [
        record("01-gpu-visibility", [no_gpu], OWN, wall_s=1.1, not_looked_at=["gpus.nvml: absent: NVML Shared Library Not Found"]),
        record("03-fewer-gpus", [no_gpu, rehearsed], OWN, wall_s=6.0),
        record("04-transports", [no_gpu], OWN),
        record("05-weight-sync", [no_gpu], OWN),
    ]


def interrupted() -> tuple[RunInfo, list[Record]]:
    """Ctrl-C in the second step."""
    stub = Record(step="03-fewer-gpus", started="2026-11-20T14:02:50Z")
    return run_info(interrupted=True, signal=2), [healthy()[1][0], stub]


SAMPLES = {"healthy": healthy, "duplicate-gpu": duplicate_gpu, "cpu-only": cpu_only, "interrupted": interrupted}
