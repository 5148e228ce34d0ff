"""The summarization task: posts about people and objects, and one-sentence summaries."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
