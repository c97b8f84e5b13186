"""What NCCL, torch, CUDA, NVML, the kernel, the launchers and the frameworks print, family by family, each beside one that only looks
like it."""
from __future__ import annotations

import pytest
from nccl_runbook.core.findings import verdict_of
from nccl_runbook.messages import read as reader
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage.hypotheses import judge_hypothesis as triage_hypothesis

RAISED = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
DONE = "node0:7:7 [0] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer 192.0.2.1<4> with {}\n"
# causes that have to be among three, best first where it says so with ">"; what was printed; what was told; a near miss
FAMILIES: list[tuple[str, str, str, str]] = [
    (
        "framework-version-incompatible nccl-library-conflict",
        "node0:7:7 [0] NCCL WARN Cuda failure 500 'named symbol not found'\n",
        "",
        "symbol table read\n",
    ),
    ("framework-version-incompatible", "AssertionError: Torch not compiled with CUDA enabled\n", "", "torch compiled with CUDA 12.8\n"),
    ("framework-version-incompatible", "RuntimeError: Error building extension 'fused_adam'\n", "", "building extension fused_adam\n"),
    (
        "framework-version-incompatible",
        RAISED + "AssertionError: gradient sync is incompatible with stage 2\n",
        "",
        RAISED + "RuntimeError: CUDA error: peer access is not supported between these two devices\n",
    ),
    (
        "framework-version-incompatible nccl-bug",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing\n",
        "",
        "CUDA error: operation not permitted\n",
    ),
    (
        "driver-library-mismatch",
        "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.\n",
        "",
        "RM version 580.1\n",
    ),
    (
        "container-gpu-access driver-library-mismatch",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "",
        "NVIDIA-SMI 580.1\n",
    ),
    ("nvml-call-failed", "pynvml.NVMLError_Unknown: Unknown Error\n", "", "unknown option\n"),
    (
        "vgpu-or-mig-unsupported",
        "ValueError: invalid literal for int() with base 10: 'MIG-3f1c2b5e-1111'\n",
        "",
        "ValueError: invalid literal for int() with base 10: 'GPU-3f1c2b5e'\n",
    ),
    ("visible-devices-wrong", "AssertionError: Invalid device id\n", "", "device id 0\n"),
    (
        "gpu-or-link-fault network-path-blocked",
        "mlx5_core 0000:5e:00.0: mlx5_health_work:360:(pid 7): device's health compromised\n",
        "",
        "mlx5_core 0000:5e:00.0: firmware version: 28.39\n",
    ),
    ("data-stall rank-busy-on-host", "kernel: INFO: task python3:4117 blocked for more than 122 seconds.\n", "", "task python3 started\n"),
    (
        "collective-mismatch nccl-bug",
        DONE.format("status=IBV_WC_LOC_LEN_ERR(1) opcode=IBV_WC_RECV(128)"),
        "",
        DONE.format("error 12, opcode 1, len 0, vendor err 129"),
    ),
    ("nccl-bug", "node0:7:7 [0] proxy.cc:9 NCCL WARN Could not find pool of op 4\n", "", "node0:7:7 [0] NCCL INFO proxy pool of 4\n"),
    (
        "topology-file-bad nccl-bug",
        "node0:7:7 [0] NCCL INFO Could not find a path for pattern 4, falling back to simple order\n",
        "",
        "node0:7:7 [0] NCCL INFO Pattern 4, crossNic 0\n",
    ),
    (
        "more-ranks-than-gpus>",
        "n0: Test CUDA failure common.cu:941 'invalid device ordinal'\n",
        "mpirun -np 16 on two hosts, build/all_gather_perf -b 8 -e 128M -g 4",
        "n0: Test CUDA failure common.cu:941 'invalid argument'\n",
    ),
    (
        "rendezvous-misconfigured>",
        "[W socket.cpp:558] [c10d] The client socket has failed to connect to 0.0.0.7:40323 (errno: 110 - Connection timed out).\n",
        "",
        "[I socket.cpp:884] [c10d - trace] The client socket has connected to 10.0.0.7:40323.\n",
    ),
    (
        "rendezvous-misconfigured>",
        (
            "DistNetworkError: The server socket has failed to listen on any local network address. port: 80, useIpv6: false, code: -13,"
            " name: EACCES, message: permission denied\n"
        ),
        "",
        "open('/data'): Permission denied\n",
    ),
    (
        "rendezvous-misconfigured rendezvous-name-resolution",
        (
            "[W socket.cpp:436] [c10d] The server socket has failed to bind to 192.0.2.7:29500 (errno: 99 - Cannot assign requested"
            " address).\n"
        ),
        "",
        (
            "[W socket.cpp:436] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by"
            " protocol).\n"
        ),
    ),
    (
        "rendezvous-misconfigured network-path-blocked",
        "node2: ssh: connect to host node2 port 22: Connection refused\n",
        "",
        "node2: sshd is up\n",
    ),
    (
        "rendezvous-misconfigured more-ranks-than-gpus",
        "There are not enough slots available in the system to satisfy the 8 slots\n",
        "",
        "8 slots\n",
    ),
    (
        "rendezvous-misconfigured network-path-blocked",
        "ray.exceptions.RpcError: Timed out while waiting for GCS to become available.\n",
        "",
        "GCS is available\n",
    ),
    (
        "socket-interface-wrong rendezvous-misconfigured",
        "RuntimeError: Every node should have a unique IP address. Got 2 nodes and 1 unique IP addresses\n",
        "",
        "2 nodes with unique IP addresses\n",
    ),
    (
        "socket-interface-wrong network-path-blocked",
        "A process or daemon was unable to complete a TCP connection\n",
        "",
        "TCP connection complete\n",
    ),
    (
        "net-plugin-failed ulimit-too-low",
        "WARNING: There was an error initializing an OpenFabrics device.\n",
        "",
        "OpenFabrics device mlx5_0\n",
    ),
    (
        "shm-too-small",
        "[launch.py:321:sigkill_handler] ['python3', 'train.py'] exits with return code = -7\n",
        "",
        "[launch.py:321:sigkill_handler] ['python3', 'train.py'] exits with return code = 7\n",
    ),
    (
        "trainer-and-engine-share-gpu>",
        "ValueError: Attempting to use the same CUDA device for multiple distinct roles/ranks within the same communicator.\n",
        "",
        "CUDA device 0 has one role\n",
    ),
    (
        "uneven-minibatches>",
        (
            "RuntimeError: Horovod has been shut down. This was caused by an exception or an attempt to allreduce a tensor after one of the"
            " ranks finished execution.\n"
        ),
        "the samples cannot be divided by the number of ranks",
        "Horovod has been shut down after one of the ranks finished execution\n",
    ),
    (
        "zero3-conditional-module rank-dependent-branch",
        "RuntimeError: disagreement between rank0 and rank3: rank0: [1, 2], rank3: [1, 3]\n",
        "",
        "rank0 and rank3 agree\n",
    ),
    (
        "zero3-conditional-module",
        "Invalidate trace cache @ step 7: expected module 4, but got module 5\n",
        "it hangs",
        "Invalidate trace cache @ step 7: expected module 4, but got module 5\n",
    ),
    (
        "rank-dependent-branch collective-mismatch",
        (
            "RuntimeError: Forward order differs across ranks: rank 0 is all-gathering 3 parameters while rank 1 is all-gathering 2"
            " parameters\n"
        ),
        "",
        "rank 0 gathers 3 parameters\n",
    ),
    (
        "collective-mismatch>",
        "RuntimeError: Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n",
        "",
        "received 4 bytes\n",
    ),
    (
        "cuda-initialised-before-fork",
        (
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start"
            " method\n"
        ),
        "",
        "4 forked subprocesses\n",
    ),
    ("nodes-differ framework-version-incompatible", "RuntimeError: Version mismatch\n", "", "RuntimeError: shape mismatch\n"),
    (
        "communicator-recreated rendezvous-port-in-use",
        "node0:7:7 [0] include/socket.h:333 NCCL WARN Call to bind failed : Address already in use\n",
        "",
        "OSError: [Errno 98] Address already in use\n",
    ),
    ("peer-crashed", "slurm: srun: error: node3: task 5: Exited with exit code 1\n", "", "task 5: Exited with exit code 0\n"),
    (
        "peer-crashed",
        "text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0\n",
        "",
        "Shard ready in 8 s rank=0\n",
    ),
    (
        "collective-on-some-ranks-only start-skew",
        "F xla/service/rendezvous.cc:111] Expected 8 threads to join the rendezvous, but only 7 of them arrived on time.\n",
        "",
        "8 threads joined the rendezvous\n",
    ),
    (
        "rendezvous-misconfigured network-path-blocked",
        "XlaRuntimeError: DEADLINE_EXCEEDED: Deadline Exceeded RPC: /tensorflow.CoordinationService/RegisterTask\n",
        "",
        "CoordinationService started\n",
    ),
    (
        "device-not-set-per-rank more-ranks-than-gpus",
        "XGBoostError: Multiple processes within communication group running on same CUDA device is not supported.\n",
        "",
        "2 processes on 2 CUDA devices\n",
    ),
    (
        "foreign-connection rendezvous-port-in-use",
        "RuntimeError: Ping failed, invalid value returned from server. Expected: 3, Got: 71\n",
        "",
        "RuntimeError: Ping failed\n",
    ),
    (
        "rendezvous-port-in-use>",
        "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it.\n",
        "",
        "launched on port 29500\n",
    ),
    (
        "visible-devices-wrong visible-devices-set-too-late",
        "RuntimeError: No supported device detected.\n",
        "in a Ray actor",
        "RuntimeError: No supported device type.\n",
    ),
    (
        "device-not-set-per-rank",
        "dist.init_process_group('nccl')\nx = torch.ones(8).cuda()\ndist.all_reduce(x)\n",
        "it hangs",
        "torch.cuda.set_device(local_rank)\nx = torch.ones(8).cuda()\n",
    ),
    ("uneven-minibatches", "Epoch 3:  96%|#########6| 4260/4435\n", "it hangs with two GPUs", "Epoch 3:  42%|####      | 1860/4435\n"),
    (
        "net-plugin-failed framework-version-incompatible",
        "node0:7:7 [0] NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -22, Error: Invalid argument\n",
        "",
        "node0:7:7 [0] NCCL INFO NET/OFI memory registered\n",
    ),
    (
        "roce-gid-wrong nccl-bug",
        "node0:7:7 [0] NCCL WARN NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument\n",
        "",
        "node0:7:7 [0] NCCL INFO NET/IB : RoCE version 2\n",
    ),
    ("benign>", "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n", "", "OVERFLOW at rank 0\n"),
    ("benign>", "WARN: init failed for remote transport: ibrc\n", "", "remote transport: ibrc\n"),
    (
        "p2p-broken-acs-iommu>",
        "[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 0] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 0.\n",
        "an engine with --tensor-parallel-size 2 on one machine",
        (
            "[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 0] Timeout at NCCL work: 40, last enqueued NCCL work: 40, last completed NCCL work:"
            " 39.\n"
        ),
    ),
    (
        "network-path-blocked socket-interface-wrong",
        "[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 0] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 0.\n",
        "two hosts of eight GPUs",
        "[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 0] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 0.\n",
    ),
    (
        "network-path-blocked net-plugin-failed",
        "node0:7:7 [0] ofi_process_cq:99 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113. Error: host unreachable\n",
        "",
        "node0:7:7 [0] NCCL WARN NET/OFI Request 0x7f completed with error. RC: 5. Error: 4099\n",
    ),
    (
        "vgpu-or-mig-unsupported>",
        "[HAMI-core ERROR (pid:7 thread=9 multiprocess_memory_limit.c:8)]: Illegal device id: 7\n",
        "",
        "GPU 0: NVIDIA A100\n",
    ),
    (
        "vgpu-or-mig-unsupported",
        "RuntimeError: CUDA driver error: invalid argument\n",
        "a pod of a cluster with GPU time-slicing",
        "RuntimeError: CUDA driver error: invalid argument\n",
    ),
    (
        "engine-allreduce-needs-p2p>",
        "Error: P2P access is not supported on this platform.\n",
        "a serving engine with two GPUs",
        "node0:7:7 [0] NCCL INFO P2P access is enabled\n",
    ),
    (
        "engine-allreduce-needs-p2p env-conflict",
        "Failed: Cuda error csrc/custom_all_reduce.cuh:455 'invalid argument'\n",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "custom_all_reduce.cuh is compiled\n",
    ),
    (
        "socket-interface-wrong",
        "[E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (172.17.0.3, 44737).\n",
        "two nodes",
        "[E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (master-0, 44737).\n",
    ),
    (
        "framework-version-incompatible",
        "RuntimeError: Tensors must be CUDA and dense\n",
        "DeepSpeed with offload through Lightning",
        "tensors are CUDA and dense\n",
    ),
    (
        "benign>",
        "W0821 server.cc:208] failed to enable peer access for some device pairs\n",
        "what does this warning mean",
        "peer access is enabled\n",
    ),
    (
        "benign>",
        "tensorflow/core/framework/local_rendezvous.cc:405] Local rendezvous recv item cancelled.\n",
        "no hang follows",
        "Local rendezvous\n",
    ),
    (
        "benign>",
        (
            "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to"
            " avoid deadlocks...\n"
        ),
        "",
        "tokenizers: parallelism is used\n",
    ),
    ("net-plugin-failed", "node0:7:7 [0] NCCL WARN NET/FasTrak : init failed\n", "", "node0:7:7 [0] NCCL INFO NET/FasTrak : ready\n"),
    ("peer-crashed", "Process finished with exit code 137\n", "", "Process finished with exit code 0\n"),
    (
        "nccl-bug",
        "python3: transport/net_ib.cc:123: int post(): Assertion `r == 0' failed.\n",
        "",
        "python3: model.cc:123: Assertion `r == 0' failed.\n",
    ),
    (
        "rendezvous-misconfigured",
        "Not using the DeepSpeed or dist launchers, attempting to detect MPI environment...\n",
        "",
        "MPI environment found\n",
    ),
    (
        "trainer-and-engine-share-gpu gpu-memory-exhausted",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "GRPO with the engine colocated",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    ),
    (
        "benign>",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing\n",
        "the kernel log is full of it, training works",
        "nvidia-peermem loaded\n",
    ),
    (
        "peer-crashed",
        "[W] torch/distributed/elastic/agent/server/api.py: Received Signals.SIGTERM death signal, shutting down workers\n",
        "",
        "shutting down\n",
    ),
    (
        "nccl-library-conflict>",
        (
            "ImportError: /env/lib/python3/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclMemAlloc\nerror after pip"
            " install -v .\n"
        ),
        "",
        "ImportError: libtorch_cuda.so: undefined symbol: _ZN3c10\n",
    ),
    ("container-gpu-access>", "error creating plugin manager: nvml init failed: ERROR_LIBRARY_NOT_FOUND\n", "", "nvml init done\n"),
    ("container-gpu-access>", "docker: Error response from daemon: unknown or invalid runtime name: nvidia.\n", "", "runtime: nvidia\n"),
    (
        "engine-allreduce-needs-p2p>",
        (
            "IpcMemory.open_ipc_memory -> cudaIpcOpenMemHandle\nRuntimeError: CUDA Runtime API error: <cudaError_t.cudaErrorInvalidDevice:"
            " 101>\n"
        ),
        "",
        "IpcMemory opened\n",
    ),
    (
        "nccl-bug nvls-fabric-fault",
        "node0:7:7 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'\n",
        "",
        "node0:7:7 [0] transport/nvls.cc:254 NCCL INFO nvls\n",
    ),
    (
        "more-ranks-than-gpus",
        "RuntimeError: cuda runtime error (101) : invalid device ordinal\n",
        "one 2080Ti, CUDA_VISIBLE_DEVICES=0",
        "cuda runtime 101\n",
    ),
    (
        "rendezvous-misconfigured>",
        "[INFO] [runner.py:417:main] Using IP address of  for node n0\n",
        "",
        "[INFO] [runner.py:417:main] Using IP address of 192.0.2.1 for node n0\n",
    ),
    (
        "rendezvous-misconfigured socket-interface-wrong",
        "Error: No available node types can fulfill resource request {'GPU': 1.0, 'node:192.0.2.9': 0.001}.\n",
        "",
        "Ray: 'node:192.0.2.9' is alive\n",
    ),
    ("env-conflict>", "AssertionError: Expandable segments are not compatible with memory pool.\n", "", "expandable_segments:True\n"),
    (
        "net-socket-fallback net-plugin-failed",
        (
            "NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found"
            " (libnccl-net.so), using internal implementation\n"
        ),
        "p4d.24xlarge with EFA",
        "NCCL INFO NET/Plugin : Loaded libnccl-net.so\n",
    ),
    (
        "benign>",
        "WARNING custom_all_reduce.py:33] Custom allreduce is disabled due to an unsupported world size: 1.\n",
        "the server serves",
        "custom_all_reduce.py is read\n",
    ),
]


