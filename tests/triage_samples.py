"""One log of our own for every cause that fires, and one beside it that only looks like it.

Written from the messages of the libraries: what NCCL, PyTorch, the kernel and the launchers print. (cause, log, reporter's words, near
miss)
"""
from __future__ import annotations

WATCHDOG = ("[rank{r}]:[E1120 12:03:15.806190993 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum={s}, OpType={o}, NumelIn={n}, NumelOut={n}, Timeout(ms)={t}) ran for {t}9 milliseconds before timing out.\n")
STATUS = (
    "[rank{r}]:[E1120 12:03:16.1 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by watchdog at work "
    "sequence id: {e} PG status: last enqueued work: {e}, last completed work: {c}\n"
)
INIT = (
    "node{h}:{p}:{p} [{d}] NCCL INFO ncclCommInitRankConfig comm 0x{p} rank {r} nranks {n} cudaDev {d} nvmlDev {v} busId {b} commId 0xab{n}"
    " - Init START\n"
)
DUPLICATE = "[2026-01-02 03:04:05] node0:7:7 [0] init.cc:904 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60\n"


def hung(rank: int = 0, seq: int = 7, op: str = "ALLREDUCE", numel: int = 64, limit: int = 600000) -> str:
    return WATCHDOG.format(r=rank, s=seq, o=op, n=numel, t=limit)


def init(rank: int, device: int, nvml: int, bus: str, host: int = 0, nranks: int = 2) -> str:
    return INIT.format(h=host, p=7 + rank, d=device, v=nvml, b=bus, r=rank, n=nranks)


