"""Run model-written Python code in isolated processes, and judge it by tests that it cannot bribe.

Usable alone: nothing here imports text2grad, torch or any other package but `lazy_loader`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