def judged(tmp_path, text: str, context: str = "") -> list[triage_hypothesis.Hypothesis]:
    (tmp_path / "job.log").write_text(text)
    return triage.judge(reader.collect([str(tmp_path / "job.log")], context))


@pytest.mark.parametrize("causes, text, context, miss", FAMILIES, ids=[f"{n}-{row[0].split()[0]}" for n, row in enumerate(FAMILIES)])
def test_a_family_of_messages_names_its_causes_and_what_looks_like_it_does_not(tmp_path, causes, text, context, miss):
    first, *others = causes.replace(">", "").split()
    named = [h.cause for h in judged(tmp_path, text, context)]
    assert {first, *others} <= set(named[:3]) and (named[0] == first or ">" not in causes)
    assert first not in [h.cause for h in judged(tmp_path, miss)]


def test_a_failed_check_is_not_harmless_whatever_stands_beside_it(tmp_path):
    warning = "libibverbs: Warning: couldn't load driver 'libvmw_pvrdma-rdmav34.so'\n"
    assert judged(tmp_path, warning)[0].cause == "benign"
    assert "benign" not in [h.cause for h in judged(tmp_path, warning + "F20260101 util.h:9] Check failed: opened\n")]


def test_a_progress_bar_of_a_long_log_does_not_make_its_words_speak(tmp_path):
    """The bar's clue once asked the whole log for words of a hang, which are else asked of short ones only."""
    words = (f"torch: error {chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)} in a docstring\n" for n in range(3200))
    text = "Epoch 0:  95%|### | 95/100 [00:39<00:02, 2.65it/s]\n" + "".join(words) + "a timeout of each store\nstep 100 loss 2.5\n"
    assert judged(tmp_path, text) == []


