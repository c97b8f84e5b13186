docker run --gpus all --ipc=host --ulimit memlock=-1 -e NCCL_DEBUG=INFO -e NCCL_IB_DISABLE=1 -e NCCL_SOCKET_IFNAME=lo x torchrun --nproc_per_node 8 t.py
