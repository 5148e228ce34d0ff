"""Before a run: its memory, time and money, from the recipe and the config of the policy (`text2grad plan`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
