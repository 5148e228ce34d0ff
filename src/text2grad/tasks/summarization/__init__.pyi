from .task import SummarizationTask as SummarizationTask
