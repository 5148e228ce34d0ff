"""Load, adapt, prompt, sample, score and fine-tune a language model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
