"""Mistakes of launch scripts that their text alone proves: each beside the nearest right form, of which nothing is said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.tables import table
from nccl_runbook.scripts.read import MOST_WRITTEN, read
from processes import slowness
from warm_cli import read_cli

SH = "#!/bin/bash\n"
TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n"
MEET = "--rdzv_backend=c10d --rdzv_endpoint=$first:29500"
POD = """apiVersion: batch/v1
kind: Job
spec:
  completionMode: Indexed
  parallelism: 2
  template:
    spec:
      containers:
        - command: [torchrun, --nnodes=2, {rank}, --nproc_per_node=8, --master_addr=j-0.j, t.py]
          resources: {{limits: {{nvidia.com/gpu: 8}}}}
          volumeMounts: [{{mountPath: /dev/shm, name: shm}}]
          env:
            - name: NCCL_IB_DISABLE
              value: {value}
"""
COMPOSE = """services:
  train:
    shm_size: 16gb
    {network}
    command: torchrun --nnodes=2 --nproc-per-node=8 --node-rank=${{NODE_RANK}} --master-addr=${{MASTER_ADDR}} t.py
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 8}}]}}}}}}
"""
FILE = "distributed_type: MULTI_GPU\nnum_machines: {}\nnum_processes: {}\nmain_process_ip: {}\n"


@pytest.mark.parametrize(
    ("fault", "wrong", "right"),
    [
        ("standalone-on-several-nodes", "torchrun --standalone --nnodes=2 t.py", "torchrun --standalone --nnodes=1 t.py"),
        ("nodes-differ", TWO + f"srun torchrun --nnodes=4 {MEET} t.py", TWO + f"srun torchrun --nnodes=$SLURM_NNODES {MEET} t.py"),
        ("nodes-differ", TWO + "srun accelerate launch --num_machines 3 t.py", TWO + f"srun -N 1 -w a torchrun --nnodes=3 {MEET} t.py"),
        (
            "every-node-is-one-rank",
            TWO + "srun torchrun --nnodes=2 --node_rank=0 --master_addr=a t.py",
            TWO + "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=a t.py",
        ),
        (
            "every-node-is-one-rank",
            TWO + "srun accelerate launch --num_machines 2 --machine_rank 0 --main_process_ip a t.py",
            TWO + "srun -N1 -n1 -w a torchrun --nnodes=2 --node_rank=0 --master_addr=a t.py",
        ),
        (
            "every-node-is-one-rank",
            POD.format(rank="--node_rank=0", value='"0"'),
            POD.format(rank="--node_rank=$(JOB_COMPLETION_INDEX)", value='"0"'),
        ),
        (
            "meets-at-itself",
            TWO + "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=localhost t.py",
            "torchrun --nnodes=2 --node_rank=0 --master_addr=localhost t.py",
        ),
        *(
            (fault, TWO + f"srun {wrong} {launcher}", TWO + f"srun {right} {launcher}")
            for fault, launcher in (
                ("meets-at-itself", "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 t.py"),
                ("every-node-is-one-rank", "torchrun --nnodes=2 --node_rank=0 --master_addr=a t.py"),
                ("nodes-differ", f"torchrun --nnodes=3 {MEET} t.py"),
            )
            for wrong, right in (
                ("--nodes=2", "--nodes=1"),
                ("-N2 -n2", "-N2 -n1"),
                ("-N 2", "-N 1"),
                ("--nodes 2", "--nodes 1"),
            )
        ),
        (
            "meets-at-itself",
            TWO + "srun --nodes=2 --ntasks=2 torchrun --nnodes=2 --rdzv_endpoint=127.0.0.1:29500 t.py",
            TWO + "srun --nodes=2 --ntasks=1 torchrun --nnodes=2 --rdzv_endpoint=127.0.0.1:29500 t.py",
        ),
        ("file-meets-at-itself", FILE.format(2, 16, "127.0.0.1"), FILE.format(2, 16, "10.0.0.1")),
        ("file-meets-at-itself", FILE.format(2, 16, "localhost"), FILE.format(1, 8, "127.0.0.1")),
        (
            "lightning-tasks-differ",
            TWO + "srun python t.py fit --trainer.devices=8 --trainer.num_nodes=2",
            TWO.replace("node=1", "node=8") + "srun python t.py fit --trainer.devices=8 --trainer.num_nodes=2",
        ),
        ("lightning-tasks-differ", TWO + "srun python t.py trainer.devices=8", TWO + "srun python t.py trainer.devices=1"),
        ("blank-beside-equals", SH + "export NCCL_DEBUG = WARN\n", SH + "export NCCL_DEBUG=WARN\n"),
        ("directive-too-late", "#!/bin/bash\nset -e\n#SBATCH --nodes=2\n", "#!/bin/bash\n# set\n\n#SBATCH --nodes=2\nset -e\n"),
        ("directive-too-late", "#!/bin/bash\ncd x\n#SBATCH -N 2\n", "#!/bin/bash\ncd x\nsbatch <<E\n#!/bin/bash\n#SBATCH -N 2\nE\n"),
        (
            "published-port-is-not-enough",
            COMPOSE.format(network='ports: ["29500:29500"]').replace("${MASTER_ADDR}", "10.0.0.1"),
            COMPOSE.format(network="network_mode: host"),
        ),
        (
            "published-port-is-not-enough",
            "docker run --gpus all --ipc host -p 29500:29500 x torchrun --nnodes=2 --master-addr=$A --nproc-per-node=8 t.py",
            "docker run --gpus all --ipc host --network host x torchrun --nnodes=2 --master-addr=$A --nproc-per-node=8 t.py",
        ),
    ],
)
def test_a_mistake_is_seen_and_its_right_form_is_not(fault, wrong, right):
    assert fault in read(wrong).faults
    assert not set(read(right).faults) - {"pod-default-shm"}


SERVICE = """  {name}:
    shm_size: 16gb{ports}
    command: torchrun --nnodes=2 --nproc-per-node=4 --node-rank={rank} --master-addr=node0 t.py
