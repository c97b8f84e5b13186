"""--share: no name of a host or user, no address and no UUID in anything that is written, and the same judgement."""
from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from book_samples import CLI, run_cli, with_library
from hang_samples import Job
from hypothesis import given, strategies as st
from live_samples import IN_ALL_REDUCE, SAVING, look, rank
from nccl_runbook.core import share
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import verdict_of
from nccl_runbook.core.redact import Redactor
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.judge import judge as judge_environment
from nccl_runbook.environment.read_file import read as read_file
from nccl_runbook.hang.judge import judge_hang
from nccl_runbook.hang.read import collect as read_hang
from nccl_runbook.look import live
from nccl_runbook.messages.read import collect
from nccl_runbook.triage.judge import answer
from processes import command_s
from triage_samples import DUPLICATE, SAMPLES, init
from warm_cli import read_cli

KEY = "0123456789abcdef0123456789abcdef"
DATA = Path(__file__).parent / "data"
KNOWN = "gpu-canary07:1:1 [0] NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
# each shows one name or more; every name holds "canary", and every address is one of LEAKS
PLANTED = """gpu-canary07:123:456 [3] NCCL INFO Bootstrap
[1,0]<stdout>:canary-a1:123:456 [0] NCCL INFO x
canary08.hpc.corp.example:9:9 [1] NCCL WARN y
canaryuser@login2canary:~/run$ ls
ssh canaryben@canary-gw2
mail canary.eve@uni-canary.example.org
File "/home/canarydan/train.py", line 3
File "/Users/canarykim/train.py", line 3
File "/export/home/canaryzoe/x.py"
C:\\Users\\canarywin\\x.py
export MASTER_ADDR=canaryhead
MASTER_ADDR: canary-y2
SLURM_JOB_NODELIST=canaryn[01-04,7]
SLURM_NODELIST=canaryq1,canaryq2
HOSTNAME=canary-h3
USER=canarysue
LOGNAME="canarysue2"
connect to canarynode9.cluster.local failed
tcp://canary-head.svc.cluster.local:29500
worker canary-worker-3.train.svc.cluster.local
ssh -p 22 canary1.cs.uni.ch
ec2 canary-10.eu-west.compute.internal
NET/Socket : Connect to 10.11.12.13<45001> failed
tcp://172.16.9.8:29500 and MASTER_PORT
[2001:db8:1:2:3:4:5:6]:29500
fe80::ae1f:6bff:fe12:3456%eth0
ether 08:c0:eb:a1:b2:c3
hwaddr 80:00:02:08:fe:80:00:00:00:00:00:00:08:c0:eb:03:00:a1:b2:c4
CUDA_VISIBLE_DEVICES=GPU-1a2b3c4d-1111-2222-3333-444455556666
MIG-9a8b7c6d-1111-2222-3333-444455556666
[rank0]: canary-b2:12:13 [0] NCCL WARN x
2026-11-28 10:00:00 canary-b3:12:13 [0] NCCL INFO x
srun: error: canaryn017: task 3: Killed
slurmstepd: error: *** STEP 77.0 ON canaryn018 CANCELLED AT 2026-11-28T10:00:00
ssh: connect to host canaryn019 port 22: Connection refused
ssh: Could not resolve hostname canaryn020: Name or service not known
Warning: Permanently added 'canaryn021' (ED25519) to the list of known hosts.
[c10d] The client socket has failed to connect to [canaryn022]:29500 (errno: 110)
[canaryn023:12345] *** Process received signal ***
torchrun --nnodes 2 --rdzv_endpoint canaryn024:29500 train.py
torchrun --master_addr=canaryn025 train.py
srun --nodelist=canaryn[030-033] train
RAY_ADDRESS=canaryn026:6379 ray status
(RayWorker pid=77, ip=10.11.12.13) error
ray node 0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5
Error from server: pods "canary-trainer-7d9f8b-x2k4p" not found
pod/canary-trainer-0
POD_NAME=canary-trainer-1
tcp://canaryn027:29500
wandb: Currently logged in as: canaryteam
wandb: View run at https://wandb.ai/canaryteam2/project/runs/abc
s3://canary-bucket/checkpoints
git@github.com:canarylab/train.git
#SBATCH --mail-user=canary@uni-canary.example
#SBATCH --account=canarygroup
::ffff:10.11.12.13
[fe80::ae1f:6bff:fe12:3456%eth0]:29500
GID 0000:0000:0000:0000:0000:ffff:0a0b:0c0d
node_guid: 08c0:eb03:00a1:b2c4
MAC 08-c0-eb-a1-b2-c3
gpu GPU-1a2b3c4d
ip-10-11-12-14:5:5 [0] NCCL INFO x
ip-10-11-12-14 systemd[1]: started
{"host":"canaryn028","user": "canaryeva"}
mpirun -np 16 -H canaryn031:8,canaryn032:8 python3 train.py
horovodrun -np 2 --host canaryn033 x
ssh canaryn034 nvidia-smi
$ ssh -p 22 -o BatchMode=yes canary-gw3 uptime
srun -N1 -w canaryn035 hostname
sbatch -x canaryn[036-039] job.sh
/scratch/canaryteam3/run17/train.py:40
File "/lustre/fsw/canary-project/env/lib/python3.11/site-packages/torch/nn/x.py", line 3
--output=/gpfs/canarylab2/logs/%j.out
/home/canarydan/canary-secret/train.py
/root/canary_thesis/main.py
rank 3 on gpu-canary07 of canaryuser lost canarydan, canaryn03 and canarynode9""".splitlines()
LEAKS = re.compile(
    r"canary|10[.-]11[.-]12|172\.16\.9\.8|2001:db8|fe80::ae|a1[:-]b2[:-]?c|0a0b:0c0d|1a2b3c4d|9a8b7c6d|44445555|0a1b2c3d", re.I
)
INNOCENT = """10:00:00 [INFO] start
2026-11-28T10:00:00 [0] step
127.0.0.1:29500 and ::1 and 0.0.0.0 and 255.255.255.0
nvidia-cublas-cu12==12.8.3.14
cuDNN 9.10.2.21
CUDA driver version 570.86.10.2
libfoo-12.8.3.14.so
python3 -m torch.distributed.run train.py
torch.nn.functional.linear
verl.trainer.main_ppo trainer.n_gpus_per_node=8
megatron.core.tensor_parallel
/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9
/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252
/proc/4711/fd/2
ProcessGroupNCCL.cpp:689] [Rank 3]
NCCL version 2.28.9+cuda13.0
0000:3b:00.0 busId 3b000
c10d::AllReduceOptions at::Tensor std::vector
nccl-flat@64+512
uses: actions/checkout@v4
image@sha256:9f86d081884c7d65
rank 0 on localhost
root@localhost
https://docs.nvidia.com/deeplearning/nccl
https://docs.pytorch.org/docs
commId 0x8f3a1c2d4e5f6789
mlx5_0:1/RoCE NET/IB
x.weight.data.to(device)
config.train.yaml and run.2026.log
python3 -m areal.launcher.local train.py
even[::2] + odd[1::2]
x = tensor[0:4:2]
10:00:00.123 step 3
0000:3b:00.1 and 0008:c0eb
commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
loss.actor.mean 0.25 actor.optim.lr 1e-6
model.layers.0.self_attn.q_proj.weight
torch-2.9.0.dev20251101+cu130
transformers 4.37.dev0, flash_attn 2.8.3.post1
libibverbs.so.1 libcudart.so.13 libnccl.so.2
NCCL_IB_HCA=mlx5_0:1,mlx5_1:1
NCCL_SOCKET_IFNAME=eth0,ib0
nvidia-curand-cu12      10.3.9.90
version: 1.2.3.4
user@: and @host
@torch.no_grad()
export MASTER_ADDR=$(scontrol show hostnames | head -n 1)
os.environ["MASTER_ADDR"] = address
MASTER_ADDR=localhost MASTER_PORT=29500
file:///usr/share/doc env:// tcp://localhost:29500
nvidia.com/gpu: 8
node.kubernetes.io/not-ready
nvcr.io/nvidia/pytorch:25.10-py3
meta-llama/Llama-3.1-8B@main
s/NODE@RANK/x/
/mnt/data /scratch/run /lustre/x /opt/home.txt
rank0:1 [1] tensor[2]
[rank3]:[E1128 10:00:00.123456789 ProcessGroupNCCL.cpp:689] x
train_2026-11-28T10:00:00 [0] x
mpirun -np 8 --hostfile hosts python3 train.py
ssh key was refused
/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:689
/usr/local/lib/python3.12/dist-packages/vllm/worker.py
/tmp/nccl_trace_rank_0 /dev/shm/nccl-XXXX /root/.cache
/workspace/verl/trainer/main.py
https://github.com/NVIDIA/nccl/blob/master/src/init.cc and s/a/b/c/d
transport/net_ib/p2p.cc:1 a/b/c/d
GPU 0: NVIDIA H200""".splitlines()


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(share, "_known", {kind: {"(?!)"} for kind in share._known})
    for function in (share._other, share._any_known, share._with_other_names):
        function.cache_clear()


