"""What the first line of a log's answer and its advice say: they come from the very line, not from the cause in general."""
from __future__ import annotations

import pytest
from nccl_runbook.messages import read as reader
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer
from triage_samples import hung
from warm_cli import read_cli

RAY = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 4411 Worker exit type:"
    " SYSTEM_ERROR Worker exit detail: "
)
REASONS = (
    " There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop"
    " --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."
)
STUCK = (
    "[rank1]:[F1103 ProcessGroupNCCL.cpp:1563] [PG ID 0 PG GUID 0(default_pg) Rank 1] ProcessGroupNCCL's watchdog got stuck for 600 seconds"
    " without making progress in monitoring enqueued collectives.\n"
)
MONITOR = (
    "[rank1]:[E1103 ProcessGroupNCCL.cpp:1420] [PG ID 0 PG GUID 0(default_pg) Rank 1] Heartbeat monitor timed out! Process will be"
    " terminated after dumping debug info. workMetaList_.size()=2\n"
)
OTHERS = "another process (pid 70211) holds 22.50 GiB"


def answer(tmp_path, text: str) -> Answer:
    (tmp_path / "job.log").write_text(text)
    return triage.answer(reader.collect([str(tmp_path / "job.log")]))


def advice(given: Answer) -> str:
    """All that the first hypothesis says and advises."""
    lead = given.hypotheses[0]
    return "\n".join([lead.says, lead.decides.line, *(line for r in lead.remedy for line in (r.text, *r.lines))])


