"""Fifty more files that nobody means to read, by name; test_hostile_files.py gives each to every reading command."""
from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

LINE = "n1:1:2 [0] NCCL WARN Bootstrap : no socket interface found\n"
RUNS = "touch CANARY"
RECORD = '{"schema": "nccl-runbook/record/2", "step": "%s", "status": "broken", "started": "x", %s}'
WATCHDOG = (
    "[rank%s]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank %s] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=%s, OpType=ALLREDUCE, NumelIn=%s, NumelOut=1, Timeout(ms)=%s) ran for 600010 milliseconds before timing out.\n"
)
COMM = (
    "%s:1:2 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank %d nranks %d cudaDev 0 nvmlDev 0 busId 9b000 commId 0x%x - Init COMPLETE\n"
)
ENTRY = {
    "record_id": 0,
    "pg_id": 0,
    "process_group": ["0", ""],
    "collective_seq_id": 1,
    "p2p_seq_id": 0,
    "op_id": 1,
    "is_p2p": False,
    "state": "scheduled",
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[4]],
    "output_sizes": [[4]],
    "time_created_ns": 1,
    "timeout_ms": 600000,
    "retired": False,
}


def dump(**parts: object) -> str:
    whole = {"version": "2.4", "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}, "pg_status": {}, "entries": [ENTRY]}
    return json.dumps({**whole, **parts})


def tarred(*members: tuple[str, dict[str, object]]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in members:
            member = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(member, field, value)
            member.size = len(LINE)
            archive.addfile(member, io.BytesIO(LINE.encode()))
    return held.getvalue()


def zipped(name: str, content: bytes, comment: bytes = b"") -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.comment = comment
    return held.getvalue()


def nested(depth: int) -> bytes:
    inner = LINE.encode() * 999
    for number in range(depth):
        inner = gzip.compress(zipped(f"{number}.log.gz", inner)) if number % 2 else zipped("a.zip", inner)
    return inner


def lying_tar() -> bytes:
    """A member whose size is the largest that base 256 holds."""
    member = tarfile.TarInfo("x.log")
    head = bytearray(member.tobuf())
    head[124:136] = b"\x80" + b"\x7f" * 11
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + LINE.encode() * 99


def named_gzip(name: bytes) -> bytes:
    return (
        b"\x1f\x8b\x08\x08"
        + bytes(6)
        + name
        + b"\0"
        + zlib.compress(LINE.encode())[2:-4]
        + struct.pack("<II", zlib.crc32(LINE.encode()), len(LINE))
    )


MORE: dict[str, Callable[[], bytes | str]] = {
    # logs
    "ranks.log": lambda: "".join(f"[rank{n}]: RuntimeError: NCCL error in x\n" for n in range(12_000)),
    "hosts.log": lambda: "".join(COMM % (f"h{n}", n, 12_000, n) for n in range(12_000)),
    "comms.log": lambda: "".join(COMM % ("n1", n % 8, 8, n) for n in range(40_000)),
    "seq.log": lambda: WATCHDOG % (0, 0, "9" * 90_000, 1, 1) + WATCHDOG % (1, 1, 1, "9" * 5000, "9" * 90_000),
    "digits.log": lambda: "[rank\u0661\u0662]: RuntimeError: NCCL error\n" * 99 + WATCHDOG % ("\u0967", "\u0967", "\u0967", 1, 1),
    "marks.log": lambda: "NCCL WARN " + "e" + "\u0301" * 400_000 + "\n" + LINE,
    "joiners.log": lambda: "\u200d".join(LINE) * 200,
    "years.log": lambda: "".join(f"{y}-12-31T23:59:60.{'9' * 40}Z [rank0]: {LINE}" for y in ("0000", "9999", "99999", "-001")) * 99,
    "clipboard.log": lambda: f"\x1b]52;c;{'QQ' * 999}\x07\x1b]1337;File=name=x:QQ\x07\x1b[?1049h\x1b[8m{LINE}" * 50,
    "half-escapes.log": lambda: ("[rank0]: RuntimeError: \x1b]0;" + "x" * 5000 + "\n") * 200,
    "gbk.log": lambda: ("\u9519\u8bef " + LINE).encode("gbk") * 999,
    "utf-7.log": lambda: LINE.encode("utf-7") + b"+AGE-+" * 9999,
    "ebcdic.log": lambda: LINE.encode("cp037") * 999,
    "braces.log": lambda: "RuntimeError: " + "{" * 200_000 + "\n",
    "brackets.log": lambda: "[" * 300_000 + "rank0]: " + LINE,
    "frames.log": lambda: '  File "/x.py", line 1, in f\n    g()\n' * 60_000 + "RuntimeError: x\n",
    "nested-repeats.log": (
        lambda: "[repeated 999999999999999999x across cluster] " * 9999 + "\n" + f"x [repeated {'9' * 3000}x across cluster]\n" * 99
    ),
    "passwords.log": lambda: "[rank0]: password:\n" * 40_000,
    "prefixes.log": lambda: "[a] (b c) 1: 12:00:01 INFO | " * 20_000 + "\n" + "[a] [b] x\n" * 20_000,
    "below.log": lambda: ("(w pid=1) token:\n" + "(w pid=1) " + " " * 500 + "x" * 500 + "\n") * 3000,
    "hostnames.log": lambda: "n1: " * 60_000 + "\n" + "n1: a\n" * 30_000,
    # archives
    "control-name.gz": lambda: named_gzip(b"\x1b]0;x\x07../../CANARY"),
    "comment.zip": lambda: zipped("a.log", LINE.encode(), b"\x1b[2J" * 16_000),
    "long-name.zip": lambda: zipped("a" * 60_000 + ".log", LINE.encode()),
    "lying.tar": lying_tar,
    "pax.tar": lambda: tarred(("x.log", {"pax_headers": {"path": "../../CANARY", "comment": "\u202e" * 90_000}})),
    "owner.tar": lambda: tarred(("x.log", {"uname": "$(touch CANARY)", "gname": "\x1b[2J", "mtime": 1e15})),
    "raw.xz": lambda: lzma.compress(LINE.encode() * 99, format=lzma.FORMAT_ALONE),
    "dictionary.xz": lambda: lzma.compress(bytes(64 << 20), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 64 << 20, "preset": 0}]),
    "empty-streams.bz2": lambda: bz2.compress(b"") * 60_000,
    "russian.zip": lambda: nested(12),
    "zlib.log": lambda: zlib.compress(LINE.encode() * 9999),
    # pickles and dumps
    "dump_rank_20.pkl": (
        lambda: b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c"
        + bytes([len(f"__import__('os').system('{RUNS}')")])
        + f"__import__('os').system('{RUNS}')".encode()
        + b"\x85R."
    ),
    "dump_rank_21.pkl": lambda: b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f" + pickle.dumps({"entries": []}, 4)[2:],
    "dump_rank_22.pkl": lambda: b"\x80\x05\x97\x98.",
    "dump_rank_23.pkl": lambda: pickle.dumps(
        {
            "version": "2.4",
            "entries": [{**ENTRY, "frames": [{"name": "f", "filename": "x", "line": n}] * 9} for n in range(9000)],
            "pg_config": {},
        }
    ),
    "dump_rank_24": lambda: dump(entries={"0": ENTRY}),
    "dump_rank_25": lambda: dump(pg_config={"0": {"name": "0", "desc": "", "ranks": "[" * 90_000}}),
    "dump_rank_26": lambda: dump(pg_config={"k" * 1_000_000: {"name": "\u202e", "desc": "x" * 500_000, "ranks": "[0, 1]"}}),
    "dump_rank_27": lambda: dump(
        entries=[{**ENTRY, "record_id": n, "collective_seq_id": -n, "input_sizes": [[2**62, 2**62]] * 40} for n in range(4000)]
    ),
    f"dump_rank_{'9' * 60}": lambda: dump(),
    "dump_rank_28": lambda: dump(pg_config={str(n): {"name": str(n), "desc": "", "ranks": f"[{n}, {n + 1}]"} for n in range(40_000)}),
    # scripts and configurations
    "nodes.sbatch": lambda: (
        "#!/bin/bash\n#SBATCH --nodes=1-999999999\n#SBATCH --nodelist=n[1-999999999]\n#SBATCH --ntasks-per-node=999999999\nsrun torchrun"
        " --nnodes 1:999999999 --nproc-per-node 999999999 t.py\n"
    ),
    "product.sh": (
        lambda: "export SLURM_JOB_NODELIST="
        + "n"
        + "[1-9999]" * 12
        + "\nexport CUDA_VISIBLE_DEVICES=0-999999999\nmpirun -H "
        + "n[1-99999]," * 99
        + " -np 9 t\n"
    ),
    "functions.env": lambda: (
        f"BASH_FUNC_ls%%=() {{ {RUNS}; }}\nENV=$({RUNS})\nPS4=$({RUNS})\nIFS=x\nPATH=.\nLD_LIBRARY_PATH=\nPYTHONSTARTUP=/x\n"
    ),
    "arithmetic.sh": (
        lambda: f"export NCCL_DEBUG=$(( a[$({RUNS})] ))\ntrap '{RUNS}' EXIT\nalias x='{RUNS}'\nexport NCCL_X=${{a[$({RUNS})]}}\n" * 200
    ),
    "continued.sh": lambda: "export NCCL_DEBUG=" + "\\\n" * 200_000 + "INFO\n",
    "ifs.sh": lambda: "if [ x ]; then\n" * 30_000 + "export NCCL_DEBUG=INFO\n",
    "documents.yaml": lambda: "---\na: 1\n" * 20_000,
    "binary.yaml": lambda: "a: !!binary " + "QUJD" * 200_000 + "\nb: !!timestamp 9999-99-99\n? [x, {y: z}]\n: 1\n",
    "replicas.yaml": lambda: (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Worker:\n      replicas: 999999999\n     "
        " template:\n        spec:\n          containers:\n          - name: p\n            resources: {limits: {nvidia.com/gpu:"
        " 999999999}}\n            command: [torchrun, t.py]\n"
    ),
    "inline.toml": lambda: "a = " + "{a=" * 30_000 + "1" + "}" * 30_000,
    "interpolated.ini": lambda: "[a]\nx = %(x)s\n" + "y = " + "%(x)s" * 90_000 + "\n",
    "settings.env": (
        lambda: "".join(f"DB{n}_PASSWORD=/x{n}y{n}z\n" for n in range(30_000)) + "NCCL_SOCKET_IFNAME=" + "eth0," * 200_000 + "\n"
    ),
    # records
    "tables.json": lambda: RECORD % ("03-fewer-gpus", '"tables": [{"title": "\\u001b[2J", "rows": [' + ",".join(["[1]"] * 60_000) + "]}]"),
    "remedy.json": (
        lambda: RECORD
        % (
            "look",
            '"findings": [{"id": "x", "severity": "broken", "title": "\\u202e", "remedy": [{"who": "you", "text": "'
            + "\\u009b31m" * 999
            + f'", "lines": ["$({RUNS})"]}}]}}]',
        )
    ),
    "ranks.json": (
        lambda: RECORD
        % ("look", '"facts": {"live": {"ranks": [' + ",".join('{"rank": 0, "pid": -1, "parent": -1}' for _ in range(9000)) + "]}}")
    ),
}
