from .trl import GRPOTrainer as GRPOTrainer
