"""Built-in tasks: prompts, noisy demonstrations, a critic with exact quotes, and a metric hidden from the critic."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
