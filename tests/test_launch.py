"""The engine with real Gloo ranks: how worlds end, and that nothing outlives whatever is killed."""
from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
from nccl_runbook.core.secret_values import MASK
from nccl_runbook.environment.read import request
from nccl_runbook.launch import engine as engine_module
from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.shell_line import shell_line
from nccl_runbook.launch.warm_link import EngineError, WarmLink, environment
from nccl_runbook.messages.printed.failed_world import explain, rank_line
from processes import ROOT, children, gone, start_time

# of the job: that of our .venv puts its own libraries before those that PYTHONPATH names
JOBS = [sys._base_executable]


def check(name="world", ranks=2, fault="", deadline_s=20.0, env=None, ops="barrier,all_reduce", extra=()):
    args = ["--ops", ops, "--sizes", "4,65536", "--repeats", "1", *(["--fault", fault] if fault else []), *extra]
    return WorldRequest(name, "check.py", [None] * ranks, args, env or {}, deadline_s)


def test_a_healthy_world_passes_and_every_operation_is_reported(engine):
    world = engine.run(check(ops="barrier,all_reduce,broadcast,all_gather,send_recv"))
    assert world.passed and world.started == "fork" and [r.outcome for r in world.ranks] == ["exited", "exited"]
    assert [(e["op"], e["size_bytes"]) for e in world.ranks[1].named("op")] == [
        ("barrier", 0), *((op, s) for op in ("all_reduce", "broadcast", "all_gather", "send_recv") for s in (4, 65536))]
    assert world.busbw_gb_per_s("all_reduce") > 0
    assert isinstance(world.nccl_path, Gap) and isinstance(world.transports, Gap)


def test_worlds_run_at_the_same_time(engine):
    engine.software()
    worlds = engine.run_all([check(f"w{i}", fault="skip@1", deadline_s=4.0) for i in range(3)])
    begun = [[e["t"] for r in w.ranks for e in r.named("hello")] for w in worlds]
    assert all(w.hung for w in worlds) and max(map(max, begun)) - min(map(min, begun)) < 4.0, "one after another would be a deadline apart"


def test_a_world_that_leaves_its_group_as_it_is_ends_with_every_rank_and_its_own_code(engine):
    worlds = [engine.run(check(f"leave {n}", ranks=4, fault=f, extra=["--leave"])) for n, f in enumerate(["", "", "", "corrupt@1"])]
    assert (
        [w.passed for w in worlds] == [True, True, True, False]
        and worlds[3].ended == "wrong values"
        and [r.code for r in worlds[3].ranks] == [6] * 4
    )
    assert all(r.named("bye") for w in worlds for r in w.ranks)


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_gather", "send_recv"])
def test_corrupted_data_is_seen_although_the_collective_ends_well(engine, op):
    rank = 0 if op == "broadcast" else 1
    world = engine.run(check(fault=f"corrupt@{rank}", ops=op))
    assert not world.passed and world.wrong
    assert {e["wrong"]["from_rank"] for e in world.wrong} == {None if op == "all_reduce" else rank}


