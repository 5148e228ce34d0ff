"""δ → gradient: rewards, advantages, PPO losses, the trainer and its checkpoints."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
