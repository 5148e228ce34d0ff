"""The task of grounded answers: answer or summarize from a passage; the critic marks what the passage does not say."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