def test_a_value_that_is_no_number_is_seen_and_can_be_written_down():
    """A record is JSON, which has no NaN."""
    code = (
        "import check, json, torch; o = check.Operation('broadcast', 64, torch.device('cpu'), 0, 1, False); o.fill(0); o.send[3] ="
        " float('nan'); print(json.dumps(o.wrong(), allow_nan=False))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "lib/nccl_runbook/ranks", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"index": 3, "got": "nan", "expected": 3.0, "count": 1, "from_rank": 0}


def test_a_killed_rank_is_told_from_its_victims(engine):
    world = engine.run(check(fault="kill@1"))
    assert (world.ranks[1].outcome, world.ranks[1].code) == ("signalled", signal.SIGKILL)
    assert (world.ranks[0].outcome, world.ranks[0].code) == ("exited", 1)


def test_a_stopped_rank_ends_at_the_deadline_with_its_state_and_its_peers_stack(engine):
    world = engine.run(check(fault="stop@1", deadline_s=4.0))
    assert world.hung and world.ranks[1].state.startswith("T") and "check.py" in world.ranks[0].stack
    assert world.wall_s < 4.0 + 10.0


def test_a_rank_that_ignores_sigterm_is_killed(engine):
    world = engine.run(check(fault="ignore-term@1", deadline_s=4.0))
    assert (world.ranks[1].outcome, world.ranks[1].code) == ("timed-out", signal.SIGKILL) and "time.sleep" not in world.ranks[0].stack


def test_a_flood_is_cut_in_the_middle_and_counted(engine):
    world = engine.run(check(fault="flood@1", deadline_s=60))
    flooded = world.ranks[1]
    assert world.passed and flooded.dropped_bytes > 50e6 and Path(flooded.log).stat().st_size < 5e6
    text = Path(flooded.log).read_text()
    assert (
        "flood 00000000" in text and "flood 01048575" in text and "flood 00524288" not in text and re.search(r"\d{8}.* left out", text)
    ), "the count stands in the gap"


def test_an_exception_is_an_event_and_the_traceback_is_in_the_log(engine):
    world = engine.run(check(fault="raise@1"))
    assert world.ranks[1].first("error")["text"].endswith("rank 1") and "RuntimeError" in world.ranks[1].last_lines[-1]


def test_a_rank_that_leaves_early_shows_its_exit_code(engine):
    assert engine.run(check(fault="exit@1")).ranks[1].code == 3


def test_environment_of_one_world_does_not_leak_into_the_next(own_engine):
    broken = own_engine.run(check(env={"GLOO_SOCKET_IFNAME": "nothing9"}))
    assert not broken.passed and own_engine.run(check()).passed
    assert len(own_engine._links) == 1  # GLOO_* may differ between forks of one warm process


def test_a_variable_that_acts_at_import_gets_a_warm_process_of_its_own(own_engine):
    assert own_engine.run(check(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})).passed and own_engine.run(check()).passed
    assert len(own_engine._links) == 2


def test_the_shell_line_runs_as_printed(engine):
    world = engine.run(check(env={"NCCL_DEBUG": "WARN"}))
    assert world.shell_line.startswith("NCCL_DEBUG=WARN timeout")
    done = subprocess.run(["bash", "-c", world.shell_line], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\[rank1\] op op=all_reduce size_bytes=65536", done.stdout)


def test_secrets_reach_neither_log_nor_events(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "canary-0123456789")
    with Engine([sys.executable], tmp_path / "logs", Redactor(os.environ)) as engine:
        world = engine.run(check(extra=["--backend", "canary-0123456789"]))  # argparse repeats what it does not know
    everything = repr(world.ranks) + "".join(p.read_text() for p in (tmp_path / "logs").rglob("*.log"))
    assert f"invalid choice: '{MASK}" in everything and "canary-0123456789" not in everything


def test_no_such_interpreter_and_one_without_torch_are_one_sentence(tmp_path):
    with pytest.raises(EngineError, match=os.strerror(errno.ENOENT)):
        Engine([str(tmp_path / "python9")], tmp_path, Redactor({})).software()
    with pytest.raises(EngineError, match="'torch'"):
        Engine([sys.executable, "-S", "-I"], tmp_path, Redactor({})).software()


def test_a_log_that_cannot_be_written_costs_neither_the_world_nor_the_time(tmp_path):
    (tmp_path / "logs").write_text("a file is in the way")
    with Engine([sys.executable], tmp_path / "logs", Redactor({})) as engine:
        engine.software()
        began = time.monotonic()
        world = engine.run(WorldRequest("bad option", "check.py", [None], ["--ops", "no-such-op"], deadline_s=120))
    assert time.monotonic() - began < 60 and world.ranks[0].outcome == "exited" and world.ranks[0].code == 1
    assert any(line.startswith("[runbook: ") and os.strerror(errno.ENOTDIR) in line for line in world.ranks[0].last_lines)


def test_a_process_that_ends_without_closing_its_engine_leaves_no_folder(tmp_path):
    (tmp_path / "tmp").mkdir()
    source = (
        f"import sys; sys.path[:0] = {sys.path!r}\nfrom pathlib import Path\nfrom nccl_runbook.launch.engine import Engine\n"
        f"from nccl_runbook.core.redact import Redactor\nEngine([sys.executable], Path({str(tmp_path)!r}), Redactor({{}})).software()"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert not list((tmp_path / "tmp").glob("nccl-runbook-*"))


def test_a_torch_whose_libraries_are_missing_says_which(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import ctypes\nctypes.CDLL('libcudart-of-nobody.so.12')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"OSError: libcudart-of-nobody\.so\.12: "):
        Engine(JOBS, tmp_path / "logs", Redactor({})).software()


def test_an_interpreter_that_is_killed_while_it_imports_torch_leaves_no_folder(tmp_path, monkeypatch):
    """It reads no request then, so closing it ends in SIGKILL: a Ctrl-C in the first seconds of a run once left its folder."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w')\ntime.sleep(600)\n")
    start_s = 1.0
    while not (tmp_path / "begun").exists():  # it takes as long as this machine needs
        start_s *= 2
        with pytest.raises(EngineError, match="answer"):
            WarmLink(JOBS, environment({"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}), print, start_s)
    assert not list((tmp_path / "tmp").iterdir())


def cancelled_s(logs: Path) -> float:
    """Seconds from the cancel of a hanging world to its end."""
    asked: list[float] = []
    with Engine([sys.executable], logs, Redactor({})) as engine:
        engine.software()
        threading.Timer(1.0, lambda: (asked.append(time.monotonic()), engine.cancel())).start()
        world = engine.run(check(fault="skip@0", deadline_s=60))
        ended = time.monotonic()
    assert {r.outcome for r in world.ranks} == {"signalled"}
    return ended - asked[0]


def test_cancel_ends_the_ranks_within_a_second(tmp_path):
    took = [cancelled_s(tmp_path / "logs")]
    while len(took) < 4 and min(took) >= 1.0:  # other work on this machine must not decide
        took.append(cancelled_s(tmp_path / "logs"))
    assert min(took) < 1.0, took


def test_an_interrupted_cell_leaves_no_rank_at_work(own_engine):
    """What a reader of a notebook does to a trial that takes too long."""
    own_engine.software()
    warm, below = children(os.getpid()), {}

    def interrupt():
        while len(below) < 2:
            below.update({pid: start_time(pid) for pid in children(os.getpid()) if pid not in warm})
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        own_engine.run(check(fault="skip@0", deadline_s=300))
    assert gone(below)
    assert own_engine.run(check(deadline_s=60)).passed, "the engine goes on"


OWNER = """
import sys, os
from pathlib import Path
from nccl_runbook.launch.engine import Engine
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.core.redact import Redactor
engine = Engine([sys.executable], Path(sys.argv[1]), Redactor({}))
engine.software()
print("ready", flush=True)
world = engine.run(WorldRequest("hang", "check.py", [None] * 3, ["--fault", "skip@0"], {}, 300.0))
print([r.outcome for r in world.ranks], flush=True)
"""


def wait_for_ranks(pid: int) -> dict[int, str | None]:
    """Identities of the warm process and its three ranks, once they are all there."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        below = children(pid)
        if len(below) >= 4:
            return {p: start_time(p) for p in below}
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


@pytest.fixture
def owner(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT / "lib")})
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_owner(owner, number):
    assert owner.stdout.readline() == "ready\n"
    ours = wait_for_ranks(owner.pid)
    owner.send_signal(number)
    assert gone(ours, within_s=5.0)


