"""The commands of `python -m evidence`, one module each, beside those of text2grad."""
