"""Whole runs: the three phases, methods and their comparison, quality of critics, reports."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
