from .cached import CachedCritic as CachedCritic
from .programs.program_text import fault as fault, program_in as program_in
from .programs.ruff_critic import RuffCritic as RuffCritic
from .programs.unit_tests import UnitTestCritic as UnitTestCritic
from .servers import LLMCritic as LLMCritic
