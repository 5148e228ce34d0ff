"""Text2Grad's token rewards in the trainers of others: TRL's `GRPOTrainer` (`trl`) and verl's agent loop (`verl`).

`groups` tells what a group of responses teaches by one number and by rewards of tokens, also before a run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
