"""Answers of one sentence that states facts, for `qa` and `summarization`: noise, reading, critiques and metric."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
