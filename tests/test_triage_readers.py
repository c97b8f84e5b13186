"""What reads logs: any bytes, any nesting, any line, in bounded time; nothing is executed and nothing raises."""
from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from book_samples import Running
from hypothesis import given, settings, strategies as st
from nccl_runbook.logs import (
    file as log_file,
    source as log_sources_source,
    sources as log_sources,
    text as log_text,
)
from nccl_runbook.logs.file import Limit
from nccl_runbook.messages import kinds, lines as lines_file, read as reader
from nccl_runbook.messages.clues import catalogue, compiled
from nccl_runbook.messages.matcher import alternatives
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses import judge_weights as triage_weights
from nccl_runbook.triage.judge import answer
from processes import ROOT, quickest_s, slowness
from triage_samples import DUPLICATE, SAMPLES, hung

SLOWEST_S = 0.25  # of one expression on one line made to be slow; a usual line takes microseconds
PARTS = st.sampled_from(
    [line for s in SAMPLES for line in s[1].splitlines()]
    + [
        "[rank3]: ",
        "(Worker pid=7, ip=10.0.0.1) ",
        "12: ",
        "\x1b[31m",
        "\r",
        "\n",
        "2026-01-02 03:04:05 ",
        "[repeated 2x across cluster]",
        "WorkNCCL(SeqNum=",
        "step 3 loss 1",
        "\x00",
        "NCCL INFO ",
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=12), max_size=40).map("".join)


@given(content=st.binary(max_size=3000), packing=st.sampled_from(["plain", "gzip", "cut gzip", "tar", "bzip2", "zip", "cut zip"]))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read(tmp_path_factory, content, packing):
    path = tmp_path_factory.getbasetemp() / ("any.zip" if packing in ("zip", "cut zip") else "any.log")
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("a/rank0.log", content)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) * 2 // 3] if packing == "cut zip" else whole)
    elif packing == "tar":
        with tarfile.open(path, "w:gz") as archive:
            member = tarfile.TarInfo("a/rank0.log")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    else:
        whole = content if packing == "plain" else bz2.compress(content) if packing == "bzip2" else gzip.compress(content)
        path.write_bytes(whole[: len(whole) * 2 // 3] if packing == "cut gzip" else whole)
    logs = reader.collect([str(path)])
    assert len(logs.files) == 1 and triage.answer(logs).findings


@given(text=TEXTS, context=st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_of_known_pieces_is_judged(tmp_path_factory, text, context):
    path = tmp_path_factory.getbasetemp() / "rank1.log"
    path.write_bytes(text.encode("utf-8", "replace"))
    logs = reader.collect([str(path)], context)
    told = triage.judge(logs)
    assert all(h.evidence and h.title and h.remedy for h in told) and len(told) <= triage_weights.MOST and answer(logs).findings


@given(text=st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_a_line_is_taken_apart(text):
    said = log_text.who_says(text)
    assert text.endswith(said.text) or "repeated" in text
    assert all(len(p) <= log_text.LINE_CHARACTERS for p in log_text.pieces((text * 30).encode("utf-8", "replace")))


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("3: loading", 3, " loading"),
        ("3: [2026-02-01 10:00:01.120] loading", 3, " loading"),
        ("3: [INFO] loading", 3, " [INFO] loading"),
        ("[1,3]<stderr>:loading", 3, "loading"),
        ("[3]<stdout>:loading", 3, "loading"),
        ("Sun Feb  1 10:00:00 2026[3]<stdout>:loading", 3, "loading"),
        # Horovod lists the tensors that rank 5 lacks: rank 3 prints it
        ("[1,3]<stderr>:5: [head.bias, head.weight ...]", 3, "5: [head.bias, head.weight ...]"),
        ("5: [head.bias]", None, "5: [head.bias]"),
    ],
)
def test_labels_of_srun_and_horovod_name_who_prints(line, rank, text):
    assert (log_text.who_says(line).rank, log_text.who_says(line).text) == (rank, text)


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("jax.device_count() = 16\nparameters: 7.2B\n", False),
        ("I0312 09:14:22.1 14 pjrt_client.cc:120] client with 8 devices\n", False),
        ("levanter.callbacks | Progress on:train\n", False),
        ("horovod/common/operations.cc: started\n", False),
        ("the web server has started\n", True),
    ],
)
def test_a_job_without_torch_is_a_job(tmp_path, text, foreign):
    (tmp_path / "job.log").write_text(text)
    assert reader.collect([str(tmp_path / "job.log")]).foreign is foreign


