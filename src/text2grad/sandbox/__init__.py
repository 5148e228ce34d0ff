"""Run model-written Python code in isolated processes, and judge it by tests that it cannot bribe.

Usable without the rest of text2grad; nothing here loads torch. May import: `errors`, `progress`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
