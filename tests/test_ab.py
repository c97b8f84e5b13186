"""`ab` end to end with real processes and Gloo ranks, how arms are put together, and what the figures prove."""
from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import environments
import jsonschema
import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.compare import ask as compare, judge as rules, judge_ratio as rules_ratio, read as reader
from nccl_runbook.compare.facts import Comparison, Difference, Sample
from nccl_runbook.core.facts import Gap, to_json
from nccl_runbook.core.findings import Severity
from nccl_runbook.launch import command
from nccl_runbook.launch.stop import Stop
from pydantic import TypeAdapter
from warm_cli import read_cli

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/ab.json").read_text())
CANARY = "canary5b1e0d7c44"
CLEAN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT / "lib")}
NOT_RUN = Gap("not-run", "not asked here")
# prints a sync and a step time made of the environment alone: no clock, so that a busy machine changes nothing
JOB = """import os, sys
e = os.environ
slow = (2 if e.get("NCCL_P2P_DISABLE") == "1" else 1) * (3 if e.get("NCCL_ALGO") == "Tree" and e.get("NCCL_PROTO") == "LL" else 1)
if e.get("NCCL_NET") == "broken":
    sys.exit("NCCL WARN no network")
print(f"step {10 + slow} s\\nsync took {0.5 * slow} s\\nsync took {0.5 * slow} s")
"""
HARMLESS = {
    "NCCL_DEBUG": "WARN",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_RETRY_CNT": "7",
    "NCCL_SOCKET_NTHREADS": "4",
    "NCCL_CROSS_NIC": "1",
    "NCCL_BUFFSIZE": "4194304",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "OMP_NUM_THREADS": "1",
    "NCCL_IB_TC": "106",
    "NCCL_IB_SL": "1",
    "NCCL_MAX_CTAS": "16",
    "NCCL_RAS_ENABLE": "1",
}


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return read_cli("ab", *arguments, env={**CLEAN, **(env or {})})


def test_a_gpu_that_this_machine_lacks_is_refused_before_anything_runs() -> None:
    refused = run("NCCL_RUNBOOKX=1", "NCCL_RUNBOOKX=2", "--rounds", "2", "--gpus", "99")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1) and "gpus: " in refused.stderr


@pytest.mark.parametrize(
    ("setting", "shows_nothing"), [("NCCL_ALGO=Ring", True), ("TORCH_NCCL_BLOCKING_WAIT=1", True), ("GLOO_SOCKET_IFNAME=lo", False)]
)
def test_a_variable_of_nccl_over_gloo_is_said_to_show_nothing(setting: str, shows_nothing: bool) -> None:
    answer = json.loads(run(".", setting, "--rounds", "2", "--json", env={"CUDA_VISIBLE_DEVICES": ""}).stdout)
    assert ("gloo-reads-no-nccl-variable" in {f["id"] for f in answer["findings"]}) == shows_nothing
    assert answer["verdict"] == "unknown" or not shows_nothing


def test_json_says_why_a_secret_was_left_out() -> None:
    document = json.loads(run(f"SECRET_TOKEN={CANARY}", "SECRET_TOKEN=another", "--json").stdout)
    assert list(document["left_out"]) == ["SECRET_TOKEN"] and "secret" in document["left_out"]["SECRET_TOKEN"]


def script(tmp_path: Path, name: str, settings_: dict[str, str]) -> str:
    (tmp_path / name).write_text("".join(f"export {n}={v}\n" for n, v in settings_.items()))
    return str(tmp_path / name)


def told(tmp_path: Path, a: dict[str, str], b: dict[str, str], *options: str, **more) -> dict:
    done = run(
        script(tmp_path, "a.env", a),
        script(tmp_path, "b.env", b),
        "--json",
        "--figure",
        "sync took ([0-9.]+) s",
        "--rounds",
        "2",
        *options,
        "--",
        sys.executable,
        "-S",
        "-c",
        JOB,
        **more,
    )
    document = json.loads(done.stdout or done.stderr)
    jsonschema.validate(document, SCHEMA)
    assert done.returncode == document["exit_code"]
    return document


def text_of(document: dict, rule: str) -> str:
    """What the one finding of this rule says."""
    text, = (f["text"] for f in document["findings"] if f["id"] == rule)
    return text