@pytest.fixture(autouse=True)
def of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setenv(share.SHARE, KEY)


def leaks(*texts: str) -> list[str]:
    return [text[max(0, found.start() - 60) : found.end() + 20] for text in texts for found in LEAKS.finditer(text)]


@pytest.mark.parametrize("line", PLANTED[:-1])
def test_a_name_in_its_form_is_replaced(line: str) -> None:
    assert leaks(share.shared(line)) == [] and re.search(r"\b[1-9]\d* x ", share.replaced(share.shared(line)))


def test_a_name_that_was_seen_once_is_replaced_wherever_it_stands() -> None:
    share.learn("\n".join(PLANTED[:-1]))
    assert leaks(share.shared(PLANTED[-1])) == []


TABLE = "Root cause:\n  time : 10:00\n  host      : canaryn3\n  rank : 1"


@given(st.text(max_size=300) | st.sampled_from([*PLANTED, TABLE, *INNOCENT]))
def test_every_form_has_one_of_its_words(text: str) -> None:
    """A text without them is not searched."""
    for _, words, form in share._FORMS:
        assert not re.search(form, text) or any(word in re.sub("[1-9]", "0", text.lower()) for word in words.split("|"))


def test_every_form_is_in_a_planted_line() -> None:
    """So that its words are tried above."""
    assert [form for _, _, form in share._FORMS if not any(re.search(form, line) for line in [*PLANTED, TABLE])] == []


