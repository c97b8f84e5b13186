"""The catalogue of messages: permanent ids, a sample beside each row, and facts that outlive a new version of it."""
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.tables import PACKAGE, table
from nccl_runbook.core.facts import to_json
from nccl_runbook.messages import clues, judge, matcher, read
from nccl_runbook.messages.facts import Logs, Seen
from nccl_runbook.messages.kinds import Kinds
from nccl_runbook.triage.judge import answer
from pydantic import TypeAdapter

ROWS = {row["id"]: row for row in clues._rows()}
ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
FULL_SHM = "n1:7:7 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"

# Rows whose own sample speaks first for another cause, with that cause: both are possible, and its row knows more or comes first.
LED_BY = {
    "cuda-illegal-memory-access": "gpu-or-link-fault",
    "cuda-mps-client-fail": "container-gpu-access",
    "cuda-peer-access-between-devices": "p2p-broken-acs-iommu",
    "cuda-tensors-must-dense-framework-version-incompatible": "nccl-call-refused",
    "kernel-missing-iommu-pt-command-line-for-acs": "benign",
    "libfabric-net-ofi-completed": "net-plugin-failed",
    "libfabric-net-ofi-register-memory-rc": "net-plugin-failed",
    "libfabric-net-ofi-register-memory-rc-2": "net-plugin-failed",
    "libfabric-net-ofi-unreachable-remote-net-plugin-failed": "network-path-blocked",
    "libfabric-unreachable-remote-for-peer-crashed": "network-path-blocked",
    "lightning-but-machine": "peer-crashed",
    "lightning-but-machine-for-driver-too-old": "peer-crashed",
    "mxnet-corrupted-comm": "nccl-bug",
    "nccl-collective-mismatch": "collective-mismatch",
    "nccl-connect-timeout-socket-interface-wrong": "network-path-blocked",
    "nccl-driver-lacks-function": "cumem-mismatch",
    "nccl-exceeded-retries": "network-path-blocked",
    "nccl-family-neither-af-inet-for-interface": "nccl-version-mismatch",
    "nccl-got-async-fatal-event-port": "network-path-blocked",
    "nccl-invalid-config-attribute-value-2147483648": "nccl-call-refused",
    "nccl-invalid-resource-handle": "cumem-mismatch",
    "nccl-invalid-root-should-range": "nccl-call-refused",
    "nccl-ipc-handle-without-peer-access-for-visible-devices": "p2p-broken-acs-iommu",
    "nccl-no-algorithm-available": "env-conflict",
    "nccl-uds-binding": "network-path-blocked",
    "nccl-uds-binding-socket-failed-address": "cumem-mismatch",
    "nccl-via-net-socket-socket-interface-wrong": "network-path-blocked",
    "nccl-window-hang-ends-without-multicast": "nvls-fabric-fault",
    "nvidia-smi-has-failed": "container-gpu-access",
    "nvml-nvmlerror-notsupported": "nvml-call-failed",
    "openmpi-no-tcp-connection": "network-path-blocked",
    "openmpi-not-enough-slots-available": "scheduler-refused",
    "python-version-mismatch-cluster-started": "framework-version-incompatible",
    "torch-client-connect-timed-out-for-name": "rendezvous-misconfigured",
    "torch-client-no-address-connects-for-name": "rendezvous-misconfigured",
    "torch-illegal-memory-access-encountered": "peer-crashed",
    "torch-kernel-failed-in-program": "gpu-or-link-fault",
    "torch-no-cuda-gpus-available-visible-devices-set-too-late": "visible-devices-wrong",
    "torch-store-based-barrier-key-worker": "rendezvous-misconfigured",
    "torch-world-size-worker-count": "rendezvous-misconfigured",
    "torchrun-failed-own-exception": "framework-version-incompatible",
    "torchrun-rendezvousconnectionerror-rendezvous": "rendezvous-misconfigured",
    "torchrun-rendezvousconnectionerror-rendezvous-for-path": "rendezvous-misconfigured",
}