def test_nothing_outlives_a_killed_warm_process_and_the_world_is_lost(owner):
    assert owner.stdout.readline() == "ready\n"
    ours = wait_for_ranks(owner.pid)
    os.kill(children(owner.pid)[0], signal.SIGKILL)
    assert gone(ours, within_s=5.0)
    assert owner.stdout.readline() == "['lost', 'lost', 'lost']\n"


def test_nothing_outlives_an_owner_killed_while_its_warm_process_is_stopped(owner):
    assert owner.stdout.readline() == "ready\n"
    ours = wait_for_ranks(owner.pid)
    os.kill(children(owner.pid)[0], signal.SIGSTOP)  # it cannot see the closed pipe: PR_SET_PDEATHSIG has to do it
    owner.kill()
    assert gone(ours, within_s=5.0)


def test_a_new_warm_process_follows_a_killed_one(own_engine):
    assert own_engine.run(check()).passed
    link = next(iter(own_engine._links.values()))
    link.process.kill()
    link.ended.wait(5)
    assert own_engine.run(check()).passed


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Engine([sys.executable], tmp_path / "logs", Redactor({})) as engine:
        assert engine.run(check()).passed
        assert [p.stat().st_mode & 0o777 for p in tmp_path.glob("nccl-runbook-*")] == [0o700]
    assert not list(tmp_path.glob("nccl-runbook-*"))


