"""What a user types, and the one sentence that he gets when it does not fit."""
from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from book_samples import CLI, GOOD, make_book, run_cli, start_cli, wait_for, with_library
from hypothesis import given, strategies as st
from nccl_runbook.__main__ import spread
from nccl_runbook.book.plan import Planned
from nccl_runbook.cli import answer
from nccl_runbook.core import records
from nccl_runbook.core.facts import Unusable
from nccl_runbook.core.parameters import check_given, coerce, read_cell
from nccl_runbook.core.records import read
from nccl_runbook.core.redact import Redactor
from nccl_runbook.report.verdict_document import VerdictDocument
from processes import command_s, gone, start_time
from warm_cli import read_cli

HERE = ["--python", sys.executable]
REPLAY = """from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.step import open_step
step = open_step("{name}", globals())
step.finish([Finding("seen", Severity.OK, f"judged again: {bool(record_path)}")])"""


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", with_library()["PYTHONPATH"])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return make_book(tmp_path / "notebooks", n01_gpus=GOOD, n03_fewer_gpus=REPLAY, n99_verdict=GOOD)


def refused(book: Path, *arguments: str | Path) -> str:
    """The sentence of a run that is refused: exit 2, one line, nothing on standard output, nothing started."""
    ended = read_cli("run", "--notebooks", book, *arguments)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("nccl-runbook: ") and ended.stderr.count("\n") == 1 and "Traceback" not in ended.stderr
    assert not list(book.parent.glob("outputs/*/*")), "something was started"
    return ended.stderr


def test_a_healthy_run_ends_0_and_its_last_line_names_the_page(book: Path, tmp_path: Path) -> None:
    ended = read_cli("run", "--notebooks", book, *HERE)
    assert (ended.returncode, ended.stderr) == (0, "")
    *steps, _, sentence, last = ended.stdout.splitlines()
    assert sentence == read(VerdictDocument, (tmp_path / "outputs/latest/verdict.json").read_bytes()).sentence
    assert {"healthy", "0", "outputs/latest/index.html"} <= set(re.findall(r"[\w/.]+", last))
    assert (tmp_path / "outputs/latest/index.html").exists()
    *steps, verdict = [line.split() for line in steps]
    assert [words[:3] for words in steps] == [[f"[{n}/2]", name, "ok"] for n, name in enumerate(["01-gpus", "03-fewer-gpus"], 1)]
    assert verdict[:2] == ["99-verdict", "ok"], "it sums the steps up, and is none"


def test_json_is_alone_on_standard_output(book: Path, tmp_path: Path) -> None:
    ended = read_cli("run", "--notebooks", book, *HERE, "--step", "03-fewer-gpus", "--json")
    document = read(VerdictDocument, ended.stdout.encode())
    assert [s.notebook for s in document.steps] == ["03-fewer-gpus"] and document.run.asked == ["03-fewer-gpus"]
    assert json.loads(ended.stdout)["run"] == json.loads((tmp_path / "outputs/latest/verdict.json").read_text())["run"]
    assert ended.stderr.splitlines()[-1].startswith("verdict: healthy")


@pytest.mark.parametrize(("arguments", "code"), [([], 4), (["--fail-on", "broken"], 0)])  # all of them: test_verdict
def test_fail_on(arguments: list[str], code: int, tmp_path: Path) -> None:
    book = make_book(tmp_path / "notebooks", n01_bad="1 + 1")
    assert read_cli("run", "--notebooks", book, *HERE, *arguments).returncode == code


