"""Further messages and words that point to a cause, each beside one that only looks like it. Written from the libraries' own messages."""
from __future__ import annotations

import pytest
from nccl_runbook.messages import read as reader
from nccl_runbook.messages.clues import says
from nccl_runbook.triage import judge as triage
from nccl_runbook.triage import judge_ranks as triage_ranks
from triage_samples import DUPLICATE, STATUS, hung

W = "node0:7:7 [0] file.cc:9 NCCL WARN "
BARRIER = "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:{} (world_size=8, worker_count=1, timeout=0:30:00)\n"
CALL = "node0:{p}:{p} [{d}] NCCL INFO {op}: opCount 0 sendbuff 0x7f recvbuff 0x7f count {n} datatype {t} op 0 root 0 comm 0x5{d} [nranks=2] stream 0x55\n"
FINGER = "[rank{r}]:[I0102 03:04:05.6 ProcessGroupWrapper.cpp:587] [Rank {r}] Running collective: CollectiveFingerPrint(SequenceNumber={s}, OpType=ALLREDUCE, TensorShape=[{n}, 1], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))\n"
MORE: list[tuple[str, str, str, str]] = [
    ("rendezvous-port-in-use", "bind on local address (10.0.0.9:29500) failed: Address already in use\n", "", "bind on local address (10.0.0.9:0) failed\n: Address already in use (98)\n"),
    ("peer-crashed", "kernel: Out of memory: Killed process 3320 (mysqld) total-vm:412kB\nkernel: Out of memory: Killed process 3321 (python3) total-vm:412kB\n", "", "kernel: Out of memory: Killed process 3321 (mysqld) total-vm:412kB\n"),
    ("shm-too-small", "could not resize shared memory segment \"/PostgreSQL.1804289383\" to 8388608 bytes: No space left on device\ncould not resize shared memory segment \"/nccl-x\" to 8388608 bytes: No space left on device\n", "", "could not resize shared memory segment \"/PostgreSQL.1804289383\" to 8388608 bytes: No space left on device\n"),
    ("more-ranks-than-gpus", "CUDA error: Failed call to cuDeviceGet: CUDA_ERROR_INVALID_DEVICE: invalid device ordinal\n", "srun --ntasks-per-node=8 --gpus-per-node=4", "srun --ntasks-per-node=4 --gpus-per-node=4\n"),
    ("more-ranks-than-gpus", "LOCAL_RANK: 1 - CUDA_VISIBLE_DEVICES: [0]\nncclInvalidUsage: invalid usage\n", "", "LOCAL_RANK: 1 - CUDA_VISIBLE_DEVICES: [0,1]\nncclInvalidUsage: invalid usage\n"),
    ("more-ranks-than-gpus", "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]\ninitializing ddp: GLOBAL_RANK: 0, MEMBER: 1/2\ninitializing ddp: GLOBAL_RANK: 1, MEMBER: 2/2\nNCCL error: invalid usage\n", "one GPU in the machine",
     "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0]\ninitializing ddp: GLOBAL_RANK: 0, MEMBER: 1/1\n"),
    ("more-ranks-than-gpus", "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50\n", "train.sh on an a2-ultragpu-1g instance", "on an a2-ultragpu-4g instance\n"),
    ("net-plugin-failed", "#0  0x0000000000000000 in ?? ()\n#1  0x00007fefc64b890f in nccl_p2p_ib_init (num_devs=0x7f) at p2p_plugin.c:315\n", "", "#1  0x00007fefc64b890f in nccl_p2p_ib_init (num_devs=0x7f) at p2p_plugin.c:315\n"),
    ("net-plugin-failed", "Segmentation fault (core dumped)\n#1  0x7f in nccl_net_ofi_test ()\n", "", "Watchdog caught collective operation timeout\nAborted (core dumped)\n#1  0x7f in nccl_net_ofi_test ()\n"),
    ("ulimit-too-low", "Max locked memory         65536                unlimited            bytes\n", "ibv_reg_mr fails", "max locked memory       (kbytes, -l) unlimited\n"),
    ("peer-stopped", "received SIGSTOP\n", "", "Thread 1 \"python\" received signal SIGSTOP, Stopped (signal)\n"),
    ("gdr-broken-acs", "FAIL ACS for root port 0008:00:00.0 has incorrect values 0011101\n", "RoCE between two nodes stays slow", "PASS ACS for root port 0008:00:00.0 has expected values\n"),
    ("p2p-broken-acs-iommu", "tensor([1, 2], device='cuda:0')\ntensor([0, 0], device='cuda:1')\n", "a tensor is sent from one GPU to the other", "tensor([1, 2], device='cuda:0')\ntensor([1, 2], device='cuda:1')\n"),
    ("peer-stopped", "thread #1, stop reason = SIGSTOP\n", "", "thread #16, name = 'python', stop reason = signal SIGSTOP\n"),
    ("rendezvous-misconfigured", "TypeError: __init__(): incompatible constructor arguments.\nInvoked with: 'localhost', 80000, 1, True\n", "", "Invoked with: 'localhost', 8000, 1, True\n"),
    ("gdr-disabled", "n1:7:8 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3\n# Avg bus bandwidth    : 33.3\n", "the bus bandwidth is lower than it should be", "n1:7:8 [5] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3/GDRDMA\n# Avg bus bandwidth    : 33.3\n"),
    ("timeout-on-other-group", "WorkNCCL(SeqNum=1878, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800000 milliseconds before timing out.\n", "TRAINER_TIMEOUT is at its 180 minutes, and it still ends", "WorkNCCL(SeqNum=1878, OpType=ALLREDUCE, Timeout(ms)=10800000) ran for 10800000 milliseconds before timing out.\n"),
    ("socket-interface-wrong", "[n2][[22157,1],4][btl_tcp_endpoint.c:626:mca_btl_tcp_endpoint_recv_connect_ack] received unexpected process identifier [[22157,1],7]\n", "", "[n2][[22157,1],4][btl_tcp_endpoint.c:626] received process identifier [[22157,1],4]\n"),
    ("benign", "mlx5_cmd_out_err:835:(pid 1836): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171), err(-22)\n", "", "mlx5_cmd_out_err:835:(pid 1836): CREATE_QP(0x500) op_mod(0x1) failed, status bad resource(0x5), syndrome (0x1), err(-22)\n"),
    ("peer-crashed", "rank : 1 (local_rank: 1)  exitcode : -6   traceback : Signal 6 (SIGABRT)\n", "", "rank : 1 (local_rank: 1)  exitcode : -6   traceback : Signal 6 (SIGABRT)\n[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)\n"),
    ("driver-too-old", "ImportError: /opt/app/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled\n", "the pod sits on a new node pool", "ImportError: /opt/app/_C.abi3.so: undefined symbol: cudaGetDriverEntryPoint\n"),
    ("driver-too-old", "ImportError: /opt/app/_C.abi3.so: undefined symbol: cuMulticastCreate\n", "the pod sits on a new node pool", "ImportError: /opt/app/_C.abi3.so: undefined symbol: cuFileDriverOpen\n"),
    ("framework-version-incompatible", "ImportError: ... app/_C.abi3.so: undefined symbol: ... c10_cuda_check_implementation ...\n", "", "ImportError: ... app/_C.abi3.so: undefined symbol: my_check\n"),
    ("nvls-fabric-fault", "[ERROR] [tid 7118] failed to find the GPU handle 1276691166 in the multicast team request setup 428553.\n", "", "[ERROR] [tid 7118] failed to find the GPU handle 1276691166\n"),
    ("gpu-exclusive-mode", "Return value 46 from 'cudaStreamCreate(&stream)'.  Exiting.\n", "one process a node is fine, two are not", "Return value 4 from 'cudaStreamCreate(&stream)'.  Exiting.\n"),
    ("rendezvous-port-in-use", "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=2, worker_count=5, timeout=0:30:00)\n", "", "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=5, worker_count=2, timeout=0:30:00)\n"),
    ("env-conflict", "AssertionError: FSDP always requires CUDA_DEVICE_MAX_CONNECTIONS value large than one\n", "", "AssertionError: FSDP always requires a device mesh\n"),

    ("device-not-set-per-rank", "|    0   N/A  N/A     71201      C   .../bin/python           7121MiB |\n|    0   N/A  N/A     71202      C   .../bin/python           969MiB |\n|    1   N/A  N/A     71202      C   .../bin/python           6155MiB |\n", "", "|    0   N/A  N/A     71201      C   .../bin/python           7121MiB |\n|    1   N/A  N/A     71201      C   .../bin/python           7121MiB |\n"),
    ("net-socket-fallback", "n2:211:340 [3] NCCL INFO Using network Socket\nn2:211:340 [3] NCCL INFO NET/IB : No device found.\nstep 1 loss 2.0\nstep 2 loss 1.9\n", "two nodes with InfiniBand, 40 times slower than one", "n2:211:340 [3] NCCL INFO Using network Socket\nn2:211:340 [3] NCCL INFO NET/IB : No device found.\nstep 1 loss 2.0\nstep 2 loss 1.9\n"),
    ("gpu-or-link-fault", "n:1:2 [3] net_ib.cc:94 NCCL WARN NET/IB : Got async event : port error\nn:1:2 [3] net_ib.cc:1210 NCCL WARN NET/IB : Got completion from peer 10.1.4.17<47113> with error 12, opcode 0, len 0, vendor err 129\n", "", "n:1:2 [3] net_ib.cc:94 NCCL INFO NET/IB : Got async event : port active\n"),
    ("gdr-disabled", "n1:6:7 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/0\n$ lsmod | grep nv_peer\n", "18 GB/s instead of 190", "n1:6:7 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/0/GDRDMA\n"),
    ("gdr-disabled", "rdma_context.cpp:199] Failed to register memory 0x7f3b8e000000: Bad address [14]\n", "", "rdma_context.cpp:199] registered memory 0x7f3b8e000000\n"),
    ("rendezvous-name-resolution", "connect to (failed): [127.0.1.1]\nConnection refused\n", "", "connect to (failed): [192.0.2.1]\nConnection refused\n"),
    ("pcie-topology-limit", "index, pcie.link.gen.current, pcie.link.width.current\n0, 4, 16\n1, 3, 4\n", "two cards are slow", "index, pcie.link.gen.current, pcie.link.width.current\n0, 4, 16\n1, 4, 16\n"),
    ("rank-busy-on-host", "    communicate (subprocess.py:1209)\n    code_reward (rewards.py:212)\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4011, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "    communicate (subprocess.py:1209)\n    code_reward (rewards.py:212)\n"),
    ("data-stall", "StreamSplitDataIterator(epoch=0, split=0) blocked waiting on other clients for more than 30s.\n", "", "StreamSplitDataIterator(epoch=0, split=0) done\n"),
    ("start-skew", "RayChannelTimeoutError: If the execution is expected to take a long time, increase RAY_CGRAPH_get_timeout which is currently 10 seconds.\n", "the very first request fails, the cache is cold", "RayChannelTimeoutError: increase RAY_CGRAPH_get_timeout\n"),
    ("visible-devices-wrong", "InvalidArgumentError: 'visible_device_list' listed an invalid GPU id '1' but visible device count is 1\n", "srun with one GPU per task", "InvalidArgumentError: 'visible_device_list' listed an invalid GPU id '1' but visible device count is 1\n"),
    ("nodes-differ", "RuntimeError: Version mismatch: The cluster was started with:\n", "", "RuntimeError: The cluster was started with:\n"),
    ("scheduler-shares-gpu", "Check failed: n_uniques == world_size (1 vs. 2) : Multiple processes within communication group running on same CUDA device is not supported.\n", "spark.task.resource.gpu.amount=0.25", "spark.task.resource.gpu.amount=0.25\n"),
    ("env-conflict", "Detected CUDA_VISIBLE_DEVICES=4,5 but ignoring it because one or several of --include/--exclude/--num_gpus/--num_nodes cl args were used.\n", "", "Detected CUDA_VISIBLE_DEVICES=4,5: setting --include=localhost:4,5\n"),
    ("more-ranks-than-gpus", "AssertionError: insufficient CUDA devices for DDP command\n", "", "AssertionError: insufficient memory for DDP command\n"),
    ("collective-mismatch", "RuntimeError: Fatal error: gradients are inconsistent between workers. Try --ddp-backend=no_c10d.\n", "", "gradients are equal between workers\n"),
    ("nodes-differ", "FileNotFoundError: [Errno 2] No such file or directory: '.dist_test/tmp9x2b1o3f/part_8.pkl'\n", "", "FileNotFoundError: [Errno 2] No such file or directory: 'model.pkl'\n"),
    ("uneven-minibatches", "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.\n", "", "RuntimeError: Throwing across all ranks.\n"),
    ("env-conflict", "RuntimeError: Using sequence parallelism requires setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 1\n", "", "RuntimeError: Using sequence parallelism requires a tensor parallel size\n"),
    ("env-conflict", "ValueError: invalid literal for int() with base 10: 'tcp://10.96.114.20:8000'\n", "", "ValueError: invalid literal for int() with base 10: 'abc'\n"),
    ("visible-devices-set-too-late", "UserWarning: A CUDA context for device 0 already exists on process ID 48123.\n", "", "UserWarning: device 0 of process ID 48123\n"),
    ("visible-devices-set-too-late", "RuntimeError: Physical devices cannot be modified after being initialized\n", "", "RuntimeError: Logical devices are initialized\n"),
    ("driver-library-mismatch", "kernel version 384.111.0 does not match DSO version 390.30.0 -- cannot find working devices in this configuration\n", "", "kernel version 384.111.0 DSO version 384.111.0\n"),
    ("nccl-library-conflict", "XGBoostError: Failed to load nccl from path: `libnccl.so.2`. Error:\n", "", "XGBoostError: Failed to load model from path\n"),
    ("net-socket-fallback", "ip:1:1 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\nip:1:1 [0] NCCL INFO Using network Socket\n", "nccl-tests over two p3dn instances", "ip:1:1 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\nip:1:1 [0] NCCL INFO Using network Socket\n"),
    ("rank-dependent-branch", "[14:02:12] WARNING: /workspace/src/learner.cc: Empty dataset at worker: 6\n", "all GPUs stay busy for ever", "[14:02:12] WARNING: dataset at worker: 6\n"),
    ("framework-version-incompatible", "AssertionError: tensor parallel group already initialized, but of unexpected size: get_tensor_model_parallel_world_size()=1 vs. tensor_model_parallel_size=2\n", "", "tensor parallel group already initialized\n"),
    ("device-not-set-per-rank", "ValueError: You can't train a model that has been loaded in 8-bit or 4-bit precision on a different device than the one you're training on.\n", "", "ValueError: You can't train a model that has been loaded in 8-bit\n"),
    ("shm-too-small", "Rank 0 scheduler is dead. Please check if there are relevant logs.\nExit code: -7\n", "docker run of the image", "Exit code: -7\n"),
    ("rendezvous-misconfigured", "AssertionError: Engine world size (2) != Runtime world size (1)\n", "", "Engine world size (2)\n"),
    ("collective-mismatch", "AssertionError: mismatch dtype: src torch.float32, dst torch.bfloat16\n", "", "dtype: src torch.float32, dst torch.float32\n"),
    ("benign", "vm:3120:3140 [0] graph/search.cc:765 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n", "", "vm:3120:3140 [0] graph/search.cc:765 NCCL WARN no order\n"),

    ("trainer-and-engine-share-gpu", "RuntimeError: Attempting to use the same CUDA device (UUID: 5d1e0c5a) for multiple distinct roles/ranks within the same communicator.\n", "", "RuntimeError: Attempting to use the CUDA device (UUID: 5d1e0c5a)\n"),
    ("uneven-minibatches", "(WorkerDict pid=8812) rank 3 num_micro_batches=5\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4011, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "(WorkerDict pid=8812) rank 3 num_layers=5\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4011, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("communicator-order", "RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for key: store_based_barrier_key:2 (world size=4, worker_count=2, timeout=0:30:00)\n", "each rank calls dist.new_group for its own pairs", "RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for key: store_based_barrier_key:1 (world size=4, worker_count=2, timeout=0:30:00)\n"),
    ("data-stall", "WARNING:datasets.download.streaming_download_manager:Got disconnected from remote data host. Retrying in 5sec [1/20]\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4011, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "WARNING:datasets: Retrying in 5sec [1/20]\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4011, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("start-skew", "Loading checkpoint shards:  71%|#######   | 10/14 [28:12<11:18, 169.5s/it]\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "Loading checkpoint shards: 100%|##########| 14/14 [28:12<00:00, 169.5s/it]\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4011, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("per-parameter-sync", "(ActorModelRayActor pid=9001) Broadcast actor weights to vllm engines: 100%|######| 723/723 [04:11<00:00,  2.88it/s]\n", "", "(ActorModelRayActor pid=9001) Broadcast actor weights to vllm engines: 100%|######| 12/12 [00:01<00:00, 12it/s]\n"),
    ("gloo-carries-traffic", "(ActorModelRayActor pid=4101) vllm_sync_backend: gloo\n", "the weight sync is slow", "(ActorModelRayActor pid=4101) vllm_sync_backend: nccl\n"),
    ("container-gpu-access", "UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment\n", "an LXC container, nvidia-smi works there", "UserWarning: CUDA initialization: CUDA unknown error\n"),
    ("network-path-blocked", "[c10d] The client socket has timed out after 60s while trying to connect to (192.0.2.5, 29500).\n$ sudo ufw status\n22/tcp                     ALLOW       Anywhere\n", "", "$ sudo ufw status\nStatus: inactive\n"),
    ("visible-devices-wrong", "ValueError: Invalid CUDA 'device=1' requested. Use 'device=cpu' or pass valid CUDA device(s) if available\n", "", "ValueError: Invalid image 'device=1' requested.\n"),
    ("device-binding", "ValueError: Tensor found on device cuda:0 but backend constrained to cuda:1\n", "", "Tensor found on device cuda:0\n"),
    ("gpu-memory-exhausted", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n", "", "Try increasing `gpu_memory_utilization` when initializing the engine.\n"),
    ("network-path-blocked", "efa_rdm_txe_handle_error():1203<warn> err: 113, message: Unresponsive receiver (reachable by EFA device but handshake failed)\n", "", "efa_rdm_txe_handle_error():1203<warn> err: 12\n"),
    ("timeout-on-other-group", "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n", "init_process_group(timeout=timedelta(hours=3)), killed after eight minutes", "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"),
    ("vgpu-or-mig-unsupported", "  MIG 3g.20gb Device 0: (UUID: MIG-GPU-1/1/0)\ntrainer:91:118 [0] init.cc:521 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000\n", "", "  GPU 0: A100 (UUID: GPU-1)\ntrainer:91:118 [0] init.cc:521 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000\n"),
    ("collective-on-some-ranks-only", "    if args.local_rank == 0: model_engine.save_checkpoint(out)\n", "progress stops at the save", "    model_engine.save_checkpoint(out)\n"),
    ("rank-dependent-branch", "EarlyStopping patience 30 exceeded, stopping training.\n", "one of two processes never exits", "EarlyStopping patience 30 exceeded, stopping training.\n"),
    ("cpu-affinity", "[h:31022] MCW rank 1 bound to socket 1[core 10[hwt 0-1]]: [../..][BB/..]\n", "four processes are hardly faster than one", "[h:31022] MCW rank 1 bound to socket 1[core 10[hwt 0-1]], socket 1[core 11[hwt 0-1]]: [../..][BB/BB]\nhardly faster\n"),
    ("env-conflict", "ValueError: Please don't set ROCR_VISIBLE_DEVICES when HIP/CUDA_VISIBLE_DEVICES is set.\n", "", "ROCR_VISIBLE_DEVICES is set\n"),
    ("more-ranks-than-gpus", "InvalidArgumentError: 'visible_device_list' listed an invalid GPU id '2' but visible device count is 2\n", "", "visible device count is 2\n"),
    ("device-not-set-per-rank", "AssertionError: DistributedDataParallel device_ids and output_device arguments only work with single-device CUDA modules, but got device_ids [1], output_device 1, and module parameters {device(type='cuda', index=0)}.\n", "", "AssertionError: got device_ids [1], output_device 1, and module parameters {device(type='cuda', index=1)}.\n"),
    ("scheduler-shares-gpu", "request for 'nvidia.com/gpu: 2' too large: maximum request size for shared resources is 1, which is unexpected\n", "", "request for 'nvidia.com/gpu: 2' too large\n"),
    ("scheduler-shares-gpu", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 17000\n", 'four workers, resources_per_worker={"GPU": 0.5}', 'resources_per_worker={"GPU": 0.5}\n'),
    ("net-plugin-failed", "ip:301:350 [0] NCCL INFO NET/Plugin : dlerror=libhwloc.so.5: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation\n", "it is far too slow between nodes", "ip:301:350 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"),
    ("nccl-bug", "h:33:1 [2] misc/ipcsocket.cc:57 NCCL WARN UDS: Binding to socket /tmp/nccl-socket-2-e647 failed : Address already in use (98)\n", "", "h:33:1 [2] misc/ipcsocket.cc:57 NCCL WARN UDS: Binding to socket /tmp/nccl-socket-2-e647 failed : Permission denied\n"),
    ("rendezvous-port-in-use", "RuntimeError: Address already in use\n", "", "h:33:1 [2] misc/ipcsocket.cc:57 NCCL WARN UDS: Binding to socket /tmp/nccl-socket-2-e647 failed : Address already in use (98)\n"),
    ("nccl-bug", "h:7:8 [0] NCCL INFO RAS client listening socket at ::1<28028>\n[h:7] *** Process received signal ***\n", "it crashes when the RAS client is queried", "h:7:8 [0] NCCL INFO RAS client listening socket at ::1<28028>\n[h:7] *** Process received signal ***\n"),
    ("framework-version-incompatible", "TypeError: Object of type <class 'torch.dtype'> is not serializable\n", "", "TypeError: Object of type <class 'pathlib.Path'> is not serializable\n"),
    ("timeout-on-other-group", "--watchdog-timeout 3600\nWorkNCCL(SeqNum=3678376, OpType=SEND, NumelIn=3584, NumelOut=3584, Timeout(ms)=600000) ran for 600003 milliseconds before timing out.\n", "", "--watchdog-timeout 600\nWorkNCCL(SeqNum=3678376, OpType=SEND, NumelIn=3584, NumelOut=3584, Timeout(ms)=600000) ran for 600003 milliseconds before timing out.\n"),
    ("net-plugin-failed", "gn12:1:2 [1] NCCL INFO NET/Plugin: libnccl-net-UCX.so: libucp.so.0: cannot open shared object file: No such file or directory\\ngn12:1:2 [1] plugin/net.cc:216 NCCL WARN Error: network UCX not found.\\n", "", "gn12:1:2 [1] plugin/net.cc:216 NCCL WARN Error: network UCX not found.\\n"),

    ("more-ranks-than-gpus", "Invalid number of GPUs: 16 requested but only 8 were found.\n", "", "Number of GPUs: 16 requested, 16 were found.\n"),
    ("more-ranks-than-gpus", "AssertionError: please set tensor_parallel_size (4) to less than max local gpu count (2)\n", "", "CUDA_VISIBLE_DEVICES=MIG-0a2b7d4a,MIG-7d52e2d6\nAssertionError: please set tensor_parallel_size (2) to less than max local gpu count (1)\n"),
    ("vgpu-or-mig-unsupported", "CUDA_VISIBLE_DEVICES=MIG-0a2b7d4a,MIG-7d52e2d6\nAssertionError: please set tensor_parallel_size (2) to less than max local gpu count (1)\n", "", "AssertionError: please set tensor_parallel_size (2) to less than max local gpu count (1)\n"),
    ("scheduler-shares-gpu", "nvidia.com/gpu.replicas=4\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n", "", "nvidia.com/gpu.replicas=1\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"),
    ("visible-devices-wrong", "Detected CUDA_VISIBLE_DEVICES=4,5 but ignoring it because one or several of --include/--exclude/--num_gpus/--num_nodes cl args were used.\n", "", "Detected CUDA_VISIBLE_DEVICES=4,5: setting --include=localhost:4,5\n"),
    ("visible-devices-wrong", "RuntimeError: CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices from different ranks.\n", "", "RuntimeError: CUDASymmetricMemoryAllocator::rendezvous: timed out\n"),
    ("bus-id-collision", "vm0:3120:3190 [0] init.cc:521 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 100000\n", "the UUIDs printed by the script are all different", "vm0:3120:3190 [0] init.cc:521 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 100000\n"),
    ("nvls-fabric-fault", "#5  cuMulticastAddDevice () from /lib64/libcuda.so.1\n#6  ncclNvlsSetup(ncclComm*, ncclComm*) () from libnccl.so.2\n", "it hangs for ever", "#6  ncclNvlsSetup(ncclComm*, ncclComm*) () from libnccl.so.2\n"),
    ("nccl-library-conflict", "/env/lib/python3.9/site-packages/nvidia/nccl/lib/libnccl.so.2\n/usr/local/lib/libnccl.so.2.8.4\n", "", "/env/lib/python3.9/site-packages/nvidia/nccl/lib/libnccl.so.2\n"),
    ("engine-allreduce-needs-p2p", "what():  [TM][ERROR] CUDA runtime error: peer access is not supported between these two devices /src/turbomind/allocator.h:210\n", "", "what():  [TM][ERROR] CUDA runtime error: out of range /src/turbomind/allocator.h:210\n"),
    ("shm-too-small", "mm_posix.c:233  UCX  ERROR Not enough memory to write total of 4292720 bytes. Please check that /dev/shm or the directory you specified has more available memory.\n", "", "mm_posix.c:233  UCX  ERROR Not enough memory to write total of 4292720 bytes.\n"),
    ("rendezvous-port-in-use", "[c10d] The server socket has failed to bind to [::]:29501 (system error: 10048 - Only one usage of each socket address is normally permitted.).\n", "", "[c10d] The server socket has failed to bind to [::]:29501 (system error: 10049 - The requested address is not valid.).\n"),
    ("cpu-affinity", "0 pid 40211's current affinity list: 0\n", "eight ranks are slow", "0 pid 40211's current affinity list: 0-15\n"),
    ("cpu-affinity", "[n1:7001] MCW rank 0 bound to socket 0[core 0[hwt 0-1]]: [BB/../..]\n[n1:7001] MCW rank 1 bound to socket 0[core 0[hwt 0-1]]: [BB/../..]\n", "the ranks are slow", "[n1:7001] MCW rank 0 bound to socket 0[core 0[hwt 0-1]]: [BB/../..]\n[n1:7001] MCW rank 1 bound to socket 0[core 1[hwt 0-1]]: [../BB/..]\n"),
    ("cpu-affinity", "UserWarning: This DataLoader will create 12 worker processes in total. Our suggested max number of worker in current system is 1\n", "", "UserWarning: This DataLoader will create 12 worker processes in total. Our suggested max number of worker in current system is 11\n"),
    ("topology-file-bad", "# Avg bus bandwidth    : 0.96\n$ unset NCCL_TOPO_FILE; mpirun all_reduce_perf\n# Avg bus bandwidth    : 181.4\n", "", "# Avg bus bandwidth    : 0.96\n$ unset NCCL_IB_HCA; mpirun all_reduce_perf\n"),
    ("uneven-minibatches", "rank 0 steps_per_epoch=781  rank 1 steps_per_epoch=781  rank 2 steps_per_epoch=780\nubset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n", "", "rank 0 steps_per_epoch=781  rank 1 steps_per_epoch=781\nwaiting for remainder of ranks for more than 60 seconds.\n"),
    ("send-recv-unmatched", "No match for nccl:send 3->4 (p2p_seq_id 41) on rank 4\n", "", "nccl:send 3->4 state completed\n"),
    ("collective-mismatch", "error message: Error type: MatchState.SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: [[8192, 512]]\n", "", "MatchState.FULLY_MATCHED\n"),
    ("zero3-conditional-module", "[rank 3] batch has no images, vision_tower skipped\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42711, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "[rank 3] batch has no images, vision_tower skipped\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42711, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("timeout-on-other-group", "dist.init_process_group(\"nccl\", timeout=datetime.timedelta(hours=3))\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "dist.init_process_group(\"nccl\", timeout=datetime.timedelta(minutes=10))\n[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("data-stall", "[rank12] waiting for shard 412 to be downloaded ... 300 s\n[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40121, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "[rank12] shard 412 is read\n[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40121, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("start-skew", "[rank40]: AUTOTUNE mm(8192x8192, 8192x28672)\n[rank17]:[E] [Rank 17] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n", "", "[rank40]: AUTOTUNE mm(8192x8192, 8192x28672)\n[rank17]:[E] [Rank 17] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77104, OpType=ALLREDUCE, NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600019 milliseconds before timing out.\n"),
    ("idle-wait-in-collective", "    broadcast_pyobj(recv_reqs, self.tp_rank, self.tp_cpu_group)\nRuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n", "", "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n"),
    ("gloo-carries-traffic", "dist.init_process_group(backend='gloo', init_method='env://')\n", "two cards are slower than one", "dist.init_process_group(backend='nccl', init_method='env://')\n"),
    ("communicator-recreated", "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:30411 to store for rank: 0\nToo many open files\n", "", "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:4 to store for rank: 0\nToo many open files\n"),
    ("communicator-recreated", "POST /init_weights_update_group HTTP/1.1\" 200 OK\nPOST /update_weights_from_distributed HTTP/1.1\" 200 OK\nPOST /destroy_weights_update_group HTTP/1.1\" 200 OK\n", "", "POST /init_weights_update_group HTTP/1.1\" 200 OK\nPOST /update_weights_from_distributed HTTP/1.1\" 200 OK\n"),
    ("nccl-bug", "Signal: Floating point exception (8)\n[ 1] /usr/lib/libnccl.so.2(_Z17ncclTopoTuneModelP8ncclComm+0x3c1)[0x7f21]\n", "", "Signal: Floating point exception (8)\n[ 1] /usr/lib/libmodel.so.2(_Z17tune+0x3c1)[0x7f21]\n"),
    ("peer-stopped", "slurmstepd: error: *** STEP 884121.0 ON node03 SUSPENDED AT 2024-03-18T02:11:40 ***\n", "", "slurmstepd: error: *** STEP 884121.0 ON node03 CANCELLED AT 2024-03-18T02:11:40 ***\n"),
    ("straggler", "gpu22: clocks_throttle_reasons.hw_thermal_slowdown: Active, clocks.sm 765 MHz\n", "", "gpu22: hw_thermal_slowdown: Not Active, clocks.sm 1410 MHz\n"),
    ("nvml-call-failed", "RuntimeError: NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":963\n", "", "RuntimeError: ptr INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":963\n"),
    ("net-socket-fallback", "hdr1:44:390 [0] NCCL INFO Failed to open libibverbs.so[.1]\nhdr1:44:390 [0] NCCL INFO Using network Socket\n", "HDR nodes: the step time triples from one node to two", "hdr1:44:390 [0] NCCL INFO Failed to open libibverbs.so[.1]\nhdr1:44:390 [0] NCCL INFO Using network IB\n"),
    ("collective-mismatch", FINGER.format(r=1, s=38, n=100) + FINGER.format(r=2, s=38, n=77), "the all_reduce raises", FINGER.format(r=1, s=38, n=77) + FINGER.format(r=2, s=38, n=77) + FINGER.format(r=2, s=38, n=100)),
    ("visible-devices-wrong", "MisconfigurationException('You requested gpu: [0, 1]\n But your machine only has: [0]\n", "Slurm with --gpus-per-task=1 and two tasks", "MisconfigurationException('You requested gpu: [0, 1]\n But your machine only has: [0]\n"),
    ("nvls-fabric-fault", "n1:10:12 [0] NCCL INFO NVLS Bind mem 0xac0000000 UC handle 0x7f33 MC handle 0x7f34 size 1073741824\n", "four GPUs hang", "n1:10:12 [0] NCCL INFO NVLS Bind mem 0xac0000000 UC handle 0x7f33 MC handle 0x7f34 size 1073741824\nstep 1 loss 2.0\n"),
    ("net-socket-fallback", "node3:7:8 [0] NCCL INFO NET/IB : No device found.\n", "two nodes with InfiniBand, the traffic goes over TCP although IB is there", "node3:7:8 [0] NCCL INFO NET/IB : No device found.\n"),
    ("rendezvous-misconfigured", "$ python main.py --init-method tcp://192.0.2.1:1234 --rank 0 --world-size 3\n", "nothing more happens", "$ python main.py --init-method tcp://192.0.2.1:1234 --rank 0 --world-size 1\n"),
    ("gdr-broken-acs", "rc_verbs_iface.c:67   send completion with error: local protection error\n", "", "rc_verbs_iface.c:67   send completion with error: remote access error\n"),
    ("uneven-minibatches", "rank 0: 327 batches, rank 1: 338 batches\nNCCL watchdog timeout\n", "", "rank 0: 327 batches, rank 1: 327 batches\nNCCL watchdog timeout\n"),
    ("driver-too-old", "docker: requirement error: unsatisfied condition: cuda >= 9.2\n", "", "docker: requirement: cuda >= 9.2\n"),
    ("vgpu-or-mig-unsupported", "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED on 2 GPU NVIDIA-A100-SXM4-80GB-MIG-3g.40gb\n", "", "found 2 GPU NVIDIA-A100-SXM4-80GB-MIG-3g.40gb\n"),
    ("trainer-and-engine-share-gpu", "$ trl vllm-serve --model m\nRuntimeError: NCCL error: invalid usage\n", "server mode on a machine with one GPU", "$ trl vllm-serve --model m\nRuntimeError: NCCL error: invalid usage\n"),
    ("nccl-bug", "[1] enqueue.cc:1500 NCCL WARN Cuda failure 1 'invalid argument'\n", "the library swapped for the next release, it works", "[1] enqueue.cc:1500 NCCL WARN Cuda failure 1 'invalid argument'\n"),
    ("collective-mismatch", "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [540], but another rank sent a tensor of shape [1].\n", "", "ALLREDUCE tensor shapes: [540]\n"),
    ("nodes-differ", "RuntimeError: Mismatched BROADCAST CPU/GPU device selection: One rank specified device CPU, but another rank specified device GPU.\n", "", "BROADCAST CPU/GPU device selection: GPU\n"),
    ("collective-mismatch", "RuntimeError: Mismatched BROADCAST CPU/GPU device selection: One rank specified device CPU, but another rank specified device GPU.\n", "", "BROADCAST CPU/GPU device selection: GPU\n"),
    ("uneven-minibatches", "StartAbort Invalid argument: There aren't enough elements in this dataset for each shard to have at least one element\n", "", "enough elements in this dataset\n"),
    ("uneven-minibatches", "W base_collective_executor.cc:216] BaseCollectiveExecutor::StartAbort Out of range: End of sequence\n", "", "W base_collective_executor.cc:216] End of sequence\n"),
    ("data-stall", "chainer/iterators/multiprocess_iterator.py:28: TimeoutWarning: Stalled dataset is detected.\n", "", "dataset is detected\n"),
    ("start-skew", "what():  [horovod/common/gloo/http_store.cc:53] Wait timeout for key(s): 0\n", "", "[horovod/common/gloo/http_store.cc:53] key(s): 0\n"),
    ("benign", "PMIX ERROR: PMIX_ERR_NOT_FOUND in file dstore_base.c at line 1567\n", "", "PMIX ERROR: PMIX_ERR_UNREACH in file dstore_base.c\n"),
    ("network-path-blocked", "util.network was unable to connect to horovodrun driver on any of the following address.\n", "", "connected to horovodrun driver\n"),
    ("socket-interface-wrong", "util.network was unable to connect to horovodrun driver on any of the following address.\n", "", "connected to horovodrun driver\n"),
    ("visible-devices-wrong", "MisconfigurationException('You requested gpu: [2, 3]\n But your machine only has: [0, 1]\n", "", "MisconfigurationException('You requested gpu: [0, 1, 2]\n But your machine only has: [0, 1]\n"),
    ("container-gpu-access", "pytorch_lightning.utilities.exceptions.MisconfigurationException:\n  You requested GPUs: [0, 1]\n  But your machine only has: []\n", "", "  You requested GPUs: [0, 1]\n  But your machine only has: [0]\n"),
    ("driver-too-old", "pytorch_lightning.utilities.exceptions.MisconfigurationException:\n  You requested GPUs: [0, 1]\n  But your machine only has: []\n", "", "  You requested GPUs: [0, 1]\n  But your machine only has: [0]\n"),
    ("benign", "E0331 CtranIb.cc:101] CTRAN-IB: Found 0 InfiniBand device(s) but 1 required (NCCL_CTRAN_IB_DEVICES_PER_RANK).\n", "", "CTRAN-IB: Found 2 InfiniBand device(s)\n"),
    ("nccl-bug", "a:1:2 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>\na:1:2 [0] NCCL INFO NCCL_COMM_ID set by environment to 172.17.16.2:12340\na:1:2 [0] NCCL INFO NCCL version 2.29.2+cuda12.8\na:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n", "it never completes", "a:1:2 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>\na:1:2 [0] NCCL INFO NCCL version 2.29.2+cuda12.8\na:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo\n"),
    ("socket-interface-wrong", "a:1:2 [0] NCCL INFO Bootstrap : Using [0]ens5:172.31.0.137<0> [1]veth75fa783:fe80::14ad%veth75fa783<0>\n", "Network is unreachable", "a:1:2 [0] NCCL INFO Bootstrap : Using [0]ens5:172.31.0.137<0> [1]ens6:172.31.0.138<0>\n"),
    ("nccl-library-conflict", "UnknownError (see above for traceback): ncclAllReduce failed: invalid data type\n", "", "ncclAllReduce of an invalid kind\n"),
    ("rank-busy-on-host", "move_to_device_done after 4106.03s ...\nWorkNCCL(SeqNum=64214, OpType=ALLGATHER, NumelIn=1, NumelOut=32, Timeout(ms)=600000)\n", "offload to the host", "move_to_device_done after 4.03s ...\n"),
    ("rank-busy-on-host", "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800041 milliseconds before timing out.\n", "350 000 instructions, --overwrite_cache", "OpType=ALLREDUCE, NumelIn=1 is a barrier\n"),
    ("rendezvous-name-resolution", "ValueError: Invalid zmq path: tcp://:29550\n", "", "connected to tcp://10.0.0.1:29550\n"),
    ("rendezvous-misconfigured", "ValueError: Invalid zmq path: tcp://:29550\n", "", "connected to tcp://10.0.0.1:29550\n"),
    ("engine-allreduce-needs-p2p", "error: peer access is not supported between these two device\n", "NanoFlow, 8 x RTX 3090", "peer access between these two devices\n"),
    ("framework-version-incompatible", "main_pretrain.py: error: unrecognized arguments: --local-rank=1\n", "", "main_pretrain.py: error: unrecognized arguments: --rank=1\n"),
    ("framework-version-incompatible", "AttributeError: 'DistributedDataParallel' object has no attribute 'num_iterations'\n", "", "AttributeError: 'DistributedDataParallel' object has no attribute 'generate'\n"),
    ("rank-busy-on-host", "  mAP@.5 mAP@.5:.95:  96%|### | 85/89 [01:07<00:05,  1.42s/it][E ProcessGroupNCCL.cpp:567] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST, Timeout(ms)=60000) ran for 69479 milliseconds before timing out.\n", "", "  mAP@.5: 100%|####| 89/89 [01:07<00:00,  1.42s/it]\n"),
    ("benign", "A800:1:2 [1] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use\nA800:1:2 [1] NCCL INFO RAS failed to establish a client listening socket at localhost:28028\n", "", "A800:1:2 [1] NCCL INFO RAS client listening socket at localhost:28028\n"),
    ("p2p-broken-acs-iommu", 'NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!\n', "the job is stuck", "NCCL INFO iommu=pt is in the kernel command line\n"),
    ("cumem-mismatch", '  File "misc/cudawrap.cc", line 92, in ncclCuMemHostEnable()\nSegmentation fault\n', "", '  File "misc/cudawrap.cc", line 92, in ncclCudaLibraryInit()\nSegmentation fault\n'),
    ("nodes-differ", "bus bandwidth drops to half\n", "NCCL_NET_GDR_LEVEL=SYS NCCL_DEBUG=INFO mpirun -np 2 --host n13,n14 -x LD_LIBRARY_PATH gather_perf", "NCCL_NET_GDR_LEVEL=SYS mpirun -np 2 --host n13,n14 -x NCCL_NET_GDR_LEVEL gather_perf\n"),
    ("device-not-set-per-rank", "NCCL WARN Cuda failure 400 'invalid resource handle'\n", "the broadcast runs in a daemon thread", "NCCL WARN Cuda failure 1 'invalid argument'\n"),
    ("rank-busy-on-host", "checkpoint write retry: [Errno 28] No space left on device\nWatchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=30000) ran for 30002 milliseconds\n", "", "checkpoint written: no retry\n"),
    ("send-recv-unmatched", "NCCL error a.cu:46: internal error\n", "// CHECK(ncclGroupStart());\nncclSend(a); ncclRecv(b);", "// ncclGroupStart is called\n"),
    ("nccl-bug", "w:1:2 [0] transport/net_ib/gdaki/gin_host_gdaki.cc:431 (gdakiConnectQp) NCCL WARN DOCA failure 21\n", "", "w:1:2 [0] NCCL INFO DOCA is there\n"),
    ("nodes-differ", "rank 1: bootstrap.cc:225 NCCL WARN Message truncated : received 6144 bytes instead of 2048\n", "", "rank 1: bootstrap.cc:225 NCCL INFO received 2048 bytes\n"),
    ("env-conflict", "a:1:2 [0] transport/net_ib/connect.cc:670 NCCL WARN NET/IB: OOO RQ is force enabled but AR is not enabled, which is required for OOO RQ (device=mlx5_0)\n", "", "a:1:2 [0] NCCL INFO NET/IB: OOO RQ is enabled (device=mlx5_0)\n"),
    ("env-conflict", "a:1:2 [0] bootstrap.cc:443 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port>\n", "", "a:1:2 [0] NCCL INFO NCCL_COMM_ID set by environment to 10.0.0.1:2345\n"),
    ("env-conflict", "a:1:2 [0] init.cc:800 NCCL WARN NCCL_WORK_FIFO_BYTES=1000 is being ignored because it is not a power of 2.\n", "", "a:1:2 [0] NCCL INFO NCCL_WORK_FIFO_BYTES set by environment to 1048576.\n"),
    ("benign", "a:1:2 [0] transport.cc:464 NCCL WARN Cannot initialize CollNet, using point-to-point network instead\n", "", "a:1:2 [0] NCCL INFO CollNet chains\n"),
    ("socket-interface-wrong", "ncclSystemError: System call (socket, malloc, munmap, etc) failed.\nINFO NET/Socket : Using\n[0]bond0:10.1.1.161<0>\n[1]br-05ab815fa14e:172.19.0.1<0>\n", "two nodes", "INFO NET/Socket : Using\n[0]bond0:10.1.1.161<0>\n[1]ib0:172.19.0.1<0>\n"),
    ("rendezvous-misconfigured", "RuntimeError: Address already in use\n", "srun python -m torch.distributed.launch --nnodes=2 --node_rank=0 main.py", "srun python main.py --node_rank=$SLURM_NODEID\n"),
    ("visible-devices-wrong", "RuntimeError: CUDA error: invalid device ordinal\n", "--tp-size 2, the script exports CUDA_VISIBLE_DEVICES=0", "RuntimeError: CUDA error: invalid argument\n"),
    ("rank-dependent-branch", "AssertionError: loss log variables are different across GPUs!\nrank 1 len(log_vars): 3 keys: loss_rpn_cls\n", "", "AssertionError: loss variables are different\n"),
    ("rank-busy-on-host", "Running tokenizer on dataset:  38%|### | 32068/85249 [32:13<53:59, 16.42ba/s]Traceback (most recent call last):\n", "", "Running tokenizer on dataset: 100%|#####| 85249/85249 [32:13<00:00, 16.42ba/s]\n"),
    ("visible-devices-wrong", "    torch.cuda.set_device(self._local_rank)\n    torch._C._cuda_setDevice(device)\n", "srun --ntasks-per-gpu=1 --nodes=2 python train.py fails", "    torch.cuda.set_device(self.first)\n"),
    ("peer-crashed", "srun: error: Node failure on node37\n", "", "srun: job 37 queued and waiting for resources\n"),
    ("net-plugin-failed", "NET/Plugin: libnccl-net.so: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found\nNET/IB : No device found.\nChannel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n", "far below what 16 NICs give",
     "NET/Plugin: dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so)\n"),
    ("peer-crashed", "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node\nrunning low on memory.\n", "", "the node is running low on memory\n"),
    ("data-stall", "'The read operation timed out' thrown while requesting GET https://example.org/c4.json.gz\n", "it ends in an NCCL timeout", "requesting GET https://example.org/c4.json.gz\n"),
    ("cpu-affinity", "OMP: Warning #124: Ignoring invalid OS proc ID 1.\n", "fit with several processes", "OMP: Warning #181: OMP_PLACES: ignored\n"),
    ("bus-id-collision", "NCCL error ncclInvalidUsage: Duplicate GPU detected: rank 0 and rank 1 both on CUDA device 901000\n", "eight GH200 nodes with one GPU each", "rank 0 is on CUDA device 901000\n"),
    ("cumem-mismatch", "Imported shareable buffer\n", "one boot in seven never comes up", "Imported a buffer\n"),
    ("network-path-blocked", "3 nodes: error\n", "an odd number of nodes fails", "3 nodes: ok\n"),
    ("gdr-disabled", "hd:7:9 [0] NCCL INFO DMA-BUF is not available on GPU device 0\n", "slow", "hd:7:9 [0] NCCL INFO DMA-BUF is available on GPU device 0\n"),
    ("foreign-connection", "a:1:2 [0] bootstrap.cc:112 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 542393671\n", "", "a:1:2 [0] bootstrap.cc:112 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 8\n"),
    ("gdr-broken-acs", "ib_mlx5_log.c:171  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/87)\nAMD-Vi: Event logged [IO_PAGE_FAULT device=c1:00.0 domain=0x0031 address=0xe0000000 flags=0x0030]\n", "",
     "ib_mlx5_log.c:171  all is well on mlx5_0:1/IB\n"),
    ("container-gpu-access", "a:1:1 [0] misc/nvmlwrap.cc:47 NCCL WARN Failed to open libnvidia-ml.so.1\nNVIDIA_DRIVER_CAPABILITIES=compute\n", "",
     "a:1:1 [0] misc/nvmlwrap.cc:47 NCCL WARN Failed to open libnvidia-ml.so.1\nNVIDIA_DRIVER_CAPABILITIES=compute,utility\n"),
    ("vgpu-or-mig-unsupported", "a:1:1 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Supported\nCUDA_VISIBLE_DEVICES: ['MIG-7a31c1a5-2fd4-5c0e-9b92-8a55e84f6ab2']\n", "",
     "a:1:1 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Supported\nCUDA_VISIBLE_DEVICES: ['0']\n"),
    ("net-plugin-failed", "a:1:2 [2] NCCL INFO NET/Plugin: Plugin load returned 2 : /opt/lib/libfabric.so.1: version `FABRIC_1.8' not found (required by libnccl-net.so) : when loading libnccl-net.so\n", "",
     "a:1:2 [2] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so\n"),
    ("env-conflict", "n:6:1 [2] NCCL INFO NCCL_SOCKET_IFNAME set by environment to \"bond0\"\n", "", "n:6:1 [2] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0\n"),
    ("gpu-exclusive-mode", "Check failed: CUDA_SUCCESS == dynload::cuCtxSetCurrent(context) (0 vs. 216)\n", "", "Check failed: CUDA_SUCCESS == dynload::cuCtxSetCurrent(context) (0 vs. 999)\n"),
    ("nvml-call-failed", "Error in thread 0: nvml error (999): A nvml internal driver error occurred\n", "", "Error in thread 0: an error (999) occurred\n"),
    ("nvml-call-failed", "RuntimeError: Runtime error: Not Supported\n        nvmlDeviceGetCpuAffinity( handle, cpu_mask->maskp) at init_cpu_mapping(/hugectr/include/utils.hpp:274)\n", "",
     "RuntimeError: Runtime error: Not Supported\n        setCpuAffinity( handle, cpu_mask->maskp) at init_cpu_mapping(/hugectr/include/utils.hpp:274)\n"),
    ("send-recv-unmatched", "if rank == 0:\n    req = torch.distributed.isend(tensor=t, dst=1)\n", "rank 0 hangs", "if rank == 0:\n    req = torch.distributed.barrier()\n"),
    ("framework-version-incompatible", "a:1:2 [0] misc/argcheck.cc:40 NCCL WARN Reduce : invalid root 0 (root should be in the 0..0 range)\na:1:2 [0] init.cc:840 NCCL WARN comm 0x7fdee40000c0 has already been destroyed\n", "",
     "a:1:2 [0] misc/argcheck.cc:40 NCCL WARN Reduce : invalid root 9 (root should be in the 0..7 range)\n"),
    ("device-not-set-per-rank", "RuntimeError: CUDA error: invalid device ordinal\n", "tensor parallel 2 over two nodes of one GPU each; it crashes on the second", "RuntimeError: CUDA error: out of memory\n"),
    ("peer-crashed", "docker run --gpus all --memory=100g --memory-swap=100g\n", "the launch hangs with no error message, rank 0 is alive", "docker run --gpus all\n"),
    ("p2p-broken-acs-iommu", "tensor([1, 2])\ntensor([1, 2], device='cuda:0')\ntensor([0, 0], device='cuda:1')\n", "a tensor is moved from GPU 0 to GPU 1", "tensor([1, 2])\ntensor([1, 2], device='cuda:0')\ntensor([1, 2], device='cuda:1')\n"),
    ("rendezvous-name-resolution", "    raise RendezvousTimeoutError()\ntorch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n", "eight pods, some attempts work", "    raise TimeoutError()\n"),
    ("env-conflict", "NCCL_P2P_LEVEL set by environment to LOC\nGPU 0: NVIDIA A100-SXM4-80GB\n", "far slower than expected", "NCCL_P2P_LEVEL set by environment to NVL\nGPU 0: NVIDIA A100-SXM4-80GB\n"),
    ("device-not-set-per-rank", "    cp.cuda.Device(self.hvd_rank).use()\ncupy.cuda.runtime.CUDARuntimeError: cudaErrorInvalidDevice: invalid device ordinal\n", "it stops as soon as a second machine joins",
     "    cp.cuda.Device(self.hvd_local_rank).use()\n"),
    ("p2p-broken-acs-iommu", "a:1:1 [0] NCCL INFO NET/IB : No device found.\n#  Rank  0 Group  0 Pid  149 on  a device  0 [0x56] NVIDIA A100\n", "all_reduce_perf -g 2 on one server blocks after initialisation and never prints a row; no error", "a:1:1 [0] NCCL INFO NET/IB : No device found.\n"),
    ("framework-version-incompatible", "cannot import name 'log' from 'torch.distributed.elastic.agent.server.api' (/venv/torch/distributed/elastic/agent/server/api.py)\n", "", "import name 'log' from 'torch.distributed.elastic.agent.server.api'\n"),
    ("shm-too-small", "[2023-07-20 15:45:13,980] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 3966\n", "both processes are gone, no traceback, return code -7", "[launch.py:315] Killing subprocess 3966\n"),
    ("net-plugin-failed", "-> aws-ofi-nccl: 'No eligible providers were found' -> NCCL falls back\n", "", "-> aws-ofi-nccl: 'providers were found'\n"),
    ("peer-crashed", "ImportError: cannot stat shared object: Stale file handle\n", "one rank prints this and dies", "shared object: file handle\n"),
    ("benign", "x/osu_alltoall: /lib/libnl-3.so.200: no version information available (required by /usr/lib64/libcxi.so.1)\n", "every rank prints it", "libnl-3.so.200: no version\n"),
    ("rendezvous-misconfigured", "ValueError: Port could not be cast to integer value as 'f3:03::e1:c6c9::d:52001'\n", "", "ValueError: could not cast to integer value\n"),
    ("nccl-bug", " 4294967296  134217728  float  29122  129.05  129.05  1e+00\n Out of bounds values : 2 FAILED\n", "wrong data", " 1024  256  float  29  0.05  0.05  1e-07\n Out of bounds values : 0 OK\n"),
    ("p2p-broken-acs-iommu", " 1024  256  float  29  0.05  0.05  1e+00\n Out of bounds values : 2 FAILED\n", "wrong data", " 1024  256  float  29  0.05  0.05  1e-07\n Out of bounds values : 0 OK\n"),
    ("visible-devices-wrong", 'Traceback (most recent call last):\n  File "ray/_private/utils.py", line 281, in set_visible_accelerator_ids\n', "", 'Traceback (most recent call last):\n  File "ray/_private/utils.py", line 281, in get_node\n'),
    ("net-socket-fallback", "a:24:201 [0] INFO Using internal Network Socket\na:24:201 [0] INFO NET : Using interface ib0:192.168.11.1<0>\n", "", "a:24:201 [0] INFO Using internal Network Socket\na:24:201 [0] INFO NET : Using interface eth0:192.168.11.1<0>\n"),
    ("more-ranks-than-gpus", "(EngineCore_1 pid=7863)     physical_device_id = device_ids[device_id]\n(EngineCore_1 pid=7863) IndexError: list index out of range\n", "", "    physical = ids[1]\nIndexError: list index out of range\n"),
    ("socket-interface-wrong", "a:2330:2658 [2] NCCL INFO misc/socket.cc:567 -> 2\na:2330:2658 [2] NCCL INFO bootstrap.cc:270 -> 2\n", "it fails", "a:2330:2658 [2] NCCL INFO transport.cc:270 -> 1\n"),
    ("socket-interface-wrong", "(RayWorkerVllm pid=2, ip=10.0.1.75) [E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (172.17.0.2, 44737).\n", "", "(RayWorkerVllm pid=2, ip=10.0.1.75) [E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (10.0.1.9, 44737).\n"),
    ("cpu-affinity", "    os.sched_setaffinity(0, mask)\nOSError: [Errno 22] Invalid argument\n", "", "    os.open(path, 0)\nOSError: [Errno 22] Invalid argument\n"),
    ("benign", "NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.\nNCCL version 2.20.3+cuda12.4\n", "I see 'Failed to find ncclNetPlugin_v8 symbol' at start", "NCCL version 2.20.3+cuda12.4\n"),
    ("benign", "  File \"/usr/lib/python3.10/multiprocessing/resource_tracker.py\", line 209, in main\n    cache[rtype].remove(name)\nKeyError: '/psm_10b3d52e'\n", "printed at every start; inference runs normally", "KeyError: 'rank'\n"),
    ("rank-busy-on-host", "35%|### | 738/2081 [30:01<57:14, 39.1MB/s]\n[E ProcessGroupNCCL.cpp:485] [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802246 milliseconds before timing out.\n", "", "35%|### | 738/2081 [03:01<57:14, 39.1MB/s]\n"),
    ("visible-devices-set-too-late", "(EngineCore_3 pid=9) Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 8000 PyNcclCommunicator(\n", "data_parallel_size 8", "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 8000 PyNcclCommunicator(\n"),
    ("env-conflict", "RuntimeError: Please use HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES\n", "", "RuntimeError: Please use another device\n"),
    ("ulimit-too-low", W + "Call to ibv_reg_dmabuf_mr failed with error Cannot allocate memory\n", "", "ibv_reg_dmabuf_mr\n"),
    ("benign", "Invalidate trace cache @ step 0 and module 1458: cache has only 0 modules\n", "printed at every step", "trace cache\n"),
    ("framework-version-incompatible", "ssh: Could not resolve hostname localhost:4: Temporary failure in name resolution\n", "", "ssh: Could not resolve hostname node4: Temporary failure in name resolution\n"),
    ("visible-devices-set-too-late", 'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "CUDAContext.cpp":49 device=1, num_gpus=\n', "", "RuntimeError: device >= 0 is asserted\n"),
    ("nccl-bug", "NCCL INFO Topology detection: network path /sys/usb1/1-1 is not a PCI device (usb). Attaching to first CPU\n" + W + "Attribute busid of node nic not found\n", "", W + "Attribute busid of node gpu not found\n"),
    ("peer-crashed", "it hangs at the end\n    destroy_process_group (torch/distributed/distributed_c10d.py:2184)\n", "it hangs", "it hangs at the end\n    main (train.py:9)\n"),
    ("gpu-or-link-fault", W + "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case\n", "", "node0:7:7 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0.\n"),
    ("foreign-connection", W + "Message truncated : received 542393671 bytes instead of 8\n", "", W + "Message truncated : received 2048 bytes instead of 512\n"),
    ("foreign-connection", W + "socketFinalizeAccept: wrong type 1347703880 != 2\n", "", "node0:7:7 [0] NCCL INFO socketFinalizeAccept: type 2 of 1347703 bytes\n"),
    ("rendezvous-name-resolution", "[gloo/transport/tcp/pair.cc:761] connect [127.0.1.1]:4117: Connection refused\n", "two nodes", "[gloo/transport/tcp/pair.cc:761] connect [192.0.2.1]:4117: Connection refused\n"),
    ("rendezvous-name-resolution", "device.cc:83] rp != nullptr. Unable to find address for: node7.lan\n", "", "device.cc:83] ifa != nullptr. Unable to find address for: eth7\n"),
    ("network-path-blocked", W + "NET/OFI Unable to insert remote address into address vector for device 0. RC: -12\n", "", W + "NET/OFI Unable to register memory (type = 2) for device 0\n"),
    ("net-plugin-failed", W + "NET/OFI Unable to insert remote address into address vector for device 0. RC: -12\n", "", "node0:7:7 [0] NCCL INFO NET/OFI Selected Provider is efa\n"),
    ("start-skew", "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.\n", "", "TP rank 1: model loading is done\n"),
    ("communicator-recreated", W + "Cuda failure 2 'out of memory'\n", "a new_group in every training step", W + "Cuda failure 2 'out of memory'\n"),
    ("rendezvous-misconfigured", W + "Bootstrap Root : mismatch in rank count from procs 8 : 16\n", "workers of another job still run", "Bootstrap Root : 8 ranks\n"),
    ("gpu-or-link-fault", "kernel: nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): 12028, Fatal, Link 32 egress non-posted\n", "", "kernel: nvidia-nvswitch3: open (major=509)\n"),
    ("fabric-manager-down", W + "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration\n", "", "NCCL INFO MNNVL 1 cliqueId 7\n"),
    ("vgpu-or-mig-unsupported", "RuntimeError: CUDA error: invalid device ordinal\nGPU 0: A100 (MIG 3g.40gb)\n", "", "MIG mode: Disabled\n"),
    ("nccl-library-conflict", "Failed to load NCCL library from libnccl.so.2 .\n", "", "INFO found nccl from library libnccl.so.2\n"),
    ("topology-file-bad", "node0:7:7 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /g.xml\n" + W + "XML Import Channel : dev 1 not found.\n", "", "node0:7:7 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /t.xml\n"),
    ("net-plugin-failed", "node0:7:7 [0] x:9 NCCL WARN NET/OFI Couldn't set the option. RC: -38, ERROR: Function not implemented\n", "", "node0:7:7 [0] NCCL INFO NET/OFI Selected Provider is efa\n"),
    ("ulimit-too-low", W + "Call to ibv_create_qp failed\n", "ulimit -l prints 64", "ibv_create_qp ok\n"),
    ("roce-gid-wrong", "NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE\n" + W + "NET/IB: Got completion from peer 192.0.2.1<4> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=x(1) vendor_err=129\n", "", W + "NET/IB: Got completion from peer 192.0.2.1<4> with status=5 opcode=1 vendor err 249\n"),
    ("network-path-blocked", W + "NET/IB : Got completion from peer 192.0.2.1<4> with error 12, opcode 1, len 0, vendor err 129\n", "", W + "NET/IB : Got completion from peer 192.0.2.1<4> with error 5, opcode 1, len 0, vendor err 249\n"),
    ("socket-interface-wrong", W + "socketStartConnect: Connect to 172.17.0.2<38847> failed : Software caused connection abort\n", "", "NCCL INFO Bootstrap: Using eth0:172.31.0.2<0>\n"),
    ("nodes-differ", W + "NET/IB : Local mergedDev mlx5_0 has a different number of devices=2 as remote mlx5_0 1\n", "", "NCCL INFO NET/IB : Made virtual device [1] name=mlx5_0+mlx5_1\n"),
    ("nodes-differ", "a:7:7 [0] NCCL INFO Using network IB\nb:7:7 [0] NCCL INFO Using network Socket\n", "", "a:7:7 [0] NCCL INFO Using network IB\nb:7:7 [0] NCCL INFO Using network IB\n"),
    ("gdr-broken-acs", "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+\nNCCL INFO Channel 00 : 8[1a000] -> 0[1a000] [receive] via NET/IB/0/GDRDMA\n", "it crashes", "ACSCtl:\tSrcValid- TransBlk- ReqRedir-\n"),
    ("rendezvous-misconfigured", W + "Bootstrap Root : mismatch in rank count from procs 8 : 16\n", "", "Bootstrap Root : 8 ranks\n"),
    ("collective-mismatch", CALL.format(p=7, d=0, op="Broadcast", n=25503912, t=6) + CALL.format(p=8, d=1, op="Broadcast", n=53, t=4), "", CALL.format(p=7, d=0, op="Broadcast", n=53, t=4) + CALL.format(p=8, d=1, op="Broadcast", n=53, t=4)),
    ("collective-mismatch", CALL.format(p=7, d=0, op="AllReduce", n=9984512, t=7).replace("opCount 0", "opCount 28c") + CALL.format(p=8, d=1, op="AllGather", n=59205120, t=0).replace("opCount 0", "opCount 28c"), "", CALL.format(p=7, d=0, op="AllReduce", n=9984512, t=7).replace("opCount 0", "opCount 28c") + CALL.format(p=8, d=1, op="AllGather", n=59205120, t=0).replace("opCount 0", "opCount 28d")),
    ("env-conflict", "node0:7:7 [0] NCCL INFO Using network IBext_v8\n", "NCCL_IB_DISABLE=1", "node0:7:7 [0] NCCL INFO Using network IBext_v8\n"),
    ("more-ranks-than-gpus", "Test NCCL failure common.cu:958 'invalid device count (8) requested'\n", "", "invalid device count\n"),
    ("device-not-set-per-rank", W + "AllReduce : sendbuff allocated on device 0 mismatchs with NCCL device 1\n", "", "sendbuff allocated on device 0\n"),
    ("socket-interface-wrong", W + "no device found matching eth9, verify NCCL_OOB_NET_IFNAME\n", "", "NCCL INFO NCCL_OOB_NET_IFNAME set to eth0\n"),
    ("cpu-affinity", W + "sched_setaffinity failed with error: Invalid argument\n", "", "NCCL INFO Setting affinity for GPU 0 to ff\n"),
    ("nodes-differ", W + "Rank 8 requires NIC 3 but that NIC is not available for rank 0\n", "", "NCCL INFO Using 4 NICs\n"),
    ("gpu-memory-exhausted", "ValueError: Free memory on device cuda:0 (9.5/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).\n", "", "INFO: GPU KV cache size: 80,000 tokens\n"),
    ("driver-too-old", W + "NCCL cannot be captured in a graph if either it wasn't built with CUDA runtime >= 11.3 or if the installed CUDA driver < R465.\n", "", "CUDA driver R580\n"),
    ("nccl-bug", "node0:7:7 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856\n", "", "node0:7:7 [0] NCCL INFO maxSharedMem 79856\n"),
    ("gpu-or-link-fault", "RuntimeError: CUDA error: an illegal memory access was encountered\n", "", "memory access pattern\n"),
    ("collective-mismatch", "error msg: Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes\n", "", "collective state: completed\n"),
    ("peer-crashed", "[ERROR] [launch.py:320:sigkill_handler] ['python', 'train.py'] exits with return code = -9\n", "", "[INFO] [launch.py:347:main] Process 7 exits successfully.\n"),
    ("visible-devices-wrong", "(pid=7) " + W + "failed to open CUDA IPC handle : 217 peer access is not supported between these two devices\n", "", "(pid=7) NCCL INFO Channel 00 : 1 -> 0 via P2P/IPC\n"),
    ("gpu-or-link-fault", W + "NET/IB : mlx5_0:1 Got async event : port error\n", "", W + "NET/IB : mlx5_0:1 Got async event : port active\n"),
    ("rendezvous-misconfigured", "ValueError: An IPv4 address cannot be in brackets\n", "", "tcp://[fd00::7]:29500\n"),
    ("nccl-library-conflict", "NCCL version 2.19.3+cuda11.0\n" + W + "NCCL cannot be captured in a graph if either it wasn't built with CUDA runtime >= 11.3\n", "", "NCCL version 2.19.3+cuda11.0\n"),
    ("timeout-on-other-group", BARRIER.format(2), "timeout=timedelta(hours=1) in the arguments", BARRIER.format(1)),
    ("ulimit-too-low", "fork: Resource temporarily unavailable\n", "", W + "[Service thread] Accept failed Resource temporarily unavailable\n"),
    ("collective-on-some-ranks-only", "Not all ranks joining collective, sequence number: 12 missing ranks: {1}\n", "", "All ranks joined collective 12\n"),
    ("rank-dependent-branch", "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n", "", "reduction finished\n"),
    ("send-recv-unmatched", W + "Trying to recv to self without a matching send\n", "", "recv matched\n"),
    ("timeout-on-other-group", hung(0, 2), "--distributed-timeout-seconds 3600 is not propagated to the tensor-parallel group", hung(0, 2, limit=3600000)),
    ("rank-busy-on-host", "train: Scanning /data/labels... 120 images:  61%|######    | 1201300/1970000 [29:58<19:10]\n" + hung(1, 2), "", "train: Scanning /data/labels: 100%|##########| 19/19 [00:01<00:00]\n"),
    ("engine-deadlock", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n", "", "INFO EngineCore started\n"),
    ("framework-version-incompatible", "Disabling elastic training support as PyTorch version should be greater than 1.11.x\n", "", "PyTorch version 2.11\n"),
    ("gdr-disabled", "NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/1/GDRDMA\nNCCL INFO Channel 00 : 0[7000] -> 8[7000] [receive] via NET/IB/0\n", "", "NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/1/GDRDMA\n"),
    ("env-conflict", W + "Error: network IBX not found.\n", "", "NCCL INFO Using network IB\n"),
    ("peer-crashed", "ray: Workers killed due to memory pressure (OOM)\n" + hung(1), "", "memory pressure is low\n"),
    ("nccl-bug", "NCCL version 2.14.3+cuda11.7\n" + W + "Failed to find reverse path from remNode 0/5f000 nlinks 4 to node 0/cb000\n", "", "NCCL version 2.14.3+cuda11.7\n"),
    ("foreign-connection", W + "socketProgress: Connection closed by remote peer 10.10.1.3<36138>\n", "a security scan of the network runs at night", W + "socketProgress: Connection closed by remote peer 10.10.1.3<36138>\n"),
    ("trainer-and-engine-share-gpu", DUPLICATE, "GRPO training with a vLLM server", "GRPO training with a vLLM server\n"),
    ("cumem-mismatch", "RuntimeError: NCCL error: unhandled cuda error\n", "weight sync; vLLM sets NCCL_CUMEM_ENABLE=0, the trainer does not", "NCCL INFO NCCL_CUMEM_ENABLE set by environment to 0\n"),
    ("peer-stopped", "(Pdb) \n" + hung(1), "", "pdb is not used\n"),
    ("peer-stopped", "/sys/fs/cgroup/freezer/job_7/freezer.state: FROZEN\n", "", "vision tower: frozen, 0 of 303 M parameters are trained\n"),
    ("peer-stopped", "populated 1\nfrozen 1\n", "", "The language model is Frozen; ptrace_scope is 1\n"),
    ("data-stall", "epoch 1\n", "the dataloader hangs after the first epoch", "DataLoader: 8 workers\n"),
    ("per-parameter-sync", "sync took 130 s\n", "weights are sent tensor by tensor", "weights were sent in 3 buckets\n"),
    ("visible-devices-set-too-late", "x\n", "CUDA_VISIBLE_DEVICES is set after import torch and has no effect", "CUDA_VISIBLE_DEVICES=0,1\n"),
    ("benign", W + "Failed to open libibverbs.so[.1]\n" + "NCCL INFO Using network Socket\n# Out of bounds values : 0 OK\n", "", W + "Failed to open libibverbs.so[.1]\n" + hung(1)),
    ("visible-devices-wrong", "RuntimeError: CUDA error: invalid device ordinal\n", "srun --ntasks-per-node=8 --gpus-per-task=1", "RuntimeError: CUDA error: invalid argument\n"),
    ("visible-devices-wrong", "node0:7:7 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n", "", "node0:7:7 [0] NCCL INFO transport/p2p.cc:275 -> 1\n"),
    ("more-ranks-than-gpus", "RuntimeError: Duplicated GPU device is not allowed by NCCL. Rank [0] and rank [8] both attached to GPU device 0\n", "", "Rank [0] attached to GPU device 0\n"),
    ("ulimit-too-low", "ib_log.c:246 UCX ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited'\n", "", "UCX  INFO mlx5_0: ibv_create_cq() ok\n"),
    ("roce-gid-wrong", W + "Call to ibv_modify_qp failed with error Connection timed out\n", "with GID index 3 it works", W + "Call to ibv_close_device failed with error Connection timed out\n"),
    ("rank-busy-on-host", "Preparing test set: 39%|# | 26/67 [24:51<30:30, 44.6s/it]\nP[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800008 milliseconds before timing out.\n", "", "Preparing test set: 39%|# | 26/67 [24:51<30:30, 44.6s/it]\n"),
    ("socket-interface-wrong", "Connect to 169.254.3.1<41235> failed : Connection refused\n", "", "Connect to 192.0.2.1<41235> ok\n"),
    ("shm-too-small", "OSError: [Errno 28] No space left on device\n", "docker run -it --gpus all image", "OSError: [Errno 2] No such file or directory\n"),
    ("gdr-disabled", "node0:7:7 [0] NCCL INFO Channel 00 : 8[d] -> 0[d] [receive] via NET/IB/0\n", "poor bandwidth; GPU Direct RDMA has not been set up", "node0:7:7 [0] NCCL INFO Channel 00 : 8[d] -> 0[d] [receive] via NET/IB/0/GDRDMA\n"),
    ("p2p-broken-acs-iommu", W + 'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!\n', "", "Command line: BOOT_IMAGE=/vmlinuz iommu=pt\n"),
    ("rank-dependent-branch", "step 1\n", "ZeRO-3 hangs: one rank emits EOS and leaves generation while others decode on; generation ends at different lengths", "step 1\n"),
    ("data-stall", "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=301, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1809852 milliseconds\n", "StreamingDataset", "[Rank 3] WorkNCCL ok\n"),
    ("net-socket-fallback", "node0:7:7 [0] NCCL INFO NET/Socket : Using [0]ib0:192.0.2.1<0>\n", "", "node0:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>\n"),
    ("net-socket-fallback", "node0:7:7 [0] NCCL INFO NET/Socket : Using [0]bond0:192.0.2.1<0>\n", "five times slower than expected on RoCE", "node0:7:7 [0] NCCL INFO NET/Socket : Using [0]bond0:192.0.2.1<0>\n"),
    ("nodes-differ", "node1:7:7 [0] x.cc:9 NCCL WARN NET/IB : Unable to open device erdma_1\nnode0:7:7 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1\n", "2 nodes", "node1:7:7 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1\n"),
    ("nodes-differ", W + "NET/Socket : peer 192.0.2.1 message truncated : receiving 524288 bytes instead of 65536\n", "", "receiving 65536 bytes\n"),
    ("socket-interface-wrong", "[u1][[1,1],2][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to 172.17.0.1 failed: Connection refused (111)\n", "", "connect() to 192.0.2.7 failed\n"),
    ("socket-interface-wrong", "node0:7:7 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>\n", "hangs on two nodes", "node0:7:7 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>\n"),
    ("engine-allreduce-needs-p2p", "INFO engine starts\n", "with --disable-custom-all-reduce it starts", "disable_custom_all_reduce=True\n"),
    ("scheduler-shares-gpu", "NcclError: NCCL_ERROR_INVALID_USAGE: invalid usage\n", "Ray actors with num_gpus=0.25", "num_gpus=0.25\n"),
    ("device-not-set-per-rank", "step 0\n", "training hangs: every rank uses GPU 0", "step 0\n"),
    ("communicator-order", "step 0\n", "deadlock: some ranks find a cached communicator while others create one", "step 0\n"),
    ("p2p-broken-acs-iommu", "Cuda failure 'peer access is not supported between these two devices'\n", "", "peer access enabled\n"),
    ("gpu-or-link-fault", "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=9, name=python3, Ch 00000001 caused by previous Xid 149\n", "", "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=9, name=python3, Ch 00000001\n"),
    ("gpu-or-link-fault", W + "Cuda failure 999 'unknown error'\n", "", W + "unknown option\n"),
    ("fabric-manager-down", W + "Cuda failure 1 'invalid argument'\n", "it began after the fabric manager was restarted", W + "Cuda failure 1 'invalid argument'\n"),
    ("fabric-manager-down", W + "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.\n", "", "node0:7:7 [0] NCCL INFO NVLS multicast support is available on dev 0\n"),
    ("driver-library-mismatch", "Error 803: system has unsupported display driver / cuda driver combination\n", "", "display driver 580.1\n"),
    ("container-gpu-access", "UserWarning: CUDA initialization: CUDA driver initialization failed, you might not have a CUDA gpu.\n", "", "CUDA initialization: done\n"),
    ("container-gpu-access", W + "nvmlDeviceGetHandleByPciBusId() failed: Not Found\n", "", "nvmlDeviceGetHandleByPciBusId() ok\n"),
    ("visible-devices-wrong", W + "nvmlDeviceGetHandleByPciBusId() failed: Not Found\n", "every task has its own GPU", W + "nvmlDeviceGetHandleByPciBusId() failed: Unknown Error\n"),
    ("driver-too-old", W + "nvmlDeviceGetGpuFabricInfoV() failed: Function Not Found\n", "", W + "nvmlDeviceGetGpuFabricInfoV() failed: Unknown Error\n"),
    ("gpu-exclusive-mode", "RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server\n", "", "the MPS paper\n"),
    ("vgpu-or-mig-unsupported", W + "Cuda failure 304 'OS call failed or operation not supported on this OS'\n", "", "OS call done\n"),
    ("gpu-memory-exhausted", W + "Failed to CUDA host alloc 4096 bytes\n", "", "node0:7:7 [0] NCCL INFO CUDA host alloc 4096 bytes\n"),
    ("nccl-library-conflict", W + "Invalid config blocking attribute value -2147483648\n", "", "node0:7:7 [0] NCCL INFO Comm config Blocking set to 1\n"),
    ("nccl-library-conflict", "NameError: name 'ncclGetVersion' is not defined\n", "", "ncclGetVersion 22809\n"),
    ("framework-version-incompatible", "ImportError: x_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi\n", "", "ImportError: libx.so: undefined symbol: ncclMemFree\n"),
    ("framework-version-incompatible", "ImportError: ext.so: undefined symbol: ncclGetLsaDevicePointer\n", "after pip install of an engine", "ImportError: ext.so: undefined symbol: ncclGetLsaDevicePointer\n"),
    ("topology-file-bad", "node0:7:7 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /g.xml\nNCCL failure 'unhandled system error'\n", "", "node0:7:7 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /g.xml\n"),
    ("topology-file-bad", W + "Could not find real path of /sys/class/pci_bus/0000:01/../../0000:01:00.0\n", "", "real path of /data\n"),
    ("cumem-mismatch", "node0:7:7 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n", "", "node0:7:7 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n"),
    ("cumem-mismatch", W + "UDS: Sending data over socket /tmp/nccl-socket-3-7 failed : Connection refused (111)\n", "", "Connection refused (111)\n"),
    ("engine-allreduce-needs-p2p", "RuntimeError: CUDART error: peer access is not supported between these two devices\n", "", "CUDART ok\n"),
    ("engine-allreduce-needs-p2p", "RuntimeError: peer access is not supported between these two devices\n", "an inference engine with tensor parallelism", W + "peer access is not supported between these two devices\n"),
    ("env-conflict", W + 'Unrecognized element token "Rings" when parsing "allreduce:Rings"\n', "", "node0:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"),
    ("env-conflict", W + "Invalid NCCL_NTHREADS 48 (must be a multiple of 32)\n", "", "node0:7:7 [0] NCCL INFO NCCL_NTHREADS set by environment to 256\n"),
    ("env-conflict", "node0:7:7 [0] NCCL INFO NCCL_IBEXT_DISABLE set by environment to 1.\nnode0:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_9:1/RoCE\n", "it is disabled but RoCE is still used", "node0:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_9:1/RoCE\n"),
    ("nccl-bug", "Caught signal 11 (Segmentation fault)\n 3  /opt/nccl/lib/libnccl.so(+0x120057) [0x7ff1c18c1057]\n", "", "/opt/nccl/lib/libnccl.so.2\n"),
    ("cpu-affinity", "node0:7:7 [0] NCCL INFO Setting affinity for GPU 0 to 01\n", "one core for each task", "node0:7:7 [0] NCCL INFO Setting affinity for GPU 0 to 01\n"),
    ("device-not-set-per-rank", "RuntimeError: CUDA error: invalid device ordinal\n", "torchrun on two nodes, fails on every node but the first", "RuntimeError: CUDA error: invalid argument\n"),
    ("trainer-and-engine-share-gpu", DUPLICATE, "a client calls init_communicator() of the server", "init_communicator() done\n"),
    ("visible-devices-set-too-late", DUPLICATE, "a setup_hook imports torch before the worker", "setup_hook ran\n"),
    ("bus-id-collision", DUPLICATE, "both GPUs have their own UUIDs", "GPU 0: (UUID: GPU-1)\n"),
    ("visible-devices-wrong", "RuntimeError: No CUDA GPUs are available\n", "inside a Ray actor", "no GPU needed\n"),
    ("visible-devices-wrong", "ValueError: Current node has no GPU available. Ray does not allocate any GPUs on the driver node.\n", "", "Ray: 8 GPUs on this node\n"),
    ("container-gpu-access", "RuntimeError: No CUDA GPUs are available\n", "in a docker container", "no GPU needed\n"),
    ("container-gpu-access", "graph/topo.cc:605 NCCL WARN Set CPU affinity : unable to find GPU/CPU for rank 0\n", "", "NCCL INFO Set CPU affinity\n"),
    ("framework-version-incompatible", "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.1).\n", "", "CUDA version 12.1\n"),
    ("device-not-set-per-rank", "step 1\n", "torch.load without map_location; the processes of the other GPUs take memory on GPU 0", "step 1\n"),
    ("driver-too-old", "torch.cuda.is_available() -> False\n", "we must update the driver", "torch.cuda.is_available() -> True\n"),
    ("communicator-recreated", "step 1\n", "each weight update opens its own communicators", "step 1\n"),
    ("gpu-exclusive-mode", "| N/A   34C    P0    63W / 235W |     74MiB / 11439MiB |      0%   E. Process |\n", "", "|  0%      Default |\n"),
    ("vgpu-or-mig-unsupported", "ncclInvalidUsage: invalid usage\n  MIG 3g.20gb     Device  0: (UUID: MIG-5a8b1c2d-1)\n", "", "ncclInvalidUsage: invalid usage\n|                               |                      |               MIG M. |\n"),
    ("rendezvous-misconfigured", "RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:30:00)\n", "", "Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes.\n"),
    ("rendezvous-misconfigured", "[I socket.cpp:624] [c10d - debug] No socket on (192.0.2.1, 29400) is listening yet, will retry.\n", "", "[I socket.cpp:624] [c10d - debug] The server socket has started to listen on [::]:29400.\n"),
    ("rendezvous-misconfigured", "ValueError: port must have value from 0 to 65535 but was 66660.\n", "", "master port 6666\n"),
    ("rendezvous-misconfigured", "initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/4\n", "two nodes, and nothing more happens", "initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/4\n"),
    ("start-skew", "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n", "", "[1] retrieved ncclUniqueId\n"),
    ("rank-busy-on-host", "[W socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[localhost]:4117, remote=[localhost]:2950) timed out after 1800000ms\n", "", "[W socket.cpp:464] [c10d] waitForInput: poll for socket returned 1\n"),
    ("peer-crashed", "[W TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=5, addr=[n1]:4444, remote=[n0]:2950): Broken pipe\n", "the job fails", "sendBytes 5\n"),
    ("peer-crashed", "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?\n", "", "recv got 16 bytes\n"),
    ("peer-crashed", "[Rank 3] Found key in store: NCCLABORTEDCOMM:12ab, from rank: 5. This means that rank has aborted its NCCL communicators previously\n", "", "key in store: 12ab\n"),
    ("peer-crashed", "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).\n", "", "process rank 3 started on node n1\n"),
    ("collective-on-some-ranks-only", "\t - [1] finished collective #11, but didn't join collective #12 (count from 1)\n", "",
     "*** SIGSEGV received at time=1775734074 on cpu 19 ***\n\t - [1] finished collective #11, but didn't join collective #12 (count from 1)\n"),
    ("collective-on-some-ranks-only", "\t - To our best knowledge, ranks [1] are the lagging ranks that caused this timeout. They never joined any collectives\n", "", "ranks [1] joined\n"),
    ("collective-on-some-ranks-only", "RuntimeError: [Rank 1]: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.\n", "", "Rank 1 successfully reached monitoredBarrier\n"),
    ("collective-on-some-ranks-only", "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n", "", "tensors were broadcasted by all ranks\n"),
    ("collective-mismatch", "HorovodInternalError: Mismatched allreduce tensor shapes: One rank sent a tensor of shape [3], but another rank sent a tensor of shape [4].\n", "", "allreduce tensor shapes: [3]\n"),
    ("collective-mismatch", "[enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4\n", "", "gloo preamble read\n"),
    ("ulimit-too-low", "RuntimeError: received 0 items of ancdata\n", "", "received 4 items\n"),
    ("shm-too-small", "RuntimeError: unable to write to file </torch_18692_1954506624>\n", "", "unable to write to file </data/out>\n"),
    ("shm-too-small", "failed (exitcode: -7) local_rank: 2 (pid: 4114) of binary: python3\n", "", "failed (exitcode: 7) local_rank: 2 (pid: 4114) of binary: python3\n"),
    ("engine-deadlock", "RuntimeError: Engine iteration timed out. This should never happen!\n", "", "Engine iteration 4\n"),
    ("engine-deadlock", "all_reduce (torch/distributed/distributed_c10d.py:3075)\n    check_progress (cache.py:13)\n    get_batch (scheduler.py:2679)\n", "the server hangs", "get_batch (scheduler.py:2679)\n"),
    ("straggler", "        SW Thermal Slowdown               : Active\n", "", "        SW Thermal Slowdown               : Not Active\n"),
    ("nodes-differ", W + "socketFinalizeAccept: wrong type 4 != 3\n", "", W + "socketFinalizeAccept: accepted\n"),
    ("nodes-differ", "box:7:7 [0] NCCL INFO Using network Socket\nbox:9:9 [0] NCCL INFO Using network IB\n", "", "box:7:7 [0] NCCL INFO Using network IB\nbox:9:9 [0] NCCL INFO Using network IB\n"),
    ("socket-interface-wrong", "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth7\nncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)\n", "", "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth7\n"),
    ("network-path-blocked", "UCX ERROR mlx5_0:1/IB: Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)\n", "", "UCX INFO mlx5_0:1/IB: transport rc\n"),
    ("network-path-blocked", "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/1\n", "the first all_reduce over two machines times out", "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/1\n"),
    ("gdr-disabled", "NCCL INFO NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR\n", "", "NCCL INFO NET/OFI GDR is on\n"),
    ("gdr-broken-acs", "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+\n", "it crashes once nv_peer_mem is loaded", "ACSCtl:\tSrcValid- TransBlk-\n"),
    ("p2p-broken-acs-iommu", W + "failed to open CUDA IPC handle : 1 invalid argument\n", "", "CUDA IPC handle opened\n"),
    ("rank-busy-on-host", "Evaluating:  50%|#####     | 5/10 [00:12<00:12, 2.4s/it]\n" + hung(1, 40), "", "Evaluating:  50%|#####     | 5/10 [00:12<00:12, 2.4s/it]\n"),
    ("benign", "Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n", "", "the flag should dump\n" + hung(1)),
    ("benign", "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.\n", "", "master_addr 192.0.2.1\n" + hung(1)),
    ("benign", W + "Cuda failure 3 'initialization error'\nstep 20 loss 9.1\n", "training is normal, only such warnings", W + "Cuda failure 3 'initialization error'\n"),
    ("socket-interface-wrong", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n", "", "Gloo connectFullMesh failed with [pair.cc:144] Connection refused, remote=[127.0.1.1]:20215\n"),
    ("network-path-blocked", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n", "", "Gloo connected\n"),
    ("collective-on-some-ranks-only", "Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:3 (world_size=4, worker_count=2, timeout=0:30:00)\n", "", "Waiting in store based barrier to initialize process group for rank: 1, key: store_based_barrier_key:1 (world_size=4, worker_count=2, timeout=0:30:00)\n"),
    ("idle-wait-in-collective", hung(1, 40, "BROADCAST"), "a chat server on two GPUs", hung(1, 40, "BROADCAST")),
    ("nodes-differ", W + "NET/IB : Got completion from peer 192.0.2.1<4> with error 12, opcode 0, len 0, vendor err 129\n", "one of our nodes has another NIC firmware than the rest", W + "NET/IB : Got completion from peer 192.0.2.1<4> with error 12, opcode 0, len 0, vendor err 129\n"),
    ("rank-busy-on-host", "> WARNING: could not find index map files, building the indices on rank 0 ...\nRuntimeError: Socket Timeout\n", "", "> WARNING: could not find index map files, building the indices on rank 0 ...\n"),
    ("start-skew", "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading.\n", "", "all ranks finished loading\n"),
    ("peer-crashed", "worker-1: FileNotFoundError: [Errno 2] No such file or directory: 'doc_idx.npy'\n", "", "worker-1: file found\n"),
    ("foreign-connection", W + "socketProgress: Connection closed by remote peer 192.0.2.3<36138>\nnode0:7:7 [0] NCCL INFO bootstrap.cc:701 -> 6\n", "", W + "socketProgress: Connection closed by remote peer 192.0.2.3<36138>\nnode0:7:7 [0] NCCL INFO transport/net.cc:701 -> 6\n"),
    ("gpu-or-link-fault", "kernel: NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)\nCUDA error: CUDA-capable device(s) is/are busy or unavailable\n", "", "NVRM: Reset is not required\n"),
    ("driver-too-old", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver\n", "", "nvidia-container-cli: container error: cgroup subsystem devices not found\n"),
    ("driver-too-old", "NVRM: installed in this system is not supported by the\nNVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x22:0x56:742)\n", "", "NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x22:0x56:742)\n"),
    ("shm-too-small", "mm_iface.c:604  UCX  ERROR mm_iface failed to allocate receive FIFO\n", "", "mm_iface allocated the receive FIFO\n"),
    ("net-socket-fallback", "node0:7:7 [0] NCCL INFO Assigned NET plugin Socket to comm\n", "two machines are slower than one", "node0:7:7 [0] NCCL INFO Assigned NET plugin IB to comm\n"),
    ("network-path-blocked", "NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver (reachable by EFA device but handshake failed))\n", "", "NET/OFI Request 0x7f completed with error. RC: 5. Error: 4099\n"),
    ("gdr-broken-acs", "kernel: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:61:00.0 domain=0x2a]\n", "wrong sums as soon as GDRDMA is on", "kernel: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:61:00.0 domain=0x2a]\n"),
    ("bus-id-collision", DUPLICATE, "each rank has its own GPU, in a virtual machine under KVM", DUPLICATE),
    ("scheduler-shares-gpu", "CUDA out of memory.\n", "since gres.conf was edited Slurm gives two jobs the same GPU", "CUDA out of memory.\n"),
    ("visible-devices-set-too-late", "CUDA out of memory.\n", "os.environ['CUDA_VISIBLE_DEVICES'] = '3' does nothing", "CUDA out of memory.\n"),
    ("device-not-set-per-rank", "CUDA out of memory. Process 7 has 14.20 GiB memory in use. Process 8 has 14.20 GiB memory in use.\n", "torchrun", "CUDA out of memory. Process 7 has 14.20 GiB memory in use.\n"),
    ("more-ranks-than-gpus", "ValueError: Total available GPUs 4 is less than total desired GPUs 8\n", "", "ValueError: Total available GPUs 0 is less than total desired GPUs 8\n"),
    ("rank-busy-on-host", "Saving checkpoint ...\n" + hung(1, 40), "", "Saving checkpoint ...\n"),
    ("trainer-and-engine-share-gpu", "comm = PyNcclCommunicator(group, device)\nRuntimeError: NCCL error: invalid usage\n", "", "RuntimeError: NCCL error: invalid usage\n"),
    ("send-recv-unmatched", "Last error:\nMessage truncated : received 1024 bytes instead of 256\n", "one rank groups its send and recv, the other does not", "Message received\n"),
    ("driver-library-mismatch", "Test CUDA failure common.cu:894 'system has unsupported display driver / cuda driver combination'\n", "", "display driver 580\n"),
    ("cumem-mismatch", W + "Error while attaching to shared memory segment /dev/shm/nccl-\x03?\x11 (size 0)\n", "", W + "Error while attaching to shared memory segment /dev/shm/nccl-a7Bc9D (size 0)\n".replace(" (size 0)", "")),
    ("roce-gid-wrong", "ibv_modify_qp errno 61 (\"No data available\")\n", "", "ibv_modify_qp ok\n"),
    ("socket-interface-wrong", W + "Net : Call to recv from 172.18.0.1<34483> failed : Broken pipe\n", "", W + "Net : Call to recv from 172.31.0.7<34483> failed : Broken pipe\n"),
    ("socket-interface-wrong", "node0:7:7 [0] NCCL INFO Bootstrap : Using [0]ens5:192.0.2.7<0> [1]veth75fa783:fe80::14ad<0>\n", "Connection refused", "node0:7:7 [0] NCCL INFO Bootstrap : Using [0]ens5:192.0.2.7<0>\n"),
    ("collective-mismatch", "DistributedOperationException: Cannot apply desired operation due to shape mismatches. All shapes across devices must be valid.\n", "", "shapes across devices are valid\n"),
    ("framework-version-incompatible", "RuntimeError: use_libuv was requested but PyTorch was build without libuv support\n", "", "use_libuv=0\n"),
    ("env-conflict", W + "NET/OFI The tuner plugin can not be loaded when explicitly choosing an algorithm or protocol with NCCL_ALGO/NCCL_PROTO\n", "", "NET/OFI tuner loaded\n"),
    ("rendezvous-misconfigured", "sh: 1: Leader_Node_Address: not found\n", "", "sh: 1: nvidia-smi: not found\n"),
    ("ulimit-too-low", "EFA internal error: (4112) Failure to post internal receive buffers\n", "", "EFA provider selected\n"),
    ("uneven-minibatches", "join.py:258: UserWarning: Detected uneven input skew of greater than 1000.\n", "", "join.py:258: inputs joined\n"),
    ("start-skew", "Timed out initializing process group in store based barrier on rank: 0\n", "loading the cache takes more than 30 minutes", "store based barrier passed\n"),
    ("driver-library-mismatch", "nvml.NvmlException: NVML_ERROR_LIB_RM_VERSION_MISMATCH\n", "", "NVML_ERROR_NOT_FOUND\n"),
    ("nvml-call-failed", "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"CUDACachingAllocator.cpp\":1154\n", "", "INTERNAL ASSERT FAILED at \"x.cpp\":1\n"),
    ("engine-allreduce-needs-p2p", "RuntimeError: Can't enable access between nodes 0 and 1\n", "", "access between nodes 0 and 1 enabled\n"),
    ("nccl-bug", W + "Call to ibv_modify_qp failed with error Invalid argument\n", "", W + "Call to ibv_modify_qp failed with error No such device\n"),
    ("roce-gid-wrong", W + "Call to ibv_modify_qp failed with error Invalid argument\nNET/IB : Using [0]mlx5_0:1/RoCE\n", "", "ibv_modify_qp ok\n"),
    ("nvls-fabric-fault", 'cuMulticastBindMem() -> CUDA error 802 "system not yet initialized"\n', "", "cuMulticastBindMem() done\n"),
    ("nccl-library-conflict", "Error: corrupted comm object detected\n", "", "comm object ready\n"),
    ("nccl-library-conflict", "NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library. Multi-GPU collectives will not work.\n", "", "NCCL library loaded\n"),
    ("net-plugin-failed", "[0] NCCL INFO NET/Plugin : dlerror=/opt/efa/lib/libfabric.so.1: version `FABRIC_1.7' not found (required by libnccl-net.so)\n", "", "[0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file\n"),
    ("benign", "ProcessGroupNCCL.cpp:482] [Rank 3] ProcessGroupNCCL initialized with following options:\n", "the task itself runs", "options: 3\n"),
    ("container-gpu-access", "INFO 05-20 20:12:25 [__init__.py:252] No platform detected, vLLM is running on UnspecifiedPlatform\n", "it fails", "Automatically detected platform cuda.\n"),
    ("container-gpu-access", "node-1: Test CUDA failure common.cu:1045 'unknown error'\n", "", "node-1: Test CUDA failure common.cu:1045 'out of memory'\n"),
    ("vgpu-or-mig-unsupported", "CUDA driver error: CUDA_ERROR_NOT_SUPPORTED. operation not supported\n", "an A40-48C profile", "an A40 with 48 GB\n"),
    ("rendezvous-name-resolution", "[enforce fail at gloo/transport/tcp/device.cc:212] ifa != nullptr. Unable to find interface for: [0.0.0.189]\n", "", "[enforce fail at gloo/transport/tcp/device.cc:212] ifa != nullptr. Unable to find interface for: [10.0.0.189]\n"),
    ("rendezvous-misconfigured", "[c10d] The client socket has timed out after 300000ms while trying to connect to (127.0.0.1, 0).\n", "", "[c10d] connected to (127.0.0.1, 29500)\n"),
    ("rendezvous-misconfigured", "[c10d] TCP client failed to connect/validate to host localhost:0 - timed out (try=0, timeout=300000ms)\n", "",
     "worker: failed to connect to cuda:0 yet\n"),
    ("network-path-blocked", "torch.distributed.DistStoreError: Timed out after 121 seconds waiting for clients. 1/2 clients joined.\n[c10d] The client socket has timed out after "
     "120000ms while trying to connect to (node-0, 29500).\n", "", "torch.distributed.DistStoreError: Timed out after 121 seconds waiting for clients. 1/2 clients joined.\n"),
    ("net-socket-fallback", "node0:7:9 [0] NCCL INFO NET/OFI Selected provider is tcp, fabric is 10.1.0.0/20 (found 1 nics)\n", "two nodes are three times slower than one",
     "node0:7:9 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)\n"),
    ("fabric-manager-down", "    Fabric\n        State                             : Completed\n        Status                            : Insufficient Resources\n", "",
     "    Fabric\n        State                             : Completed\n        Status                            : Success\n"),
    ("start-skew", "[aiter] waiting for baton release at /tmp/tuned.csv.lock\n", "the server hangs, two workers print this", "[aiter] import [module_moe_sorting]\n"),
    ("cumem-mismatch", "node0:7:9 [0] NCCL INFO NCCL_CUMEM_ENABLE set by environment to 0.\nnode0:8:9 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[4] via P2P/CUMEM\n"
     "node0:7:9 [0] NCCL INFO Channel 00/0 : 1[4] -> 0[0] via P2P/IPC\n", "the first broadcast never ends",
     "node0:8:9 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[4] via P2P/CUMEM\nnode0:7:9 [0] NCCL INFO Channel 00/0 : 1[4] -> 0[0] via P2P/CUMEM\n"),
    ("peer-stopped", "  torch.distributed.breakpoint(rank=1)\n" + hung(0), "nothing appears on the terminal", "breakpoints: none\n"),
    ("visible-devices-wrong", 'os.environ["CUDA_VISIBLE_DEVICES"] = "2"\nE cuda_driver.cc:406] failed call to cuInit: CUDA_ERROR_NO_DEVICE\n', "a script that was copied",
     'os.environ["CUDA_VISIBLE_DEVICES"] = "0"\nE cuda_driver.cc:406] failed call to cuInit: CUDA_ERROR_NO_DEVICE\n'),
    ("visible-devices-wrong", "  cuIpcOpenMemHandle return value:   217\n", "", "  cuIpcOpenMemHandle return value:   2\n"),
    ("gpu-memory-exhausted", "Out of memory error on GPU 2. Cannot allocate 392.000244MB memory on GPU 2\n", "", "Memory on GPU 2: 392 MB allocated\n"),
    ("gpu-memory-exhausted", "NvMapMemAllocInternalTagged: 1075072515 error 12\n", "", "NvMapMemAllocInternalTagged: 1075072515 error 22\n"),
    ("container-gpu-access", "NvRmMemInitNvmap failed with Permission denied\n", "", "NvRmMemInitNvmap failed with No such file\n"),
    ("ulimit-too-low", "allocate some locked memory.  This typically can indicate that the\nmemlock limits are set too low.\n  Memlock limit: 65536\n", "", "  Memlock limit: unlimited\n"),
    ("rendezvous-name-resolution", "MPID_nem_tcp_init(379).............: gethostbyname failed, users-laptop (errno 1)\n", "", "MPID_nem_tcp_init(379).............: bind failed\n"),
    ("rendezvous-misconfigured", "[LightGBM] [Fatal] Machine list file doesn't contain the local machine\n", "", "[LightGBM] [Info] Machine list file read\n"),
    ("framework-version-incompatible", "InvalidArgumentError: No OpKernel was registered to support Op 'NcclAllReduce' used by {{node Adam/NcclAllReduce}}\n", "", "Op 'NcclAllReduce' placed on GPU:0\n"),
    ("gloo-carries-traffic", "Available Tensor Operations:\n    [ ] NCCL\n    [X] MPI\n", "scaling is 1.6 with four GPUs", "Available Tensor Operations:\n    [X] NCCL\n    [X] MPI\n"),
    ("nccl-library-conflict", "RuntimeError: collective_init.cc:59 InitCollective] Loading libgpu_collective.so failed. Many reasons could cause this:\n", "", "Loading libgpu_collective.so\n"),
    ("nodes-differ", "[node2:14220] [[19874,0],1] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file util/show_help.c at line 501\n", "", "[node2:14220] ORTE_ERROR_LOG: Timeout in file x.c\n"),
    ("roce-gid-wrong", "ib_iface.c:842  UCX  ERROR ibv_create_ah(dlid=49152 sl=0 dgid=::ffff:192.168.100.11 sgid_index=3 traffic_class=0) failed: Invalid argument\n", "",
     "ib_iface.c:842  UCX  ERROR ibv_create_ah(dlid=4 sl=0 port=1 src_path_bits=0) failed: Cannot allocate memory\n"),
    ("peer-crashed", "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 7 on node 10.1.0.2 managing GPU 5\n", "", "  8 job processes, none dead\n"),
    ("peer-stopped", "  #0-0 (cf264af53edbe986) INCOMPLETE\n    Missing communicator data from 1 rank\n    The missing rank: 21\n", "ncclras was asked", "    Communicator data of 32 ranks\n"),
    ("collective-on-some-ranks-only", "    Communicator ranks have different AllReduce operation counts\n    26 ranks have launched up to operation 6650\n    6 ranks have launched up to "
     "operation 6649\n", "the job hangs; asked again, the counts stay", "    Communicator ranks have launched up to operation 6650\n"),
    ("benign", "    Communicator ranks have different collective operation counts\n    26 ranks have launched up to operation 6650\n    6 ranks have launched up to "
     "operation 6649\n", "ncclras was asked while the job steps", "    Communicator ranks have different AllReduce operation counts\n" + hung(0)),
    ("driver-library-mismatch", "gpu012: Test CUDA failure common.cu:849 'CUDA driver is a stub library'\n", "", "gpu012: Test CUDA failure common.cu:849 'out of memory'\n"),
    ("driver-library-mismatch", "Could not unload NVIDIA driver kernel modules, driver is in use\n", "", "Unloading NVIDIA driver kernel modules...\n"),
    ("container-gpu-access", 'failed to get sandbox runtime: no runtime for "nvidia" is configured\n', "", 'runtime "nvidia" is configured\n'),
    ("container-gpu-access", "RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server\n", "", "MPS control daemon started\n"),
    ("vgpu-or-mig-unsupported", "nvidia-gridd[1021]: Valid GRID license not found. GPU features will be degraded.\nRuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n",
     "", "nvidia-gridd[1021]: License acquired successfully.\n"),
    ("shm-too-small", 'Message:  Usage of EmptyDir volume "dshm" exceeds the limit "1Gi".\n', "", 'Message:  Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".\n'),
    ("env-conflict", "RuntimeError: pidfd_getfd: Operation not permitted\n", "", "pidfd_getfd done\n"),
    ("more-ranks-than-gpus", "RuntimeError: Failed to create placement group with 4 bundles (requiring 4.0 GPUs, 4.0 CPUs total) in 60 seconds.\n", "", "Created placement group with 4 bundles\n"),
    ("rendezvous-misconfigured", "RuntimeError: only rank 0 can start multi-node session, got 5\n", "", "rank 0 starts the session\n"),
    ("rendezvous-misconfigured", "RuntimeError: Default process group has not been initialized, please make sure to call init_process_group.\n", "", "process group initialized\n"),
    ("network-path-blocked", "RuntimeError: Did not receive response from front-end process within 5 minutes\n", "", "received response from front-end process within 5 seconds\n"),
    ("visible-devices-wrong", "    storage = storage_cls._new_shared_cuda(\nRuntimeError: CUDA error: invalid device context\n", "weights by IPC", "    storage = storage_cls._new_shared_cuda(\n"),
    ("peer-crashed", "KVTransferError: Decode instance could be dead, remote mooncake session 10.8.0.31:15992 is not alive\n", "", "remote mooncake session 10.8.0.31:15992 opened\n"),
    ("peer-crashed", "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 2893455104 vs 2893454992\n" + hung(4), "", "unexpected position\n" + hung(4)),
    ("start-skew", "Loading safetensors checkpoint shards:  38% Completed | 14/37\nConnectionError: The vLLM server can't be reached at http://0.0.0.0:8000 after 240.0 seconds.\n", "",
     "The vLLM server was reached at http://0.0.0.0:8000 after 24.0 seconds.\n"),
    ("sync-contends-with-inference", "Cache not flushed because there are pending requests. #queue-req: 0, #running-req: 37\n", "each weight update is slow", "Cache flushed successfully!\n"),
    ("rank-dependent-branch", "LMCache ERROR: The number of retrieved tokens is less than the expected number of tokens! This should not happen!\n", "the engine hangs", "LMCache INFO: Retrieved 3840 out of 3840 tokens\n"),
    ("net-socket-fallback", "ucp_context.c:1219 UCX  WARN  network device 'mlx5_2:1' is not available, please use one or more of: 'eth0'(tcp), 'lo'(tcp)\n", "transfers are slow",
     "network devices: 'mlx5_0:1'(ib), 'eth0'(tcp)\n"),
    ("cpu-affinity", "$ cat cpu.stat\nnr_throttled 88214\nthrottled_usec 9120447731\n", "a fifth of the tokens per second", "$ cat cpu.stat\nnr_throttled 0\nthrottled_usec 0\n"),
    ("gpu-memory-exhausted", "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 1073741824 : CUDA error 2 'out of memory'.\n", "",
     "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 1073741824 : CUDA error 401 'x'.\n"),
    ("device-not-set-per-rank", "ValueError: Inconsistent compute device and `device_id` on rank 1: cuda:0 vs cuda:1\n", "", "compute device cuda:1 on rank 1\n"),
    ("collective-mismatch", "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.\n", "", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"),
    ("rendezvous-name-resolution", "hostname: invalid option -- 'I'\nUsage: hostname [OPTION...] [NAME]\n", "", "hostname: worker-0\n"),
    ("timeout-on-other-group", "Synchronizing and adjusting timeout for all ProcessGroups to 0:01:40\n" + hung(5, 120451, limit=100000), "killed at its first checkpoint", hung(5, 120451, limit=100000)),
    ("framework-version-incompatible", "StopIteration: Caught StopIteration in replica 0 on device 0.\n", "", "StopIteration of the data\n"),
    ("benign", "[TP0] Decode out of memory happened. #retracted_reqs: 14, #new_token_ratio: 0.4100 -> 0.8237\n", "all requests come back", "CUDA out of memory.\n"),
]


def told(tmp_path, text: str, context: str = "") -> list[tuple[str, str]]:
    (tmp_path / "job.log").write_text(text)
    return [(h.cause, h.status) for h in triage.judge(reader.collect([str(tmp_path / "job.log")], context))]


def by_message(tmp_path, text: str) -> list[str]:
    """Causes that more than a usual word points to."""
    (tmp_path / "job.log").write_text(text)
    return [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")])) if triage.WORDS not in h.against]


@pytest.mark.parametrize("cause, log, context, miss", MORE, ids=lambda value: value if isinstance(value, str) and " " not in value and "\n" not in value else "")
class TestMoreOfACause:
    def test_cause_fires_when_this_is_printed_or_told(self, tmp_path, cause, log, context, miss):
        assert cause in [c for c, _ in told(tmp_path, log, context)[:3]]

    def test_cause_stays_quiet_when_it_only_looks_like_it(self, tmp_path, cause, log, context, miss):
        assert cause not in by_message(tmp_path, miss)


WORDS = [
    ("rendezvous-misconfigured", "the weight sync works with DP 1 and fails as soon as vLLM has data_parallel_size > 1", "the weight sync works with TP 1"),
    ("nccl-library-conflict", "NCCL operation ncclAllReduce( send_buffer.opaque(), comm_) failed: invalid argument", "NCCL operation ncclAllReduce( send_buffer.opaque(), comm_) failed: internal error"),
    ("p2p-broken-acs-iommu", "the job hangs and the server must be power-cycled", "the job hangs and the rollout server must be restarted"),
    ("idle-wait-in-collective", "the second pod dies half an hour after the start, no prompt had been sent", "the second pod dies half an hour after the start"),
    ("device-not-set-per-rank", "torchrun, the script takes --local_rank with default 0", "torchrun, the script takes --seed with default 0"),
    ("timeout-on-other-group", "the job ends with: Timed out waiting 1800000ms for recv", "the job ends with: Timed out waiting 5000ms for recv"),
    ("env-conflict", "the workers wait, PET_NNODES=1:2 and PET_RDZV_ENDPOINT are set", "the workers wait"),
    ("straggler", "steps are slow, one rank has a gap on the CPU thread", "steps are slow"),
    ("data-stall", "the run over C4 streamed from the Hugging Face Hub stops with a timeout", "the run over C4 stops with a timeout"),
    ("env-conflict", "it hangs after the line that the `srun` command is available on your system but is not used", "it hangs after the line that srun is used"),
    ("gpu-or-link-fault", "training stops with two cards and the whole computer freezes", "training stops with two cards"),
    ("socket-interface-wrong", "starting the model fails, the nodes reach each other over 192.168.2.x", "starting the model fails"),
    ("rank-busy-on-host", "a time-out after the refit, in model_to_cpu", "a time-out after the refit"),
    ("rendezvous-name-resolution", "the launch script asks getent hosts for the leader and the pods crash", "the pods crash"),
    ("visible-devices-set-too-late", "it fails since the actor calls torch.cuda.is_available()", "it fails since the actor waits"),
    ("scheduler-shares-gpu", "the server fails, 15.29 GB free of 186 GB", "the server fails"),
    ("rank-dependent-branch", "a time-out since the metrics are a dictionary, with one all_reduce for each of its keys", "a time-out since the metrics are summed"),
    ("gdr-disabled", "the bandwidth is far below what the network should give", "the network is there, it fails"),
    ("gdr-broken-acs", "all_reduce is slow between two nodes while ib_write_bw reaches line rate", "all_reduce is slow between two nodes"),
    ("rendezvous-misconfigured", "all_reduce_perf over two nodes seems to run only inside the node, it fails", "all_reduce_perf of the node fails"),
    ("collective-mismatch", "one rank prints a result and the other dies", "the ranks print a result and die"),
    ("rank-dependent-branch", "a time-out; each rank has its own local batch", "a time-out of a batch"),
    ("net-socket-fallback", "the first run gave 800 GB/s, a later run of the same command 15", "a run gave 15, it fails"),
    ("send-recv-unmatched", "it hangs, both ranks send first", "it hangs, both ranks"),
    ("communicator-recreated", "tests that set up and tear down the groups in one process fail after a while", "tests of the groups fail after a while"),
    ("socket-interface-wrong", "connection refused in the gloo group of the loader", "an error in the gloo backend of the loader"),
    ("network-path-blocked", "it timed out on port 51216, the server only exposes the two ports of rollout and deploy", "it timed out on port 51216 of the server"),
    ("nodes-differ", "all_reduce_perf hangs on every mixed pair of nodes", "all_reduce_perf hangs on every node"),
    ("communicator-order", "it hangs sometimes, we call ncclCommInitRank six times", "it hangs sometimes, we call ncclCommInitRank"),
    ("gpu-or-link-fault", "the training stops and the computer must be started again by removing the power", "the training stops and must be started again"),
    ("p2p-broken-acs-iommu", "a tensor is moved from one GPU to another GPU and it is zero: it fails", "a tensor is moved to CPU and it is zero: it fails"),
    ("collective-on-some-ranks-only", "it fails: rank 0 is in _keepalive_thread_run", "it fails: rank 0 is in train"),
    ("data-stall", "the start hangs in _terminate_pool of rank 3", "the start hangs in terminate of rank 3"),
    ("rank-busy-on-host", "the engine stalls in compute_reward of the driver", "the engine stalls in compute of the driver"),
    ("nccl-bug", "all_reduce_perf fails, NCCL Tests compiled with NCCL 1.0", "all_reduce_perf fails, NCCL Tests compiled with NCCL 2.18"),
    ("start-skew", "some workers fail with a timeout of the store", "all fail with a timeout of the store"),
    ("communicator-order", "it hangs during teardown, after the tests themselves", "it hangs after the tests themselves"),
    ("uneven-minibatches", "the update stops since use_dynamic_bsz is on, a CPU recv timeout", "the update stops, a CPU recv timeout"),
    ("network-path-blocked", "an error in two docker containers on two nodes, both ranks in one container run", "an error in two docker containers"),
    ("gpu-memory-exhausted", "the job fails in the backward pass of the first step", "the job fails in the first call"),
    ("collective-mismatch", "it hangs while the full state dict is loaded", "it hangs while the config is loaded"),
    ("rank-busy-on-host", "training stops, rank 0 is in uninterruptible sleep, all others in a barrier", "training stops on 8 nodes"),
    ("gdr-broken-acs", "all_reduce between two virtual machines is slow", "all_reduce between two machines is slow"),
    ("nccl-bug", "all_gather_perf gives wrong values at 4G", "all_gather_perf gives wrong values"),
    ("ulimit-too-low", "it dies with eight workers: could not load a library, but the file is there", "it dies with eight workers: could not load a library"),
    ("nvls-fabric-fault", "all_reduce_perf is stuck with -g 4; with -g 2 on the same machine it is normal", "all_reduce_perf is stuck with more GPUs"),
    ("gdr-disabled", "why it does not show NET/IB/0/GDRDMA? nv_peer_mem is installed", "why it does not show NET/IB/0?"),
    ("topology-file-bad", "it works on two A100 nodes but fails with the exact same configuration on two H100 nodes: internal error", "it fails on two nodes"),
    ("framework-version-incompatible", "it hangs at init; an older nightly works with all else identical", "it hangs at init with all else identical"),
    ("more-ranks-than-gpus", "it fails with CUDA_VISIBLE_DEVICES=2,3, the launch script is untouched", "it fails in the launch script"),
    ("collective-on-some-ranks-only", "the run stops: DeepEP error: timeout (dispatch CPU)", "the run stops"),
    ("vgpu-or-mig-unsupported", "it hangs at start; it starts with CUDA_DISABLE_CONTROL=true", "it hangs at start; it starts with one GPU"),
    ("uneven-minibatches", "hang in the validation loop with FSDP", "it hangs on two GPUs"),
    ("collective-on-some-ranks-only", "the first epoch is evaluated and checkpointed, then training hangs on four GPUs and a RuntimeError follows", "the first epoch is done, a TypeError follows"),
    ("rank-busy-on-host", "it times out; the reader first walks through a file of 200 GB", "it times out on two GPUs"),
    ("p2p-broken-acs-iommu", "when I try to train it just stops, two A6000", "when I try to train it says A6000"),
    ("net-socket-fallback", "cannot get EFA to work, it is still using sockets", "cannot get it to work"),
    ("rendezvous-misconfigured", "it fails: all_reduce_perf seems to run separately on each node", "it fails: all_reduce_perf on each node"),
    ("uneven-minibatches", "it times out; the number of steps on each GPU is 72 and 506", "it times out at step 72 of 506"),
    ("device-binding", "gpus=[1,2,3] gives an error and hangs", "gpus=[0,1,2] gives an error and hangs"),
    ("env-conflict", "it fails on the second rank with ROCR_VISIBLE_DEVICES set", "it fails on the second rank"),
    ("net-socket-fallback", "doubling the network bandwidth changed nothing", "doubling the batch changed nothing"),
    ("benign", "DeepSpeed prints these at every step; it does not stop the training", "DeepSpeed prints these at every step"),
    ("visible-devices-set-too-late", "the engine cores fail with tensor_parallel_size 1 and data_parallel_size 8", "the engine cores fail"),
    ("socket-interface-wrong", "it fails: remote process exited or there was a network error", "it fails: remote process exited"),
    ("benign", "the test prints this and the reporter asks how to read the numbers", "the test prints this"),
    ("rendezvous-misconfigured", "it seems wrong: the test runs on each node by itself", "it seems wrong: the test runs on each node"),
    ("net-socket-fallback", "it does not get faster, the hardware counters stay flat", "it does not get faster, the counters of the loop stay"),
    ("socket-interface-wrong", "nothing happens: Open MPI accepted a TCP connection from what appears to be a another process", "nothing happens: accepted a TCP connection"),
    ("network-path-blocked", "it works on one node; on two nodes it crashes at once", "it crashes at once"),
    ("rendezvous-port-in-use", "the start fails shortly after the previous cluster was shut down", "the start fails shortly after midnight"),
    ("rendezvous-port-in-use", "the start fails; waiting about 60 seconds first helps", "the start fails after 60 seconds"),
    ("device-binding", "it fails with any value other than 0 in CUDA_VISIBLE_DEVICES", "it fails with any value of lr other than 1e-3"),
    ("visible-devices-wrong", "it fails with device ids that are not consecutive", "it fails with steps that are not consecutive"),
    ("engine-allreduce-needs-p2p", "it fails at start: CUDA driver error: invalid argument", "it fails at start: invalid argument"),
    ("start-skew", "it aborts in the first training step; later steps take 12 minutes", "it aborts in a training step"),
    ("gpu-or-link-fault", "the script passes with --nproc-per-node=2 and fails with 8", "the script fails with 8"),
    ("rendezvous-name-resolution", "the start takes very long, ten seconds between two lines", "the step takes very long"),
    ("send-recv-unmatched", "it hangs, ncclGroupStart and ncclGroupEnd are commented out", "it hangs in a barrier"),
    ("p2p-broken-acs-iommu", "it does not go on with several GPUs; with one GPU it trains", "it does not go on"),
    ("uneven-minibatches", "it hangs: one rank consumes its data loader first", "it hangs on two nodes"),
    ("rank-dependent-branch", "training stops: each rank decides by its own loss whether it saves", "training stops on two nodes"),
    ("straggler", "the step is slow, I look for the slow ones among the nodes", "the step is slow on two nodes"),
    ("data-stall", "training stalls when it reads from a network file system", "training stalls on two nodes"),
    ("foreign-connection", "start-up fails since the readiness probe touches the port", "start-up fails on two nodes"),
    ("p2p-broken-acs-iommu", "training freezes with two GPUs at 100 % of the GPU, a single GPU works", "training freezes at the end of the epoch"),
    ("engine-deadlock", "sglang stops responding, /health as well", "training stops"),
    ("idle-wait-in-collective", "the job dies if nobody calls it, rank 1 waits in broadcast for the next prompt", "the job dies on two nodes"),
    ("ulimit-too-low", "it fails under Slurm with 64 workers, interactively it works: ulimit?", "it fails under Slurm"),
    ("network-path-blocked", "the first all_reduce never returns; the pods have an Istio side-car", "the first step never returns"),
    ("rendezvous-misconfigured", "it hangs at the start, each node picks its own free port", "it hangs in the last step"),
    ("rank-dependent-branch", "it hangs: one rank skips the batch without any ground truth", "it hangs on two nodes"),
    ("communicator-order", "it hangs: a background thread uses its own process group", "it hangs on two nodes"),
    ("peer-stopped", "it times out since somebody attached strace to a rank", "it times out on two nodes"),
    ("start-skew", "it times out, the second node comes up late because of its image pull", "it times out in the last step"),
    ("nodes-differ", "all_reduce fails since a variable is exported on the first node only", "all_reduce fails"),
    ("rendezvous-misconfigured", "srun starts train.py on two nodes, it hangs during init", "it hangs in the last step"),
    ("device-not-set-per-rank", "it fails with two processes a node and works with one process per node", "it fails on two nodes"),
    ("nccl-bug", "it fails with torch's own NCCL, a separately compiled NCCL works", "it times out on two GPUs"),
    ("nccl-bug", "wrong rank order: 2.26.2 shows it, 2.21.5 gives right results", "wrong rank order"),
    ("start-skew", "it times out, the machines install their packages at different speeds", "it times out in the last step"),
    ("roce-gid-wrong", "it fails over RDMA over Converged Ethernet", "it fails over two nodes"),
    ("vgpu-or-mig-unsupported", "it hangs in a pod with HAMi", "it hangs in a pod"),
    ("net-socket-fallback", "it fails, traffic should go over InfiniBand and does not", "it fails on two nodes"),
    ("cpu-affinity", "it is slow: sched_getaffinity is one core after import torch", "it is slow after import torch"),
    ("more-ranks-than-gpus", "it crashes: two replicas, with --gpus '0,0', on a single GPU", "it crashes on two GPUs"),
    ("visible-devices-set-too-late", "it fails, the script changes CUDA_VISIBLE_DEVICES after its first call", "it times out on two GPUs"),
    ("rendezvous-misconfigured", "it fails: each process runs on its own", "it times out on two GPUs"),
    ("network-path-blocked", "it stalls, MPI uses the open ports", "it stalls on two GPUs"),
    ("uneven-minibatches", "it hangs with partial batches", "it hangs on two GPUs"),
    ("nccl-library-conflict", "it fails where TensorFlow was imported first", "it times out on two GPUs"),
    ("send-recv-unmatched", "it is stuck: rank 0 sends to rank 1 and both send before they receive", "it is stuck: rank 0 writes before rank 1"),
    ("device-not-set-per-rank", "it fails, the first GPU of the node holds far more memory than the others", "it fails, the first GPU of the node is far away"),
    ("device-binding", "since device_id was passed to init_process_group, rank 1 also holds memory on GPU 0", "rank 1 also holds memory of the host"),
    ("nvls-fabric-fault", "all_reduce_perf: -g 2 completes, -g 4 is stuck", "all_reduce_perf: -g 4 is stuck"),
    ("rendezvous-misconfigured", "one command was typed on one machine, nothing happens", "the command of one machine fails"),
    ("communicator-recreated", "every step is slow, ncclinit takes a lot of time", "every step is slow"),
    ("nccl-bug", "the job crashes while a monitor asks the RAS port", "the job crashes while a monitor asks the SSH port"),
    ("visible-devices-set-too-late", "it fails: torch.cuda.is_initialized()=True before the variable is set", "it fails: torch.cuda.is_initialized()=False before the variable is set"),
    ("nccl-bug", "it takes 8 GB more since the last image, only one wheel moved", "it takes 8 GB more since the last image"),
    ("communicator-order", "it hangs: new_group is called in a loop over each rank's own neighbours", "it hangs in a loop over each rank's own files"),
    ("sync-contends-with-inference", "the weight push is fast with generators paused but slow when they serve", "the weight push is slow"),
    ("per-parameter-sync", "the sync is slow: collective_rpc with (name, dtype, shape) for each", "the sync is slow: collective_rpc"),
    ("communicator-recreated", "it is slow, the tree and ring lines come over and over again", "it is slow, the tree and ring lines come once"),
    ("sync-contends-with-inference", "the push is slow: its kernel waits behind decode", "the push is slow: its kernel waits"),
    ("rank-busy-on-host", "the abort comes at epoch 10, after the line Generating sample images", "the abort comes at epoch 10"),
    ("collective-on-some-ranks-only", "ranks 8-15 time out, ranks 0-7 load the model and go on", "the ranks load the model and go on"),
    ("rank-dependent-branch", "it stalls on resuming from get_last_checkpoint, each node has its own folder", "it stalls on the second node"),
    ("gpu-exclusive-mode", "it fails since the profile changed, several processes per card", "it fails since the profile changed"),
    ("socket-interface-wrong", "the start hangs while a VPN is up", "the start hangs"),
]


def test_steps_that_nobody_complains_about_are_harmless(tmp_path):
    """The near miss: the same steps, and then a failure."""
    steps = "h:1:2 [0] NCCL INFO NET/OFI Using Libfabric version 1.22\n0: [train.py:103] Batch 1 Loss: 11.6, lr: 0.0001\n"
    assert told(tmp_path, steps, "FSDP on four nodes with sbatch, the file fills with lines of NCCL")[0][0] == "benign"
    failed = steps + "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert "benign" not in [c for c, _ in told(tmp_path, failed, "FSDP on four nodes with sbatch, the file fills with lines of NCCL")]


def test_sockets_on_one_node_slow_nothing_down(tmp_path):
    """The near miss: the same lines of a job on two nodes."""
    log = "n:8:8 [0] NCCL INFO Failed to open libibverbs.so[.1]\nn:8:8 [0] NCCL INFO Using network Socket\n"
    assert "net-socket-fallback" not in [c for c, status in told(tmp_path, log, "single-node training, the start is slow") if status == "likely"]
    assert ("net-socket-fallback", "likely") in told(tmp_path, log, "training on two nodes is slow")


HEALTHY = [
    "[node01:1] MCW rank 0 bound to socket 0[core 0[hwt 0-1]], socket 0[core 1[hwt 0-1]]: [BB/BB]\n[node02:1] MCW rank 1 bound to socket 0[core 0[hwt 0-1]], socket 0[core 1[hwt 0-1]]: [BB/BB]\n",
    "INFO utils.py:1004] Found nccl from library /opt/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2\n",
    "Detected VISIBLE_DEVICES=0,1 but ignoring it because one or several of --include/--exclude/--num_gpus/--num_nodes cl args were used.\n",
    "rank 0: 451 samples/s, rank 1: 449 samples/s\nNCCL_ASYNC_ERROR_HANDLING: watchdog enabled\n",
    "rank 0: num_batches=120 rank 1: num_batches=119 (Join is on)\ntimeout=1800\n",
    "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:128 to store for rank: 0\n",
    "wandb: WARNING Object of type torch.Tensor is not JSON serializable, logging it as a string\n",
    "0 pid 40211's current affinity list: 5\n",
    "HW Thermal Slowdown : Active\n",
]


@pytest.mark.parametrize("log", HEALTHY)
def test_lines_of_healthy_jobs_accuse_nobody_surely(tmp_path, log):
    start = "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nNCCL version 2.21.5+cuda12.4\n"
    assert not [told_so for told_so in told(tmp_path, start + log + "result: accuracy 0.81\n", "") if told_so[1] != "possible"]


@pytest.mark.parametrize("extra", [
    "fsspec==2024.6.1\n", "Will skip the first 3 epochs then the first 120 batches in the first epoch.\n", "'use_dynamic_bsz': False\n",
    "EarlyStopping(patience=3) early stopping not triggered yet\n", "torchrun --nnodes 2 --rdzv-conf-timeout=3600 train.py\n", "HW Thermal Slowdown : Active\n"])
def test_a_network_error_that_was_printed_stays_first(tmp_path, extra):
    failed = ("node01:1201:1301 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<47112> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
              "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
              "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n")
    assert told(tmp_path, extra + failed, "")[0][0] == told(tmp_path, failed, "")[0][0]


@pytest.mark.parametrize("context", ["job died with exit code 137", "node reboots during training; Xid 79 in dmesg", "killed by the OOM killer", "loss is NaN with more than one GPU",
                                     "throughput as before, but then the job crashed", "no error anywhere, the results are wrong on every GPU but the first"])
def test_steps_are_no_health_where_somebody_says_what_failed(tmp_path, context):
    steps = "n1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nstep 10 loss 2.31 lr 1e-4\nstep 40 loss 2.05 lr 1e-4\n"
    assert "benign" not in [cause for cause, _ in told(tmp_path, steps, context)[:1]]


def test_a_rank_of_the_job_goes_before_that_of_a_group(tmp_path):
    """PyTorch 2.13 prints both, and in a group the second is another rank."""
    (tmp_path / "job.log").write_text("[rank2]:[I1123 05:37:46.5 ProcessGroupWrapper.cpp:710] [Rank 0] Running collective: x\n[Rank 1] y\n")
    assert [r.rank for r in reader.collect([str(tmp_path / "job.log")]).ranks] == [1, 2]


def test_processes_on_two_gpus_are_told_with_their_own_advice(tmp_path):
    """The near miss: one process that uses both GPUs (DataParallel)."""
    row = "|    {g}   N/A  N/A     {p}      C   .../bin/python           969MiB |\n"
    (tmp_path / "job.log").write_text(row.format(g=0, p=71201) + row.format(g=0, p=71202) + row.format(g=1, p=71202))
    lead = triage.judge(reader.collect([str(tmp_path / "job.log")]))[0]
    assert (lead.cause, lead.status, len(lead.evidence)) == ("device-not-set-per-rank", "likely", 2)
    assert "map_location" in lead.remedy[0].lines[1] and "nvidia-smi" in lead.decides.line
    assert told(tmp_path, row.format(g=0, p=71201) + row.format(g=1, p=71201), "") == []


def test_shared_memory_that_ucx_could_not_write_is_the_fault_itself(tmp_path):
    """The near miss: another directory than /dev/shm may be meant where the sentence ends before it."""
    line = "mm_posix.c:233  UCX  ERROR Not enough memory to write total of 4292720 bytes."
    assert told(tmp_path, line + " Please check that /dev/shm or the directory you specified has more available memory.\n", "")[0] == ("shm-too-small", "established")
    assert ("shm-too-small", "established") not in told(tmp_path, line + "\n", "")


def test_ranks_that_share_a_bus_id_and_not_a_uuid_share_no_gpu(tmp_path):
    """The near miss: nobody says that the cards differ."""
    line = "vm:{p}:9 [0] NCCL INFO comm 0x5591 rank {r} nranks 2 cudaDev 0 nvmlDev 0 busId 100000 commId 0x3d4f - Init START\n"
    log = line.format(p=911, r=0) + line.format(p=905, r=1) + "vm:911:930 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 100000\n"
    assert ("device-not-set-per-rank", "likely") in told(tmp_path, log, "two ranks on one machine")
    assert told(tmp_path, log, "two ranks on one machine; the GPUs' UUIDs are different")[0][0] == "bus-id-collision"


@pytest.mark.parametrize("cause, told_so, miss", WORDS)
def test_words_of_a_reporter_name_it_among_three_and_never_surely(tmp_path, cause, told_so, miss):
    assert (cause, "possible") in told(tmp_path, "\n", told_so)[:3] and cause not in [c for c, _ in told(tmp_path, "\n", miss)[:3]]


@pytest.mark.parametrize("cause, told_so", [
    ("more-ranks-than-gpus", "it works on a single GPU and hangs with two processes"),
    ("start-skew", "it fails: the GPUs run at different speeds"),
    ("benign", "nothing works despite all the variables I tried, it hangs at init"),
    ("benign", "it hangs and no rank continues despite the longer timeout"),
    ("rendezvous-misconfigured", "it hangs at the all_reduce; each rank runs on its own GPU"),
    ("rendezvous-misconfigured", "it hangs; launched by torchrun, no MPI"),
    ("visible-devices-set-too-late", "it hangs, changing CUDA_VISIBLE_DEVICES to 2,3 makes no difference"),
    ("device-not-set-per-rank", "it hangs: the workers are started, one process per node"),
    ("rank-busy-on-host", "it fails where gloo works"),
    ("cpu-affinity", "it fails, all with the same core dumped"),
    ("net-socket-fallback", "it hangs, should run with RDMA"),
    ("vgpu-or-mig-unsupported", "it hangs, no GPU sharing"),
    ("vgpu-or-mig-unsupported", "it hangs with flan-T5-3B and with DeepSeek-V2-16B"),
    ("rank-busy-on-host", "it hangs, only rank 0 prints the loss"),
    ("benign", "the training itself runs for two hours, then it hangs"),
    ("benign", "all runs go to the end, but the throughput is half of last week's"),
    ("rendezvous-misconfigured", "each rank runs the evaluation by itself, and then it hangs"),
])
def test_usual_words_put_nothing_rare_first(tmp_path, cause, told_so):
    assert cause not in [c for c, _ in told(tmp_path, "\n", told_so)[:1]]


def test_a_warning_quoted_below_last_error_is_a_warning(tmp_path):
    quoted = "torch.distributed.DistBackendError: NCCL error\nLast error:\nsocketStartConnect: Connect to 172.17.0.2<50001> failed : Software caused connection abort\n"
    assert told(tmp_path, quoted)[0] == ("socket-interface-wrong", "likely")
    assert ("socket-interface-wrong", "likely") not in told(tmp_path, quoted.replace("Last error:\n", "and then\n"))


def test_a_retry_timeout_of_infiniband_is_never_sure(tmp_path):
    assert {s for _, s in told(tmp_path, W + "NET/IB : Got completion from peer 192.0.2.1<4> with error 12, opcode 1, len 0, vendor err 129\n")} == {"possible"}


def test_what_was_told_as_a_hang_is_not_called_harmless(tmp_path):
    quiet = "[W ProcessGroupNCCL.cpp:1569] Rank 0 using best-guess GPU 0 to perform barrier as devices used by this process are currently unknown.\n"
    assert told(tmp_path, quiet)[0][0] == "benign" and told(tmp_path, quiet, "it hangs there")[0][0] == "device-binding"


def test_all_ranks_at_one_number_leave_it_open_who_was_missing(tmp_path):
    text = "".join(hung(r, 19) + STATUS.format(r=r, e=19, c=18) for r in (1, 2, 3))
    assert {s for _, s in told(tmp_path, text)} == {"possible"}


def test_an_ordinal_alone_has_several_causes_and_one_gpu_per_task_tells_which(tmp_path):
    line = "RuntimeError: CUDA error: invalid device ordinal\n"
    assert told(tmp_path, line)[0] == ("more-ranks-than-gpus", "possible") and {s for _, s in told(tmp_path, line)} == {"possible"}
    assert told(tmp_path, line, "srun --gpus-per-task=1")[0] == ("visible-devices-wrong", "likely")


@pytest.mark.parametrize("refused", ["RuntimeError: CUDA error: invalid device ordinal\n", DUPLICATE], ids=["ordinal", "duplicate"])
@pytest.mark.parametrize("words, more", [
    ("torchrun --nproc_per_node=4 with CUDA_VISIBLE_DEVICES=1,2", True), ("mpirun -np 8 on a box with four cards", True),
    ("torchrun --nproc_per_node=2 with CUDA_VISIBLE_DEVICES=1,2", False), ("mpirun -np 8 over two hosts with four cards", False), ("-np" + " 4" * 2000 + " on four cards", False),
])
def test_more_ranks_than_gpus_are_counted(tmp_path, refused, words, more):
    logs = reader.collect([str(_job(tmp_path, refused))], words)
    assert bool(triage_ranks.fewer_gpus_than_ranks(logs)) == more
    assert triage.judge(logs)[0].cause == "more-ranks-than-gpus" or not more


def _job(tmp_path, text: str):
    (tmp_path / "job.log").write_text(text)
    return tmp_path / "job.log"


def test_memory_of_the_first_gpu_that_other_processes_hold_is_not_simply_exhausted(tmp_path):
    out = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10 GiB total capacity)\n"
    assert told(tmp_path, out)[0] == ("gpu-memory-exhausted", "likely")
    extra = told(tmp_path, out, "extra processes hold 700 MB each on card 0")
    assert {s for _, s in extra} == {"possible"} and "device-not-set-per-rank" in [c for c, _ in extra[:3]]


@pytest.mark.parametrize("held, status", [
    ("(GPU 0; 15.75 GiB total capacity; 6.21 GiB already allocated; 310.44 MiB free; 6.60 GiB reserved in total by PyTorch)", "possible"),
    ("(GPU 0; 15.75 GiB total capacity; 13.21 GiB already allocated; 310.44 MiB free; 13.60 GiB reserved in total by PyTorch)", "likely"),
    ("(GPU 0; 15.75 GiB total capacity; 6.21 GiB already allocated; 8.44 GiB free; 6.60 GiB reserved in total by PyTorch)", "likely"),
    ("GPU 0 has a total capacity of 79.15 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 15.44 GiB memory in use.", "possible"),
    ("GPU 0 has a total capacity of 79.15 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 78.90 GiB memory in use.", "likely"),
    ("GPU 0 has a total capacity of 139.80 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 15.44 GiB memory in use.", "possible"),
    ("GPU 0 has a total capacity of 139.80 GiB of which 12.50 MiB is free. Including non-PyTorch memory, this process has 138.44 GiB memory in use.", "likely"),
    ("(GPU 0; 139.80 GiB total capacity; 130.00 GiB already allocated; 310.44 MiB free; 135.60 GiB reserved in total by PyTorch)", "likely"),
    ("(GPU 0; 44.40 GiB total capacity; 28.00 GiB already allocated; 310.44 MiB free; 29.00 GiB reserved in total by PyTorch)", "likely"),
])
def test_a_gpu_of_which_torch_itself_holds_the_smaller_part_is_not_simply_exhausted(tmp_path, held, status):
    assert ("gpu-memory-exhausted", status) in told(tmp_path, f"RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB. {held}\n")


def test_what_an_engine_prints_of_each_flush_accuses_nobody_without_a_complaint(tmp_path):
    line = "[TP0] Cache not flushed because there are pending requests. #queue-req: 0, #running-req: 37\n"
    assert "sync-contends-with-inference" not in by_message(tmp_path, line + 'INFO: "POST /generate HTTP/1.1" 200 OK\n')


def test_a_size_that_no_gpu_has_is_no_exhausted_memory(tmp_path):
    assert told(tmp_path, "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.\n")[0][0] in ("collective-mismatch", "device-not-set-per-rank")


def test_words_stand_beside_what_is_likely_and_not_beside_the_fault_itself(tmp_path):
    words = "NCCL_NVLS_ENABLE is unset, fabric manager, NVSwitch"
    likely = told(tmp_path, "torch.OutOfMemoryError: CUDA out of memory.\n", words)
    assert likely[0] == ("gpu-memory-exhausted", "likely") and ("nvls-fabric-fault", "possible") in likely
    assert told(tmp_path, "Failed to initialize NVML: Driver/library version mismatch\n", words) == [("driver-library-mismatch", "established")]


def test_another_operation_at_one_number_is_not_sure_another_size_is(tmp_path):
    assert ("collective-mismatch", "likely") in told(tmp_path, hung(0, 7) + hung(1, 7, numel=32))
    assert {status for _, status in told(tmp_path, hung(0, 7) + hung(1, 7, "BROADCAST"))} == {"possible"}
    for op, numel in (("_ALLGATHER_BASE", 32), ("ALLREDUCE", 1)):  # another module's weights, and a flag beside gradients: other calls
        assert {status for _, status in told(tmp_path, hung(0, 7, op) + hung(1, 7, op, numel))} == {"possible"}


def test_an_exception_that_nothing_explains_leads_what_only_words_say(tmp_path):
    text = "Traceback (most recent call last):\n  evaluate(model)\n  save_checkpoint(model)\nFileNotFoundError: 'tmp-checkpoint-49'\n"
    assert told(tmp_path, text, "it dies at the first checkpoint")[0][0] == "peer-crashed"
    assert told(tmp_path, text.replace("FileNotFoundError: ", ""), "it dies at the first checkpoint")[0][0] != "peer-crashed"


def test_what_works_is_not_called_harmless_where_something_surer_is_known(tmp_path):
    assert told(tmp_path, W + "P2P is disabled between NVLINK connected GPUs 1 and 0\n", "all works")[0] == ("gpu-or-link-fault", "likely")


def test_what_is_likely_is_called_harmless_where_the_reporter_says_that_all_goes_well(tmp_path):
    lacks = "WARNING custom_all_reduce.py:136] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.\n"
    assert told(tmp_path, lacks, "is this a bug? the server answers normally")[0] == ("benign", "possible")
    assert ("engine-allreduce-needs-p2p", "possible") in told(tmp_path, lacks, "is this a bug? the server hangs")  # vLLM only goes another way


def test_sockets_are_no_fault_where_they_are_wanted_and_none_is_sure_without_a_complaint(tmp_path):
    text = "node0:7:7 [0] NCCL INFO NET/IB : No device found.\nnode0:7:7 [0] NCCL INFO Using network Socket\n"
    assert told(tmp_path, text, "the InfiniBand cards are not used, 1 GB/s")[0] == ("net-socket-fallback", "likely")
    assert ("net-socket-fallback", "likely") not in told(tmp_path, text, "two hosts, sockets are what we want")
    assert ("net-socket-fallback", "likely") not in told(tmp_path, text, "two hosts")


def test_that_one_gpu_works_fine_does_not_calm_who_tells_of_a_hang_and_a_question_does(tmp_path):
    seen = "loading model\n"
    assert "benign" not in [c for c, _ in told(tmp_path, seen, "with one GPU everything works fine, with two it freezes")]
    assert "benign" in [c for c, _ in told(tmp_path, seen, "is this normal? I thought it was a hang")[:3]]


@pytest.mark.parametrize("cause, text, context, open_", [
    ("rank-busy-on-host", "Running tokenizer on dataset:  40%|####  | 40/100\n" + hung(1, 2), "", "Running tokenizer on dataset: 100%|####| 100/100\n" + hung(1, 2)),
    ("socket-interface-wrong", W + "Connect to 172.17.0.2<38847> failed : No route to host\n", "", W + "Connect to 172.17.0.2<38847> failed : Connection refused\n"),
])
def test_likely_only_where_the_line_leaves_no_other_cause(tmp_path, cause, text, context, open_):
    assert (cause, "likely") in told(tmp_path, text, context) and (cause, "likely") not in told(tmp_path, open_, context)


def test_an_image_of_a_container_is_no_module_that_some_ranks_skip(tmp_path):
    text = hung(0, 40, "_ALLGATHER_BASE") + "deepspeed zero stage 3\n"
    assert {status for _, status in told(tmp_path, text, "in a docker image")} == {"possible"}


@pytest.mark.parametrize(("beside", "first"), [("", "gdr-disabled"), ("a:1:2 [0] NCCL INFO Channel 00/0 : 8[1a000] -> 0[1a000] [receive] via NET/IB/0/GDRDMA\n", "")])
def test_direct_rdma_that_is_used_is_not_called_off(tmp_path, beside, first):
    got = told(tmp_path, "a:1:2 [0] NCCL INFO DMA-BUF is not available on GPU device 0\n" + beside, "a warning, the bandwidth is at line rate")
    assert [c for c, status in got if status == "likely"] == [first] * bool(first)


def test_a_card_for_which_nvml_says_nothing_by_itself_is_its_fault_and_in_a_slice_not(tmp_path):
    line = "a:1:1 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Supported\n"
    assert told(tmp_path, line)[0] == ("nvml-call-failed", "established")
    assert told(tmp_path, line + "CUDA_VISIBLE_DEVICES=MIG-7a31c1a5-2fd4-5c0e-9b92-8a55e84f6ab2\n")[0] == ("vgpu-or-mig-unsupported", "likely")


@pytest.mark.parametrize("context", ["", "its service does not start", "asked whether the result is reasonable for four 200 Gb/s HDR cards"])
def test_what_says_itself_that_nothing_is_wrong_is_harmless_whatever_was_asked(tmp_path, context):
    assert told(tmp_path, "nv-fabricmanager[4177]: request to query NVSwitch device information failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n", context)[0][0] == "benign"


@pytest.mark.parametrize(("words", "first"), [("asked whether the result is reasonable for four 200 Gb/s HDR cards", True), ("200 Gb/s is what we should get", False)])
def test_the_speed_of_a_card_in_its_name_is_no_complaint(tmp_path, words, first):
    got = told(tmp_path, "   133169160  33292290  float  sum  -1  2666.0  49.95  95.74  0\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 84.8558\n", words)
    assert (got[0][0] == "benign") is first


BANNER = ("W1123 12:00:00.123000 4711 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid "
    "your system being overloaded, please further tune the variable for optimal performance in your application as needed.\n")
SET_UP = ("node1:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "node1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 17000 commId 0xab - Init COMPLETE\n")


@pytest.mark.parametrize("end", ["srun: error: node2: task 5: Exited with exit code 1", "slurmstepd: error: *** JOB 4711 ON node1 CANCELLED AT 2026-11-23T12:00:00 DUE TO TIME LIMIT ***",
    "mpirun noticed that process rank 3 with PID 0 on node node2 exited on signal 9 (Killed).", "command terminated with exit code 137", "double free or corruption (!prev)",
    "(raylet) A worker died or was killed while executing a task by an unexpected system error.", "bash: line 1: 4711 Killed                  python train.py", "std::bad_alloc",
    "(EngineCore_0 pid=100) ERROR 11-23 12:00:00 [core.py:700] EngineCore encountered a fatal error.", "*** Aborted at 1700000000 (unix time)", "exit status 1",
    "ERROR:    Application startup failed. Exiting.", "[2023-07-20 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py']"])
def test_a_job_that_printed_its_end_is_not_called_harmless(tmp_path, end):
    assert told(tmp_path, BANNER) == [("benign", "possible")] and "benign" not in [c for c, _ in told(tmp_path, BANNER + end + "\n")]


@pytest.mark.parametrize("words", ["The job was OOMKilled.", "Segfault after this", "Got a bus error", "SIGKILL", "GPU fell off the bus.", "It stopped working after the driver upgrade.",
    "it breaks with 2 nodes, with 1 it works", "no output any more since 3 h", "The pod gets evicted.", "Ranks 4-7 are missing.", "Job terminated by scheduler.", "both processes are gone",
    "It takes 3 hours instead of 20 minutes.", "Der Job bleibt beim ersten all_reduce stehen", "le job se bloque au premier all_reduce", "训练卡住了,没有任何输出"])
def test_a_complaint_in_other_words_is_one(tmp_path, words):
    assert told(tmp_path, BANNER, "What is this message?")[0][0] == "benign" != told(tmp_path, BANNER, words)[0][0]


@pytest.mark.parametrize("line", ['INFO:     10.0.0.4:52222 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n', "[    0.51] iommu: Default domain type: Translated\n",
    "NVIDIA_DRIVER_CAPABILITIES is not set\n", "NVIDIA_DRIVER_CAPABILITIES= NCCL_DEBUG=INFO\n", "NVIDIA_DRIVER_CAPABILITIES=video,compute\n", "NVIDIA_DRIVER_CAPABILITIES=compute,utility\n",
    "node1:1:2 [0] NCCL INFO DMA-BUF is not available on GPU device 0\nnode1:1:2 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0\n",
    "node1:1:1 [0] NCCL INFO TUNER/Plugin: Plugin load returned 0 : /usr/lib/libnccl-tuner.so: undefined symbol: ncclTunerPlugin_v4\n"])
def test_what_healthy_servers_hosts_and_containers_print_beside_nccl_accuses_nobody(tmp_path, line):
    assert [c for c, _ in told(tmp_path, line + SET_UP) if c != "benign"] == []


def test_the_banner_of_torchrun_is_no_hint_at_the_cores(tmp_path):
    """It is printed by nearly every job."""
    for words in ("It fails.", "It hangs at the first all_reduce."):
        assert told(tmp_path, BANNER, words)[:1] != [("cpu-affinity", "possible")] == told(tmp_path, "OMP_NUM_THREADS=1 on two cores\n", words)[:1]


@pytest.mark.parametrize(("line", "first"), [
    ("Bootstrap Root : mismatch in rank count from procs 8 : -2130706432\n", ("foreign-connection", "likely")),
    ("NVIDIA_DRIVER_CAPABILITIES=compute NVIDIA_VISIBLE_DEVICES=all\nnode1:1:1 [0] misc/nvmlwrap.cc:101 NCCL WARN Failed to open libnvidia-ml.so.1\n", ("container-gpu-access", "likely")),
    ("NVIDIA_DRIVER_CAPABILITIES=compute\nn1:1:1 [0] misc/nvmlwrap.cc:200 NCCL WARN nvmlDeviceGetHandleByPciBusId(0000:1b:00.0) failed: Unknown Error\n", ("nvml-call-failed", "established"))])
def test_what_stands_beside_a_message_tells_only_what_it_can(tmp_path, line, first):
    assert told(tmp_path, line)[0] == first


@pytest.mark.parametrize(("number", "status"), [(1, "likely"), (493, "possible")])
def test_a_name_that_does_not_resolve_while_the_job_runs_is_not_the_likely_cause(tmp_path, number, status):
    log = f"[rank0]:[E1123 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600044 milliseconds before timing out.\n"
    assert dict(told(tmp_path, log + "The IPv6 network addresses of (node1, 29500) cannot be retrieved (gaierror: -2 - Name or service not known).\n"))["rendezvous-name-resolution"] == status


@pytest.mark.parametrize(("line", "beside", "cause"), [
    ("a:1:2 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n", "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL\n", "visible-devices-wrong"),
    ("could not load NVML: libnvidia-ml.so.1: cannot open shared object file: No such file or directory\n", "Detected non-NVML platform\n", "container-gpu-access")])
def test_a_line_is_likely_only_without_what_explains_it_otherwise(tmp_path, line, beside, cause):
    assert dict(told(tmp_path, line))[cause] == "likely" and dict(told(tmp_path, beside + line)).get(cause) != "likely"


def test_long_words_of_a_reporter_are_cut_and_answered_at_once(tmp_path):
    (tmp_path / "job.log").write_text("x\n")
    seen = reader.collect([str(tmp_path / "job.log")], "hangs " + "1" * 50_000 + " joined/workers store tensors\n" * 3000)
    assert len(seen.context.splitlines()) == 1000 and max(map(len, seen.context.splitlines())) == 2000
    assert all(len(line.text) <= 1000 for found in triage.judge(seen) for line in found.evidence)


def test_a_fabric_manager_without_a_switch_has_nothing_to_do(tmp_path):
    text = "nvidia-fabricmanager-start.sh[9]: request failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\nnv-fabricmanager failed! Exit code: 1\n"
    assert told(tmp_path, text, "the service fails to start")[0][0] == "benign"
    assert told(tmp_path, text.replace("NV_WARN_NOTHING_TO_DO", "NV_ERR_OPERATING_SYSTEM"), "the service fails to start")[0] == ("fabric-manager-down", "likely")


def test_a_message_broken_over_two_lines_is_as_harmless(tmp_path):
    text = "ProcessGroupNCCL.cpp:4715] [Rank 0]  using GPU 0 as device used by this process is currently\n  unknown. This can potentially cause a hang\n"
    assert told(tmp_path, text, "the run prints it and goes on")[0][0] == "benign"
    assert told(tmp_path, text, "it hangs there")[0][0] != "benign"


def test_a_job_that_ended_is_not_called_harmless_for_what_works_otherwise(tmp_path):
    assert told(tmp_path, "Duplicate GPU detected\n", "without that import it runs normally")[0][0] != "benign"
    assert told(tmp_path, "[W x.cpp:9] TypedStorage is deprecated\n", "it runs normally")[0][0] == "benign"


def test_a_complaint_that_infiniband_is_not_used_is_no_failure(tmp_path):
    text = "[0] NCCL INFO NET/IB : No device found.\n[0] NCCL INFO Using network Socket\n"
    assert told(tmp_path, text, "two nodes are as fast as one, it always fails to use the InfiniBand ports")[0] == ("net-socket-fallback", "likely")
    assert ("net-socket-fallback", "likely") not in told(tmp_path, text, "two nodes, InfiniBand: it always fails")


@pytest.mark.parametrize("cause, line, context", [
    ("nccl-library-conflict", "NCCL INFO NET/Plugin: libnccl-net.so: undefined symbol: ncclNetPlugin_v8\n", ""),
    ("engine-allreduce-needs-p2p", "WARNING custom_all_reduce.py:143] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.\n", ""),
    ("visible-devices-set-too-late", "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.\n", "import torch"),
    ("rendezvous-misconfigured", "group = stateless_init_process_group(master_address, master_port, 0, 2, device)\n", ""),
    ("socket-interface-wrong", W + "Connect to 172.31.20.4<43287> failed : Connection timed out\n", ""),
    ("more-ranks-than-gpus", "ValueError: World size (2) is larger than the number of available GPUs (1) in this node.\nMIG 2g.20gb Device 0\n", ""),
    ("gpu-or-link-fault", "NCCL INFO P2P is disabled between NVLINK connected GPUs 2 and 1.\nA100 MIG 1g.10gb\n", ""),
    ("rank-busy-on-host", "Saving checkpoint ...\n" + hung(1, 40), ""),
    ("rendezvous-port-in-use", "nv-fabricmanager: failed to bind to port 6666: Address already in use\n", ""),
    ("gpu-memory-exhausted", "CUDA error: out of memory\nRuntimeError: CUDA error: invalid device ordinal\n", ""),
    ("more-ranks-than-gpus", "[WARN] CUDA IPC is not usable: cudaErrorInvalidDevice: 101. Custom all-reduce kernels are disabled, falling back to NCCL.\n", ""),
])
def test_what_has_another_explanation_is_not_sure(tmp_path, cause, line, context):
    assert not {(cause, "likely"), (cause, "established")} & set(told(tmp_path, line, context))


@pytest.mark.parametrize("device, status", [("cuda:0", "likely"), ("cuda:1", "possible")])
def test_a_local_process_that_accelerate_gave_the_first_gpu_had_no_other(tmp_path, device, status):
    refused = "Last error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000\n"
    printed = f"Local process index: 0\nDevice: cuda:0\nLocal process index: 1\nDevice: {device}\n{refused}"
    assert ("more-ranks-than-gpus", status) in told(tmp_path, printed, "")


@pytest.mark.parametrize("where, status", [("Detected 1 nodes in the distributed environment", "possible"), ("node1 is there", "likely")])
def test_loopback_is_a_fault_only_between_hosts(tmp_path, where, status):
    printed = f"{where}\npod:820:820 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>\n"
    assert (("socket-interface-wrong", "likely") in told(tmp_path, printed, "hangs at start on the machines")) == (status == "likely")


@pytest.mark.parametrize(("after", "status"), [("", "possible"), ("RuntimeError: the store timed out\n", "likely")])
def test_a_name_that_is_looked_up_again_is_a_fault_only_where_something_fails(tmp_path, after, status):
    line = "[W socket.cpp:558] [c10d] The IPv6 network addresses of (w-0.w, 3389) cannot be retrieved (gai error: -2 - Name or service not known).\n"
    assert ("rendezvous-name-resolution", status) in told(tmp_path, line + after)


@pytest.mark.parametrize(("words", "cause"), [("sys.exit(main())", "pcie-topology-limit"), ("warmup_steps 8000, warmup iters: 5", "start-skew"),
                                              ("srun --gpus-per-node=4", "container-gpu-access"), ("no problem with a small corpus", "benign")])
def test_arguments_and_half_sentences_speak_for_nothing(tmp_path, words, cause):
    assert cause not in dict(told(tmp_path, f"RuntimeError: NCCL error\n{words}\n", words))


@pytest.mark.parametrize(("after", "first"), [("GPU:0 | Epoch: 0 | Steps: 32\nGPU:0 | Epoch: 1 | Steps: 32\n", "benign"), ("", "network-path-blocked")])
def test_what_was_retried_before_steps_is_called_harmless(tmp_path, after, first):
    line = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:12345 (errno: 101 - Network is unreachable).\n"
    assert told(tmp_path, line + after, "a warning at the start")[0] == (first, "possible")


def test_a_loader_without_shared_memory_is_not_merely_slow(tmp_path):
    worker = "RuntimeError: DataLoader worker (pid 52) is killed by signal: Bus error. "
    assert ("data-stall", "likely") in told(tmp_path, worker, "it hangs")
    assert told(tmp_path, worker + "It is possible that dataloader's workers are out of shared memory.\n", "it hangs")[0] == ("shm-too-small", "likely")


def test_the_last_work_of_a_rank_is_read_without_its_words(tmp_path):
    (tmp_path / "a.log").write_text("[Rank 9]  last enqueued: 10, last completed: 9\n[Rank 8] last enqueued NCCL work: 11, last completed NCCL work: 10\n")
    rows = {r.rank: (list(r.enqueued.values()), list(r.completed.values())) for r in reader.collect([str(tmp_path / "a.log")]).ranks}
    assert rows == {9: ([10], [9]), 8: ([11], [10])}


def test_the_heading_of_nccl_tests_is_no_progress(tmp_path):
    heading = "# nThread 1 nGpus 1 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    (tmp_path / "job.log").write_text("a:1:1 [0] NCCL INFO Using network Socket\n" + heading)
    seen = reader.collect([str(tmp_path / "job.log")]).seen
    assert seen and not any(found.resumed for found in seen.values())
    (tmp_path / "job.log").write_text("a:1:1 [0] NCCL INFO Using network Socket\niters: 20 loss: 0.5\n")
    assert all(found.resumed for e, found in reader.collect([str(tmp_path / "job.log")]).seen.items() if "Socket" in e)


@pytest.mark.parametrize("after, sure", [("", True), ("node0:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>\n", False)])
def test_an_address_of_infiniband_is_a_fallback_only_where_verbs_are_not_used_beside_it(tmp_path, after, sure):
    """NCCL 2.4 lists its sockets in front of the network that it then uses."""
    printed = "node0:7:7 [0] NCCL INFO NET/Socket : Using [0]ib0:192.168.11.1<0>\n" + after
    assert (("net-socket-fallback", "likely") in told(tmp_path, printed, "")) == sure


@pytest.mark.parametrize("before", ["", "517 ", "517:", "  517: "])
def test_an_exception_below_line_numbers_of_an_editor_is_one(tmp_path, before):
    shutdown = "[rank0]:[W306 20:20:52.622856896 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit\n"
    raised = "[rank0]: mlflow.exceptions.MlflowException: API request failed: the security token is expired\n"
    assert told(tmp_path, before + raised + before + shutdown, "")[0][0] == "peer-crashed"
    assert told(tmp_path, before + shutdown, "")[0][0] == "benign"


def test_silent_corruption_is_a_complaint_and_the_name_of_a_model_is_none(tmp_path):
    """ "with no error" beside wrong data, and SlowFast beside a harmless warning."""
    corrupt = told(tmp_path, "x.to(1)\n", "Moving a tensor from one GPU to another results in data corruption, silently, with no warning or error")
    assert corrupt[0][0] == "p2p-broken-acs-iommu"
    warning = "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:9999 (errno: 97 - Address family not supported by protocol).\n"
    assert told(tmp_path, warning, "SlowFast on 2 GPUs; the training continues")[0][0] == "benign"
    assert told(tmp_path, warning, "very slow on 2 GPUs; the training continues")[:1] != [("benign", "possible")]


def test_a_port_in_use_is_not_the_fault_itself_where_srun_starts_one_node_rank_twice(tmp_path):
    srun = "srun python -m torch.distributed.launch --nnodes=2 --node_rank=0 main.py"
    assert ("rendezvous-port-in-use", "established") in told(tmp_path, "RuntimeError: Address already in use\n", srun.replace("--node_rank=0 ", ""))
    assert all(status == "possible" for _, status in told(tmp_path, "RuntimeError: Address already in use\n", srun))


PERF = "#  Rank  0 Group  0 Pid 1530412 on {0:>10} device  0 [0000:0f:00] NVIDIA H20\n#  Rank  1 Group  0 Pid 1530412 on {1:>10} device  0 [0000:0f:00] NVIDIA H20\n"


def test_two_jobs_that_each_have_a_first_rank_never_met(tmp_path):
    """nccl-tests made without MPI; one job over the same two hosts is a near miss, and so are two runs on one host."""
    apart = ("rendezvous-misconfigured", "likely")
    assert told(tmp_path, PERF.format("node3", "node3") + PERF.format("node2", "node2"))[0] == apart
    assert apart not in told(tmp_path, PERF.format("node3", "node2"))
    assert apart not in told(tmp_path, PERF.format("node3", "node3") * 2)


def test_ranks_with_other_numbers_of_channels_run_with_other_settings(tmp_path):
    line = "[rank{}]: a:1:2 [0] NCCL INFO {} coll channels, {} collnet channels, 16 nvls channels, {} p2p channels, 2 p2p channels per peer\n"
    assert told(tmp_path, line.format(0, 24, 24, 32) + line.format(1, 8, 8, 8), "it fails")[0] == ("nodes-differ", "possible")
    assert "nodes-differ" not in by_message(tmp_path, line.format(0, 24, 24, 32) + line.format(1, 24, 24, 32))


WARNED = "[rank4]:[W203 09:19:41.4 ProcessGroupNCCL.cpp:4561] using GPU 0 to perform barrier as devices used by this process are currently unknown.\n"


@pytest.mark.parametrize(("asked", "first"), [
    ("Every rank prints a warning of a possible hang. Will the job hang later?", "benign"), ("Is NCCL stuck? The log speaks of a hang.", "benign"),
    ("Users ask whether their jobs will hang.", "benign"), ("Why does the job hang?", "device-binding"), ("The job hangs. Is NCCL stuck?", "device-binding")])
def test_who_only_asks_whether_it_will_hang_tells_of_no_hang(tmp_path, asked, first):
    assert told(tmp_path, WARNED, asked)[0][0] == first


@pytest.mark.parametrize(("after", "resumed"), [("step=1 loss=12.2\nstep=2 loss=11.9\n", True), ("", False), ("step=1 loss=12.2\n", False), ("step=1 loss=12.2\nRuntimeError: the end\n", False)])
def test_steps_of_nobody_in_the_same_file_make_a_message_background(tmp_path, after, resumed):
    (tmp_path / "job.log").write_text(WARNED + after)
    seen = reader.collect([str(tmp_path / "job.log")]).seen
    assert [found.resumed for e, found in seen.items() if "to perform barrier" in e] and all(
        found.resumed == resumed for e, found in seen.items() if "to perform barrier" in e)


def test_steps_in_another_file_say_nothing_of_a_message(tmp_path):
    (tmp_path / "a.log").write_text(WARNED)
    (tmp_path / "b.log").write_text("step=1 loss=12.2\nstep=2 loss=11.9\n")
    seen = reader.collect([str(tmp_path)]).seen
    assert not any(found.resumed for e, found in seen.items() if "to perform barrier" in e)


def test_a_busy_port_of_the_diagnostic_service_is_no_busy_port_of_the_job(tmp_path):
    """NCCL >= 2.24 listens on 28028 for its client of RAS; the job goes on without."""
    ras = "A800:1:2 [1] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use\n"
    assert told(tmp_path, ras) == [("benign", "possible")]
    assert ("rendezvous-port-in-use", "possible") in told(tmp_path, ras.replace("ras/client_support.cc", "misc/socket.cc"))


@pytest.mark.parametrize(("log", "words", "first"), [
    ("UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited'\n", "the numbers come out as usual", "benign"),
    ("UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory (ulimit -l) to 'unlimited'\n", "the numbers come out wrong", "ulimit-too-low"),
    ("Traceback (most recent call last):\npynvml.NVMLError_InvalidArgument: Invalid Argument\n", "CI of mocked GPUs; the tests go on and pass", "nvml-call-failed"),
    ("Traceback (most recent call last):\npynvml.NVMLError_InvalidArgument: Invalid Argument\n", "CI of mocked GPUs; the tests go on and pass, the job crashes", "nvml-call-failed"),
    ("CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n", "printed while the parts are loaded, then the 28-step forward pass completes", "benign"),
    ("CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n", "printed while the parts are loaded", "net-plugin-failed"),
    ("CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n", "an error in every other start and no run completes", "net-plugin-failed"),
    ("CCOM WARN NET/OFI aws-ofi-nccl initialization failed\n", "two nodes are bad; then only the benchmark passes", "net-plugin-failed"),
    ("E0331 CtranIb.cc:101] CTRAN-IB: Found 0 InfiniBand device(s) but 1 required.\n[Rank 0/2] After AllReduce: 3.0 [PASS]\n", "an E line is printed", "benign")])
def test_an_error_beside_results_that_are_right_is_noise(tmp_path, log, words, first):
    assert told(tmp_path, log, words)[0][0] == first


@pytest.mark.parametrize("before, line, cause", [
    ("exits with return code = -6", "exits with return code = -9", "peer-crashed"),
    ("The client socket has timed out after 900s while trying to connect to (10.0.1.9, 29500).", "The client socket has timed out after 1800s while trying to connect to (172.17.0.2, 44737).", "socket-interface-wrong"),
    ("frozen 0", "frozen 1", "peer-stopped"), ("nr_throttled 3", "nr_throttled 88214", "cpu-affinity"),
    ("n1:7:7 [0] NCCL INFO bootstrap.cc:701 -> 2", "n1:7:9 [0] NCCL WARN socketProgress: Connection closed by remote peer 192.0.2.3<36138>\nn1:7:9 [0] NCCL INFO bootstrap.cc:701 -> 6", "foreign-connection")])
def test_the_same_line_with_other_numbers_hides_no_message(tmp_path, before, line, cause):
    for number, text in enumerate((line, f"{before}\n{line}")):
        (tmp_path / "job.log").write_text(text + "\n")
        found = [h for h in triage.judge(reader.collect([str(tmp_path / "job.log")], "all ranks hang")) if h.cause == cause]
        assert found and any(e.text in line and e.line > number for e in found[0].evidence), found


@pytest.mark.parametrize(("line", "failed"), [
    ("pytorch_lightning.utilities.exceptions.MisconfigurationException:\n", True), ("pynvml.NVMLError_InvalidArgument: Invalid Argument\n", True),
    ("the MisconfigurationException: class\n", False), ("NVMLErrors are counted\n", False)])
def test_an_exception_may_end_with_its_colon_or_have_a_suffix(tmp_path, line, failed):
    (tmp_path / "job.log").write_text("Traceback (most recent call last):\n" + line)
    assert (triage.failed_line(reader.collect([str(tmp_path / "job.log")])) is not None) == failed


@pytest.mark.parametrize(("log", "words", "advice"), [
    (PERF.format("node3", "node3") + PERF.format("node2", "node2"), "", "MPI=1"),
    ("it is slow\n", "NCCL_NET_GDR_LEVEL=SYS mpirun -np 2 --host n13,n14 gather_perf fails", "mpirun -x"),
    ("error: unrecognized arguments: --local-rank=1\n", "", "LOCAL_RANK"),
    ("ValueError: the world size is 2 and 1 clients joined\n1/2 clients joined\n", "", "MASTER_"),
    ("CUDA error: invalid device ordinal\n", "srun --gpus-per-task=1 python train.py", "--gpu-bind=none"),
    ("CUDA error: invalid device ordinal\n", "CUDA_VISIBLE_DEVICES=0 srun --gpu-bind=none --gpus-per-node=8 python train.py", "nvidia-smi -L"),
    ("ValueError: Port could not be cast to integer value as 'fd00::1:29500'\n", "", "brackets"),
    ("zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5570')\n", "", "VLLM_PORT"),
    ("RuntimeError: The server socket has failed to listen: [Errno 98] Address already in use, port 29500\n", "", "torchrun --master-port"),
    ("CUDA error 803: system has unsupported display driver / cuda driver combination\n", "", "compat"),
    ("Failed to initialize NVML: Driver/library version mismatch\n", "", "sudo reboot"),
    ("n1:803:803 [0] NCCL WARN nvmlInit failed: Driver/library version mismatch\n", "", "sudo reboot"),
    (W + "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1\n", "InfiniBand between two nodes, the path is blocked", "ibstat"),
    (W + "NET/OFI Request completed with error. RC: 2\n", "EFA on two nodes; the port is blocked by a firewall and it hangs", "security group"),
    (W + "socketStartConnect: Connect to 10.0.0.2<41235> failed : No route to host\n", "", "nc -vz HOST PORT")])
def test_advice_is_that_for_the_message_seen(tmp_path, log, words, advice):
    (tmp_path / "job.log").write_text(log)
    lead = triage.judge(reader.collect([str(tmp_path / "job.log")], words))[0]
    assert any(advice in line for remedy in lead.remedy for line in (remedy.text, *remedy.lines)), lead


@pytest.mark.parametrize(("line", "launcher"), [
    ("(RayWorkerWrapper pid=812, ip=10.0.0.3) NCCL WARN error\n", "ray"), ("(Worker pid=812, ip=10.0.0.3) NCCL WARN error\n", "ray"),
    ("(Worker_TP1 pid=812) NCCL WARN error\n", ""), ("(EngineCore_DP1 pid=812) NCCL WARN error\n", ""), ("(VllmWorkerProcess pid=812) NCCL WARN error\n", "")])
def test_an_engines_own_workers_are_no_sign_of_ray(tmp_path, line, launcher):
    (tmp_path / "job.log").write_text(line)
    assert reader.collect([str(tmp_path / "job.log")]).launcher == launcher


def test_what_is_no_log_of_such_a_job_is_accused_of_nothing_by_single_words(tmp_path):
    (tmp_path / "job.log").write_text("aws_instance.web: Creating...\nError: creating EC2 Instance: InsufficientInstanceCapacity: no p5.48xlarge in the zone\n")
    assert {h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))} <= {"peer-crashed"}
    assert len(triage.judge(reader.collect([str(tmp_path / "job.log")], "the training job over 8 GPUs does not start"))) > 1


def test_single_words_accuse_nobody_beside_a_known_message_where_nobody_complains(tmp_path):
    (tmp_path / "job.log").write_text("n1:7:7 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\nView the dashboard at 127.0.0.1:8265\n")
    assert [h.cause for h in triage.judge(reader.collect([str(tmp_path / "job.log")]))] == ["benign"]


def test_what_only_sounds_harmless_is_not_called_known(tmp_path):
    (tmp_path / "job.log").write_text("train.c:12: warning: unused variable 'rank'\n")
    logs = reader.collect([str(tmp_path / "job.log")], "is this warning harmless? everything works fine")
    lead = triage.judge(logs)
    assert lead[0].cause == "benign" and "no message that is known here" in triage.sentence(logs, lead)
    (tmp_path / "job.log").write_text("n1:7:7 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n")
    logs = reader.collect([str(tmp_path / "job.log")], "is this warning harmless? everything works fine")
    assert "known to be harmless" in triage.sentence(logs, triage.judge(logs))


@pytest.mark.parametrize("words", ["is this normal?", "with NCCL 2.18 all tests pass", "on one GPU the results come out right", ""])
@pytest.mark.parametrize("log", ["[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n"])
def test_a_job_that_failed_is_never_called_harmless(tmp_path, log, words):
    assert told(tmp_path, log, words)[0][0] != "benign"


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("fault", ["[rank3]: what():  CUDA error: uncorrectable ECC error encountered\n", "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n"])
def test_steps_do_not_clear_what_is_the_fault_itself(tmp_path, fault, steps):
    assert told(tmp_path, fault + "".join(f"step {n} loss 2.3\n" for n in range(steps)))[0] == ("gpu-or-link-fault", "established")


def test_a_preflight_that_passed_is_no_end_of_a_rank(tmp_path):
    (tmp_path / "job.log").write_text("".join(f"[rank{n}]: [PASS] preflight gpu {n}\n" for n in range(4)))
    assert not any(row.ended for row in reader.collect([str(tmp_path / "job.log")]).ranks)


@pytest.mark.parametrize("between", ["# Avg bus bandwidth    : 180.3\n", "# Out of bounds values : 0 OK\n"])
def test_runs_on_one_host_after_the_other_are_no_jobs_that_never_met(tmp_path, between):
    log = PERF.format("node3", "node3") + between + PERF.format("node2", "node2")
    assert not any(cause == "rendezvous-misconfigured" for cause, _ in told(tmp_path, log))
    (tmp_path / "b.log").write_text(PERF.format("node2", "node2"))
    (tmp_path / "a.log").write_text(PERF.format("node3", "node3"))
    (tmp_path / "job.log").unlink()
    assert not triage.judge(reader.collect([str(tmp_path)]))
    assert not told(tmp_path, PERF.format("n1", "n1") + PERF.format("n1.example.com", "n1"))


@pytest.mark.parametrize("line", [
    "torchrun --nnodes 2 --master_addr n1 --master_port 29500 train.py", "zmq binding tcp://:5555",
    "srun --nodes=1 -w host-1 torchrun --nnodes 2 --node-rank 1 train.py", "NCCL_ALGO=Ring mpirun -H localhost:8 -np 8 ./all_reduce_perf"])
def test_usual_lines_of_launchers_accuse_nobody(tmp_path, line):
    assert not by_message(tmp_path, line + "\n")


@pytest.mark.parametrize("words", [
    "Do you know why the job hangs on 2 nodes?", "Is it a bug that all_reduce hangs with 4 GPUs?", "Could this be why the run crashes every night?",
    "Is my GPU broken, the job always hangs on node 3?", "If I use 8 GPUs it will hang at the first allreduce", "We found a possible hang in our training"])
def test_a_question_with_a_complaint_in_it_is_one(words):
    assert says(words, "<complaint>")