@pytest.mark.parametrize("line", INNOCENT)
def test_what_only_looks_like_a_name_stays(line: str) -> None:
    assert share.shared(line) == line


def test_folders_are_replaced_and_the_file_and_its_package_stay() -> None:
    shown = share.shared("/lustre/fsw/a/env/lib/python3.11/site-packages/torch/nn/x.py /scratch/b/run17/train.py:40")
    assert re.fullmatch(r"/lustre/path-x\w{6}/lib/python3.11/site-packages/torch/nn/x.py /scratch/path-x\w{6}/train.py:40", shown)


@given(st.text(max_size=200) | st.sampled_from(PLANTED + INNOCENT))
def test_a_text_is_replaced_once(text: str) -> None:
    once = share.shared(text)
    assert share.shared(once) == once


def test_a_name_is_the_same_in_every_process_of_a_run_and_another_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    line, short = "gpu-canary07.hpc.example.org:1:1 [0] NCCL INFO", "gpu-canary07:1:1 [0] NCCL INFO"
    first = share.shared(line)
    forget(monkeypatch)
    assert share.shared(short) == re.sub(r"\.x\w{6}", "", first) != first
    forget(monkeypatch)
    monkeypatch.setenv(share.SHARE, KEY[::-1])
    assert share.shared(short) != first


def test_numbers_of_a_list_of_nodes_stay() -> None:
    said = share.shared("SLURM_JOB_NODELIST=nid[001-004] nid003")
    assert re.fullmatch(r"SLURM_JOB_NODELIST=(?P<stem>host-x\w{6}-)\[001-004\] (?P=stem)003", said)


def _triage(path: Path, context: str) -> object:
    given = answer(collect([str(path)], context))
    return (
        verdict_of(given.findings),
        [(h.cause, h.status, [e.line for e in h.evidence]) for h in given.hypotheses],
        "read-elsewhere" in {f.id for f in given.findings},
        len(given.logs.ranks),
    )


@pytest.mark.parametrize("number", range(0, len(SAMPLES), 10))
def test_logs_are_judged_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for cause, log, context, near in SAMPLES[number : number + 10]:
        for text in (log, near):
            path = tmp_path / "a.log"
            path.write_text(text + KNOWN.replace("WARN Dup", "INFO dup") + " /home/canarydan/x.py 10.11.12.13\n")
            monkeypatch.setenv(share.SHARE, KEY)
            shown = _triage(path, context)
            monkeypatch.delenv(share.SHARE)
            assert shown == _triage(path, context), cause


