"""Token rewards from any critic in verl's PPO, with its value model, GAE and KL term, on many nodes (docs/verl.md).

May import: `errors`, `types`, `config`, `feedback`, `align`, `models`, `rl`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
