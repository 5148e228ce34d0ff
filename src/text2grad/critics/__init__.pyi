from .cached import CachedCritic as CachedCritic
from .programs import (
    RuffCritic as RuffCritic,
    UnitTestCritic as UnitTestCritic,
    parses as parses,
    program_in as program_in,
)
from .servers import LLMCritic as LLMCritic
