"""Text2Grad's token rewards in TRL's `GRPOTrainer`: `SpanGRPOTrainer`; needs the extra `trl` (docs/trl.md).

May import: `errors`, `types`, `config`, `feedback`, `align`, `models`, `rl`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