"""
LEADER = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - command: [torchrun, --nnodes=2, --node-rank=0, --master-addr=$(LWS_LEADER_ADDRESS), t.py]
    workerTemplate:
      spec:
        containers:
          - command: [torchrun, --nnodes=2, --node-rank=1, --master-addr=$(LWS_LEADER_ADDRESS), t.py]
"""
PORT = "torchrun --nproc-per-node 4 --master-port 29500 "


@pytest.mark.parametrize(
    "text",
    [
        # one after the other, another branch, another host, one job
        PORT + "a.py > a.log 2>&1\n" + PORT + "b.py\n",
        PORT + "a.py |& tee a.log\n" + PORT + "b.py\n",
        PORT + "a.py &> a.log\n" + PORT + "b.py\n",
        PORT + "a.py 2>&1 | tee a.log\n" + PORT + "b.py\n",
        "if $A; then\n" + PORT + "a.py &\nelse\n" + PORT + "b.py &\nfi\nwait\n",
        PORT + "a.py &\nsleep 60\nkill %1; wait\n" + PORT + "b.py\n",
        PORT + "a.py &\npid=$!\nwhile kill -0 $pid; do sleep 5; done\n" + PORT + "b.py\n",
        "case $1 in\na)\n  " + PORT + "a.py &\n  ;;\nb)\n  " + PORT + "b.py &\n  ;;\nesac\nwait\n",
        'ssh a "\n' + PORT + 'a.py &\n"\nssh b "\n' + PORT + 'b.py &\n"\n',
        "ssh a \\\n" + PORT + "a.py &\nssh b \\\n" + PORT + "b.py &\n",
        PORT + "--nnodes 2 --node-rank 0 t.py &\n" + PORT + "--nnodes 2 --node-rank 1 t.py\n",
        "torchrun --standalone --master-port 29500 a.py &\ntorchrun --standalone --master-port 29500 b.py\n",
        PORT
        + "--nnodes 2 --node-rank 0 --master-addr localhost t.py &\n"
        + PORT
        + "--nnodes 2 --node-rank 1 --master-addr localhost t.py\n",
        "for r in 0 1; do\n" + PORT + "--nnodes 2 --node-rank $r --master-addr localhost t.py &\ndone\nwait\n",
        # the shell of the batch script works it out
        TWO + "echo 'start'\nsrun torchrun --nnodes=2 --rdzv-endpoint=$(hostname):29500 t.py --name 'x'\n",
        TWO + "# it's here\nsrun torchrun --nnodes=2 --rdzv-endpoint=$(hostname):29500 t.py  # don't\n",
        TWO + "srun bash -c 'echo $(hostname)'\nsrun torchrun --nnodes=2 --rdzv-endpoint=$A:29500 t.py --name 'x'\n",
        TWO + "srun bash -c 'torchrun --nnodes=2 --rdzv-endpoint=$A:29500 t.py --host=$(hostname) --seed=$RANDOM'\n",
        # two agents on each node, or nodes of another choice
        TWO + "srun --ntasks-per-node=2 --gpus-per-task=4 torchrun --nnodes=4 --nproc-per-node=4 --master-addr=$A t.py\n",
        TWO.replace("node=1", "node=2") + "srun torchrun --nnodes=4 --nproc-per-node=4 --master-addr=$A t.py\n",
        TWO.replace("--ntasks-per-node=1", "-n 4") + "srun torchrun --nnodes=4 --nproc-per-node=4 --master-addr=$A t.py\n",
        TWO + "srun -F hosts torchrun --nnodes=4 --master-addr=$A t.py\n",
        TWO + "srun --nodefile=hosts torchrun --nnodes=4 --master-addr=$A t.py\n",
        "srun --nodes=1 torchrun --nnodes=2 --node-rank=0 --master-addr=$A t.py &\n"
        "srun --nodes=1 torchrun --nnodes=2 --node-rank=1 --master-addr=$A t.py\n",
        TWO.replace("--ntasks", "--tasks").replace("node=1", "node=8") + "srun python t.py trainer.devices=8\n",
        "srun python t.py trainer.devices=8\n",
        TWO + "srun torchrun --nproc-per-node $SLURM_GPUS_ON_NODE --nnodes 2 --master-addr $A t.py trainer.devices=8\n",
        LEADER,
        "services:\n"
        + SERVICE.format(name="node0", rank=0, ports='\n    ports: ["6006:6006"]')
        + SERVICE.format(name="node1", rank=1, ports=""),
        # a sweep of jobs, each on its host
        'for h in a b; do\n  ssh $h "torchrun --nnodes=1 --node_rank=0 --nproc-per-node=8 t.py --host $h" &\ndone\n',
        # no shell, or no variables of a container
        "export NCCL_DEBUG = INFO\ntrain:\n\ttorchrun t.py\n",
        "extraEnv:\n  - name: NCCL_IB_GID_INDEX\n    value: 3\n",
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec:\n  arguments:\n"
        "    parameters:\n    - name: NCCL_IB_GID_INDEX\n      value: 3\n",
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n  values:\n    env:\n    - name: NCCL_DEBUG\n      value: 3\n",
        SH + 'set -e\nJOB="#!/bin/bash\n#SBATCH --nodes=2\nsrun t\n"\necho "$JOB" | sbatch\n',
        SH + 'ENVS=(\nNCCL_IB_HCA=mlx5\n)\nenv "${ENVS[@]}" torchrun t.py\n',
        SH + 'VARS="\nNCCL_IB_HCA=mlx5\n"\nenv $VARS torchrun t.py\n',
        SH + "NCCL_IB_HCA=mlx5\n# for torchrun\n",
        "PATH=/usr/bin\nNCCL_IB_HCA=mlx5\nHOME=/root\n+ torchrun t.py\n",
        "# torchrun gets these\nNCCL_IB_HCA=mlx5\nNCCL_DEBUG=INFO\n",
        "export NCCL_P2P_LEVEL=NVL\nmpirun -np 8 -H localhost:8 -x PATH python t.py\n",
        "export NCCL_IB_HCA=mlx5\npython a.py\nunset NCCL_IB_HCA\nmpirun -np 16 --hostfile h -x PATH python t.py\n",
        'VARS="-x NCCL_IB_HCA"\nexport NCCL_IB_HCA=mlx5\nmpirun -np 16 --hostfile h -x PATH $VARS python t.py\n',
        "export NCCL_IB_HCA=mlx5\nmpirun -np 16 --hostfile h -x PATH bash -c '. nccl.sh; python t.py'\n",
        FILE.format(2, 8, "10.0.0.1"),
    ],
)
def test_right_scripts_are_not_called_broken(text):
    rows = table("scripts/launchers")["fault"]
    assert {name for name in read(text).faults if rows[name]["severity"] in ("broken", "warn")} == set()


