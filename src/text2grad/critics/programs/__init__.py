"""Critics that are programs: unit tests and the linter ruff."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