# cause and status of the first hypothesis; what its advice holds; what it must not hold; the log
FIRST = [
    # Ray does not know why: a list of possible reasons is no evidence of one
    (
        "peer-crashed likely",
        ["error code 2", "OOM killer", "ray stop", "4411"],
        ["host memory", "SBATCH"],
        RAY + "Worker unexpectedly exits with a connection error code 2. End of file." + REASONS + "\n",
    ),
    (
        "peer-crashed likely",
        ["error code 4", "ray stop"],
        ["host memory"],
        "ray.exceptions.ActorDiedError: The actor is dead because its worker unexpectedly exits with a connection error code 4. Connection"
        " reset."
        + REASONS
        + "\n",
    ),
    (
        "peer-crashed likely",
        ["host memory"],
        ["SBATCH"],
        "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 crashed\n",
    ),
    # a variable that names what this host does not have: variable, value and host
    (
        "socket-interface-wrong established",
        ["NCCL_SOCKET_IFNAME=ens9", "w7"],
        ["Unset NCCL_SOCKET_IFNAME and"],
        (
            "w7:5:6 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens9\nw7:5:6 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket"
            " interface found\n"
        ),
    ),
    (
        "net-socket-fallback established",
        ["NCCL_IB_HCA=mlx5_9", "w7"],
        [],
        (
            "w7:5:6 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_9\nw7:5:6 [0] NCCL INFO NET/IB : No device found.\nw7:5:6 [0] NCCL"
            " INFO Using network Socket\n"
        ),
    ),
    (
        "net-plugin-failed established",
        ["NCCL_NET is RDMAX", "w7"],
        [],
        "w7:5:6 [0] NCCL INFO NCCL_NET set by environment to RDMAX\nw7:5:6 [0] net.cc:216 NCCL WARN Error: network RDMAX not found.\n",
    ),
    (
        "socket-interface-wrong established",
        ["ib7", "GLOO_SOCKET_IFNAME"],
        ["Unset NCCL_SOCKET_IFNAME and"],
        "[rank1]: RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:91] ifa != nullptr. Unable to find address for: ib7\n",
    ),
    # Gloo gives advice: it is repeated, and nothing of NCCL beside it
    (
        "rendezvous-name-resolution likely",
        ["export GLOO_SOCKET_IFNAME"],
        ["unset", "04-transports"],
        (
            "[W1110 ProcessGroupGloo.cpp:787] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as"
            " fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME.\n[rank5]: RuntimeError: Gloo connectFullMesh"
            " failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:150] no error\n"
        ),
    ),
    # an error of a kernel, for which others wait: no look for the OOM killer
    *(
        (
            "peer-crashed likely",
            ["CUDA_LAUNCH_BLOCKING=1", wanted],
            ["oom"],
            f"[rank2]: Traceback (most recent call last):\n[rank2]: RuntimeError: CUDA error: {what}\n" + hung(0),
        )
        for what, wanted in (
            ("an illegal memory access was encountered", "compute-sanitizer"),
            ("misaligned address", "compute-sanitizer"),
            ("unspecified launch failure", "xid"),
            ("CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "shapes"),
        )
    ),
    # a program names its own fix
    (
        "rank-dependent-branch possible",
        ["ddp_find_unused_parameters_true"],
        ["look", "hangs"],
        (
            "[rank0]: RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned by"
            " training_step.\n"
        ),
    ),
    (
        "peer-crashed possible",
        ["set attn_implementation to eager"],
        [],
        "[rank0]: ValueError: Padding on the left breaks this kernel. Please set attn_implementation to eager.\n",
    ),
    (
        "peer-crashed possible",
        ["You need to install sentencepiece"],
        [],
        "[rank0]: ImportError: The tokenizer is missing a package. You need to install sentencepiece first.\n",
    ),
    (
        "peer-crashed possible",
        ["Try to pass padding=True"],
        [],
        "[rank0]: ValueError: Lengths differ. Try to pass padding=True to the collator.\n",
    ),
    # the watchdog itself stands still
    ("rank-busy-on-host possible", ["600 s", "GIL", "py-spy dump --native"], ["nccl-runbook hang"], STUCK),
    ("rank-busy-on-host possible", ["GIL", "py-spy dump --native"], ["nccl-runbook hang"], MONITOR),
    # a signal that the log names; the stack is asked for only where there is none
    (
        "peer-crashed likely",
        ["Segmentation fault", "4411", "PYTHONFAULTHANDLER"],
        ["memory", "Killed"],
        (
            "[rank1]: RuntimeError: DataLoader worker (pid 4411) is killed by signal: Segmentation fault. \n[rank1]: RuntimeError:"
            " DataLoader worker (pid(s) 4411) exited unexpectedly\n"
        ),
    ),
    (
        "peer-crashed likely",
        ["Aborted", "4411", "Fatal Python error"],
        ["PYTHONFAULTHANDLER", "memory"],
        (
            "Fatal Python error: Aborted\n\nCurrent thread 0x00007f0000001640 (most recent call first):\n  File"
            ' "/v/torch/utils/data/_utils/worker.py", line 9 in _worker_loop\n[rank1]: RuntimeError: DataLoader worker (pid 4411) is killed'
            " by signal: Aborted. \n"
        ),
    ),
    *(
        (
            "peer-crashed likely",
            ["signal 11", *wanted],
            lacks,
            stack + "E0101 api.py:1002] failed (exitcode: -11) local_rank: 1 (pid: 77) of binary: python\n",
        )
        for stack, wanted, lacks in (
            ("", ["PYTHONFAULTHANDLER"], []),
            ("Fatal Python error: Segmentation fault\n", [], ["PYTHONFAULTHANDLER"]),
        )
    ),
    # disks
    *(
        ("peer-crashed likely", wanted, ["Traceback", "oom"], f"[rank0]: {what}\n" + hung(4))
        for what, wanted in (
            ("OSError: [Errno 28] No space left on device: '/scratch/r7/state-4.pt'", ["the disk is full", "df -h /scratch/r7/"]),
            ("OSError: [Errno 28] No space left on device", ["full", "df -i"]),
            ("OSError: [Errno 122] Disk quota exceeded: '/home/li/a.pt'", ["quota -s"]),
            ("OSError: [Errno 30] Read-only file system: '/data/c/x.lock'", ["Read-only file system", "findmnt"]),
            ("OSError: [Errno 5] Input/output error", ["Input/output error"]),
        )
    ),
    # who holds the memory
    (
        "gpu-memory-exhausted likely",
        [OTHERS, "ps -o"],
        [],
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.20"
            " GiB is free. Process 70211 has 22.50 GiB memory in use. Including non-PyTorch memory, this process has 55.40 GiB memory in"
            " use.\n"
        ),
    ),
    # the process that the message names is the program itself: two of that size do not fit
    (
        "gpu-memory-exhausted likely",
        ["(process 411) holds 76.50 GiB"],
        ["another process", "nvidia-smi"],
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.20"
            " GiB is free. Process 411 has 76.50 GiB memory in use. Of the allocated memory 71.00 GiB is allocated by PyTorch, and 2.00 GiB"
            " is reserved\n"
        ),
    ),
    (
        "gpu-memory-exhausted likely",
        ["(process 9) holds 137.10 GiB"],
        ["another process"],
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 139.81 GiB of which"
            " 812.00 MiB is free. Process 9 has 137.10 GiB memory in use. Of the allocated memory 131.00 GiB is allocated by PyTorch\n"
        ),
    ),
    (
        "gpu-memory-exhausted likely",
        ["another process"],
        ["411"],
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which "
            "1.20 GiB is free. Process 411 has 76.50 GiB memory in use. Of the allocated memory 31.00 GiB is allocated by PyTorch\n"
        ),
    ),
    # who set the interface, and which parameters
    *(
        (
            "socket-interface-wrong likely",
            wanted,
            lacks,
            (
                f"w7:5:6 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to {name}\nw7:5:6 [0] NCCL INFO Bootstrap : Using"
                f" {used}:172.17.0.1<0>\nw8:5:6 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<41551> failed :"
                " Connection refused\n"
            ),
        )
        for name, used, wanted, lacks in (
            ("docker0", "docker0", ["NCCL_SOCKET_IFNAME=docker0", "unset"], ["eth0"]),
            ("=docker", "docker0", ["NCCL_SOCKET_IFNAME==docker", "unset"], []),
            ("^ib", "docker0", ["listens on docker0"], ["unset"]),
        )
    ),
    (
        "rank-dependent-branch possible",
        ["6 7", "rank 3"],
        ["TORCH_DISTRIBUTED_DEBUG"],
        (
            "[rank3]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
            "[rank3]: Parameter indices which did not receive grad for rank 3: 6 7\n"
        ),
    ),
    # before any rank started
    ("rendezvous-misconfigured possible", ["init_process_group"], [], "AssertionError: Default process group is not initialized\n"),
    (
        "rendezvous-misconfigured likely",
        ["at least 2 processes"],
        ["One rank crashed"],
        (
            'Traceback (most recent call last):\n  File "/v/accelerate/commands/launch.py", line 1196, in launch_command\n'
            "ValueError: You need to use at least 2 processes to use `--multi_gpu`.\n"
        ),
    ),
    *(
        (
            "driver-too-old established",
            [f"up to {version},"],
            ["version code"],
            f"RuntimeError: The NVIDIA driver on your system is too old (found version {code}).\n",
        )
        for code, version in ((11040, "11.4"), (12020, "12.2"), (9020, "9.2"), (12100, "12.10"), (10000, "10.0"))
    ),
]


