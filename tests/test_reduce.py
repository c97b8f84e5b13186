"""reduce: the smallest form of a job that fails, and nothing left behind."""
from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from book_samples import start_cli, with_library
from hypothesis import given, settings, strategies as st
from nccl_runbook.compare import reduction
from processes import ROOT, children, gone, start_time
from warm_cli import read_cli

SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/reduce.json").read_text())
FAILS = (
    "import os, sys; n, k = int(sys.argv[1]), int(os.environ['learners']); print('Watchdog caught' if n >= 2 and k >= 2 else 'done');"
    " sys.exit(n >= 2 and k >= 2)"
)
# a job whose worker leaves its process group and session, as launchers' workers do
LEAVES = (
    "import os, subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'],"
    " start_new_session=True); open(sys.argv[1], 'w').write(f'{os.getpid()} {p.pid}'); time.sleep(300)"
)


def reduce(folder: Path, *arguments: str, **more):
    return read_cli("reduce", "--out", folder / "logs", *arguments, env=with_library(), **more)


def test_the_smallest_failing_combination_with_placeholder_and_variable(tmp_path: Path) -> None:
    ended = reduce(
        tmp_path,
        "--axis",
        "nodes=1,2,4",
        "--axis",
        "learners=1,2",
        "--fail-on",
        "Watchdog",
        "--json",
        "--",
        sys.executable,
        "-c",
        FAILS,
        "{nodes}",
    )
    told = json.loads(ended.stdout)
    jsonschema.validate(told, SCHEMA)
    assert (ended.returncode, told["smallest"]) == (3, {"nodes": "2", "learners": "2"}) and told["runs"][-1]["line"] == "Watchdog caught"
    assert [r["outcome"] for r in told["runs"]] == ["passed"] * (len(told["runs"]) - 1) + ["failed"]
    assert all(Path(log).read_text() for r in told["runs"] for log in r["logs"]) and ended.stderr.count("passed") == len(told["runs"]) - 1


def test_without_a_failure_nothing_is_claimed(tmp_path: Path) -> None:
    ended = reduce(tmp_path, "--axis", "n=1,2", "--", "true", "{n}")
    assert (
        ended.returncode == 4 and "not reproduced: none of 2 combinations failed" in ended.stdout
    ), "the user's job fails somewhere: no health"
    other = reduce(tmp_path / "other", "--axis", "n=1,2", "--fail-on", "Watchdog", "--", "false", "{n}")
    assert other.returncode == 4 and re.search(
        r"\b2 [^\d\n]*different error", other.stdout
    ), "another failure is not the one that was asked for"


def test_a_fault_that_comes_now_and_then_needs_repeats(tmp_path: Path) -> None:
    third = f"n=$(ls {tmp_path}/x* 2>/dev/null | wc -l); touch {tmp_path}/x$n; [ $n -lt 2 ]"
    ended = reduce(tmp_path, "--axis", "n=1", "--repeats", "5", "--json", "--", "sh", "-c", third)
    run = json.loads(ended.stdout)["runs"][0]
    assert (ended.returncode, run["failed"], run["runs"], len(run["logs"])) == (3, 1, 3, 3)


def test_a_line_that_is_written_in_pieces_is_one_line(tmp_path: Path) -> None:
    ended = reduce(
        tmp_path, "--axis", "n=1", "--fail-on", "Watchdog caught", "--", "sh", "-c", "printf 'Watchdog'; sleep 1; printf ' caught'"
    )
    assert ended.returncode == 3 and "FAILED: Watchdog caught" in ended.stdout


def identities(path: Path) -> dict[int, str | None]:
    until = time.monotonic() + 20
    while not path.exists() or len(path.read_text().split()) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    return {int(p): start_time(int(p)) for p in path.read_text().split()}


