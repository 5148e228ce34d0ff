"""Reinforcement learning from feedback in words (Text2Grad, arXiv 2505.22338).

    critique in words  →  spans of the response  →  δ_t per sampled token  →  Σ δ_t ∇ log π(y_t)
      parse_critique        locate_spans             pseudo_rewards            nl_gradient_loss, Text2GradTrainer

Read the packages in this order to follow the method: `feedback`, `align`, `models`, `critics`, `reward_models`, `rl`,
`runs`. Public names are listed once, in `__init__.pyi`. Each loads its module on first use: reading critiques
and aligning them needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.2.0"
