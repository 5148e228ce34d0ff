#!/usr/bin/env bash
# PPO with a value model, GAE and token rewards in verl (docs/engines.md); start it from the directory of my_module.py.
#
#   MODEL=meta-llama/Llama-3.1-8B-Instruct NODES=1 bash train.sh      # 8 GPUs
#   MODEL=meta-llama/Llama-3.1-70B-Instruct NODES=8 TENSOR_PARALLEL=4 bash train.sh     # 64 GPUs, on the head node of a Ray cluster
#
# Further arguments are verl's own: trainer.total_epochs=3, trainer.logger='["console","wandb"]'.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
NODES=${NODES:-1}

exec python -m verl.trainer.main_ppo \
    data.train_files="${TRAIN:-train.parquet}" \
    data.val_files="${VALID:-valid.parquet}" \
    data.train_batch_size=$((128 * NODES)) \
    data.max_prompt_length=1024 \
    data.max_response_length=512 \
    actor_rollout_ref.model.path="${MODEL:?name a model}" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_epochs=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=$((64 * NODES)) \
    actor_rollout_ref.actor.clip_ratio=0.2 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.temperature=0.6 \
    actor_rollout_ref.rollout.tensor_model_parallel_size="${TENSOR_PARALLEL:-1}" \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/text2grad.yaml" \
    actor_rollout_ref.rollout.agent.default_agent_loop=text2grad \
    critic.model.path="${MODEL}" \
    critic.optim.lr=1e-5 \
    algorithm.adv_estimator=gae \
    algorithm.gamma=1.0 \
    algorithm.lam=0.95 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_ctrl.type=adaptive \
    algorithm.kl_ctrl.kl_coef=0.2 \
    algorithm.kl_ctrl.target_kl=6 \
    trainer.use_v1=True \
    trainer.nnodes="$NODES" \
    trainer.n_gpus_per_node=8 \
    "$@"