def samples(row: dict, key: str) -> list[str]:
    return [row[key]] if isinstance(row.get(key), str) else list(row.get(key, ()))


def logs_of(tmp_path: Path, text: str) -> Logs:
    """What is printed, and behind "--context " what a reporter says."""
    log, _, words = text.partition("\n--context ")
    (tmp_path / "job.log").write_text(log + "\n")
    return read.collect([str(tmp_path / "job.log")], words)


def of_line(row: dict) -> set[str]:
    """The causes of the rows that have this row's line."""
    line = row.get("same", row["id"])
    return {other["cause"] for other in ROWS.values() if line in (other["id"], other.get("same"))}


def test_every_row_is_complete():
    """A line of its own or of another row, a known cause, and as many near misses as samples."""
    for row in ROWS.values():
        missing = {"cause", "status"} - row.keys()
        assert not missing, f"{row['id']} lacks {', '.join(sorted(missing))}"
        assert ("line" in row) != ("same" in row), f"{row['id']} needs either line or same"
        assert "line" in ROWS[row.get("same", row["id"])], f"{row['id']}: the row that same names has no line"
        assert row["cause"] in causes(), f"{row['id']}: {row['cause']} is no id of causes.toml"
        assert row["status"] in ("established", "likely", "possible"), f"{row['id']}: no such status: {row['status']}"
        assert len(samples(row, "fires")) == len(samples(row, "quiet")), f"{row['id']} needs as many samples in quiet as in fires"


@pytest.mark.parametrize("row", [row for row in ROWS.values() if "fires" in row], ids=lambda row: row["id"])
def test_a_row_fires_on_its_sample_and_not_on_what_only_looks_like_it(tmp_path, row):
    clue = next(c for c in clues.clues() if c.id == row["id"])
    for text in samples(row, "fires"):
        logs = logs_of(tmp_path, text)
        assert (
            clue.message in logs.seen
            and {*clue.also} <= logs.seen.keys()
            and judge.fires(clue, logs)
            and not {*clue.without} & logs.seen.keys()
        )
        told = answer(logs)
        assert clue.cause in [*(h.cause for h in told.hypotheses[:3]), *(c.id for c in told.fits if clue.words)]
        if not clue.words:  # rows that share the line name their causes together
            leader = told.hypotheses[0].cause
            assert leader in {
                *of_line(row),
                LED_BY.get(row["id"]),
            }, f"{row['id']}: its sample speaks first for {leader}. Which of the two rows needs a narrower line? Right as it is: LED_BY"
    for text in samples(row, "quiet"):
        (tmp_path / "job.log").write_text(text + "\n")
        told = answer(read.collect([str(tmp_path / "job.log")])).hypotheses
        assert clue.cause not in [h.cause for h in told]


def test_ids_are_unique_words_with_the_program_first():
    ids = [*ROWS, *clues.catalogue()["fits"], *clues.PRINTED]
    assert len(ids) == len({*ids}) and [i for i in ids if not ID.fullmatch(i) or len(i) > 60] == []
    assert len(ROWS) == len(clues._rows()) and all(i.startswith("fit-") for i in clues.catalogue()["fits"])


def test_what_is_led_by_another_cause_is_a_row() -> None:
    assert {*LED_BY} <= {*ROWS} and {*LED_BY.values()} <= {*causes()}


def texts(row: dict) -> list[str]:
    """What the row says, advises and lets somebody run."""
    remedies = row.get("remedy", ())
    return [
        row.get("says", ""),
        *(r["text"] for r in remedies),
        *(line for r in remedies for line in r["lines"]),
        *row.get("decides", {}).values(),
    ]


