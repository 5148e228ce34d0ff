from .base import Task as Task
from .registry import BuiltIn as BuiltIn, built_in as built_in, procedural as procedural
from .tiny import tiny_llama as tiny_llama, word_tokenizer as word_tokenizer
