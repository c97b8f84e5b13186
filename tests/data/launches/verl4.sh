n_gpus_rollout=4
n_gpus_training=$((8 - n_gpus_rollout))
python3 -m verl.experimental.one_step_off_policy.main_ppo actor_rollout_ref.hybrid_engine=False trainer.nnodes=1 trainer.n_gpus_per_node="${n_gpus_training}" rollout.nnodes=1 rollout.n_gpus_per_node="${n_gpus_rollout}"  # don't mix
