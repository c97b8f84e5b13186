python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 --actor.num_gpus_per_node 4 --vllm.num_engines 4 --vllm.tensor_parallel_size 1 --algo.advantage.estimator reinforce_baseline --algo.kl.init_coef 0 --reward.remote_url f.py
