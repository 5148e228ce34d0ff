from .cached import CachedCritic as CachedCritic
from .programs import UnitTestCritic as UnitTestCritic, fenced_blocks as fenced_blocks, program_in as program_in
from .servers import LLMCritic as LLMCritic
