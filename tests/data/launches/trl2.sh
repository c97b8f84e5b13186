accelerate launch --config_file deepspeed_zero3.yaml --num_processes 7 train_grpo.py --use_vllm true --vllm_mode server --vllm_server_host node2