# ---- the walk --------------------------------------------------------------------------------------------------------------------

def test_one_planted_factor_among_twelve_harmless_differences_is_named_within_ten_halvings(tmp_path):
    document = told(tmp_path, {}, {**HARMLESS, "NCCL_P2P_DISABLE": "1"})
    assert document["verdict"] == "degraded" and len(document["differences"]) == 13
    assert document["walk"]["named"] == ["NCCL_P2P_DISABLE"] and len(document["walk"]["tried"]) <= 10
    assert document["ratios"][0]["ratio"] == pytest.approx(2)
    named = next(f for f in document["findings"] if f["id"] == "effect-named")
    assert named["replacement"] == "unset NCCL_P2P_DISABLE" and re.search(r"\b12\b", named["text"])


def test_a_pair_that_only_acts_together_is_named(tmp_path):
    document = told(tmp_path, {"NCCL_ALGO": "Ring"}, {**HARMLESS, "NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"})
    assert document["walk"]["named"] == ["NCCL_ALGO", "NCCL_PROTO"] and document["walk"]["why_not"] == ""


def test_a_factor_without_which_b_fails_is_named(tmp_path):
    document = told(tmp_path, {}, {**HARMLESS, "NCCL_NET": "broken"})
    assert document["walk"]["named"] == ["NCCL_NET"] and re.match(r"B .*exit code 1\b.*\b4 runs", text_of(document, "arm-fails"))
    assert "no network" in json.dumps(document["samples"])


def test_a_spent_budget_is_told_and_names_nobody(tmp_path):
    slow = "import time; time.sleep(0.6)\n" + JOB
    done = run(
        ".",
        script(tmp_path, "b.env", {**HARMLESS, "NCCL_P2P_DISABLE": "1"}),
        "--json",
        "--figure",
        "took ([0-9.]+)",
        "--rounds",
        "1",
        "--budget",
        "5s",
        "--",
        sys.executable,
        "-S",
        "-c",
        slow,
    )
    document = json.loads(done.stdout)
    assert "effect-named" not in [f["id"] for f in document["findings"]] and any("budget" in f["text"] for f in document["findings"])


def test_harmless_differences_are_no_difference_and_are_not_walked(tmp_path):
    document = told(tmp_path, {}, HARMLESS)
    assert document["verdict"] == "healthy" and document["walk"] is None and [f["id"] for f in document["findings"]] == ["no-difference"]
    assert document["exit_code"] == 0


def test_named_groups_are_told_apart(tmp_path):
    done = run(
        ".",
        "NCCL_P2P_DISABLE=1",
        "--json",
        "--figure",
        "step (?P<step>[0-9.]+)|sync took (?P<sync>[0-9.]+)",
        "--rounds",
        "1",
        "--",
        sys.executable,
        "-c",
        JOB,
    )
    ratios = {r["figure"]: r["ratio"] for r in json.loads(done.stdout)["ratios"]}
    assert ratios == {"step": pytest.approx(12 / 11), "sync": pytest.approx(2)}


def test_the_seconds_of_a_command_count_without_a_figure(tmp_path):
    done = run(".", "NCCL_MAX_CTAS=8", "--json", "--rounds", "1", "--", "true")
    document = json.loads(done.stdout)
    assert document["unit"] == "s" and all(s["figures"]["seconds"] for s in document["samples"])


def test_what_the_expression_catches_and_is_no_number_does_not_count():
    done = run(
        ".", "NCCL_MAX_CTAS=8", "--json", "--figure", "took (\\S+)", "--rounds", "1", "--", "echo", "took long\ntook 1,234.5\ntook 1e3"
    )
    assert json.loads(done.stdout)["samples"][0]["figures"] == {"figure": [1234.5, 1000.0]}


def test_a_figure_that_matches_nothing_ends_ab_after_the_first_run(tmp_path):
    ran = tmp_path / "ran"
    done = run(".", "NCCL_MAX_CTAS=8", "--figure", "took (\\S+)", "--", "sh", "-c", f"echo x >> {ran}; echo took long")
    assert done.returncode == 2 and "--figure" in done.stderr and "took long" in done.stderr and ran.read_text() == "x\n"


