"""Models that a Python package carries, for experiments on a machine without a hub."""