def test_a_value_that_a_notebook_refuses_is_wrong_usage_and_no_other_error_is(tmp_path: Path) -> None:
    refusal = "__import__('nccl_runbook.core.facts').core.facts.Unusable(f'no {label!r}')"
    raised = {"n01_a": "OSError(f'no {label!r}')", "n02_b": "ValueError('frob is odd')", "n03_c": refusal}
    book = make_book(tmp_path / "notebooks", **{name: f"raise {error}" for name, error in raised.items()}, n04_d=GOOD)
    for path in book.iterdir():
        notebook = nbformat.read(path, 4)
        notebook.cells[0].source += '\nlabel: str = ""'
        nbformat.write(notebook, path)
    ended = read_cli("run", "--notebooks", book, *HERE, "-p", "label", "frob")
    assert (ended.returncode, ended.stderr) == (2, "nccl-runbook: no 'frob'\n")
    assert [line[:5] for line in ended.stdout.splitlines()] == ["[1/4]", "[2/4]", "[3/4]"] and (
        tmp_path / "outputs/latest/index.html"
    ).exists()


@pytest.mark.parametrize(
    ("given", "said", "mine"),
    [
        ({"gpus": "9"}, "Unusable: gpus: there is no GPU 9, only 4 (0-3)", True),
        ({"gpus": "0,9"}, "Unusable: gpus: there is no GPU 9, only 4", True),
        ({"arm_a": "preload:/x"}, "Unusable: preload:/x: there is no file /x to preload", True),
        ({"tensor_parallel": 3}, "Unusable: tensor_parallel: 4 ranks", True),
        ({"gpus": "0"}, "ValueError: not enough values to unpack (expected 2, got 0)", False),
        ({"gpus": "frob"}, "ValueError: invalid literal for int(): 'frob'", False),
        ({"log": "x.log"}, "OSError: no 'x.log'", False),
        ({}, "Unusable: x (--port, else MASTER_PORT) is not a port number", False),
    ],
)
def test_a_value_is_refused_by_the_kind_of_error_and_not_by_chance(given: dict[str, object], said: str, mine: bool) -> None:
    assert Planned("01-a", Path(), {}, given).refused(f"the notebook stopped with an error: {said}") == (
        said.partition(": ")[2] if mine else ""
    )


@pytest.mark.parametrize(("name", "kind"), [("methods", "method"), ("areal", "AReaL")])
def test_what_05_cannot_use_is_refused_before_any_notebook_runs(name: str, kind: str, tmp_path: Path) -> None:
    ended = read_cli("run", "--step", "05-weight-sync", *HERE, "-p", name, "frob", "--out", tmp_path / "out")
    assert ended.returncode == 2 and "'frob'" in ended.stderr and kind in ended.stderr, ended.stderr
    assert ended.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def steps_in(said: str) -> list[str]:
    return re.findall(r"\b(?:\d\d[\w-]*|zz)", said)


def test_a_step_that_does_not_exist(book: Path) -> None:
    assert steps_in(refused(book, "--step", "03-fewer-gpu")) == ["03-fewer-gpu", "03-fewer-gpus"], "the slip and what was meant"
    assert steps_in(refused(book, "--step", "01-gpus", "03")) == ["03", "03-fewer-gpus"]
    assert steps_in(refused(book, "--step", "zz")) == ["zz", "01-gpus", "03-fewer-gpus", "99-verdict"]


def test_a_parameter_of_the_wrong_name_or_type(book: Path) -> None:
    for arguments, data in [(("budgets", "5"), ("budgets", "budget_s?")), (("budget_s", "soon"), ("budget_s", "'soon'", "whole number")),
                            (("run_dir", "x"), ("run_dir", "--out")), (("budget_s",), ("-p budget_s",))]:
        said = refused(book, *HERE, "-p", *arguments)
        assert all(word in said for word in data), said


def test_a_parameter_that_means_nothing(book: Path) -> None:
    assert re.findall(r"-?\d+|budget_s", refused(book, *HERE, "-p", "budget_s", "0")) == [
        "budget_s",
        "0",
        "1",
    ], "the value and the least one"
    assert re.findall(r"-?\d+|budget_s", refused(book, *HERE, "-p", "budget_s", "-5")) == ["budget_s", "-5", "1"]
    assert "gpus: '3-1'" in refused(book, *HERE, "--gpus", "0,3-1")


