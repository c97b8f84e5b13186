"""Seventy hostile inputs more, of kinds that the other three lists lack; test_hostile_files.py gives a part of them to every command."""

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

from hostile_more import ENTRY, LINE, RECORD, RUNS, WATCHDOG, dump
from hostile_third import ODD, RAS, opcodes, text

SUPER = "\u00b2"  # str.isdigit() says yes, int() says no
RECORD_OF = '{"schema": "nccl-runbook/record/2", "step": "%s", "status": "ok", "started": "%s", "facts": %s}'


def zstd_of_runs(blocks: int) -> bytes:
    """Each block of four bytes is 128 KiB of one byte."""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"a"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * blocks + b"\1\0\0"


def tar_of_raw(*heads: tuple[str, bytes, str, bytes]) -> bytes:
    """Members by name, type, target and content, with no check of any."""
    held = b""
    for name, kind, target, content in heads:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, target, len(content)
        held += member.tobuf() + content + bytes(-len(content) % 512)
    return held + bytes(1024)


def pax(records: str) -> bytes:
    return tar_of_raw(("h", b"x", "", records.encode()), ("x.log", b"0", "", LINE.encode()))


def field(name: str, value: str) -> str:
    body = f" {name}={value}\n"
    return next(f"{n}{body}" for n in range(len(body), len(body) + 9) if len(f"{n}{body}") == n)


def negative_tar() -> bytes:
    head = bytearray(tarfile.TarInfo("x.log").tobuf())
    head[124:136] = b"\xff" * 12
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + LINE.encode() * 99


def method_zip(method: int) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.log", LINE)
    made = bytearray(held.getvalue())
    at = made.rindex(b"PK\1\2")
    made[8:10] = made[at + 10 : at + 12] = struct.pack("<H", method)
    return bytes(made)


