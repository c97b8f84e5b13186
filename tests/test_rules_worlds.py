"""Rules of 03 and 04: each fires on its case and stays quiet beside it."""
from __future__ import annotations

import dataclasses
import re

import pytest
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Severity
from nccl_runbook.messages.printed.failed_world import cannot_run, explain, rank_line
from nccl_runbook.messages.printed.recognise import recognise
from nccl_runbook.worlds import (
    judge as fewer_gpus,
    judge_control as transports_judge_control,
    judge_transports as transports,
)
from nccl_runbook.worlds.facts import NOT_RUN, Ladder, Pair, Pairs, Singles
from world_samples import NET, P2P, SHM, arms, hung, outcomes, rank, trial, world

DUPLICATES = [
    "init.cc:904 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60",
    "NCCL WARN Multiple ranks detected using the same GPU on this node",
    "NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1",
]
MESSAGES = {
    "socket-interface-wrong": "bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found",
    "nvml-call-failed": "nvmlDeviceGetHandleByIndex(0) failed: Unknown Error",
    "driver-library-mismatch": "nvmlInit failed: Driver/library version mismatch",
    "more-ranks-than-gpus": "RuntimeError: CUDA error: invalid device ordinal",
    "container-gpu-access": "RuntimeError: No CUDA GPUs are available",
    "gpu-exclusive-mode": "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "gpu-memory-exhausted": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "shm-too-small": (
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888), error: No space left on device (28)"
    ),
    "fabric-manager-down": "CUDA error: system not yet initialized",
    "ulimit-too-low": "socket.cc NCCL WARN Call to socket failed: Too many open files",
    "driver-too-old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)",
    "gpu-or-link-fault": "CUDA error: uncorrectable ECC error encountered",
    "nvls-fabric-fault": "transport/nvls.cc:265 NCCL WARN Cuda failure 801",
    "nccl-version-mismatch": "bootstrap.cc NCCL WARN Mismatched NCCL version detected : rank 0 (21903) rank 1 (22809)",
    "nccl-library-conflict": "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister",
    "rendezvous-name-resolution": "The hostname of the client socket cannot be retrieved. err=-2: Name or service not known",
    "cuda-initialised-before-fork": (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start"
        " method"
    ),
}
NEAR_MISSES = [
    "NCCL INFO NET/IB : No device found.",
    "NCCL INFO NET/Plugin: Could not find: libnccl-net.so",
    "NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>",
    "Connection closed by remote peer vm<45123>",
    "NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.",
    "step 12 loss 2.31 out of memory pool 3",
    "misc/socket.cc NCCL WARN socketProgress: Connection closed by remote peer",
    "NCCL INFO init.cc:126 -> 5",
    "no space left in the batch",
    "NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 - Init COMPLETE",
    "transport/nvls.cc NCCL INFO NVLS multicast support is available",
    "RuntimeError: CUDA error: invalid device function",
    "CUDA error: unspecified launch failure",
    "pcieport 0000:00:01.0: PCIe Bus Error",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    (
        "[W socket.cpp:663] [c10d] The IPv6 network addresses of (node7, 29500) cannot be retrieved (gai error: -2 - Name or service not"
        " known)."
    ),
    "NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-abc (size 9637888), error: Too many open fds (0)",
    "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
]


@pytest.mark.parametrize(("cause", "line"), MESSAGES.items())
def test_recognise_fires_when_a_library_says_its_message(cause, line):
    known = recognise({"rank 0": "all is well", "rank 1": f"something before\n{line}"})
    assert (known.cause, known.evidence[0].text, known.evidence[0].file) == (cause, line, "rank 1")


