from .base import Task as Task, TaskSettings as TaskSettings
from .grounded import (
    altered_answers as altered_answers,
    grounded_examples as grounded_examples,
    grounded_metrics as grounded_metrics,
    right_answers as right_answers,
)
from .program_critic import ProgramCritic as ProgramCritic
from .refining import program_refiner as program_refiner
from .registry import BuiltIn as BuiltIn, built_in as built_in, procedural_task as procedural_task
from .tiny import (
    copy_weights as copy_weights,
    count_tokens as count_tokens,
    tiny_llama as tiny_llama,
    word_tokenizer as word_tokenizer,
)
