"""Rivals without policy gradient, on the same prompts, critiques and number of rollouts, with the log of `train`.

runner      a recipe → a finished run
trainer     rounds: sample, ask the critic, log as `train` does, learn; checkpoints and exact resume
fitting     a trainer of transformers or TRL on the policy in place, with the run's AdamW and learning rate
dpo         best and worst of each prompt's responses → pairs → TRL's DPOTrainer
imitation   the best answers, sampled or refined → fine-tuning
refiners    responses and their critiques → responses written again
self_distillation    the policy with the critique in its prompt → advantages for the policy without
reflection  answers, criticised and written again at inference
"""
