"""The story task: continue a story; the critic marks words that do not exist and repeated phrases."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