def test_a_model_that_is_not_known_is_refused_before_any_notebook_runs(tmp_path: Path) -> None:
    ended = read_cli("run", "--step", "05-weight-sync", *HERE, "-p", "model", "Qwen/Qwen2.5-8B", "--out", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.findall(r"Qwen/[\w.-]+", ended.stderr)[:2] == ["Qwen/Qwen2.5-8B", "Qwen/Qwen2.5-7B"], "the slip and what was meant"


@pytest.mark.parametrize(
    "given",
    [
        ["--log", "nosuch"],
        ["--log", "there", "--log", "nosuch"],
        ["-p", "log", "there:nosuch"],
        ["-p", "against", "nosuch"],
        ["-p", "hang_path", "nosuch"],
    ],
    ids=" ".join,
)
def test_a_path_with_a_slip_is_refused_before_any_notebook_runs(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "there").write_text("NCCL WARN\n")
    ended = read_cli("run", *HERE, *given, "--out", tmp_path / "out")
    assert (ended.returncode, ended.stdout, (tmp_path / "out").exists()) == (2, "", False)
    assert ended.stderr.startswith("nccl-runbook: ") and ended.stderr.endswith("nosuch\n") and ended.stderr.count("\n") == 1


def test_a_log_with_a_colon_in_its_name_is_one_path(book: Path, tmp_path: Path) -> None:
    (tmp_path / "12:30.log").write_text("NCCL WARN\n")
    said = refused(book, *HERE, "--log", "12:30.log")
    assert "parameter log" in said and "12" not in said and "30" not in said, "the file was found; this book has no step that reads it"


def test_quotes_that_do_not_close_are_refused_with_the_parameters_name(tmp_path: Path) -> None:
    for name, arguments in (("command", ()), ("arm_a", ("-p", "arm_b", "."))):
        ended = read_cli("run", "--step", "02-environment", *HERE, "-p", name, 'bad "quotes', *arguments, "--out", tmp_path / "out")
        assert (ended.returncode, ended.stdout, (tmp_path / "out").exists()) == (2, "", False)
        assert ended.stderr.startswith(f'nccl-runbook: parameter {name}: bad "quotes ') and ended.stderr.count("\n") == 1, ended.stderr
    ended = read_cli("ab", *HERE, 'bad "quotes', ".", "--", "true")
    assert ended.returncode == 2 and ended.stderr.startswith('nccl-runbook: bad "quotes: ') and ended.stderr.count("\n") == 1, ended.stderr


def test_a_record_without_end_is_refused_at_once(book: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path / "huge"):
        assert f" {path} " in (said := refused(book, "--record", path)) and " 8 MiB" in said


def test_an_interpreter_that_cannot_be_used(book: Path, tmp_path: Path) -> None:
    assert " /nowhere/python " in refused(book, "--python", "/nowhere/python")
    assert " /bin/true " in refused(book, "--python", "/bin/true")
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nprintf 'first\\nNo such container: \\033[2Jareal\\n' >&2; exit 1\n")
    docker.chmod(0o755)
    said = refused(book, "--python", f"{docker} exec -i areal python3")
    assert f" {docker} exec -i areal python3 " in said and said.endswith(" container: [2Jareal\n") and "first" not in said
    docker.write_text(
        "#!/bin/sh\necho 'OCI runtime exec failed: exec: \"python3\": executable file not found in $PATH: unknown'; exit 126\n"
    )
    assert 'exec: "python3":' in refused(book, "--python", f"{docker} exec -i areal python3"), "what docker said"
    assert "it's" in refused(book, "--python", "it's")
    assert "interpreter" in refused(book, "--python", " ")
    bare = f"{sys.executable} -I -S"  # without site-packages there is no torch
    assert bare in (said := refused(book, "--python", bare)) and "torch" in said


def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Python has torch.distributed: an empty torch hides the real one, before the libraries of our .venv too."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/torch.py").touch()
    (tmp_path / "hidden/sitecustomize.py").write_text(
        "import importlib.util, sys\nspec = importlib.util.spec_from_file_location('torch', "
        f"{str(tmp_path / 'hidden/torch.py')!r})\nsys.modules['torch'] = importlib.util.module_from_spec(spec)\n"
    )
    return {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path / 'hidden'}:{with_library()['PYTHONPATH']}"}


