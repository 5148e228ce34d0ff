from .program_text import fault as fault, program_in as program_in
from .ruff_critic import RuffCritic as RuffCritic
from .unit_tests import UnitTestCritic as UnitTestCritic
