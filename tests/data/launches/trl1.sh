CUDA_VISIBLE_DEVICES=0,1,2,3 trl vllm-serve --model Qwen/Qwen2.5-7B --tensor-parallel-size 2 --data-parallel-size 2 &
CUDA_VISIBLE_DEVICES=4,5,6,7 accelerate launch train.py
