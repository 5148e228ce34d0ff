from .cached import CachedCritic as CachedCritic
from .programs import RuffCritic as RuffCritic, UnitTestCritic as UnitTestCritic
from .servers import LLMCritic as LLMCritic
