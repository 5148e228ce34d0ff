from .base import Task as Task, TaskSettings as TaskSettings
from .lessons.lesson import LESSON_RECIPE as LESSON_RECIPE, Lesson as Lesson, ready_lesson as ready_lesson
from .program_critic import ProgramCritic as ProgramCritic
from .registry import BuiltIn as BuiltIn, built_in as built_in, procedural_task as procedural_task
from .tiny import tiny_llama as tiny_llama, word_tokenizer as word_tokenizer
