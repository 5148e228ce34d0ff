"""Feedback in the formats of other projects and tools → annotations, by one reader per format.

`registry` lists the formats; `text2grad import` reads them on the command line (see `docs/feedback.md`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
