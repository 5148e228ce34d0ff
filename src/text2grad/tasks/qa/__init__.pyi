from .critic import refine_answer as refine_answer
from .task import QATask as QATask
