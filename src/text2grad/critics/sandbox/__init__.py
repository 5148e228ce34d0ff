"""A program and its tests → whether the tests pass, run in isolation from the machine.

sandbox   many programs at a time, on warm workers
worker    one worker process, seen from outside: start it, send it programs, read outcomes, end it
inside/   the modules that run in the worker's process

May import `errors`, `types` and `files`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
