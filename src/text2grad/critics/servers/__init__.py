"""Critics that are language models on a server: prompt → answer, paid for once → critique or preference."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