@pytest.mark.parametrize("first, holds, lacks, log", FIRST, ids=lambda part: part.split("\n")[0][:40] if isinstance(part, str) else "")
def test_the_first_answer_and_its_advice_fit_the_line(tmp_path, first, holds, lacks, log):
    given = answer(tmp_path, log)
    words = advice(given)
    assert f"{given.hypotheses[0].cause} {given.hypotheses[0].status}" == first
    assert [part for part in holds if part not in words] == [] and [part for part in lacks if part in words] == []


@pytest.mark.parametrize(
    "listed",
    [
        "Possible reasons: CUDA out of memory, a bad driver.",
        "Potential causes are: CUDA out of memory; a hang.",
        "This may be caused by CUDA out of memory on another rank.",
        "This could be due to CUDA out of memory.",
    ],
)
def test_a_list_of_possible_reasons_is_no_evidence_of_one(tmp_path, listed):
    assert "gpu-memory-exhausted" not in [
        h.cause for h in answer(tmp_path, f"[rank0]: RuntimeError: the worker ended. {listed}\n").hypotheses
    ]
    assert "gpu-memory-exhausted" in [h.cause for h in answer(tmp_path, "[rank0]: RuntimeError: CUDA out of memory.\n").hypotheses]


def test_the_line_that_proves_it_stands_before_those_that_follow(tmp_path):
    (tmp_path / "job.log").write_text("[rank3]: KeyError: 'labels'\n" + hung(0))
    shown = read_cli("triage", str(tmp_path / "job.log")).stdout.splitlines()
    assert "KeyError" in shown[0] and [line for line in shown if "Watchdog" in line][0].startswith("   seen: ")
    assert "KeyError" in [line for line in shown if line.startswith("   seen: ")][0], "also where the first sentence has that line"


