"""`nccl-runbook hang` and notebook 06: the answer, its JSON, its page; and a real job of Gloo ranks from its fault to the guard that
would have stopped it."""
from __future__ import annotations

import bz2
import html
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import jsonschema
import live_samples
import papermill
import psutil
import pytest
from bench_hang import make
from book_samples import start_cli
from hang_samples import Job
from nccl_runbook.causes.causes import causes
from nccl_runbook.core import records
from nccl_runbook.core.facts import to_json
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang import judge as rules, judge_silence as rules_silence, read as reader
from nccl_runbook.hang.facts import Group, Track
from nccl_runbook.hang.table import matrix, ranges, ranks_table, tables
from nccl_runbook.look import live as look_live
from processes import ROOT, crowded
from warm_cli import read_cli

DATA = Path(__file__).parent / "data" / "hang"
SCHEMA = json.loads((ROOT / "lib/nccl_runbook/schemas/hang.json").read_text())
KEYS = {"culprits", "victims", "kind", "collective", "frame", "cause", "status", "evidence", "files", "decides"}


@pytest.mark.parametrize("fault, code", [("none", 0), ("skip", 3), ("slow", 3), ("spin", 3)])
def test_json_fits_its_schema_and_says_the_exit_code(fault, code):
    done = read_cli("hang", str(DATA / fault), "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert set(document) >= KEYS and done.returncode == document["exit_code"] == code
    assert (code == 0) == (document["verdict"] == "healthy")


def test_kinds_of_the_schema_are_those_of_the_rules():
    of_look = set(
        json.loads((ROOT / "lib/nccl_runbook/schemas/look.json").read_text())["properties"]["jobs"]["items"]["properties"]["kind"]["enum"]
    )
    assert set(SCHEMA["properties"]["kind"]["enum"]) == {*rules._WORST} | of_look  # what is unknown without dumps, a look may show
    assert {c for c in rules_silence.CAUSE.values()} <= set(causes())


def test_a_lost_dump_is_unknown_and_fail_on_moves_the_line(tmp_path):
    (tmp_path / "fr_rank_0").write_bytes((DATA / "none" / "fr_rank_0").read_bytes())
    assert read_cli("hang", str(tmp_path)).returncode == 4
    assert read_cli("hang", str(tmp_path), "--fail-on", "broken").returncode == 0
    assert read_cli("hang", str(DATA / "skip"), "--fail-on", "never").returncode == 0


@pytest.mark.parametrize("fault", ["stall", "skip", "spin", "pair-spin", "gloo-exception"])
def test_advice_stands_there_once_and_is_not_what_was_just_done(fault):
    text = read_cli("hang", str(DATA / fault)).stdout.partition("\n\nGroup")[0]
    advice = [line.strip().removeprefix("decides: ") for line in text[text.index("   to do: "):].splitlines()]
    assert len(set(advice)) == len(advice) > 1 and "nccl-runbook hang" not in text and "LOG" not in text
    assert any(line.startswith("grep ") and line.endswith(f"{DATA}/gloo-exception/rank1.log") for line in advice) == (
        fault == "gloo-exception"
    )


def test_where_no_dump_was_given_the_next_run_is_watched():
    told = rules_silence.HangVerdict("skipped", (1,), (0,), "rank 1 never came.", cause="collective-on-some-ranks-only", status="likely",
                      evidence=(Evidence("rank 0 waits in ALLREDUCE 7", "rank0.log line 3"),))
    lines = [line for r in rules.hang_finding(told).remedy for line in r.lines]
    assert lines == ["nccl-runbook watch --html hang.html"]


def test_what_is_no_log_is_counted_and_a_virtual_environment_left_alone(tmp_path):
    for number in range(9):
        (tmp_path / f"weights{number}.pt").write_bytes(b"PK\x03\x04" + bytes(99))
    (tmp_path / "venv").mkdir()
    for name in ("pyvenv.cfg", "rank1.log"):
        (tmp_path / "venv" / name).write_text("")
    unused = [line for line in read_cli("hang", str(tmp_path), str(DATA / "none")).stdout.splitlines() if line.startswith("not used: ")]
    assert len(unused) == 2 and "venv: " in unused[0] and re.search(r"weights2\.pt and 6 more .*: .*\bzip\b", unused[1])


def test_ctrl_c_says_a_word():
    theirs, ours = os.pipe()
    with start_cli("hang", f"/dev/fd/{theirs}", pass_fds=[theirs]) as running:
        os.close(theirs)
        os.write(ours, b"step 1 loss 2.0\n" * 4352)  # more than a pipe holds: it reads once all is written
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=60)
    os.close(ours)
    assert (running.returncode, said[0]) == (130, "") and "SIGINT" in said[1] and said[1].count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_dumps_are_read_waits_for_no_reader(tmp_path, number):
    """Dumps that take half a minute, read by two processes; whoever waits for its output waits for them, too."""
    make(tmp_path, 1, 24_000)
    for rank in range(1, 60):
        (tmp_path / f"nccl_trace_rank_{rank}").hardlink_to(tmp_path / "nccl_trace_rank_0")
    with start_cli("hang", str(tmp_path)) as running:
        for _ in range(1000):
            readers = psutil.Process(running.pid).children(recursive=True)
            if len(readers) > 1 or running.poll() is not None:
                break
            time.sleep(0.01)
        started = time.monotonic()
        running.send_signal(number)
        said = running.communicate(timeout=60)
        took_s = time.monotonic() - started
    assert readers and running.returncode == 128 + number and took_s < 2 * crowded(), said
    assert not any(reader.is_running() and reader.status() != psutil.STATUS_ZOMBIE for reader in readers)


