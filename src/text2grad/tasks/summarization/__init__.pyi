from .critic import refine_summary as refine_summary
from .task import SummarizationTask as SummarizationTask