@pytest.mark.parametrize("text", [
    "[HAMI-core Warn(15:1405:utils.c:183)]: get default cuda from (null)\n[HAMI-core Msg(15:1405:libvgpu.c:855)]: Initialized\n",
    "[HAMI-core ERROR (pid:7 thread=9 allocator.c:53)]: Device 0 OOM 3171158016 / 3145728000\n",
    "vLLM engine: this topology needs no peer-to-peer access\n",
])
def test_what_a_healthy_job_prints_is_no_fault(tmp_path, text):
    """HAMi's FAQ (2025) calls its Warn lines normal; its OOM is a limit on memory."""
    assert not {h.cause for h in judged(tmp_path, text)} & {"vgpu-or-mig-unsupported", "engine-allreduce-needs-p2p"}


@pytest.mark.parametrize("text", [
    "ssh: Could not resolve hostname worker-1: Name or service not known\n",
    "node0:7:7 [0] include/socket.h:333 NCCL WARN Call to bind failed : Address already in use\n",
    DONE.format("error 10, opcode 1, len 0, vendor err 136"),
    RAISED + "NotImplementedError: offload is not supported with this strategy\n",
    "Failed: Cuda error csrc/custom_all_reduce.cuh:455 'invalid argument'\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n",
    "RuntimeError: Address already in use\nthe port is free\n",
    "name: EADDRINUSE\nany other port as well\n",
    "WARNING: infoROM is corrupted at gpu 0000:1E:00.0\n",
    "WARNING: your OpenFabrics subsystem is configured to only allow registering part of your physical memory.\n",
    "a serving engine: speed requires P2P access\n",
])
def test_a_line_that_leaves_several_causes_open_is_never_sure(tmp_path, text):
    assert {h.status for h in judged(tmp_path, text)} == {"possible"}