def test_one_rank_may_have_its_own_environment_and_preload(engine, tmp_path):
    """The C library under a name of its own stands for a second libnccl: preloaded in rank 0 alone, which is started afresh for it."""
    real = next(p for p in Path("/proc/self/maps").read_text().split() if p.startswith("/") and "/libc.so" in p)
    (tmp_path / "libnccl.so.2").symlink_to(real)
    asked = json.dumps({**json.loads(request()), "mapped": "/libc.so", "copies": []})
    own = {0: {"LD_PRELOAD": str(tmp_path / "libnccl.so.2"), "NCCL_DEBUG": "INFO"}, 1: {"NCCL_ALGO": None}}
    world = engine.run(
        WorldRequest("own", "environment.py", [None, None], [asked], {"NCCL_ALGO": "Ring", "NCCL_DEBUG": None}, 60.0, of_ranks=own)
    )
    first, second = (r.first("environment") for r in world.ranks)
    assert first["preloaded"] == [os.path.realpath(real)] and second["preloaded"] == []
    assert (first["variables"]["NCCL_DEBUG"], first["variables"]["NCCL_ALGO"]) == ("INFO", "Ring")
    assert not {"NCCL_DEBUG", "NCCL_ALGO"} & set(second["variables"])
    again = subprocess.run(["bash", "-c", world.shell_line], cwd=ROOT, capture_output=True, text=True, timeout=120)
    said = {e["variables"]["RANK"]: e for e in map(json.loads, re.findall(r'\{"event": "environment".*', again.stdout))}
    assert [e["preloaded"] for e in (said["0"], said["1"])] == [first["preloaded"], []], "the printed line does the same"
    kept = ("NCCL_DEBUG", "NCCL_ALGO")
    assert [{n: e["variables"].get(n) for n in kept} for e in (said["0"], said["1"])] == [
        {n: e["variables"].get(n) for n in kept} for e in (first, second)
    ]


def test_ranks_of_an_environment_without_the_visibility_still_get_the_gpus_that_were_asked_for(engine):
    asked = json.dumps({**json.loads(request()), "mapped": "/libc.so", "copies": []})
    bare = {"CUDA_VISIBLE_DEVICES": None}
    world = engine.run(WorldRequest("bare", "environment.py", [2, 3], [asked], bare, 60.0))
    shown = [r.first("environment")["variables"].get("CUDA_VISIBLE_DEVICES") for r in world.ranks]
    assert shown == ["2,3"] * 2
    assert "CUDA_VISIBLE_DEVICES=2,3 " in world.shell_line, "and the printed line does the same"


