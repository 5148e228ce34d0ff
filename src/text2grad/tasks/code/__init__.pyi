from .task import CodeTask as CodeTask
