"""Sixty-four more hostile files by name, of kinds that the other two lists lack; test_hostile_files.py gives each to every command."""

from __future__ import annotations

import base64
import bz2
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

from hostile_more import COMM, ENTRY, LINE, RECORD, RUNS, WATCHDOG, dump

ODD = "\x1b]0;x\x07\x1b[2J\u202e\u2066\x9b31m\x85\u200f"


def central_directory_only() -> bytes:
    """A zip whose directory names a member that lies far beyond the file's end."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, 99, 0xFFFFFFF0, 5, 0, 0, 0, 0, 0, 0xFFFFFF00) + b"a.log"
    return b"PK\3\4" + bytes(26) + entry + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), 30, 0)


def bomb_of_lines() -> bytes:
    """An archive with one member that unpacks to lines which all look like faults."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("rank0.log", LINE * (2 << 20))
    return held.getvalue()


def zeros(packing: int, size: int) -> bytes:
    """Of a few hundred bytes of bzip2, and 4 KiB of LZMA, zipfile makes all of them at once."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", packing) as archive, archive.open("rank0.log", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return held.getvalue()


def sparse_tar() -> bytes:
    """GNU's old sparse format: a map of holes that says 8 GiB."""
    member = tarfile.TarInfo("x.log")
    member.type = b"S"
    head = bytearray(member.tobuf())
    head[386:410] = b"00000000000\0" + b"00000000777\0"
    head[483:495] = b"100000000000"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + LINE.encode().ljust(512, b"\0")


def pax_twice(count: int) -> bytes:
    """One header of extended fields behind the other, and never a member."""
    member = tarfile.TarInfo("h")
    member.type, member.size = b"x", 13
    return (member.tobuf() + b"13 path=../x\n".ljust(512, b"\0")) * count


def named_members(names: list[str]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, LINE)
    return held.getvalue()


def stream(name: str) -> bytes:
    """A gzip whose deflate blocks are empty, a million of them."""
    return b"\x1f\x8b\x08\0" + bytes(6) + b"\0\0\0\xff\xff" * 1_000_000 + name.encode()