def test_every_placeholder_of_a_text_is_filled_by_the_expressions_of_its_row(tmp_path):
    """And by a sample, if the row has samples."""
    expressions = clues.expressions()
    wrong, checked = {}, 0
    for clue in clues.clues():
        row = ROWS[clue.id]
        wanted = {name for text in texts(row) for name in re.findall(r"<([a-z_]+)>", text)}
        checked += bool(wanted)
        asked = [i for i in (clue.message, *clue.also, clue.above) if i]
        filled = {name for i in asked for name in re.compile(expressions[i]).groupindex}
        if wanted and "fires" in row:
            seen = [(i, logs_of(tmp_path, sample).seen[i].lines) for sample in samples(row, "fires") for i in asked]
            filled = {name for i, lines in seen for line in lines for name in judge._fields(i, line)}
        wrong |= {clue.id: wanted - filled} if wanted - filled else {}
    assert wrong == {} and checked > 350
    assert not [
        cause.id for cause in causes().values() for text in (cause.says, *(t for _, t, _ in cause.remedy)) if re.search(r"<[a-z_]+>", text)
    ]


def test_every_short_form_of_an_expression_is_known_and_used():
    known, literal = {*table("messages/catalogue/short-forms")["words"]}, {"<warn>", "<inactive>", "<port>"}
    tables = [*ROWS.values(), *table("messages/catalogue/fits")["fit"], table("messages/catalogue/short-forms")["words"]]
    expressions = [row[key] for row in tables for key in ("line", "also", "not", "above", "words", *known) if key in row]
    used = {*re.findall(r"(?<!\?P)<[a-z][a-z-]*>", repr(expressions))}
    asked = "".join(file.read_text() for file in PACKAGE.glob("*/**/*.py"))
    assert used - known == literal and [short for short in known - used if short not in asked] == []
    spelt = [e for group in ("printed", "spoken", "beside") for e in clues.catalogue()[group].values()]
    assert [e for e in spelt if any(short in e for short in known)] == []


def replayed(logs: Logs) -> Logs:
    """As a record holds them."""
    return TypeAdapter(Logs).validate_python(json.loads(json.dumps(to_json(logs))))


