"""The commands of `text2grad`, one module each: `add_parser(subparsers)` and `run(args) -> int`, the exit status.

A command refuses what it cannot use by an error of `text2grad.errors`, before its work starts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
