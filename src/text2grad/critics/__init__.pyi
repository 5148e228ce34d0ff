from .cached import CachedCritic as CachedCritic
from .programs import (
    RuffCritic as RuffCritic,
    UnitTestCritic as UnitTestCritic,
    fault as fault,
    program_in as program_in,
)
from .servers import LLMCritic as LLMCritic