@pytest.mark.parametrize("line", NEAR_MISSES)
def test_recognise_stays_quiet_when_a_line_is_harmless(line):
    known = recognise({"rank 0": line})
    assert known is None or known.status == "possible"


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        ("more-ranks-than-gpus", "possible"),
        ("container-gpu-access", "possible"),
        ("gpu-exclusive-mode", "likely"),
        ("nvls-fabric-fault", "possible"),
    ],
)
def test_a_message_with_several_causes_behind_it_establishes_none(cause, status):
    failed = world([rank(n, code=1, error=MESSAGES[cause]) for n in (0, 1)])
    assert (explain("r", "2 ranks", failed, failed).cause, explain("r", "2 ranks", failed, failed).status) == (cause, status)


def test_a_bus_error_is_likely_a_small_dev_shm_whether_the_rank_says_so_or_not():
    for lines in ((), ("Fatal Python error: Bus error",)):
        failed = world([rank(0, "signalled", 7, lines), rank(1, "timed-out", 15)])
        found = explain("r", "2 ranks", failed, failed)
        assert (found.cause, found.status) == ("shm-too-small", "likely")


@pytest.mark.parametrize("message", DUPLICATES)
def test_duplicate_gpu_fires_when_the_device_map_repeats_an_index(message):
    failed = world([rank(n, code=1, error=message, uuid="same") for n in (0, 1)], devices=[0, 0])
    found = explain("r", "2 ranks", failed, failed)
    assert (found.cause, found.status, found.severity) == ("device-not-set-per-rank", "established", Severity.BROKEN)
    shared, = (e.text for e in found.evidence if e.source.startswith("device map"))
    assert re.findall(r"\d|same", shared) == ["0", "1", "same", "0", "0"], "the ranks, the GPU that they have, those that were asked for"


def test_duplicate_gpu_names_the_scheduler_when_different_devices_are_one_gpu():
    failed = world([rank(n, code=1, error=DUPLICATES[0], uuid="same") for n in (0, 1)])
    assert explain("r", "2 ranks", failed, failed).cause == "scheduler-shares-gpu"


def test_duplicate_gpu_names_the_bus_ids_when_the_uuids_differ():
    failed = world([rank(n, code=1, error=DUPLICATES[0], bus="00000000:06:00") for n in (0, 1)])
    assert explain("r", "2 ranks", failed, failed).cause == "bus-id-collision"


def test_duplicate_gpu_stays_quiet_when_two_ranks_share_a_gpu_and_nothing_refused():
    failed = hung(devices=[0, 0])
    assert explain("r", "2 ranks", failed, failed).cause is None


def test_explain_takes_the_hardest_message_of_all_ranks():
    failed = world([rank(0, code=1, error=MESSAGES["rendezvous-name-resolution"]), rank(1, code=1, error=MESSAGES["nvml-call-failed"])])
    found = explain("r", "2 ranks", failed, failed)
    assert (found.cause, found.status, found.evidence[0].source) == ("nvml-call-failed", "established", "rank 1")


def test_explain_is_not_sure_of_a_message_before_a_hang_and_takes_none_beside_wrong_values():
    line = MESSAGES["ulimit-too-low"]
    stuck = world([rank(n, "timed-out", 15, [line]) for n in (0, 1)])
    assert (explain("r", "2 ranks", stuck, stuck).cause, explain("r", "2 ranks", stuck, stuck).status) == ("ulimit-too-low", "likely")
    wrong = world([rank(n, code=6, lines=[line], wrong={"index": 0, "got": 1.0, "expected": 2.0, "count": 1}) for n in (0, 1)])
    assert explain("r", "2 ranks", wrong, wrong).cause is None


def test_explain_names_a_stopped_rank_and_no_other():
    failed = world([rank(0, "timed-out", 15), rank(1, "timed-out", 9, state="T do_signal_stop")])
    found = explain("r", "2 ranks", failed, failed)
    assert found.cause == "peer-stopped" and found.evidence[0].text.startswith("rank 1:")


def test_explain_names_a_killed_rank_and_not_the_echo():
    echo = "RuntimeError: Connection closed by peer [127.0.0.1]:46221"
    failed = world([rank(0, code=1, error=echo), rank(1, "signalled", 9)])
    found = explain("r", "2 ranks", failed, failed)
    assert found.cause == "peer-crashed" and re.match(r"rank 1: .*\bsignal 9\b", found.evidence[0].text)


