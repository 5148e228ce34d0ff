"""Critics that need no training: examples and responses → critiques.

programs/   unit tests and ruff
sandbox/    runs the programs that the policy wrote
servers/    language models behind an API
cached      stores the critiques of any critic on disk

May import `errors`, `types`, `files`, `config` and `feedback`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