@pytest.mark.parametrize(
    "expression",
    [*dict.fromkeys([*catalogue()["printed"].values(), *catalogue()["spoken"].values(), *catalogue()["beside"].values()])],
    ids=lambda e: re.sub(r"\W+", "-", e)[:40],
)
def test_no_line_makes_an_expression_slow(expression):
    assert slowest(expression, SLOWEST_S) < SLOWEST_S


def test_a_row_of_digits_does_not_make_what_describes_slow_together():
    """Each of them may look for a number anywhere: unbounded ones took 0.6 s together for one line, found by fuzz_triage.py."""
    asked, digits = [compiled(catalogue()["spoken"][name]) for name in catalogue()["fits"]], "217" * 666
    assert quickest_s(lambda: [e.search(digits) for e in asked], 0.3) < 0.3


@pytest.mark.parametrize("expression", lines_file.EXPRESSIONS.values(), ids=lines_file.EXPRESSIONS.keys())
def test_no_line_makes_what_is_asked_of_every_line_slow(expression):
    assert slowest(expression, 0.01) < 0.01


def slowest(expression, below_s):
    """Seconds of CPU of the worst of many lines that are made to be slow."""
    literals = {literal.decode() for needs in alternatives(expression) for of in needs for literal in of}
    words = [*sorted(literals)[:8], *re.findall(r"[A-Za-z_]{3,}", expression)[:6], "1", "a"]
    worst = 0.0
    for word in words:
        ends = (
            word * 300,
            (word + "_") * 300,
            (word + " ") * 1000,
            (word + " 1 ") * 800,
            word + " " * 1990,
            word + "a" * 1990,
            word + "1" * 1990,
            "0" * 1990 + word,
        )
        for line in ends:
            worst = max(worst, quickest_s(lambda cut=line[: log_text.LINE_CHARACTERS]: compiled(expression).search(cut), below_s))
    return worst


@pytest.mark.parametrize(
    "start", ["[", "(", "a.", "a:", "1:", "WorkNCCL(", "\x1b[", "\x1b]", "comm 0x", "step ", " ", "[PG ", "1/1 [", "[E ", "This "]
)
def test_no_line_makes_a_reader_slow(start):
    line = (start * 2000)[: log_text.LINE_CHARACTERS]
    kinds.Kinds().of("x", 1, [b"x"])  # the catalogue is read once

    def read() -> None:
        log_text.who_says(line), log_text.pieces(line.encode()), lines_file.plain(line)
        kinds.Kinds().of("x", 1, [line.encode()])

    assert quickest_s(read, 0.1) < 0.1


# who, where, when


@pytest.mark.parametrize(
    "line, rank, host, text",
    [
        ("[rank3]: KeyError: 'x'", 3, "", "KeyError: 'x'"),
        ("[rank3]:[E ProcessGroupNCCL.cpp:1] x", 3, "", "[E ProcessGroupNCCL.cpp:1] x"),
        ("(RayWorker pid=123, ip=10.0.0.7) hello", None, "10.0.0.7", "hello"),
        ("12: hello", 12, "", "hello"),
        ("[default5]:hello", None, "", "hello"),
        ("[1,4]<stderr>:hello", 4, "", "hello"),
        ("2026-01-02T03:04:05.678Z [rank1]: hello", 1, "", "hello"),
        ("[pod/trainer-0/main] hello", None, "trainer-0", "hello"),
        ("node7:11:12 [0] NCCL INFO x", None, "node7", "node7:11:12 [0] NCCL INFO x"),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 6] x", 6, "", "[PG ID 0 PG GUID 0(default_pg) Rank 6] x"),
    ],
)
def test_prefixes_tell_rank_and_host(line, rank, host, text):
    said = log_text.who_says(line)
    assert (said.rank, said.host, said.text.strip()) == (rank, host, text)