def test_an_interpreter_with_torch_is_asked_for_only_where_a_step_starts_ranks(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n")
    bare = without_torch(tmp_path)
    ranks = run_cli("run", "--step", "03-fewer-gpus", "07-logs", "--log", "job.log", "--out", tmp_path / "ranks", env=bare)
    assert (ranks.returncode, ranks.stdout) == (2, "") and "torch" in ranks.stderr and ranks.stderr.count("\n") == 1
    files = run_cli("run", "--step", "07-logs", "--log", "job.log", "--out", tmp_path / "files", env=bare)
    assert (files.returncode, files.stderr) == (3, "") and read(VerdictDocument, (tmp_path / "files/verdict.json").read_bytes()).causes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_an_interpreter_is_asked_ends_that_too(number: int, code: int, book: Path, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    slow = tmp_path / "slow-python"
    slow.write_text(f"#!/bin/sh\necho $$ > {told}.part && mv {told}.part {told}\nexec sleep 600\n")
    slow.chmod(0o755)
    runner = start_cli("run", "--notebooks", book, "--python", slow)
    asked = int(wait_for(told))
    identity = {asked: start_time(asked)}
    runner.send_signal(number)
    _, errors = runner.communicate(timeout=60)
    assert runner.returncode == code and signal.Signals(number).name in errors and errors.count("\n") == 1 and gone(identity)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_who_has_gone_costs_neither_the_runs_that_follow_nor_the_exit_code(closed: str, tmp_path: Path) -> None:
    """`| head -1`, or a `| tee` that the same Ctrl-C ended: once the run stopped there, with exit code 1 and no page."""
    ours, theirs = os.pipe()
    os.close(ours)
    words = [
        "reduce",
        "--axis",
        "n=1,2",
        "--out",
        str(tmp_path / "out"),
        *(["--json"] if closed == "stderr" else []),
        "--",
        "test",
        "{n}",
        "=",
        "1",
    ]
    ended = subprocess.Popen([*CLI, *words], text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: theirs})
    os.close(theirs)
    told = "".join(filter(None, ended.communicate(timeout=60)))
    assert ended.returncode == 3 and len(list((tmp_path / "out").iterdir())) == 2 and "Traceback" not in told, told


@pytest.mark.parametrize("closed", [True, False])
def test_the_page_is_written_for_a_reader_who_has_gone_and_the_answer_told_where_no_page_can_be(closed: bool, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    if closed:
        os.close(ours)
    page = tmp_path / "page.html" if closed else Path("/proc/page.html")
    words = ["ab", ".", "X=1", "--rounds", "1", "--figure", "([0-9]+)", "--html", str(page), "--", "echo", "5"]
    ended = subprocess.Popen([*CLI, *words], text=True, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    _, errors = ended.communicate(timeout=60)
    if closed:
        assert ended.returncode == 0 and page.exists(), errors
    else:
        with open(ours) as told:
            assert "verdict: healthy" in told.read() and ended.returncode == 2 and str(page) in errors


@pytest.mark.parametrize("page", ["job.log", "link", "folder", "-", "none/page.html"])
@pytest.mark.parametrize("command", ["triage", "diagnose", "hang", "env"])
def test_a_page_replaces_nothing_that_is_not_one(command: str, page: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("export NCCL_DEBUG=INFO\n")
    (tmp_path / "link").symlink_to(log)
    (tmp_path / "folder").mkdir()
    given = page if page == "-" else tmp_path / page
    ended = read_cli(command, log, "--html", given)
    assert ended.returncode == 2 and not ended.stdout and str(given) in ended.stderr and log.read_text() == "export NCCL_DEBUG=INFO\n"
    for _ in range(2):  # a page of ours is replaced
        assert read_cli(command, log, "--html", tmp_path / "page.html").returncode != 2


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_the_encoding_of_the_terminal_lacks_costs_neither_answer_nor_page(encoding: str, tmp_path: Path) -> None:
    narrow = {**os.environ, "PYTHONIOENCODING": encoding}
    (tmp_path / "ü🚀.log").write_text("Traceback (most recent call last):\n")
    told = run_cli("plan", "sglang:d1+fsdp:d1", "--gpus", "1", "--html", tmp_path / "page.html", env=narrow)
    assert told.returncode == 3 and told.stdout.startswith("\\u2715 broken: ")
    assert "✕" in (tmp_path / "page.html").read_text(encoding="utf-8")
    as_json = run_cli("triage", tmp_path / "ü🚀.log", "--json", env=narrow)
    assert "ü🚀.log" in json.dumps(json.loads(as_json.stdout), ensure_ascii=False)


def test_several_torches_are_listed_and_nothing_starts(tmp_path: Path) -> None:
    """Two interpreters on PATH, each with a torch of its own, seen from a Python that has none."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        (folder / "torch" / "distributed").mkdir(parents=True)
        (folder / "torch" / "__init__.py").touch()
        (folder / "python3").write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
        (folder / "python3").chmod(0o755)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    env = {"PATH": ":".join(map(str, folders)), "PYTHONPATH": with_library()["PYTHONPATH"]}
    asked = [tmp_path / "bare" / "bin" / "python", "-m", "nccl_runbook.launch.interpreters"]
    several = subprocess.run(asked, env=env, capture_output=True, text=True)
    assert several.returncode == 2 and all(f"{folder}/python3" in several.stderr for folder in folders)
    one = subprocess.run(asked, env={**env, "PATH": str(folders[0])}, capture_output=True, text=True)
    assert one.returncode == 0 and one.stdout.startswith(f"{folders[0]}/python3 ")


def test_outputs_that_cannot_be_written(book: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (str(tmp_path / "file" / "below"), "/proc/nowhere"):
        assert out in (said := refused(book, *HERE, "--out", out)) and "--out" in said


def test_a_budget_or_a_folder_that_makes_no_sense(book: Path, tmp_path: Path) -> None:
    assert "'soon'" in refused(book, *HERE, "--budget", "soon")
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused(tmp_path / "empty")


def test_a_record_that_is_not_one(book: Path, tmp_path: Path) -> None:
    foreign, odd = tmp_path / "foreign.json", tmp_path / "odd.json"
    foreign.write_text('{"schema": "something/else"}')
    records.save(records.Record(step="07-other", started="2026-01-01T00:00:00Z", facts={"users": []}), odd, Redactor({}))
    assert str(foreign) in (said := refused(book, "--record", foreign)) and "(schema: " in said, "the file and the field"
    absent = tmp_path / "absent.json"
    assert str(absent) in (said := refused(book, "--record", absent)) and os.strerror(errno.ENOENT) in said
    assert str(odd) in (said := refused(book, "--record", odd)) and "07-other" in said
    odd.write_text("[]")  # of a look that was ended before its first step: nothing is run here in its place
    assert str(odd) in refused(book, "--record", odd)


def test_records_are_judged_by_their_own_notebook_and_no_interpreter_is_asked(book: Path, tmp_path: Path) -> None:
    given_record = tmp_path / "03-fewer-gpus.json"
    records.save(records.Record(step="03-fewer-gpus", started="2026-01-01T00:00:00Z", facts={"users": []}), given_record, Redactor({}))
    before = given_record.read_bytes()
    ended = run_cli("run", "--notebooks", book, "--record", given_record, env=without_torch(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert [re.search(r"\d\d-[\w-]+", line)[0] for line in ended.stdout.splitlines()[:-3]] == ["03-fewer-gpus", "99-verdict"]
    assert "judged again: True" in ended.stdout and given_record.read_bytes() == before


@pytest.mark.parametrize(
    "given",
    [["--gpus", "0"], ["--allow-busy"], ["--python", sys.executable], ["-p", "budget_s", "5"], ["--symptom", "hangs"]],
    ids=" ".join,
)
def test_no_option_of_today_changes_a_recorded_verdict(given: list[str], book: Path, tmp_path: Path) -> None:
    records.save(records.Record(step="03-fewer-gpus", started="2026-01-01T00:00:00Z"), tmp_path / "03-fewer-gpus.json", Redactor({}))
    assert "--record" in refused(book, "--record", tmp_path / "03-fewer-gpus.json", *given)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_starts_at_once_and_imports_nothing_heavy(arguments: list[str]) -> None:
    took, ended = command_s([*CLI, *arguments], 0.5, env=with_library())
    assert ended.returncode == 0 and "nccl-runbook" in ended.stdout and took < 0.5


def test_a_file_of_one_line_is_answered_within_half_a_second(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("n1:7:7 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByIndex(0) failed: Unknown Error\n")
    took, ended = command_s([*CLI, "diagnose", str(tmp_path / "job.log")], 0.5, env=with_library())
    assert ended.returncode == 3 and took < 0.5


def test_several_values_after_one_option() -> None:
    assert spread(["run", "--step", "a", "b", "--json"]) == ["run", "--step", "a", "--step", "b", "--json"]
    assert spread(["run", "-p", "n", "-1", "-p", "env=A=B", "--record", "x"]) == ["run", "-p", "n=-1", "-p", "env=A=B", "--record", "x"]
    assert spread(["run", "--step=a", "-p", "x"]) == ["run", "--step=a", "-p", "x"]


@given(st.lists(st.text()))
def test_spreading_loses_nothing(arguments: list[str]) -> None:
    joined = "".join(spread(arguments))
    assert all(a in joined for a in arguments)


COERCED = [("true", bool, True), ("False", bool, False), ("0", bool, False), ("1", bool, True), ("yes", bool, True), ("007", str, "007"),
           ("1e5", str, "1e5"), ("12", int, 12), ("1e3", float, 1000.0), (3, float, 3.0), (3, str, "3")]
REFUSED = [
    ("maybe", bool),
    ("", bool),
    (2, bool),
    ("1.5", int),
    ("1e5", int),
    (True, int),
    (True, float),
    (None, str),
    ("x", float),
    ([], str),
]


@pytest.mark.parametrize(("value", "wanted", "result"), COERCED)
def test_values_are_coerced(value: object, wanted: type, result: object) -> None:
    assert coerce("p", value, wanted) == result and type(coerce("p", value, wanted)) is wanted


@pytest.mark.parametrize(("value", "wanted"), REFUSED)
def test_values_that_could_only_be_guessed_are_refused(value: object, wanted: type) -> None:
    with pytest.raises(Unusable, match="parameter p: "):
        coerce("p", value, wanted)


@given(st.text(), st.sampled_from([bool, int, float, str]))
def test_a_text_becomes_the_type_or_is_refused(text: str, wanted: type) -> None:
    try:
        assert type(coerce("p", text, wanted)) is wanted
    except Unusable as refusal:
        assert "parameter p" in str(refusal)


@given(st.text())
def test_a_parameters_cell_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, source: str) -> None:
    path = tmp_path_factory.mktemp("cell") / "01-x.ipynb"
    path.write_text(json.dumps({"cells": [{"source": [source], "metadata": {"tags": ["parameters"]}}]}))
    try:
        assert all(p.wanted in (bool, int, float, str) for p in read_cell(path).values())
    except Unusable as refusal:
        assert "01-x.ipynb" in str(refusal)


def test_each_notebook_gets_only_what_it_declares(book: Path) -> None:
    declared = {"a": read_cell(book / "01-gpus.ipynb"), "b": {}}
    assert check_given([("budget_s", "7")], declared) == {"a": {"budget_s": 7}, "b": {}}


@pytest.mark.parametrize(("on_path", "called"), [(False, ".venv/bin/nccl-runbook"), (True, "nccl-runbook")])
def test_the_line_that_repeats_the_run_can_be_typed_as_it_stands(tmp_path, monkeypatch, on_path, called):
    program = tmp_path / "nccl-runbook"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if on_path else "/nowhere")
    monkeypatch.setattr("sys.argv", [".venv/bin/nccl-runbook", "hang"])
    assert f">{called} hang</pre>" in answer.page_of("06-timeouts", "Healthy", [], [], 0)


READERS = [
    "env {}",
    "triage {}",
    "triage {log} --against {}",
    "hang {}",
    "plan {}",
    "ab {} NCCL_DEBUG=INFO",
    "ab log:{} .",
    "sync --trace {}",
    "sync --model {}",
    "triage {log} --redact {}",
    "diagnose {}",
    "look --record {}",
    "run --log {}",
    "run --record {}",
    "reduce --axis a=1 --out {} -- true",
]
EACH = """
import json, sys
from nccl_runbook.__main__ import app
from nccl_runbook.core.facts import Unusable
for arguments in json.loads(sys.argv[1]):
    try:
        app()(args=arguments, prog_name="nccl-runbook")
    except Unusable as refusal:  # main, which can take the terminal once, says so
        print("nccl-runbook:", refusal, file=sys.stderr)
        print(2, flush=True)
    except SystemExit as ended:
        print(ended.code, flush=True)
"""


def test_an_answer_that_cannot_be_written_and_a_closed_input_end_with_a_sentence(tmp_path):
    (tmp_path / "log").write_text("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n")
    with open("/dev/full", "w") as full:  # as a disk without space
        done = subprocess.run([*CLI, "triage", str(tmp_path / "log")], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("nccl-runbook: ") and done.stderr.endswith(f"{os.strerror(errno.ENOSPC)}\n")
    done = subprocess.run(["sh", "-c", f"{shlex.join(CLI)} triage - <&-"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (4, "")
    assert (
        done.stdout.startswith("Unknown: ")
        and "standard input" in done.stdout.partition("\n")[0]
        and done.stdout.count("standard input") == 1
    )


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("triage", "--help"), ("env", "a.sh"), ("plan", "spawn", "--gpus", "8"),
                                       ("sync", "--trace", "trace.log"), ("run", "--step", "none")])
def test_each_way_to_print_ends_with_one_sentence_on_a_full_disk(tmp_path, arguments):
    (tmp_path / "a.sh").write_text("export NCCL_DEBUG=WARN\n")
    (tmp_path / "trace.log").write_text('NCCL_GUARD {"guard":"pause_trace","rank":0,"data":{"x":1.0}}\n')
    with open("/dev/full", "w") as full:
        done = subprocess.run([*CLI, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1 and "Errno" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", "out", "--log", "a.log", "--step", "07-logs"),
        ("dev", "gym", "--fault", "exits-early"),
        ("triage", "a.log"),
        ("hang", "a.log"),
        ("soak", "--for", "1s", "--", "true"),
        ("--help",),
    ],
)
@pytest.mark.parametrize("most", [10, 20, 63])
def test_a_command_that_may_open_few_files_is_refused_before_a_library_or_a_job_fails(words, most, tmp_path):
    (tmp_path / "a.log").write_text("NCCL WARN x\n")
    few = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (most, most))
    ended = run_cli(*words, preexec_fn=few, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "") and "ulimit -n" in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "/dev/zero", "/proc/kmsg"])
def test_what_is_no_file_is_one_sentence_at_once_for_every_command(tmp_path, kind):
    (tmp_path / "log").write_text("NCCL WARN\n")
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    commands = [c.format(tmp_path / kind, log=tmp_path / "log").split() for c in READERS]
    done = subprocess.run([sys.executable, "-c", EACH, json.dumps(commands)], capture_output=True, text=True, timeout=60, cwd=tmp_path,
                          env=with_library())
    assert (done.stdout.split(), done.stderr.count("\n")) == (["2"] * len(READERS), len(READERS)), done.stderr
    assert all(line.startswith("nccl-runbook: ") for line in done.stderr.splitlines())


def test_a_pipe_among_files_costs_only_itself(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "log").write_text("RuntimeError: CUDA out of memory\n")
    commands = [[c, str(tmp_path / "log"), str(tmp_path / "pipe")] for c in ("triage", "hang")]
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps(commands)], capture_output=True, text=True, timeout=60, env=with_library()
    )
    assert done.stdout.count(f"{tmp_path / 'pipe'}: ") == 1 == done.stdout.count(f"{tmp_path / 'pipe'} is ") and not done.stderr


@pytest.mark.parametrize(
    ("called", "as_json"), [("./my bin/nccl-runbook", False), ("nccl-runbook", False), ("./my bin/nccl-runbook", True)]
)
def test_lines_to_run_next_begin_with_the_command_as_it_was_typed(tmp_path, called, as_json):
    """What nobody can find under its bare name is named by its path, in JSON as in the terminal."""
    (tmp_path / "my bin").mkdir()
    script = tmp_path / "my bin/nccl-runbook"
    script.write_text(f"#!{sys.executable}\nfrom nccl_runbook.__main__ import main\nmain()\n")
    script.chmod(0o755)
    (tmp_path / "a.log").write_text("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)\n")
    env = {**with_library(), "PATH": str(tmp_path / "my bin") if called == "nccl-runbook" else "/usr/bin:/bin"}
    done = subprocess.run(
        [called, "triage", "a.log", *["--json"] * as_json], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    named = set(re.findall(r"'\./my bin/nccl-runbook'(?= watch)|(?<!/)nccl-runbook(?= watch)", done.stdout))
    assert named == {"'./my bin/nccl-runbook'" if called[0] == "." else "nccl-runbook"}, done
    (tmp_path / "a.log").write_text(
        "[rank0]: RuntimeError: nccl-runbook hang x tells more\nhost1:7:7 [0] NCCL WARN nope; nccl-runbook triage x\n"
    )
    said = subprocess.run([called, "triage", "a.log"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60).stdout
    assert (
        said.count(" nccl-runbook hang x tells more") > 1
        and "my bin/nccl-runbook' hang x" not in said
        and "nope; nccl-runbook triage x" in said
    ), said


@pytest.mark.parametrize("command", [("sync", "--methods", "gloo-flat"), ("sync", "--trace", __file__), ("ab", ".", "A=1", "--", "true")])
def test_without_a_folder_for_temporary_files_it_says_so(command):
    full = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk: nothing can be written
    ended = run_cli(*command, preexec_fn=full)
    assert ended.returncode == 1 and "temporary directory" in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr


def test_too_many_rounds_are_wrong_usage():
    ended = read_cli("ab", ".", "A=1", "--rounds", "99999999999", "--budget", "3s", "--", "true")
    assert ended.returncode == 2 and "1000" in ended.stderr and "Traceback" not in ended.stderr


def test_a_program_that_may_not_be_executed_is_told_from_one_that_is_not_there(tmp_path):
    (tmp_path / "job.sh").write_text("exit 0\n")
    said = [read_cli("reduce", "--axis", "n=1", "--out", tmp_path / "out", "--", tmp_path / name).stderr for name in ("job.sh", "none.sh")]
    assert str(tmp_path / "job.sh") in said[0] and str(tmp_path / "none.sh") in said[1]
    assert said[0] != said[1].replace("none.sh", "job.sh"), "each has its own reason"
