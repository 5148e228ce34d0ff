from .run import RewardRun as RewardRun
from .trainer import train_reward_model as train_reward_model
