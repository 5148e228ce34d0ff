from .align import pseudo_rewards as pseudo_rewards, token_offsets as token_offsets
from .config import Recipe as Recipe, load_recipe as load_recipe, make_recipe as make_recipe
from .critics import LLMCritic as LLMCritic, RuffCritic as RuffCritic, UnitTestCritic as UnitTestCritic
from .errors import Text2GradError as Text2GradError
from .feedback import (
    Critic as Critic,
    critique_from_text as critique_from_text,
    locate_spans as locate_spans,
    parse_critique as parse_critique,
    read_source as read_source,
    vote as vote,
)
from .integrations import GRPOTrainer as GRPOTrainer, SDPOTrainer as SDPOTrainer
from .reward_models import (
    GenerativeRewardModel as GenerativeRewardModel,
    QuoteLimits as QuoteLimits,
    Refresher as Refresher,
    ServerRewardModel as ServerRewardModel,
    critique_grammar as critique_grammar,
)
from .rl import (
    Text2GradTrainer as Text2GradTrainer,
    gae as gae,
    nl_gradient_loss as nl_gradient_loss,
    policy_loss as policy_loss,
    value_loss as value_loss,
    whiten as whiten,
)
from .runs import push_to_hub as push_to_hub
from .types import Critique as Critique, Example as Example, Rollout as Rollout, Span as Span

__version__: str
