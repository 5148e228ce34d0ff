"""The question-answering task: questions about a small table."""