def test_every_fault_names_a_cause_that_is_there():
    rows = table("scripts/launchers")["fault"].values()
    assert {row["cause"] for row in rows if "cause" in row} <= set(causes())
    assert all(row["severity"] in ("broken", "warn", "note", "unknown") for row in rows)


def test_no_expression_of_a_fault_is_long():
    rows = table("scripts/launchers")["fault"].items()
    assert [name for name, row in rows for words in row.values() if isinstance(words, str) and len(words) > 300] == []


@pytest.mark.parametrize(
    "row", ["NCCL_A=1\n", "export NCCL_A=1\n", "#!x\nset a\n", "for x in a\ndo ssh $x\n", "torchrun --master_port=1&\n"]
)
def test_a_hostile_text_costs_little(row):
    begun = time.process_time()
    read((row * MOST_WRITTEN)[:MOST_WRITTEN])
    assert (time.process_time() - begun) / slowness() < 5


def test_diagnose_says_it_with_its_lines(tmp_path):
    path = tmp_path / "t.sbatch"
    path.write_text(TWO + "export NCCL_IB_HCA = mlx5_0\nsrun torchrun --nnodes=4 " + MEET + " t.py\n")
    said = read_cli("diagnose", path)
    assert said.returncode == 3 and "--nnodes=4" in said.stdout
    assert "NCCL_IB_HCA = mlx5_0" in read_cli("env", path).stdout