def test_explain_names_first_who_was_killed_then_who_raised_then_who_waited():
    failed = world(
        [rank(0, "timed-out", 15), rank(1, code=1), rank(2, "signalled", 9), rank(3), rank(4, "timed-out", 9, state="T do_signal_stop")]
    )
    assert [e.text.partition(":")[0] for e in explain("r", "5 ranks", failed, failed).evidence] == ["rank 2", "rank 4", "rank 1", "rank 0"]


def test_explain_names_of_a_lost_world_only_ranks_without_an_end_and_counts_it_as_no_repetition():
    lost = world([rank(0, "lost"), rank(1, "late"), rank(2)])
    found = explain("r", "3 ranks", lost)
    assert found.severity is Severity.UNKNOWN and [e.text.partition(":")[0] for e in found.evidence[:-1]] == ["rank 0", "rank 1"]
    assert "in 1 of 1 runs" in explain("r", "2 ranks", hung(), lost).title


def test_explain_says_once_of_twice_when_the_repetition_passes():
    found = explain("r", "2 ranks", hung(), world())
    assert found.severity is Severity.WARN and "in 1 of 2 runs" in found.title


def test_explain_is_as_sure_as_the_message_of_one_failure_and_not_sure_once_the_repetition_passed():
    failed = world([rank(n, code=1, error=MESSAGES["shm-too-small"]) for n in (0, 1)])
    once, passed, twice = (explain("r", "2 ranks", failed, again) for again in (None, world(), failed))
    assert {f.cause for f in (once, passed, twice)} == {"shm-too-small"}
    assert [f.status for f in (once, passed, twice)] == ["established", "possible", "established"]
    assert [f.severity for f in (once, passed, twice)] == [Severity.WARN, Severity.WARN, Severity.BROKEN]
    assert [re.findall(r"\d of \d", f.title) for f in (once, passed, twice)] == [["1 of 1"], ["1 of 2"], []]


def test_explain_quotes_the_log_only_if_no_cause_is_known():
    unknown = world([rank(n, code=1, lines=["something new"]) for n in (0, 1)])
    known = world([rank(n, code=1, error=MESSAGES["shm-too-small"], lines=["something new"]) for n in (0, 1)])
    quoted = [[e.text for e in explain("r", "2 ranks", failed, failed).evidence if e.source == "log"] for failed in (unknown, known)]
    assert quoted == [["something new"] * 2, []]


def test_explain_says_unknown_when_our_own_process_was_killed():
    lost = world([rank(n, "lost", None) for n in (0, 1)])
    killed = explain("r", "2 ranks", lost, lost)
    assert killed.severity is Severity.UNKNOWN


def test_explain_does_not_call_late_ranks_killed():
    late, lost = (world([rank(n, outcome, None) for n in (0, 1)]) for outcome in ("late", "lost"))
    found, killed = explain("r", "2 ranks", late), explain("r", "2 ranks", lost)
    assert found.severity is Severity.UNKNOWN and found.title != killed.title
    assert [e.text for e in found.evidence[:2]] == [rank_line(r) for r in late.ranks] and rank_line(late.ranks[0]) != rank_line(
        lost.ranks[0]
    )


def test_explain_shows_the_wrong_element_when_values_are_wrong():
    wrong = {"index": 7, "got": 1048.0, "expected": 48.0, "count": 1, "from_rank": 1}
    failed = world(code=6, wrong=wrong)
    found = explain("r", "2 ranks", failed, failed)
    assert re.fullmatch(r"2 ranks .*\brank 1", found.title)
    assert any(
        re.search(r"\brank 1: .*\b7\b.* 1048\.0 .* 48\.0\b", e.text) for e in found.evidence
    ), "sender, place, what came and what was sent"


