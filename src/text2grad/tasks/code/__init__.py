"""The code task: a specification of two to five steps → a Python function, scored by unit tests in the sandbox."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
