train_args=(
  trainer.nnodes=1
  trainer.n_gpus_per_node=8
)
rollout_args=(
  actor_rollout_ref.rollout.tensor_model_parallel_size=2
)
python3 -m verl.trainer.main_ppo "${train_args[@]}" "${rollout_args[@]}"
