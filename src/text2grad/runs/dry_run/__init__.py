"""One look before a run: its input, its memory, and with the critic its signal (`text2grad train --dry-run`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
