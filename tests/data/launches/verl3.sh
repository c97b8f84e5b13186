NNODES_ROLLOUT=${NNODES_ROLLOUT:-4}
NNODES_TRAIN=${NNODES_TRAIN:-12}
NGPUS_PER_NODE=8
python -m verl.experimental.fully_async_policy.fully_async_main \
  --config-name='fully_async_ppo_megatron_trainer.yaml' \
  actor_rollout_ref.hybrid_engine=False \
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
  trainer.nnodes="${NNODES_TRAIN}" trainer.n_gpus_per_node="${NGPUS_PER_NODE}" \
  rollout.nnodes="${NNODES_ROLLOUT}" rollout.n_gpus_per_node="${NGPUS_PER_NODE}" \
  async_training.staleness_threshold=0.5