def test_behind_a_prefix_a_preload_is_fresh_whatever_our_side_has(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/x/libnccl.so.2")
    asked = WorldRequest("own", "environment.py", [None, None], of_ranks={0: {"LD_PRELOAD": "/x/libnccl.so.2"}, 1: {"NCCL_ALGO": "Ring"}})
    fresh = [
        [Engine(prefix, None, Redactor({}))._own(asked, rank)["fresh"] for rank in (0, 1)]
        for prefix in ([sys.executable], ["docker", "exec", "-i", "a", "python3"])
    ]
    assert fresh == [[False, False], [True, False]]


@pytest.mark.parametrize(
    ("prefix", "python"),
    [
        ("docker exec -i python3.11 /opt/rl/bin/py", "/opt/rl/bin/py -u"),
        ("docker exec -i python3.11 python3", "python3 -u"),
        ("python3", "python3 -u"),
        ("conda run -n python --no-capture-output python", "python -u"),
        ("docker exec -i a python3 -X dev -I", "python3 -X dev -I -u"),
    ],
)
def test_a_container_may_be_named_like_an_interpreter(prefix, python):
    line = shell_line(prefix.split(), WorldRequest("own", "check.py", [None, None], of_ranks={1: {"NCCL_ALGO": "Ring"}}))
    assert f'exec "$@"\' sh {python} lib/nccl_runbook' in line


def launched(environments: list[dict], *args: str) -> list[subprocess.Popen]:
    check = [sys.executable, str(ROOT / "lib/nccl_runbook/ranks/check.py"), "--ops", "all_reduce", "--sizes", "4", "--repeats", "1"]
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_"))}
    return [
        subprocess.Popen([*check, *(a.format(**env) for a in args)], env={**bare, **env}, stdout=subprocess.PIPE, text=True)
        for env in environments
    ]


# told at exit whether the group was taken down, and whether the interpreter ended as it usually does
TEARDOWN = """
import atexit, os, runpy, sys
import torch.distributed as dist
atexit.register(lambda: print("exit handlers ran"))
whole = dist.destroy_process_group
dist.destroy_process_group = lambda: (whole(), print("taken down"))
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", NCCL_RUNBOOK_STORE_FILE=sys.argv.pop(1))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "ended"),
    [
        (("--ops", "all_reduce", "--sizes", "4", "--backend", "gloo"), 0, False),
        (("--ops", "all_reduce", "--sizes", "4", "--fault", "corrupt@0"), 6, False),
        (("--ops", "none"), 1, True),
    ],
)
def test_a_rank_over_gloo_ends_without_a_teardown_that_can_hang_or_abort(tmp_path, arguments, code, ended):
    check = str(ROOT / "lib/nccl_runbook/ranks/check.py")
    said = subprocess.run(
        [sys.executable, "-c", TEARDOWN, str(tmp_path / "store"), check, *arguments], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, "exit handlers ran" in said.stdout, "taken down" in said.stdout) == (code, ended, False), (
        said.stdout + said.stderr
    )
    assert ended or "bye right=" in said.stdout


@pytest.mark.parametrize("launcher", ["srun", "deepspeed"])
def test_check_runs_as_it_is_under_other_launchers(launcher):
    """What these launchers give a process: Slurm's variables and no meeting point; DeepSpeed's variables and --local_rank."""
    if launcher == "srun":
        job = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "4711", "SLURM_STEP_NODELIST": "localhost"}
        ranks = launched([{**job, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(2)])
    else:
        job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29712"}
        ranks = launched([{**job, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(2)], "--local_rank={LOCAL_RANK}")
    said = [r.communicate(timeout=60)[0] for r in ranks]
    assert [r.returncode for r in ranks] == [0, 0] and "[rank1] op op=all_reduce" in said[1], said


@pytest.mark.parametrize(("number", "outcome"), [(signal.SIGSTOP, "late"), (signal.SIGKILL, "lost")])
def test_a_late_rank_is_told_from_one_whose_warm_process_died_and_neither_is_remembered(own_engine, monkeypatch, number, outcome):
    monkeypatch.setattr(engine_module, "KILL_ALLOWANCE_S", 0.5)
    own_engine.software()
    warm = own_engine._link({}).process
    timer = threading.Timer(1.0, warm.send_signal, (number,))
    timer.start()
    world = own_engine.run(check(fault="skip@1", deadline_s=4.0))
    assert {r.outcome for r in world.ranks} == {outcome} and world.ended == "lost" and world.wall_s >= 1.0 and own_engine._running == {}
    assert explain("r", "2 ranks", world).evidence[0].text == rank_line(world.ranks[0])
    warm.kill()


def test_a_report_that_comes_after_its_world_was_given_up_is_not_heard(own_engine, monkeypatch):
    monkeypatch.setattr(engine_module, "KILL_ALLOWANCE_S", 0.0)
    own_engine.software()
    link = own_engine._link({})
    world = own_engine.run(check(fault="skip@1", deadline_s=0.5))
    assert {r.outcome for r in world.ranks} == {"late"} and own_engine._running == {}
    monkeypatch.undo()
    assert own_engine.run(check()).passed and own_engine._link({}) is link, "the reports of the first came in meanwhile"


def test_an_engine_ends_what_runs_when_it_is_told_to_stop(tmp_path):
    asked = threading.Event()
    with Engine([sys.executable], tmp_path / "logs", Redactor({}), stopped=lambda: "asked" * asked.is_set()) as engine:
        assert engine.run(check()).passed
        asked.set()
        world = engine.run(check(fault="skip@1", deadline_s=60.0))
    assert {r.outcome for r in world.ranks} == {"signalled"} and world.wall_s < 30


SHARES = """import mmap, os
for number in (0, 1):
    file = open("/dev/shm/torch_%d_%d" % (os.getpid(), number), "w+b")
    file.truncate(4096)
os.mapped = mmap.mmap(file.fileno(), 4096)  # as long as the process, as torch keeps it
"""


def test_what_torch_shares_under_a_ranks_name_goes_with_the_rank_and_nothing_else():
    told, done = [], threading.Event()
    link = WarmLink([sys.executable], dict(os.environ), lambda report: (told.append(report), done.set() if report.get("done") else None))
    try:
        link.send(
            do="world",
            world=1,
            entry="shares.py",
            sources={"shares.py": SHARES},
            args=[],
            env={},
            ranks=[{"env": {}, "fresh": False}],
            deadline_s=20.0,
        )
        assert done.wait(40), told
    finally:
        link.close()
    [ended] = [r for r in told if "ended" in r]
    other, mine = (Path(f"/dev/shm/torch_{ended['pid']}_{number}") for number in (0, 1))
    assert ended["code"] == 0 and other.exists() and not mine.exists(), told
    other.unlink()
