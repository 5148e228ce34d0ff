"""The question-answering task: a table of courses and a question → one sentence of two to five claims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
