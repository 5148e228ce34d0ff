from .examples import train_reward_model as train_reward_model
from .run import RewardRun as RewardRun
