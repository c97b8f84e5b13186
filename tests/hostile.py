"""Every hostile input through every reading command, each in a process of its own: `python tests/hostile.py [PART OF A NAME]`, by hand.

Nothing is executed, nothing is written elsewhere, no control character reaches the terminal, and each answer takes at most 5 s of computing
and 300 MB. The suite runs a sample: test_hostile.py and test_hostile_files.py.
"""
from __future__ import annotations

import gzip
import io
import json
import marshal
import os
import pickle
import random
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

LINE = "n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n"
RUNS = "touch CANARY"
COMMANDS = (["triage"], ["hang"], ["diagnose"], ["env"], ["plan", "--gpus", "8"], ["look", "--record"], ["run", "--out", "run", "--record"])


def tarred(members: Iterable[tuple[str, bytes, str]], mode: str = "w") -> bytes:
    """Members by name, type and target of a link."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = len(LINE) if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(LINE.encode()))
    return held.getvalue()


def zipped(members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return held.getvalue()


def overlapping(count: int) -> bytes:
    """A zip in which all members are the same bytes: each directory entry names the one kernel (as in D. Fifield, WOOT 2019)."""
    whole = zipped({"00000.log": b"a b\n" * (8 << 20)})
    at, end = whole.rindex(b"PK\1\2"), whole.rindex(b"PK\5\6")
    directory = whole[at:end] * count
    return whole[:at] + directory + whole[end:end + 8] + struct.pack("<HHLLH", count, count, len(directory), at, 0)


def long_header(size: int) -> bytes:
    """A tar whose first member has a name of so many bytes, as GNU tar writes a long one."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = b"L", size
    return member.tobuf() + bytes(1 << 20)


def png() -> bytes:
    chunk = b"tEXtComment\0" + LINE.encode() * 9
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))


