"""Two things in one log: what ended the job leads, and what it survived, what follows and what is only quoted does not."""
from __future__ import annotations

import pytest
from test_triage_attempts import ECC, KILLED, LOST, WAITED, judged, raised, steps

STARTED = {
    "plugin": "n1:1:2 [0] nccl_net_ofi_rdma_init:7734 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
    "memory": "n1:1:2 [0] misc/ibvwrap.cc:208 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n",
    "route": "n1:1:2 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.2.0.4<41873> failed : No route to host\n",
}


@pytest.mark.parametrize("warning", STARTED.values(), ids=STARTED)
@pytest.mark.parametrize(("trained", "leads"), [(0, False), (1, False), (9, True)])
def test_what_a_job_trained_with_did_not_end_it(warning, trained, leads, tmp_path):
    """After two new steps the warning is no rival of the error that a rank raised later."""
    _, ranked = judged(tmp_path, warning + steps(0, trained) + raised(0, "FloatingPointError: loss is nan"))
    assert ((ranked[0].cause, ranked[0].status) == ("peer-crashed", "likely")) is leads
    _, ranked = judged(tmp_path, steps(0, 3) + warning + raised(0, "FloatingPointError: loss is nan"))
    assert {h.cause for h in ranked} != {"peer-crashed"}


DEAD = "(raylet) The node with node id: 4f0 and address: 10.0.0.2 and node name: n2 has been marked dead: the detector missed it.\n"


