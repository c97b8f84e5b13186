"""00-start: the tables of symptoms, the reader of logs, what a message points to, the plan, and the line that equals the fields."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import papermill
import pytest
import typer
from hypothesis import given, settings, strategies as st
from nccl_runbook import cockpit
from nccl_runbook.__main__ import app, spread
from nccl_runbook.case.answer import Case, case, of_start
from nccl_runbook.case.given import Material
from nccl_runbook.case.judge import plan
from nccl_runbook.case.read import Start, collect_start, logs_of
from nccl_runbook.case.table import Answer, card
from nccl_runbook.cockpit import given as given_words_given, looks
from nccl_runbook.cockpit.run_process import LINES_KEPT, RunProcess
from nccl_runbook.core import records
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Severity
from nccl_runbook.core.redact import Redactor
from nccl_runbook.launch.gpu_lists import present
from nccl_runbook.messages import read
from nccl_runbook.report.pictures import macros
from nccl_runbook.report.run import write_run
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo
from nccl_runbook.triage.symptoms import matching, step_texts, symptoms
from processes import ROOT, children, gone, slowness, start_time
from pydantic import TypeAdapter

HEALTHY = "vm:1:1 [0] NCCL INFO Using network Socket\nvm:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 Init COMPLETE\nstep 1 loss 0.5\n"
DUPLICATES = [
    "init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60",
    "NCCL WARN Multiple ranks detected using the same GPU on this node",
    "NCCL WARN Multiple Ranks are using the same GPU/Partition",
]


def brought(tmp_path: Path, log: str = "", symptom: str = "") -> Start:
    path = tmp_path / "job.log"
    path.write_text(log)
    return collect_start(symptom, str(path) if log else "")


def answered(tmp_path: Path, log: str = "", symptom: str = "") -> Case:
    return of_start(brought(tmp_path, log, symptom))


def ids(told: Case) -> list[str]:
    return [f.id for f in told.found.findings]


# the table


@pytest.mark.parametrize("symptom", symptoms().values(), ids=lambda s: s.id)
def test_a_symptom_is_found_by_its_own_text_words_and_id(symptom):
    for text in filter(None, (symptom.error, symptom.words, symptom.id)):
        assert symptom in matching(text), text
    assert symptom.says.endswith(".") and symptom.source and set(symptom.steps) <= set(step_texts())


def test_the_steps_are_notebooks_and_a_healthy_log_matches_nothing():
    assert all((ROOT / "notebooks" / f"{name}.ipynb").exists() for name in step_texts())
    assert [matching(line) for line in HEALTHY.splitlines()] == [[], [], []]


# the reader


def test_a_log_is_read_as_07_reads_it(tmp_path):
    (tmp_path / "rank0.log").write_text(DUPLICATES[0] + "\n")
    for named in (str(tmp_path), str(tmp_path / "rank0.log"), f"{tmp_path / 'rank0.log'}:{tmp_path / 'none.log'}"):
        assert collect_start("", named).logs.seen == read.collect(named).seen
        assert "log-points-to-cause" in ids(of_start(collect_start("", named)))


def test_what_was_brought_survives_its_record(tmp_path):
    dumps = collect_start("", str(ROOT / "tests/data/hang/skip"))
    assert dumps.hang
    for start in (brought(tmp_path, HEALTHY + DUPLICATES[0], "hangs"), collect_start("", str(tmp_path)), collect_start("", ""), dumps):
        assert TypeAdapter(Start).validate_python(json.loads(json.dumps(to_json(start)))) == start


def test_what_an_older_version_recorded_is_judged_again(tmp_path):
    new = to_json(brought(tmp_path, HEALTHY + DUPLICATES[0], "hangs"))
    del new["hang"]
    start = TypeAdapter(Start).validate_python(json.loads(json.dumps({**new, "symptom": "hangs", "log_path": "job.log"})))
    assert of_start(start).document.causes == answered(tmp_path, HEALTHY + DUPLICATES[0], "hangs").document.causes


# one engine: the same answer wherever it is read


@pytest.mark.parametrize("line", DUPLICATES)
def test_a_log_with_a_shared_gpu_points_to_its_causes(tmp_path, line):
    told = answered(tmp_path, HEALTHY + line + "\n")
    assert [f.cause for f in told.found.findings if f.cause] == [h.cause for h in told.found.logs.hypotheses]
    assert {"device-not-set-per-rank", "scheduler-shares-gpu"} <= {f.cause for f in told.found.findings}
    first = next(f for f in told.found.findings if f.cause)
    assert first.id == "log-points-to-cause" and first.evidence[0].source.endswith("job.log line 4")


def test_a_healthy_log_points_to_nothing(tmp_path):
    told = answered(tmp_path, HEALTHY)
    assert (
        ids(told)[0] == "no-cause-in-log"
        and {f.cause for f in told.found.findings} <= {None, "benign"}
        and told.document.verdict == "unknown"
    ), "silence is never health"


def test_nothing_is_ever_healthy(tmp_path):
    every = "\n".join(s.error for s in symptoms().values())
    assert answered(tmp_path, every, every).document.verdict == "broken"
    assert [s.id for s in symptoms().values() if answered(tmp_path, s.error, s.words).document.verdict == "healthy"] == []


def test_symptom_recognised_fires_when_no_message_names_a_cause(tmp_path):
    found = [f for f in answered(tmp_path, HEALTHY, "hangs-later").found.findings if f.id == "symptom-recognised"]
    assert [(f.severity, f.cause) for f in found] == [(Severity.NOTE, None)]


def test_symptom_recognised_stays_quiet_when_a_message_names_the_cause(tmp_path):
    assert "symptom-recognised" not in ids(answered(tmp_path, DUPLICATES[0], "hangs-later"))
    assert "symptom-recognised" not in ids(
        of_start(collect_start("hangs-later", str(ROOT / "tests/data/hang/skip")))
    ), "nor when dumps name a rank"


def test_log_not_read_fires_when_there_is_no_such_file(tmp_path):
    told = of_start(collect_start("", str(tmp_path / "none.log")))
    assert "log-not-read" in ids(told) and {f.severity for f in told.found.findings} == {Severity.UNKNOWN}


def test_log_not_read_stays_quiet_when_the_log_is_empty(tmp_path):
    (tmp_path / "empty.log").touch()
    assert ids(of_start(collect_start("", str(tmp_path / "empty.log")))) == ["no-cause-in-log"]


def test_nothing_brought_fires_when_nothing_was_brought():
    assert [(f.id, f.severity) for f in of_start(collect_start("", " ")).found.findings] == [("nothing-brought", Severity.OK)]


def test_nothing_brought_stays_quiet_when_a_symptom_was_typed():
    assert ids(of_start(collect_start("it smells of smoke", ""))) == ["no-cause-in-log"]


def test_the_plan_has_every_step_once_the_deciding_ones_first(tmp_path):
    usual = plan(None, [])
    assert [step.name for step, _ in usual] == list(step_texts()) and len({why for _, why in usual}) == 1
    told = answered(tmp_path, DUPLICATES[0], "weight-sync")
    mine = [step.name for step, _ in plan(told.test, told.found.steps)]
    first = list(dict.fromkeys([*told.test.steps, *symptoms()["weight-sync"].steps]))
    assert mine[:len(first)] == first and sorted(mine) == list(step_texts())


@pytest.mark.parametrize(("log", "symptom"), [
    (HEALTHY + DUPLICATES[0], ""), ("", "hangs-later"), (HEALTHY, "it smells of smoke"), ("dumps", ""), ("dumps", "hangs"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "")], ids=repr)
def test_notebooks_page_and_terminal_say_the_same_first_line(tmp_path, monkeypatch, log, symptom):
    monkeypatch.setenv("NCCL_RUNBOOK_HEADLESS", "1")
    path = ROOT / "tests/data/hang/skip" if log == "dumps" else tmp_path / "job.log"
    if log != "dumps":
        path.write_text(log)
    paths = (str(path),) * bool(log)
    told = case(logs_of(Material(logs=paths, words=(symptom,) * bool(symptom)), None), "triage", "", "unknown")
    for notebook in ("00-start", "07-logs"):
        out = tmp_path / f"{notebook}.ipynb"
        given = {"run_dir": str(tmp_path), "log": "".join(paths), "symptom": symptom}
        papermill.execute_notebook(ROOT / "notebooks" / f"{notebook}.ipynb", out, parameters=given, progress_bar=False)
        shown = [o["data"]["text/plain"] for c in json.loads(out.read_text())["cells"] for o in c.get("outputs", ()) if "data" in o]
        assert told.document.sentence in "\n".join(map("".join, shown)).splitlines(), notebook
    assert repr(Answer(told)).splitlines()[0] == told.document.sentence


# the cockpit, without its widgets

PLAIN = {"symptom": "", "log": "", "python": "", "gpus": "", "budget_s": 300, "allow_busy": False, "steps": []}


def parsed(arguments: list[str]) -> dict:
    command = typer.main.get_command(app()).commands["run"]
    with click.Context(command) as context:
        command.parse_args(context, spread(arguments))
        return context.params


@given(
    st.fixed_dictionaries(
        {
            "symptom": (
                st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), min_size=1, max_size=40)
                .map(str.strip)
                .filter(lambda s: s and s[0] != "-")
            ),
            "log": st.sampled_from(["", "/var/log/job 1.log"]),
            "python": st.sampled_from(["", "docker exec -i areal python3"]),
            "gpus": st.sampled_from(["", "0,1"]),
            "budget_s": st.integers(10, 9999),
            "allow_busy": st.booleans(),
            "steps": st.lists(st.sampled_from(list(step_texts())), unique=True),
        }
    )
)
@settings(max_examples=60, deadline=None)
def test_the_line_shown_says_what_the_variables_say(values):
    told = parsed(cockpit.arguments(values))
    same = {"symptom": "symptom", "log": "log", "python": "python", "gpus": "gpus", "allow_busy": "allow_busy"}
    assert {k: told[v] for k, v in same.items()} == {**{k: values[k] for k in same}, "log": [values["log"]] if values["log"] else []}
    assert list(told["step"]) == values["steps"]
    assert told["budget"] == ("5m" if values["budget_s"] == 300 else f"{values['budget_s']}s")


def test_the_line_shown_holds_no_secret():
    assert "hunter2" not in cockpit.command_line({**PLAIN, "symptom": 'wandb.login(key="canary-hunter2")\nit hangs'})


def test_the_line_of_the_defaults_is_the_bare_command():
    assert cockpit.command_line(PLAIN) == "nccl-runbook run"
    assert cockpit.BUDGET_S == 300 and parsed([])["budget"] == "5m"


def test_what_a_run_says_is_escaped(tmp_path):
    run = RunProcess.__new__(RunProcess)
    run.lines, run.done, run.total, run.document, run.exit_code = ["<script>alert(1)</script>"], 1, 2, None, 1
    run.cancelled_at, run.started_at, run.ended_at, run.compared, run.outputs, run._before = None, 0.0, 1.0, None, tmp_path, ""
    records.save(records.Record(step="03-fewer-gpus", started=""), tmp_path / "latest" / "03-fewer-gpus.json", Redactor({}))
    write_run(tmp_path / "latest", RunInfo(id="x", started="", command="nccl-runbook run", planned=["01-gpu-visibility", "03-fewer-gpus"]))
    cells = macros("cells.html.j2")
    run.command = ("run",)
    ended = f"{cells.form_status({'run': run})}{cells.form_said({'run': run})}{cells.answer(None, [], run, '')}"
    assert "<script" not in ended and "&lt;script&gt;" in ended and "Ended with exit code 1 after 1 s" in ended and "<progress" not in ended
    assert "Tested" not in ended, "nothing was"
    run.exit_code = run.ended_at = None
    run.started_at = time.monotonic()
    assert run.now == "03-fewer-gpus"
    at_work = str(cells.form_status({"run": run}))
    assert '<progress value="1" max="3" aria-label="steps done"' in at_work and "now 03-fewer-gpus" in at_work and "<script" not in at_work
    run.total = 0
    assert "<progress aria-label" in str(cells.form_status({"run": run})), "no empty bar while no step is known"


@pytest.mark.parametrize("ended", [[], ["03-fewer-gpus"]])
def test_a_cancelled_run_offers_a_report_if_a_step_had_ended(tmp_path, ended):
    run = RunProcess.__new__(RunProcess)
    run.lines, run.exit_code, run.cancelled_at, run.started_at, run.ended_at, run.compared = [], 130, 8.0, 0.0, 9.0, None
    run.command, run.outputs, run._before = ("run",), tmp_path, ""
    done = [records.Record(step=name, started="", status="ok") for name in ("00-start", *ended)]
    for record in done:
        records.save(record, tmp_path / "x" / f"{record.step}.json", Redactor({}))
    (tmp_path / "x" / "index.html").write_text("page")
    plan = ["00-start", "03-fewer-gpus"]
    run.document = verdict_document(RunInfo(id="x", started="", command="nccl-runbook run", planned=plan, interrupted=True), done)
    shown = str(macros("cells.html.j2").form_status({"run": run})) + str(macros("cells.html.j2").answer(None, [], run, run.page or ""))
    assert ("no step had ended" in shown, "Tested" in shown, "open the report" in shown) == (not ended, bool(ended), bool(ended))


def test_a_line_that_comes_while_the_lines_are_read_disturbs_no_reader(tmp_path):
    run = RunProcess.__new__(RunProcess)
    run.lines, run.process = (), argparse.Namespace(stderr=io.StringIO("one\ntwo\n"))
    run._read()
    reading = reversed(run.lines)
    assert next(reading) == "two"
    run.process.stderr = io.StringIO("three\n")
    run._read()
    assert list(reading) == ["one"] and list(run.lines) == ["one", "two", "three"]
    run.process.stderr = io.StringIO("x\n" * 500)
    run._read()
    assert len(run.lines) == LINES_KEPT


def test_headless_it_is_a_table_and_needs_no_widgets(monkeypatch):
    monkeypatch.setenv("NCCL_RUNBOOK_HEADLESS", "1")
    shown = repr(cockpit.show(dict(PLAIN), of_start(collect_start("", ""))))
    assert all(text in shown for text in ("no log and no symptom", "03-fewer-gpus", "nccl-runbook run", "nccl-runbook diagnose"))
    asked = "import sys, nccl_runbook.cockpit; assert not {'ipywidgets', 'torch', 'IPython', 'papermill'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", asked], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "lib")})


def test_the_notebook_runs_headlessly_and_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_RUNBOOK_HEADLESS", "1")
    (tmp_path / "job.log").write_text(HEALTHY + DUPLICATES[0])
    out = tmp_path / "out.ipynb"
    given = {"run_dir": str(tmp_path), "log": str(tmp_path / "job.log")}
    papermill.execute_notebook(ROOT / "notebooks" / "00-start.ipynb", out, parameters=given, progress_bar=False)
    record = records.load(tmp_path / "00-start.json")
    assert (record.status, record.facts["start"]["logs"]["files"][0]["lines"], record.commands) == ("broken", 4, [])
    assert "application/vnd.jupyter.widget" not in out.read_text() and len(record.tables) == 1 and record.wall_s < 30


@pytest.mark.parametrize(("symptom", "status", "found"), [
    ("", "ok", ["nothing-brought"]), ("it smells of smoke", "unknown", ["no-cause-in-log"]),
    ("hangs-later", "unknown", ["no-cause-in-log", "symptom-recognised"])])
def test_the_notebook_runs_with_a_symptom_alone_and_with_nothing(tmp_path, monkeypatch, symptom, status, found):
    monkeypatch.setenv("NCCL_RUNBOOK_HEADLESS", "1")
    given = {"run_dir": str(tmp_path), "symptom": symptom}
    papermill.execute_notebook(ROOT / "notebooks" / "00-start.ipynb", tmp_path / "out.ipynb", parameters=given, progress_bar=False)
    record = records.load(tmp_path / "00-start.json")
    assert (record.status, [f.id for f in record.findings], len(record.tables)) == (status, found, 1)


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """The form over plain variables, without a frontend."""
    pytest.importorskip("ipywidgets")
    from nccl_runbook.cockpit import form

    monkeypatch.setenv("NCCL_RUNBOOK_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(form, "_latest", None)
    return form.Cockpit({**PLAIN})


def typed(opened, text: str) -> dict:
    """The variables once that was typed and read."""
    opened.fields["given"].value = text
    for timer in threading.enumerate():  # of the form: a second reading would tick its own steps again, after what the test then ticks
        if isinstance(timer, threading.Timer):
            timer.cancel()
    opened.read(opened.asked)
    return opened.namespace


def test_fields_write_plain_variables_and_a_second_run_is_refused(opened, tmp_path, monkeypatch):
    from nccl_runbook.cockpit import form

    # of a machine behind a prefix nobody knows how many GPUs it has
    for name, value in (("python", "env python3"), ("gpus", " 0,1 "), ("budget_s", 90), ("allow_busy", True)):
        opened.fields[name].value = value
    opened.boxes["04-transports"].value = False
    variables = opened.namespace
    assert (variables["gpus"].strip(), variables["budget_s"], variables["allow_busy"]) == ("0,1", 90, True)
    assert variables["steps"] == [name for name in form.TESTS if name != "04-transports"]
    assert "--gpus 0,1 --budget 90s --allow-busy" in opened.texts["line"].value
    opened.cancel()  # nothing is at work
    ended = threading.Event()
    at_work = RunProcess(["--step", "none"], tmp_path, lambda run: run.at_work or ended.set())
    monkeypatch.setattr(form, "_latest", at_work)
    opened.run()
    assert form._latest is at_work
    assert ended.wait(30)


def test_what_is_typed_is_read_as_the_command_line_reads_it(opened, tmp_path):
    data = ROOT / "tests" / "data" / "hang"
    assert typed(opened, "tests/data/hang/skip")["log"] == str(data / "skip") and opened.case(None).lead.id == "hang-told"
    assert typed(opened, f"{data / 'skip'}\ntests/data/hang/op")["log"] == f"{data / 'skip'}:{data / 'op'}"
    assert typed(opened, "ncclSystemError") | {"steps": []} == {**PLAIN, "symptom": "ncclSystemError"}
    assert typed(opened, f"{DUPLICATES[0]}\nstep 2 of 3")["log"] == str(tmp_path / "pasted.log")
    assert opened.boxes[opened.case(None).test.line.split()[-1]].value
    assert (
        typed(opened, "hf_abcdefghijklmnopqrstuvwxyz012345 is my\ntoken x")["log"] and "hf_abc" not in (tmp_path / "pasted.log").read_text()
    )
    assert typed(opened, "")["log"] == "" and opened.case(None) is None


def test_a_run_reads_the_dumps_that_were_given(opened):
    typed(opened, "tests/data/hang/skip")
    opened.boxes["03-fewer-gpus"].value = True
    values = opened.values()
    assert (values["log"], values["steps"]) == (str(ROOT / "tests/data/hang/skip"), ["03-fewer-gpus", "06-timeouts"])


@pytest.mark.parametrize(
    "field, wrong",
    [
        *(
            ("given", word)
            for word in (
                "/nowhere/a.log",
                "tests/data /nowhere/a.log",
                "a.log b.log",
                "*.log",
                "s3://bucket/job.log",
                "node17.cluster.local",
                "4194304",
                "pid:4194304",
                "PID 4194304",
                sys.executable,
                "/dev/zero",
            )
        ),
        *(("gpus", word) for word in ("1-0", "zero", "0,a", "0 1", "0,,1", "-1", "cuda:0", "999")),
        *(("python", word) for word in ("/nowhere/python -u", "python3 'x", "/tmp", "python3, python3.11")),
        ("budget_s", 0),
        ("budget_s", 99_999_999),
        *(("setting", word) for word in ("foo", "=1", "A=1 B", "A=1; rm -rf /")),
    ],
)
def test_wrong_input_is_refused_before_anything_runs(opened, field, wrong):
    before = opened.fields[field].value
    opened.fields[field].value = wrong
    if field == "given":
        opened.read(opened.asked)
    assert refused(opened) == [field] and opened.buttons["run"].disabled and "<pre" not in opened.texts["line"].value
    assert opened.fields[field].description.rstrip("?") in opened.rows[field].children[1].value
    opened.fields[field].value = before
    opened.read(opened.asked)
    assert refused(opened) == [] and not opened.buttons["run"].disabled


def test_every_wrong_field_is_marked_and_named_beside_the_button(opened):
    wrong = {"given": "/nowhere/a.log", "python": "/nowhere/python", "gpus": "seven", "budget_s": 0}
    for field, value in wrong.items():
        opened.fields[field].value = value
    opened.read(opened.asked)
    assert refused(opened) == [name for name in opened.rows if name in wrong]
    assert all(opened.fields[name].description.rstrip("?") in opened.texts["status"].value for name in wrong)
    opened.fields["gpus"].value = ""
    assert refused(opened) == [name for name in opened.rows if name in wrong and name != "gpus"]


def test_a_wrong_budget_is_no_price(opened):
    opened.fields["budget_s"].value = 0
    assert "About 0 s" not in opened.texts["price"].value and f"About {opened._seconds(opened._ticked())} s" in opened.texts["price"].value


def test_one_count_of_steps_and_a_bar_that_is_full_only_at_the_end(tmp_path):
    """The form counts as the lines do that the run prints; after the last step the verdict is still to come."""
    run = RunProcess.__new__(RunProcess)
    run.cancelled_at = run.ended_at = run.document = run.compared = run.exit_code = None
    run.outputs, run._before, run.started_at, run.command = tmp_path, "", time.monotonic(), ("run",)
    run.lines, run.done, run.total = (), 0, 0
    for number in (1, 2, 3):
        run.process = argparse.Namespace(stderr=io.StringIO(f"[{number}/3] 03-fewer-gpus  ok  1.0 s\n"))
        run._read()
        at_work = str(macros("cells.html.j2").form_status({"run": run}))
        value, most = map(int, re.search(r'<progress value="(\d+)" max="(\d+)"', at_work).groups())
        assert (value, f"{number} of 3" in at_work) == (number, True) and value < most
    assert len(re.findall(r"\d+ (?:of|/)", at_work + str(macros("cells.html.j2").form_said({"run": run})))) == 1


def test_what_is_open_stands_above_what_is_folded(opened, tmp_path):
    """Other likely causes before warnings, and both before what to collect on the next run."""
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\nexport NCCL_SOCKET_IFNAME=lo\nexport NCCL_DEBUG=LOUD\nexport MASTER_ADDR=localhost\n"
        "srun torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint $MASTER_ADDR:29500 train.py\n"
    )
    typed(opened, str(tmp_path / "job.sbatch"))
    shown = card(opened.case(None))
    also, warning = shown.index("<summary>Also likely: MASTER_ADDR"), shown.index("LOUD")
    assert also < warning and "<details open" in shown[also - 60:also]
    closed = [m.start() for m in re.finditer("<details style", shown)]
    assert all(place > warning for place in closed)


def test_a_long_setting_is_read_at_once(opened):
    began = time.process_time()
    for times in (20, 20_000):
        opened.fields["setting"].value = "A=" + "a_b=" * times + " -"
        assert refused(opened) == ["setting"]
    opened.fields["setting"].value = "A=" + "a_b=" * 20_000
    assert refused(opened) == [] and (time.process_time() - began) / slowness() < 5
    opened.fields["setting"].value = ""


def refused(opened) -> list[str]:
    """The fields at which a refusal stands."""
    return [name for name, row in opened.rows.items() if 'role="alert"' in row.children[1].value]


def test_a_job_that_hangs_is_looked_at_first(opened):
    styles = lambda: [opened.buttons[name].button_style for name in ("look", "run")]  # noqa: E731
    assert styles() == ["", "primary"]
    typed(opened, "my job hangs since ten minutes")
    assert styles() == ["primary", ""] and not opened.boxes["03-fewer-gpus"].value
    opened.fields["symptom"].value = "hangs-later"
    assert typed(opened, "")["symptom"] == "hangs-later" and styles() == ["primary", ""]
    opened.fields["symptom"].value = ""
    assert typed(opened, DUPLICATES[0])["symptom"] and styles() == ["", "primary"]


def test_ranks_here_are_named_in_the_field(opened, monkeypatch):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    ) as rank:
        typed(opened, "it hangs")
        opened.look()
        assert f"pid:{rank.pid}" in opened.fields["given"].value.splitlines()
        monkeypatch.setattr(looks, "GAP_S", 0.1)
        opened.read(opened.asked)
        assert "06-timeouts" in [r.step for r in opened.gathered.records] and opened.buttons["look"].button_style == ""
        rank.stdin.close()


def test_a_look_stays_when_its_job_has_ended(opened, monkeypatch):
    monkeypatch.setattr(looks, "GAP_S", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    ) as rank:
        typed(opened, f"pid:{rank.pid}")
        first = opened.gathered
        rank.stdin.close()
    opened.fields["symptom"].value = "slow-collectives"  # everything is read again
    opened.read(opened.asked)
    assert first.records and refused(opened) == [] and not opened.buttons["run"].disabled
    assert [r.facts for r in opened.gathered.records if r.step == "06-timeouts"] == [r.facts for r in first.records]
    test = opened.case(None).test
    assert test is None or test.steps, "nobody can look at a job that has ended"
    opened.look()
    assert f"pid:{rank.pid}" not in opened.fields["given"].value or opened.looks.last, "no process that cannot be read"


def test_a_new_look_names_the_ranks_that_run_now(opened, monkeypatch):
    monkeypatch.setattr(looks, "GAP_S", 0.1)
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    ended = set()  # of this test: other ranks of this machine may end at any moment
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as rank:
            opened.fields["given"].value = f"it hangs\n{opened.fields['given'].value.partition(chr(10))[2]}"
            opened.look()
            opened.read(opened.asked)
            named = opened.fields["given"].value.splitlines()
            assert named[0] == "it hangs" and f"pid:{rank.pid}" in named and ended.isdisjoint(named)
            rank.stdin.close()
        ended.add(f"pid:{rank.pid}")


def test_the_estimate_is_that_of_this_machine(opened):
    asked = ["03-fewer-gpus", "04-transports"]
    steps = step_texts()
    assert opened._seconds(asked) == sum(steps[name].seconds(4 if present() is None else present()) for name in asked)
    assert [steps["03-fewer-gpus"].seconds(n) for n in (0, 4)] == [steps["03-fewer-gpus"].cpu_s, steps["03-fewer-gpus"].about_s]
    assert all(s.seconds(n) < s.seconds(n + 1) for s in steps.values() for n in range(8) if s.cpu_s < s.about_s)
    assert f"(about {opened._seconds(asked[:1])} s)" in opened.boxes["03-fewer-gpus"].description
    typed(opened, DUPLICATES[0])
    test = opened.case(None).test
    assert test.about_s == opened._seconds(test.steps), "the answer and the form name one time"


def test_a_cause_that_is_also_likely_has_a_fold_of_its_own(tmp_path):
    told = answered(
        tmp_path,
        "NCCL WARN Bootstrap : no socket interface found\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB.\n",
    )
    also = [c for c in told.document.causes if c.status == "likely" and c.id != told.lead.cause]
    folds = re.findall(r"<summary>(.*?)</summary>", card(told))
    assert also and [f for f in folds if f.startswith("Also ")] == [f"Also likely: {c.title}" for c in also]


def test_a_long_text_is_a_log_and_no_list_of_paths(tmp_path):
    lines = ["tests", *["step 1 loss 0.5"] * given_words_given.MOST_NAMES]
    assert given_words_given.items("\n".join(lines), ROOT, tmp_path / "p.log") == [str(tmp_path / "p.log")]
    assert given_words_given.items("\n".join(lines[:3]), ROOT, tmp_path / "p.log") == [str(ROOT / "tests"), str(tmp_path / "p.log")]


def test_the_gpus_of_a_node_are_asked_for_where_a_launch_needs_them(opened, tmp_path):
    line = "python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 2 --vllm_num_engines 2 --ref_num_nodes 1"
    (tmp_path / "train.sh").write_text(f"{line} --ref_num_gpus_per_node 2 --critic_num_nodes 1 --critic_num_gpus_per_node 2\n")
    assert typed(opened, str(tmp_path / "train.sh")) and opened.rows["node_gpus"].layout.display == ""
    opened.fields["node_gpus"].value = 8
    opened.read(opened.asked)
    assert "not-planned" not in ids(opened.case(None)) and opened.rows["node_gpus"].layout.display == ""
    assert typed(opened, "ncclSystemError") and "node_gpus" not in opened.namespace


@given(st.text(max_size=300), st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_whatever_is_pasted_is_paths_one_line_or_a_file(tmp_path_factory, first, second):
    pasted = tmp_path_factory.getbasetemp() / "pasted.log"
    found = given_words_given.items(f"{first}\n{second}", Path("/nowhere"), pasted)
    lines = {line.strip() for line in f"{first}\n{second}".splitlines()}
    assert all(word in lines or os.path.lexists(word) for word in found)


# a run as a process


@pytest.mark.slow
def test_a_run_ends_with_the_process_that_started_it(tmp_path):
    """kill -9 of the notebook kernel, here of a process that holds a run as the cockpit does: everything below it is gone."""
    code = ("import sys, time; from pathlib import Path; from nccl_runbook.cockpit.run_process import RunProcess\n"
            f"RunProcess(['--out', {str(tmp_path / 'run')!r}, '--step', '03-fewer-gpus'], Path('.'), print); time.sleep(99)")
    holder = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "lib")})
    try:
        until = time.monotonic() + 40
        page = tmp_path / "run" / "verdict.json"  # before it is there, children are interpreters that are asked for their torch
        while (len(below := children(holder.pid)) < 5 or not page.exists()) and time.monotonic() < until:
            time.sleep(0.02)
        assert len(below) >= 5, "runner, kernel, warm process, two ranks"
        ours = {pid: start_time(pid) for pid in below}
    finally:
        holder.kill()
        holder.wait()
    assert gone(ours, 10.0)  # at once; a crowded machine takes longer
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["run"]["interrupted"] and "nterrupted" in verdict["sentence"]


def test_wrong_usage_is_told_in_a_sentence_and_a_second_end_is_harmless(tmp_path):
    changes, ended = [], threading.Event()
    (tmp_path / "old").mkdir()
    (tmp_path / "latest").symlink_to("old")  # of a run before it
    run = RunProcess(["--step", "03-fewer-gpu"], tmp_path, lambda r: (changes.append(r.at_work), r.at_work or ended.set()))
    assert ended.wait(30)
    assert (
        re.search(r"^Not started: .*did you mean 03-fewer-gpus", str(macros("cells.html.j2").run_ended(run)))
        and run.page is None
        and run.folder is None
        and run.now == ""
    )
    run.cancel()
    assert run.exit_code == 2 and not run.interrupted and changes[-1] is False
