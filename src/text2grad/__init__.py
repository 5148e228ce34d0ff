"""Reinforcement learning from feedback in words (Text2Grad, arXiv 2505.22338).

    critique in words  →  spans of the response  →  δ_t per sampled token  →  Σ δ_t ∇ log π(y_t)
      parse_critique        locate_spans             pseudo_rewards            nl_gradient_loss, Text2GradTrainer

Public names load on first use, so that `import text2grad` stays light: reading critiques and aligning them needs no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from text2grad.advantages import gae, whiten
    from text2grad.align import pseudo_rewards
    from text2grad.annotating.critic import LLMCritic
    from text2grad.config import Recipe, load_recipe
    from text2grad.critics import Critic
    from text2grad.critique_text import parse_critique
    from text2grad.errors import Text2GradError
    from text2grad.loop import Text2GradTrainer
    from text2grad.nl_gradient import nl_gradient_loss
    from text2grad.offsets import token_offsets
    from text2grad.ppo import policy_loss, value_loss
    from text2grad.reward_model import GenerativeRewardModel
    from text2grad.ruff_critic import RuffCritic
    from text2grad.sandbox import Sandbox, run_tests
    from text2grad.sources.registry import read_source
    from text2grad.spans import critique_from_text, locate_spans
    from text2grad.types import Critique, Example, Rollout, Span
    from text2grad.unit_tests import UnitTestCritic
    from text2grad.votes import vote
    from text2grad.weighting import token_importance

__version__ = "0.1.0"

_HOME = {
    "Critic": "critics",
    "Critique": "types",
    "Example": "types",
    "GenerativeRewardModel": "reward_model",
    "LLMCritic": "annotating.critic",
    "Recipe": "config",
    "Rollout": "types",
    "RuffCritic": "ruff_critic",
    "Sandbox": "sandbox",
    "Span": "types",
    "Text2GradError": "errors",
    "Text2GradTrainer": "loop",
    "UnitTestCritic": "unit_tests",
    "critique_from_text": "spans",
    "gae": "advantages",
    "load_recipe": "config",
    "locate_spans": "spans",
    "nl_gradient_loss": "nl_gradient",
    "parse_critique": "critique_text",
    "policy_loss": "ppo",
    "pseudo_rewards": "align",
    "read_source": "sources.registry",
    "run_tests": "sandbox",
    "token_importance": "weighting",
    "token_offsets": "offsets",
    "value_loss": "ppo",
    "vote": "votes",
    "whiten": "advantages",
}

__all__ = [
    "Critic",
    "Critique",
    "Example",
    "GenerativeRewardModel",
    "LLMCritic",
    "Recipe",
    "Rollout",
    "RuffCritic",
    "Sandbox",
    "Span",
    "Text2GradError",
    "Text2GradTrainer",
    "UnitTestCritic",
    "critique_from_text",
    "gae",
    "load_recipe",
    "locate_spans",
    "nl_gradient_loss",
    "parse_critique",
    "policy_loss",
    "pseudo_rewards",
    "read_source",
    "run_tests",
    "token_importance",
    "token_offsets",
    "value_loss",
    "vote",
    "whiten",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'text2grad' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(import_module(f"text2grad.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