def test_the_settings_of_a_python_file_are_read(tmp_path):
    path = tmp_path / "t.py"
    path.write_text('import os\nos.environ["NCCL_P2P_LEVEL"] = "nvlink"\n')
    assert read_cli("diagnose", path).returncode == 3


SERVER = "CUDA_VISIBLE_DEVICES={} trl vllm-serve --model m --tensor-parallel-size 2 &\n"
TRAINER = "{}accelerate launch --num_processes {} t.py --use_vllm True --vllm_mode server --vllm_server_host 127.0.0.1\n"


@pytest.mark.parametrize(
    ("server", "before", "processes", "code"),
    [
        ("6,7", "", 8, 3),
        ("6,7", "", 6, 0),
        ("0,1", "CUDA_VISIBLE_DEVICES=1,2,3 ", 3, 3),
        ("0,1", "CUDA_VISIBLE_DEVICES=2,3 ", 2, 0),
    ],
)
def test_a_script_that_lists_its_gpus_needs_no_number_of_them(tmp_path: Path, server: str, before: str, processes: int, code: int):
    path = tmp_path / "t.sh"
    path.write_text(SERVER.format(server) + TRAINER.format(before, processes))
    assert read_cli("plan", path).returncode == code


def test_ray_says_how_many_gpus_a_node_has():
    assert read("ray start --head --num-gpus 8\nray job submit -- python t.py\n").gpus == 8
    assert read("ray job submit -- python t.py\n").gpus == 0