def test_at_the_deadline_every_process_ends_also_those_that_left_the_group(tmp_path: Path) -> None:
    ended = reduce(tmp_path, "--axis", "n=1,2", "--deadline", "2", "--", sys.executable, "-c", LEAVES, str(tmp_path / "pids"), "{n}")
    assert ended.returncode == 3 and re.search(r"HUNG: .*\b2 s\b", ended.stdout), ended.stderr
    assert not any(start_time(int(p)) for p in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_orphan(tmp_path: Path, number: int) -> None:
    running = start_cli(
        "reduce",
        "--out",
        tmp_path / "logs",
        "--axis",
        "n=1,2",
        "--",
        sys.executable,
        "-c",
        LEAVES,
        tmp_path / "pids",
        "{n}",
        env=with_library(),
    )
    below = identities(tmp_path / "pids")
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == 128 + number and gone(below)


def test_an_interrupt_tells_what_was_run_so_far(tmp_path: Path) -> None:
    code = f"[ {{n}} = 1 ] || {{ echo $$ $$ > {tmp_path}/pids; exec sleep 300; }}"
    running = start_cli("reduce", "--out", tmp_path / "logs", "--axis", "n=1,2,3", "--json", "--", "sh", "-c", code, env=with_library())
    below = identities(tmp_path / "pids")
    running.send_signal(signal.SIGTERM)
    told = json.loads(running.communicate(timeout=60)[0])
    jsonschema.validate(told, SCHEMA)
    assert (running.returncode, told["exit_code"], told["verdict"]) == (143, 143, "unknown") and gone(below)
    assert [(r["values"], r["outcome"]) for r in told["runs"]] == [({"n": "1"}, "passed"), ({"n": "2"}, "interrupted")]
    assert re.search(r"SIGTERM.*\b1 of 3\b", told["sentence"])


def test_a_killed_runner_takes_its_job_with_it(tmp_path: Path) -> None:
    running = start_cli(
        "reduce",
        "--out",
        tmp_path / "logs",
        "--axis",
        "n=1",
        "--",
        "sh",
        "-c",
        f"echo $$ $$ > {tmp_path}/pids; exec sleep 300",
        env=with_library(),
    )
    below = identities(tmp_path / "pids")
    running.kill()
    running.communicate()
    assert gone(below, within_s=5)


def test_a_killed_runner_takes_workers_of_other_sessions_with_it(tmp_path: Path) -> None:
    running = start_cli(
        "reduce", "--out", tmp_path / "logs", "--axis", "n=1", "--", sys.executable, "-c", LEAVES, tmp_path / "pids", env=with_library()
    )
    below = identities(tmp_path / "pids")
    running.kill()
    running.communicate()
    assert gone(below, within_s=15)


def test_a_child_that_was_there_before_is_not_ours_to_end(tmp_path: Path) -> None:
    """A shell that becomes the command by exec hands its background jobs down."""
    code = (
        "import os, subprocess, sys; p = subprocess.Popen(['sleep', '60']); open(sys.argv[1], 'w').write(str(p.pid));"
        " os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    )
    call = [
        "-c",
        "from nccl_runbook.__main__ import main; main()",
        "reduce",
        "--out",
        str(tmp_path / "logs"),
        "--axis",
        "n=1,2",
        "--",
        "true",
        "{n}",
    ]
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "pid"), *call], env=with_library(), stdout=subprocess.DEVNULL)
    pid = int((tmp_path / "pid").read_text())
    assert ended.returncode == 4 and start_time(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_hung_world_is_looked_at_before_it_is_ended(tmp_path: Path) -> None:
    """Two real ranks, of which the second one never comes."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\nimport torch.distributed as dist\n\n\ndef wait_for_request():\n    time.sleep(300)\n\n\n"
        "dist.init_process_group('gloo')\nif os.environ['RANK'] == '1':\n    wait_for_request()\ndist.barrier()\nos._exit(0)\n"
    )
    line = (f"for r in $(seq 0 $(({{n}} - 1))); do RANK=$r LOCAL_RANK=$r WORLD_SIZE={{n}} LOCAL_WORLD_SIZE={{n}} MASTER_ADDR=127.0.0.1 "
            f"MASTER_PORT={29600 + os.getpid() % 300} {sys.executable} {script} & done; wait")
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch.distributed"], check=True)
    takes = max(5, round(4 * (time.monotonic() - began)))  # two ranks at once, on a machine that others may use
    ended = reduce(tmp_path, "--axis", "n=2", "--deadline", f"{takes}", "--", shutil.which("bash"), "-c", line)
    assert ended.returncode == 3 and re.search(r"rank 1 .*\bwait_for_request, train\.py:6\b", ended.stdout), ended.stdout + ended.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (("--axis", "nodes", "--", "true"), "--axis nodes: "), (("--", "true"), "--axis"),
    (("--axis", "nodes=1", "--", "echo", "{nodez}"), "{nodez} "),
    (("--axis", "nodes=1", "--", "sh", "-c", "srun -N {nodez} true"), "{nodez} "),
    (("--axis", "n=1", "--fail-on", "(", "--", "true"), "--fail-on: "),
    (("--axis", "n=1", "--", "/no/such"), " /no/such"),
    (("--axis", "nodes=1,2", "--", "true"), "{nodes}"), (("--axis", "nodes=1,2", "--axis", "b=1,2", "--", "echo", "{nodes}"), "{b}"),
    (("--axis", f"n={','.join(map(str, range(300)))}", "--", "true"), " 200 ")])
def test_wrong_usage_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    ended = reduce(tmp_path, *arguments)
    assert ended.returncode == 2 and said in ended.stderr and ended.stderr.count("\n") == 1


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from("12345"), min_size=1, max_size=4, unique=True), min_size=1))
def test_all_smaller_combinations_come_first(axes: dict[str, list[str]]) -> None:
    ordered = reduction.smallest_first(reduction.axes_of(f"{n}={','.join(v)}" for n, v in axes.items()))
    places = [tuple(axes[n].index(c[n]) for n in axes) for c in ordered]
    assert len(set(places)) == len(places) and all(
        not all(x <= y for x, y in zip(b, a, strict=True)) for i, a in enumerate(places) for b in places[i + 1 :]
    )


def test_only_names_of_axes_are_filled_in() -> None:
    assert reduction.command_for(["-N{n}", '{"a": {n}}', "{other}"], {"n": "4"}) == ["-N4", '{"a": 4}', "{other}"]


@pytest.mark.parametrize("deadline", ["inf", "nan", "0"])
def test_a_deadline_that_never_comes_is_refused(tmp_path: Path, deadline: str) -> None:
    ended = reduce(tmp_path, "--axis", "n=1", "--deadline", deadline, "--", "true")
    assert ended.returncode == 2 and "--deadline" in ended.stderr and not (tmp_path / "logs").exists()


def test_braces_of_a_program_are_its_own() -> None:
    command = ["sh", "-c", "awk '{print}' ${nodes}", '{"a": 1}', "{print}"]
    reduction.check_placeholders(command, {"nodes": ["1"]})
    assert reduction.command_for(command, {"nodes": "1"}) == command


def test_what_a_run_printed_stays_though_a_later_one_cannot_start(tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text("#!/bin/sh\necho precious\nrm $0\n")
    job.chmod(0o755)
    assert reduce(tmp_path, "--axis", "n=1", "--repeats", "2", "--", str(job)).returncode == 2
    assert [p.read_text() for p in (tmp_path / "logs").iterdir()] == ["precious\n"]


def test_a_folder_in_which_nothing_ran_may_be_named_again(tmp_path: Path) -> None:
    assert [reduce(tmp_path, "--axis", "n=1", "--", program).returncode for program in ("/no/such", "true")] == [2, 4]


def test_a_folder_that_holds_logs_is_refused_and_they_stay(tmp_path: Path) -> None:
    assert reduce(tmp_path, "--axis", "n=1", "--", "echo", "first").returncode == 4
    again = reduce(tmp_path, "--axis", "n=1", "--", "echo", "second")
    assert again.returncode == 2 and re.fullmatch(rf"nccl-runbook: {tmp_path / 'logs'} .*--out\n", again.stderr)
    assert [log.read_text() for log in (tmp_path / "logs").iterdir()] == ["first\n"]


def test_a_command_line_that_no_kernel_takes_is_one_sentence(tmp_path: Path) -> None:
    """{n} is filled in so often that the line is longer than Linux takes for one word (128 KiB)."""
    ended = reduce(tmp_path, "--axis", f"n={'x' * 60_000}", "--", "echo", "{n}{n}{n}")
    assert (ended.returncode, ended.stdout) == (2, "") and re.fullmatch(
        rf"nccl-runbook: .*\becho: {os.strerror(errno.E2BIG)}\n", ended.stderr
    )


@pytest.mark.parametrize(("job", "wanted", "said"), [
    ("yes | head -c 400M; sleep 60", "Watchdog", r"HUNG: .*\b2 s\b"),
    ("printf a%.0s {1..40}; echo b; sleep 60", "(a+)+$", r"HUNG: .*\b2 s\b"),
    ("printf a%.0s {1..40}; echo b; exit 1", "(a+)+$", r"exit code 1\b.*\b2 s\b")])
def test_the_deadline_holds_whatever_the_job_prints_and_the_expression_costs(tmp_path: Path, job: str, wanted: str, said: str) -> None:
    """`yes` prints faster than anybody reads: what had come since the last look was once read whole, and filled the memory of a machine."""
    lib = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({900 << 20}, {900 << 20})); from nccl_runbook.__main__ import main;"
        " main()"
    )
    call = ["reduce", "--out", str(tmp_path / "logs"), "--axis", "n=1", "--deadline", "2", "--fail-on", wanted, "--", "bash", "-c", job]
    ended = subprocess.run([sys.executable, "-c", lib, *call], env=with_library(), capture_output=True, text=True, timeout=60)
    assert re.search(said, ended.stdout) and not ended.stderr, ended.stdout + ended.stderr
    shutil.rmtree(tmp_path / "logs")


def test_an_empty_line_may_be_what_is_looked_for(tmp_path: Path) -> None:
    assert reduce(tmp_path, "--axis", "n=1", "--fail-on", "^$", "--", "echo").returncode == 3


def searcher(runner: int) -> int:
    """The child of a runner that searches the log."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for pid in children(runner):
            if b"prctl(1, 9)" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        time.sleep(0.05)
    raise AssertionError("no child searches")


def test_no_signal_handler_stays_behind(tmp_path: Path) -> None:
    code = (
        "import atexit, signal; from nccl_runbook.__main__ import main\n"
        "atexit.register(lambda: print(signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL)))\nmain()"
    )
    call = ["reduce", "--out", str(tmp_path / "logs"), "--axis", "n=1", "--fail-on", "no", "--json", "--", "true"]
    ended = subprocess.run([sys.executable, "-c", code, *call], env=with_library(), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4 and ended.stdout.splitlines()[-1] == "True (0.0, 0.0)", ended.stderr


def test_a_search_that_never_ends_dies_with_its_runner(tmp_path: Path) -> None:
    running = start_cli("reduce", "--out", tmp_path / "logs", "--axis", "n=1", "--fail-on", "(a+)+$", "--",
                        "bash", "-c", "printf a%.0s {1..40}; echo b; sleep 60", env=with_library())
    pid = searcher(running.pid)
    below = {pid: start_time(pid)}
    time.sleep(1)
    running.kill()
    running.communicate()
    assert gone(below, within_s=5)


def test_a_search_that_was_killed_does_not_pass_for_a_log_without_the_line(tmp_path: Path) -> None:
    running = start_cli("reduce", "--out", tmp_path / "logs", "--axis", "n=1", "--fail-on", "Watchdog", "--json", "--", "sleep", "60",
                        env=with_library())
    os.kill(searcher(running.pid), signal.SIGKILL)
    told = json.loads(running.communicate(timeout=60)[0])
    assert (running.returncode, told["runs"][0]["outcome"], told["runs"][0]["code"]) == (4, "otherwise", None)


def test_a_script_that_reads_the_variable_needs_no_placeholder_and_a_second_call_finds_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("echo ran on $nodes\n")
    call = ("reduce", "--axis", "nodes=1,2", "--", "sh", tmp_path / "job.sh")
    assert [read_cli(*call, env=with_library(), cwd=tmp_path).returncode for _ in range(2)] == [4, 4]
    assert sorted(p.name for p in tmp_path.glob("reduce-logs*")) == ["reduce-logs", "reduce-logs-2"]
    assert "ran on 2" in "".join(log.read_text() for log in (tmp_path / "reduce-logs-2").iterdir())


def test_a_folder_that_cannot_be_made_is_wrong_usage(tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "inner", Path("/proc/none/out")):
        ended = read_cli("reduce", "--out", out, "--axis", "n=1,2", "--", "sh", "-c", "exit {n}")
        assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and out.name in ended.stderr