@pytest.mark.parametrize(
    ("cause", "text", "verdict"),
    [
        ("peer-crashed", "[rank1]: torch.AcceleratorError: CUDA error: device-side assert triggered", "broken"),
        (
            "p2p-broken-acs-iommu",
            "n1:10:10 [0] misc/p2p.cc:11 NCCL WARN Cuda failure 'peer access is not supported between these two devices'",
            "broken",
        ),
        (
            "peer-crashed",
            (
                "gn08:7:8 [3] transport/net_ib.cc:1231 NCCL WARN NET/IB: Got completion from peer 10.4.0.7<40513> with status=5 opcode=48"
                " len=32600 vendor err 249 (Recv) hca mlx5_1\n[rank1]: torch.distributed.DistBackendError: NCCL error in: P.cpp:1970,"
                " remote process exited"
            ),
            "broken",
        ),
        (
            "peer-crashed",
            (
                "gn08:7:8 [3] transport/net_ib.cc:910 NCCL WARN NET/IB : Got completion from peer 10.4.0.7<40513> with error 5, opcode 0,"
                " len 0"
            ),
            "broken",
        ),
        (
            "peer-crashed",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:41234",
            "unknown",
        ),
        (
            "peer-crashed",
            (
                "[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via"
                " c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer"
            ),
            "unknown",
        ),
        ("peer-crashed", "ncclInternalError: Internal check failed. Last error: Socket recv failed while polling for opId=0x7f", "broken"),
        (
            "no-route-between-hosts",
            "h2:9:10 [0] NCCL INFO socketPollConnect: connect to 10.1.0.4<51233> returned No route to host, retrying (34/34)",
            "unknown",
        ),
        (
            "no-route-between-hosts",
            (
                "h2:9:10 [0] misc/socket.cc:551 NCCL WARN socketPollConnect: connect to 10.1.0.4<51233> returned No route to host, "
                "exceeded error retry count after 35 attempts"
            ),
            "broken",
        ),
        (
            "no-route-between-hosts",
            "h2:9:10 [0] NCCL INFO socketPollConnect: connect to 10.1.0.4<51233> returned No route to host, retrying (3/34)",
            "unknown",
        ),
        (
            "peer-crashed",
            "[rank1]:[W TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=40, addr=[n1]:36144, remote=[n0]:29500): Broken pipe",
            "unknown",
        ),
    ],
)
def test_a_line_that_is_the_fault_itself_is_broken_before_its_cause_is_known(tmp_path, cause, text, verdict):
    (tmp_path / "job.log").write_text(text + "\n")
    told = triage.answer(reader.collect([str(tmp_path / "job.log")]))
    assert (told.hypotheses[0].cause, told.hypotheses[0].status, verdict_of(told.findings)) == (cause, "possible", verdict)
    assert told.hypotheses[0].evidence[0].line == 1, "not the line that only follows"