def test_an_expression_that_backtracks_without_end_is_ended():
    line = "aa" * 30
    jobs = {f"echo {line}": True, f"echo {line}; yes | head -c 300000": False}  # whether the search or the command was still at work
    code = (
        "from nccl_runbook.launch import command; import os, sys;"
        "s = command.run('A', ['bash', '-c', sys.argv[1]], os.environ, command.compiled(r'(?:\\w+\\s*)+: ([0-9.]+)'), 4.0); print(s.ended)"
    )
    asked = [subprocess.Popen([sys.executable, "-c", code, job], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "lib")}) for job in jobs]
    for process, ended in zip(asked, jobs.values(), strict=True):
        said, errors = process.communicate(timeout=40)
        assert said.startswith("--figure ") == ended and "passed" not in said and not errors


def test_a_number_without_end_does_not_count():
    seen = command.run("A", ["printf", "t 1e999\\nt 2\\n"], os.environ, command.compiled(r"t (\S+)"), 20.0)
    assert seen.figures == {"figure": [2.0]}


def test_a_secret_of_a_file_that_the_command_prints_is_not_told(tmp_path):
    a = script(tmp_path, "a.env", {"MY_PASSWORD": "hunter2" * 3, "NCCL_DEBUG": "WARN"})
    (tmp_path / "job.sh").write_text(f". {a}; echo login $MY_PASSWORD; exit 1")
    done = run(a, "NCCL_DEBUG=INFO", "--json", "--rounds", "1", "--", "bash", str(tmp_path / "job.sh"))
    assert "login" in done.stdout and "hunter2" not in done.stdout + done.stderr


def test_a_role_gets_its_own_environment_where_the_command_names_it():
    said = "import os; print('got', os.environ.get('NCCL_P2P_DISABLE', '9'))"
    done = run(
        ".",
        "@trainer NCCL_P2P_DISABLE=1",
        "--json",
        "--figure",
        "got (.)",
        "--rounds",
        "1",
        "--",
        "bash",
        "-c",
        '"$@"',
        "x",
        "{trainer}",
        sys.executable,
        "-c",
        said,
    )
    document = json.loads(done.stdout)
    assert [s["figures"]["figure"] for s in document["samples"]] == [[9.0], [1.0], [1.0], [9.0]]
    assert document["differences"] == [{"setting": "trainer:NCCL_P2P_DISABLE", "a": "not set", "b": "1"}]


def test_a_failed_run_shows_its_last_lines_and_counts_for_no_median():
    done = run(".", "NCCL_MAX_CTAS=8", "--rounds", "1", "--", "sh", "-c", "echo no network; exit 3")
    assert "        no network\n" in done.stdout and re.search(r"^A: \.  +seconds  0$", done.stdout, re.M), done.stdout


def test_a_figure_of_0_is_said_to_be_what_is_the_matter():
    done = run(".", "NCCL_MAX_CTAS=8", "--figure", "loss (.+)", "--rounds", "1", "--", "echo", "loss 0")
    assert done.returncode == 4 and re.search(r"^Unknown: figure: .*\b0\b", done.stdout, re.M) and "too few" not in done.stdout


def test_a_command_that_only_b_cannot_start_is_b_that_fails():
    document = json.loads(run(".", "PATH=/nonexistent", "--json", "--rounds", "1", "--", "true").stdout)
    assert re.match(r"B .*\btrue\b.*\b2 runs", text_of(document, "arm-fails")) and document["walk"]["named"] == ["PATH"]


