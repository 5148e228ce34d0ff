"""Critiques in the trainers of others: TRL's `GRPOTrainer` (`trl`), its `SDPOTrainer` (`sdpo`), and verl's agent loop.

`groups` tells what a group of responses teaches by one number and by rewards of tokens, also before a run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