def member_zip(name: str, content: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return held.getvalue()


def entries(**fields: object) -> str:
    return dump(entries=[{**ENTRY, **fields}] * 50)


LAUGHS = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 9}">' for n in range(12))
MARKDOWN = (
    "![x](http://x/y.png) [x](javascript:alert(1)) $$\\href{javascript:alert(1)}{x}$$ <!--> --> ]]> ``` ~~~ "
    "|a|b|\\n|-|-| <details open ontoggle=alert(1)> [x]: data:text/html,<script>alert(1)</script> &#x3c;script&#x3e;"
)
FOURTH: dict[str, Callable[[], bytes | str]] = {
    # what NVIDIA's tools, Slurm and the kernel print
    "topo.xml": lambda: f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 SYSTEM "file:///etc/passwd">{LAUGHS}]><system>&a12;</system>',
    "graph.xml": lambda: "<graphs>" + '<cpu numaid="9' * 90_000,
    "nvidia-smi.txt": lambda: (
        "| NVIDIA-SMI 999.99  Driver Version: 999.99  CUDA Version: 99.9 |\n"
        + f"| 0  {ODD} H200  On | 00000000:9B:00.0 Off | 0 |\n| 99999999  C {RUNS} 999999999MiB |\n" * 20_000
    ),
    "topo-matrix.txt": lambda: (
        "\t" + "\t".join(f"GPU{n}" for n in range(700)) + "\n" + "".join(f"GPU{n}\t" + "NV18\t" * 700 + "\n" for n in range(700))
    ),
    "scontrol.txt": lambda: (
        f"JobId=9{'9' * 5000} JobName={ODD}\n   NodeList=n[0001-9999][0001-9999] BatchHost=$({RUNS})\n   TRES=gpu={SUPER}\n" * 99
    ),
    "sinfo.txt": lambda: "batch up infinite 99999999 alloc " + "n[1-3,5-" * 40_000 + "\n",
    "journal.json": lambda: (json.dumps({"MESSAGE": list(ODD.encode() + LINE.encode()), "__REALTIME_TIMESTAMP": "9" * 400}) + "\n") * 2000,
    "docker-json.log": lambda: (json.dumps({"log": ODD + LINE, "stream": ODD, "time": "9999-12-31T23:59:59.9+99:99"}) + "\n") * 4000,
    "cri.log": lambda: f"9999-12-31T23:59:60.999999999+99:99 stdout P {ODD}{LINE}" * 8000,
    "journal-export.log": lambda: (b"__CURSOR=s\nMESSAGE\n" + struct.pack("<Q", 2**63) + LINE.encode()) * 5000,
    # logs
    "superscripts.log": lambda: (
        f"[rank{SUPER}]: RuntimeError: NCCL error\n[Rank {SUPER}] x\nn1:{SUPER}:2 [{SUPER}] NCCL WARN x\n" * 50
        + WATCHDOG % (SUPER, SUPER, SUPER, SUPER, SUPER)
        + "[rank\u2460]: x\n[rank\U0001d7d9]: NCCL error\n"
    ),
    "negative.log": lambda: WATCHDOG % (-1, -1, -1, -1, -1) * 99 + "[rank-1]: RuntimeError: NCCL error\n[rank+0]: x\n[rank0x1]: x\n" * 99,
    "jndi.log": lambda: (
        f"[rank0]: RuntimeError: NCCL error ${{jndi:ldap://127.0.0.1/{RUNS}}} #{{7*7}} <%= `{RUNS}` %> @(1+1) %0 !!{RUNS}\n" * 999
    ),
    "markdown.log": lambda: f"[rank0]: RuntimeError: NCCL error {MARKDOWN}\nn1:1:2 [0] NCCL WARN {MARKDOWN}\n" * 40,
    "groups-of-exceptions.log": lambda: "".join(
        f"{'  ' * n}| ExceptionGroup: x ({n} sub-exceptions)\n{'  ' * n}+-+---------------- {n} ----------------\n" for n in range(900)
    ),
    "fatal.log": lambda: (
        "Fatal Python error: Segmentation fault\n\n" + "Thread 0x00007f (most recent call first):\n  <no Python frame>\n" * 40_000
    ),
    "distinct.log": lambda: "".join(f"n1:1:2 [0] NCCL WARN {n:x} {n * 7919:b} failed with {n * 31}\n" for n in range(150_000)),
    "ipv6.log": lambda: ":" * 300_000 + "\n" + "fe80::1%eth0/64 " * 40_000 + "\n" + "1:2:3:4:5:6:7:" * 30_000 + "\n",
    "slashes.log": lambda: "/" * 400_000 + "\n" + "/home/" * 80_000 + "\n" + "s3://" * 80_000 + "\n" + "C:\\Users\\" * 40_000 + "\n",
    "underscores.log": lambda: "_" * 400_000 + "\n" + "a_" * 200_000 + "=x\n" + "a-" * 200_000 + "\n",
    "hex.log": lambda: "deadbeef" * 60_000 + "\n" + "GPU-" + "0123abcd-" * 50_000 + "\n" + "00:" * 130_000 + "\n",
    "mails.log": lambda: "a.b+c@d." * 50_000 + "\n" + "".join(f"u{n}@h{n}.example.org " for n in range(15_000)) + "\n",
    "addresses.log": lambda: "".join(f"connect to 10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}:{n} failed\n" for n in range(60_000)),
    "semicolons.log": lambda: "key=v;" * 70_000 + "\n" + "Cookie: " + "a=b; " * 80_000 + "\n" + "--token " * 60_000 + "\n",
    "commas.csv": lambda: "," * 2_000_000 + "\n" + '"' * 300_001 + "\n",
    "invisible.log": lambda: ("\u00ad\u180e\u2060\u2061\u206a\ufff9\ufffb\U0001d173\U000e0001\ufe0f" * 40 + LINE) * 300,
    "combined.log": lambda: (
        f"[rank0]: RuntimeError: {'RuntimeError: ' * 30_000}\n" + "Caused by: " * 40_000 + "\n" + "error " * 80_000 + "\n"
    ),
    "host-prefix.log": lambda: "".join(f"{'h' * (n % 200)}{n}: [rank{n}]: NCCL error: {'x' * 30}\n" for n in range(20_000)),
    # stacks and RAS
    "py-spy.json": lambda: json.dumps(
        [{"pid": -1, "thread_name": ODD, "active": "x", "frames": [{"name": ODD, "line": 1e400}] * 900}] * 60
    ),
    "py-spy-locals.txt": lambda: (
        'Process 1: python x\nPython v3.11.1\n\nThread 1 (active): "M"\n'
        + f"    f (x.py:1)\n        Locals:\n            x: {ODD}{'y' * 900}\n" * 9000
    ),
    "rank3.stack": lambda: f"Process {'9' * 5000}: python\nThread {SUPER} (idle)\n    f (x.py:{'9' * 5000})\n" * 60,
    "ras.json": lambda: (
        '{"nccl_version": "2.28", "communicators": ['
        + ",".join(
            [
                json.dumps(
                    {
                        "hash": ODD,
                        "size": 10**30,
                        "ranks": [{"rank": -1, "host": ODD, "pid": 1e300, "collective_counts": {"AllReduce": -1}}] * 9,
                    }
                )
            ]
            * 900
        )
        + ', {"size": NaN, "ranks": Infinity}]}'
    ),
    "ras-wide.txt": lambda: (
        RAS + f"  {SUPER}   {SUPER}   {'9' * 4000}   1-{SUPER}   1   1   RUNNING   OK\n#{SUPER}-{SUPER} (0) INCOMPLETE\n" * 200
    ),
    # dumps
    "dump_rank_40": lambda: b"(dp0\nVentries\n(lp1\nI" + b"9" * 2_000_000 + b"\naI01\naL" + b"9" * 6000 + b"L\naFnan\naF1e999\nas.",
    "dump_rank_41": lambda: opcodes(b"}", text("entries"), b"]", b"Pcos.system\n", text(RUNS), b"\x85R", b"as"),
    "dump_rank_42": lambda: opcodes(b"\x95\x04" + bytes(7) + b"\x95\xff" + bytes(7) + b"}]" * 50_000),
    "dump_rank_43": lambda: dump(pg_config={"0": {"name": "0", "desc": "", "ranks": f"[{SUPER}, \u0663, -7, 1e9]"}}, entries=[ENTRY] * 3),
    "dump_rank_44": lambda: entries(time_created_ns=10**30, time_discovered_started_ns=-(10**30), duration_ms=1e308, timeout_ms=10**40),
    "dump_rank_45": lambda: entries(input_sizes=[[1e308, float("nan")]] * 9, output_sizes={"a": 1}, input_dtypes="x", state=["a"]),
    "dump_rank_46": lambda: dump().encode("utf-16"),
    "dump_rank_47": lambda: (
        '{"version": "2.4", "pg_config": {"\\ud800": {"name": "\\udfff", "desc": "\\ud800", "ranks": "[0, 1]"}}, "entries": []}'
    ),
    "dump_rank_48": lambda: dump(entries=[{**ENTRY, "is_p2p": True, "profiling_name": f"nccl:send {n}->{10**9}"} for n in range(9000)]),
    "dump_rank_49": lambda: dump(version={"2": ["4"]}, pg_config=[["ranks"]], pg_status=7, nccl_version=None, host_name=[ODD]),
    "dump_rank_\u0663": lambda: dump(),
    f"dump_rank_{SUPER}.json": lambda: dump(),
    "snapshot.pickle": lambda: pickle.dumps(
        {"segments": [{"address": 2**64, "frames": [{"name": ODD}] * 9}] * 20_000, "device_traces": [[]] * 9}
    ),
    # archives
    "runs.zst": lambda: zstd_of_runs(500_000),
    "skipped.zst": lambda: b"\x50\x2a\x4d\x18\0\0\0\0" * 200_000,
    "through-link.tar": lambda: tar_of_raw(("a", b"2", "/tmp", b""), ("a/CANARY", b"0", "", LINE.encode()), ("b", b"1", "b", b"")),
    "negative.tar": negative_tar,
    "pax-sizes.tar": lambda: pax(field("size", "-1") + field("mtime", "nan") + field("uid", "x") + field("GNU.sparse.realsize", "9" * 30)),
    "pax-map.tar": lambda: pax(field("GNU.sparse.major", "1") + field("GNU.sparse.minor", "0") + field("GNU.sparse.map", "0,1," * 9000)),
    "pax-length.tar": lambda: pax(f"{'9' * 5000} path=x\n"),
    "aes.zip": lambda: method_zip(99),
    "lzma-lie.zip": lambda: method_zip(14),
    "sfx.log": lambda: f"#!/bin/sh\n{RUNS}\nexit\n".encode() + member_zip("../CANARY", LINE.encode()),
    "extra.gz": lambda: (b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff" + bytes(65535) + zlib.compress(LINE.encode())[2:-4] + bytes(8)) * 50,
    "cut.tar.gz": lambda: gzip.compress(tar_of_raw(("x.log", b"0", "", LINE.encode() * 9999)))[:300],
    "lz4.log": lambda: b"\x04\x22\x4d\x18\x64\x40\xa7" + struct.pack("<I", 0x7FFFFFFF) + LINE.encode() * 99,
    "block.xz": lambda: lzma.compress(LINE.encode())[:24] + b"\xff" * 90_000 + b"YZ",
    "trees.bz2": lambda: bz2.compress(LINE.encode() * 99)[:60] + bz2.compress(bytes(50 << 20)),
    "dumps.zip": lambda: member_zip("dump_rank_0", b"\x80\x04" + text("os") + text("system") + b"\x93" + text(RUNS) + b"\x85R."),
    # scripts, environments and configurations
    "powers.sh": lambda: (
        "export WORLD_SIZE=$((9**9**9**9))\nexport NCCL_BUFFSIZE=$((1<<99999999999))\nexport NCCL_X=$((1/0))\n"
        "N=$((2**64)); torchrun --nproc-per-node $((10**99999)) --nnodes $((N*N*N)) t.py\n" * 20
    ),
    "superscripts.sh": lambda: (
        f"#SBATCH --nodes={SUPER}\n#SBATCH --gpus-per-node=h200:{SUPER}\n#SBATCH --nodelist=n[{SUPER}-\u2463]\n"
        f"export CUDA_VISIBLE_DEVICES={SUPER},\u0663 SLURM_NTASKS={SUPER} MASTER_PORT={SUPER} NCCL_BUFFSIZE={SUPER} NCCL_CTAS={SUPER}\n"
        f"export NCCL_IB_TIMEOUT={SUPER} TORCH_NCCL_TRACE_BUFFER_SIZE={SUPER} NCCL_DEBUG={SUPER}\n"
        f"torchrun --nnodes {SUPER}:{SUPER} --nproc-per-node {SUPER} --node-rank {SUPER} --master-port {SUPER} t.py tp={SUPER}\n"
        f"mpirun -np {SUPER} -H n1:{SUPER} -N {SUPER} t\ndeepspeed --num_gpus {SUPER} --include n1:{SUPER} t.py\n"
        f"srun -N{SUPER} -n {SUPER} t\n"
    ),
    "brackets.sh": lambda: (
        (
            "export MASTER_ADDR='[::1' NCCL_COMM_ID='[fe80::1%%%]:x' http_proxy='http://[' https_proxy='http://[::1]]:99999999'\n"
            "export GLOO_SOCKET_IFNAME='(' NCCL_SOCKET_IFNAME='^^=,' NCCL_IB_HCA='=^mlx5_0:99999999999:,' NCCL_DEBUG_SUBSYS='^^^,,'\n"
            "torchrun --rdzv-endpoint '[[[:99999999' --rdzv-conf '=,=,==' t.py trainer.hosts=[[[ x={{}\n"
        )
        * 20
    ),
    "references.sh": lambda: (
        "source /dev/zero\n. /dev/stdin\nmpirun --hostfile /dev/zero t\ndeepspeed --hostfile /dev/zero t.py\n"
        "export NCCL_CONF_FILE=/dev/zero\n"
        "export NCCL_TOPO_FILE=/dev/zero\naccelerate launch --config_file /dev/zero t.py --config /dev/zero\n"
        "python -m areal.launcher.local t.py"
        " --config /dev/zero\n#SBATCH --nodefile=/dev/zero\nset -a; . /proc/self/mem\n"
    ),
    "nodes.sh": lambda: (
        (
            "NODES=($(scontrol show hostnames 'n[1-999999999]'))\nread -a X <<< ${NODES[99999999999]}\nprintf -v Y '%0999999999d' 1\n"
            "export MASTER_ADDR=${NODES[@]:0:999999999}\nA=(${NODES[*]/#/x}); export NCCL_X=${A[@]//n/nnnnnnnnnnnnnnnn}\n"
            "torchrun --nnodes ${#NODES[@]} t.py\n"
        )
        * 60
    ),
    "recursion.sh": lambda: "f() { f; f; }\nf\n" * 4000 + "case x in " * 9000 + "\n" + "while :; do " * 9000 + "\nexport NCCL_DEBUG=INFO\n",
    "hetjob.sbatch": lambda: (
        "#!/bin/bash\n"
        + "#SBATCH hetjob\n#SBATCH --array=0-999999999%9\n#SBATCH --gres=gpu:h200:999999999\n" * 9000
        + "srun --het-group=0-999999999 t\n"
    ),
    "lone-cr.sh": lambda: "\ufeff#!/bin/bash\rexport NCCL_DEBUG=INFO\rexport NCCL_IB_DISABLE=1\rtorchrun t.py\r" * 900,
    "nul.environ": lambda: "\0".join(f"K{n}{ODD}={ODD}" for n in range(9000)) + "\0=\0==\0NCCL_DEBUG\0",
    "interpolations.yaml": lambda: (
        "a: ${b}\nb: ${a}\nc: ${oc.env:HOME}${c}\nn_nodes: ${a}\ncluster: ${cluster}\nallocation_mode: ${allocation_mode}\n" * 1
        + "".join(f"x{n}: ${{x{n + 1}}}${{x{n + 1}}}\n" for n in range(60))
    ),
    "defaults.yaml": lambda: (
        "defaults:\n- defaults\n- /etc/passwd\n- ../../../../dev/zero\n- _self_\n- override /x: \u202e\ninclude: [/dev/zero]\n"
        + "hydra: {searchpath: [file:///dev]}\n"
    ),
    "tags.yaml": lambda: (
        "%YAML 9.9\n%TAG ! tag:yaml.org,2002:python/\n---\na: !object/new:os.system [touch CANARY]\nb: !!set {? [x]}\n"
        "c: !!omap [a: 1]\nd: !!int 0b_\ne: !!float 1e\n"
    ),
    "merges.yaml": lambda: (
        "a0: &a0 {k0: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}], k{n}: 1}}\n" for n in range(1, 16))
    ),
    "counts.yaml": lambda: (
        f"cluster: {{n_nodes: .inf, n_gpus_per_node: .nan}}\nallocation_mode: sglang:d{SUPER}+fsdp:d\u0663\n"
        f"trainer: {{nnodes: '{SUPER}', n_gpus_per_node: -1}}\nactor: {{tp: 2026-12-01, pp: !!binary AA==}}\n"
    ),
    "pod.yaml": lambda: (
        "kind: Job\nspec: {template: {spec: {containers: ["
        + f"{{name: x, resources: {{limits: {{nvidia.com/gpu: '{SUPER}'}}}}, command: [sh, -c, '{RUNS}'], "
        f"env: [{{name: NCCL_DEBUG, valueFrom: 1}}]}},"
        * 2000
        + "]}}}\n"
    ),
    "numbers.toml": lambda: (
        f"a = 0x{'f' * 200_000}\nb = 1e999999999\nc = {'9' * 4000}\nd = 9999-12-31T23:59:60+99:99\n[trainer]\nnum_gpus = -1\n"
    ),
    "tables.toml": lambda: "[" + ".".join(["a"] * 9000) + "]\n[[" + ".".join(["b"] * 900) + "]]\n" * 900,
    "hostfile": lambda: f"n1 slots={'9' * 5000}\nn{SUPER} slots={SUPER}\n{ODD} slots=-1\n" * 900,
    "accelerate.yaml": lambda: (
        "compute_environment: LOCAL_MACHINE\nnum_processes: 1e999\nnum_machines: 0\nmachine_rank: -1\n"
        "main_process_port: 1e9\ngpu_ids: '0-999999999'\n"
    ),
    # records
    "record-9999.json": lambda: RECORD_OF % ("look", "9999-12-31T23:59:59-23:59", '{"live": {"ranks": []}, "host": {"name": "x"}}'),
    "record-0001.json": lambda: RECORD_OF % ("01-environment", "0001-01-01T00:00:00+23:59", '{"host": []}'),
    "record-hosts.json": lambda: (
        RECORD_OF
        % (
            "look",
            "2026-12-01T00:00:00+00:00",
            json.dumps(
                {
                    "host": {"name": ODD, "interfaces": [{"name": ODD, "addresses": ["999.1.1.1/99", "::%/x", ""], "mtu": -1}] * 99},
                    "live": {
                        "ranks": [{"rank": 2**70, "pid": 2**70, "world_size": -1, "samples": [{"at_s": 1e308, "frames": [ODD] * 9}]}] * 99
                    },
                    "gpus": [{"index": SUPER, "uuid": ODD, "memory": -1e308}] * 99,
                }
            ).replace("\\u2066", "\\ud800"),
        )
    ),
    "record-inf.json": lambda: (
        RECORD % ("look", '"wall_s": -1e999, "findings": [], "facts": {"live": {"gap_s": 1e999, "ranks": {"0": 1e999}}}')
    ),
    "record.ipynb": lambda: json.dumps(
        {
            "cells": [{"cell_type": "markdown", "source": MARKDOWN * 9, "attachments": {"x": {"image/svg+xml": "<svg onload=alert(1)>"}}}]
            * 99,
            "metadata": {"nccl_runbook": {"record": RECORD % (ODD, '"x": 1')}, "kernelspec": {"name": "../../x"}},
            "nbformat": 999,
            "nbformat_minor": -1,
        }
    ),
    "outputs.ipynb": lambda: (
        '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code", "outputs": ' + '[{"data":' * 30_000
    ),
    "fleet.json": lambda: json.dumps({"schema": "nccl-runbook/fleet/1", "findings": [{"id": ODD}] * 999, "nodes": 10**400 % 10**30}),
}