def test_explain_names_no_sender_when_several_ranks_sent_wrong_values_or_only_sums_are_wrong():
    for senders in ((0, 1), (None, None)):
        ranks = [
            rank(n, code=6, wrong={"index": 7, "got": 1.0, "expected": 2.0, "count": 1, "from_rank": s}) for n, s in enumerate(senders)
        ]
        title = explain("r", "2 ranks", world(ranks), world(ranks)).title
        assert title.startswith("2 ranks ") and "wrong" in title and not re.search(r"\brank \d", title)


def test_explain_says_seen_1_of_1_when_it_was_not_repeated():
    found = explain("r", "2 ranks", hung())
    assert found.severity is Severity.WARN and re.fullmatch("2 ranks hung, .* 1 of 1 runs", found.title)


PRINTED = {
    "net-plugin-failed": [
        "NCCL error in: NCCLUtils.cpp:93, invalid usage, NCCL version 2.28.9\nLast error:\nFailed to initialize any NET plugin"
    ],
    "socket-interface-wrong": [
        "n4:5:5 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to rail7",
        "n4:5:5 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found",
    ],
    "topology-file-bad": [
        "n4:5:5 [0] graph/xml.cc:330 NCCL WARN Could not open XML topology file /site/rail.xml : No such file or directory"
    ],
    "env-conflict": ["n4:5:5 [0] transport.cc:35 NCCL WARN No transport found for rank 0[60] -> rank 1[70]"],
    "nccl-library-conflict": ["ImportError: /site/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommShrink"],
    "rendezvous-port-in-use": [
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE,"
        " message: address already in use"
    ],
}


@pytest.mark.parametrize(("cause", "lines"), PRINTED.items())
def test_what_one_rank_printed_is_recognised_with_the_words_of_its_own_message(cause, lines):
    failed = world([rank(0, code=1, lines="\n".join(lines).splitlines())])
    found, = fewer_gpus.judge_worlds(ladder(trial(failed, failed, "1 rank")), NOT_RUN, NOT_RUN)
    assert (found.cause, found.severity) == (cause, Severity.BROKEN) and found.status in ("established", "likely")
    assert found.evidence[0].text in "\n".join(lines) and found.evidence[0].source == "rank 0"
    assert (
        ("rail7" in found.title)
        == any("rail7" in line for r in found.remedy for line in (r.text, *r.lines))
        == (cause == "socket-interface-wrong")
    )


@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        (
            "/srv/py cannot run ranks: ImportError: /srv/torch/lib/libtorch_cuda.so: undefined symbol: ncclMemAlloc",
            "nccl-library-conflict",
            "established",
        ),
        ("/srv/py cannot run ranks: ValueError: TORCH_X must be one of A, B", None, None),
    ],
)
def test_an_interpreter_that_cannot_import_torch_is_broken(error, cause, status):
    found = cannot_run(error, ["docker", "exec", "a b", "/srv/py"])
    assert (found.severity, found.title, found.cause, found.status) == (Severity.BROKEN, error, cause, status)
    assert (found.remedy[0].lines == ("docker exec 'a b' /srv/py -c 'import torch.distributed'",)) == (cause is None)


def test_a_message_that_may_echo_does_not_hide_a_rank_that_was_killed():
    echo = "n4:5:5 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4711> failed : Connection refused"
    failed = world([rank(0, code=1, lines=[echo]), rank(1, "signalled", 9)])
    assert explain("r", "2 ranks", failed, failed).cause == "peer-crashed"


def ladder(*rungs, wanted=None, backend="nccl"):
    return Ladder(backend, wanted or list(range(1, len(rungs) + 1)), list(rungs))


def rung(n, made=None, again=None):
    return trial(made or world(n), again, f"{n} ranks")


PAIRS = Pairs(1, [Pair(0, 1, 0, trial())])
SINGLES = Singles({"0": trial(world(1)), "1": trial(world(1))})


def test_fewer_gpus_is_ok_when_everything_passes():
    found = fewer_gpus.judge_worlds(ladder(rung(1), rung(2)), SINGLES, PAIRS)
    assert [f.severity for f in found] == [Severity.OK] and "1 and 2 ranks" in found[0].title


