"""Text2Grad's token rewards in the trainers of others: TRL's `GRPOTrainer` (`trl`) and verl's agent loop (`verl`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
