"""Readers of data sets of feedback that the experiments alone use."""