@pytest.mark.parametrize(
    "name, rank",
    [
        ("rank3.log", 3),
        ("logs/attempt_0/7/stderr.log", 7),
        ("task_12.out", 12),
        ("train.log", None),
        ("ranking.log", None),
        ("/a/2026/x.log", None),
    ],
)
def test_a_file_name_tells_its_rank(name, rank):
    assert log_text.rank_of_name(name) == rank


def test_times_compare_over_formats():
    earlier, later = (
        log_text.who_says("[rank0]:[E1120 12:03:15.806190993 a.cpp:1] x").time,
        log_text.who_says("2026-11-20 12:03:16,5 x").time,
    )
    assert earlier is not None and later is not None and 0.6 < later - earlier < 0.8


def leads(tmp_path, raw: bytes) -> str:
    path = tmp_path / "job.log"
    path.write_bytes(raw)
    told = triage.judge(reader.collect([str(path)]))
    return told[0].cause if told else ""


@pytest.mark.parametrize(
    "mend",
    [
        lambda t: t.encode("utf-16"),
        lambda t: t.encode("utf-16-le"),
        lambda t: t.replace(" ", "\x1b[0m ").encode(),
        lambda t: ("0%| \r10%| \r" + t).encode(),
        lambda t: t.replace("\n", "\r\n").encode(),
        lambda t: t.rstrip("\n").encode() + b" [repeated 2x across cluster]\n",
        lambda t: b"\xfe\xfa junk\n\xfe" + t.encode(),
    ],
)
def test_a_message_is_found_however_it_is_dressed(tmp_path, mend):
    assert (
        leads(tmp_path, mend("node0:7:7 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n" * 3))
        == "socket-interface-wrong"
    )


def test_a_message_broken_inside_a_word_is_mended(tmp_path):
    whole = hung(0, 1).rstrip("\n")
    cut = whole.index("WorkNCCL") + 4
    log = tmp_path / "job.log"
    log.write_text(f"step 1\n{whole[:cut]}\n{whole[cut:]}\n")
    assert [(t.seq, t.at.line) for r in reader.collect([str(log)]).ranks for t in r.timeouts] == [
        (1, 2)
    ], "its number is that of its beginning"
    log.write_text(
        "ncclRemoteError: a call failed.\nLast error:\nNET/IB : Got completion from peer with status=12 opcode=0 len=0 vendor err 129\n"
    )
    quoted = [s.lines[0] for s in reader.collect([str(log)]).seen.values()]
    assert [q.line for q in quoted if "completion" in q.text] and all(
        q.line == 3 for q in quoted if "completion" in q.text
    ), "not broken, but quoted"


def test_a_progress_bar_without_its_newline_is_taken_off(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("Epoch 9, Rank 6, x: 16batch [00:17, 11.32batch/s][E ProcessGroupNCCL.cpp:717] " + hung(4).partition("] ")[2])
    rows = {r.rank: r for r in reader.collect([str(path)]).ranks}
    assert rows[6].progress and not rows[6].timeouts and rows[4].timeouts


# bounds


def test_bounds_end_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "UNPACKED_BYTES", 4 << 20)
    (tmp_path / "bomb.log.gz").write_bytes(gzip.compress(b"0" * (32 << 20)))
    (tmp_path / "dump").write_bytes(b"\x80\x02}q\x00.")
    told = {f.name.rpartition("/")[2]: f.left_out or f.problem for f in reader.collect([str(tmp_path)]).files}
    read_mib = re.match(r"only the first ([\d.]+) MiB were read: ", told["bomb.log.gz"])
    assert 4 <= float(read_mib[1]) <= 8 and told["dump"].startswith("is a binary file")  # gzip reads 8 to 128 KiB at a time, by version


def test_time_is_bounded(tmp_path):
    (tmp_path / "a.log").write_text("x\n" * 2_000_000)
    assert reader.collect([str(tmp_path)], limit=Limit(0.0)).files[0].left_out.startswith("reading stopped after")


