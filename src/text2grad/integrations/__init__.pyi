from .groups import group_shares as group_shares, one_number as one_number
from .sdpo import SDPOTrainer as SDPOTrainer
from .trl import GRPOTrainer as GRPOTrainer