@pytest.mark.parametrize("packing", ["plain", "zip", "bz2", "tar"])
def test_counts_of_minibatches_are_found_in_packed_logs_too(tmp_path, packing):
    make(tmp_path, 5, 2400)
    told = {f"rank{rank}.log": f"[rank{rank}] this rank has minibatches: {10 + (rank != 1)}\n" for rank in range(5)}
    if packing == "zip":
        with zipfile.ZipFile(tmp_path / "logs.zip", "w", zipfile.ZIP_DEFLATED) as box:
            for name, text in told.items():
                box.writestr(name, text)
    elif packing == "tar":
        with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
            for name, text in told.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    else:
        for name, text in told.items():
            (tmp_path / f"{name}{'.bz2' * (packing == 'bz2')}").write_bytes(
                bz2.compress(text.encode()) if packing == "bz2" else text.encode()
            )
    first = read_cli("hang", str(tmp_path)).stdout.partition("\n")[0]
    assert first.startswith("Degraded: Rank 1 had 10 minibatches, rank 0 had 11 minibatches: "), first


@pytest.mark.parametrize("arguments", [("nowhere",), (), (str(DATA), "--fail-on", "x")])
def test_wrong_usage_is_one_sentence(arguments):
    done = read_cli("hang", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_help_has_an_example():
    assert "Example: nccl-runbook hang" in " ".join(read_cli("hang", "--help").stdout.split())


def test_no_torch_and_no_jupyter_are_imported():
    script = (
        "import sys; sys.argv = ['x', 'hang', sys.argv[1]]\nfrom nccl_runbook.__main__ import main\ntry: main()\nexcept SystemExit: pass\n"
        "assert not {'torch', 'jupyter_client', 'nbformat', 'nbconvert', 'papermill', 'IPython'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(DATA / "skip")], check=True, capture_output=True, timeout=60)


def test_the_page_shows_the_rank_the_matrix_and_no_secret(tmp_path):
    name = tmp_path / "dumps"
    name.mkdir()
    for path in (DATA / "skip").iterdir():
        (name / path.name).write_bytes(path.read_bytes())
    (name / "rank2.log").write_text("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx\n<script>alert(1)</script>\nstep 3 done\n")
    done = read_cli("hang", str(name), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert done.returncode == 3 and done.stdout.startswith("Broken: rank 2 ")
    assert (
        "default_pg" in page and re.search(r"rank 2 .*\bbroadcast\b", page) and "<script" not in page and "hf_abc" not in page + done.stdout
    )
    assert len(page.encode()) < 300_000


def test_a_page_of_many_ranks_stays_small(tmp_path):
    job = Job(2, 64, 4)
    job.inject(40, "stall", 2)
    folder = job.run().write(tmp_path / "dumps")
    read_cli("hang", str(folder), "--html", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size < 300_000


class TestTables:
    def test_ranks_that_stand_alike_share_a_row_and_the_culprit_is_on_top(self):
        hang = reader.collect([str(DATA / "stall")])
        table = matrix(next(g for g in hang.groups if g.desc == "default_pg"), (1,))
        assert table.columns == ["ranks", "1-6", "7", "8"], "what all have done shares a column: the end fits a phone"
        assert [[c.text for c in row] for row in table.rows] == [
            ["1", "done", "not issued", "not issued"],
            ["0, 2-3", "done", "issued", "issued"],
        ]
        assert table.rows[0][0].tone == "broken"

    @pytest.mark.parametrize(
        ("tails", "columns"),
        [
            (["c.", ".."], ["5", "6"]),
            (["cs", "cs"], ["5", "6"]),
            (["cc", "cc"], ["5-6"]),
            (["ccs", "cc."], ["5-6", "7"]),
            (["cc?c", "cc?s"], ["5-6", "7", "8"]),
            (["ccc", "c"], ["5", "6", "7"]),
        ],
    )
    def test_only_what_all_have_done_from_the_beginning_on_is_joined(self, tails, columns):
        table = matrix(Group("0", "", [0, 1, 2], True, [Track(r, 1, 1, 1, True, tail=tail) for r, tail in enumerate(tails)], [], 5))
        assert table.columns == ["ranks", *columns] and {len(row) for row in table.rows} == {len(table.columns)}
        assert table.rows[-1][0].text == "2" and {c.text for c in table.rows[-1][1:]} == {"no dump"}

    def test_runs_of_ranks_are_joined(self):
        assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8" and ranges([]) == ""

    def test_every_table_has_rows_for_what_was_read(self):
        hang = reader.collect([str(DATA / "op")])
        assert len(ranks_table(hang).rows) == sum(len(g.tracks) for g in hang.groups) and tables(hang, (3,))[-1].caption == "Files"


def test_triage_begins_with_what_the_dumps_among_its_files_show(tmp_path):
    """The log alone decides nothing; it stays first if the dumps decide nothing, or less than the log."""
    (tmp_path / "job.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    assert json.loads(read_cli("triage", str(tmp_path), "--json").stdout)["dumps"] == ""
    for path in (DATA / "stall").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    page = tmp_path / "page.html"
    hang = json.loads(read_cli("hang", str(tmp_path), "--json").stdout)
    ended = read_cli("triage", str(tmp_path), "--json", "--html", str(page))
    told = json.loads(ended.stdout)
    body = hang["sentence"].rstrip(".")
    assert body in told["sentence"] and body in told["dumps"] and told["sentence"] in page.read_text()
    assert (ended.returncode, told["verdict"], told["hypotheses"][0]["cause"]) == (3, "degraded", hang["cause"])
    assert not [
        line
        for h in told["hypotheses"]
        for line in (h["decides"]["line"], *(x for r in h["remedy"] for x in r["lines"]))
        if "nccl-runbook hang" in line
    ]
    assert read_cli("triage", str(tmp_path)).stdout.splitlines()[0] == told["sentence"]
    (tmp_path / "job.log").write_text("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n")
    told = json.loads(read_cli("triage", str(tmp_path), "--json").stdout)
    assert told["hypotheses"][0]["cause"] == ("gpu-or-link-fault" if hang["status"] == "possible" else hang["cause"])
    for path in [p for p in tmp_path.iterdir() if p.name != "job.log"][1:]:
        path.unlink()
    told = json.loads(read_cli("triage", str(tmp_path), "--json").stdout)
    assert told["sentence"].startswith("Broken: a GPU or a link is faulty") and told["dumps"]


@pytest.mark.slow
def test_notebook_06_is_skipped_without_files_and_judges_its_own_record(tmp_path):
    notebook = ROOT / "notebooks" / "06-timeouts.ipynb"

    def execute(**parameters: str) -> records.Record:
        papermill.execute_notebook(
            notebook, tmp_path / "out.ipynb", parameters={"run_dir": str(tmp_path), **parameters}, progress_bar=False
        )
        return records.load(tmp_path / "06-timeouts.json")

    assert execute().status == "skipped"
    record = execute(hang_path=str(DATA / "skip"))
    assert record.status == "broken" and "rank 2" in record.reason
    records.write_text(tmp_path / "kept.json", (tmp_path / "06-timeouts.json").read_text())
    assert execute(record_path=str(tmp_path / "kept.json")).reason == record.reason
    ranks = [
        live_samples.rank(0, live_samples.SAVING, "R", "", 2.9),
        *(live_samples.rank(n, live_samples.IN_ALL_REDUCE) for n in (1, 2, 3)),
    ]
    seen = {"schema": "nccl-runbook/record/1", "step": "06-timeouts", "started": "2026-01-01T00:00:00Z"}
    records.write_text(tmp_path / "look.json", json.dumps([{**seen, "facts": to_json({"live": live_samples.look(*ranks)})}]))
    looked = execute(record_path=str(tmp_path / "look.json"))
    assert looked.status == "broken" and "rank 0 never reached" in looked.reason


@pytest.mark.slow
def test_a_learner_without_a_minibatch_is_named_with_its_counts_and_the_guard(tmp_path):
    """Field note 004, scaled down: four Gloo ranks, one of which has 3 // 4 = 0 minibatches in step 3; the others run into their
    time-out."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "hang_job.py"), str(tmp_path), "gloo", "4", "minibatch,op", "2", "2"],
        timeout=200,
        check=False,
    )
    assert done.returncode == 0
    op = rules.judge_hang(reader.collect([str(tmp_path / "op")]))
    assert (op.kind, op.culprits) == ("mismatch", (3,)), op.sentence
    page = tmp_path / "page.html"
    document = json.loads(read_cli("hang", str(tmp_path / "minibatch"), "--json", "--html", str(page)).stdout)
    assert (document["kind"], document["culprits"], document["cause"]) == ("skipped", [2], "uneven-minibatches"), document
    assert re.findall(r"[Rr]ank (\d) had (\d)", document["sentence"]) == [("2", "0"), ("0", "2")], "minibatches of each"
    said = [(tmp_path / "minibatch" / f"rank{rank}.log").read_text() for rank in (0, 1, 3)]
    assert any("4000ms" in one for one in said), "the time-out of this backend fired; whoever met it later saw a closed connection"
    assert "check_minibatches(" in page.read_text() and "num_mini_batches=0 (3 // 4)" in page.read_text()


def test_names_in_a_dump_send_nothing_to_the_terminal_and_break_no_output(tmp_path):
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:\x1b]0;title\x07all_\ud800reduce",
        "state": "scheduled",
    }
    pages = {"entries": [entry], "pg_config": {"0": {"desc": "\x1b[31m", "ranks": "[0, 1]"}}}
    (dumps / "rank_0.json").write_text(json.dumps(pages))
    (dumps / "rank_1.json").write_text(json.dumps({**pages, "entries": []}))
    (dumps / "rank_\x1b[2J.out").write_text("[rank0]: hello\n")
    for arguments in ((), ("--json",), ("--html", str(tmp_path / "page.html"))):
        done = read_cli("hang", str(dumps), *arguments)
        assert done.returncode in (3, 4) and not done.stderr, done.stderr
        assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "\x1b" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_what_is_no_log_of_a_job_is_called_so(tmp_path):
    (tmp_path / "noise").write_bytes(bytes(random.Random(4).choices(range(32, 127), k=3000)))
    (tmp_path / "job.log").write_text("[rank0]: NCCL INFO Bootstrap\n")
    told = {name: read_cli("hang", str(tmp_path / name)).stdout for name in ("noise", "job.log")}
    rows = {name: re.search(rf"{name} +log +(.+)", text)[1].split() for name, text in told.items()}
    assert len(rows["noise"]) > 1 and rows["job.log"] == ["read"], "only the first has a reservation"


def test_what_is_only_possible_is_said_to_be_so(tmp_path):
    told = read_cli("hang", str(DATA / "stall"), "--html", str(tmp_path / "page.html"), "--json")
    first = read_cli("hang", str(DATA / "stall")).stdout.splitlines()[0]
    assert (
        json.loads(told.stdout)["status"] == "possible"
        and first.rpartition(" (")[2].startswith("possible: ")
        and first.split(": ", 1)[1] in html.unescape((tmp_path / "page.html").read_text())
    )


def test_a_saved_look_is_one_case_for_three_commands_with_its_picture_and_short_paths(tmp_path):
    saving = live_samples.rank(1, live_samples.SAVING, "R", "", 3.0, lines=(0, 1, 2, 3), moments={"R ": 97})
    look = live_samples.look(saving, *(live_samples.rank(n, live_samples.IN_ALL_REDUCE) for n in (0, 2, 3)))
    (tmp_path / "look.json").write_text(json.dumps(look_live.record(look, 10.0)))
    facts = reader.collect([str(tmp_path / "look.json")])
    drawn, stacks = (next(t for t in tables(facts) if t.columns[0] == head) for head in ("rank", "ranks"))
    assert drawn.drawn == "strip" and [row[0].text for row in drawn.rows] == ["1", "0", "2", "3"]
    assert [row[0].text for row in stacks.rows] == ["0, 2-3", "1"] and stacks.rows[1][2].text.startswith("_save, torch/serialization.py:")
    for words in (("hang",), ("diagnose",), ("look", "--record")):
        done = read_cli(*words, "look.json", "--html", "page.html", cwd=tmp_path)
        page = (tmp_path / "page.html").read_text()
        assert done.returncode == 3 and "host-busy" not in done.stdout + page and "site-packages" not in done.stdout
        assert "<code>rank-busy-on-host</code>" in page and "(likely: one rank is busy on the host)" in page


def test_what_limits_the_evidence_is_no_evidence(tmp_path):
    """Copies do not show when a rank that is one step behind was dumped; a call that differs is wrong at any time."""
    for fault, limits in (("stall", 1), ("skip", 0)):
        job = Job(11 if fault == "skip" else 3, 4, 4)
        job.inject(2, fault, 2)
        shown = read_cli("hang", str(job.run().write(tmp_path / fault, age_s=7200.0))).stdout
        assert len(re.findall(r"(?m)^   but: .*when the dumps were written", shown)) == limits, shown
        assert not re.search(r"(?m)^   seen: .*when the dumps were written", shown)


def test_a_file_that_cannot_be_read_is_named_once(tmp_path):
    (tmp_path / "half.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
    shown = read_cli("hang", str(tmp_path / "half.gz"))
    assert (shown.returncode, shown.stdout.count("half.gz")) == (4, 1)
