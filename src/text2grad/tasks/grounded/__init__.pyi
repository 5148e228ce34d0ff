from .answers import altered_answers as altered_answers, right_answers as right_answers
from .critic import GroundedCritic as GroundedCritic
from .metric import grounded_metrics as grounded_metrics
from .prompts import grounded_examples as grounded_examples
from .refining import refine_grounded as refine_grounded
