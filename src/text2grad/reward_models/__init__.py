"""Learned critics: generative, scalar and process reward models, probes; training, decoding, loading, serving.

May import: `errors`, `types`, `files`, `progress`, `costs`, `config`, `feedback`, `align`, `models`, `critics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