def test_what_the_first_sentence_has_is_not_repeated_where_nothing_else_was_seen(tmp_path):
    (tmp_path / "job.log").write_text("[rank3]: Traceback (most recent call last):\n[rank3]: KeyError: 'labels'\n")
    assert "seen: " not in read_cli("triage", str(tmp_path / "job.log")).stdout


def test_a_traceback_is_shown_only_if_there_is_one(tmp_path):
    bare = answer(tmp_path, "[rank3]: KeyError: 'labels'\n" + hung(0)).hypotheses[0].decides.line
    whole = (
        answer(tmp_path, "[rank3]: Traceback (most recent call last):\n[rank3]: KeyError: 'labels'\n" + hung(0)).hypotheses[0].decides.line
    )
    assert "Traceback" not in bare and "sed" not in bare and whole.startswith("sed -n '1,2p'")


SOCKETS = "w1:7:9 [0] NCCL INFO NET/IB : No device found.\nw1:7:9 [0] NCCL INFO Using network Socket\n"
STEPS = "step 1 loss 2.0\nstep 2 loss 1.9\n"


def test_sockets_of_a_job_that_works_are_named_unless_it_has_one_host(tmp_path):
    def noted(text: str) -> bool:
        return "tcp-sockets" in [f.id for f in answer(tmp_path, text).findings]

    assert noted(SOCKETS + STEPS)
    assert noted(SOCKETS + "w1:7:9 [0] NCCL INFO comm 0x7 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0\n" + STEPS)
    assert not noted(SOCKETS + "w1:7:9 [0] NCCL INFO comm 0x7 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0\n" + STEPS)
    assert not noted(SOCKETS + "w1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" + STEPS)
    assert not noted(SOCKETS.replace("Using network Socket", "Using network IB") + STEPS)


def test_a_plugin_without_its_library_is_found_although_the_job_goes_on_and_slows_it(tmp_path):
    given = answer(
        tmp_path,
        "w1:7:9 [0] NCCL INFO NET/Plugin : dlerror=libfabric.so.1: cannot open shared object file: No such file or directory "
        "No plugin found (libnccl-net.so), using internal implementation\n"
        + SOCKETS
        + STEPS,
    )
    lead = given.findings[0]
    assert (given.hypotheses[0].cause, lead.status, lead.severity) == ("net-socket-fallback", "established", "warn")
    assert "libfabric.so.1" in given.hypotheses[0].says


def test_a_port_that_lost_its_link_stays_a_fault_although_the_job_goes_on(tmp_path):
    lost = "w1:7:9 [0] transport/net_ib.cc:140 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n"
    given = answer(tmp_path, STEPS + lost + "step 3 loss 1.8\nstep 4 loss 1.7\n")
    assert (given.hypotheses[0].cause, given.findings[0].severity) == ("gpu-or-link-fault", "warn") and "mlx5_3" in given.hypotheses[0].says


@pytest.mark.parametrize("why", ["No route to host", "Network is unreachable", "Software caused connection abort"])
def test_a_connection_that_nccl_gave_up_is_as_bad_as_a_timeout(tmp_path, why):
    line = f"w1:7:9 [0] misc/socket.cc:567 NCCL WARN socketStartConnect: Connect to 10.4.0.9<43211> failed : {why}\n"
    assert "broken" in [f.severity for f in answer(tmp_path, line).findings]


def test_no_description_is_named_if_none_was_given(tmp_path):
    text = "w1 says: watchdog ended\n[rank0]: SystemExit: 1\n"
    shown = [f.title for f in answer(tmp_path, text).findings]
    assert not any("description" in title for title in shown)


def test_the_page_of_an_undecided_log_says_each_thing_once_and_shows_evidence(tmp_path):
    (tmp_path / "job.log").write_text(
        "torch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (w3, 29500).\n"
    )
    page = tmp_path / "page.html"
    read_cli("triage", str(tmp_path / "job.log"), "--html", str(page))
    body = page.read_text().partition("<main")[2]
    causes = [part.partition("</details>")[0] for part in body.split('<details class="fold cause">')[1:]]
    [named] = [cause for cause in causes if "a host name does not resolve" in cause]
    assert named.count('class="copy"') == 1  # the same line for two readers
    assert 'id="evidence"' in body and "DistNetworkError" in body.partition('id="evidence"')[2].partition("</section>")[0]
    assert body.count("a rank could not connect to the store") == 1
    told = [cause.partition("</summary>")[2].partition("<p><strong>")[0] for cause in causes]
    assert all(text.count("If this is the cause: ") == 1 for text in told)  # what the cause is stands first


