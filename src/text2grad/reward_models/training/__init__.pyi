from .held_out import HeldOutSet as HeldOutSet, span_f1 as span_f1
from .run import (
    RewardRun as RewardRun,
    held_out_file as held_out_file,
    reward_directory as reward_directory,
    train_reward_model as train_reward_model,
    trained_model as trained_model,
)
