"""Spans of a response → δ of each sampled token, for any tokenizer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
