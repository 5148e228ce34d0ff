"""Parts that the tasks about facts share: reading claims of an answer, and wording critiques."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