def rewritten(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """Another version of the catalogue: the same expression, spelled in another way."""
    flags, expression = re.match(r"(\(\?i\))?(.*)", clues.catalogue()["printed"][message], re.S).groups("")
    monkeypatch.setitem(clues.catalogue()["printed"], message, f"{flags}(?:{expression})")
    clues.expressions.cache_clear()
    clues.version.cache_clear()


def test_a_record_outlives_an_equivalent_expression(tmp_path, monkeypatch):
    logs = replayed(logs_of(tmp_path, FULL_SHM))
    before = answer(logs)
    assert (before.hypotheses[0].cause, before.hypotheses[0].status) == ("shm-too-small", "established")
    message = next(c.message for c in clues.clues() if c.cause == "shm-too-small" and c.status == "established" and c.message in logs.seen)
    rewritten(monkeypatch, message)
    after = answer(logs)
    assert [(h.cause, h.status) for h in after.hypotheses] == [(h.cause, h.status) for h in before.hypotheses]
    assert [f.id for f in after.findings if f.id == "catalogue-differs"] == ["catalogue-differs"]
    assert "catalogue-differs" not in [f.id for f in before.findings]
    monkeypatch.undo()
    clues.expressions.cache_clear()
    clues.version.cache_clear()


def test_a_record_of_before_ids_is_read_again(tmp_path):
    """It held lines under expressions, and no version."""
    logs = logs_of(tmp_path, FULL_SHM)
    expressions = clues.expressions()
    record = to_json(logs) | {"seen": {expressions[i]: to_json(seen) for i, seen in logs.seen.items()}, "words": {"the": None}}
    del record["catalogue"]
    old = TypeAdapter(Logs).validate_python(record)
    assert not {*old.seen} & {*clues.catalogue()["printed"]}
    told = [(h.cause, h.status) for h in answer(logs).hypotheses]
    assert told[0] == ("shm-too-small", "established") and [(h.cause, h.status) for h in answer(old).hypotheses] == told


def test_what_is_not_quoted_is_not_found_again(tmp_path):
    logs = logs_of(tmp_path, FULL_SHM)
    other = Logs(logs.files, "", {"no-such-message": Seen([], 0)}, [], catalogue="0")
    assert judge.current(other).seen == {} and answer(other).hypotheses == []


@pytest.mark.parametrize(
    ("short", "event", "mere"),
    [
        (
            "<timeout>",
            [
                "store->get timed out",
                "Timed out waiting 30000ms",
                "watchdog caught a collective",
                "socket timeout",
                "a time-out after 30 min",
                "timeout 1800000 ms exceeded in ALLREDUCE",
                "timeout: 600 seconds elapsed waiting for rank 2",
                "rank 3 hit the timeout=600s in barrier and died",
                "we reach timeout=1800 on every node",
                "it ran into a timeout: 30 min",
                "watchdog: rank 3 holds the others up",
                "the watchdog (rank 3) killed the job",
            ],
            [
                "timeout=900",
                "timeout: 900",
                '"timeout": 900, "backend": "nccl"',
                "Timeout(ms)=600000",
                "NCCL_TIMEOUT=30",
                "ddp_timeout: 1800",
                "--timeout 900",
                "timeout=timedelta(minutes=30)",
                "watchdog thread started",
                "stream_watchdog=1",
                "watchdog: true",
                '"watchdog": 30',
                "Watchdog(timeout=5)",
            ],
        ),
        (
            "<hang>",
            [
                "it hangs",
                "all ranks hung",
                "a deadlock",
                "the job freezes",
                "P2P did cause a hang",
                "NVLS seems to cause a hang",
                "this setting will cause deadlock on rank 3",
                "a hang or doing nothing",
                "it is slow or even freezes",
                "threads lead to a deadlock",
            ],
            [
                "This can potentially cause a hang if this mapping is incorrect",
                "which will cause deadlock",
                "instablity or hang",
                "stall_inspector.cc",
                "Waiting in store based barrier",
                "some processes are hanging or doing some time-consuming work",
                "might get DataLoader running slow or even freeze",
                "Disabling parallelism to avoid deadlocks...",
                "use of fork() may lead to deadlocks in the child",
            ],
        ),
        (
            "<slow>",
            [
                "the bandwidth is low",
                "it degrades",
                "it takes longer",
                "bandwidth: only 2 GB per second instead of 40",
                "weight sync latency: 40 s, it was 2 s",
                "latency: 40 ms instead of 2",
                "throughput=900, we expected 4000",
                "latency (p99) went from 2 to 40 ms",
                "a step is no longer 1 s but 9 s",
                "bandwidth: terrible",
                "small packets can degrade the sync",
            ],
            [
                "bandwidth: 12",
                "throughput=900",
                "throughput: 900 tokens",
                "latency (us)",
                "can degrade performance",
                "is no longer used",
                "no longer supported",
            ],
        ),
        (
            "<waited>",
            [
                "WorkNCCL(SeqNum=7, OpType=ALLREDUCE",
                "Watchdog caught collective operation timeout",
                "watchdog caught collective operation timeout",
                "Socket Timeout",
                "Timed out waiting 600000ms for recv operation to complete",
                "Timeout waiting for key: default_pg/0//cpu//0",
                "wait timeout after 300000ms, keys: /0",
            ],
            [
                "watchdog thread started",
                "Timed out waiting for a lock",
                "wait timeout=300",
                "WorkGloo",
                "socket_timeout: 30",
                "Socket timeout of 30 s is set",
            ],
        ),
        (
            "<network-broke>",
            [
                "NET/IB : Got completion from peer 10.0.0.7<4711> with status=12 opcode=129",
                "Got completion with error 12, opcode 0",
                "ncclRemoteError: A call failed possibly due to a network error",
                "Last error:\nNCCL remote process exited or there was a network error",
            ],
            [
                "Got completion from peer 10.0.0.7<4711> with status=0",
                "Got completion with error 0",
                "the remote process has started",
                "ncclSystemError",
            ],
        ),
        (
            "<broke>",
            [
                "n1:4:4 [0] NCCL WARN x",
                "Segmentation fault (core dumped)",
                "segmentation fault",
                "Signal: SIGSEGV",
                "Aborted (core dumped)",
                "free(): corrupted unsorted chunks",
                "unhandled cuda error",
                "unhandled system error",
                "no kernel image is available",
                "all ranks hung",
                "it CRASHES",
                "the job freezes",
            ],
            [
                "n1:4:4 [0] NCCL INFO x",
                "cuda error handler",
                "kernel image loaded",
                "segments: 8",
                "This can potentially cause a hang if this mapping is incorrect",
            ],
        ),
    ],
)
def test_what_is_only_configured_warned_of_or_measured_is_no_event(short, event, mere):
    found = re.compile(clues._spelt(short))
    assert [t for t in event if not found.search(t)] + [t for t in mere if found.search(t)] == []


@pytest.mark.parametrize(
    ("words", "fit"),
    [
        ("internal error in NCCL on rank 3", True),
        ("all_reduce ends with an internal error of ncclAllReduce", True),
        ("NCCL says internal error", True),
        ("the internal error comes from broadcast", True),
        ("the web server answers 500, internal error", False),
        ("internal error of the tokenizer", False),
    ],
)
def test_an_internal_error_is_one_of_nccl(tmp_path, words, fit):
    (tmp_path / "job.log").write_text("")
    assert ("fit-internal-error" in read.collect([str(tmp_path / "job.log")], words).seen) is fit


@pytest.mark.parametrize(
    ("line", "row", "names"),
    [
        (
            "/job:jax_worker/replica:0/task:3 has been set to ERROR in coordination service: CANCELLED: task shut down",
            "jax-task-stopped-its-heartbeats",
            {"task": "3"},
        ),
        (
            "/task:0 has been set to ERROR in coordination service: UNAVAILABLE: Task /task:5 heartbeat timeout",
            "jax-task-stopped-its-heartbeats",
            {"task": "5"},
        ),
        ("Using hostfile at hf but host=n2 was not reachable via ssh. If you", "deepspeed-host-not-reached-by-ssh", {"host": "n2"}),
        (
            "Command '['ssh', '-o', 'PasswordAuthentication=no', 'n7', 'hostname']' returned non-zero exit status 255.",
            "deepspeed-host-not-reached-by-ssh",
            {"host": "n7"},
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of", "slurm-step-oom-killed", {"step": "4711.0"}),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in StepId=4711.0 cgroup. Some of", "slurm-step-oom-killed", {"step": "4711.0"}),
        ("Using hostfile at hf but host=n2.rack. was not reachable via ssh.", "deepspeed-host-not-reached-by-ssh", {"host": "n2.rack"}),
    ],
)
def test_a_row_fills_its_names_whichever_form_the_program_prints(tmp_path, line, row, names):
    """Without the full stop of the sentence that a name ends."""
    found = logs_of(tmp_path, line).seen[row].lines[0]
    assert judge._fields(row, found) == names


@pytest.mark.parametrize(
    ("row", "line", "same_but_for_numbers"),
    [
        (
            "torch-store-based-barrier-key-worker",
            "Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:3"
            " (world_size=4, worker_count=3, timeout=0:30:00)",
            "Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:2"
            " (world_size=4, worker_count=4, timeout=0:30:00)",
        ),
        (
            "nccl-diag-p2p-part",
            "n1:11:12 [0] NCCL DIAG [INFO] p2p: only 48/56 GPU-to-GPU peer accesses passed verification",
            "n1:11:12 [0] NCCL DIAG [INFO] p2p: only 56/56 GPU-to-GPU peer accesses passed verification",
        ),
        (
            "job-steps-of-ranks",
            "rank 0 steps_per_epoch=781  rank 1 steps_per_epoch=781  rank 2 steps_per_epoch=780",
            "rank 0 steps_per_epoch=781  rank 1 steps_per_epoch=781  rank 2 steps_per_epoch=781",
        ),
        (
            "kernel-xid-hardware-number",
            "NVRM: Xid 79 on this GPU",
            "NVRM: Xid 13 on this GPU",
        ),
        (
            "cuda-peer-access-unsupported-error",
            "n2:5:6 [1] NCCL INFO transport/p2p.cc:311 Cuda failure 217",
            "n2:5:6 [0] NCCL INFO transport/p2p.cc:311 Cuda failure 2",
        ),
        ("job-long-phase-finished", "saving the checkpoint took 1240 s", "saving the checkpoint took 3 s"),
        (
            "nccl-older-than-hopper",
            "#  Rank  1 Group  0 Pid  12 on n01 device  1 [0x02] NVIDIA H100",
            "#  Rank  0 Group  0 Pid  11 on n01 device  0 [0x01] NVIDIA H20",
        ),
        (
            "docker-bootstrap-using-lo",
            "n1:7:7 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>",
            "n1:7:7 [0] NCCL INFO Bootstrap : Using [1]lo:127.0.0.1<0>",
        ),
    ],
)
def test_a_line_is_seen_below_one_that_differs_in_its_numbers_alone(tmp_path, row, line, same_but_for_numbers):
    assert row in logs_of(tmp_path, f"{same_but_for_numbers}\n{line}").seen


def test_lines_whose_numbers_decide_nothing_are_of_one_kind(tmp_path):
    """And those whose numbers do are of as many kinds as they match differently."""
    kinds = Kinds()
    steps = [b"[rank%d]: step %d took %d s" % (n % 4, n, n % 90) for n in range(300)]
    channels = [b"n1:1:2 [0] NCCL INFO Channel %02d/0 : %d[0] -> %d[1] via P2P/CUMEM" % (n, n, n + 1) for n in range(50)]
    kinds.of("job.log", 1, [*steps, *channels, b"[rank1]: step 301 took 4300 s", *steps])
    assert len(kinds.first) == 3
    kinds.of("job.log", 700, [*steps, b"[rank2]: step 8 took 5100 s"])
    assert len(kinds.first) == 3


@pytest.mark.parametrize(
    ("expression", "without_digits"),
    [
        (r"Xid (?:79|48)\b", {"xid "}),
        (r"exit code [1-9]\d*", {"exit code "}),
        (r"took \d{3,} s", {"took "}),
        (r"(\d+) of \1 ranks", {" ranks"}),
        (r"code(?! 0\b)", {"code"}),
        (r"error(?: 7)? in progress", {" in progress"}),
        (r"index (?P<a>\d+), not (?P=a)", {", not "}),
        (r"rank \d+ of \d{1,5} at 0x[0-9a-f]{4,8} via P2P/IPC in c10d", None),
    ],
)
def test_which_expressions_the_digits_of_a_line_decide(expression, without_digits):
    needs = matcher.numbered(expression)
    assert bool(needs) is (without_digits is not None)
    assert not needs or without_digits in [{literal.decode() for literal in of} for of in needs[0]]


def test_the_last_state_of_a_rank_counts(tmp_path):
    waits = (
        "Waiting in store based barrier to initialize process group for rank: {}, key: store_based_barrier_key:{}"
        " (world_size=4, worker_count={}, timeout=0:30:00)"
    )
    log = "\n".join([waits.format(0, 2, 3), waits.format(1, 2, 3), waits.format(0, 5, 1), waits.format(0, 5, 2)])
    lines = logs_of(tmp_path, log).seen["torch-store-based-barrier-key-worker"].lines
    assert [line.line for line in lines if line.rank in (0, None)][-1] == 4 and 1 not in [line.line for line in lines]
