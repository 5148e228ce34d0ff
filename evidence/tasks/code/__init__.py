"""The code task: small Python functions, judged by unit tests."""