SAMPLES: list[tuple[str, str, str, str]] = [
    ("more-ranks-than-gpus", "RuntimeError: CUDA error: invalid device ordinal\n", "", "device ordinal 3 chosen\n"),
    ("device-not-set-per-rank", init(0, 0, 0, "60") + init(1, 0, 0, "60") + DUPLICATE, "", init(0, 0, 0, "60") + init(1, 1, 1, "70")),
    ("scheduler-shares-gpu", "(Worker pid=8) " + DUPLICATE, "two Ray actors", "(Worker pid=8) node0:7:7 [0] NCCL INFO Init COMPLETE\n"),
    (
        "trainer-and-engine-share-gpu",
        DUPLICATE + '  File "trainer.py", line 9, in init_weights_update_group\n',
        "",
        "init_weights_update_group done\n",
    ),
    ("visible-devices-wrong", "ray: CUDA_VISIBLE_DEVICES=0,0\n", "", "CUDA_VISIBLE_DEVICES=0,1\n"),
    (
        "cuda-initialised-before-fork",
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start"
            " method\n"
        ),
        "",
        "4 forked subprocesses\n",
    ),
    (
        "visible-devices-set-too-late",
        DUPLICATE,
        'each worker sets os.environ["CUDA_VISIBLE_DEVICES"] itself',
        "os.environ CUDA_VISIBLE_DEVICES printed\n",
    ),
    ("gpu-exclusive-mode", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n", "", "service unavailable\n"),
    (
        "device-binding",
        "[W ProcessGroupNCCL.cpp:5188] Guessing device ID based on global rank.\n" + hung(seq=1),
        "",
        "[W ProcessGroupNCCL.cpp:5188] Guessing device ID based on global rank.\nstep 1 loss 2.0\nstep 2 loss 1.0\n",
    ),
    ("bus-id-collision", init(0, 0, 0, "60") + init(1, 1, 1, "60") + DUPLICATE, "", init(0, 0, 0, "60") + init(1, 1, 1, "60", host=1)),
    ("container-gpu-access", "Failed to initialize NVML: Unknown Error\n", "", "NVML initialized\n"),
    ("driver-library-mismatch", "Failed to initialize NVML: Driver/library version mismatch\n", "", "Driver version 580.1\n"),
    (
        "driver-too-old",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n",
        "",
        "NVIDIA driver 580 found\n",
    ),
    (
        "nvml-call-failed",
        "node0:7:7 [0] misc/nvmlwrap.cc:144 NCCL WARN nvmlDeviceGetHandleByIndex(0) failed: Unknown Error\n",
        "",
        "nvmlDeviceGetHandleByIndex(0) ok\n",
    ),
    (
        "gpu-or-link-fault",
        "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n",
        "",
        "kernel: NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault\n",
    ),
    ("gpu-memory-exhausted", "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB.\n" + hung(0), "", hung(0)),
    (
        "vgpu-or-mig-unsupported",
        "node0:7:7 [0] init.cc:416 NCCL WARN Cuda failure 'operation not supported'\nGPU 0: GRID A100D-40C vGPU\n",
        "",
        "GPU 0: NVIDIA A100\n",
    ),
    ("fabric-manager-down", "RuntimeError: CUDA error: system not yet initialized\n", "", "system initialized\n"),
    (
        "nvls-fabric-fault",
        (
            "node0:7:7 [0] transport/nvls.cc:243 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error"
            " 401\n"
        ),
        "",
        "node0:7:7 [0] NCCL INFO NVLS comm 0x1 headRank 0 nHeads 4\n",
    ),
    (
        "nccl-library-conflict",
        "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister\n",
        "",
        "ERROR: ld.so: object '/x/libnccl.so.2' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.\n",
    ),
    (
        "nccl-version-mismatch",
        "node0:7:7 [0] bootstrap.cc:71 NCCL WARN Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 22703\n",
        "",
        "NCCL version 2.28.9+cuda13.0\n",
    ),
    ("nccl-bug", "node0:7:7 [0] enqueue.cc:9 NCCL WARN P2p schedule creation has bugs.\n", "", "P2P schedule created\n"),
    (
        "cumem-mismatch",
        "node0:7:7 [0] transport/p2p.cc:298 NCCL WARN Cuda failure 1 'invalid argument'\n",
        "the trainer sends weights to the vllm engine",
        "invalid argument --foo\n",
    ),
    ("topology-file-bad", "node0:7:7 [0] graph/xml.h:77 NCCL WARN Attribute numaid of node cpu not found\n", "", "Attribute x not found\n"),
    (
        "net-plugin-failed",
        "node0:7:7 [0] nccl_net_ofi_create_plugin:259 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n",
        "",
        "node0:7:7 [0] NCCL INFO Failed to initialize NET plugin IB\n",
    ),
    (
        "engine-allreduce-needs-p2p",
        "Failed: Cuda error custom_all_reduce.cuh:368 'invalid argument'\n",
        "",
        "INFO custom_all_reduce.py: 2 GPUs\n",
    ),
    (
        "p2p-broken-acs-iommu",
        "kernel: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:41:00.0 domain=0x1]\n",
        "",
        "kernel: AMD-Vi: Interrupt remapping enabled\n",
    ),
    (
        "shm-too-small",
        (
            "node0:7:7 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-ab to 9637892 bytes, error: No space left on"
            " device (28)\n"
        ),
        "",
        "OSError: [Errno 28] No space left on device: '/data/checkpoint'\n",
    ),
    (
        "socket-interface-wrong",
        "node0:7:7 [0] bootstrap.cc:114 NCCL WARN Bootstrap : no socket interface found\n",
        "",
        "node0:7:7 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>\n",
    ),
    (
        "network-path-blocked",
        "node0:7:7 [0] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1\n",
        "",
        "mlx5_1: port active\n",
    ),
    (
        "net-socket-fallback",
        (
            "node0:7:7 [0] transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_0\nnode0:7:7 [0] NCCL INFO Using network"
            " Socket\n"
        ),
        "",
        "node0:7:7 [0] NCCL INFO Using network Socket\n",
    ),
    (
        "roce-gid-wrong",
        "node0:7:7 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable\n",
        "",
        "Network is reachable\n",
    ),
    (
        "gdr-disabled",
        "node0:7:7 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n",
        "half the expected bandwidth",
        "node0:7:7 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'\n",
    ),
    (
        "gdr-broken-acs",
        "node0:7:7 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer with status=4 opcode=0 len=0 vendor err 81\n",
        "",
        "vendor err 810\n",
    ),
    (
        "nodes-differ",
        "[rank0]: node0:7:7 [0] NCCL INFO Using network IB\n[rank1]: node1:8:8 [0] NCCL INFO Using network Socket\n",
        "",
        "[rank0]: node0:7:7 [0] NCCL INFO Using network IB\n[rank1]: node1:8:8 [0] NCCL INFO Using network IB\n",
    ),
    ("pcie-topology-limit", "GPU0\t X \tPIX\tSYS\tSYS\n", "bandwidth is half of what we expect", "GPU0: NVIDIA H200\n"),
    (
        "ulimit-too-low",
        "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n",
        "",
        "Cannot allocate memory\n",
    ),
    (
        "foreign-connection",
        "node0:7:7 [0] misc/socket.cc:520 NCCL WARN socketFinalizeAccept: wrong magic 2f50545448 != 5bd1e8\n",
        "",
        "magic link sent\n",
    ),
    (
        "rendezvous-port-in-use",
        "torch.distributed.DistNetworkError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n",
        "",
        "port 29500\n",
    ),
    (
        "rendezvous-name-resolution",
        (
            "[W socket.cpp:601] [c10d] The IPv6 network addresses of (node-a, 29500) cannot be retrieved (gai error: -2 - Name or service"
            " not known).\n"
        ),
        "",
        "name node-a resolved\n",
    ),
    (
        "rendezvous-misconfigured",
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined.\n",
        "",
        "4 clients\n",
    ),
    ("peer-stopped", "rank 3: /proc/77/status State:\tT (stopped)\n" + hung(0), "", "State:\tS (sleeping)\n"),
    ("peer-crashed", "[rank1]: ValueError: bad sample 17\n" + hung(0), "", "[rank1]: ok\n" + "step 4 loss 2.0\n"),
    (
        "collective-on-some-ranks-only",
        hung(0, 4) + STATUS.format(r=0, e=4, c=3) + STATUS.format(r=1, e=3, c=3),
        "",
        STATUS.format(r=0, e=4, c=4),
    ),
    ("rank-dependent-branch", hung(0, 7) + hung(1, 7, "BROADCAST"), "", "fingerprint of the model\n"),
    (
        "uneven-minibatches",
        "[rank0]: step 120 batch\n[rank1]: step 120 batch\n[rank2]: step 90 batch\n" + hung(2, 90),
        "",
        "[rank0]: step 120 batch\n[rank1]: step 120 batch\n[rank2]: step 120 batch\n" + hung(2, 90),
    ),
    (
        "zero3-conditional-module",
        hung(0, 40, "_ALLGATHER_BASE") + "deepspeed/runtime/zero/partitioned_param_coordinator.py\n",
        "Mixtral, zero stage 3",
        hung(0, 40, "ALLREDUCE") + "deepspeed zero stage 3\n",
    ),
    (
        "collective-mismatch",
        "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 3.\n",
        "",
        "collective calls: 3\n",
    ),
    (
        "send-recv-unmatched",
        "torch/distributed/distributed_c10d.py batch_isend_irecv\n" + hung(0, 4, "SEND"),
        "it hangs",
        "batch_isend_irecv done\n",
    ),
    (
        "communicator-order",
        "rank 0 sits in trainer.send_weights, FSDP all_gather on the others\n",
        "it hangs at the first sync",
        "send_weights took 2 s\n",
    ),
    (
        "rank-busy-on-host",
        "Running tokenizer on dataset:  40%|####  | 40/100\n" + hung(1, 2),
        "",
        "Running tokenizer on dataset: 100%|####  | 100/100\n",
    ),
    (
        "data-stall",
        "Thread 7 (idle): MainThread\n    _try_get_data (torch/utils/data/dataloader.py:1133)\n" + hung(0),
        "",
        "DataLoader ready\n",
    ),
    ("start-skew", hung(0, 1, numel=1), "loading a large checkpoint takes minutes", hung(0, 900)),
    ("idle-wait-in-collective", hung(0, 900, "BROADCAST"), "the server was idle over night", "idle\n"),
    (
        "timeout-on-other-group",
        hung(0, 12),
        "I set timeout=timedelta(hours=2) but it still fires after ten minutes",
        hung(0, 12, limit=7200000),
    ),
    (
        "engine-deadlock",
        "INFO shm_broadcast.py:466] No available shared memory broadcast block found in 60 second.\n",
        "",
        "INFO shm_broadcast.py:190] block ready\n",
    ),
    (
        "cuda-launch-blocking",
        "CUDA_LAUNCH_BLOCKING=1\n",
        "all ranks hang",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nit hangs\n",
    ),
    ("straggler", "Clocks Throttle Reasons: SW Power Cap : Active\n", "", "SW Power Cap : Not Active\n"),
    (
        "per-parameter-sync",
        "weight sync: 40 s\n",
        "the weight sync is slow: 318 separate broadcasts, one for each parameter",
        "weight sync took 0.05 s\n",
    ),
    (
        "sync-contends-with-inference",
        "update_weights: 3 s\n",
        "the weight update is slow while generation is running",
        "update_weights done\n",
    ),
    (
        "scheduler-refused",
        "srun: error: Unable to allocate resources: Invalid partition name specified\n",
        "",
        "srun: job 4711 queued and waiting for resources\n",
    ),
    ("torch-not-installed", "/srv/tools/python3: No module named torch\n", "", "/srv/tools/python3: No module named torchx\n"),
    (
        "program-not-started",
        "slurmstepd-n1: error: execve(): nosuchprogram: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2\n",
        "",
        "slurmstepd-n1: error: couldn't chdir to `/nonexistent': No such file or directory: going to /tmp instead\n",
    ),
    (
        "scheduler-time-limit",
        "step 4 loss 2.0\nslurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO TIME LIMIT ***\nreceived SIGTERM\n",
        "",
        "time limit: 4 h\n",
    ),
    (
        "scheduler-cancelled",
        "step 4 loss 2.0\nslurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 ***\nreceived SIGTERM\n",
        "",
        "job 7 queued\n",
    ),
    (
        "scheduler-preempted",
        "slurmstepd: error: *** STEP 7.0 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO PREEMPTION ***\n",
        "",
        "preemption is off\n",
    ),
    ("scheduler-evicted", "The node was low on resource: ephemeral-storage. Container trainer was using 90Gi\n", "", "resource: memory\n"),
    ("node-failed", "srun: error: Node failure on n37\n", "", "srun: n37 is ready\n"),
    (
        "stack-limit",
        (
            "+ ulimit -s unlimited\nn01:4:4 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n[n01:4 :0:4] Caught signal 11 (Segmentation fault:"
            " address not mapped to object at address 0x7f)\n"
        ),
        "",
        "+ ulimit -s unlimited\n",
    ),
    (
        "nccl-older-than-gpu",
        (
            "n01:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.8\n#  Rank  0 Group  0 Pid  11 on n01 device  0 [0x01] NVIDIA GB200\nfree():"
            " corrupted unsorted chunks\n"
        ),
        "",
        (
            "n01:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda12.8\n#  Rank  0 Group  0 Pid  11 on n01 device  0 [0x01] NVIDIA GB200\nfree():"
            " corrupted unsorted chunks\n"
        ),
    ),
    (
        "nccl-call-refused",
        "n1:11:21 [0] dev_runtime.cc:1120 NCCL WARN User requested GIN resources but did not request GIN to be enabled!\n",
        "",
        "n1:11:21 [0] NCCL INFO ginForceEnable set to true, defaulting ginConnectionType to NCCL_GIN_CONNECTION_FULL\n",
    ),
    (
        "nccl-feature-unavailable",
        "n1:11:21 [0] dev_runtime.cc:1126 NCCL WARN User requested GIN but not all ranks in the communicator support GIN\n",
        "",
        "n1:11:21 [0] NCCL INFO GIN/Plugin: Using GIN_IB_PROXY\n",
    ),
    ("gloo-carries-traffic", "weight update over backend gloo takes 14 s\n", "", "backend nccl takes 14 s\n"),
    (
        "communicator-recreated",
        "".join(
            f"[rank0]: node0:7:7 [0] NCCL INFO comm 0x{i} rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x{i}a - Init COMPLETE\n"
            for i in range(1, 13)
        ),
        "",
        init(0, 0, 0, "60"),
    ),
    (
        "framework-version-incompatible",
        "ImportError: cannot import name 'log' from 'torch.distributed.elastic.agent.server.api'\n",
        "",
        "import done\n",
    ),
    ("cpu-affinity", "taskset -c 0 python train.py\n", "small messages are slow", "taskset done\n"),
    ("env-conflict", "export NCCL_TIMEOUT=1800\n", "", "NCCL_DEBUG=INFO\n"),
    (
        "benign",
        "[W ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called before program exit, which can leak resources.\n",
        "",
        "ValueError: x\n" + hung(0),
    ),
]
