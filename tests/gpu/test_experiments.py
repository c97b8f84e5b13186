"""03 and 04 on real GPUs: what is planted in the environment or in a rank is named; the log proves that an arm did nothing; twelve
worlds."""
from __future__ import annotations

import time

import pytest
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.machine import ask_nvml as nvml
from nccl_runbook.machine.link_limits import limit
from nccl_runbook.messages.printed.failed_world import explain
from nccl_runbook.search.halving import halve
from nccl_runbook.worlds import ask_arms as arms, ask_pairs as arms_ask_pairs, judge_transports as transports

pytestmark = pytest.mark.gpu
HARMLESS = {
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_RETRY_CNT": "7",
    "NCCL_SOCKET_NTHREADS": "2",
    "NCCL_CROSS_NIC": "1",
    "NCCL_IB_TC": "106",
    "NCCL_IB_SL": "1",
    "NCCL_RAS_ENABLE": "1",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "FI_PROVIDER": "tcp",
    "UCX_TLS": "tcp",
    "NCCL_IB_AR_THRESHOLD": "8192",
}


def every(engine):
    return list(range(engine.cuda_count()))


def judged(engine, monkeypatch, **env):
    engine.close()  # the next warm process starts with these
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    made = arms.collect(engine, every(engine), 240, halve)
    return made, transports.judge_transports(made)


def test_the_bandwidth_is_most_of_what_the_links_carry(on_gpus):
    made = arms.collect(on_gpus, every(on_gpus), 120, halve)
    bound = limit(nvml.links(), made.control.world.transports)
    if bound is None:
        pytest.skip("no limit is known for these GPUs")
    assert 0.4 < made.control.world.busbw_gb_per_s("all_reduce") / bound[1] < 1.1


@pytest.mark.gpu(beside=True)
def test_one_bad_variable_among_twelve_is_named(on_gpus, monkeypatch):
    made, found = judged(on_gpus, monkeypatch, **HARMLESS, NCCL_NET="NoSuchNet")
    assert [(f.id, f.status) for f in found] == [("variable-at-fault", "established")] and "NCCL_NET=NoSuchNet" in found[0].title
    assert made.guilty.asked <= 10


def test_p2p_that_the_environment_forbids_is_named_with_its_price(on_gpus, monkeypatch):
    made, found = judged(on_gpus, monkeypatch, NCCL_P2P_LEVEL="LOC")
    if not made["clean"].transports.keys() - {"SHM/direct/direct"}:
        pytest.skip("these GPUs have no P2P")
    assert "environment-costs-bandwidth" in {f.id for f in found} and list(made.guilty.variables) == ["NCCL_P2P_LEVEL"]


@pytest.mark.gpu(beside=True)
def test_a_corrupting_rank_is_named(on_gpus):
    args = ["--ops", arms_ask_pairs.OPS, "--sizes", "4,16777216", "--repeats", "1", "--backend", "nccl", "--fault", "corrupt@1"]
    world = on_gpus.run(WorldRequest("corrupt", "check.py", every(on_gpus), args))
    assert "sent by rank 1" in explain("rank", "ranks", world, world).title


@pytest.mark.gpu(beside=True)
def test_an_algorithm_that_was_used_anyway_is_no_pass(on_gpus):
    two = {"ring": {"NCCL_ALGO": "Ring"}, "ring, again": {"NCCL_ALGO": "Ring"}}
    worlds = [on_gpus.run(arms.request(name, [0, 1], env, False, 20.0)) for name, env in two.items()]
    assert all(w.passed and w.algorithms for w in worlds)
    assert {k for k in worlds[0].algorithms if k.startswith("algo")} == {"algo RING"}


def test_twelve_worlds_take_at_most_twenty_four_seconds_and_a_trial_three(on_gpus):
    if on_gpus.cuda_count() < 4:
        pytest.skip("needs four GPUs")
    args = ["--ops", "all_reduce", "--sizes", "4,1024,4096,16384,65536", "--repeats", "0", "--backend", "nccl", "--leave"]
    twelve = [
        WorldRequest(f"variant {n}", "check.py", every(on_gpus), args, {"NCCL_BENCH_VARIANT": str(n)}, timed=False) for n in range(12)
    ]
    on_gpus.run(twelve[0])
    began = time.monotonic()
    assert all(w.passed for w in on_gpus.run_in_turn(twelve)) and time.monotonic() - began < 24
    began = time.monotonic()
    args = ["--ops", "all_reduce", "--sizes", "4,16777216", "--repeats", "5", "--leave"]
    assert on_gpus.run(WorldRequest("tried by hand", "check.py", every(on_gpus), args)).passed and time.monotonic() - began < 3.5
