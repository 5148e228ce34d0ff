from .span_grpo import SpanGRPOTrainer as SpanGRPOTrainer
