from .trl import SpanGRPOTrainer as SpanGRPOTrainer