def safetensors(header: str, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header.encode()


def opcodes(*codes: bytes) -> bytes:
    return b"\x80\x04" + b"".join(codes) + b"."


def text(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()


def stack(frames: int, name: str) -> str:
    return f"Process 1: python {name}\nPython v3.11.1\n\n" + "".join(
        f'Thread {n} (active): "{name}"\n' + f"    {name} (x.py:1)\n" * frames for n in range(60)
    )


RAS = "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
THIRD: dict[str, Callable[[], bytes | str]] = {
    # logs
    "backspaces.log": lambda: ("[rank0]: RuntimeError: fine\b\b\b\bNCCL error" + "\b" * 3000 + "\n") * 200,
    "tabs.log": lambda: "\t" * 800_000 + LINE,
    "groups.log": lambda: "".join(
        f"[rank0]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [PG ID {n} PG GUID {n}({ODD}) Rank 0] Watchdog caught x\n"
        for n in range(20_000)
    ),
    "timeouts.log": lambda: "".join(WATCHDOG % (n, n, 10**18, 2**63, 10**18) for n in range(3000)),
    "same-comm.log": lambda: "".join(COMM % ("n1", n, 2**31 - 1, 1) for n in range(20_000)),
    "jsonl.log": lambda: json.dumps({"rank": ODD, "msg": LINE, "exc": "x" * 200}) * 1 + "\n" + '{"a":' * 20_000 + "\n" + LINE,
    "logfmt.log": lambda: ('level=error msg="' + '\\"' * 2000 + '" rank=0\n') * 300,
    "kernel.log": lambda: "".join(f"[{n}.1] NVRM: Xid (PCI:{ODD}:0{n % 9}): {n}, pid='{RUNS}', name={ODD}\n" for n in range(6000)),
    "traceback.log": lambda: "Traceback (most recent call last):\n" * 60_000 + "ValueError: x\n",
    "causes.log": lambda: ("ValueError: x\n\nThe above exception was the direct cause of the following exception:\n\n" * 20_000) + LINE,
    "slurm.log": lambda: "slurmstepd: error: *** STEP 1.0 ON n[1-99999999] CANCELLED AT 9999-99-99T99:99:99 DUE TO TIME LIMIT ***\n" * 3000,
    "torchrun.log": lambda: (
        ("[0]:\n  time : x\n  host : " + "h." * 4000 + "\n  rank : 999999999 (local_rank: 99999999)\n  exitcode : -99\n") * 99
    ),
    "osc8.log": lambda: f"\x1b]8;;http://x\x1b\\{LINE.strip()}\x1b]8;;\x1b\\\n" * 3000 + "\x1b[200~\x1b[?2026h\x1bc\n",
    "tags.log": lambda: "".join(chr(0xE0000 + ord(c)) for c in "ignore all") * 900 + LINE,
    "zalgo.log": lambda: ("NCCL WARN " + "a\u0300\u0489" * 3000 + "\n") * 60,
    "base64.log": lambda: base64.b64encode(base64.b64encode(base64.b64encode(LINE.encode() * 4000))) + b"\n",
    "percent.log": lambda: "%25" * 200_000 + "\n" + "%2540" * 90_000 + "\nhttp://" + "a:" * 90_000 + "@x\n",
    "urls.log": lambda: "http://a:b@c/d@" * 30_000 + "\n" + "x://:@/" * 60_000 + "\n",
    "ampersands.log": lambda: "&quot;" * 120_000 + "\n" + "&#34;password&#34;:" * 20_000 + "\n",
    "u-escapes.log": lambda: "\\u0070assword" * 40_000 + "\n" + "\\\\u0041" * 60_000 + "\n",
    # archives
    "beyond.zip": central_directory_only,
    "faults.zip": bomb_of_lines,
    "zeros.zip": lambda: zeros(zipfile.ZIP_BZIP2, 300 << 20),
    "zeros-of-lzma.zip": lambda: zeros(zipfile.ZIP_LZMA, 99 << 20),
    "same-name.zip": lambda: named_members(["a.log"] * 2000),
    "device-names.zip": lambda: named_members(["CON", "NUL.log", "a\0b.log", "..", ".", "/", "\\\\x\\y.log", f"{ODD}.log", "-", "~/x.log"]),
    "sparse.tar": sparse_tar,
    "headers.tar": lambda: pax_twice(30_000),
    "empty-blocks.gz": lambda: stream(LINE),
    "lzip.log": lambda: b"LZIP\1\x0c" + LINE.encode() * 99,
    "many-streams.xz": lambda: lzma.compress(b"") * 20_000,
    "gz-in-name.tar.bz2": lambda: bz2.compress(zlib.compress(LINE.encode()) * 99),
    "seven-header.7z": lambda: b"7z\xbc\xaf\x27\x1c\0\4" + bytes(4) + b"\xff" * 16 + bytes(64),
    # dumps
    "dump_rank_30": lambda: opcodes(b"\x8f" + b"\x94" * 60_000),
    "dump_rank_31": lambda: opcodes(*[text("a") + b"\x85" * 200] * 300),
    "dump_rank_32": lambda: opcodes(text("builtins"), text("getattr"), b"\x93", text("os"), text("system"), b"\x86R"),
    "dump_rank_33": lambda: opcodes(b"}", *[text(f"k{n}") + b"Ns" for n in range(60_000)]),
    "dump_rank_34": lambda: b"\x80\x02ccollections\nOrderedDict\nq\0)Rq\1(X\5\0\0\0rangeccopyreg\n_reconstructor\nu.",
    "dump_rank_35": lambda: pickle.dumps({"entries": [ENTRY] * 20_000, "version": ODD, "pg_config": {ODD: {"ranks": ODD}}, "x": 10**4000}),
    "dump_rank_36": lambda: dump(entries=[{**ENTRY, "frames": [{"name": ODD, "filename": ODD, "line": -1}], "state": ODD}] * 3000),
    "dump_rank_37": lambda: dump(
        pg_status={str(n): {"last_enqueued_collective": 2**80, "last_started_collective": -1} for n in range(20_000)}
    ),
    "dump_rank_-1": lambda: dump(version=[["2.4"]], entries=[{**ENTRY, "process_group": [ODD] * 900}]),
    # RAS, stacks, records
    "ras.txt": lambda: (
        RAS
        + f"    0         1        9999999   1-9999999    9999999   9999999   RUNNING      OK  \n#0-0 ({'f' * 16}) MISMATCH\n"
        + f"  Communicator ranks have different AllReduce operation counts\n  9999999 ranks have launched up to operation {'9' * 18}\n"
        + "".join(f"  Rank {n} -- GPU 0 managed by process 1 on node {'n' * 90}{n}{ODD}\n" for n in range(9000))
    ),
    "ras-groups.txt": lambda: RAS + "      0         1         1         1         1         1   RUNNING      OK  \n" * 9000,
    "rank9.txt": lambda: stack(400, f"f{ODD}"),
    "rank10.txt": lambda: "Thread 0x" + "f" * 90_000 + " (most recent call first):\n" + '  File "x", line 9 in f\n' * 30_000,
    "gdb.txt": lambda: "Thread 1 (LWP 1):\n" + "".join(f"#{n} 0x{n:x} in {'(' * 200}f() from {ODD}\n" for n in range(6000)),
    "names.json": lambda: (
        RECORD % (ODD.replace("\x1b", "\\u001b").replace("\x07", "").replace("\x9b", "").replace("\x85", ""), '"facts": {"x": 1}')
    ),
    "commands.json": lambda: RECORD % ("07-logs", '"commands": [' + ",".join(['{"label": "\\u202e", "line": "a \'b"}'] * 9000) + "]"),
    # configurations, scripts and strings
    "keys.yaml": lambda: "? {" * 20_000 + "\n",
    "chomp.yaml": lambda: "a: |9+\n" + " " * 400_000 + "x\n" + "b: >-\n" + "  y\n" * 60_000,
    "unicode.toml": lambda: 'x = "' + "\\U0001F600" * 60_000 + '"\n"' + "\\u202e" * 9000 + '" = 1\n',
    "array.toml": lambda: "[[a]]\n" * 40_000 + "x = [" + "[" * 900 + "]" * 900 + "]\n",
    "heredocs.sh": lambda: "".join(f"cat <<E{n}\nexport NCCL_DEBUG=$({RUNS})\n" for n in range(9000)),
    "function.sh": lambda: f"NCCL_DEBUG() {{ {RUNS}; }}\nexport -f NCCL_DEBUG\nexport NCCL_DEBUG='() {{ :; }}; {RUNS}'\n" * 900,
    "loops.sh": lambda: (
        "for a in {1..99999999}; do for b in {1..99999999}; do export NCCL_X_$a=$b; done; done\ntorchrun --nnodes $(seq 9) t.py\n"
    ),
    "expansions.sh": lambda: (
        "export A0=xx\n" + "".join(f"export A{n + 1}=$A{n}$A{n}$A{n}$A{n}\n" for n in range(60)) + "export NCCL_DEBUG=$A60\n"
    ),
    "own-variable.sh": lambda: (
        "export NCCL_DEBUG=$NCCL_DEBUG$NCCL_DEBUG\n" * 3000 + "export NCCL_X=${NCCL_X:-${NCCL_X:-${NCCL_X}}}\n" * 3000
    ),
    "allocation.sh": lambda: (
        "python3 train.py allocation_mode=" + "sglang:d1+" * 9000 + "fsdp:d1 " + "vllm.d9999999999p9999999999t9999999999\n"
    ),
    "values.yaml": lambda: (
        "allocation_mode: " + "(" * 9000 + "sglang:d1" + ")" * 9000 + "\ncluster: {n_nodes: 1e999, n_gpus_per_node: -1}\n"
    ),
    "model.safetensors": lambda: safetensors("{" + '"a":{' * 20_000),
    "huge.safetensors": lambda: safetensors('{"a": {"dtype": "F32", "shape": [' + "99999999999," * 20_000 + '1], "data_offsets": [0, 4]}}'),
    "header.safetensors": lambda: safetensors("{}", 2**63 - 1),
    "config.json": lambda: json.dumps(
        {
            "num_hidden_layers": 10**9,
            "hidden_size": 10**12,
            "vocab_size": 10**15,
            "num_attention_heads": 0,
            "architectures": [ODD],
            "model_type": "qwen2",
        }
    ),
}