def test_first_failing_world_size_fires_when_three_ranks_hang():
    bad = hung(ranks=3)
    found = fewer_gpus.judge_worlds(ladder(rung(1), rung(2), rung(3, bad, bad), wanted=[1, 2, 3, 4]), SINGLES, PAIRS)
    assert [f.id for f in found] == ["first-failing-world-size"] and found[0].title == "3 ranks hung"


def test_gpu_fails_alone_fires_when_one_gpu_fails_and_names_it():
    bad = world([rank(0, code=1, error="CUDA error: uncorrectable ECC error encountered")])
    found = fewer_gpus.judge_worlds(ladder(rung(1)), Singles({"0": trial(world(1)), "1": trial(bad, bad)}), PAIRS)
    assert [(f.id, f.cause) for f in found] == [("gpu-fails-alone", "gpu-or-link-fault")] and "GPU 1 alone" in found[0].title


def test_pair_fails_fires_when_one_pair_hangs():
    found = fewer_gpus.judge_worlds(ladder(rung(1)), SINGLES, Pairs(2, [Pair(0, 1, 0, trial()), Pair(2, 3, 0, trial(hung(), hung()))]))
    assert [f.title for f in found] == ["GPUs 2 and 3 hung"]


def test_every_pair_fails_is_one_finding_and_each_the_recurrence_of_the_others():
    found = fewer_gpus.judge_worlds(ladder(rung(1)), SINGLES, Pairs(3, [Pair(a, b, 0, trial(hung())) for a, b in ((0, 1), (0, 2), (1, 2))]))
    assert [(f.id, f.severity) for f in found] == [("every-pair-fails", Severity.BROKEN)] and "hung" in found[0].title


def test_pairs_not_finished_fires_when_the_budget_ends_between_pairs():
    found = fewer_gpus.judge_worlds(ladder(rung(1), rung(2)), SINGLES, Pairs(6, [Pair(0, 1, 0, trial())]))
    assert [(f.id, f.severity) for f in found] == [("pairs-not-finished", Severity.UNKNOWN)] and "1 of 6" in found[0].title


def test_ladder_not_finished_fires_when_the_budget_ends_early():
    found = fewer_gpus.judge_worlds(ladder(rung(1), wanted=[1, 2, 3]), SINGLES, PAIRS)
    assert [(f.id, f.severity) for f in found] == [("ladder-not-finished", Severity.UNKNOWN)]
    found = fewer_gpus.judge_worlds(ladder(rung(1), rung(3), wanted=[1, 2, 3]), SINGLES, Gap("not-run"))
    assert [(f.id, f.severity) for f in found] == [("fewer-gpus-pass", Severity.OK)]


def test_a_rehearsal_is_never_health():
    found = fewer_gpus.judge_worlds(ladder(rung(1), rung(2), backend="gloo"), Gap("not-run"), Gap("not-run"))
    assert [f.severity for f in found] == [Severity.UNKNOWN]


def test_a_ladder_that_was_not_run_is_unknown_and_says_why():
    found = fewer_gpus.judge_worlds(Gap("not-run", "not run: busy (pid 4711)"), Gap("not-run"), Gap("not-run"))
    assert [(f.severity, f.title) for f in found] == [(Severity.UNKNOWN, "not run: busy (pid 4711)")]


def ids(found):
    return [(f.id, f.severity.value, f.cause) for f in found]


def test_a_rehearsal_whose_second_control_fails_is_not_all_right():
    assert [f.id for f in transports.judge_transports(arms(backend="gloo"))] == ["rehearsed"]
    found, = transports.judge_transports(arms(backend="gloo", after=hung()))
    assert ids([found])[0][:2] == ("rehearsal-fails", "warn") and re.search("^control again .*hung, .* 1 of 2 runs$", found.title)
    lone, = transports.judge_transports(arms(backend="gloo", shm=hung()))
    assert re.search("^SHM off .*hung, .* 1 of 1 runs$", lone.title)
    assert lone.remedy[0].text != found.remedy[0].text, "this was not repeated; that passed before the arms"


