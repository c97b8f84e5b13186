"""What one answer reads: one time, one amount of what is unpacked, and a name for whatever was not read; and waits that end with the
budget."""
from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import time
from pathlib import Path

import hostile
import pytest
from hypothesis import given, settings, strategies as st
from nccl_runbook.case.given import sort
from nccl_runbook.compare import read as set_ups
from nccl_runbook.hang import read as hang
from nccl_runbook.logs import file as log_file, sources as log_sources
from nccl_runbook.logs.file import Limit, Metered, Spent
from nccl_runbook.messages import clues, read
from nccl_runbook.step import Step
from processes import quickest_s
from triage_samples import DUPLICATE, hung
from warm_cli import read_cli

WARN = hostile.LINE.encode()


def archive(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, content in members.items():
            member = tarfile.TarInfo(f"{name}.log")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return path


def test_all_members_and_all_files_share_one_amount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the amount each: what comes after the tenth is not read, and is named. Their time is not the subject: a busy machine
    has less."""
    monkeypatch.setattr(log_file, "UNPACKED_S", 30.0)
    part = (b"x" * 99 + b"\n") * (log_file.UNPACKED_BYTES // 1000)
    for number in range(2):
        archive(tmp_path / f"{number}.tar.gz", **{f"rank{n}": part for n in range(10)})
    (tmp_path / "z.log").write_text(DUPLICATE)
    logs = read.collect([str(tmp_path)])
    whole = [f for f in logs.files if f.lines and not f.left_out]
    assert 8 <= len(whole) <= 19 and whole[-1].name.endswith("z.log"), "a plain file is read all the same"
    assert any(f.name.endswith("1.tar.gz") and "unpacks to more than" in f.problem for f in logs.files)


@pytest.mark.parametrize("command", ["triage", "hang", "diagnose"])
def test_the_answer_names_what_was_not_read(command: str, tmp_path: Path) -> None:
    archive(tmp_path / "job.tar.gz", rank0=hung(0).encode(), big=b"a b\n" * (24 << 20))
    answer = json.loads(read_cli(command, tmp_path / "job.tar.gz", "--json").stdout)
    fields = json.dumps(answer.get("files", answer.get("not_looked_at")))
    assert "no further: what is packed here" in fields or "not read to its end" in fields
    assert "job.tar.gz" in read_cli(command, tmp_path / "job.tar.gz").stdout


def test_an_ordinary_log_is_unpacked_whole(tmp_path: Path) -> None:
    """The near miss: more than the amount, but no more than logs usually unpack to."""
    text = b"".join(b"step %d loss %d\n" % (n, n * n * 7919 % 1_000_003) for n in range(1_200_000))
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(text, 1))
    assert len(text) > log_file.UNPACKED_BYTES
    for source in log_sources.sources([str(tmp_path)]):
        assert sum(map(len, source.chunks())) == len(text) and not source.left_out


def test_what_stands_behind_a_folder_of_a_plain_tar_is_not_read(tmp_path: Path) -> None:
    """A member of 64 GiB that is a hole on the disk: the next one is found without reading it."""
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w") as packed:
        member = tarfile.TarInfo("weights.bin")
        member.size = 64 << 30
        head = member.tobuf()
        last = tarfile.TarInfo("rank0.log")
        last.size = len(WARN)
        packed.addfile(last, io.BytesIO(WARN))
    tail = path.read_bytes()
    with open(path, "wb") as file:
        file.write(head)
        file.seek(64 << 30, io.SEEK_CUR)
        file.write(tail)
    told: dict[str, bytes] = {}
    assert quickest_s(lambda: told.update({s.name.rpartition(":")[2]: b"".join(s.chunks()) for s in log_sources.sources([str(path)])
                                           if s.name.endswith("rank0.log")}), 2, tries=1) < 2
    assert told == {"rank0.log": WARN}


@pytest.mark.parametrize(
    "name",
    ["overlap.zip", "empties.tar", "folders.tar.gz", "long-name.tar", "long-name.tar.gz", "newlines.gz", "lines.gz", "chain.gz", "cr.gz"],
)
def test_a_bomb_takes_two_seconds_of_computing_and_is_named(name: str, tmp_path: Path) -> None:
    path = hostile.made(name, tmp_path)
    seen = []
    assert quickest_s(lambda: seen.append(hang.collect([str(path)])), 3, tries=2) < 3
    assert any(f.problem for f in seen[0].files)


@given(
    sizes=st.lists(st.integers(0, 400), max_size=40),
    kinds=st.lists(st.sampled_from(["packed", "unpacked", "plain"]), min_size=40, max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_no_more_is_read_than_the_limit_allows(sizes: list[int], kinds: list[str]) -> None:
    limit, read_of = Limit(), {"packed": 0, "unpacked": 0, "plain": 0}
    limit.patient_until = 0.0
    for size, kind in zip(sizes, kinds):
        may = read_of["unpacked"] <= log_file.UNPACKED_TIMES * read_of["packed"]
        try:
            read_of[kind] += len(Metered(io.BytesIO(bytes(size)), limit, kind).read())
            assert may
        except Spent:
            assert not may


def test_what_dumps_take_is_not_taken_from_the_logs() -> None:
    limit = Limit(1.0)
    before = limit.until
    with limit.paused():
        time.sleep(0.05)
    assert limit.until - before >= 0.05
    assert Limit(1e9).until - time.monotonic() <= log_file.READ_S


def test_a_member_of_an_archive_does_not_hide_the_archive_beside_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\ntorchrun train.py\n")
    archive(tmp_path / "logs.tar.gz", rank0=hung(0).encode())
    brought = sort([str(tmp_path)])
    assert brought.logs == (str(tmp_path / "logs.tar.gz"),) and brought.scripts == (str(tmp_path / "train.sh"),)


def test_a_typed_name_that_is_not_there_is_refused_alone_and_beside_others(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(WARN)
    for names in (("job.log", "missing.log"), ("missing.log",)):
        ended = read_cli("diagnose", *(tmp_path / name for name in names))
        assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1) and "missing.log" in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [["triage", "job.log"], ["hang", "job.log"], ["diagnose", "job.log"], ["plan", "fsdp:d1", "--gpus", "1"], ["env", "job.log"]],
)
def test_a_page_in_a_folder_that_is_not_there_is_refused_and_makes_no_folder(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(DUPLICATE)
    words = [str(tmp_path / w) if w == "job.log" else w for w in arguments]
    done = read_cli(*words, "--html", tmp_path / "no" / "page.html")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1) and not (tmp_path / "no").exists()
    if arguments[0] == "triage":
        told = read_cli(*words, "--html", "/proc/page.html")
        assert told.returncode == 2 and "Duplicate GPU" in told.stdout and len(told.stderr.splitlines()) == 1


BAR = "\rEpoch 1:  45%|####      | 450/1000 [00:12<00:15, 36.3it/s, loss=0.5]"


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"step {n} | loss {n / 7:.4f} | lr 1e-4\n" for n in range(30)),
        BAR * 30,
        f"\x1b[32mstart\x1b[0m\n{BAR}{BAR}\n" * 12,
        "".join(f"{{'loss': {n / 9:.3f}, 'grad_norm': 1.2, 'epoch': {n / 10}}}\n" for n in range(20)),
        "".join(f"[2026-11-28 10:00:00] iteration {n}/ 500 | lm loss: 2.3E+00 |\n" for n in range(1, 40)),
    ],
)
def test_a_log_of_plain_progress_is_a_jobs_log_without_a_fault(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"Loading\nSeed set to 42\n{text}")
    logs = read.collect([str(tmp_path / "job.log")])
    assert not logs.foreign and not [r for r in logs.ranks if r.first_error]
    assert read_cli("triage", tmp_path / "job.log").returncode == 4, "as for any log: none proves health"


@pytest.mark.parametrize(
    "text",
    [
        "step,loss\n" + "".join(f"{n},{n / 7:.3f}\n" for n in range(200)),
        "".join(f"def step_{n}(loss):\n    return loss * {n}\n" for n in range(40)),
        "# How to train\n\nStep 1: install.\nStep 2: run.\nYou see `step 10 loss 2.3`.\n"
        + "".join(f"Step {n}: do it.\n" for n in range(3, 30)),
        "lorem ipsum 12\n" * 300,
        "name: x\nsteps: 10\nepochs: 3\n" * 40,
    ],
)
def test_a_text_of_another_kind_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text)
    assert read.collect([str(tmp_path / "text")]).foreign


def test_a_module_is_loaded_within_the_budget(tmp_path: Path) -> None:
    bash = tmp_path / "bash"
    bash.write_text("#!/bin/sh\nexec sleep 30\n")
    bash.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(ValueError, match="module load slow"):
        set_ups.read("module:slow", ".", {"PATH": f"{tmp_path}:/usr/bin:/bin"}, within_s=0.5)
    assert time.monotonic() - began < 10


def test_a_guard_waits_no_longer_than_the_budget(tmp_path: Path) -> None:
    asked: list[float] = []

    def users(within_s: float) -> int:
        asked.append(within_s)
        return 0

    step = Step("01-x", {"run_dir": str(tmp_path), "budget_s": 7}, lambda: "")
    step.guard(users, lambda seen, allowed: None)
    assert 1.0 <= asked[0] <= 7.0


@pytest.mark.parametrize("command", [["triage"], ["hang"], ["diagnose"], ["env"], ["plan", "--gpus", "1"], ["look", "--record"]])
@pytest.mark.parametrize("target", ["/proc/kmsg", "/proc/self/mem", "/dev/zero"])
def test_a_link_to_a_file_of_the_kernel_ends_in_a_sentence(command: list[str], target: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to(target)
    done = read_cli(*command, tmp_path / "a.log")
    assert done.returncode in (2, 4) and "Traceback" not in done.stderr


def test_a_toml_key_of_many_parts_takes_no_memory() -> None:
    import tracemalloc

    from nccl_runbook.environment.read_file import parse

    tracemalloc.start()
    parse(".".join(["a"] * 16_000) + " = 1\n")
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("command", ["triage", "hang", "diagnose"])
def test_an_archive_without_a_file_says_so(command: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(hostile.tarred([("d", tarfile.DIRTYPE, ""), ("a.log", tarfile.SYMTYPE, "/etc/passwd")]))
    (tmp_path / "x.zip").write_bytes(b"PK\3\4" + hostile.zipped({"d/": b""})[4:])
    for name in ("x.tar", "x.zip"):
        done = read_cli(command, tmp_path / name)
        assert done.returncode == 4 and "contains no readable file" in done.stdout and "Traceback" not in done.stderr


HERD = "step 1 loss 2.3\n[rank{0}]: RuntimeError: shard 0x{0:08x} of n{0} is gone\n"


@pytest.mark.parametrize(
    ("oldest", "others"),
    [
        ("{fault}\n", HERD),
        ("{fault}\n" + "step 2 loss 2.2\n" * 3000, HERD),
        ("step 2 loss 2.2\n" * 3000 + "{fault}\n", HERD),
        ("{fault}\n[rank0]: RuntimeError: shard 0x00000001 of n1 is gone\n", HERD),
        ("{fault}\n", "step {0} loss 2.3\n"),
    ],
)
def test_of_too_many_files_one_with_an_error_of_its_own_is_read(oldest: str, others: str, tmp_path: Path, monkeypatch) -> None:
    """Even the oldest, behind as many newer ones that look like errors."""
    monkeypatch.setattr(log_sources, "MANY_S", 60.0)  # of a busy machine
    monkeypatch.setattr(log_sources, "MAX_FILES", 40)
    for number in range(60):
        path = tmp_path / f"job{number:03d}.log"
        path.write_text(others.format(number) if number else oldest.format(fault=DUPLICATE.strip()))
        os.utime(path, (1_700_000_000 + number,) * 2)
    logs = read.collect([str(tmp_path)])
    assert "device-not-set-per-rank" in {clue.cause for clue in clues.clues() if clue.message in logs.seen}
    assert sum(file.lines > 0 for file in logs.files) == 40


def test_the_answer_counts_files_with_errors_that_it_did_not_read(tmp_path: Path, monkeypatch) -> None:
    """No two errors are alike here, so the newest are read."""
    monkeypatch.setattr(log_sources, "MAX_FILES", 10)
    for number in range(30):
        words = chr(ord("g") + number % 20) * (1 + number // 20)
        (tmp_path / f"job{number:03d}.log").write_text(f"RuntimeError: {words}\n" if number >= 10 else "step 1 loss 2.3\n")
    (unread,) = (file for file in read.collect([str(tmp_path)]).files if not file.lines)
    assert [int(number) for number in re.findall(r"\d+", unread.name + unread.problem)] == [30, 20, 10]


def test_of_too_many_files_one_with_an_error_of_its_own_is_read_before_time_ends(tmp_path: Path, monkeypatch) -> None:
    """It is the oldest, and the last by name."""
    monkeypatch.setattr(log_sources, "LIST_S", 60.0)  # of a busy machine
    monkeypatch.setattr(log_sources, "MANY_S", 60.0)
    monkeypatch.setattr(log_sources, "MAX_FILES", 40)
    for number in range(60):
        path = tmp_path / f"job{number:03d}.log"
        path.write_text(HERD.format(number) if number < 59 else f"{DUPLICATE.strip()}\n")
        os.utime(path, (1_700_000_000 - number,) * 2)
    names = [Path(source.name).name for source in log_sources.sources([str(tmp_path)])]
    assert names[1:3] == ["job000.log", "job059.log"] and names[3:] == sorted(names[3:])
