from .agreement import RATES as RATES, Agreement as Agreement, compare as compare
from .decoding.grammar import critique_grammar as critique_grammar
from .decoding.quotable import QuoteLimits as QuoteLimits
from .format import CritiqueFormat as CritiqueFormat, saved_format as saved_format
from .generative import GenerativeRewardModel as GenerativeRewardModel
from .load import (
    KINDS as KINDS,
    LocalRewardModel as LocalRewardModel,
    critic_from_recipe as critic_from_recipe,
    reading_kind as reading_kind,
    shares_base as shares_base,
)
from .refresh import Refresher as Refresher, judge as judge
from .served import ServerRewardModel as ServerRewardModel
from .writing import SYMBOLS as SYMBOLS, critique_target as critique_target
