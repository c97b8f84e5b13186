"""Every directed copy between two GPUs, without NCCL, each value compared."""