def test_transports_pass_and_the_price_is_named():
    found = transports.judge_transports(arms())
    assert ids(found) == [("transports-pass", "ok", None)] and any(
        "P2P off" in e.text and "13.0 times slower" in e.text for e in found[0].evidence
    )


def test_an_arm_without_effect_is_no_pass():
    assert outcomes(arms()) == {"P2P off": "pass", "SHM off": "no effect", "P2P and SHM off": "pass", "IB off": "not run",
                                           "interface pinned": "pass"}


def test_an_arm_without_a_log_is_no_proof():
    assert outcomes(arms(p2p=world(transports=Gap("absent", "no log"))))["P2P off"] == "no proof"


def test_transport_at_fault_fires_when_the_control_hangs_and_p2p_off_passes():
    found = transports.judge_transports(arms(control=hung(transports=P2P), shm=hung(), pinned=hung(), after=hung()))
    assert ids(found) == [("transport-at-fault", "broken", "p2p-broken-acs-iommu")] and found[0].status == "likely"
    assert (
        [r.who for r in found[0].remedy] == ["the administrator", "you"]
        and "P2P off" in found[0].remedy[1].text
        and "host" not in found[0].remedy[1].text
    )


def test_transport_at_fault_stays_quiet_when_the_arm_that_passes_did_not_act():
    stuck = arms(control=hung(transports=P2P), p2p=world(transports=P2P), shm=hung(), both=hung(), pinned=hung(), after=hung())
    assert ids(transports.judge_transports(stuck)) == [("control-fails", "broken", None)]


@pytest.mark.parametrize("same_as_the_control", [{"shm": world()}, {"after": world()}, {"once": world()}])
def test_transport_at_fault_stays_quiet_when_the_same_passed_without_the_switch(same_as_the_control):
    failing = {"shm": hung(), "both": hung(), "pinned": hung(), "after": hung()}
    once = same_as_the_control.pop("once", None)
    made = arms(control=hung(transports=P2P), **{**failing, **same_as_the_control})
    if once:
        made = dataclasses.replace(made, control=trial(made.control.world, once, "control"))
    found = transports.judge_transports(made)
    assert [f.cause for f in found] == [None] and found[0].id == "control-fails"
    assert transports.decide(transports_judge_control.in_words(made, False)).kind == "inconclusive" and not found[0].evidence[
        -1
    ].text.startswith(("inconclusive", "not the "))


def test_transport_at_fault_stays_quiet_when_two_different_switches_both_help():
    found = transports.judge_transports(arms(control=hung(transports=P2P), shm=hung(), after=hung()))
    assert ids(found) == [("control-fails", "broken", None)] and any(e.text == "interface pinned: pass" for e in found[0].evidence)


def test_transport_at_fault_is_only_possible_when_the_control_never_connected():
    found = transports.judge_transports(
        arms(control=hung(transports={}), p2p=hung(), both=hung(), pinned=hung(), after=hung(), shm=world(transports=P2P))
    )
    assert ids(found) == [("transport-at-fault", "broken", "shm-too-small")] and found[0].status == "possible"


def test_transport_at_fault_says_that_lo_is_for_one_host():
    found = transports.judge_transports(arms(control=hung(), p2p=hung(), shm=hung(), both=hung(), after=hung()))
    assert found[0].cause == "socket-interface-wrong" and "host" in found[0].remedy[-1].text


def test_switched_off_already_fires_when_the_control_runs_without_p2p():
    found = transports.judge_transports(arms(control=world(transports=SHM, taken=["NCCL_P2P_DISABLE=1"], slow=13.0)))
    assert ids(found)[1] == ("switched-off-already", "note", None) and found[1].remedy[0].lines == ("unset NCCL_P2P_DISABLE",)


def test_switched_off_already_stays_quiet_when_the_variable_leaves_it_on():
    assert ids(transports.judge_transports(arms(control=world(taken=["NCCL_P2P_DISABLE=0", "NCCL_DEBUG=INFO"])))) == [
        ("transports-pass", "ok", None)
    ]