@pytest.mark.parametrize("dead", [DEAD, "srun: error: Node failure on n2\n"])
@pytest.mark.parametrize(
    ("before", "lead"),
    [
        (raised(0, "ZeroDivisionError: division by zero"), "peer-crashed"),
        (raised(1, "KeyError: 'mask'", "reward.py"), "peer-crashed"),
        ("[rank0]: " + LOST + "\n", "node-failed"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n", "node-failed"),
        ("", "node-failed"),
        (raised(0, "OSError: [Errno 116] Stale file handle"), "node-failed"),
        (raised(0, "OSError: [Errno 5] Input/output error: '/data/shard-3'"), "node-failed"),
        (raised(1, "OSError: [Errno 107] Transport endpoint is not connected"), "node-failed"),
        (raised(1, "requests.exceptions.ConnectionError: HTTPConnectionPool(host='n2'): Max retries exceeded"), "node-failed"),
        (raised(0, "OSError: [Errno 122] Disk quota exceeded: '/data/step_2400.pt'"), "peer-crashed"),
        (raised(0, "FileNotFoundError: [Errno 2] No such file or directory: 'step_2400.pt'"), "peer-crashed"),
    ],
)
def test_a_node_that_is_lost_after_an_error_of_the_program_follows_it(dead, before, lead, tmp_path):
    _, ranked = judged(tmp_path, steps(0, 4) + before + dead)
    assert ranked[0].cause == lead and ranked[0].status != "possible"


GONE = (
    "[rank1]:[W1005 14:20:41.008128499 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=78, addr=[a]:41112, remote=[a]:29500):"
    " Connection reset by peer\n"
)


@pytest.mark.parametrize(
    ("error", "speaks"),
    [
        ("OSError: [Errno 122] Disk quota exceeded: '/data/step_2400.pt'", "quota"),
        ("OSError: Incorrect path_or_model_id: '/models/m'. Please provide either the path to a local folder or a repo", "raised"),
        ("KeyError: 'mask'", "raised"),
    ],
)
def test_the_loss_of_a_rank_after_its_error_is_no_rival(error, speaks, tmp_path):
    _, ranked = judged(tmp_path / "a", steps(0, 3) + raised(0, error) + GONE)
    assert (ranked[0].cause, ranked[0].status) == ("peer-crashed", "likely")
    assert error in ranked[0].evidence[0].text and speaks in ranked[0].says
    _, ranked = judged(tmp_path / "b", steps(0, 3) + GONE + raised(0, error))
    assert ranked[0].status == "possible"


def test_a_list_of_events_is_in_no_order_with_the_log(tmp_path):
    """kubectl prints what ended the pod below the errors that followed."""
    event = "4m10s  Normal  {}  node/pool-b-7x  marked the node as toBeDeleted\n4m9s  Normal  Killing  pod/job-1  Stopping container\n"
    _, ranked = judged(tmp_path / "a", steps(0, 3) + f"[rank0]: {LOST}\n" + event.format("ScaleDown"))
    assert (ranked[0].cause, ranked[0].status) == ("scheduler-evicted", "likely")
    _, ranked = judged(tmp_path / "b", steps(0, 3) + f"[rank0]: {LOST}\n" + event.format("ScaleDownFailed"))
    assert "scheduler-evicted" not in [h.cause for h in ranked]


SCALED = "4m10s  Normal  ScaleDown  node/pool-b-7x  marked the node as toBeDeleted\n"
STOPPED = "4m9s   Normal  Killing    pod/{}  Stopping container c\n"
EVICTED = "5m     Warning Evicted    pod/job-9  The node was low on resource: memory.\n"


@pytest.mark.parametrize("events", [SCALED + STOPPED.format("web-1"), EVICTED, EVICTED.replace("5m ", "5m3s (x2 over 9m)")])
@pytest.mark.parametrize(
    ("error", "lead"),
    [
        ("ValueError: bad vocabulary", "peer-crashed"),
        ("KeyError: 'mask'", "peer-crashed"),
        (LOST, "scheduler-evicted"),
        ("OSError: [Errno 107] Transport endpoint is not connected", "scheduler-evicted"),
        ("RuntimeError: DataLoader worker (pid 44) is killed by signal: Terminated.", "scheduler-evicted"),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", "scheduler-evicted"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_event_may_be_about_another_pod(events, error, lead, first, tmp_path):
    """An error of the program's own leads, whichever stands first; the event is a possible cause beside it."""
    job = steps(0, 3) + (f"[rank0]: {LOST}\n" if error == LOST else raised(3, error))
    _, ranked = judged(tmp_path, events + job if first else job + events)
    assert ranked[0].cause == lead and ranked[0].status != "possible"
    assert [h.status for h in ranked[1:] if h.cause == "scheduler-evicted"] in ([], ["possible"])


@pytest.mark.parametrize("killing", ["", STOPPED.format("web-1")])
def test_a_container_that_reached_its_memory_limit_was_not_removed_with_its_node(killing, tmp_path):
    oom = "pod/job-1: Last State: Terminated  Reason: OOMKilled  Exit Code: 137\n"
    _, ranked = judged(tmp_path / "a", steps(0, 3) + SCALED + killing + oom)
    assert ranked[0].cause == "peer-crashed" and "scheduler-evicted" not in [h.cause for h in ranked]
    _, ranked = judged(tmp_path / "b", steps(0, 3) + SCALED + "pod/web-1: Last State: Terminated  Reason: Error  Exit Code: 143\n")
    assert "scheduler-evicted" not in [h.cause for h in ranked], "no pod of the job was ended"


@pytest.mark.parametrize(
    ("end", "fine"),
    [
        ("===== 31 passed, 2 warnings in 214.33s (0:03:34) =====\n", True),
        ("============ 4 passed in 2.10s ============\n", True),
        ("===== 3 passed, 1 skipped, 1 xfailed in 9.1s =====\n", True),
        ("===== 1 failed, 30 passed, 2 warnings in 214.33s (0:03:34) =====\n", False),
        ("===== 30 passed, 1 error in 214.33s =====\n", False),
    ],
)
def test_a_failure_inside_passed_tests_was_expected(end, fine, tmp_path):
    _, ranked = judged(tmp_path, "collected 31 items\n" + raised(1, "RuntimeError: injected failure on rank 1") + end)
    assert ([h.cause for h in ranked if h.cause != "benign"] == []) is fine


def test_a_job_that_fails_behind_passed_tests_has_failed(tmp_path):
    passed = "collected 5 items\n===== 5 passed in 3.21s =====\n+ torchrun --nproc-per-node 2 train.py\n"
    shared = "n:3:11 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5e000\n"
    assert judged(tmp_path / "a", passed + shared)[1][0].cause in ("duplicate-gpu", "device-not-set-per-rank")
    kernels = raised(0, "RuntimeError: CUDA error: no kernel image is available for execution on the device")
    assert judged(tmp_path / "b", passed + kernels)[1][0].cause == "framework-version-incompatible"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("prompt: Why does it print 'Segmentation fault (core dumped)'?\n", True),
        ('completion: the shell says "Segmentation fault" when a pointer is bad\n', True),
        ("bash: line 1: 4711 Segmentation fault (core dumped) python train.py\n", False),
        ("Segmentation fault (core dumped)\n", False),
        ('{"log":"Segmentation fault (core dumped)\\n","stream":"stderr"}\n', False),
        ('ERROR worker 3 exited: reason="Segmentation fault", code=139\n', False),
        ('{"level":"error", "msg": "Segmentation fault"}\n', False),
        ("srun: error: node1: task 3: `Segmentation fault' (core dumped)\n", False),
        ("(raylet) A worker died or was killed while executing a task: 'Segmentation fault encountered.'\n", False),
        ("worker 3 was ended by 'Segmentation fault'\n", False),
        ("rank 3 ended with 'Segmentation fault'\n", False),
        ("the process received the signal `Segmentation fault`\n", False),
    ],
)
def test_a_crash_in_quotes_is_none(text, quoted, tmp_path):
    _, ranked = judged(tmp_path, steps(0, 3) + text)
    assert ([h.cause for h in ranked if h.cause != "benign"] == []) is quoted


@pytest.mark.parametrize(
    ("last", "busy"),
    [("io progress 31.0 GB / 182.4 GB  (52 MB/s)", True), ("copied 3 GiB, 210.5 MiB/s", True), ("memory 31.0 GB / 80.0 GB", False),
     ("step 10 loss 2.31, data 1.2 GB/s", False), ("step 10 memory 31 GB, 1.2 GB/s", False), ("epoch 3: 310 MB/s", False),
     ("all_reduce busbw 182.4 GB/s", False), ("train throughput: 4.1 GB (310 MB/s)", False)],
)
def test_a_rank_that_moves_data_is_busy(last, busy, tmp_path):
    waits = "".join(WAITED.replace("[rank0]", f"[rank{r}]").replace("[Rank 0]", f"[Rank {r}]") for r in (1, 2, 3))
    _, ranked = judged(tmp_path, steps(0, 3, "[rank0]: ") + f"[rank0]: {last}\n" + waits)
    assert (ranked[0].cause == "rank-busy-on-host") is busy


def test_a_row_to_remap_ended_nothing(tmp_path):
    remap = "kernel: NVRM: Xid (PCI:0000:0f:00): 63, pid=9, name=python, Row Remapper: New row (0x1) marked for remapping.\n"
    _, ranked = judged(tmp_path / "a", remap + steps(0, 9) + KILLED[1])
    assert ranked[0].cause == "peer-crashed" and "established" not in [h.status for h in ranked if h.cause == "gpu-or-link-fault"]
    _, ranked = judged(tmp_path / "b", remap + ECC)
    assert (ranked[0].cause, ranked[0].status) == ("gpu-or-link-fault", "established")


ROUTE = "socketStartConnect: Connect to 10.2.0.4<41873> failed : No route to host"
MEMORY = "node3:812:999 [3] NCCL WARN Cuda failure 2 'out of memory'\n"
CODE = "node3:812:999 [3] NCCL INFO init.cc:100 -> 1\n"


@pytest.mark.parametrize("warning", [
    MEMORY, MEMORY + CODE, f"[rank3]: {MEMORY}",
    "node3:812:999 [3] misc/ibvwrap.cc:95 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n",
    f"node3:812:999 [3] misc/socket.cc:484 NCCL WARN {ROUTE}\n", f"[rank3]: node3:812:999 [3] misc/socket.cc:484 NCCL WARN {ROUTE}\n"])
def test_steps_of_one_rank_do_not_show_that_another_one_survived(warning, tmp_path):
    _, ranked = judged(tmp_path, steps(1, 3, "[rank0]: ") + warning + steps(4, 9, "[rank0]: ") + raised(0, "ValueError: group missing"))
    assert {h.cause for h in ranked} - {"peer-crashed", "benign"}
    assert (ranked[0].cause, ranked[0].status) != ("peer-crashed", "likely")


def test_what_a_rank_went_on_after_is_no_rival_of_its_error(tmp_path):
    """Unless NCCL returned an error after the warning."""
    end = steps(4, 9, "[rank0]: ") + raised(0, "ValueError: group missing")
    warning = f"[rank0]: node3:812:999 [0] misc/socket.cc:484 NCCL WARN {ROUTE}\n"
    _, ranked = judged(tmp_path / "a", steps(1, 3, "[rank0]: ") + warning + end)
    assert {h.cause for h in ranked} <= {"peer-crashed", "benign"}
    code = "[rank0]: node3:812:999 [0] NCCL INFO misc/socket.cc:530 -> 2\n"
    _, ranked = judged(tmp_path / "b", steps(1, 3, "[rank0]: ") + warning + code + end)
    assert {h.cause for h in ranked} - {"peer-crashed", "benign"}


FULL_GPU = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.00 GiB"


@pytest.mark.parametrize("end", [
    "{'train_runtime': 123.4, 'train_loss': 2.1, 'epoch': 1.0}", "[rank0]: {'train_runtime': 123.4, 'train_loss': 2.1, 'epoch': 1.0}",
    "[rank3]: Exception raised from malloc\n{'train_runtime': 123.4, 'epoch': 1.0}", "Training finished: epoch 3 loss 2.1"])
@pytest.mark.parametrize(("error", "cause"), [(FULL_GPU, "gpu-memory-exhausted"), ("ValueError: no such layer", "peer-crashed")])
def test_the_end_of_one_rank_does_not_clear_the_error_of_another(error, cause, end, tmp_path):
    log = "{'loss': 2.1, 'epoch': 0.9}\n[rank3]: Traceback (most recent call last):\n" + f"[rank3]: {error}\n{end}\n"
    _, ranked = judged(tmp_path, log)
    assert (ranked[0].cause, ranked[0].status) == (cause, "likely")