def test_archives_folders_and_standard_input(tmp_path):
    with tarfile.open(tmp_path / "logs.tgz", "w:gz") as archive:
        for name, content in (("a/rank0.log", hung(0)), ("a/inner.tar", "")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    logs = reader.collect([str(tmp_path), "-"], stdin=io.BytesIO(DUPLICATE.encode()))
    assert [f.name.rpartition("/")[2] for f in logs.files] == ["rank0.log", "inner.tar", "standard input"]
    assert [r.rank for r in logs.ranks] == [0] and "nccl-duplicate-gpu-detected" in logs.seen


def test_a_zip_is_read_as_an_attachment_of_an_issue_is(tmp_path):
    """A log in a folder and a dump; what a Mac adds is left out, a file with a password and a packing that is not known say so."""
    with zipfile.ZipFile(tmp_path / "logs.ZIP", "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in (
            ("a/rank0.log", hung(0).encode()),
            ("__MACOSX/a/._rank0.log", b"\0\5\x16\7"),
            ("a/dump", b"\x80\x02}q\0."),
            ("a/locked.log", b"x"),
            ("a/odd.log", b"y"),
        ):
            zipped.writestr(name, content)
    packed = bytearray((tmp_path / "logs.ZIP").read_bytes())
    for name, at, value in ((b"a/locked.log", 8, 1), (b"a/odd.log", 10, 97)):  # of the directory at the end: flags, packing
        packed[packed.rindex(name) - 46 + at] = value
    (tmp_path / "logs.ZIP").write_bytes(packed)
    logs = reader.collect([str(tmp_path)])
    told = {f.name.rpartition("/")[2]: f.problem for f in logs.files}
    assert [r.rank for r in logs.ranks] == [0] and told.pop("rank0.log") == "" and told.pop("dump").startswith("is a binary file")
    assert told.keys() == {"locked.log", "odd.log"} and "password" in told["locked.log"] and "deflate" in told["odd.log"]


def test_what_is_damaged_in_a_zip_costs_nothing_else(tmp_path):
    """A member whose own header names another file, a name that begins with a zero byte, a version of the future, a packed file inside."""
    (tmp_path / "rank1.log").write_text(hung(1))
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w") as zipped:
        for name, content in (("first.log", b"x"), ("rank0.log", hung(0).encode()), ("rank2.log.gz", gzip.compress(hung(2).encode()))):
            zipped.writestr(name, content)
    whole = box.getvalue()
    at = whole.rindex(b"PK\x01\x02first.log"[:4], 0, whole.rindex(b"first.log"))
    damaged = {"header": (whole.index(b"first.log"), b"F"), "name": (whole.rindex(b"first.log"), b"\0"), "version": (at + 6, b"\x7f")}
    for kind, (place, byte) in damaged.items():
        (tmp_path / "logs.zip").write_bytes(whole[:place] + byte + whole[place + 1 :])
        logs = reader.collect([str(tmp_path)])
        assert {r.rank for r in logs.ranks} == ({1} if kind == "version" else {0, 1}), kind
        assert all(f.problem for f in logs.files if f.name.endswith(("first.log", ".gz")) and kind == "header"), logs.files


def test_a_name_in_a_zip_that_is_no_text_costs_one_member(tmp_path):
    """The byte is in the member's own header, not in the directory."""
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w") as zipped:
        zipped.writestr("ж.log", "x")
        zipped.writestr("rank0.log", hung(0))
    whole = box.getvalue()
    at = whole.index("ж.log".encode())
    (tmp_path / "logs.zip").write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    logs = reader.collect([str(tmp_path)])
    assert [(f.name.rpartition(":")[2], bool(f.problem)) for f in logs.files] == [("ж.log", True), ("rank0.log", False)]


def test_a_member_that_asks_for_all_memory_costs_nothing_else(tmp_path):
    """LZMA with a dictionary of 4 GiB, where 3 are allowed."""
    with zipfile.ZipFile(tmp_path / "logs.zip", "w", zipfile.ZIP_LZMA) as zipped:
        zipped.writestr("rank1.log", hung(1))
    whole = bytearray((tmp_path / "logs.zip").read_bytes())
    at = 30 + len("rank1.log") + 5  # its header and name; then version, size and properties of LZMA
    whole[at : at + 4] = b"\xff" * 4
    (tmp_path / "logs.zip").write_bytes(whole)
    (tmp_path / "rank0.log").write_text(hung(0))
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); from nccl_runbook.messages import read as logs\n"
        "print([(f.name.rpartition('/')[2], f.problem[:14]) for f in logs.collect(sys.argv[1:]).files])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[('logs.zip:rank1.log', 'cannot be read'), ('rank0.log', '')]\n"


