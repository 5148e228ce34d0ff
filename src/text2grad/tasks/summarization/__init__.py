"""The summarization task: posts about people and objects, and one-sentence summaries."""