def notebook() -> str:
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": f"<script>alert(1)</script>{LINE}\x1b[2J"}}
    cell = {"cell_type": "code", "source": f"!{RUNS}\n{LINE}", "outputs": [output], "metadata": {}, "execution_count": 1}
    return json.dumps({"cells": [cell] * 9, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def noise(size: int) -> bytes:
    return random.Random(1).randbytes(size)


# name -> what is in the file
CONTENTS: dict[str, Callable[[], bytes | str]] = {
    "overlap.zip": lambda: overlapping(2000),
    "many.zip": lambda: zipped({f"rank{n}.log": b"x\n" for n in range(30_000)}, zipfile.ZIP_STORED),
    "inside.zip": lambda: zipped(
        {"a.zip": zipped({"b.zip": zipped({"c.log": b"a\n" * (32 << 20)})}), "x.gz": gzip.compress(b"a\n" * (1 << 20))}
    ),
    "locked.zip": lambda: zipped({"a.log": b"x"}).replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"),
    "newline-in-name.zip": lambda: zipped({"a\nverdict: healthy (exit code 0)\x1b[2J\u202e.log": LINE.encode()}),
    "zip64.zip": lambda: zipped({"a.log": b"x"})[:-6] + b"\xff" * 6,
    "empties.tar": lambda: tarred((f"e{n}.log", tarfile.AREGTYPE, "") for n in range(20_000)),
    "folders.tar.gz": lambda: tarred(((f"d{n}", tarfile.DIRTYPE, "") for n in range(40_000)), "w:gz"),
    "links.tar": lambda: tarred(
        [("a.log", tarfile.SYMTYPE, "/etc/shadow"), ("b.log", tarfile.LNKTYPE, "a.log"), ("a.log", tarfile.REGTYPE, "")]
    ),
    "outside.tar.gz": lambda: tarred([("../../CANARY", tarfile.REGTYPE, ""), ("/CANARY", tarfile.REGTYPE, "")], "w:gz"),
    "odd-names.tar": lambda: tarred(
        [("\x1b]0;x\x07.log", tarfile.REGTYPE, ""), ("\u202e\n.log", tarfile.REGTYPE, ""), ("-rf", tarfile.REGTYPE, "")]
    ),
    "long-name.tar": lambda: long_header(6 << 30),
    "long-name.tar.gz": lambda: gzip.compress(long_header(6 << 30) + bytes(64 << 20), 1),
    "lines.gz": lambda: gzip.compress(LINE.encode() * (3 << 20), 1),
    "newlines.gz": lambda: gzip.compress(b"\n" * (128 << 20), 1),
    "cr.gz": lambda: gzip.compress(b"step 1\r" * (16 << 20), 1),
    "chain.gz": lambda: gzip.compress(b"") * 100_000,
    "head.gz": lambda: b"\x1f\x8b\x08\x1f" + b"\xff" * 4096,
    "zstd.log": lambda: b"\x28\xb5\x2f\xfd" + noise(4096),
    "seven.7z": lambda: b"7z\xbc\xaf\x27\x1c" + noise(4096),
    "picture.log": png,
    "program.log": lambda: b"\x7fELF\2\1\1" + LINE.encode() * 99,
    "noise.log": lambda: noise(8 << 20),
    "noise.txt": lambda: noise(1 << 20).hex(),
    "job.ipynb": notebook,
    "code.pyc": lambda: b"\xa7\r\r\n" + bytes(12) + marshal.dumps(compile(f"import os; os.system({RUNS!r})", "x", "exec")),
    "array.npy": (
        lambda: b"\x93NUMPY\1\0v\0" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(117) + b"\n" + pickle.dumps([1])
    ),
    "weights.pt": lambda: zipped({"a/data.pkl": b"\x80\x02cos\nsystem\n(S'" + RUNS.encode() + b"'\ntR.", "a/version": b"3"}),
    "dump_rank_0": lambda: b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0c" + RUNS.encode() + b"\x85R.",
    "dump_rank_1": lambda: b"\x80\x02Pids\n.",
    "dump_rank_2": lambda: b"\x80\x02\x82\x01.",
    "dump_rank_3": lambda: b"\x80\x04" + b"(" * 60_000 + b"t" * 60_000 + b".",
    "dump_rank_4": lambda: b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.",
    "dump_rank_5.json": lambda: '{"version": "2.4", "pg_config": ' + "9" * 5_000_000 + "}",
    "dump_rank_6.json": lambda: '{"entries": [' + "1e999," * 200_000 + "-0]}",
    "deep-list.json": lambda: '{"schema": "nccl-runbook/record/2", "facts": ' + "[" * 100_000,
    "record-60.json": lambda: '{"schema": "nccl-runbook/record/2", "step": "' + "x" * (60 << 20) + '"}',
    "looks.json": lambda: json.dumps(
        {
            "schema": "nccl-runbook/record/2",
            "step": "look",
            "status": "ok",
            "started": "x",
            "facts": {"live": {"ranks": [{"samples": []}] * 9999}},
        }
    ),
    "utf-32.log": lambda: LINE.encode("utf-32") * 99,
    "bom.log": lambda: b"\xef\xbb\xbf" * 9 + LINE.encode(),
    "boms.log": lambda: b"\xff\xfe\xfe\xff" * 99,
    "utf-16-be.log": lambda: b"\xfe\xff" + LINE.encode("utf-16-be") * 99 + b"\xd8",
    "nul.log": lambda: bytes(20 << 20),
    "one-line.log": lambda: b"x" * (24 << 20),
    "short-lines.log": lambda: b"a\n" * (2 << 20),
    "kinds.log": lambda: "".join(f"{'abcdefghij'[n % 10]}{n:x}{'q' * (n % 97)} failed\n" for n in range(120_000)),
    "dotted.toml": lambda: ".".join(["a"] * 16_000) + " = 1\n",
    "dates.toml": lambda: "x = 2026-13-45T99:99:99\n" * 999,
    "quotes.toml": lambda: 'x = """' + '\\"' * 60_000,
    "formula.csv": lambda: f"=cmd|' /C {RUNS}'!A0,@SUM(1),+1\n" * 999,
    "here.sh": lambda: f"cat <<EOF\nexport NCCL_DEBUG=$({RUNS})\nEOF\nexport NCCL_DEBUG=`{RUNS}`\n" * 99,
    "job.sbatch": lambda: f"#!/bin/bash\n#SBATCH --export=ALL,NCCL_DEBUG=$({RUNS})\nsource <({RUNS})\neval {RUNS}\n",
    "Dockerfile": lambda: f"ENV NCCL_DEBUG=$({RUNS})\nRUN {RUNS}\n" * 99,
    "preload.env": lambda: f"LD_PRELOAD=/x.so\nBASH_ENV=$({RUNS})\nPROMPT_COMMAND={RUNS}\n",
    "many.env": lambda: "".join(f"NCCL_X{n}=1\n" for n in range(60_000)),
    "twice.yaml": lambda: "a: 1\n" * 60_000,
    "bidi.yaml": lambda: "trainer: \u202e\u2066\x9b31m\n",
    "anchors.yaml": lambda: "a: &a [x]\n" + "".join(f"b{n}: [*a, *a]\n" for n in range(20_000)),
    "args.sh": lambda: "torchrun " + "--x=1 " * 100_000,
}


def _socket(path: Path) -> None:
    held = socket.socket(socket.AF_UNIX)
    held.bind(str(path))
    held.close()


def _many(path: Path, make: Callable[[Path], None], count: int) -> None:
    path.mkdir()
    for number in range(count):
        make(path / f"rank{number}.log")


def _deep(path: Path) -> None:
    path.mkdir()
    inner = path / "/".join(["a"] * 200)
    inner.mkdir(parents=True)
    (inner / "x.log").write_text(LINE)


def _named(name: str | bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        Path(os.fsdecode(os.path.join(os.fsencode(path), os.fsencode(name)))).write_text(LINE)

    return make


def _shut(path: Path) -> None:
    path.write_text(LINE)
    path.chmod(0)


NAMES_A_PIPE = (
    "source ./pipe\n. ./pipe\ndeepspeed --hostfile ./pipe t.py\nmpirun --hostfile ./pipe t\nexport NCCL_CONF_FILE=./pipe\n"
    "accelerate launch --config_file ./pipe t.py\npython t.py --config ./pipe --config-name pipe --config-path .\n"
)


def _configurations(path: Path) -> None:
    """Hydra's, one of which is a pipe and one has no end."""
    path.mkdir()
    os.mkfifo(path / "a.yaml")
    (path / "b.yaml").write_text("defaults: [a, b, ../configurations/b]\ntrainer: {nnodes: 1, n_gpus_per_node: 8}\n")
    (path / "c.yaml").symlink_to("/dev/zero")


# name -> what makes it there
PLACES: dict[str, Callable[[Path], None]] = {
    **{
        f"name-{number}": _named(name)
        for number, name in enumerate(
            [
                "a\x1b[2Jb.log",
                "a\nverdict: healthy (exit code 0).log",
                "\u202egol.log",
                "\u2028.log",
                "-rf.log",
                "x" * 251 + ".log",
                b"\xff\xfe.log",
                f"$({RUNS}).log",
                f"`{RUNS}`.log",
                "a:b.log",
                "%s%n{0}.log",
                "'\".log",
                "<script>alert(1)<!--.log",
                "\x7f\x08\x85.log",
                " .log",
                "{{x}}{% y %}.log",
            ]
        )
    },
    "loop": lambda p: p.symlink_to(p.name),
    "nowhere": lambda p: p.symlink_to("nothing"),
    "zero.log": lambda p: p.symlink_to("/dev/zero"),
    "self": lambda p: (p.mkdir(), (p / "up").symlink_to("..")),
    "memory.log": lambda p: p.symlink_to("/proc/self/mem"),
    "kmsg.log": lambda p: p.symlink_to("/proc/kmsg"),
    "tty.log": lambda p: p.symlink_to("/dev/tty"),
    "pipe.log": lambda p: os.mkfifo(p),
    "socket.log": _socket,
    "pipes": lambda p: _many(p, os.mkfifo, 50),
    "shut.log": _shut,
    "deep": _deep,
    "empty": lambda p: p.mkdir(),
    "files": lambda p: _many(p, lambda q: q.write_text("step 1\n") and None, 5000),
    "sparse.log": lambda p: os.truncate(p.open("wb").name, 100 << 30),
    "folder.zip": _named("a.log"),
    "chain": lambda p: (p.mkdir(), [(p / f"l{n}.log").symlink_to(f"l{n + 1}.log") for n in range(60)]),
    "stdin.log": lambda p: p.symlink_to("/dev/stdin"),
    "device": lambda p: (p.mkdir(), os.mknod(p / "random.log", 0o600 | stat.S_IFCHR, os.makedev(1, 9))),
    "names-a-pipe.sh": lambda p: (os.mkfifo(p.parent / "pipe"), p.write_text(NAMES_A_PIPE)),
    "configurations": _configurations,
}


def made(name: str, folder: Path) -> Path:
    """The input of that name, in this folder."""
    path = folder / name
    if name in PLACES:
        PLACES[name](path)
    else:
        content = CONTENTS[name]()
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return path


def while_it_is_read(folder: Path, change: Callable[[Path], None], command: list[str]) -> None:
    """A file that somebody changes again and again while it is read."""
    from test_hostile import answered

    path, is_over = folder / "moving.log", threading.Event()
    path.write_text(LINE * 50_000)

    def again() -> None:
        while not is_over.wait(0.001):
            change(path)

    other = threading.Thread(target=again)
    other.start()
    try:
        answered([*command, path.name], folder)
    finally:
        is_over.set()
        other.join()


def _in_its_place(path: Path, make: Callable[[Path], None]) -> None:
    """Something else under the same name, and then a log again."""
    for made in (make, lambda p: p.write_text(LINE * 100)):
        other = path.with_name("home")  # which no command is blamed for
        made(other)
        os.replace(other, path)


CHANGES: dict[str, Callable[[Path], None]] = {
    "grows": lambda p: p.open("a").write(LINE * 10) and None,
    "is-cut": lambda p: os.truncate(p, 1000),
    "is-replaced": lambda p: p.write_text(LINE * 100) and None,
    "is-a-pipe": lambda p: _in_its_place(p, os.mkfifo),
    "has-no-end": lambda p: _in_its_place(p, lambda q: q.symlink_to("/dev/zero")),
    "is-gone": lambda p: p.unlink(missing_ok=True),
}


def tried(name: str, folder: Path) -> None:
    """AssertionError or TimeoutExpired where a command breaks a promise."""
    import test_hostile

    if name in CHANGES:
        for command in COMMANDS[:5]:
            while_it_is_read(folder, CHANGES[name], command)
        return
    payload = next((p for p in test_hostile.PAYLOADS if repr(p) == name), None)
    if payload is None:
        made(name, folder)
        ways = [[*command, f"./{name}"] for command in COMMANDS]
    else:
        is_ours = payload in (*test_hostile.SHELL, *test_hostile.TEMPLATE)
        ways = test_hostile.carriers(payload.format(c="CANARY") if is_ours else payload, folder)
    for way in ways:
        test_hostile.answered(way, folder)
        shutil.rmtree(folder / "run", ignore_errors=True)


def main(part: str) -> int:
    """Each input whose name holds ``part``; whether one broke a promise."""
    import test_hostile
    from hostile_fourth import FOURTH
    from hostile_more import MORE
    from hostile_third import THIRD
    from test_hostile_files import FILES

    CONTENTS.update({**{name: lambda c=content: c for name, content in FILES.items()}, **test_hostile.BOMBS, **MORE, **THIRD, **FOURTH})
    names = [name for name in [*CONTENTS, *PLACES, *CHANGES, *map(repr, test_hostile.PAYLOADS)] if part in name]
    wrong = []
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            try:
                tried(name, Path(folder))
            except (AssertionError, ValueError, subprocess.TimeoutExpired) as error:  # ValueError: a command that ended in a traceback
                wrong.append(name)
                print(f"{name!a}: {str(error)[:400]}", flush=True)
        print(f"{name[:60]!a} {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    print(f"{len(names) - len(wrong)} of {len(names)} inputs held; not: {', '.join(map(ascii, wrong)) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main("".join(sys.argv[1:2])))