def test_a_log_that_begins_like_bzip2_is_a_log(tmp_path):
    """The near miss: one that is packed so."""
    (tmp_path / "a.log").write_text("BZhang started the job\n" + hung(0))
    (tmp_path / "b.log").write_bytes(bz2.compress(hung(1).encode()))
    logs = reader.collect([str(tmp_path)])
    assert (
        [r.rank for r in logs.ranks] == [0, 1]
        and [f.problem for f in logs.files] == ["", ""]
        and logs.files[0].lines == 1 + hung(0).count("\n")
    )


def test_what_is_named_twice_is_read_once(tmp_path):
    (tmp_path / "a.log").write_text(hung(0))
    logs = reader.collect(["-", str(tmp_path / "a.log"), "-", str(tmp_path / "a.log")], stdin=io.BytesIO(hung(1).encode()))
    assert [f.name.rpartition("/")[2] for f in logs.files] == ["standard input", "a.log"]


def test_hidden_files_of_an_archive_are_read_and_those_of_macos_are_not(tmp_path):
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        for name, content in ((".rank0.log", hung(0)), ("._rank0.log", "Mac OS X"), ("rank1.log", hung(1))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    assert [f.name.rpartition(":")[2] for f in reader.collect([str(tmp_path / "logs.tar")]).files] == [".rank0.log", "rank1.log"]


def test_an_empty_zip_is_no_text(tmp_path):
    with zipfile.ZipFile(tmp_path / "empty.dat", "w"):
        pass
    assert reader.collect([str(tmp_path)]).files[0].problem.startswith("is a binary file")


def test_a_zip_under_another_name_is_a_checkpoint_and_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "step100.pt", "w") as zipped:
        zipped.writestr("step100/data/0", hung(0))
    read, = reader.collect([str(tmp_path)]).files
    assert read.problem.startswith("is a binary file") and not read.lines


