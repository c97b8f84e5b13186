torchrun --nproc_per_node=8 grpo.py --use_vllm --vllm_mode colocate --vllm_tensor_parallel_size 2
