from .task import QATask as QATask