@pytest.mark.parametrize("inner", ["RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                   "RuntimeError: CUDA error: device-side assert triggered", "torch.OutOfMemoryError: CUDA out of memory."])
def test_the_wrapper_of_an_engine_does_not_lead_over_the_error_inside(tmp_path, inner):
    wrapper = (
        "(EngineCore_0 pid=4401) Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace"
        " for root cause."
    )
    (tmp_path / "job.log").write_text(f"(VllmWorker rank=1 pid=4456) ERROR 11-20 10:02:19 [multiproc_executor.py:487] {inner}\n{wrapper}\n")
    told = triage.answer(reader.collect([str(tmp_path / "job.log")]))
    assert "WorkerProc" not in told.findings[0].title and all(h.evidence[0].line == 1 for h in told.hypotheses)
    (tmp_path / "job.log").write_text(wrapper + "\n")
    alone = triage.answer(reader.collect([str(tmp_path / "job.log")]))
    assert [h.cause for h in alone.hypotheses] == ["peer-crashed"] and verdict_of(alone.findings) == "broken"


TRUNCATED = "n1:10:55 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 1024 bytes instead of 256\n"
TORCH = "torch.distributed.DistBackendError: NCCL error in: P.cpp:1275, internal error, NCCL version 2.21.5\n"


@pytest.mark.parametrize(("heads", "more", "status"), [
    (("n1:10:10 [0] NCCL INFO ", "n2:11:11 [0] NCCL INFO "), TRUNCATED + TORCH, "likely"),
    (("[rank0]: ", "[rank1]: "), TRUNCATED, "likely"),
    (("n1:10:10 [0] NCCL INFO ", "n1:10:10 [0] NCCL INFO "), TRUNCATED, "possible"),  # two runs
    (("", ""), TRUNCATED, "possible"),
    (("n1:10:10 [0] NCCL INFO ", "n2:11:11 [0] NCCL INFO "), TORCH, "possible"),  # a trainer and a server, each in a group of its own
])
def test_versions_that_differ_name_both_sides_and_are_likely_where_a_message_has_another_size(tmp_path, heads, more, status):
    (tmp_path / "job.log").write_text(f"{heads[0]}NCCL version 2.21.5+cuda12.4\n{heads[1]}NCCL version 2.18.1+cuda12.1\n" + more)
    (found,) = [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")])) if h.cause == "nccl-version-mismatch"]
    assert found.status == status and "2.21.5" in found.says and "2.18.1" in found.says
