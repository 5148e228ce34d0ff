from .refining import refine_program as refine_program
from .task import CodeTask as CodeTask
