from .held_out import HeldOutSet as HeldOutSet
from .run import (
    HELD_OUT_FILE as HELD_OUT_FILE,
    RewardRun as RewardRun,
    finished_file as finished_file,
    reward_directory as reward_directory,
)
