#!/usr/bin/env bash
NNODES=${NNODES:-2}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}
gen_tp=4
ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" \
    --working-dir "${WORKING_DIR}" \
    -- python3 -m verl.trainer.main_ppo \
    trainer.nnodes="${NNODES}" trainer.n_gpus_per_node="${NGPUS_PER_NODE}" \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${gen_tp}
