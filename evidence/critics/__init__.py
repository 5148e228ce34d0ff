"""Critics that only experiments use."""
