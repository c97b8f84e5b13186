"""Ranks that a launcher starts on a node against the GPUs of a node: faults are found in every form, and no right form is called one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st
from nccl_runbook.core.facts import Gap
from nccl_runbook.environment import read_file
from nccl_runbook.environment.facts import Environment
from nccl_runbook.environment.judge import judge
from nccl_runbook.scripts import counts, manifests
from nccl_runbook.scripts.read import read
from warm_cli import read_cli

FOUR = "#SBATCH -N 2\n#SBATCH --gres=gpu:h100:4\n"
ONE = "#SBATCH --nodes=1\n#SBATCH --gres=gpu:4\n"
SEEN = "export CUDA_VISIBLE_DEVICES=0,1,2,3\n"


def pod(gpus: int, container: dict, **around: object) -> str:
    """A Pod whose container has so many GPUs."""
    whole = {"name": "t", "image": "x", "resources": {"limits": {"nvidia.com/gpu": gpus}}, **container}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [whole], **around}})


def job(kind: str, gpus: int, ranks: int) -> str:
    """The same training below another kind of Kubernetes."""
    started = ["torchrun", f"--nproc-per-node={ranks}", "train.py"]
    box = {"containers": [{"name": "t", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}, "command": started}]}
    plain, template = {"containers": [{**box["containers"][0], "command": ["torchrun", "train.py"]}]}, {"template": {"spec": box}}
    launcher = {"template": {"spec": {"containers": [{"name": "l", "image": "x", "command": ["mpirun", "python", "train.py"]}]}}}
    idle = {"template": {"spec": {"containers": [{"name": "w", "image": "x", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]}}}
    spec = {
        "Job": template,
        "CronJob": {"jobTemplate": {"spec": template}},
        "Deployment": template,
        "JobSet": {"replicatedJobs": [{"template": {"spec": template}}]},
        "LeaderWorkerSet": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": box}}},
        "PyTorchJob": {"nprocPerNode": str(ranks), "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": plain}}}},
        "PyTorchJob elastic": {
            "elasticPolicy": {"nProcPerNode": ranks},
            "pytorchReplicaSpecs": {"Worker": {"template": {"spec": plain}}},
        },
        "TrainJob": {
            "trainer": {
                "numProcPerNode": ranks,
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": gpus}},
                "command": ["torchrun", "t.py"],
            }
        },
        "MPIJob": {"slotsPerWorker": ranks, "mpiReplicaSpecs": {"Launcher": launcher, "Worker": {"replicas": 2, **idle}}},
        "RayCluster": {"workerGroupSpecs": [{"rayStartParams": {"num-gpus": str(ranks)}, **idle}]},
    }[kind]
    return yaml.safe_dump({"apiVersion": "x/v1", "kind": kind.partition(" ")[0], "spec": spec})


KINDS = (
    "Job",
    "CronJob",
    "Deployment",
    "JobSet",
    "LeaderWorkerSet",
    "PyTorchJob",
    "PyTorchJob elastic",
    "TrainJob",
    "MPIJob",
    "RayCluster",
)


def compose(command: object, devices: dict, **more: object) -> str:
    given = {
        "image": "x",
        "command": command,
        "deploy": {"resources": {"reservations": {"devices": [{"driver": "nvidia", "capabilities": ["gpu"], **devices}]}}},
    }
    return yaml.safe_dump({"services": {"train": {**given, **more}}})


CROWDED = {
    # srun, which starts each task itself
    ONE + "#SBATCH --ntasks-per-node=8\nsrun python train.py": (8, 4),
    ONE + "#SBATCH --ntasks=8\nsrun python -u train.py": (8, 4),
    ONE + "srun -n 8 python train.py": (8, 4),
    ONE + "srun -n8 python -m train": (8, 4),
    FOUR + "srun --ntasks=16 --mpi=pmix ./all_reduce_perf": (8, 4),
    FOUR + "srun --ntasks-per-node=5 uv run train.py": (5, 4),
    "#SBATCH -N 2\n#SBATCH --gpus=8\nsrun -n 16 python t.py": (8, 4),
    "#SBATCH -N 1\nsrun --gpus-per-node=2 --ntasks-per-node=4 python t.py": (4, 2),
    ONE + "srun --ntasks-per-gpu=2 python t.py": (8, 4),
    "#SBATCH --gpus-per-task=1\nsrun --ntasks-per-node=2 torchrun --nproc-per-node=4 t.py": (8, 2),
    ONE + "#SBATCH -n 8\nsrun bash -lc 'cd /x && python t.py'": (8, 4),
    "#SBATCH --gres=gpu:8\n#SBATCH -N1\nsrun --gres=gpu:4 -n 8 python t.py": (8, 4),
    "salloc -N1 --gres=gpu:4 srun -n 8 python t.py": (8, 4),
    "sbatch -N1 --gres=gpu:4 --wrap 'torchrun --nproc-per-node 8 t.py'": (8, 4),
    ONE + "#SBATCH -n 8\nsrun -n $SLURM_NTASKS python t.py": (8, 4),
    ONE + "#SBATCH -n 8\n#SBATCH -c 16\nsrun python t.py": (8, 4),
    ONE + "#SBATCH -n 8\nsrun python t.py --data preprocessed": (8, 4),
    ONE + "bash -lc 'python -m torch.distributed.run --nproc-per-node 8 t.py'": (8, 4),
    # MPI
    SEEN + "mpirun -np 8 python t.py": (8, 4),
    ONE + "mpirun -np 8 python t.py": (8, 4),
    FOUR + "mpiexec -n 16 python t.py": (8, 4),
    FOUR + "mpirun -npernode 8 python t.py": (8, 4),
    FOUR + "mpirun -np 16 --map-by ppr:8:node -x NCCL_DEBUG=WARN python t.py": (8, 4),
    "mpirun -np 4 -x CUDA_VISIBLE_DEVICES=0,1 python t.py": (4, 2),
    ONE + "#SBATCH --ntasks-per-node=8\nmpirun python t.py": (8, 4),
    # others, and containers
    SEEN + "export PET_NPROC_PER_NODE=8\ntorchrun t.py": (8, 4),
    ONE + "deepspeed --num_gpus 8 t.py": (8, 4),
    ONE + "srun ray start --head --num-gpus=8": (8, 4),
    "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 4 t.py": (4, 2),
    "docker run --gpus '\"device=0,1\"' x torchrun --nproc-per-node=4 t.py": (4, 2),
    "docker run --gpus 2 --ipc=host x bash -c 'torchrun --nproc-per-node=4 t.py'": (4, 2),
    "docker run --gpus device=0 x accelerate launch --num_processes 2 t.py": (2, 1),
    "docker run --gpus all -e CUDA_VISIBLE_DEVICES=0,1 x torchrun --nproc-per-node 3 t.py": (3, 2),
    "python -m torch.distributed.run --nproc-per-node 2 t.py &\n"
    "CUDA_VISIBLE_DEVICES=0 python -m torch.distributed.run --nproc-per-node 2 t.py": (2, 1),
    # manifests
    **{job(kind, 4, 8): (8, 4) for kind in KINDS},
    pod(4, {"command": ["bash", "-c"], "args": ["set -e\nexport N=8\ntorchrun --nproc-per-node=$N train.py"]}): (8, 4),
    pod(4, {"command": ["python", "-m", "torch.distributed.run"], "args": ["--nproc-per-node", "8", "train.py"]}): (8, 4),
    pod(4, {"command": ["torchrun", "--nproc-per-node=$(N)", "train.py"], "env": [{"name": "N", "value": "8"}]}): (8, 4),
    pod(4, {"command": ["sh", "-c", "torchrun --nproc-per-node=$N t.py"], "env": [{"name": "N", "value": "8"}]}): (8, 4),
    pod(4, {"args": ["accelerate", "launch", "--num_processes", "8", "t.py"]}): (8, 4),
    pod(4, {"command": ["mpirun", "-np", "8", "python", "t.py"]}): (8, 4),
    compose("torchrun --nproc-per-node=4 t.py", {"count": 2}): (4, 2),
    compose(["torchrun", "--nproc-per-node=4", "t.py"], {"device_ids": ["0", "3"]}): (4, 2),
    yaml.safe_dump({"resources": {"accelerators": "H100:4"}, "run": "torchrun --nproc_per_node=8 t.py\n"}): (8, 4),
    yaml.safe_dump({"tasks": [{"command": ["bash", "-c", "torchrun --nproc_per_node 8 t.py"], "resources": {"gpuCount": 4}}]}): (8, 4),
}

RIGHT = [
    # one rank a GPU
    ONE + "#SBATCH --ntasks-per-node=4\nsrun python t.py",
    FOUR + "srun -n 8 python t.py",
    FOUR + "#SBATCH --ntasks=8\nsrun python t.py",
    FOUR + "#SBATCH --ntasks-per-node=4\nmpirun -np 8 python t.py",
    FOUR + "mpirun -np 8 --map-by ppr:4:node python t.py",
    SEEN + "mpirun -np 4 python t.py",
    ONE + "srun --ntasks-per-gpu=1 python t.py",
    "#SBATCH --gpus-per-task=1\nsrun -n 8 python t.py",
    "#SBATCH --gpus-per-task=1\n#SBATCH --ntasks-per-node=8\nsrun python t.py",
    "#SBATCH --gpus-per-task=4\nsrun --ntasks-per-node=1 torchrun --nproc-per-node 4 t.py",
    FOUR + "srun -N 2 -n 2 torchrun --nproc-per-node=4 t.py",
    "#SBATCH -n 16\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\nmpirun -np 16 python t.py",
    "srun -N2 -n8 --gpus-per-node=4 python t.py",
    ONE + "#SBATCH --ntasks-per-node=8\nsrun -n 1 python t.py",
    ONE + "#SBATCH --ntasks-per-node=4\nsrun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python t.py'",
    # more GPUs than ranks, on purpose: tensor parallelism, device_map, and a rank that takes all
    ONE + "srun -n 1 vllm serve m --tensor-parallel-size 4",
    ONE + "srun -n 1 python t.py",
    ONE + "python t.py",
    SEEN + "vllm serve m -tp 4",
    pod(4, {"command": ["vllm", "serve", "m", "--tensor-parallel-size", "4"]}),
    pod(8, {"command": ["torchrun", "--nproc-per-node=4", "t.py"]}),
    ONE + "deepspeed t.py",
    SEEN + "deepspeed --include localhost:0,1 t.py",
    "deepspeed --num_gpus 4 t.py",
    SEEN + "all_reduce_perf -g 4",
    # counts that are not said, or a variable that nobody set
    ONE + "srun -n $N python t.py",
    SEEN + "mpirun -np $N python t.py",
    "#SBATCH --gres=gpu:$G\n#SBATCH --ntasks-per-node=8\nsrun python t.py",
    ONE + "torchrun --nproc-per-node=gpu t.py",
    ONE + "torchrun --nproc-per-node=auto t.py",
    "mpirun -np 8 python t.py",
    "srun --ntasks-per-node=8 python t.py",
    pod(4, {"command": ["torchrun", "--nproc-per-node=$(N)", "t.py"]}),
    pod(4, {}),
    pod(4, {"command": ["sh", "-c", "torchrun --nproc-per-node=$(nproc) t.py"]}),
    SEEN + "mpirun -np 16 -H a:4,b:4,c:4,d:4 python t.py",
    SEEN + "mpirun -np 16 --hostfile hosts python t.py",
    ONE + "srun -n 8 ./wrapper.sh",
    "#SBATCH -n 8\n#SBATCH -c 16\n#SBATCH --gres=gpu:4\nsrun python t.py",
    ONE + "bash -c 'echo torchrun --nproc-per-node 8 t.py'",
    # tasks that are no ranks
    ONE + "#SBATCH --ntasks-per-node=8\nsrun python preprocess.py\nsrun -n 4 python t.py",
    ONE + "#SBATCH -n 8\nsrun -n 8 python -c 'import torch'",
    ONE + "#SBATCH -n 8\nsrun -n 8 hostname\ntorchrun --nproc-per-node 4 t.py",
    ONE + "#SBATCH -n 8\nsrun python -m pip install x",
    ONE + "#SBATCH -n 8\npython t.py",
    # what is asked for outside does not count inside, and the other way round
    SEEN + "docker run --gpus all x torchrun --nproc-per-node=8 t.py",
    ONE + "docker run --gpus all --ipc=host x torchrun --nproc-per-node=8 t.py",
    "docker run --gpus 2 x nvidia-smi\ntorchrun --nproc-per-node=4 t.py",
    "docker exec -it x torchrun --nproc-per-node=8 t.py",
    "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 t.py &\nCUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 t.py",
    "sbatch --gres=gpu:1 one.sh\nsrun -n 8 python t.py",
    ONE + "srun -n 4 python t.py -n 16 --ntasks-per-node 16",
    "docker run --gpus '\"device=0,1\"' x torchrun --nproc-per-node=2 t.py",
    "docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=all x torchrun --nproc-per-node=8 t.py",
    # manifests
    *(job(kind, 4, 4) for kind in KINDS),
    *(job(kind, 8, 4) for kind in KINDS),
    compose("torchrun --nproc-per-node=2 t.py", {"count": 2}, shm_size="8gb"),
    compose("torchrun --nproc-per-node=2 t.py", {"count": "all"}, ipc="host"),
    compose(["torchrun", "--nproc-per-node=2", "t.py"], {"device_ids": ["0", "1"]}),
    yaml.safe_dump({"resources": {"accelerators": "H100:8"}, "run": "torchrun --nproc_per_node=8 t.py\n"}),
    (
        "apiVersion: v1\nspec:\n  containers:\n  - resources: {limits: {nvidia.com/gpu: {{ .Values.gpus }}}}\n    command: [torchrun,"
        " --nproc-per-node=8, t.py]\n"
    ),
    "x-all: &all\n  image: x\nservices:\n  a:\n    <<: *all\n    command: torchrun --nproc-per-node=8 t.py\n    gpus: 1\n",
]


@pytest.mark.parametrize(("text", "wanted"), CROWDED.items(), ids=range(len(CROWDED)))
def test_more_ranks_than_gpus_are_found(text: str, wanted: tuple[int, int]) -> None:
    assert read(text).crowded == wanted


@pytest.mark.parametrize("text", RIGHT, ids=range(len(RIGHT)))
def test_a_right_form_is_no_fault(text: str) -> None:
    role = read_file.parse("export NCCL_DEBUG=WARN\n" * (":" not in text.partition("\n")[0]) + text)
    found = judge(Environment([role], Gap("not-run", "a file")))
    assert (role.crowded, {f.severity.value for f in found} - {"ok", "note", "unknown"}) == ([], set())


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 4))
def test_ranks_and_gpus_are_compared_by_the_node(ranks: int, gpus: int, nodes: int) -> None:
    wanted = (ranks, gpus) if ranks > gpus else ()
    asked = f"#SBATCH -N {nodes}\n#SBATCH --gpus-per-node={gpus}\n"
    for launch in (
        f"srun --ntasks-per-node={ranks}",
        f"srun -n {ranks * nodes}",
        f"mpirun -np {ranks * nodes}",
        f"mpirun --map-by ppr:{ranks}:node",
    ):
        assert read(f"{asked}{launch} python t.py").crowded == wanted
    for kind in KINDS:
        assert read(job(kind, gpus, ranks)).crowded == wanted


WORDS = st.lists(
    st.sampled_from(
        [
            "srun",
            "-n",
            "8",
            "mpirun",
            "-np",
            "--gres=gpu:4",
            "torchrun",
            "--nproc-per-node=8",
            "python",
            "t.py",
            "docker",
            "run",
            "--gpus",
            "2",
            "bash",
            "-c",
            "'a b'",
            "ray",
            "start",
            "accelerate",
            "\n",
            ";",
            "$N",
            "{",
            "'",
            "kubernetes-container",
        ]
    ),
    max_size=30,
)


@given(WORDS)
def test_any_words_are_counted(words: list[str]) -> None:
    script = read(" ".join(words))
    assert not script.crowded or 0 < script.crowded[1] < script.crowded[0]
    assert counts.size_of(["echo", *words], [], {}, {}) is None


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["containers", "command", "args", "env", "resources", "image", "rayStartParams", "run", "services", "deploy", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(VALUES)
def test_any_manifest_is_read(value: object) -> None:
    text = "apiVersion: v1\n" + yaml.safe_dump({"spec": value})
    assert all(c.words for c in read(text).commands)


@given(st.lists(st.text("a '\"$|&;\n\\-=", min_size=1, max_size=12), min_size=1, max_size=5))
def test_words_of_a_manifest_reach_the_program_as_they_are(words: list[str]) -> None:
    text = manifests.as_script(pod(4, {"command": ["torchrun", *words]}))
    assert any(
        c.words == ("kubernetes-container", "{resources:{limits:{nvidia.com/gpu:4}}}", "bash", "-c", c.words[-1])
        for c in read(text).commands
    )


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\ncontainers: [*a]\n",
        "services:\n" + " a:\n" * 3 + "  - {",
        "apiVersion: " + "[" * 100,
        "run: [" * 40_000,
        "services:\n" + "".join(f"a{n}: &a{n} [*a{n - 1},*a{n - 1}]\n" for n in range(1, 60)),
    ],
)
def test_a_hostile_manifest_is_left_as_it_is(text: str) -> None:
    assert manifests.as_script(text) == text


BOX = {"containers": [{"name": "t", "image": "x", "command": ["torchrun", "t.py"], "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "lo"}]}]}
TASK = {"command": ["torchrun", "t.py"], "envVars": [{"name": "NCCL_SOCKET_IFNAME", "value": "lo"}]}


def role(replicas: int | None) -> dict:
    """One role of a job: so many replicas, or no number."""
    return {"template": {"spec": BOX}, **({} if replicas is None else {"replicas": replicas})}


SEVERAL = [
    {"pytorchReplicaSpecs": {"Master": role(1), "Worker": role(1)}},
    {"pytorchReplicaSpecs": {"Worker": role(4)}},
    {"mpiReplicaSpecs": {"Launcher": role(1), "Worker": role(2)}},
    {"tasks": [{"name": "master", **role(1)}, {"name": "worker", **role(1)}]},
    {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": {"spec": BOX}},
    {"completionMode": "Indexed", "parallelism": 2, "template": {"spec": {"hostIPC": True, **BOX}}},
    {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": BOX}}},
    {"trainer": {"numNodes": 2, "command": ["torchrun", "t.py"], "env": BOX["containers"][0]["env"]}},
]
ALONE = [
    {"pytorchReplicaSpecs": {"Master": role(1)}},
    {"pytorchReplicaSpecs": {"Worker": role(None)}},
    {"mpiReplicaSpecs": {"Launcher": role(1), "Worker": role(1)}},
    {"replicas": 4, "template": {"spec": BOX}},  # a Deployment
    {"parallelism": 4, "template": {"spec": BOX}},
    {"replicas": 4, "leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": BOX}}},
    {"trainer": {"numNodes": 1, "command": ["torchrun", "t.py"], "env": BOX["containers"][0]["env"]}},
    {"template": {"spec": {**BOX, "volumes": [{"name": "v", "csi": {"volumeAttributes": {"size": "10Gi"}}}]}}},
]
MANIFESTS = [
    *((json.dumps({"apiVersion": "x/v1", "kind": "Job", "spec": spec}), True) for spec in SEVERAL),
    *((json.dumps({"apiVersion": "x/v1", "kind": "Job", "spec": spec}), False) for spec in ALONE),
    (yaml.safe_dump({"tasks": [{**TASK, "replicas": 4, "leaderSelection": True}]}), True),
    (yaml.safe_dump({"tasks": [{**TASK, "replicas": 4}]}), False),  # four independent copies
    (json.dumps({"tasks": [TASK, TASK]}), False),
    (yaml.safe_dump({"num_nodes": 2, "envs": {"NCCL_SOCKET_IFNAME": "lo"}, "run": "torchrun t.py"}), True),
    (yaml.safe_dump({"num_nodes": 1, "envs": {"NCCL_SOCKET_IFNAME": "lo"}, "run": "torchrun t.py"}), False),
]


@pytest.mark.parametrize(("text", "several"), MANIFESTS, ids=range(len(MANIFESTS)))
def test_replicas_of_one_job_are_its_nodes(text: str, several: bool) -> None:
    """Ranks of several nodes cannot meet over loopback; replicas that are independent can."""
    role = read_file.parse(text, "manifest.yaml")
    findings = judge(Environment([role], Gap("not-run", "only a file was read")))
    assert (role.nodes > 1, "broken" in [f.severity.value for f in findings]) == (several, several)


FAULTS = {
    "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d t.py": {"torchrun-meets-nobody"},
    "torchrun --nnodes=1:4 t.py": {"torchrun-meets-nobody"},
    "srun python -m torch.distributed.run --nnodes 2 --node_rank $SLURM_NODEID t.py": {"torchrun-meets-nobody"},
    "srun bash -c 'torchrun --nnodes 2 t.py'": {"torchrun-meets-nobody"},
    "export PET_NNODES=2\ntorchrun t.py": {"torchrun-meets-nobody"},
    "torchrun --nnodes 1 t.py": set(),
    "torchrun --nnodes 1:1 t.py": set(),
    "torchrun --nnodes $N t.py": set(),
    "torchrun --nnodes 2 --rdzv-endpoint a:1 t.py": set(),
    "torchrun --nnodes 2 --master_addr a t.py": set(),
    "torchrun --nnodes 2 $ARGS t.py": set(),
    "export PET_MASTER_ADDR=a\ntorchrun --nnodes 2 t.py": set(),
    "torchrun --nnodes 2 ${ARGS[@]} t.py": set(),
    "torchrun t.py --nnodes 2": set(),
    pod(4, {"command": ["torchrun", "--nnodes=2", "t.py"]}): set(),
    "deepspeed --num_gpus 8 --include localhost:0,1 t.py": {"deepspeed-filters-twice"},
    "deepspeed --exclude=a:0 --num_nodes=2 t.py": {"deepspeed-filters-twice"},
    "deepspeed --include localhost:0,1 t.py --num_gpus 2": set(),
    "deepspeed --num_gpus 8 t.py": set(),
    "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n": {"accelerate-file-meets-nobody"},
    "distributed_type: MULTI_GPU\nnum_machines: 2\nmain_process_ip: 10.0.0.1\nnum_processes: 8\n": set(),
    "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 8\n": set(),
    "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_multinode_launcher: pdsh\nnum_machines: 2\nnum_processes: 8\n": set(),
    "accelerate launch --num_machines 2 --num_processes 8 t.py": {"accelerate-meets-nobody"},
    "accelerate launch --num_machines 2 --main_process_ip $A t.py": set(),
    "accelerate launch --config_file c.yaml --num_machines 2 t.py": set(),
    pod(4, {"command": ["torchrun", "--nproc-per-node=4", "t.py"]}): {"pod-default-shm"},
    pod(4, {"command": ["torchrun", "--nproc-per-node=1", "t.py"]}): set(),
    pod(4, {"command": ["torchrun", "--nproc-per-node=4", "t.py"]}, hostIPC=True): set(),
    pod(4, {"command": ["python", "t.py"]}): set(),
    pod(4, {"command": ["torchrun", "--nproc-per-node=4", "t.py"], "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}): set(),
    "docker run --gpus all x torchrun --nproc-per-node=4 t.py": {"docker-default-shm"},
    "docker run --shm-size 8g x torchrun --nproc-per-node=4 t.py": set(),
    "docker run --ipc=host x torchrun --nproc-per-node=4 t.py": set(),
    "docker run -v /dev/shm:/dev/shm x torchrun --nproc-per-node=4 t.py": set(),
    "docker run x python t.py": set(),
    compose("torchrun --nproc-per-node=2 t.py", {"count": 2}): {"compose-default-shm"},
    compose("torchrun --nproc-per-node=2 t.py", {"count": 2}, shm_size="1gb"): set(),
}


@pytest.mark.parametrize(("text", "wanted"), FAULTS.items(), ids=range(len(FAULTS)))
def test_what_a_launcher_refuses_is_said(text: str, wanted: set[str]) -> None:
    assert {*read(text).faults} == wanted


@pytest.mark.parametrize(
    ("text", "code", "first"),
    [
        (f"{ONE}#SBATCH --ntasks-per-node=8\nexport NCCL_DEBUG=WARN\nsrun python train.py\n", 3, "more-ranks-than-gpus"),
        (
            pod(4, {"command": ["torchrun", "--nproc-per-node=8", "t.py"], "env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}),
            3,
            "more-ranks-than-gpus",
        ),
        ("export NCLL_DEBUG=INFO\nexport NCCL_P2P_LEVEL=NVLINK\npython t.py\n", 3, "wrong-value"),
        (job("JobSet", 4, 4), 4, "nothing-read"),
        ("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n", 4, "accelerate-file-meets-nobody"),
    ],
)
def test_env_leads_with_it(text: str, code: int, first: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = read_cli("env", tmp_path / "job.yaml", "--json", env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["id"]) == (code, first)