# ---- wrong use -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("nofile.env", "."),
        (".", "preload:/no/libnccl.so.2", "--", "true"),
        (".", "pid:999999999", "--", "true"),
        (".", "A=1", "--figure", "x"),
        (".", "A=1", "--figure", "(", "--", "true"),
        (".", "A=1", "--figure", "x", "--", "true"),
        (".", "A=1", "--rounds", "0", "--", "true"),
        (".", "'A=1", "--", "true"),
        (".", "@trainer A=1", "--", "true"),
        (".", "A=1", "--budget", "soon", "--", "true"),
        (".", "A=1", "--fail-on", "x", "--", "true"),
        (".", "module:a;b", "--", "true"),
        (".", "A=1", "--", "/no/such"),
        (".", "A=1", "--sync", "no/such-model"),
        (".", "A=1", "--collective", "gather"),
        (".", "log:/etc/hostname", "--", "true"),
    ],
)
def test_wrong_use_ends_with_one_sentence(arguments):
    done = run(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("nccl-runbook: ") and not done.stdout


# ---- arms ------------------------------------------------------------------------------------------------------------------------

def test_arms_of_every_kind_are_read(tmp_path):
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --export=ALL,NCCL_IB_TC=106\nexport NCCL_DEBUG=WARN\nexport LD_LIBRARY_PATH=/opt/x:$LD_LIBRARY_PATH\n"
    )
    (tmp_path / "rank0.log").write_text(
        "n1:7:7 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL\nn1:7:7 [0] NCCL INFO NCCL_IB_SL set by environment to 1.\n"
    )
    (tmp_path / "libnccl.so.2").write_bytes(b"")
    around = {"LD_LIBRARY_PATH": "/lib", "NCCL_DEBUG": "INFO"}
    arms = reader.read(f"{tmp_path}/job.sbatch preload:{tmp_path}/libnccl.so.2", f"log:{tmp_path}/rank0.log NCCL_NET=IB", around)
    assert arms.env([])[""] == {
        "NCCL_IB_TC": "106",
        "NCCL_DEBUG": "WARN",
        "LD_LIBRARY_PATH": "/opt/x:/lib",
        "LD_PRELOAD": f"{tmp_path}/libnccl.so.2",
        "NCCL_P2P_LEVEL": None,
        "NCCL_IB_SL": None,
        "NCCL_NET": None,
    }
    assert arms.env(arms.keys)[""] == {
        "NCCL_IB_TC": None,
        "NCCL_DEBUG": "INFO",
        "LD_LIBRARY_PATH": "/lib",
        "LD_PRELOAD": None,
        "NCCL_P2P_LEVEL": "NVL",
        "NCCL_IB_SL": "1",
        "NCCL_NET": "IB",
    }


def test_a_process_is_a_whole_environment_but_for_what_is_its_own():
    child = subprocess.Popen(
        ["sleep", "60"], env={"PATH": "/bin", "NCCL_NET": "IB", "RANK": "3", "CUDA_VISIBLE_DEVICES": "3", "HOSTNAME": "n1"}
    )
    try:
        while not Path(f"/proc/{child.pid}/environ").read_bytes():
            time.sleep(0.01)
        arms = reader.read(f"pid:{child.pid}", ".", {"PATH": "/bin", "NCCL_DEBUG": "INFO", "RANK": "0", "CUDA_VISIBLE_DEVICES": "0,1"})
    finally:
        child.kill()
        child.wait()
    assert arms.env([])[""] == {"NCCL_NET": "IB", "NCCL_DEBUG": None} and arms.env(arms.keys)[""] == {
        "NCCL_NET": None,
        "NCCL_DEBUG": "INFO",
    }


def test_what_one_arm_sets_for_all_holds_for_a_role_that_only_the_other_names():
    arms = reader.read(". NCCL_DEBUG=INFO", "@trainer NCCL_DEBUG=WARN", {"PATH": "/bin"})
    assert arms.env([]) == {"": {"NCCL_DEBUG": "INFO"}, "trainer": {}}
    assert arms.env(arms.keys) == {"": {"NCCL_DEBUG": None}, "trainer": {"NCCL_DEBUG": "WARN"}}


def test_a_module_is_what_it_changes_in_a_login_shell(tmp_path):
    (tmp_path / ".bash_profile").write_text(
        'export NOISE=1\nmodule() { [ "$2" = brics/nccl ] || { echo "no module $2" >&2; return 1; }; export NCCL_NET=OFI LD_LIBRARY_PATH=/m'
        " __MODULES_LMALTNAME=x; unset NCCL_DEBUG; }\n"
    )
    around = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NCCL_DEBUG": "INFO"}
    arms = reader.read("module:brics/nccl", ".", around)
    assert arms.env([])[""] == {"NCCL_NET": "OFI", "LD_LIBRARY_PATH": "/m", "NCCL_DEBUG": None}
    with pytest.raises(ValueError, match="other .*no module"):
        reader.read("module:other", ".", around)
    (tmp_path / "job.sbatch").write_text("module load brics/nccl\nmodule load cray\nexport NCCL_IB_TC=106\n")
    loaded = reader.read(f"{tmp_path}/job.sbatch", ".", around)
    assert loaded.env([])[""] == {"NCCL_NET": "OFI", "LD_LIBRARY_PATH": "/m", "NCCL_DEBUG": None, "NCCL_IB_TC": "106"} and list(
        loaded.left_out
    ) == ["module load cray"]


