uv run python open_instruct/grpo_fast.py --num_learners_per_node 6 --vllm_num_engines 2 --vllm_tensor_parallel_size 1 --vllm_sync_backend gloo
