from .cached import CachedCritic as CachedCritic, CachedDraws as CachedDraws, Drawing as Drawing
from .programs import RuffCritic as RuffCritic, UnitTestCritic as UnitTestCritic, fenced_blocks as fenced_blocks
from .servers import LLMCritic as LLMCritic
