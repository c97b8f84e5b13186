"""`nccl-runbook diagnose`: one door for everything that a failed job leaves, one answer, the strongest proof first."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import jsonschema
import pytest
from book_samples import with_library
from hypothesis import given, strategies as st
from nccl_runbook.case.given import sort
from nccl_runbook.case.judge import READING, cheapest, following, left, next_test
from nccl_runbook.case.read import left_by
from nccl_runbook.causes.causes import causes
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import STATUSES, Evidence, Finding, Remedy, Severity
from nccl_runbook.core.records import Record, of_findings, save
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hang.judge import judge_hang
from nccl_runbook.hang.read import collect as collect_hang
from nccl_runbook.logs.kind import DAMAGED
from nccl_runbook.messages.clues import clues
from nccl_runbook.report.verdict import VERDICT_STEP, verdict_document
from nccl_runbook.report.verdict_document import RunInfo
from nccl_runbook.report.verdict_sentence import leading
from nccl_runbook.triage.symptoms import step_texts
from processes import ROOT
from warm_cli import read_cli

DATA = Path(__file__).parent / "data"
SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/diagnose.json").read_text())
OOM = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB of which 1.2"
    " GiB is free."
)
NVML = "node0:1:1 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByIndex(0) failed: Unknown Error"
SBATCH = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\nexport NCCL_DEBUG=ERROR\nsrun python3 train.py\n"
FIX = (Remedy("you", "do it"),)


def diagnose(*given: str | Path, code: int | None = None) -> dict:
    done = read_cli("diagnose", *given, "--json", "--gap", "0")
    assert done.returncode in ((0, 3, 4) if code is None else (code,)), done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["exit_code"] == done.returncode
    return document


@pytest.mark.parametrize("fault", sorted(p.name for p in (DATA / "hang").iterdir() if p.is_dir()))
def test_dumps_are_answered_as_hang_answers(fault):
    """The first line names rank and cause wherever the single best tool does."""
    ours, theirs = diagnose(DATA / "hang" / fault), json.loads(read_cli("hang", DATA / "hang" / fault, "--json").stdout)
    if theirs["culprits"] and theirs["verdict"] != "unknown" and (theirs["status"], ours["verdict"]) != ("possible", "broken"):
        assert (ours["lead"] or {}).get("cause") == theirs["cause"] and ours["verdict"] == theirs["verdict"]
        assert theirs["sentence"].rstrip(".") in ours["sentence"]
        lead = next((c for c in ours["causes"] if c["id"] == theirs["cause"]), {"remedy": ours["lead"]["remedy"]})
        assert lead["remedy"] == ours["lead"]["remedy"] and "nccl-runbook hang" not in json.dumps(lead["remedy"]), "the dumps were read"
    else:
        assert ours["verdict"] == theirs["verdict"] or ours["lead"]["id"] in ("log-points-to-cause", "log-undecided")


def test_a_folder_of_logs_dumps_and_scripts_is_one_answer(tmp_path):
    for path in (DATA / "hang" / "skip").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "job.sbatch").write_text(SBATCH)
    document = diagnose(tmp_path, code=3)
    alone = json.loads(read_cli("hang", DATA / "hang" / "skip", "--json").stdout)
    assert document["lead"]["id"] == "hang-told" and document["lead"]["cause"] == alone["cause"]
    assert document["brought"]["scripts"] == [str(tmp_path / "job.sbatch")]
    assert {"06-timeouts", "02-environment"} <= {s["step"] for s in document["steps"]}
    told = read_cli("diagnose", tmp_path).stdout
    assert told.splitlines()[0].startswith("Broken: ") and told.count(alone["sentence"].rstrip(".")) == 1


def test_a_message_that_is_the_fault_leads_before_a_setting(tmp_path):
    (tmp_path / "a.log").write_text(NVML + "\n")
    (tmp_path / "run.sh").write_text(SBATCH)
    for order in ([tmp_path / "a.log", tmp_path / "run.sh"], [tmp_path / "run.sh", tmp_path / "a.log"]):
        document = diagnose(*order, code=3)
        assert document["lead"]["cause"] == json.loads(read_cli("triage", tmp_path / "a.log", "--json").stdout)["hypotheses"][0]["cause"]
        assert "a.log line 1" in document["sentence"]


@pytest.mark.parametrize(("frames", "named"), [
    (["/src/prep.py\", line 41, in <module>", "/src/tok.py\", line 7, in encode"], "/src/tok.py:7"),
    (["/src/prep.py\", line 41, in <module>", "/env/lib/python3.12/site-packages/tok/core.py\", line 900, in encode"], "/src/prep.py:41"),
    (["/env/lib/python3.12/runpy.py\", line 88, in _run_code", "<frozen runpy>\", line 9, in x"], ""), ([], "")])
def test_an_exception_of_the_program_names_the_line_to_fix_and_the_page_has_no_empty_card(tmp_path, frames, named):
    (tmp_path / "j.log").write_text(
        "\n".join(
            [
                "[rank2]: Traceback (most recent call last):",
                *(f'[rank2]:   File "{frame}\n[rank2]:     go(one)' for frame in frames),
                "[rank2]: IndexError: list index out of range",
                (
                    "E0301 10:07:41.702000 91 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 2"
                    " (pid: 96) of binary: python"
                ),
                "",
            ]
        )
    )
    document = diagnose(tmp_path / "j.log", "--html", tmp_path / "p.html", code=3)
    lead = document["lead"]
    assert lead["cause"] == "peer-crashed" and (
        not named or (f" {named}, " in lead["remedy"][0]["text"] and "IndexError" in lead["remedy"][0]["text"])
    )
    assert named or not re.search(r"\w:\d", lead["remedy"][0]["text"])
    assert not re.search(r"<article[^>]*>\s*</article>", (tmp_path / "p.html").read_text())
    shown = read_cli("diagnose", tmp_path / "j.log").stdout
    assert "to do: " in shown and named in shown


def test_the_own_error_of_a_rank_leads_before_its_death(tmp_path):
    (tmp_path / "rank3.log").write_text(f"[rank3]: Traceback (most recent call last):\n{OOM}\n")
    (tmp_path / "rank0.log").write_text("[rank0]:[W ProcessGroupNCCL.cpp:1] Connection closed by remote peer, rank 3 died\n")
    assert diagnose(tmp_path)["lead"]["cause"] == "gpu-memory-exhausted"


@pytest.mark.parametrize("words, what", [
    ("sglang:d1+fsdp:d1", "allocations"), ("python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8", "allocations"),
    ("CUDA error: invalid device ordinal", "words"), ("hangs at the first all_reduce", "words"), ("ncclSystemError", "words"),
    ("RuntimeError: a/b", "words"), ("PID", "pids"), ("pid:PID", "pids"), ("-", "logs")])
def test_what_is_no_path_is_recognised(words, what):
    assert {name for name, found in vars(sort([words.replace("PID", str(os.getpid()))])).items() if found} == {what}


@pytest.mark.parametrize("name, text, what", [
    ("a.txt", "step 1\n", "logs"), ("train", "#!/usr/bin/env bash\ntorchrun x.py\n", "scripts"), ("j", "# c\n#SBATCH -N 2\n", "scripts"),
    ("e.txt", "NCCL_DEBUG=INFO\nA=1\nB=2\nC=3\n", "scripts"), ("c.yaml", "a: 1\n", "configurations"), ("s.slurm", "x\n", "scripts"),
    ("r.json", '{"schema": "nccl-runbook/record/2", "step": "07-logs"}', "records"), ("d.json", '{"pg_config": {}}', "logs")])
def test_a_file_is_recognised_by_its_content(tmp_path, name, text, what):
    (tmp_path / name).write_text(text)
    (tmp_path / "other.log").write_text("step 2\n")
    assert {n for n, found in vars(sort([str(tmp_path / name)])).items() if found} == {what}
    in_folder = vars(sort([str(tmp_path)]))
    assert in_folder[what] == ((str(tmp_path),) if what == "logs" else (str(tmp_path / name),))


def nothing_to_read(folder: Path, what: str) -> Path:
    """A folder without files, a file without bytes, a program, or a link to nothing."""
    path = folder / what
    if what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(folder / "gone")
    else:
        path.write_bytes(b"\x7fELF\x02\x01" + bytes(4000) if what == "program" else b"")
    return path


def test_what_cannot_be_read_hides_nothing_of_the_rest_and_is_no_error(tmp_path):
    nothing = [nothing_to_read(tmp_path, what) for what in ("folder", "empty", "program", "link")]
    (tmp_path / "a.log").write_text("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n")
    for rest in (tmp_path / "a.log", DATA / "hang" / "skip"):
        answers = [diagnose(*both) for both in ([rest], [rest, *nothing], [*nothing, rest])]
        assert len({(a["sentence"], a["verdict"]) for a in answers}) == 1
    assert [read_cli("hang", one).returncode for one in nothing] == [4, 4, 4, 2], "a link to nothing is a file that is missing"


def test_a_note_on_a_setting_stands_beside_an_undecided_log(tmp_path):
    (tmp_path / "job.sh").write_text("#!/bin/bash\nexport NCCL_SOCKET_IFNAME=lo\ntorchrun --standalone --nproc-per-node 4 train.py\n")
    (tmp_path / "job.log").write_text("n1:10:10 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n")
    ended = read_cli("diagnose", tmp_path / "job.sh", tmp_path / "job.log")
    assert ended.returncode == 4 and "note: NCCL_SOCKET_IFNAME" in ended.stdout


@pytest.mark.parametrize(
    "command",
    [["diagnose"], ["triage"], ["hang"], ["env"], ["look", "--record"], ["run", "--record"], ["run", "--log"], ["sync", "--trace"]],
    ids=" ".join,
)
def test_a_link_to_nothing_is_answered_like_a_missing_file(command, tmp_path):
    (tmp_path / "latest.log").symlink_to(tmp_path / "rotated.log")
    codes = [read_cli(*command, tmp_path / name).returncode for name in ("latest.log", "absent.log")]
    assert codes == [2, 2]


@pytest.mark.parametrize("junk", [b"\x80\x02nothing", b"", b"\x7fELF" + bytes(200)], ids=["pickle", "empty", "program"])
def test_a_file_that_is_no_dump_is_named_beside_the_good_ones(junk, tmp_path):
    for path in (DATA / "hang" / "skip").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    alone = diagnose(tmp_path)
    (tmp_path / "nccl_trace_rank_7").write_bytes(junk)
    beside = read_cli("diagnose", tmp_path)
    assert "nccl_trace_rank_7" in beside.stdout and diagnose(tmp_path)["lead"]["title"] == alone["lead"]["title"]


@pytest.mark.parametrize("text", ['{"step": "07-logs", "findings": [', '[1, 2', '{"a": "b'])
def test_a_damaged_json_file_is_either_read_or_not(text, tmp_path):
    (tmp_path / "broken.json").write_text(text + "\n")
    answer = read_cli("diagnose", tmp_path / "broken.json").stdout
    assert "line read" not in answer and answer.count("damaged JSON") == 1


def test_the_page_of_dumps_is_named_by_its_command_and_says_what_is_next(tmp_path):
    read_cli("hang", DATA / "hang" / "skip", "--html", tmp_path / "h.html")
    page = (tmp_path / "h.html").read_text()
    assert "06-timeouts" not in page and "<strong>Next" in page and "open hang_job.py:60" in page


def test_what_somebody_reports_is_not_said_to_stand_in_a_log():
    sentence = diagnose("No CUDA GPUs are available")["sentence"]
    assert "(your description)" in sentence and "the log shows" not in sentence


def test_a_line_that_a_program_printed_counts_as_printed_where_it_is_pasted():
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    pasted, denied = diagnose(xid), diagnose(f"I see no {xid}")
    assert (pasted["lead"]["cause"], pasted["lead"]["status"]) == ("gpu-or-link-fault", "established")
    assert denied["verdict"] == "unknown"


def test_an_archive_is_read_as_its_folder(tmp_path):
    with tarfile.open(tmp_path / "d.tar.gz", "w:gz") as archive:
        archive.add(DATA / "hang" / "skip", "skip")
    packed, plain = diagnose(tmp_path / "d.tar.gz"), diagnose(DATA / "hang" / "skip")
    assert packed["lead"]["cause"] == plain["lead"]["cause"] and packed["verdict"] == plain["verdict"]


def test_a_record_is_judged_with_the_rest(tmp_path):
    (tmp_path / "a.log").write_text(OOM + "\n")
    run = read_cli("run", "--step", "07-logs", "--log", tmp_path / "a.log", "--out", tmp_path / "run")
    assert run.returncode in (3, 4)
    document = diagnose(tmp_path / "run" / "07-logs.json")
    assert document["lead"]["cause"] == "gpu-memory-exhausted" and document["brought"]["records"]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("severity", [Severity.BROKEN, Severity.NOTE])
def test_a_cause_that_another_version_named_is_shown(tmp_path, status, severity):
    made = Record(step="04-transports", status="broken", started="2026-11-28T00:00:00Z",
                  findings=[Finding("f", severity, "a cause of tomorrow", (), FIX, "cause-of-tomorrow", status)])
    save(made, tmp_path / "r.json", Redactor({}))
    assert [c["id"] for c in diagnose(tmp_path / "r.json")["causes"]] == ["cause-of-tomorrow"]


@pytest.mark.parametrize("wrong", [("nope.log",), ("/nope/x",), ("99999999",), ("sglang:d1+fsdp:d1",), ("--gpus", "-1")])
def test_wrong_input_is_one_sentence(wrong, tmp_path):
    done = read_cli("diagnose", *wrong)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    (tmp_path / "r.json").write_text('{"schema": "nccl-runbook/record/2", "step": 7}')
    assert read_cli("diagnose", tmp_path / "r.json").returncode == 2


def test_the_page_says_the_sentence_of_the_terminal(tmp_path):
    done = read_cli("diagnose", DATA / "hang" / "skip", "--html", tmp_path / "page.html")
    import html

    assert html.escape(done.stdout.splitlines()[0].rstrip("."), quote=False) in (tmp_path / "page.html").read_text().replace("&#39;", "'")
    assert (tmp_path / "page.html").stat().st_size <= 300_000 and "<script" not in (tmp_path / "page.html").read_text()


def test_the_next_step_shows_its_cost_and_the_causes_that_it_decides(tmp_path):
    page = tmp_path / "page.html"
    words = ("diagnose", "hangs at the first all_reduce", "--html", page)
    test = json.loads(read_cli(*words, "--json").stdout)["next"]
    shown = read_cli(*words).stdout
    step = step_texts()[test["line"].rpartition(" ")[2]]
    assert (test["about_s"], test["costs"]) == (step.about_s, step.costs) and test["separates"]
    for cause in test["separates"]:
        assert causes()[cause].title in page.read_text() and causes()[cause].title in shown
    assert step.costs in shown and step.costs in page.read_text()


def test_a_gpu_second_costs_more_than_a_second_without_one():
    """04 would separate all of ten causes for 60 s of four GPUs, 01 one of them for 15 s and no GPU; by the second, 04 is first."""
    decided = {name: [c for c in causes() if causes()[c].decides[0] == name] for name in step_texts()}
    busy, idle = "04-transports", "01-gpu-visibility"
    assert step_texts()[busy].gpus == 4 and step_texts()[idle].gpus == 0
    assert cheapest([*decided[busy][:9], decided[idle][0]], ()).steps == [idle]


def test_the_step_that_dumps_ask_for_is_described_by_its_own_question():
    """rank 1 ended for lack of memory: what to run next answers who holds it, not where ranks are."""
    oom = [Record(step="06-timeouts", status="broken", started="2026-11-28T00:00:00Z", findings=[
        Finding("hang-told", Severity.BROKEN, "x", (Evidence("decides: nccl-runbook run --step 01-gpu-visibility", "next"),), FIX)])]
    document = verdict_document(RunInfo(id="x", started="2026-11-28T00:00:00Z"), oom)
    test = next_test(document, None, (), (), {})
    assert (test.why, test.about_s) == (step_texts()["01-gpu-visibility"].answers, step_texts()["01-gpu-visibility"].about_s)


def test_what_is_missing_comes_before_what_is_sound_and_an_empty_script_says_nothing_beside_a_log(tmp_path):
    (tmp_path / "a.log").write_text("Rank 1: step 3 done\n[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,"
                                    " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds\n")
    (tmp_path / "a.sh").write_text("#!/bin/bash\nexport NCCL_IB_TIMEOUT=22\ntorchrun t.py\n")
    first, second = diagnose(tmp_path, code=4)["sentence"].partition("; ")[::2]
    assert "ALLREDUCE 5" in first and "variable" not in first and "variable" in second
    (tmp_path / "a.sh").write_text("#!/bin/bash\ntorchrun t.py\n")
    assert [s["step"] for s in diagnose(tmp_path, code=4)["steps"]] == ["07-logs"]


def given_files(folder: Path) -> dict[str, Path]:
    """One input of each kind that needs no process."""
    (folder / "a.log").write_text(NVML + "\n")
    (folder / "run.sbatch").write_text(SBATCH)
    (folder / "fsdp.yaml").write_text("env:\n- name: NCCL_DEBUG\n  value: INFO\n")
    with tarfile.open(folder / "all.tgz", "w:gz") as archive:
        archive.add(DATA / "hang" / "skip", "skip")
    return {"log": folder / "a.log", "dumps": DATA / "hang" / "skip", "archive": folder / "all.tgz",
            "script": folder / "run.sbatch", "manifest": folder / "fsdp.yaml", "logs and dumps": DATA / "hang" / "gloo-exception"}


HIDE = """
import builtins, io, os, select, signal, sys, sysconfig
sysconfig.get_config_vars()  # reads a file that is named after the true platform
hidden = {'torch', 'numpy', 'IPython', 'nbclient', 'nbformat', 'papermill', 'jupyter_client', 'pynvml', 'ipywidgets'}
real_import = builtins.__import__
def need(name, *rest, **more):
    if name.split('.')[0] in hidden: raise ImportError(name)
    return real_import(name, *rest, **more)