@pytest.mark.parametrize("bars", [("",), tuple("=" * n for n in range(40))], ids=["one kind", "many kinds"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_steps_by_the_thousand_are_not_all_read_but_whether_it_went_on_is_known(tmp_path, bars, goes_on):
    steps = [f"[rank{n % 4}]: step {n} |{bars[n % len(bars)]}> loss 2.5" for n in range(60_000)]
    message = "[rank0]: a:9:9 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol."
    steps.insert(30_000 if goes_on else 60_000, message)
    (tmp_path / "a.log").write_text("\n".join([*steps, *(f"saving shard {n} of the end" for n in range(9000))]))
    facts = reader.collect([str(tmp_path / "a.log")])
    assert {seen.resumed for seen in facts.seen.values() if "ncclNetPlugin_v8" in seen.lines[0].text} == {goes_on}
    assert all(int(row.progress.text.split()[1]) > 50_000 for row in facts.ranks)


def test_a_long_line_that_ends_in_nothing_but_colours_is_read(tmp_path):
    """It looks like an error in its middle, of which nothing is kept."""
    colours = b"\x1b[31m" * 4000
    (tmp_path / "job.log").write_bytes(colours + b"ERROR: nothing that anybody knows" + colours + b"\n")
    logs = reader.collect([str(tmp_path / "job.log")], "it hangs")
    assert logs.unknown == [] and logs.files[0].lines == 1


def test_paths_alone_need_no_parser_and_are_answered_alike(tmp_path):
    (tmp_path / "a.log").write_text("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n")
    code = ("import sys; from nccl_runbook.__main__ import main\ntry: main()\n"
            "finally: print('pydantic' in sys.modules, file=sys.stderr)")
    plain, parsed = (
        subprocess.run(
            [sys.executable, "-c", code, "triage", str(tmp_path / "a.log"), *more],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "lib"},
        )
        for more in ([], ["--fail-on", "unknown"])
    )
    assert plain.stdout == parsed.stdout and "Duplicate GPU" in plain.stdout and plain.returncode == parsed.returncode == 3
    assert plain.stderr == "False\n"


@pytest.mark.parametrize("arguments", [("triage", "-"), ("triage", "/dev/stdin"), ("hang", "/dev/stdin")])
def test_a_signal_that_interrupts_no_read_of_a_quiet_pipe_ends_it_all_the_same(arguments):
    """As one that comes right before a read begins: here another thread takes it, so that nothing wakes the one that reads."""
    code = (
        "import signal, sys, threading, time\nfrom nccl_runbook.__main__ import main\n\n\ndef reading():\n    frame ="
        " sys._current_frames()[threading.main_thread().ident]\n    while frame and ('logs/source' not in frame.f_code.co_filename or"
        " frame.f_code.co_name != 'readinto'):\n        frame = frame.f_back\n    return frame\n\n\ndef take():\n    while not reading():\n"
        "        time.sleep(0.1)\n    time.sleep(1)\n    signal.pthread_kill(threading.get_ident(),"
        " signal.SIGINT)\n\n\nthreading.Thread(target=take, daemon=True).start()\nsignal.pthread_sigmask(signal.SIG_BLOCK,"
        " [signal.SIGINT])\nmain()"
    )
    quiet, ours = os.pipe()
    with Running([sys.executable, "-c", code, *arguments], stdin=quiet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                 env={**os.environ, "PYTHONPATH": "lib"}) as running:
        said = running.communicate(timeout=60)
    os.close(quiet)
    os.close(ours)
    assert (running.returncode, *said) == (130, "", "interrupted (SIGINT) before there was an answer\n")


def test_a_line_that_tells_by_itself_is_quoted_by_itself_and_once(tmp_path):
    """Only a message that was broken inside is put together; one below another is not."""
    (tmp_path / "a.log").write_text(
        "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API"
        " call\nstep\n"
    )
    quoted = {line.text for seen in reader.collect([str(tmp_path / "a.log")]).seen.values() for line in seen.lines}
    assert not [text for text in quoted if "memoryCUDA" in text] and any(text.endswith("out of memory") for text in quoted)
    (tmp_path / "a.log").write_text(
        "n1:7:7 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA dev\nice 60\n"
    )
    quoted = {line.text for seen in reader.collect([str(tmp_path / "a.log")]).seen.values() for line in seen.lines}
    assert any("Duplicate GPU" in text for text in quoted)


def test_a_short_log_is_quoted_at_the_first_line_that_a_naive_search_finds(tmp_path):
    """Of what hints say; kinds of lines, which are alike but for numbers, count once."""
    dice = random.Random(3)
    words = sorted(
        {literal.decode() for e in catalogue()["spoken"].values() for needs in alternatives(e) for of in needs for literal in of}
    )
    lines = [" ".join(dice.choice(words) + dice.choice(["", "s"]) for _ in range(dice.randrange(1, 5))) for _ in range(300)]
    lines = [line for line in dict.fromkeys(lines) if not re.search(r"\d|\n", line)]
    (tmp_path / "a.log").write_text("\n".join(lines))
    seen = reader.collect([str(tmp_path / "a.log")]).seen
    for name in catalogue()["fits"]:
        naive = next((n for n, line in enumerate(lines, 1) if compiled(catalogue()["spoken"][name]).search(lines_file.plain(line))), None)
        assert (seen[name].lines[0].line if name in seen else None) == naive, name


def both_ends(path: Path) -> tuple[list[bytes], log_sources_source.Source]:
    """The lines that are read of one file within two seconds of computing, and how its reading went."""
    began = time.process_time()
    for source in log_sources.sources([str(path)]):
        rows = [row for rows in source.rows() for row in rows if row]
    assert (time.process_time() - began) / slowness() < 2
    return rows, source


def test_of_a_long_log_both_ends_are_read_and_the_rest_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sources_source, "CHUNK_BYTES", 64 << 10)
    part, path = 512 << 10, tmp_path / "long.log"
    path.write_bytes(b"first\n" + (b"x" * 99 + b"\n") * (part // 10) + b"last\n")
    for packed in (False, True):
        if packed:
            path.write_bytes(gzip.compress(path.read_bytes()))
        for source in log_sources.sources([str(path)]):
            rows = [row for rows in source.rows(ends=(part, part)) for row in rows if row]
        assert (rows[0], rows[-1], source.lines) == (b"first", b"last", part // 10 + 2) and source.left_out
        assert len(rows) < part // 20


def test_an_endless_archive_is_not_unpacked_to_its_end(tmp_path):
    path = tmp_path / "bomb.gz"
    for content in (b"\0", b"a\n" * 1000, b"\n"):
        path.write_bytes(gzip.compress(content * ((256 << 20) // len(content))))
        assert both_ends(path)[1].left_out
    path.write_bytes(gzip.compress(os.urandom(3 << 20).hex().encode())[:-100_000])
    assert "damaged" in both_ends(path)[1].left_out


def test_a_sparse_file_is_read_at_its_data(tmp_path):
    path = tmp_path / "sparse.log"
    with open(path, "wb") as file:
        file.write(b"first\n")
        file.seek(1 << 36)
        file.write(b"\nlast\n")
    rows, _ = both_ends(path)
    assert (rows[0], rows[-1]) == (b"first", b"last")


def test_the_last_line_of_a_large_log_counts_and_keeps_its_number(tmp_path):
    path, rows = tmp_path / "big.log", 200_000
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(1, rows + 1)) + b"the last word")
    for packed in (False, True):
        path.write_bytes(gzip.compress(path.read_bytes()) if packed else path.read_bytes())
        seen = {}
        for source in log_sources.sources([str(path)]):
            for taken in source.rows(ends=(1 << 19, 1 << 19)):
                seen |= dict(enumerate(taken, source.lines + 1))
        assert seen[1] == b"line 1" and seen[rows] == b"line %d" % rows and seen[rows + 1] == b"the last word"
        assert all(row == b"line %d" % number for number, row in seen.items() if number <= rows)
        assert len(seen) < rows and "in the middle of the file were not read" in source.left_out and source.lines == rows + 1


def test_of_too_many_files_those_with_errors_and_the_newest_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sources, "MAX_FILES", 8)
    for number in range(40):
        path = tmp_path / f"rank{number}.log"
        path.write_text("RuntimeError: it broke\n" if number == 17 else "step 1\n")
        os.utime(path, (number, number))
    os.mkfifo(tmp_path / "nobody-writes.log")
    told = list(log_sources.sources([str(tmp_path)]))
    assert told[0].problem and told[0].name == "41 files"
    assert [int(re.findall(r"\d+", os.path.basename(one.name))[0]) for one in told[1:]] == [17, *range(33, 40)]


def test_rows_of_a_private_key_are_masked_where_they_are_read(tmp_path):
    (tmp_path / "a.log").write_text(
        "[rank0]: -----BEGIN PRIVATE KEY-----\n[rank0]: MIIEabc/+=\nx9=\n[rank0]: -----END PRIVATE KEY-----\nstep 12\n"
    )
    rows = [row for source in log_sources.sources([str(tmp_path)]) for taken in source.rows() for row in taken]
    assert rows[1:3] == [b"[rank0]: [redacted:key]", b"[redacted:key]"] and rows[4] == b"step 12"


@pytest.mark.parametrize(("line", "is_odd"), [
    ("/opt/x/linear.py:12: UserWarning: the fused kernel failed to build, a slower one is used", False),
    ("train.py:7: FutureWarning: this argument is refused from version 3 on", False),
    ("loader.py: failed to read row 12", True), ("loader.py:12: failed to read row 12", True)])
def test_a_warning_of_python_does_not_look_like_an_error(line: str, is_odd: bool, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"[rank0]: step 1 loss 2.3\n{line}\n[rank0]: step 2 loss 2.2\n")
    assert [t.first.text for t in reader.collect([str(path)]).unknown] == [line] * is_odd