@pytest.mark.parametrize("folder", sorted((DATA / "hang").iterdir()), ids=lambda path: path.name)
def test_dumps_are_judged_alike(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def judged() -> object:
        told = judge_hang(read_hang([str(folder)]))
        return told.kind, told.status, told.cause, told.culprits, told.victims

    shown = judged()
    monkeypatch.delenv(share.SHARE)
    assert shown == judged()


@pytest.mark.parametrize("script", sorted((DATA / "launches").iterdir()), ids=lambda path: path.name)
def test_scripts_are_judged_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    path = tmp_path / script.name
    path.write_text(
        script.read_text() + "\nexport MASTER_ADDR=10.11.12.13\nexport NCCL_COMM_ID=10.11.12.13:4000\nexport NCCL_SOCKET_IFNAME=eth0\n"
    )

    def judged() -> object:
        role = read_file(str(path))
        return (
            [(f.id, f.severity) for f in judge_environment(Environment([role], Gap("not-run", "x")))] if not isinstance(role, Gap) else role
        )

    shown = judged()
    monkeypatch.delenv(share.SHARE)
    assert shown == judged()


def test_the_host_of_a_log_is_this_host_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, elsewhere in ((os.uname().nodename, False), ("canary-other9", True)):
        (tmp_path / "a.log").write_text((init(0, 0, 0, "60") + init(1, 0, 0, "60") + DUPLICATE).replace("node0", name))
        for setting in (KEY, ""):
            monkeypatch.setenv(share.SHARE, setting)
            noted = {f.id for f in answer(collect([str(tmp_path / "a.log")], "")).findings}
            assert ("read-elsewhere" in noted) == elsewhere


@pytest.mark.parametrize("line", PLANTED[:-1])
def test_json_stays_json_and_says_the_same_but_for_names(line: str) -> None:
    told = {"text": line, "list": [line, {"path": line}], "number": 1.5}
    shown = Redactor({}).json(told)
    assert json.loads(json.dumps(shown)) == shown and shown.keys() == told.keys() and leaks(json.dumps(shown)) == []


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text(
        "".join(f"[rank{n % 4}]: {kind}{line}\n" for n, line in enumerate(PLANTED) for kind in ("", "RuntimeError: NCCL error: ", "ERROR "))
        + KNOWN
        + "\n"
        + "\n".join(PLANTED)
        + "\n"
    )
    return path


SAID = "gpu-canary07 of canaryuser hangs at 10.11.12.13 in canarydan's job"


def _ended(tmp_path: Path, *words: str | Path, ask: Callable[..., Any] = read_cli, **more: object) -> str:
    for extra in ((), ("--json",)):
        ended = ask(words[0], "--share", "--html", tmp_path / "page.html", *extra, *words[1:], **more)
        page = (tmp_path / "page.html").read_text()
        assert ended.returncode in (0, 3, 4), ended.stderr
        assert leaks(ended.stdout, ended.stderr, page) == [] and KEY not in ended.stdout + page
    return page


def test_triage_diagnose_and_hang(tmp_path: Path, log: Path) -> None:
    assert "Replaced: " in _ended(tmp_path, "triage", log, "--context", SAID)
    assert re.search(r"\d x host name", _ended(tmp_path, "diagnose", log, SAID))
    Job(1).write(tmp_path / "dumps")
    _ended(tmp_path, "hang", tmp_path / "dumps", log)
    without = run_cli("triage", log, "--html", tmp_path / "open.html", env={n: v for n, v in os.environ.items() if n != share.SHARE})
    assert "canary" in without.stdout and "--share" in (tmp_path / "open.html").read_text()


def test_env_and_plan(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n" + "\n".join(PLANTED) + "\nexport NCCL_SOCKET_IFNAME=eth0 NCCL_COMM_ID=10.11.12.13:4000\n"
                      "export NCCL_TOPO_FILE=/home/canarydan/topo.xml\npython3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8\n")
    _ended(tmp_path, "env", script)
    _ended(tmp_path, "plan", script)


def test_look_of_records(tmp_path: Path) -> None:
    seen = look(rank(0, IN_ALL_REDUCE), rank(1, SAVING), host="gpu-canary07")
    record = json.loads(json.dumps(live.record(seen, 1.0), default=vars))
    text = json.dumps(record).replace("/home/a/", "/home/canarydan/")
    (tmp_path / "look.json").write_text(text)
    _ended(tmp_path, "look", "--record", tmp_path / "look.json")


@pytest.mark.parametrize("words", [("hosts", "--record"), ("run", "--record"), ("diagnose",)])
def test_records_of_several_hosts(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Each host has one other name, the same in the terminal and on the page."""
    names = ["canary-n7", "canarygpu12.hpc.corp.example", "canaryz"]
    for at, name in enumerate(names):
        variables = {
            "MASTER_ADDR": names[0],
            "NCCL_TOPO_FILE": f"/home/canaryuser{at}/topo.xml",
            "NCCL_COMM_ID": f"10.11.12.13:{4000 + at}",
            "X": f"{names[at - 1]} waits",
        }
        facts = {
            "environment": {"roles": [{"variables": variables}], "host": {"name": name}},
            "gpus": {"nvml": {"driver": f"580.{at}", "gpus": []}},
        }
        finding = {
            "id": "x",
            "severity": "warn",
            "title": f"{name} lost {names[at - 1]}",
            "evidence": [{"text": f"{name}:1:2 [0] NCCL WARN x", "source": f"/home/canaryuser{at}/job.log"}],
            "remedy": [{"who": "you", "text": f"Ask canaryuser{at}@{name}", "lines": [f"ssh {name} uptime"]}],
        }
        record = {
            "schema": "nccl-runbook/record/2",
            "step": "01-gpu-visibility",
            "status": "warn",
            "reason": f"{name} is down",
            "started": "2026-01-01T00:00:00Z",
            "judged": {"host": name},
            "facts": facts,
            "findings": [finding],
        }
        (tmp_path / f"r{at}.json").write_text(json.dumps(record))
    page = tmp_path / "out" / "index.html"
    for extra in ((), ("--json",)):
        page.unlink(missing_ok=True)
        page.parent.mkdir(exist_ok=True)
        ended = read_cli(
            words[0],
            "--share",
            *extra,
            *words[1:],
            *(tmp_path / f"r{at}.json" for at in range(3)),
            *(("--out", page.parent) if words[0] == "run" else ("--html", page)),
        )
        assert ended.returncode in (3, 4), ended.stderr
        assert leaks(ended.stdout, ended.stderr, page.read_text()) == []
        others = {*re.findall(r"host-x[0-9a-f]{6}-7\b", ended.stdout)}
        assert len(others) == 1 and others <= {*re.findall(r"host-x[0-9a-f]{6}-7\b", page.read_text())}


def test_reduce_and_ab(tmp_path: Path, log: Path) -> None:
    _ended(
        tmp_path,
        "ab",
        ".",
        "MASTER_ADDR=canaryhead NCCL_COMM_ID=10.11.12.13:4000",
        "--rounds",
        "1",
        "--",
        "cat",
        log,
        ask=run_cli,
        timeout=100,
    )
    for number, extra in enumerate(((), ("--json",))):
        out = tmp_path / f"out{number}"
        ended = read_cli("reduce", "--share", *extra, "--out", out, "--axis", "n=1,2", "--", "sh", "-c", f"cat {log}; exit 3")
        assert leaks(ended.stdout, ended.stderr) == [], ended.stderr


def test_a_run(tmp_path: Path, log: Path) -> None:
    """Every file of it, and the same name for a host in all of them."""
    ended = read_cli(
        "run",
        "--share",
        "--out",
        tmp_path / "out",
        "--log",
        log,
        "--symptom",
        SAID,
        "--step",
        "07-logs",
        "--step",
        "02-environment",
        "--step",
        "00-start",
        "--budget",
        "90s",
        env={**os.environ, "NCCL_COMM_ID": "10.11.12.13:4000", "MASTER_ADDR": "canaryhead"},
        timeout=200,
    )
    files = {path.name: path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"00-start.ipynb", "07-logs.html", "02-environment.json", "verdict.json", "index.html"} <= set(files)
    assert leaks(ended.stdout, ended.stderr) == [] and {name: found for name, text in files.items() if (found := leaks(text))} == {}
    other = share.shared("gpu-canary07:1:1 [0]").partition(":")[0]
    assert [name for name in ("07-logs.json", "index.html", "verdict.json") if other not in files[name]] == []
    assert [name for name, text in files.items() if KEY in text] == []


WATCHDOG = (
    "gpu{1:03d}:{0}:{0} [0] NCCL INFO comm 0x55d0a8 rank {0} nranks 3000 cudaDev 0 nvmlDev 0 busId 10000 commId 0xabc - Init COMPLETE\n"
    "[rank{0}]:[E1128 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
)


def _hosts(log: Path) -> list[list[str]]:
    return [rank.hosts for rank in collect([str(log)], "").ranks]


def test_a_log_of_3000_ranks_on_375_hosts_takes_less_than_five_seconds(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(WATCHDOG.format(rank, rank // 8) for rank in range(3000)))
    ended = read_cli("triage", "--share", tmp_path / "job.log")
    took = min(ended.usual_s(), command_s([*CLI, "triage", "--share", str(tmp_path / "job.log")], 4.5, env=with_library())[0])
    assert took < 4.5 and ended.peak_bytes < 300 << 20
    shown = json.dumps(_hosts(tmp_path / "job.log"))
    assert re.search(r"host-x\w{6}-374", shown) and not re.search(r"gpu\d{3}", ended.stdout + shown)
