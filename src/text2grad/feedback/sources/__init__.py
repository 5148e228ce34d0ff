"""Feedback of other projects and annotation tools → annotations; `registry` lists the readers by name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