def test_what_only_a_shell_can_work_out_and_secrets_stay_as_they_are(tmp_path):
    (tmp_path / "x.sh").write_text(
        f"export NCCL_SOCKET_IFNAME=$(ip route)\nexport WANDB_API_KEY={CANARY}\nexport NCCL_TOPO_FILE=https://u:{CANARY}@h/x\nexport"
        f" MY={CANARY}\n"
    )
    (tmp_path / "x.sh").open("a").write(f"export NCCL_DEBUG_FILE=/log/{CANARY}x\nexport PRIVATE_KEY={CANARY}x\n")
    arms = reader.read(f"{tmp_path}/x.sh", ". MY_OTHER=zebra77y", {})
    assert sorted(arms.left_out) == [
        "MY",
        "NCCL_DEBUG_FILE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_TOPO_FILE",
        "PRIVATE_KEY",
        "WANDB_API_KEY",
    ], "also by their values"
    assert arms.names[1] == ". MY_OTHER=..." and arms.env(arms.keys)[""]["MY_OTHER"] == "zebra77y"
    assert CANARY not in repr((arms, arms.differences)) and "zebra" not in repr((arms, arms.differences))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_file_is_read_without_an_error(tmp_path_factory, a, b):
    folder = tmp_path_factory.mktemp("any")
    for name, text in (("a", a), ("b", b)):
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    arms = reader.read(str(folder / "a"), str(folder / "b"), {})
    assert {d.setting for d in arms.differences} == set(arms.keys) and set(arms.env(arms.keys)) == {""}


# ---- secrets, and nothing that outlives --------------------------------------------------------------------------------------------

def test_no_secret_of_the_surroundings_or_of_a_file_is_told_anywhere(tmp_path):
    secrets = {"WANDB_API_KEY": CANARY + "a", "NCCL_TOPO_FILE": f"/x/{CANARY}a", "MY_SETTING": "canarysettingb"}
    page = tmp_path / "page.html"
    a, b = script(tmp_path, "a.env", {**secrets, "NCCL_P2P_DISABLE": "1"}), script(tmp_path, "b.env", {"MY_SETTING": "canarysettingc"})
    words = [sys.executable, "-S", "-c", f"import os\nprint(os.environ)\n{JOB}\nos.environ.get('NCCL_P2P_DISABLE') and os._exit(3)"]
    runs = [run(a, b, *more, "--rounds", "1", "--", *words, env=secrets) for more in (["--json"], ["--html", str(page)])]
    text = "".join(r.stdout + r.stderr for r in runs) + page.read_text()
    assert (
        "arm-fails" in text
        and "exit code 3" in text
        and CANARY + "a" not in text
        and "canarysettingc" not in "".join(r.stderr for r in runs)
    )
    hidden, = (d for d in json.loads(runs[0].stdout)["differences"] if d["setting"] == "MY_SETTING")
    assert hidden["a"] == hidden["b"] and hidden["a"] not in ("", "not set"), "that there is a value is not hidden"