builtins.__import__ = need
def without_linux(call):
    def asked(path='.', *rest, **more):
        if str(path).startswith(('/proc', '/sys', '/dev/shm')): raise FileNotFoundError(2, 'hidden', str(path))
        return call(path, *rest, **more)
    return asked
for place in (builtins, io): place.open = without_linux(place.open)
for name in ('open', 'listdir', 'scandir', 'stat', 'lstat', 'readlink'): setattr(os, name, without_linux(getattr(os, name)))
for place, names in ((os, 'sched_getaffinity pidfd_open memfd_create'), (select, 'epoll'), (signal, 'pidfd_send_signal sigtimedwait')):
    for name in names.split(): vars(place).pop(name, None)
sys.platform = 'darwin'
from nccl_runbook.__main__ import main
sys.argv = ['nccl-runbook', *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("kind", ["log", "dumps", "archive", "script", "manifest", "logs and dumps"])
def test_files_are_answered_alike_without_torch_jupyter_and_linux(kind, tmp_path):
    """What macOS lacks is hidden; macOS itself was not tried."""
    arguments = ["diagnose", str(given_files(tmp_path)[kind]), "--html", str(tmp_path / "page.html")]
    hidden = subprocess.run([sys.executable, "-c", HIDE, *arguments], capture_output=True, text=True, env=with_library(), timeout=60)
    shown = read_cli(*arguments)
    assert (hidden.returncode, hidden.stdout) == (shown.returncode, shown.stdout), hidden.stderr


def finding(cause: str, status: str, severity: Severity) -> Finding:
    return Finding("f", severity, f"{cause} {status}", (), FIX, cause, status)


CAUSES = sorted(causes())


@given(st.lists(st.tuples(st.sampled_from(["06-timeouts", "07-logs", "03-fewer-gpus", "02-environment"]), st.sampled_from(CAUSES),
                          st.sampled_from(STATUSES[:3]), st.sampled_from([Severity.BROKEN, Severity.WARN])), min_size=1, max_size=8))
def test_what_leads_is_never_behind_something_proven(rows):
    records = [
        Record(
            step=step,
            status="broken",
            started="2026-11-28T00:00:00Z",
            findings=[finding(c, s, v) for where, c, s, v in rows if where == step],
        )
        for step in dict.fromkeys(r[0] for r in rows)
    ]
    document = verdict_document(RunInfo(id="x", started="2026-11-28T00:00:00Z"), records)
    lead = leading(document.steps, document.causes)
    status = {c.id: c.status for c in document.causes}
    proven = [r for r in rows if status[r[1]] == "established"]
    assert lead and (
        not proven or status[lead.cause] == "established" or lead in next(s for s in document.steps if s.notebook == "06-timeouts").findings
    )


@given(st.lists(st.sampled_from(CAUSES), max_size=6, unique=True), st.sets(st.sampled_from(sorted(step_texts()))))
def test_the_cheapest_test_separates_something_and_was_not_done(open_causes, done):
    test = cheapest(open_causes, done)
    able = {causes()[c].decides[0] for c in open_causes} & set(step_texts()) - done
    assert (test is not None) == (len(open_causes) > 1 and bool(able))
    if test:
        assert test.about_s > 0 and set(test.separates) <= set(open_causes) and test.separates
        assert test == cheapest(open_causes, done), "the same for the same records"


def test_a_step_that_tells_three_causes_apart_comes_before_a_shorter_one_that_rules_out_one():
    decided = {name: [c for c in causes() if causes()[c].decides[0] == name] for name in step_texts()}
    gpus, environment = "01-gpu-visibility", "02-environment"
    assert step_texts()[environment].about_s < step_texts()[gpus].about_s
    assert cheapest([*decided[gpus][:3], decided[environment][0]], ()).separates == tuple(decided[gpus][:3])
    assert cheapest([decided[gpus][0], *decided[environment][:3]], ()).separates == tuple(decided[environment][:3])


STEPS = [*sorted({*step_texts(), *READING}), VERDICT_STEP]


def steps_of_a_run(found: dict[str, list[Finding]], symptom_steps: tuple[str, ...] = ()) -> list[str]:
    """In their order, up to where the run says that the rest is not needed."""
    waiting, done = list(STEPS), []
    while not done or done[-1].step != VERDICT_STEP:
        name, why = following(done, waiting, symptom_steps)
        assert (name, why) == following(done, waiting, symptom_steps), "the same for the same records"
        assert name != VERDICT_STEP or waiting == [VERDICT_STEP] or why.startswith("not needed: ")
        waiting.remove(name)
        done.append(Record(step=name, status="ok", started="2026-11-28T00:00:00Z", findings=found.get(name, [])))
    return [r.step for r in done]


FOUND = st.lists(
    st.builds(
        finding,
        st.sampled_from([c for c in CAUSES if c != "benign"]),
        st.sampled_from(STATUSES),
        st.sampled_from([Severity.BROKEN, Severity.WARN, Severity.NOTE]),
    ),
    max_size=3,
)


@given(st.dictionaries(st.sampled_from(STEPS[:-1]), FOUND))
def test_a_run_reads_first_and_takes_no_step_once_a_cause_is_established(found):
    steps = steps_of_a_run(found)
    assert set(steps[:3]) == set(READING)
    for at in range(3, len(steps) - 1):
        before = [f for name in steps[:at] for f in found.get(name, [])]
        assert not any(f.status == "established" and f.severity is Severity.BROKEN for f in before)
    assert set(steps) == set(STEPS) or any(f.status in ("likely", "established") for f_ in found.values() for f in f_)


@pytest.mark.parametrize("status", ["likely", "established"])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_run_takes_the_steps_that_decide_what_the_log_leaves_open(cause, status):
    expected = [causes()[cause].decides[0]] if status == "likely" and causes()[cause].decides[0] in {*step_texts()} - {*READING} else []
    if cause != "benign":
        assert steps_of_a_run({"07-logs": [finding(cause, status, Severity.WARN)]})[3:-1] == expected


def test_a_symptom_orders_the_steps_and_leaves_none_out():
    steps = steps_of_a_run({}, ("05-weight-sync", "03-fewer-gpus"))
    assert steps[3:5] == ["05-weight-sync", "03-fewer-gpus"] and set(steps) == set(STEPS)


def test_dumps_that_name_the_rank_end_a_run(tmp_path):
    """Reading decides; nothing is started on a GPU."""
    done = read_cli("run", "--log", DATA / "hang" / "skip", "--out", tmp_path / "run", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 3 and document["verdict"] == "broken"
    tested = {s["notebook"]: s["status"] for s in document["steps"]}
    assert {name for name, status in tested.items() if status != "skipped"} <= {*READING} and tested["06-timeouts"] == "broken"


def test_nothing_is_left_to_separate_where_a_cause_is_established():
    records = [
        Record(
            step="07-logs",
            status="broken",
            started="2026-11-28T00:00:00Z",
            findings=[finding("duplicate-gpu", "established", Severity.BROKEN), finding("peer-crashed", "likely", Severity.WARN)],
        )
    ]
    document = verdict_document(RunInfo(id="x", started="2026-11-28T00:00:00Z"), records)
    assert left(document, leading(document.steps, document.causes), ["start-skew"]) == []


@pytest.mark.parametrize(
    ("dumps", "verdict", "status", "first"), [("stall", "degraded", "possible", "Degraded"), ("skip", "broken", "likely", "Broken")]
)
def test_no_verdict_is_stronger_than_what_copied_dumps_prove(dumps, verdict, status, first):
    """Copies have no date: a rank one step behind may have been moving; one that called something else had left the order at any time."""
    document = diagnose(DATA / "hang" / dumps, code=3)
    assert (document["verdict"], document["lead"]["status"], document["sentence"].partition(":")[0]) == (verdict, status, first)


def test_a_process_that_is_no_rank_is_not_counted_as_one():
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        document = diagnose(str(sleeper.pid), "--gap", "0", code=4)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert document["next"]["line"].partition(" #")[0].split() == ["nccl-runbook", "look"]


def test_the_frames_of_a_c_plus_plus_trace_are_no_error_lines(tmp_path):
    (tmp_path / "job.log").write_text(
        "[rank0]: frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7f in /l/libc10.so)\nfatal error: strange\n"
    )
    told = json.loads(read_cli("triage", str(tmp_path / "job.log"), "--json").stdout)
    assert [line["text"] for line in told["unknown_lines"]] == ["fatal error: strange"]


def test_a_run_that_ended_early_hides_nothing_of_what_is_given_beside_it(tmp_path):
    """The run was stopped while 07-logs read the same log."""
    log, folder = tmp_path / "job.log", tmp_path / "run"
    log.write_text("node0:2360:2360 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n")
    folder.mkdir()
    started = "2026-11-20T14:02:00Z"
    begun = of_findings("00-start", [Finding("gpus-there", Severity.OK, "the host has 2 GPUs")])
    for record in (begun, *(Record(step=step, status="running", started=started) for step in ("07-logs", "04-transports"))):
        (folder / f"{record.step}.json").write_text(json.dumps(to_json(record)))
    found, alone = diagnose(log, folder), diagnose(folder)
    assert found["lead"]["cause"] == "socket-interface-wrong"
    assert {s["step"]: s["status"] for s in found["steps"]} == {"00-start": "ok", "07-logs": "broken", "04-transports": "unknown"}
    assert alone["verdict"] == "unknown" and all("still at work" not in s["reason"] for s in alone["steps"])
    assert "04-transports" in alone["sentence"]  # the first one that is missing


def test_two_records_of_one_step_are_joined(tmp_path):
    for name, cause in (("a", "shm-too-small"), ("b", "gpu-or-link-fault")):
        record = of_findings("04-transports", [finding(cause, "likely", Severity.WARN)])
        (tmp_path / f"{name}.json").write_text(json.dumps(to_json(record)))
    found = diagnose(tmp_path / "a.json", tmp_path / "b.json")
    assert {c["id"] for c in found["causes"]} == {"shm-too-small", "gpu-or-link-fault"} and len(found["steps"]) == 1


LATE = ("[rank{rank}]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600034 milliseconds before "
        "timing out.\n")


@pytest.mark.parametrize(("seq", "status"), [(4821, "ruled-out"), (2, "ruled-out"), (1, "likely")])
@pytest.mark.parametrize("setting", ["NCCL_SOCKET_IFNAME=lo", "MASTER_ADDR=localhost"])
def test_a_setting_that_keeps_ranks_apart_is_not_the_cause_where_they_had_met(seq, status, setting, tmp_path):
    (tmp_path / "job.log").write_text("".join(LATE.format(rank=rank, seq=seq) for rank in (1, 2, 3)))
    (tmp_path / "job.sbatch").write_text(SBATCH.replace("--nodes=1", "--nodes=2").replace("NCCL_DEBUG=ERROR", setting))
    found = diagnose(tmp_path)
    causes_of = {c["id"]: c["status"] for c in found["causes"]}
    cause = "socket-interface-wrong" if "IFNAME" in setting else "rendezvous-misconfigured"
    ruled_out = status == "ruled-out"
    assert (causes_of.get(cause) == "ruled-out") == ruled_out
    assert ((found["lead"] or {}).get("cause") == cause) != ruled_out


def test_one_rank_that_waits_in_its_first_collective_rules_nothing_out(tmp_path):
    (tmp_path / "job.log").write_text(LATE.format(rank=0, seq=1) + LATE.format(rank=1, seq=55))
    (tmp_path / "job.sbatch").write_text(SBATCH.replace("--nodes=1", "--nodes=2").replace("NCCL_DEBUG=ERROR", "NCCL_SOCKET_IFNAME=lo"))
    assert diagnose(tmp_path)["lead"]["cause"] == "socket-interface-wrong"


@pytest.mark.parametrize(
    ("word", "missing"), [("slurm-4711.ot", True), ("job-3.lgo", True), ("torch.cuda", False), ("socket.error", False)]
)
def test_a_misspelt_file_is_told_and_a_word_is_read(word, missing):
    ended = read_cli("diagnose", word)
    assert (ended.returncode == 2) == missing


def test_a_setting_does_not_lead_before_the_failure_that_a_log_shows(tmp_path):
    (tmp_path / "job.log").write_text("".join(LATE.format(rank=rank, seq=120 + (rank == 3)) for rank in range(4)))
    (tmp_path / "job.sbatch").write_text(SBATCH.replace("NCCL_DEBUG=ERROR", "NCCL_P2P_DISABLE=1"))
    found = diagnose(tmp_path)
    assert found["lead"] is None and "ALLREDUCE 120" in found["sentence"] and "ALLREDUCE 121" in found["sentence"]


@pytest.mark.parametrize(
    ("line", "command", "cause"),
    [
        (
            "node2:12:34 [0] NCCL WARN socketStartConnect: Connect to 192.0.2.7<41234> failed : Connection refused",
            "nc -vz 192.0.2.7 41234",
            "peer-crashed",
        ),
        (
            "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node-1]:29500 (errno: 111 - Connection refused).",
            "nc -vz node-1 29500",
            "rendezvous-misconfigured",
        ),
    ],
)
def test_who_refused_a_connection_is_asked_first(line, command, cause, tmp_path):
    (tmp_path / "job.log").write_text(line + "\n")
    found = diagnose(tmp_path / "job.log")
    assert (found["next"]["line"], found["causes"][0]["id"]) == (command, cause)
    assert "rendezvous-name-resolution" not in {c["id"] for c in found["causes"]}, "a name that was refused did resolve"


@pytest.mark.parametrize("line", [
    "node0:1:1 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
    "node2:12:34 [0] NCCL WARN socketStartConnect: Connect to 192.0.2.7<41234> failed : Connection refused"])
def test_a_line_that_ends_a_job_is_broken_before_its_cause_is_known(line, tmp_path):
    (tmp_path / "job.log").write_text(line + "\n")
    found = diagnose(tmp_path / "job.log", code=3)
    assert found["verdict"] == "broken" and {c["status"] for c in found["causes"]} == {"possible"}
    (tmp_path / "went-on.log").write_text(line + "\n" + "".join(f"step {n} loss 0.1\n" for n in range(1, 9)))
    assert diagnose(tmp_path / "went-on.log")["verdict"] != "broken"


def test_what_was_not_read_stands_directly_below_the_first_line(tmp_path):
    (tmp_path / "job.log").write_text(OOM + "\n")
    (tmp_path / "nccl_trace_rank_0").write_text("not a dump")  # a name that does not exist is refused
    lines = read_cli("diagnose", tmp_path / "job.log", tmp_path / "nccl_trace_rank_0").stdout.splitlines()
    assert "nccl_trace_rank_0" in lines[1] and sum("nccl_trace_rank_0" in line for line in lines) == 1


def run_folder(folder: Path, *names: str) -> Path:
    """What a run leaves: records, pages that quote known messages, logs of test ranks."""
    (folder / "logs" / "04-transports").mkdir(parents=True)
    for name in names:
        save(
            Record(step=name, status="ok", started="2026-11-29T06:00:00Z", findings=[Finding("fine", Severity.OK, "fine")]),
            folder / f"{name}.json",
            Redactor({}),
        )
        (folder / f"{name}.html").write_text(f"<p>{OOM}</p>")
    (folder / "verdict.json").write_text('{"schema": "nccl-runbook/verdict/1"}')
    (folder / "logs" / "04-transports" / "rank0.log").write_text(OOM)
    return folder


@pytest.mark.parametrize("step", ["07-logs", "03-fewer-gpus", "look", "of-another-program"])
def test_a_record_that_shows_nothing_is_not_healthy(step, tmp_path):
    """Whatever its status says: neither alone nor beside one that does show something."""
    (tmp_path / "r.json").write_text(json.dumps({"schema": "nccl-runbook/record/2", "step": step, "status": "ok", "started": "x"}))
    assert diagnose(tmp_path / "r.json", code=4)["verdict"] == "unknown"
    run = run_folder(tmp_path / "run", "01-gpu-visibility")
    assert diagnose(run, code=0)["verdict"] == "healthy"
    assert diagnose(run, tmp_path / "r.json", code=4)["verdict"] == "unknown"


def test_of_a_whole_run_only_its_records_are_evidence(tmp_path):
    """Its pages quote messages as examples, and its own logs are those of tests that were to fail."""
    run = run_folder(tmp_path / "outputs" / "20261129T060000Z", "01-gpu-visibility", "02-environment")
    for path in (run, run / "verdict.json", run.parent):
        document = diagnose(path, code=0)
        assert [Path(p).name for p in document["brought"].pop("records")] == [
            "01-gpu-visibility.json",
            "02-environment.json",
        ] and not document["brought"]
    (run.parent / "train.log").write_text(OOM)  # the job's own log beside it is one
    assert diagnose(run.parent, code=3)["lead"]["cause"] == "gpu-memory-exhausted"
    (tmp_path / "verdict.json").write_text('{"schema": "nccl-runbook/verdict/1"}')
    assert diagnose(tmp_path / "verdict.json", code=4)["brought"] == {"logs": [str(tmp_path / "verdict.json")]}


@pytest.mark.parametrize("setting", ["NCCL_P2P_DISABLE=1", "NCCL_NVLS_ENABLE=0"])
def test_a_path_that_was_switched_off_is_tried_beside_a_control(setting):
    lead = diagnose(f"the all_reduce hangs, and works with {setting}", code=3)["lead"]
    assert f"nccl-runbook ab . {setting}" in [line for r in lead["remedy"] for line in r["lines"]]


def test_an_allocation_of_an_older_tag_is_one():
    assert sort(["sglang.d1p1t1+d1p1t1"]).allocations == ("sglang.d1p1t1+d1p1t1",)
    assert sort(["c++ error.d2 in torch"]).words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("diagnose", "job.log", "nope.log"), "there is no file nope.log"),
        (("diagnose", "nope.log"), "there is no file nope.log"),
        (("hang", "job.log", "nope.log"), "there is no file nope.log"),
        (("diagnose", "job.log", "--gpus", "0"), "--gpus"),
        (("plan", "sglang:d1+fsdp:d1", "--gpus", "0"), "--gpus"),
        (("run", "--gpus", "9-3"), "'9-3' begins above its end"),
        (("run", "--gpus", "zero"), "'zero' is not a GPU index"),
        (("run", "--gpus", "0-99999999999"), "too large"),
        (("sync", "--gpus", "12345678"), "too large"),
        (("diagnose", "99999999"), "no process 99999999"),
        (("diagnose", "4711471147"), "no process 4711471147"),
        (("look", "4711"), "--pid 4711"),
        (("look", "job.log"), "diagnose job.log"),
        (("run", "--gpus", "77"), "there is no GPU 77"),
        (("sync", "--gpus", "0,77"), "there is no GPU"),
        (("run", "-p", "gpus", "77"), "there is no GPU 77"),
        (("plan", "rollout.log", "--gpus", "2"), "there is no file rollout.log"),
        (("plan", "fsdp.json", "--gpus", "2"), "there is no file fsdp.json"),
    ],
)
def test_what_was_typed_wrong_is_named_in_one_sentence(arguments, words, tmp_path):
    (tmp_path / "job.log").write_text(OOM + "\n")
    done = read_cli(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1 and words in done.stderr, done


@pytest.mark.parametrize("door", ["look", "hosts", "run"])
@pytest.mark.parametrize(
    "text", ['{"schema": "x"}', '{"schema": "nccl-runbook/record/2"}', '{"schema": "nccl-runbook/record/2", "step": 4}']
)
def test_what_is_no_record_is_refused_in_our_words(door, text, tmp_path):
    (tmp_path / "rec.json").write_text(text)
    done = read_cli(door, "--record", "rec.json", cwd=tmp_path)
    assert (
        done.returncode == 2 and "rec.json is not a record" in done.stderr and not re.search("Input should|Field required", done.stderr)
    ), done.stderr


@pytest.mark.parametrize(
    "lines",
    [
        "export NCCL_SOCKET_IFNAME=lo\nexport MASTER_ADDR=localhost\nsrun -N2 torchrun --nproc-per-node=8 train.py",
        "#SBATCH --gpus-per-node=4\nexport NCCL_SOCKET_IFNAME=lo\nsrun -N2 torchrun --nproc-per-node=8 train.py",
        "#SBATCH -N2\nexport GLOO_SOCKET_IFNAME=lo\nexport MASTER_ADDR=127.0.0.1\nsrun torchrun --nproc-per-node=8 train.py",
    ],
)
def test_no_test_of_gpus_follows_what_a_script_shows(lines, tmp_path):
    (tmp_path / "bad.sbatch").write_text(f"#!/bin/bash\n{lines}\n")
    answer = diagnose(tmp_path / "bad.sbatch", code=3)
    assert answer["lead"]["remedy"] and answer["next"] is None


TIMED_OUT = (
    "[rank{0}]:[E1130 10:00:01.0 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=16, NumelOut=16, Timeout(ms)=600000) ran for 600050 milliseconds before timing out.\n"
)
APART = TIMED_OUT.format(1, 48, "ALLREDUCE") + TIMED_OUT.format(3, 48, "BROADCAST")
OF_RUNNING = re.compile(r"\bPID\b|nccl-runbook look|nccl-runbook hang|nccl-evidence")


def test_what_needs_the_processes_of_a_job_that_has_ended_is_for_the_next_run(tmp_path):
    (tmp_path / "job.log").write_text(APART)
    page = tmp_path / "page.html"
    answer = diagnose(tmp_path / "job.log", "--html", page, code=3)
    assert not answer["next"] or not OF_RUNNING.search(answer["next"]["line"])
    now = [line for c in answer["causes"] for r in c["remedy"] if not r["text"].startswith(IF_NEXT) for line in r["lines"]]
    assert not [line for line in now if OF_RUNNING.search(line)]
    assert not [e["text"] for c in answer["causes"] for e in c["evidence"] if OF_RUNNING.search(e["text"])]
    at = [i for i, line in enumerate(answer["collect"]) for word in ("mkdir", "look", "diagnose") if f"{word} " in line.partition("#")[0]]
    assert at == sorted(at) and len(at) == 3, "first the folder, then a look, then the reader"
    assert page.read_text().count("nccl-runbook diagnose nccl-evidence") == page.read_text().count("nccl-runbook look") == 1


IF_NEXT = ("In the next run: ", "If this is the cause: In the next run: ")


def test_a_job_that_still_hangs_is_looked_at(tmp_path):
    (tmp_path / "job.log").write_text(APART)
    line = diagnose(tmp_path / "job.log", "the job hangs", code=3)["next"]["line"]
    assert line.startswith("nccl-runbook look") and "\n" not in line


def test_no_test_reads_a_folder_that_nothing_has_made():
    rows = [*causes().values(), *(c.advice for c in clues() if c.advice)]
    assert not [row.decides for row in rows if row.decides and "nccl-evidence" in row.decides[2]]


def test_the_causes_of_several_files_may_be_those_of_several_jobs(tmp_path):
    logs = {
        "a.log": "NCCL WARN Call to posix_fallocate failed : No space left on device\n",
        "b.log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n",
    }
    for folder, prefix in (("jobs", ("", "")), ("ranks", ("[rank0]: ", "[rank1]: "))):
        (tmp_path / folder).mkdir()
        for (name, text), who in zip(logs.items(), prefix):
            (tmp_path / folder / name).write_text(who + text)
    noted = {
        folder: [f for r in left_by(sort([str(tmp_path / folder)])).records for f in r.findings if f.id == "several-jobs"]
        for folder in ("jobs", "ranks")
    }
    assert len(noted["jobs"]) == 1 and all(name in noted["jobs"][0].title for name in logs) and not noted["ranks"]


@pytest.mark.parametrize("name", ["empty", "none.log", "bits.dat"])
def test_what_cannot_be_read_is_named_and_something_else_is_asked_for(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.log").touch()
    (tmp_path / "bits.dat").write_bytes(bytes(range(256)) * 20)
    said = diagnose(tmp_path / name, code=4)["sentence"]
    assert name in said and "Name a log" in said and f"{name}: " not in said


@pytest.mark.parametrize("name", ["nccl_trace_rank_0", "comm_lib_trace_rank_12"])
def test_what_has_the_name_of_a_dump_and_is_none_is_said_to_be_damaged(name, tmp_path):
    (tmp_path / name).write_text("not a dump")
    told = judge_hang(collect_hang([str(tmp_path / name)]))
    assert told.kind == "unknown" and DAMAGED in told.sentence
    assert any(DAMAGED in line for line in diagnose(tmp_path / name, code=4)["not_looked_at"])


def test_a_configuration_of_accelerate_is_a_launch(tmp_path):
    (tmp_path / "accel.yaml").write_text("distributed_type: MULTI_GPU\ngpu_ids: 0,1,2,3\nnum_machines: 1\nnum_processes: 8\n")
    assert [c["id"] for c in diagnose(tmp_path / "accel.yaml", code=3)["causes"]] == ["more-ranks-than-gpus"]
    (tmp_path / "accel.yaml").write_text("distributed_type: MULTI_GPU\ngpu_ids: 0,1,2,3\nnum_machines: 1\nnum_processes: 4\n")
    assert diagnose(tmp_path / "accel.yaml", code=4)["causes"] == []
