"""More than 180 files that nobody means to read: each goes through every reading command in one process, within 5 s and 300 MB,
and runs nothing."""
from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from book_samples import with_library
from hostile import PLACES
from hostile_fourth import FOURTH
from hostile_more import MORE
from hostile_third import THIRD
from processes import command_s
from test_hostile import CONTROLS, CPU_S, MEMORY_BYTES
from warm_cli import read_cli

LINE = "n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n"
N = 60_000


def _cyclic() -> bytes:
    loop: list = []
    loop.append(loop)
    return pickle.dumps({"entries": loop, "version": "2.4", "pg_config": loop})


def _slip(name: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(name, LINE)
    return held.getvalue()


def _tar(kind: bytes, target: str) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        member = tarfile.TarInfo("x.log")
        member.type, member.linkname = kind, target
        archive.addfile(member)
    return held.getvalue()


def _database() -> bytes:
    held = sqlite3.connect(":memory:")
    held.execute("create table t (a)")
    held.execute("insert into t values (?)", (LINE,))
    return held.serialize()


RECORD = '{"schema": "nccl-runbook/record/2", "step": "03-fewer-gpus", "status": "ok", "started": "x", %s}'
DUMP = '{"version": "2.4", "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}, "pg_status": {}, "entries": [%s]}'
ENTRY = (
    '{"record_id": %s, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": %s, "state": "scheduled", "profiling_name": "nccl:x",'
    ' "input_sizes": [[4]], "output_sizes": [[4]], "time_created_ns": %s}'
)
FILES: dict[str, bytes | str] = {
    "dump_nan": DUMP % ENTRY % ("NaN", "1", "1"),
    "dump_inf": DUMP % ENTRY % ("Infinity", "-Infinity", "1e999"),
    "dump_huge": DUMP % ENTRY % ("9" * 4000, "1", "1"),
    "dump_negative": DUMP % ENTRY % ("-1", "-1", "-1"),
    "dump_text": DUMP % ENTRY % ('"x"', "[]", "{}"),
    "dump_twice": DUMP.replace('"version"', '"entries": 1, "version"') % "",
    "dump_null": DUMP % "null",
    "dump_numbers": DUMP % "1, 2, 3",
    "dump_ranks": DUMP.replace("[0, 1]", "[" + "0, " * N + "0]") % "",
    "dump_eval": DUMP.replace("[0, 1]", "__import__('os').system('touch CANARY')") % "",
    "dump_cyclic": _cyclic(),
    "dump_cut.pkl": pickle.dumps({"entries": [1] * 99})[:-9],
    "dump_memo.pkl": b"\x80\x04" + b"]\x94" * N + b".",
    "dump_mark.pkl": b"\x80\x04" + b"(" * N + b".",
    "dump_long.pkl": b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".",
    "dump_size.pkl": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "dump_global.pkl": b"\x80\x02cos\nsystem\n(S'touch CANARY'\ntR.",
    "dump_rank_99999999": DUMP.replace("[0, 1]", "[0, 99999999]") % ENTRY % ("1", "1", "1"),
    "world.log": (
        "n1:1:2 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 90000000 cudaDev 0 nvmlDev 0 busId 9b000 commId 0x2 - Init"
        " COMPLETE\n"
        + "".join(
            f"[rank{r}]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank {r}] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing"
            " out.\n"
            for r in (0, 89_999_999)
        )
    ),
    "dotted.toml": ".".join(["a"] * 16_000) + " = 1\n",
    "record_nan.json": RECORD % '"wall_s": NaN',
    "record_inf.json": RECORD % '"wall_s": 1e999',
    "record_twice.json": RECORD % '"step": "../../x", "step": "/x"',
    "record_deep.json": RECORD % ('"facts": ' + '{"a": ' * 900 + "1" + "}" * 900),
    "record_list.json": "[" + RECORD % '"facts": []' + "]",
    "record_big.json": RECORD % ('"reason": "' + "x" * (4 << 20) + '"'),
    "record_surrogate.json": RECORD % '"reason": "\\ud800\\udfff\\ud83d"',
    "bom.json": "\ufeff" + RECORD % '"facts": {}',
    "anchors.yaml": "a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]\n<<: *a\n",
    "laughs.yaml": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
    "self.yaml": "a: &a {b: *a}\n",
    "tag.yaml": "!!python/object/apply:os.system ['touch CANARY']\n",
    "merge.yaml": "a: &a {x: 1}\n" + "b: {<<: [" + "*a, " * N + "]}\n",
    "numbers.yaml": "n_nodes: " + "9" * N + "\nx: 0o" + "7" * N + "\nd: 2026-13-45\n",
    "sexagesimal.yaml": "a: " + "1:" * N + "1\n",
    "cut.gz": gzip.compress(LINE.encode() * 999)[:-9],
    "tail.gz": gzip.compress(LINE.encode()) + b"\xff" * 999,
    "many.gz": gzip.compress(LINE.encode()) * 3000,
    "crc.gz": gzip.compress(LINE.encode())[:-8] + b"\0" * 8,
    "slip.zip": _slip("../../CANARY"),
    "absolute.zip": _slip("/CANARY"),
    "control.zip": _slip("\x1b]0;x\x07\u202e.log"),
    "windows.zip": _slip("C:\\CANARY"),
    "link.tar": _tar(tarfile.SYMTYPE, "/etc/passwd"),
    "hard.tar": _tar(tarfile.LNKTYPE, "/etc/passwd"),
    "device.tar": _tar(tarfile.CHRTYPE, ""),
    "fifo.tar": _tar(tarfile.FIFOTYPE, ""),
    "table.sqlite": _database(),
    "page.pdf": b"%PDF-1.7\n" + LINE.encode() * 99,
    "mixed.log": LINE.encode() + LINE.encode("utf-16") + LINE.encode("latin-1") + "\u00e9".encode("latin-1") * 99,
    "nul.log": LINE.replace(" ", "\0") * 999,
    "odd-utf16.log": LINE.encode("utf-16")[:-1],
    "overlong.log": b"\xc0\xaf\xed\xa0\x80\xf8\x88\x80\x80\x80" * 9999,
    "return.log": "x\r" * N + LINE,
    "separators.log": "\u2028\u2029\x85\x0b\x0c\x1c" * 9999 + LINE,
    "long-number.log": "[rank" + "9" * N + "]: " + LINE,
    "dates.log": "9999-99-99 99:99:99.999999999 " + LINE,
    "ansi.log": "\x1b[" * N + LINE,
    "deep.py": "(" * N,
    "names.env": "NCCL_" + "A" * N + "=1\n",
    "quote.env": "NCCL_DEBUG='" + "x" * N,
}
TELLING = (  # of the fourth list
    "topo.xml superscripts.log negative.log dump_rank_40 dump_rank_41 dump_rank_44 pax-sizes.tar negative.tar through-link.tar runs.zst"
    " superscripts.sh brackets.sh references.sh powers.sh interpolations.yaml merges.yaml counts.yaml record-9999.json record-hosts.json"
).split()
COMMANDS = [["triage"], ["hang"], ["env"], ["plan"], ["look", "--record"]]
ALL = """
import contextlib, json, sys, time
from nccl_runbook.__main__ import main
late, commands, names, kept = [], json.loads(sys.argv[1]), sys.argv[2:], []
for name in names:
    for command in commands:
        sys.argv[:] = ["nccl-runbook", *command, name]
        kept += [sys.stdout, sys.stderr]  # main() puts its own in their place, and one that nobody holds closes the file
        began = time.process_time()
        with contextlib.suppress(SystemExit):
            main()
        if time.process_time() - began > 5.0:
            late.append((name, command))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([late, int(peak) * 1024]))
"""


@pytest.mark.parametrize("part", range(8))
def test_a_file_that_nobody_means_to_read_is_read_or_refused(part: int, tmp_path: Path) -> None:
    made = {**{name: lambda c=content: c for name, content in FILES.items()}, **MORE, **THIRD}
    assert min(len(FILES), len(MORE), len(THIRD)) >= 50 and len(made) == len(FILES) + len(MORE) + len(THIRD)
    assert not made.keys() & FOURTH.keys()
    made |= {name: FOURTH[name] for name in TELLING}
    names = sorted(made)[part::8]
    for name in names:
        content = made[name]()
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    before = {*tmp_path.rglob("*")}
    done = subprocess.run([sys.executable, "-c", ALL, json.dumps(COMMANDS), *names], cwd=tmp_path, capture_output=True, timeout=300,
                          env={**with_library(), "HOME": str(tmp_path / "home")})
    said = (done.stdout + done.stderr).decode("utf-8", "strict")
    late, peak = json.loads(done.stdout.decode().splitlines()[-1])
    alone = {"cwd": tmp_path, "env": {**with_library(), "HOME": str(tmp_path / "home")}}
    late = [one for one in late if command_s([sys.executable, "-m", "nccl_runbook", *one[1], one[0]], 5.0, **alone)[0] > 5.0]
    assert done.returncode == 0 and late == [] and peak < MEMORY_BYTES
    assert not CONTROLS.search(said) and "Traceback (most recent call last)" not in said
    assert {p for p in {*tmp_path.rglob("*")} - before if "home" not in p.relative_to(tmp_path).parts} == set()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "back").symlink_to(tmp_path)
    names = ["fifo", "loop", "back", "/dev/zero", "/dev/full", "/proc/self/mem", "/proc/self/environ", "/proc/self/pagemap"]
    done = subprocess.run([sys.executable, "-c", ALL, json.dumps(COMMANDS[:4]), *names], cwd=tmp_path, capture_output=True, timeout=60,
                          env={**with_library(), "HOME": str(tmp_path / "home")}, stdin=subprocess.DEVNULL)
    late, peak = json.loads(done.stdout.decode().splitlines()[-1])
    assert done.returncode == 0 and late == [] and peak < MEMORY_BYTES and b"Traceback (most recent call last)" not in done.stderr


@pytest.mark.parametrize("name", ["names-a-pipe.sh", "configurations"])
def test_no_command_waits_for_a_pipe_that_an_input_names(name: str, tmp_path: Path) -> None:
    PLACES[name](tmp_path / name)
    for command in ("triage", "env", "plan", "diagnose"):
        done = read_cli(command, name, cwd=tmp_path, timeout=60)
        assert done.returncode in range(5) and done.usual_s() < CPU_S and "Traceback" not in done.stderr


def test_nine_thousand_hosts_are_shared_within_the_bound(tmp_path: Path) -> None:
    """Whether a name is a word of our own sentences is asked of each."""
    (tmp_path / "addresses.log").write_bytes(FOURTH["addresses.log"]().encode())
    done = read_cli("triage", "--share", "addresses.log", cwd=tmp_path, timeout=60)
    assert done.returncode == 4 and done.usual_s() < CPU_S


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/kmsg"])
def test_a_file_of_the_kernel_whose_reading_may_never_end_is_not_read(path: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "nccl_runbook", "triage", path], env=with_library(), capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 2 and path in ended.stderr and "not a regular file" in ended.stderr and ended.stderr.count("\n") == 1