def test_control_fails_keeps_a_message_that_says_more_than_the_arms():
    printed = [
        "w7:55:60 [1] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens9",
        "w7:55:60 [1] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    ]
    bad = world(code=1, lines=printed, transports={})
    found = transports.judge_transports(arms(control=bad, p2p=bad, shm=bad, both=bad, after=bad))
    assert found[0].cause == "socket-interface-wrong" and found[0].status == "established"


def test_fallback_fails_is_a_note_when_the_control_passes():
    full = world(code=1, error=MESSAGES["shm-too-small"], transports=SHM)
    assert ids(transports.judge_transports(arms(p2p=full))) == [("transports-pass", "ok", None), ("fallback-fails", "note", None)]


def test_control_changed_is_inconclusive():
    found = transports.judge_transports(arms(after=hung()))
    assert ids(found) == [("control-changed", "unknown", None)] and found[0].title.endswith("1 failure in 2 runs)")
    assert any(re.match(r"rank 0: .*\bdeadline\b", e.text) for e in found[0].evidence)


def test_control_changed_fires_when_arms_that_share_nothing_come_and_go():
    made = arms()
    once = {
        a.name: dataclasses.replace(a, trial=trial(hung(), world(), a.name)) for a in made.arms if a.name in ("P2P off", "interface pinned")
    }
    told = [
        transports.judge_transports(
            dataclasses.replace(made, arms=[once[a.name] if a.name in names else a for a in made.arms], control_after=Gap("not-run"))
        )
        for names in (["P2P off", "interface pinned"], ["P2P off"])
    ]
    assert ids(told[0]) == [("control-changed", "unknown", None)] and all(name in told[0][0].title for name in once)
    assert ids(told[1]) == [("transports-pass", "ok", None), ("fallback-fails", "note", None)]


def test_the_runbook_s_own_death_is_no_failure_of_the_control():
    assert ids(transports.judge_transports(arms(after=world(outcome="lost", code=None)))) == [("transports-pass", "ok", None)]


def test_an_arm_that_the_budget_did_not_let_repeat_names_nothing():
    made = arms(control=hung(transports=P2P), shm=hung(), pinned=hung(), both=hung(), after=hung())
    first = made.arms[0].trial.world
    untimed = dataclasses.replace(first, request=dataclasses.replace(first.request, timed=False))
    made = dataclasses.replace(made, arms=[dataclasses.replace(made.arms[0], trial=trial(untimed)), *made.arms[1:]])
    assert outcomes(made)["P2P off"] == "passed 1 of 1" and ids(transports.judge_transports(made)) == [("control-fails", "broken", None)]


def test_one_gpu_is_skipped_and_busy_is_unknown():
    assert ids(transports.judge_transports(Gap("unsupported", "there is one GPU, but a transport test needs two ranks"))) == [
        ("transports-not-run", "skipped", None)
    ]
    assert ids(transports.judge_transports(Gap("not-run", "busy"))) == [("transports-not-run", "unknown", None)]


def test_an_arm_acts_after_a_control_that_never_connected_only_if_its_transport_is_not_used():
    stuck = arms(control=hung(transports={}), p2p=world(transports=NET), after=hung())
    assert outcomes(stuck)["P2P off"] == "pass"
    assert outcomes(arms(control=hung(transports={}), p2p=world(transports=P2P)))["P2P off"] == "no effect"


def test_what_was_tried_stands_beside_the_fix_with_its_price():
    found = transports.judge_transports(arms(control=hung(transports=P2P), shm=hung(), pinned=hung(), after=hung()))[0]
    assert found.tried.count("hung") == 2 and "P2P off: passed" in found.tried and "GB/s" in found.tried
    assert (
        transports.judge_transports(arms(control=hung(), p2p=hung(), shm=hung(), both=hung(), pinned=hung(), after=hung()))[0].tried == ""
    )
