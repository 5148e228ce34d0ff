from .cached import CachedCritic as CachedCritic
from .programs import RuffCritic as RuffCritic, UnitTestCritic as UnitTestCritic, fenced_blocks as fenced_blocks
from .servers import LLMCritic as LLMCritic
