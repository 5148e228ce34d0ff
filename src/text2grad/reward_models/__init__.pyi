from .agreement import RECORD_KEYS as RECORD_KEYS, Agreement as Agreement, compare as compare
from .decoding import QuoteLimits as QuoteLimits, critique_grammar as critique_grammar
from .generative import (
    GenerativeRewardModel as GenerativeRewardModel,
    probe_of as probe_of,
    saved_settings as saved_settings,
)
from .load import (
    LOCAL as LOCAL,
    critic_from_recipe as critic_from_recipe,
    decoding_of as decoding_of,
    rows_read_at_once as rows_read_at_once,
    shares_base as shares_base,
)
from .probe import ProbeRewardModel as ProbeRewardModel, is_probe as is_probe, saved_probe as saved_probe
from .probe_training import train_probe as train_probe
from .process import train_process_reward_model as train_process_reward_model
from .prompts import encode_questions as encode_questions
from .refresh import Refresher as Refresher, judge as judge
from .scalar import train_scalar_reward_model as train_scalar_reward_model
from .scalar_from_preferences import train_scalar_from_preferences as train_scalar_from_preferences
from .served import ServerRewardModel as ServerRewardModel
from .vllm import VLLMRewardModel as VLLMRewardModel
from .writing import SIGNS as SIGNS, SYMBOLS as SYMBOLS, critique_target as critique_target
