"""The user's own sync from outside: real stacks of TRL, OpenRLHF and verl, as py-spy 0.4.3 told them on the CPU (Python 3.11, 2026-11-22).

Theirs: sender and receiver; ours: Gloo in the place of NCCL, the engine's loop around its receiver, and load_weights."""
from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from live_worlds import free_port
from nccl_runbook.causes.tables import table
from nccl_runbook.hang.live.facts import Frame, Stack
from nccl_runbook.look import own_sync
from nccl_runbook.sync import judge as weight_sync
from nccl_runbook.sync.facts import ALL_OF_THEM, OwnSync
from nccl_runbook.sync.judge import phase_of

SEEN = json.loads((Path(__file__).parent / "data" / "own-sync-stacks.json").read_text())
PACKAGES = "/opt/torch/lib/python3.11/site-packages/"  # an environment may be named so


@pytest.mark.parametrize(
    "seen", SEEN["stacks"], ids=lambda s: f"{s['from'].split()[0]} {s['process']} {s['phase']} {s['frames'][0].split()[0]}"
)
def test_stacks_of_real_frameworks_are_in_their_phase(seen):
    assert phase_of([frame.replace("~", PACKAGES) for frame in seen["frames"]]) == seen["phase"]


def test_every_framework_s_trainer_and_engine_are_found():
    for name in ("TRL", "OpenRLHF", "verl"):
        found = {s["process"] for s in SEEN["stacks"] if s["from"].startswith(name) and s["phase"]}
        assert {"trainer", "engine"} <= found, name


@pytest.mark.parametrize(
    ("phase", "frames"),
    [
        ("control", (f"Condition.wait {PACKAGES}../threading.py", "Client.update_weights /home/u/train.py")),
        ("control", ("Condition.wait /workspace/venv/lib/python3.11/threading.py", "Client.update_weights /home/u/train.py")),
        ("other", ("Client.compute /home/u/socket-lab/train.py", "Client.update_weights /home/u/socket-lab/train.py")),
        ("", ("DDP._sync_params /opt/torch/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", "main /home/u/train.py")),
        ("", ("Client.update_weights_of_loss.compute /home/u/train.py",)),
        (
            "wire",
            (
                "Stream.synchronize x/torch/cuda/streams.py",
                "packed_nccl_broadcast_producer x/vllm/distributed/weight_transfer/packed_tensor.py",
                "f.<locals>.send_weights x/y.py",
            ),
        ),
        ("load", ("copy x/y.py", "finalize_layerwise_reload x/layerwise.py", "Worker.finish_weight_update x/gpu_worker.py")),
    ],
)
def test_a_class_a_folder_or_an_environment_changes_no_phase(phase, frames):
    assert phase_of(frames) == phase


def test_a_driver_that_only_waits_and_a_message_under_way_are_told_apart_from_the_wire():
    """OpenRLHF sends each tensor's name through Ray: half of the trainer's time in its broadcast the engine is not there yet."""
    rounds = [(at_s, {1: driver, 2: trainer, 3: engine}) for at_s, driver, trainer, engine in SEEN["openrlhf_rounds"]]
    whole, = own_sync.syncs_of(ALL_OF_THEM, own_sync.together(rounds))
    trainer, = own_sync.syncs_of("pid 2", [(at_s, phases[2]) for at_s, phases in rounds])
    assert set(whole.phases) == set(trainer.phases) == {"control", "wire"} and sum(whole.phases.values()) == pytest.approx(1.65)
    assert (whole.phases["wire"], trainer.phases["wire"]) == (pytest.approx(0.62), pytest.approx(0.86))
    assert weight_sync.own_sync(OwnSync([whole, trainer]))[0].remedy[0].text == table("sync/choice")["own"]["advice"]["control"]
    unknown = [(at_s, {**phases, 3: ""}) for at_s, phases in rounds]
    assert (
        own_sync.syncs_of("", own_sync.together(unknown))[0].phases == trainer.phases
    ), "near miss: an engine of unknown names says nothing"


def test_one_sends_while_another_thread_of_it_waits_for_the_answer():
    assert own_sync.joint(("control", "wire"), own_sync.IN_ONE) == "wire" and own_sync.joint(("control", "wire")) == "control"


def stack(*functions: str) -> list[Stack]:
    return [Stack(7, "MainThread", True, False, [Frame(name, "/x/y.py", 1) for name in functions])]


@pytest.mark.parametrize(
    ("half", "told"),
    [
        (stack("Parser.parse"), ["pack"]),
        (stack("Parser.parse", "<module>"), ["pack", ""]),
        ([], ["pack", ""]),
        (stack("x", "Thread._bootstrap"), ["pack", ""]),
    ],
)
def test_half_a_stack_is_no_end_of_a_sync(half, told):
    samples = []
    own_sync._add(samples, 1.0, stack("pack_tensors", "Client.send_weights", "<module>"), phase_of)
    own_sync._add(samples, 1.1, half, phase_of)
    assert [phase for _, phase in samples] == told
    own_sync._add(samples, 1.2 + own_sync.APART_S, stack("Parser.parse"), phase_of)
    assert samples[-1][1] == "", "an interpreter inside another program has no such frame at all"


def test_what_lies_between_two_tensors_is_within_one_sync():
    samples = [(0.0, "wire"), (0.1, ""), (0.2, ""), (0.3, "wire"), (0.4, ""), (0.8, ""), (1.0, "load"), (5.0, ""), (9.0, "load")]
    assert [s.phases for s in own_sync.syncs_of("pid 7", samples)] == [{"wire": 0.1, "other": 0.2}, {"load": 0.0}, {"load": 0.0}]


KNOWN = {"pause": 0.8, "gather": 0.6, "wire": 1.6, "load": 1.0}


def watched(python: list[str], backend: str) -> tuple[OwnSync, list[dict[str, float]]]:
    """What stacks say of the job's one sync, and what its own pause_trace() says, by rank."""
    port = free_port()
    job = [*python, str(Path(__file__).parent / "own_sync_job.py")]
    ranks = [subprocess.Popen([*job, str(rank), str(port), backend, *map(str, KNOWN.values())], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    try:
        for rank in ranks:
            assert "there\n" in rank.stdout
        threading.Timer(0.5, lambda: [(r.stdin.write("\n"), r.stdin.flush()) for r in ranks]).start()
        seen = own_sync.collect([r.pid for r in ranks], sum(KNOWN.values()) + 2.0, phase_of)
        printed = [r.communicate(timeout=30)[0].partition("NCCL_GUARD ")[2] for r in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert isinstance(seen, OwnSync), seen
    return seen, [json.loads(line.splitlines()[0])["data"] for line in printed]


def check_phases(seen: OwnSync, said: list[dict[str, float]]) -> None:
    """Both ways within a third of a second of what the job did."""
    whole, = [s for s in seen.syncs if s.who == ALL_OF_THEM]
    assert {"control": 0.0, **whole.phases} == {p: pytest.approx(s, abs=0.35) for p, s in {"control": 0.0, **KNOWN}.items()}, (whole, said)
    assert said[0] == {p: pytest.approx(s, abs=0.35) for p, s in KNOWN.items()}, (whole, said)
    assert weight_sync.own_sync(seen)[0].title.endswith(" wire")


def test_phases_of_a_real_sync_are_those_that_its_own_clock_tells():
    check_phases(*watched([sys.executable], "gloo"))