def alive(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile
            continue
        if mark.encode() in words and b"ab" not in words:
            found.append(int(folder.name))
    return found


# a worker that left the session, as torchrun's do, and ignores SIGTERM
STUBBORN = (
    "import os, signal, subprocess, sys, time\nif len(sys.argv) < 3:\n subprocess.Popen([*sys.orig_argv, 'worker'],"
    " start_new_session=True)\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_of_the_command_outlives_a_killed_runner(how):
    mark = f"mark{os.getpid()}{how}"
    runner = subprocess.Popen(
        [sys.executable, "-m", "nccl_runbook", "ab", ".", "A=1", "--", sys.executable, "-c", STUBBORN, mark],
        env=CLEAN,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 20
    while len(alive(mark)) < 3 and time.monotonic() < until:  # the supervisor, the command, its worker
        time.sleep(0.1)
    assert len(alive(mark)) >= 3
    runner.send_signal(how)
    runner.wait(30)
    while alive(mark) and time.monotonic() < until + 20:
        time.sleep(0.1)
    assert alive(mark) == []


def test_an_interrupt_tells_the_runs_so_far(tmp_path):
    """Three runs end at once, the fourth never: A to warm up, then A B B."""
    code = f"echo x >> {tmp_path}/n; [ $(wc -l < {tmp_path}/n) -lt 4 ] || exec sleep 613"
    runner = subprocess.Popen([sys.executable, "-m", "nccl_runbook", "ab", ".", "A=1", "--json", "--", "sh", "-c", code], env=CLEAN,
                              stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while len(alive("613")) < 1 and time.monotonic() < until:
        time.sleep(0.1)
    runner.send_signal(signal.SIGINT)
    told = json.loads(runner.communicate(timeout=60)[0])
    jsonschema.validate(told, SCHEMA)
    assert (runner.returncode, told["exit_code"], told["verdict"]) == (130, 130, "unknown")
    assert [s["arm"] for s in told["warm_up"] + told["samples"]] == ["A", "A", "B"] and all(s["ended"] == "passed" for s in told["samples"])
    assert any(re.search(r"SIGINT.*\b2 of 12\b", f["text"]) for f in told["findings"])


def test_a_command_that_does_not_end_is_ended_at_its_deadline():
    began = time.monotonic()
    done = run(".", "A=1", "--json", "--budget", "3s", "--", "sleep", "600")
    assert time.monotonic() - began < 60 and done.returncode == 4 and "too few" in done.stdout


# ---- ranks -----------------------------------------------------------------------------------------------------------------------

def test_a_collective_and_a_weight_sync_are_compared_in_real_ranks(engine):
    arms = reader.read(".", "GLOO_SOCKET_IFNAME=lo", {})
    spec = {
        "name": "tiny",
        "dtype": "float32",
        "head": [["a", [64, 64]]],
        "layer": [],
        "tail": [],
        "layers": 1,
        "layers_of": 1,
        "prefix": "x.{i}.",
    }
    for made in (compare.of_collective(engine, [None, None], "all_reduce", 4096), compare.of_sync(engine, [None, None], spec, "gloo-flat")):
        seen = compare.collect(arms, 60, lambda made=made: made, rules.walk, 1)
        assert (
            [s.arm for s in seen.samples] == list("ABBA")
            and all(s.passed for s in seen.samples)
            and rules_ratio.ratio(seen, rules_ratio.names(seen)[0]).n == 2
        )
        assert TypeAdapter(Comparison | Gap).validate_python(to_json(seen)) == seen


def test_a_role_of_a_weight_sync_or_a_collective_gets_its_own_environment(engine):
    """The interface that names nothing reaches the engine alone, so only its rank fails; rank0 of a collective gets a fresh interpreter."""
    spec = {
        "name": "tiny",
        "dtype": "float32",
        "head": [["a", [8, 8]]],
        "layer": [],
        "tail": [],
        "layers": 1,
        "layers_of": 1,
        "prefix": "x.{i}.",
    }
    sync = compare.of_sync(engine, [None, None], spec, "gloo-flat")
    assert sync.roles == ["trainer", "engine"] and sync.run("A", reader.read(".", "@engine NCCL_DEBUG=INFO", {}).env([]), 60).passed
    arms = reader.read(".", "@engine GLOO_SOCKET_IFNAME=nope0", {})
    assert not sync.run("B", arms.env(arms.keys), 30).passed
    alone = compare.of_collective(engine, [None, None], "all_reduce", 4)
    assert alone.roles == ["rank0", "rank1"] and alone.run("B", {"": {}, "rank0": {"OMP_NUM_THREADS": "3"}}, 60).passed
    with pytest.raises(ValueError, match="roles: rank0, rank1"):
        compare.collect(arms, 60, lambda: alone, rules.walk, 1)


def test_ranks_that_fail_in_one_arm_are_told_with_their_words(engine):
    arms = reader.read(".", "GLOO_SOCKET_IFNAME=nope0", {})
    seen = compare.collect(arms, 90, lambda: compare.of_collective(engine, [None, None], "all_reduce", 4), rules.walk, 1)
    assert rules_ratio.one_fails(seen) == "B" and any(
        f.id == "arm-fails" and "nope0" in str(f.evidence) for f in rules.judge(seen, NOT_RUN)
    )


# ---- what the figures prove --------------------------------------------------------------------------------------------------------

def test_a_command_ends_when_whoever_waits_is_told_to_stop():
    stop, other = Stop(), Stop()
    stop.received = signal.SIGTERM
    seen = command.run("A", ["sleep", "60"], os.environ, command.compiled(""), 60.0, stopped=stop)
    assert seen.ended == stop() and seen.wall_s < 30 and (other.received, other()) == (0, "")


def made(*figures: float | str, walk=NOT_RUN, **changes) -> Comparison:
    """Runs A B B A ... with these figures; a text is how a run failed."""
    samples = [
        Sample(arm, {} if isinstance(f, str) else {"t": [f]}, f if isinstance(f, str) else "passed", 1.0)
        for arm, f in zip("ABBA" * 9, figures)
    ]
    return dataclasses.replace(
        Comparison("x", "s", False, [".", "b"], [Difference("X", "not set", "1")], {}, len(figures), [], samples, walk), **changes
    )


def ids(c: Comparison) -> dict[str, Severity]:
    return {f.id: f.severity for f in rules.judge(c, NOT_RUN)}


def test_arms_differ_fires_when_b_is_slower_and_stays_quiet_when_the_interval_holds_one():
    assert ids(made(1, 2, 2.02, 1.01, 1, 2.01, 2, 1)) == {"arms-differ": Severity.WARN}
    assert ids(made(1, 1.02, 0.99, 1, 1.01, 1, 1, 1.01)) == {"no-difference": Severity.OK}
    assert ids(made(1, 2, 0.5, 1, 1.4, 0.9, 1.1, 0.8)) == {"no-difference": Severity.UNKNOWN}
    chance = made(0.211, 0.304, 0.313, 0.201, 0.221, 0.467, 0.336, 0.277)
    assert not rules_ratio.ratio(chance, "t").holds_one and ids(chance) == {"no-difference": Severity.UNKNOWN}, "95 % alone accuses nobody"
    assert ids(made(1, 0.5, 0.5, 1, 1, 0.51, 0.5, 1)) == {"arms-differ": Severity.NOTE}, "faster is no fault"
    assert ids(made(1, 0.5, 0.5, 1, 1, 0.51, 0.5, 1, more_is_better=True)) == {"arms-differ": Severity.WARN}
    assert ids(made(1, 1.02, 1.02, 1, 1, 1.021, 1.02, 1)) == {"arms-differ": Severity.NOTE}, "two per cent are told, and are no fault"


def test_arm_fails_fires_when_one_never_passes_and_comparison_inconclusive_when_it_comes_and_goes():
    assert ids(made(1, "hung", "hung", 1)) == {"arm-fails": Severity.WARN}
    assert ids(made("hung", 1, 1, "hung")) == {"arm-fails": Severity.WARN}
    assert ids(made(1, "hung", 1, 1)) == ids(made("hung", "hung", "hung", "hung")) == {"comparison-inconclusive": Severity.UNKNOWN}


def test_what_nccl_says_of_each_arm_stands_beside_the_figures():
    warm = [
        Sample("A", {"t": [1]}, "passed", 1, [], ["via P2P/CUMEM"]),
        Sample("B", {"t": [9]}, "passed", 1, [], ["via SHM/direct", "NCCL_P2P_DISABLE=1"]),
    ]
    finding, = rules.judge(made(1, 9, 9, 1, 1, 9, 9, 1, warm_up=warm), NOT_RUN)
    assert [e.text for e in finding.evidence] == ["A: via P2P/CUMEM", "B: via SHM/direct, NCCL_P2P_DISABLE=1"]


def test_another_libnccl_in_b_is_a_note_and_one_in_a_role_of_b_is_a_warning():
    other = environments.library("/x/libnccl.so.2", sha256="b6" * 32)

    def told(*paths):
        roles = [environments.role(name, mapped=[path]) for name, path in zip(("A", "A trainer", "B", "B trainer"), paths)]
        seen = environments.environment(*roles, on=environments.host(libraries=[environments.library(), other]))
        return [(f.id, f.severity) for f in rules.judge(made(1, 1, 1, 1, 1, 1, 1, 1), seen) if f.id == "roles-libraries-differ"]

    one, two = environments.NCCL, other.path
    assert told(one, one, one, two) == [("roles-libraries-differ", Severity.WARN)] == told(two, one, two, one)[:1]
    assert told(one, one, two, two) == [("roles-libraries-differ", Severity.NOTE)] and told(one, one, one, one) == []


def test_too_few_runs_and_nothing_differs_are_unknown():
    assert ids(made(1, 2, 3, 1)) == {"too-few-runs": Severity.UNKNOWN}
    assert ids(made(1, 2)) == ids(made()) == {"too-few-runs": Severity.UNKNOWN}
    assert ids(made(differences=[])) == {"nothing-differs": Severity.UNKNOWN}
    assert [f.id for f in rules.judge(Gap("not-run", "busy"), NOT_RUN)] == ["not-compared"] and rules.judge(Gap("absent"), NOT_RUN) == []


def test_a_drift_of_the_machine_is_no_difference():
    drifting = [1.0 * 1.05 ** i for i in range(12)]
    assert ids(made(*drifting)) == {"no-difference": Severity.OK} or rules_ratio.ratio(made(*drifting), "t").holds_one


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=8, max_size=24), st.floats(0.01, 100))
def test_the_ratio_goes_with_b_and_does_not_care_for_the_unit(values, scale):
    one, other = rules_ratio.ratio(made(*values), "t"), rules_ratio.ratio(made(*(v * scale for v in values)), "t")
    assert one.low <= one.value <= one.high and other.value == pytest.approx(one.value)
    more_b = made(*(v * 3 if arm == "B" else v for arm, v in zip("ABBA" * 9, values)))
    assert rules_ratio.ratio(more_b, "t").value == pytest.approx(3 * one.value)
    assert math.isclose(one.low * one.high, one.value ** 2, rel_tol=1e-6)


def test_every_interval_of_equal_arms_holds_one_about_as_often_as_it_says():
    import random

    held = 0
    for seed in range(400):
        draw = random.Random(seed)
        held += rules_ratio.ratio(made(*(draw.lognormvariate(0, 0.1) for _ in range(12))), "t").holds_one
    assert 365 <= held <= 393  # 95 % of 400 is 380, three standard deviations are 13


def test_a_supervisor_that_does_not_go_is_killed_and_reaped(monkeypatch):
    monkeypatch.setattr(command, "END_S", 0.3)
    with command.supervised(["sleep", "60"], os.environ, subprocess.DEVNULL) as child:
        os.kill(child.pid, signal.SIGSTOP)
    assert child.returncode == -signal.SIGKILL, "no zombie is left"


def test_the_pipe_of_a_command_is_closed_when_it_has_ended():
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert command.run("A", ["echo", "t 1"], os.environ, command.compiled(r"t (\S+)"), 20.0).ended == "passed"
        gc.collect()
    assert [str(w.message) for w in told if w.category is ResourceWarning] == []


def test_what_was_measured_comes_first_and_the_fix_once(tmp_path):
    files = [script(tmp_path, "a.env", {}), script(tmp_path, "b.env", {"NCCL_P2P_DISABLE": "1"})]
    rest = ["--figure", "sync took ([0-9.]+) s", "--rounds", "2", "--", sys.executable, "-S", "-c", JOB]
    document = json.loads(run(*files, "--json", *rest).stdout)
    assert [f["id"] for f in document["findings"]] == ["arms-differ", "effect-named"]
    assert {f["replacement"] for f in document["findings"]} == {"unset NCCL_P2P_DISABLE"}
    shown = run(*files, *rest).stdout
    assert shown.startswith(f"Degraded: {document['findings'][0]['text']}\n") and shown.count("unset NCCL_P2P_DISABLE") == 1
    assert "B is" in shown.splitlines()[0] and "makes the difference" in shown


@pytest.mark.parametrize(("a", "b", "verdict"), [({"NCCL_P2P_DISABLE": "1"}, {}, "healthy"), ({"NCCL_NET": "broken"}, {}, "degraded")])
def test_where_b_is_better_nothing_says_to_do_as_in_a(tmp_path, a, b, verdict):
    document = told(tmp_path, a, b)
    assert [f["id"] for f in document["findings"]][-1] == "effect-named" and document["verdict"] == verdict
    assert not any(f["replacement"] for f in document["findings"])
