from .groups import group_shares as group_shares, one_number as one_number
from .trl import GRPOTrainer as GRPOTrainer
