"""TODO package sentence."""
