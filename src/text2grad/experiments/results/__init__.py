"""Pages of results from committed JSON: statistics over seeds and held-out items, tables, pictures."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
