"""Feedback of every source -> annotations: one reader per source, by name.

`registry` names them; `text2grad import` is the same from the command line, and `docs/feedback.md` has a command for
each.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
