"""Read critiques in words, locate their quotes as spans of the response, and store both; imports only the ground.

`sources/` reads the formats of other projects and tools.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
