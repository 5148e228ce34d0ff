"""The stories task: openings of children's stories, a program critic of spelling and repetition, and metrics."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