GAVE_UP = "w3:5:6 [0] misc/ibvwrap.cc:66 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\n"
RETURNED = "w3:5:6 [0] NCCL INFO transport/net_ib.cc:91 -> 2\n"


@pytest.mark.parametrize(("log", "severity"), [
    (GAVE_UP + RETURNED, "broken"),
    ("[2026-03-01 05:01:10] " + GAVE_UP + RETURNED, "broken"),  # newer NCCL: the time stands before a warning alone
    (GAVE_UP + "w3:5:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0\n" + RETURNED, "broken"),
    (GAVE_UP, "unknown"),  # nothing says that NCCL gave up
    (RETURNED + GAVE_UP, "unknown"), (GAVE_UP + RETURNED.replace("-> 2", "-> 7"), "unknown"),  # before it; in progress
    (GAVE_UP + RETURNED.replace(":6 ", ":9 "), "unknown"),  # another thread
    (GAVE_UP + RETURNED + "w3:5:6 [0] NCCL INFO Using network Socket\n", "unknown"),  # NCCL chose another network
    (GAVE_UP + RETURNED + "step 8 loss 2.1\nstep 9 loss 2.0\n", "unknown")])
def test_a_warning_that_nccl_returned_as_an_error_is_a_fault(tmp_path, log, severity):
    assert severity in [f.severity for f in answer(tmp_path, log).findings]
    assert {"broken", "unknown"} - {severity} - {f.severity for f in answer(tmp_path, log).findings}


LOST = "[9.1] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(("log", "causes"), [
    (LOST + "[rank2]: RuntimeError: CUDA error: unspecified launch failure\n" + hung(0), ["gpu-or-link-fault"]),
    (LOST + "[rank2]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n" + hung(0), ["gpu-or-link-fault"]),
    ("[rank2]: RuntimeError: CUDA error: unspecified launch failure\n" + hung(0) + LOST, ["gpu-or-link-fault"]),
    (LOST + "[rank2]: ValueError: labels out of range\n" + hung(0), ["gpu-or-link-fault", "peer-crashed"])])  # an error of its own
def test_a_line_that_the_proven_cause_explains_gives_no_second_cause(tmp_path, log, causes):
    assert [h.cause for h in answer(tmp_path, log).hypotheses] == causes


def test_a_check_that_comes_next_is_said_once(tmp_path):
    (tmp_path / "job.log").write_text(
        "[rank3]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
    )
    shown = read_cli("diagnose", str(tmp_path / "job.log")).stdout
    assert "\nnext: print(" in shown and shown.count("no gradient after backward()") == 1


OWN = (
    '[rank6]: Traceback (most recent call last):\n[rank6]:   File "/w/train.py", line 88, in <module>\n[rank6]:     load(path)\n[rank6]:'
    " FileNotFoundError: /d/6\nE0101 04:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 6"
    " (pid: 91) of binary: python\n"
)


@pytest.mark.parametrize(
    ("log", "is_asked"),
    [
        (OWN, False),
        (OWN + hung(0), False),  # every line that the search would find is in the answer
        (
            (
                "w7:5:6 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"
                "w8:5:6 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<41551> failed : Connection refused\n"
            ),
            False,
        ),
        ("[rank1]: E0101 04:00:00.1 77 api.py:1002] failed (exitcode: -6) local_rank: 1 (pid: 91) of binary: python\n", True),
    ],
)  # only possible: the reader must judge it
def test_no_search_in_logs_that_were_read_comes_next(tmp_path, log, is_asked):
    (tmp_path / "job.log").write_text(log)
    shown = read_cli("diagnose", str(tmp_path / "job.log")).stdout
    assert ("\nnext: grep" in shown) == is_asked
    assert "train.py:88" not in shown or "(Error|Exception)" not in shown, "said once"
